"""Trains one job with TRL: what each process runs that `accelerate launch` starts.

All that depends on TRL's private functions is in this file. They are listed in `HOOKS`, with the parameters that they
must have; a test compares the list with the installed version.

- Rows are token ids already, because a prompt of a model with a codec has no text: SFT takes them as they are, DPO by
  `_prepare_dataset`, GRPO by `_tokenize_prompts`.
- The rows of a step and the learning rate are those of our loop (`_get_train_sampler`, `create_scheduler`).
- GRPO draws its problems when it needs them (`_generate_and_score_completions`), since that depends on how often each
  was answered right; its loss (`_compute_loss`) is that of `length_rl`, without division by length or clipping.
- A process reward has no trainer in TRL: it is trained with the one of transformers.
"""

from __future__ import annotations

import inspect
import json
import math
import os
import sys
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import gather_object
from datasets import Dataset
from torch import Tensor
from torch.utils.data import Sampler
from transformers import Trainer, TrainerCallback
from trl import DPOTrainer, GRPOTrainer, SFTTrainer

from ponder.core import UserError
from ponder.models._batch import Generation
from ponder.models._torch_engine import Loaded, load_anew
from ponder.rewards._heads import HEADS
from ponder.rewards._weights import Row
from ponder.training.launch import end_with_parent
from ponder.training.loop import TokenExample, Unit
from ponder.training.reward import RewardSettings, RowTarget, Scorer, joint_loss
from ponder.training.rollouts import Sample
from ponder.training.trl_engine import Job, config_class, read_iterations, read_job

HOOKS: dict[tuple[type, str], Sequence[str]] = {
    (SFTTrainer, "_get_train_sampler"): ("train_dataset",),
    (DPOTrainer, "_get_train_sampler"): ("train_dataset",),
    (Trainer, "_get_train_sampler"): ("train_dataset",),
    (Trainer, "_prepare_inputs"): ("inputs",),
    (DPOTrainer, "_prepare_dataset"): ("dataset", "processing_class", "args", "dataset_name"),
    (GRPOTrainer, "_tokenize_prompts"): ("prompts",),
    (GRPOTrainer, "_generate_and_score_completions"): ("inputs",),
    (GRPOTrainer, "_compute_loss"): ("model", "inputs"),
    (GRPOTrainer, "_get_per_token_logps_and_entropies"): ("model", "input_ids", "attention_mask", "logits_to_keep"),
}


def changed_hooks() -> list[str]:
    """What differs between TRL's private functions and what this file expects of them."""
    changed = []
    for (owner, name), expected in HOOKS.items():
        function = getattr(owner, name, None)
        have = [] if function is None else list(inspect.signature(function).parameters)[1:]
        if have[: len(expected)] != list(expected):
            now = f"takes {', '.join(have)}" if function else "is gone"
            changed.append(f"{owner.__name__}.{name} {now}; it took {', '.join(expected)}")
    return changed


class Fixed(Sampler[int]):
    """Rows in a given order."""

    def __init__(self, order: Sequence[int]) -> None:
        self._order = order

    def __iter__(self) -> Iterator[int]:
        return iter(self._order)

    def __len__(self) -> int:
        return len(self._order)


class Scheduled:
    """The learning rate of our loop at every step."""

    job: Job
    optimizer: Any

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:  # noqa: ARG002 TRL's signature
        settings, steps = self.job.settings, self.job.steps
        self.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(
            optimizer or self.optimizer, lambda step: settings.factor(step, steps)
        )
        return self.lr_scheduler


class Ordered(Scheduled):
    """The rows of our loop in every step."""

    def _get_train_sampler(self, train_dataset: Any = None) -> Fixed:  # noqa: ARG002 TRL's signature
        return Fixed(self.job.order)


class Sft(Ordered, SFTTrainer):  # type: ignore[misc]
    """TRL's supervised fine-tuning on token ids."""


class Dpo(Ordered, DPOTrainer):  # type: ignore[misc]
    """TRL's direct preference optimization on token ids."""

    def _prepare_dataset(self, dataset: Any, processing_class: Any, args: Any, dataset_name: str) -> Any:  # noqa: ARG002
        return dataset


class Grpo(Scheduled, GRPOTrainer):  # type: ignore[misc]
    """TRL's GRPO with the draws, the rewards and the loss of `length_rl`."""

    def __init__(self, job: Job, loaded: Loaded, **more: Any) -> None:
        assert job.rl is not None
        self.job, self.loaded, self.rl = job, loaded, job.rl
        self.prompts = [loaded.prompt(problem.request()) for problem in self.rl.pool]
        self.rates: list[tuple[int, int]] | None = None  # right and all samples per problem
        super().__init__(model=loaded.model, reward_funcs=self.reward, processing_class=loaded.tokenizer, **more)

    def _tokenize_prompts(self, prompts: list[str]) -> tuple[list[list[int]], None, dict[str, Any]]:
        return [self.prompts[int(prompt)] for prompt in prompts], None, {}

    def _generate_and_score_completions(self, inputs: Any) -> Any:  # noqa: ARG002 what is drawn decides
        iteration, n = self._iteration(), self.rl.method.n
        if self.rates is None:
            self.rates = [(0, 0)] * len(self.rl.pool)
            for entry in read_iterations(self.job.folder, iteration):
                self._count(entry["rates"])
        limit = min(self.rl.budget, self.rl.method.limit_at(iteration) or self.rl.budget)
        if self.use_vllm:
            self.vllm_generation.max_completion_length = limit
        else:
            self.generation_config.max_new_tokens = limit
        drawn = self.rl.method.drawn(self.rl.pool, self.rates, iteration)
        own = len(drawn) // self.accelerator.num_processes  # whole problems: their samples are compared
        mine = drawn[self.accelerator.process_index * own :][:own]
        return super()._generate_and_score_completions([{"prompt": str(p)} for p in mine for _ in range(n)])

    def _iteration(self) -> int:
        return int(self.state.global_step) // self.rl.method.inner

    def _count(self, rates: Sequence[tuple[int, int, int]]) -> None:
        assert self.rates is not None
        for p, right, asked in rates:
            self.rates[p] = self.rates[p][0] + right, self.rates[p][1] + asked

    def reward(self, prompts: list[str], completion_ids: list[list[int]], **_: Any) -> list[float]:
        """The rewards of this process's samples; what they say of each problem is shared with the others."""
        method, iteration, n = self.rl.method, self._iteration(), self.rl.method.n
        rewards: list[float] = []
        groups, process, rates, read = [], [], [], 0
        for start in range(0, len(prompts), n):
            assert len(set(prompts[start : start + n])) == 1, "the samples of a problem were split"
            p = int(prompts[start])
            group = [self._sample(p, ids) for ids in completion_ids[start : start + n]]
            earned, scores, tokens = method.group_rewards(self.rl.pool[p], group, iteration, self.loaded.codec)
            rewards, read = rewards + earned, read + tokens
            groups.append(group)
            process.append(scores)
            rates.append((p, sum(sample.right for sample in group), len(group)))
        shared = gather_object([(groups, process, rates, read)])
        rates = [rate for part in shared for rate in part[2]]
        self._count(rates)
        if self.accelerator.is_main_process:
            means = method.summary([g for part in shared for g in part[0]], [s for part in shared for s in part[1]])
            entry = {"iteration": iteration, **means, "rates": rates, "read_tokens": sum(part[3] for part in shared)}
            _append(self.job.folder / "iterations.jsonl", entry)
        return rewards

    def _sample(self, p: int, ids: list[int]) -> Sample:
        """A graded sample; one that reached its token limit is wrong."""
        one, reply = self.rl.pool[p], Generation(self.prompts[p], len(ids))
        reply.tokens, reply.ended = list(ids), ids[-1] in self.loaded.ends
        thinking, answer, _ = self.loaded.read(one.request(), reply)
        right = one.task.grade_turns(one.problem, [answer]).correct and reply.ended
        return Sample(TokenExample(self.prompts[p], reply.tokens), right, thinking, answer)

    def _compute_loss(self, model: Any, inputs: Mapping[str, Any]) -> Tensor:
        """τ/2 · (log-ratio of the reply to the policy that drew it)² − advantage · its log-probability, the mean."""
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], 1)
        mask = inputs["completion_mask"]
        seen = torch.cat([inputs["prompt_mask"], mask], 1)
        now, _, _ = self._get_per_token_logps_and_entropies(model, ids, seen, mask.size(1))
        before = inputs.get("old_per_token_logps")
        ratio = ((now - (now.detach() if before is None else before)) * mask).sum(1)
        loss: Tensor = (self.rl.method.tau / 2 * ratio**2 - inputs["advantages"] * (now * mask).sum(1)).mean()
        return loss / self.current_gradient_accumulation_steps


class RewardTrainer(Ordered, Trainer):  # type: ignore[misc]
    """Two heads on a language model, trained with the trainer of transformers."""

    def __init__(self, job: Job, scorer: Scorer, **more: Any) -> None:
        assert isinstance(job.settings, RewardSettings)
        self.job, self._loss = job, joint_loss(job.settings)
        self._total_train_tokens = 0
        super().__init__(model=scorer, data_collator=_units, **more)
        self.model_accepts_loss_kwargs = False  # so that it divides by the number of accumulated micro-batches

    def create_optimizer(self, model: Any = None) -> Any:
        settings = self.job.settings
        assert isinstance(settings, RewardSettings)
        if self.optimizer is None:
            heads: list[Any] = []
            rest: list[Any] = []
            for name, parameter in (model or self.model).named_parameters():
                (heads if "heads." in name else rest).append(parameter)
            groups = [{"params": rest, "lr": settings.rate}, {"params": heads, "lr": settings.head_rate}]
            self.optimizer = torch.optim.AdamW(groups, weight_decay=settings.weight_decay)
        return self.optimizer

    def _prepare_inputs(self, inputs: Any) -> Any:
        return inputs  # the model moves them

    def compute_loss(self, model: Any, inputs: Any, **_: Any) -> Tensor:
        units: list[Unit] = inputs["units"]
        with self.compute_loss_context_manager():
            scores = model([unit.data.row for unit in units])
        self._total_train_tokens += sum(gather_object([sum(map(len, units))]))
        return self._loss(scores.float(), units) / len(units)

    def log(self, logs: dict[str, Any], start_time: float | None = None) -> None:
        super().log({**logs, "num_tokens": self._total_train_tokens}, start_time)


def _units(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Rows of a reward's training as its loss takes them."""
    targets = [
        RowTarget(
            Row(row["tokens"], row["positions"]),
            torch.tensor(row["steps"], dtype=torch.float32),
            torch.tensor(row["weights"], dtype=torch.float32),
            math.nan if row["trajectory"] is None else row["trajectory"],
        )
        for row in rows
    ]
    return {"units": [Unit((TokenExample(target.row.tokens, ()),), target) for target in targets]}


class Log(TrainerCallback):  # type: ignore[misc]
    """Writes every step's loss, tokens and CPU seconds to a file that Ponder follows; stops at a loss that is none."""

    def __init__(self, job: Job) -> None:
        self.job, self.trainer, self.tokens = job, None, 0

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002 TRL's signature
        before = [entry["num_tokens"] for entry in state.log_history if "num_tokens" in entry]
        self.tokens = int(before[-1]) if before else 0
        if hasattr(self.trainer, "_total_train_tokens"):  # which a resumed trainer counts from 0
            self.trainer._total_train_tokens = self.tokens  # type: ignore[attr-defined]

    def on_step_begin(self, args: Any, state: Any, control: Any, optimizer: Any = None, **_: Any) -> None:  # noqa: ARG002
        if self.job.rl and state.global_step % self.job.rl.method.inner == 0:
            while hasattr(optimizer, "optimizer"):  # inside what accelerate or DeepSpeed wrap it in
                optimizer = optimizer.optimizer
            optimizer.state.clear()  # as `length_rl` does in every iteration

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:  # noqa: ARG002
        if not logs or "loss" not in logs:
            return
        for name in ("loss", "grad_norm"):
            if not math.isfinite(value := float(logs.get(name) or 0.0)):
                what = f"the {'loss' if name == 'loss' else 'gradient'} is {value} at step {state.global_step}"
                raise UserError(what, hint=f"lower `rate`, now {self.job.settings.rate:g}")
        if state.is_world_process_zero:
            self.tokens = int(logs.get("num_tokens", self.tokens))  # GRPO gives it only when it has drawn samples
            seconds = time.process_time() * self.job.launch.processes
            own = {"run": str(os.getpid()), "step": state.global_step, "time": time.time(), "seconds": seconds}
            entry = {**own, "loss": float(logs["loss"]), "num_tokens": self.tokens}
            _append(self.job.folder / "steps.jsonl", entry)


def _append(path: Path, entry: Mapping[str, Any]) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(entry) + "\n")


def arguments(job: Job) -> Any:
    """TRL's arguments for a job."""
    settings, cpu = job.settings, job.launch.cpu
    own: dict[str, Any] = {
        "output_dir": str(job.folder / "checkpoints"),
        "max_steps": job.steps,
        "learning_rate": settings.rate,
        "weight_decay": settings.weight_decay,
        "max_grad_norm": settings.clip,
        "seed": settings.seed,
        "bf16": settings.precision == "bfloat16",
        "use_cpu": cpu,
        "gradient_accumulation_steps": job.accumulation,
        "logging_steps": 1,
        "logging_nan_inf_filter": False,
        "save_strategy": "steps",
    }
    free: dict[str, Any] = {
        "per_device_train_batch_size": job.per_device,
        "gradient_checkpointing": not cpu,
        "dataloader_pin_memory": not cpu,
        "report_to": "none",
        "disable_tqdm": True,
        "save_steps": job.save_steps(),
        "save_total_limit": 1,
    }
    if job.kind == "sft":
        own |= {"max_length": None, "packing": False, "shuffle_dataset": False}
    elif job.kind == "dpo":
        own |= {"max_length": None, "beta": job.beta}
        free |= {"precompute_ref_log_probs": True}  # once, as our loop does; then the reference needs no memory
    elif job.kind == "grpo":
        own |= _grpo_arguments(job)
    else:
        own |= {"remove_unused_columns": False}
        free |= {"gradient_checkpointing": False}
    return config_class(job.kind)(**{**free, **settings.args, **own})


def _grpo_arguments(job: Job) -> dict[str, Any]:
    assert job.rl is not None
    return {
        "num_generations": job.rl.method.n,
        "num_iterations": job.rl.method.inner,
        "steps_per_generation": job.accumulation,
        "max_completion_length": job.rl.budget,
        "temperature": job.rl.temperature,
        "top_p": 1.0,
        "top_k": 0,
        "beta": 0.0,
        "loss_type": "dr_grpo",
        "scale_rewards": "none",
        "shuffle_dataset": False,
        "disable_dropout": True,
    }


def trainer(job: Job, loaded: Loaded) -> Any:
    """The trainer of a job."""
    log = Log(job)
    more: dict[str, Any] = {"args": arguments(job), "callbacks": [log]}
    if job.settings.lora:
        from peft import LoraConfig

        rank = job.settings.lora
        more["peft_config"] = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear")
    _no_dropout(loaded.model)
    if job.rl:
        count = job.steps // job.rl.method.inner * (job.batch // job.rl.method.n)
        made: Any = Grpo(job, loaded, train_dataset=Dataset.from_dict({"prompt": [""] * count}), **more)
    else:
        more["train_dataset"] = Dataset.from_file(str(job.folder / "rows.arrow"))
        if job.kind == "reward":
            made = RewardTrainer(job, Scorer(job.scorer.states(loaded.model), loaded.model.device), **more)
        else:
            kind = Sft if job.kind == "sft" else Dpo
            kind.job = job  # before TRL's constructor, which may need the sampler
            made = kind(model=loaded.model, processing_class=loaded.tokenizer, **more)
    log.trainer = made
    return made


def _no_dropout(model: Any) -> None:
    """As in our loop, where a step depends on its rows alone."""
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        elif hasattr(module, "attention_dropout"):
            module.attention_dropout = 0.0


def checkpoint(folder: Path) -> str | None:
    """The last complete checkpoint; the trainer's state is the last file that is written of one."""
    steps: dict[int, Path] = {}
    for path in folder.glob("checkpoint-*"):
        try:
            steps[json.loads((path / "trainer_state.json").read_bytes())["global_step"]] = path
        except (OSError, ValueError):
            continue
    return str(steps[max(steps)]) if steps else None


def write(job: Job, made: Any, loaded: Loaded) -> None:
    """Write the weights: beside the job's folder, or a LoRA adapter into it."""
    if made.is_fsdp_enabled:
        made.accelerator.state.fsdp_plugin.set_state_dict_type("FULL_STATE_DICT")
    if job.kind != "reward":
        made.save_model(str(job.folder / "adapter" if job.settings.lora else job.folder.parent))
        return
    from safetensors.torch import save_file

    state = made.accelerator.get_state_dict(made.deepspeed if made.is_deepspeed_enabled else made.model)
    if made.accelerator.is_main_process:
        parts: dict[str, dict[str, Tensor]] = {"heads": {}, "states": {}}
        for name, weight in state.items():
            part, _, rest = name.partition(".")
            parts[part][rest] = weight.detach().cpu().contiguous()
        save_file(parts["heads"], job.folder.parent / HEADS)
        with torch.no_grad():
            job.scorer.states(loaded.model.cpu()).load_state_dict(parts["states"])
        loaded.model.save_pretrained(job.folder.parent)


def run(job: Job) -> None:
    """Train, resuming if there is a checkpoint, and write the weights."""
    loaded = load_anew(job.source._replace(device="cpu"))  # the trainer moves it
    made = trainer(job, loaded)
    if made.accelerator.num_processes != job.launch.processes:
        what = f"accelerate started {made.accelerator.num_processes} of {job.launch.processes} processes"
        raise UserError(what, hint="does `accelerate launch` work here with this config by itself?")
    made.train(resume_from_checkpoint=checkpoint(job.folder / "checkpoints"))
    write(job, made, loaded)


def main(path: Path) -> None:
    """Run a job; a failure is written down for the process that started this one."""
    end_with_parent()
    try:
        run(read_job(path))
    except BaseException as error:
        said = f"training with TRL failed: {type(error).__name__}: {error}"
        known = isinstance(error, UserError)
        what, where, hint = (error.what, error.where, error.hint) if known else (said[:2000], "", "")  # type: ignore[attr-defined]
        new = path.parent / f"failure.{os.getpid()}"
        new.write_text(json.dumps({"what": what, "where": where, "hint": hint}), "utf-8")
        if not (path.parent / "failure.json").exists():  # the first is the cause, others only lost their partner
            new.replace(path.parent / "failure.json")
        traceback.print_exc()
        os._exit(1)  # not sys.exit, which would wait for processes that wait for this one


if __name__ == "__main__":
    main(Path(sys.argv[1]))
