"""TRL's trainers with our rows, learning rates, rewards and losses.

All that depends on TRL's private functions is in this file. They are listed in `HOOKS`, with the
parameters that they must have; a test compares the list with the installed version.

- Rows are token ids already, because a prompt of a model with a codec has no text: SFT takes them
  as they are, DPO by
  `_prepare_dataset`, GRPO by `_tokenize_prompts`.
- The rows of a step and the learning rate are those of our loop (`_get_train_sampler`,
  `create_scheduler`).
- GRPO draws its problems when it needs them (`_generate_and_score_completions`), since that depends
  on how often each
  was answered right; its loss (`_compute_loss`) is that of `length_rl`, without division by length
  or clipping. If the
  job has a sampler, it draws the samples (`rollout_func`).
- A process reward has no trainer in TRL: it is trained with the one of transformers.
"""

from __future__ import annotations

import inspect
import json
import math
import shutil
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import broadcast_object_list, gather_object
from torch import Tensor
from torch.utils.data import Sampler
from transformers import Trainer
from trl.trainer.dpo_trainer import DPOTrainer
from trl.trainer.grpo_trainer import GRPOTrainer
from trl.trainer.sft_trainer import SFTTrainer

from ponder.core import seed_from
from ponder.core.capabilities import grade_turns, kept_open
from ponder.models._batch import Generation
from ponder.models._torch_engine import Loaded, load_light
from ponder.rewards._weights import Row
from ponder.training.fresh_sampler import FreshSampler
from ponder.training.loop import TokenExample, Unit
from ponder.training.reward import RewardSettings, RowTarget, Scorer, joint_loss
from ponder.training.rollouts import Rollouts, Sample
from ponder.training.trl_engine import Job, complete, read_iterations

HOOKS: dict[tuple[type, str], Sequence[str]] = {
    (SFTTrainer, "_get_train_sampler"): ("train_dataset",),
    (DPOTrainer, "_get_train_sampler"): ("train_dataset",),
    (Trainer, "_get_train_sampler"): ("train_dataset",),
    (Trainer, "_prepare_inputs"): ("inputs",),
    (DPOTrainer, "_prepare_dataset"): ("dataset", "processing_class", "args", "dataset_name"),
    (GRPOTrainer, "_tokenize_prompts"): ("prompts",),
    (GRPOTrainer, "_generate_and_score_completions"): ("inputs",),
    (GRPOTrainer, "_compute_loss"): ("model", "inputs"),
    (GRPOTrainer, "_get_per_token_logps_and_entropies"): (
        "model",
        "input_ids",
        "attention_mask",
        "logits_to_keep",
    ),
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

    def _prepare_dataset(
        self,
        dataset: Any,
        processing_class: Any,  # noqa: ARG002
        args: Any,  # noqa: ARG002
        dataset_name: str,  # noqa: ARG002
    ) -> Any:
        return dataset

    def preference_loss(self, logs: Mapping[str, Any]) -> float | None:
        """Return the mean -log sigmoid of the pairs from a logged loss; None if TRL weighted the
        pairs differently.
        """
        if self.use_weighting:
            return None
        loss = float(logs["loss"])
        if self.aux_loss_enabled:  # which mixtures of experts add
            loss -= self.router_aux_loss_coef * float(logs["aux_loss"])
        return loss / float(self.loss_weights[0])


class Grpo(Scheduled, GRPOTrainer):  # type: ignore[misc]
    """TRL's GRPO with the draws, the rewards and the loss of `length_rl`."""

    def __init__(self, job: Job, loaded: Loaded, **more: Any) -> None:
        assert job.rl is not None
        self.job, self.loaded, self.rl = job, loaded, job.rl
        self.prompts = [loaded.prompt(problem.request()) for problem in self.rl.pool]
        self.rates: list[tuple[int, int]] | None = None  # right and all samples per problem
        self.drawn: list[int] = []  # the problems of this iteration, of all processes
        self.fresh: FreshSampler | None = None
        if self.rl.sampler:
            more["rollout_func"] = self.rollout
        super().__init__(
            model=loaded.model, reward_funcs=self.reward, processing_class=loaded.tokenizer, **more
        )

    def _tokenize_prompts(self, prompts: list[str]) -> tuple[list[list[int]], None, dict[str, Any]]:
        return [self.prompts[int(prompt)] for prompt in prompts], None, {}

    def _generate_and_score_completions(self, inputs: Any) -> Any:  # noqa: ARG002 what is drawn decides
        iteration, n = self._iteration(), self.rl.method.n
        if self.rates is None:
            self.rates = [(0, 0)] * len(self.rl.pool)
            for entry in read_iterations(self.job.folder, iteration):
                self._count(entry["rates"])
        if self.use_vllm:
            self.vllm_generation.max_completion_length = self._limit()
        else:
            self.generation_config.max_new_tokens = self._limit()
        self.drawn = self.rl.method.drawn(self.rl.pool, self.rates, iteration)
        # whole problems: their samples are compared
        own = len(self.drawn) // self.accelerator.num_processes
        mine = self.drawn[self.accelerator.process_index * own :][:own]
        return super()._generate_and_score_completions(
            [{"prompt": str(p)} for p in mine for _ in range(n)]
        )

    def rollout(self, prompts: list[str], trainer: Any) -> dict[str, Any]:  # noqa: ARG002 TRL's signature
        """Samples of the job's sampler with the weights as they are now.

        The first process draws them for all.
        """
        folder = self.job.folder / "rollouts"
        save(self, folder / "saved" if self.job.settings.lora else folder)
        replies: list[dict[int, list[list[int]]]] = [{}]
        if self.accelerator.is_main_process:
            replies = [self._replies(folder)]
        broadcast_object_list(replies)
        n = self.rl.method.n
        mine = [ids for prompt in prompts[::n] for ids in replies[0][int(prompt)]]
        return {
            "prompt_ids": self._tokenize_prompts(prompts)[0],
            "completion_ids": mine,
            "logprobs": None,
        }

    def _replies(self, folder: Path) -> dict[int, list[list[int]]]:
        """The token ids of every problem's samples."""
        problems, iteration = [self.rl.pool[p] for p in self.drawn], self._iteration()
        self.fresh = self.fresh or self._fresh(folder)
        (folder / "samples").unlink(missing_ok=True)
        sampler = self.fresh.refreshed(iteration, self.rl.temperature)
        seed = seed_from("rl", self.job.settings.seed, iteration)
        rollouts = Rollouts(
            sampler,
            self.loaded,
            problems,
            self.rl.method.n,
            seed,
            folder / "samples",
            self._limit(),
        )
        for _ in rollouts:
            pass
        return {
            p: [list(s.text.said) for s in group]
            for p, group in zip(self.drawn, rollouts.samples, strict=True)
        }

    def _fresh(self, folder: Path) -> FreshSampler:
        """The sampler, started; it reads weights that were saved before."""
        assert self.rl.sampler is not None
        plain, saved = load_light(self.job.source), folder / "saved"

        def copy(into: Path) -> None:
            shutil.copytree(saved, into, dirs_exist_ok=True)

        write, adapter = (
            partial(complete, self.job, plain, saved),
            copy if self.job.settings.lora else None,
        )
        fresh = FreshSampler(self.rl.sampler, self.job.source.folder, folder, write, adapter)
        # as long as this trainer lives: without a name it would end at once
        self._open = kept_open(self.rl.sampler)
        self._open.__enter__()
        for _ in fresh.start(self.rl.pool[0].task):
            pass
        return fresh

    def _limit(self) -> int:
        """The most tokens of a reply in this iteration."""
        return min(self.rl.budget, self.rl.method.limit_at(self._iteration()) or self.rl.budget)

    def _iteration(self) -> int:
        return int(self.state.global_step) // self.rl.method.inner

    def _count(self, rates: Sequence[tuple[int, int, int]]) -> None:
        assert self.rates is not None
        for p, right, asked in rates:
            self.rates[p] = self.rates[p][0] + right, self.rates[p][1] + asked

    def reward(
        self, prompts: list[str], completion_ids: list[list[int]], **_: Any
    ) -> list[float | None]:
        """The rewards of this process's samples; what they say of each problem is shared with the
        others.
        """
        method, iteration, n = self.rl.method, self._iteration(), self.rl.method.n
        rewards: list[float | None] = []
        groups, process, rates, read = [], [], [], 0
        for start in range(0, len(prompts), n):
            assert len(set(prompts[start : start + n])) == 1, "the samples of a problem were split"
            p = int(prompts[start])
            group = [self._sample(p, ids) for ids in completion_ids[start : start + n]]
            earned, scores, tokens = method.group_rewards(
                self.rl.pool[p], group, iteration, self.loaded.codec
            )
            rewards, read = [*rewards, *earned], read + tokens
            groups.append(group)
            process.append(scores)
            rates.append((p, sum(sample.right for sample in group), len(group)))
        shared = gather_object([(groups, process, rates, read)])
        rates = [rate for part in shared for rate in part[2]]
        self._count(rates)
        if self.accelerator.is_main_process:
            means = method.summary(
                [g for part in shared for g in part[0]], [s for part in shared for s in part[1]]
            )
            entry = {
                "iteration": iteration,
                **means,
                "rates": rates,
                "read_tokens": sum(part[3] for part in shared),
            }
            entry |= {"sampler": self.fresh.served} if self.fresh and self.fresh.served else {}
            append_line(self.job.folder / "iterations.jsonl", entry)
        return rewards

    def _sample(self, p: int, ids: list[int]) -> Sample:
        """A graded sample; one that reached its token limit is wrong."""
        one, reply = self.rl.pool[p], Generation(self.prompts[p], len(ids))
        reply.tokens, reply.ended = list(ids), ids[-1] in self.loaded.ends
        thinking, answer, _ = self.loaded.read(one.request(), reply)
        right = grade_turns(one.task, one.problem, [answer]).correct and reply.ended
        return Sample(TokenExample(self.prompts[p], reply.tokens), right, thinking, answer)

    def _compute_loss(self, model: Any, inputs: Mapping[str, Any]) -> Tensor:
        """τ/2 · (log-ratio of the reply to the policy that drew it)² − advantage · its
        log-probability, the mean.
        """
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], 1)
        mask = inputs["completion_mask"]
        seen = torch.cat([inputs["prompt_mask"], mask], 1)
        now, _, _ = self._get_per_token_logps_and_entropies(model, ids, seen, mask.size(1))
        before = inputs.get("old_per_token_logps")
        ratio = ((now - (now.detach() if before is None else before)) * mask).sum(1)
        loss: Tensor = (
            self.rl.method.tau / 2 * ratio**2 - inputs["advantages"] * (now * mask).sum(1)
        ).mean()
        return loss / self.current_gradient_accumulation_steps


class RewardTrainer(Ordered, Trainer):  # type: ignore[misc]
    """Two heads on a language model, trained with the trainer of transformers."""

    def __init__(self, job: Job, scorer: Scorer, **more: Any) -> None:
        assert isinstance(job.settings, RewardSettings)
        self.job, self._loss = job, joint_loss(job.settings)
        self._total_train_tokens = 0
        super().__init__(model=scorer, data_collator=_units, **more)

    def create_optimizer(self, model: Any = None) -> Any:
        settings = self.job.settings
        assert isinstance(settings, RewardSettings)
        if self.optimizer is None:
            heads: list[Any] = []
            rest: list[Any] = []
            trained: Any = model or self.model
            for name, parameter in trained.named_parameters():
                (heads if "heads." in name else rest).append(parameter)
            groups = [
                {"params": rest, "lr": settings.rate},
                {"params": heads, "lr": settings.head_rate},
            ]
            self.optimizer = torch.optim.AdamW(groups, weight_decay=settings.weight_decay)
        return self.optimizer

    def _prepare_inputs(self, inputs: Any) -> Any:
        return inputs  # the model moves them

    def compute_loss(
        self,
        model: Any,
        inputs: Any,
        return_outputs: bool = False,  # noqa: ARG002 the signature of transformers
        num_items_in_batch: Any = None,  # noqa: ARG002 the same
    ) -> Tensor:
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


def save(trainer: Any, folder: Path) -> None:
    """Write a trainer's weights, or its LoRA adapter.

    All processes must call it: each may hold a part.
    """
    if not trainer.is_fsdp_enabled:
        trainer.save_model(str(folder))
        return
    plugin = trainer.accelerator.state.fsdp_plugin
    before = plugin.state_dict_type
    plugin.set_state_dict_type("FULL_STATE_DICT")
    trainer.save_model(str(folder))
    plugin.set_state_dict_type(before)  # checkpoints are in the form that the user's config names


def append_line(path: Path, entry: Mapping[str, Any]) -> None:
    """Add a line of JSON to a file that Ponder follows."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(entry) + "\n")
