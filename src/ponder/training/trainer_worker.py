"""Runs one job under `transformers.Trainer`: the program that `accelerate launch` starts."""

from __future__ import annotations

import json
import math
import os
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import gather_object
from torch import Tensor
from transformers import Trainer, TrainerCallback, TrainingArguments

from ponder.core import UserError
from ponder.training.launch import end_with_parent
from ponder.training.loop import Network, check_first_loss, with_reference
from ponder.training.trainer_engine import CHECKPOINTS, STEPS_LOG, Job, read_job


class UnitTrainer(Trainer):
    """A Trainer whose rows are micro-batches of units, with the job's loss and learning rate."""

    def __init__(self, job: Job, network: Network) -> None:
        self.job = job
        self.network = network
        self.units = list(job.units)
        args = arguments(job)
        if not hasattr(network.module, "gradient_checkpointing_enable"):  # as a reward's
            args.gradient_checkpointing = False
        super().__init__(
            model=network.module,
            args=args,
            train_dataset=range(len(job.micro_batches)),
            data_collator=_one_row,
            callbacks=[Follow(self)],
        )
        # A micro-batch's weight already counts for the whole step.
        self.loss_is_scaled_for_ga = True

    def compute_loss(
        self,
        model: Any,
        inputs: Any,
        return_outputs: bool = False,  # noqa: ARG002 the signature of transformers
        num_items_in_batch: Any = None,  # noqa: ARG002 the same
    ) -> Tensor:
        micro_batch = self.job.micro_batches[int(inputs["row"])]
        units = [self.units[index] for index in micro_batch.units]
        loss = self.job.objective.loss(self.network.scores(model, units), units)
        # Gradients are averaged over the processes.
        return loss * (micro_batch.weight * self.job.launch.processes)

    def create_optimizer(self, model: Any = None) -> Any:  # noqa: ARG002 the same
        if self.optimizer is None:
            optimizer, options = self.get_optimizer_cls_and_kwargs(self.args)
            options["weight_decay"] = self.job.settings.weight_decay
            self.optimizer = optimizer(self.network.groups(), **options)
        return self.optimizer

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:  # noqa: ARG002 the same
        factors = [*self.job.factors, 0.0]  # it is also asked after the last step
        scheduled: Any = optimizer or self.optimizer
        self.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(scheduled, lambda step: factors[step])
        return self.lr_scheduler

    def add_reference(self, model: Any) -> None:
        """Give each unit its log-probabilities before training.

        They are kept in a file, because a resumed training has other weights.
        """
        path = self.job.folder / "reference.json"
        if path.is_file():
            rows = json.loads(path.read_text("utf-8"))
        else:
            rows = self._score(model)
            if self.is_world_process_zero():
                new = path.with_suffix(".new")
                new.write_text(json.dumps(rows), "utf-8")
                new.replace(path)
        self.units = with_reference(self.job.units, rows)

    @torch.no_grad()
    def _score(self, model: Any) -> list[list[float]]:
        """Return the log-probability of each reply; each process reads every n-th micro-batch."""
        processes = self.job.launch.processes
        scored: list[tuple[int, list[float]]] = []
        for first in range(0, len(self.job.reading), processes):
            position = first + self.accelerator.process_index
            # Every process must take part in every forward pass.
            idle = position >= len(self.job.reading)
            indices = self.job.reading[first if idle else position]
            with self.compute_loss_context_manager():
                scores = self.network.scores(model, [self.units[index] for index in indices])
            if not idle:
                scored += zip(indices, scores.tolist(), strict=True)
        rows: list[list[float]] = [[] for _ in self.units]
        for index, row in gather_object(scored):
            rows[index] = row
        return rows


def _one_row(rows: Sequence[int]) -> dict[str, Tensor]:
    return {"row": torch.tensor(rows[0])}


class Follow(TrainerCallback):
    """Writes every step's loss and CPU seconds to a file; aborts on a non-finite loss."""

    def __init__(self, trainer: UnitTrainer) -> None:
        self.trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002 the signature of transformers
        if self.trainer.job.objective.reference:
            self.trainer.add_reference(kwargs["model"])

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:  # noqa: ARG002 the same
        if not logs or "loss" not in logs:
            return
        job = self.trainer.job
        loss = float(logs["loss"])
        for name, value in (("loss", loss), ("gradient", float(logs.get("grad_norm") or 0.0))):
            if not math.isfinite(value):
                raise UserError(
                    f"the {name} is {value} at step {state.global_step}",
                    hint=f"lower `rate`, now {job.settings.rate:g}",
                )
        if state.global_step == 1:
            hint = "does the model give the same log-probabilities twice in these processes?"
            check_first_loss(loss, job.objective, job.settings, self.trainer.network.dtype, hint)
        if state.is_world_process_zero:
            entry = {
                "run": str(os.getpid()),
                "step": state.global_step,
                "time": time.time(),
                "seconds": time.process_time() * job.launch.processes,
                "loss": loss,
            }
            with (job.folder / STEPS_LOG).open("a", encoding="utf-8") as file:
                file.write(json.dumps(entry) + "\n")


def arguments(job: Job) -> TrainingArguments:
    """Return the Trainer's arguments for a job."""
    settings = job.settings
    cpu = job.launch.cpu
    steps = len(job.factors)
    # What a user may change with `args`.
    free: dict[str, Any] = {
        "optim": "adamw_torch",
        "gradient_checkpointing": not cpu,
        "gradient_checkpointing_kwargs": {"use_reentrant": False},
        "dataloader_pin_memory": not cpu,
        "report_to": "none",
        "disable_tqdm": True,
        "save_steps": -(-steps // CHECKPOINTS),
        "save_total_limit": 1,
    }
    fixed: dict[str, Any] = {
        "output_dir": str(job.folder / "checkpoints"),
        "max_steps": steps,
        "learning_rate": settings.rate,
        "max_grad_norm": settings.clip,
        "seed": settings.seed,
        "bf16": settings.precision == "bfloat16",
        "use_cpu": cpu,
        "per_device_train_batch_size": 1,
        "gradient_accumulation_steps": job.accumulation,
        "train_sampling_strategy": "sequential",
        "remove_unused_columns": False,
        "logging_steps": 1,
        "logging_nan_inf_filter": False,
        "save_strategy": "steps" if job.resumable else "no",
    }
    return TrainingArguments(**{**free, **settings.args, **fixed})


def without_dropout(model: Any) -> None:
    """Turn dropout off, as in the loop, where a step depends on its units alone."""
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        elif hasattr(module, "attention_dropout"):
            module.attention_dropout = 0.0


def last_checkpoint(folder: Path) -> str | None:
    """Return the last complete checkpoint; the trainer's state is the last file of one."""
    checkpoints: dict[int, Path] = {}
    for path in folder.glob("checkpoint-*"):
        try:
            state = json.loads((path / "trainer_state.json").read_bytes())
        except (OSError, ValueError):
            continue
        checkpoints[state["global_step"]] = path
    if not checkpoints:
        return None
    return str(checkpoints[max(checkpoints)])


def run(job: Job) -> None:
    """Train, resuming if there is a checkpoint, and write the weights."""
    # Before the weights are loaded: only then does transformers know about FSDP and DeepSpeed.
    arguments(job)
    network = job.load(trained=job.trained)
    without_dropout(network.module)
    trainer = UnitTrainer(job, network)
    processes = trainer.accelerator.num_processes
    if processes != job.launch.processes:
        raise UserError(
            f"accelerate started {processes} of {job.launch.processes} processes",
            hint="does `accelerate launch` work here with this config by itself?",
        )
    kind = str(trainer.accelerator.distributed_type.value)
    if job.launch.sharding and kind != job.launch.sharding:
        raise UserError(
            f"accelerate ignores {job.launch.sharding} here: its processes are {kind}",
            hint="does `accelerate launch` work here with this config by itself?",
        )
    checkpoint = None
    if job.resumable:
        checkpoint = last_checkpoint(job.folder / "checkpoints")
    trainer.train(resume_from_checkpoint=checkpoint)
    # All processes must call it: each may hold a part.
    state = trainer.accelerator.get_state_dict(trainer.model_wrapped)
    if trainer.is_world_process_zero():
        network.write_trained(job.output, state)


def main(path: Path) -> None:
    """Run a job; a failure is written down for the process that started this one."""
    end_with_parent()
    try:
        run(read_job(path))
    except BaseException as error:
        message = f"training failed: {type(error).__name__}: {error}"[:2000]
        failure = {"what": message, "where": "", "hint": ""}
        if isinstance(error, UserError):
            failure = {"what": error.what, "where": error.where, "hint": error.hint}
        new = path.parent / f"failure.{os.getpid()}"
        new.write_text(json.dumps(failure), "utf-8")
        # The first is the cause: other processes only lost their partner.
        if not (path.parent / "failure.json").exists():
            new.replace(path.parent / "failure.json")
        traceback.print_exc()
        os._exit(1)  # not sys.exit, which would wait for processes that wait for this one


if __name__ == "__main__":
    main(Path(sys.argv[1]))
