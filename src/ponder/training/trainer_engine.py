"""`engine = "trainer"`: trains with `transformers.Trainer` in processes that accelerate starts.

This is the side that Ponder runs. `TrainerEngine` has the methods of `Loop`. It writes the job into
a folder (units, steps, loss, how to load the model), starts `trainer_worker` under `accelerate
launch`, follows the log that the worker writes, and reads from it the CPU time. Checkpoints are the
Trainer's: an interrupted training resumes from the last complete one.

A step trains on the same units with the same loss and learning rate as in the loop, and its units
are split into micro-batches, of which each process takes every n-th.
"""

from __future__ import annotations

import dataclasses
import json
import pickle
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from subprocess import Popen
from typing import Any, NamedTuple

from ponder.core import Progress, Source, UserError, plugins
from ponder.models._gpu_memory import make_room
from ponder.rewards._windows import batches
from ponder.training.launch import Launch, started
from ponder.training.loop import Network, Objective, Step, TrainingSettings, Unit, count_tokens

CHECKPOINTS = 10  # in a training
WORK = "trainer"  # the folder of a training's jobs, checkpoints and logs
STEPS_LOG = "steps.jsonl"
# TrainingArguments that have a name in Ponder.
NAMED_HERE = {
    "learning_rate": "rate",
    "num_train_epochs": "epochs",
    "max_steps": "steps",
    "max_grad_norm": "clip",
    "weight_decay": "weight_decay",
    "warmup_steps": "warm_up",
    "warmup_ratio": "warm_up",
    "lr_scheduler_type": "decay",
    "seed": "seed",
    "bf16": "precision",
    "fp16": "precision",
    "per_device_train_batch_size": "micro_tokens",
    "use_cpu": "device of the model",
}
# TrainingArguments that only Ponder sets: the order of units, the bill and resuming depend on them.
FIXED = (
    "output_dir",
    "gradient_accumulation_steps",
    "remove_unused_columns",
    "logging_strategy",
    "logging_steps",
    "logging_nan_inf_filter",
    "save_strategy",
    "save_only_model",
    "train_sampling_strategy",
    "dataloader_drop_last",
    "ignore_data_skip",
    "resume_from_checkpoint",
    "eval_strategy",
)


class MicroBatch(NamedTuple):
    """What one process reads in one forward pass."""

    units: Sequence[int]  # indices
    weight: float  # of the sum of their losses; 0 where a process has nothing left to do


@dataclass(frozen=True)
class Job:
    """All that the training processes need."""

    load: Callable[..., Network]
    trained: Path | None  # the weights of an earlier job, to continue from
    settings: TrainingSettings
    objective: Objective
    units: Sequence[Unit]
    factors: Sequence[float]  # on the learning rate, one per step
    micro_batches: Sequence[MicroBatch]  # of all steps, in order
    reading: Sequence[Sequence[int]]  # the units of each forward pass of the reference
    launch: Launch
    folder: Path
    output: Path  # for the trained weights
    resumable: bool

    @property
    def accumulation(self) -> int:
        """Return the micro-batches of a step and process."""
        return len(self.micro_batches) // len(self.factors) // self.launch.processes


def check(settings: TrainingSettings, device: str) -> None:
    """Raise `UserError` if the engine can't be used with these settings on this machine."""
    if settings.engine == "ponder":
        return
    plugins.need("torch", 'engine = "trainer"')
    Launch.of(settings, device)
    _check_args(settings.args)


def _check_args(args: Mapping[str, Any]) -> None:
    """Raise `UserError` for arguments that don't exist, or that have a name of their own here."""
    from transformers import TrainingArguments

    arguments = {field.name for field in dataclasses.fields(TrainingArguments)}
    for key in args:
        where = f"args.{key}"
        if key in NAMED_HERE:
            raise UserError(f"`{key}` is set by `{NAMED_HERE[key]}`", where=where)
        if key in FIXED:
            raise UserError(f"`{key}` can't be changed: Ponder sets it", where=where)
        if key in arguments:
            continue
        nearest = plugins.closest(key, arguments | {*NAMED_HERE})
        if nearest in NAMED_HERE:
            hint = f"{nearest} has a name here: {NAMED_HERE[nearest]}"
        else:
            hint = plugins.nearest(key, arguments - {*FIXED, *NAMED_HERE})
        raise UserError(f"TrainingArguments has no argument `{key}`", where=where, hint=hint)


def split(lengths: Sequence[int], limit: int, number: int) -> list[list[int]]:
    """Return the indices of units in at least `number` micro-batches, if there are as many units.

    Each has at most `limit` tokens, padding included, unless a single unit is longer.
    """
    groups = batches(lengths, limit)
    while len(groups) < number:
        largest = max(groups, key=len)
        if len(largest) == 1:
            break
        position = groups.index(largest)
        half = len(largest) // 2
        groups[position : position + 1] = [largest[:half], largest[half:]]
    return groups


def micro_batches(
    units: Sequence[Unit], steps: Sequence[Step], limit: int, processes: int
) -> list[MicroBatch]:
    """Return the micro-batches of all steps, equally many per step and process."""
    lengths = [[len(units[index]) for index in step.units] for step in steps]
    largest = max(len(batches(step_lengths, limit)) for step_lengths in lengths)
    per_step = -(-largest // processes) * processes
    result: list[MicroBatch] = []
    for step, step_lengths in zip(steps, lengths, strict=True):
        groups = split(step_lengths, limit, per_step)
        for group in groups:
            result.append(MicroBatch([step.units[n] for n in group], 1 / step.divisor))
        # Every process must take part in every forward and backward pass.
        shortest = min(range(len(step.units)), key=lambda n: step_lengths[n])
        idle = MicroBatch([step.units[shortest]], 0.0)
        result += [idle] * (per_step - len(groups))
    return result


class TrainerEngine:
    """The training of a network in processes of their own, with all that it needs in a folder."""

    def __init__(
        self,
        load: Callable[..., Network],
        settings: TrainingSettings,
        source: Source,
        folder: Path,
    ) -> None:
        self._load = load  # takes `trained`, the folder of weights to continue from
        self._settings = settings
        self._source = source
        self._work = folder / WORK
        self._launch = Launch.of(settings, source.device)
        self._trained: Path | None = None
        self._trainings = 0
        self.tokens = 0  # of all forward passes
        processes = self._launch.processes
        self.notes = {"engine": {"transformers": version("transformers"), "processes": processes}}

    @property
    def seconds(self) -> float:
        """Return the CPU seconds of all processes, also of killed ones."""
        path = self._work / STEPS_LOG
        if not path.is_file():
            return 0.0
        seconds: dict[str, float] = {}
        for line in path.read_bytes().splitlines():
            entry = json.loads(line)
            seconds[entry["run"]] = entry["seconds"]
        return sum(seconds.values())

    def train(
        self,
        units: Sequence[Unit],
        steps: Sequence[Step],
        objective: Objective,
        resumable: bool = True,
    ) -> Iterator[Progress]:
        """Take all steps, resuming from a checkpoint if there is one.

        A training that isn't `resumable` continues from the weights of the one before it, with a
        new optimizer and without checkpoints of its own.
        """
        self._work.mkdir(parents=True, exist_ok=True)
        (self._work / "failure.json").unlink(missing_ok=True)
        job = self._job(units, steps, objective, resumable)
        _write_job(job, self._work / "job.pickle")
        make_room(self._source.device)
        command = self._launch.command(
            self._work, "ponder.training.trainer_worker", str(self._work / "job.pickle")
        )
        environment = self._launch.environment(self._source.threads)
        with started(command, environment, self._work / "output.log") as process:
            yield from self._follow(process, len(steps))
        if process.returncode:
            raise _failure(self._work, process.returncode)
        self._trained = job.output
        self._trainings += 1
        for step in steps:
            self.tokens += count_tokens([units[index] for index in step.units])
        if objective.reference:
            self.tokens += count_tokens(units)

    def _job(
        self,
        units: Sequence[Unit],
        steps: Sequence[Step],
        objective: Objective,
        resumable: bool,
    ) -> Job:
        limit = self._settings.micro_tokens
        processes = self._launch.processes
        output = self._work / f"weights-{self._trainings}"
        shutil.rmtree(output, ignore_errors=True)
        return Job(
            load=self._load,
            trained=self._trained,
            settings=self._settings,
            objective=objective,
            units=units,
            factors=[step.factor for step in steps],
            micro_batches=micro_batches(units, steps, limit, processes),
            reading=split([len(unit) for unit in units], limit, processes),
            launch=self._launch,
            folder=self._work,
            output=output,
            resumable=resumable,
        )

    def _follow(self, process: Popen[bytes], steps: int) -> Iterator[Progress]:
        """Yield the worker's progress until it ends, at least every second."""
        log = self._work / STEPS_LOG
        position = log.stat().st_size if log.is_file() else 0
        progress: Progress = {"starting": "transformers.Trainer", **self.notes["engine"]}
        first: dict[str, Any] | None = None
        running = True
        while running:
            running = process.poll() is None
            yield progress
            for line in _complete_lines(log, position):
                position += len(line)
                entry = json.loads(line)
                progress = {"step": entry["step"], "of": steps, "loss": round(entry["loss"], 4)}
                if first is None:
                    first = entry
                else:
                    per_step = (entry["time"] - first["time"]) / (entry["step"] - first["step"])
                    progress["seconds_left"] = round(per_step * (steps - entry["step"]))
                yield progress
            if running:
                time.sleep(1.0)

    def save(self, **state: Any) -> None:
        """Write down which weights are the current ones, with counters and a caller's `state`."""
        self._work.mkdir(parents=True, exist_ok=True)
        trained = self._trained.name if self._trained else None
        content = {
            "trained": trained,
            "trainings": self._trainings,
            "tokens": self.tokens,
            **state,
        }
        new = self._work / "state.new"
        new.write_text(json.dumps(content), "utf-8")
        new.replace(self._work / "state.json")
        for folder in self._work.glob("weights-*"):
            if folder.name != trained:
                shutil.rmtree(folder)

    def resume(self) -> dict[str, Any]:
        """Return what `save` wrote, if it was called, and continue from those weights."""
        path = self._work / "state.json"
        if not path.is_file():
            return {}
        state: dict[str, Any] = json.loads(path.read_text("utf-8"))
        if state["trained"]:
            self._trained = self._work / state["trained"]
        self._trainings = state["trainings"]
        self.tokens = state["tokens"]
        return state

    def write(self, folder: Path) -> None:
        """Write the trained model in the Hugging Face format, an adapter merged into it."""
        if self._trained and not self._settings.lora:
            shutil.copytree(self._trained, folder, dirs_exist_ok=True)
        else:
            self._load(trained=self._trained).write(folder)

    def write_adapter(self, folder: Path) -> None:
        """Write the LoRA adapter alone; before a training, a new one."""
        if self._trained:
            shutil.copytree(self._trained, folder, dirs_exist_ok=True)
        else:
            network: Any = self._load(trained=None)
            network.write_adapter(folder)


def _complete_lines(path: Path, start: int) -> list[bytes]:
    """Return the complete lines of a growing file from a position on."""
    if not path.is_file():
        return []
    with path.open("rb") as file:
        file.seek(start)
        return [line for line in file.readlines() if line.endswith(b"\n")]


def _write_job(job: Job, path: Path) -> None:
    try:
        content = pickle.dumps((plugins.from_files(), pickle.dumps(job)))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise UserError(
            f"the training processes can't be told what to train on: {error}",
            hint="define losses and rewards in a file of their own, not in a function",
        ) from None
    path.write_bytes(content)


def read_job(path: Path) -> Job:
    """Return the job in a file, as a worker reads it; plugins that are files are imported first."""
    # Both were written by `_write_job`, in a folder of our own.
    files, content = pickle.loads(path.read_bytes())  # noqa: S301
    for file in files:
        plugins.from_path(file)
    try:
        job: Job = pickle.loads(content)  # noqa: S301
    except (AttributeError, ModuleNotFoundError) as error:
        message = f"the training processes can't import a plugin: {error}"
        raise UserError(message, hint="define losses and rewards in a file of their own") from error
    return job


def _failure(folder: Path, code: int) -> UserError:
    """Return why the worker failed: its own error, or else the end of its output."""
    log = folder / "output.log"
    hint = f"all that it printed is in {log}"
    if (folder / "failure.json").is_file():
        failure = json.loads((folder / "failure.json").read_text("utf-8"))
        if "out of memory" in failure["what"]:
            hint = f"lower `micro_tokens`, or shard the weights over GPUs with FSDP; {hint}"
        return UserError(failure["what"], where=failure["where"], hint=failure["hint"] or hint)
    lines = log.read_text("utf-8", "replace").split("\n")
    printed = [line.strip() for line in lines if line.strip()]
    message = f"training ended with exit code {code}"
    if code < 0:
        message = f"training ended with signal {-code}"
    if printed:
        message += f": {printed[-1]:.300}"
    return UserError(message, hint=hint)
