"""Trains one job with TRL: what each process runs that `accelerate launch` starts."""

from __future__ import annotations

import json
import math
import os
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from torch import Tensor
from transformers import TrainerCallback

from ponder.core import UserError
from ponder.models._torch_engine import Loaded, load_anew
from ponder.rewards._weights import HEADS
from ponder.training.launch import end_with_parent
from ponder.training.loop import check_first_dpo_loss
from ponder.training.reward import Scorer
from ponder.training.trl_engine import Job, config_class, read_job
from ponder.training.trl_trainers import Dpo, Grpo, RewardTrainer, Sft, append_line, save


class Log(TrainerCallback):
    """Writes every step's loss, tokens and CPU seconds to a file that Ponder follows; stops at a
    loss that is none.
    """

    def __init__(self, job: Job) -> None:
        self.job, self.tokens = job, 0
        self.trainer: Any = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002 TRL's signature
        before = [entry["num_tokens"] for entry in state.log_history if "num_tokens" in entry]
        self.tokens = int(before[-1]) if before else 0
        if hasattr(self.trainer, "_total_train_tokens"):  # which a resumed trainer counts from 0
            self.trainer._total_train_tokens = self.tokens

    def on_step_begin(
        self,
        args: Any,  # noqa: ARG002
        state: Any,
        control: Any,  # noqa: ARG002
        optimizer: Any = None,
        **_: Any,
    ) -> None:
        if self.job.rl and state.global_step % self.job.rl.method.inner == 0:
            while hasattr(optimizer, "optimizer"):  # inside what accelerate or DeepSpeed wrap it in
                optimizer = optimizer.optimizer
            optimizer.state.clear()  # as `length_rl` does in every iteration

    def on_log(
        self,
        args: Any,  # noqa: ARG002
        state: Any,
        control: Any,  # noqa: ARG002
        logs: dict[str, Any] | None = None,
        **_: Any,
    ) -> None:
        if not logs or "loss" not in logs:
            return
        for name in ("loss", "grad_norm"):
            if not math.isfinite(value := float(logs.get(name) or 0.0)):
                what = f"the {'loss' if name == 'loss' else 'gradient'} is {value} at step {state.global_step}"
                raise UserError(what, hint=f"lower `rate`, now {self.job.settings.rate:g}")
        if self.job.kind == "dpo" and state.global_step == 1:
            self._check_reference(logs)
        if state.is_world_process_zero:
            # GRPO gives it only when it has drawn samples
            self.tokens = int(logs.get("num_tokens", self.tokens))
            seconds = time.process_time() * self.job.launch.processes
            own = {
                "run": str(os.getpid()),
                "step": state.global_step,
                "time": time.time(),
                "seconds": seconds,
            }
            entry = {**own, "loss": float(logs["loss"]), "num_tokens": self.tokens}
            append_line(self.job.folder / "steps.jsonl", entry)

    def _check_reference(self, logs: dict[str, Any]) -> None:
        """Raise `UserError` if the first loss shows that the reference isn't the model before
        training.
        """
        assert isinstance(self.trainer, Dpo)
        loss = self.trainer.preference_loss(logs)
        if loss is not None:
            config = self.job.launch.config or "an accelerate config"
            hint = f"under FSDP, set fsdp_cpu_ram_efficient_loading: false in {config}"
            check_first_dpo_loss(
                loss,
                self.job.settings,
                self.job.settings.source_to_train(self.job.source).dtype,
                hint,
            )


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
        # once, as our loop does; then the reference needs no memory
        free |= {"precompute_ref_log_probs": True}
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


def trainer(job: Job, loaded: Loaded, own: Any) -> Any:
    """The trainer of a job, with TRL's arguments for it."""
    log = Log(job)
    more: dict[str, Any] = {"args": own, "callbacks": [log]}
    if job.settings.lora:
        from peft import LoraConfig

        rank = job.settings.lora
        more["peft_config"] = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear")
    _no_dropout(loaded.model)
    if job.rl:
        count = job.steps // job.rl.method.inner * (job.batch // job.rl.method.n)
        made: Any = Grpo(
            job, loaded, train_dataset=Dataset.from_dict({"prompt": [""] * count}), **more
        )
    else:
        more["train_dataset"] = Dataset.from_file(str(job.folder / "rows.arrow"))
        if job.kind == "reward":
            made = RewardTrainer(
                job, Scorer(job.scorer.states(loaded.model), loaded.model.device), **more
            )
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
    if job.kind != "reward":
        save(made, job.folder / "adapter" if job.settings.lora else job.folder.parent)
        return
    if made.is_fsdp_enabled:
        made.accelerator.state.fsdp_plugin.set_state_dict_type("FULL_STATE_DICT")
    from safetensors.torch import save_file

    state = made.accelerator.get_state_dict(
        made.deepspeed if made.is_deepspeed_enabled else made.model
    )
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
    # Before the weights: only then are they loaded in parts for DeepSpeed, and for FSDP by one
    # process for all.
    own = arguments(job)
    # the trainer moves it
    loaded = load_anew(job.settings.source_to_train(job.source)._replace(device="cpu"))
    made = trainer(job, loaded, own)
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
        if isinstance(error, UserError):
            what, where, hint = error.what, error.where, error.hint
        else:
            what = f"training with TRL failed: {type(error).__name__}: {error}"[:2000]
            where = hint = ""
        new = path.parent / f"failure.{os.getpid()}"
        new.write_text(json.dumps({"what": what, "where": where, "hint": hint}), "utf-8")
        # the first is the cause, others only lost their partner
        if not (path.parent / "failure.json").exists():
            new.replace(path.parent / "failure.json")
        traceback.print_exc()
        os._exit(1)  # not sys.exit, which would wait for processes that wait for this one


if __name__ == "__main__":
    main(Path(sys.argv[1]))
