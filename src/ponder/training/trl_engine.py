"""Trains with TRL instead of our loop: in processes of their own, on as many GPUs as an accelerate
config says.

This is the side that Ponder runs. It writes the job into a folder (rows as token ids, settings,
what computes rewards), starts `trl_worker` under `accelerate launch`, follows the log that the
worker writes, and reads from it what the training cost. Checkpoints are TRL's: an interrupted
training resumes from the last complete one.

A step trains on the same rows in the same order as our loop, at the same learning rate, except that
the last step of an epoch is filled up with rows of the next. Weight decay spares biases and norms,
as is usual in transformers.
"""

from __future__ import annotations

import dataclasses
import json
import math
import pickle
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from subprocess import Popen
from typing import Any, Literal, Protocol, TypeAlias

from ponder.core import Model, Progress, Source, UserError, plugins, seed_from
from ponder.models._gpu_memory import make_room
from ponder.models._torch_engine import Loaded, load_anew
from ponder.training.launch import Launch, started
from ponder.training.loop import TrainingSettings, Unit
from ponder.training.made_models import MakingRecord
from ponder.training.rollouts import Sample, TrainingProblem
from ponder.training.weights import convert

TRL = "1.16"  # `trl_trainers` overrides private functions of this version
Kind: TypeAlias = Literal["sft", "dpo", "grpo", "reward"]
Row: TypeAlias = dict[str, Any]
OWN_KEYS = {  # arguments of TRL that have a name here
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
    "beta": "beta",
    "num_generations": "n",
    "num_iterations": "inner",
    "temperature": "temperature",
    "max_completion_length": "budget of the model, or limit",
    "loss_type": "method",
    "use_cpu": "device of the model",
}
# Arguments that Ponder sets and nobody else may, because the order of rows, the bill and resuming
# depend on them.
FIXED = (
    *(
        "output_dir",
        "gradient_accumulation_steps",
        "remove_unused_columns",
        "logging_strategy",
        "logging_steps",
    ),
    *(
        "save_strategy",
        "save_only_model",
        "train_sampling_strategy",
        "dataloader_drop_last",
        "shuffle_dataset",
    ),
    *(
        "packing",
        "max_length",
        "generation_batch_size",
        "steps_per_generation",
        "scale_rewards",
        "reward_weights",
    ),
    *(
        "epsilon",
        "multi_objective_aggregation",
        "ignore_data_skip",
        "resume_from_checkpoint",
        "eval_strategy",
    ),
)


class GroupRewards(Protocol):
    """What TRL needs to know of reinforcement learning; `length_rl` is one."""

    @property
    def n(self) -> int: ...
    @property
    def inner(self) -> int: ...
    @property
    def tau(self) -> float: ...

    def drawn(
        self, pool: Sequence[TrainingProblem], rates: Sequence[tuple[int, int]], iteration: int
    ) -> list[int]:
        """The indices of an iteration's problems."""

    def limit_at(self, iteration: int) -> int | None:
        """The most tokens of a reply in an iteration; None: the model's budget."""

    def group_rewards(
        self, problem: TrainingProblem, samples: Sequence[Sample], iteration: int, codec: str
    ) -> tuple[list[float], list[float], int]:
        """Rewards of one problem's samples, the process reward's part of them, and the tokens that
        reward read.
        """

    def summary(
        self, samples: Sequence[Sequence[Sample]], process: Sequence[Sequence[float]]
    ) -> dict[str, float]:
        """Means over an iteration's samples."""


@dataclass(frozen=True)
class Rl:
    """The part of a job that only reinforcement learning has."""

    method: GroupRewards
    pool: Sequence[TrainingProblem]
    budget: int  # completion tokens
    temperature: float
    sampler: Model | None = None  # draws the samples; None: TRL does


@dataclass(frozen=True)
class Job:
    """All that a worker needs besides the rows."""

    kind: Kind
    settings: TrainingSettings
    source: Source
    folder: Path
    steps: int
    batch: int  # rows per step
    per_device: int
    launch: Launch
    order: Sequence[int] = ()  # of the rows, over all steps
    beta: float = 0.1  # of dpo
    rl: Rl | None = None
    scorer: Any = None  # of a reward: the plugin that says which part of a model its heads read

    @property
    def accumulation(self) -> int:
        return self.batch // self.launch.processes // self.per_device

    def save_steps(self) -> int:
        """Steps between checkpoints: ten in a training, each at the end of an iteration."""
        inner = self.rl.method.inner if self.rl else 1
        return -(-self.steps // (10 * inner)) * inner


def check(kind: Kind, settings: TrainingSettings, device: str, step: tuple[str, int, int]) -> None:
    """Raise `UserError` if TRL can't be used with these settings on this machine.

    `step` is what a step trains on: the setting that says how many units, their number, and the
    rows of a unit.
    """
    for package in ("torch", "trl"):
        plugins.need(package, 'engine = "trl"')
    if not (found := version("trl")).startswith(f"{TRL}."):
        what = f'engine = "trl" overrides private functions of TRL {TRL}, and {found} is installed'
        raise UserError(what, hint="pip install 'ponder-lab[trl]'")
    launch = Launch.of(settings, device)
    _check_args(kind, settings.args)
    what, units, rows = step
    per_device(settings, launch.processes, units, rows, 1, what)


def config_class(kind: Kind) -> Any:
    """The class of TRL's arguments."""
    import transformers
    import trl

    if kind == "reward":
        return transformers.TrainingArguments
    return getattr(trl, {"sft": "SFTConfig", "dpo": "DPOConfig", "grpo": "GRPOConfig"}[kind])


def _check_args(kind: Kind, args: Mapping[str, Any]) -> None:
    """Raise `UserError` for arguments that TRL's trainer doesn't have, or that have a name of their
    own here.
    """
    known = {f.name for f in dataclasses.fields(config_class(kind))}
    for key in args:
        if key in OWN_KEYS:
            raise UserError(f"`{key}` is set by `{OWN_KEYS[key]}`", where=f"args.{key}")
        if key in FIXED:
            raise UserError(f"`{key}` can't be changed: Ponder sets it", where=f"args.{key}")
        if key not in known:
            what = f"{config_class(kind).__name__} has no argument `{key}`"
            near, passed_on = plugins.closest(key, known | {*OWN_KEYS}), known - {*FIXED, *OWN_KEYS}
            own = f"{near} has a name here: {OWN_KEYS[near]}" if near in OWN_KEYS else ""
            hint = own or plugins.nearest(key, passed_on)
            raise UserError(what, where=f"args.{key}", hint=hint)
    if args.get("use_vllm"):
        plugins.need("vllm", "use_vllm")


def per_device(
    settings: TrainingSettings, processes: int, units: int, rows: int, longest: int, what: str
) -> int:
    """Rows per forward pass and process: whole units, of which a step has `units`, each of `rows`
    rows.

    As many as `micro_tokens` allow, or what `args` say. A unit is what must not be split over
    processes: for a length reward all samples of a problem, which it compares.
    """
    if units % processes:
        hint = f"{what} = {-(-units // processes) * processes}"
        raise UserError(
            f"{what} = {units} can't be divided equally among {processes} processes", hint=hint
        )
    own = units // processes
    given = settings.args.get("per_device_train_batch_size")
    if given is None:
        room = max(1, settings.micro_tokens // (rows * longest))
        return rows * max(size for size in range(1, own + 1) if own % size == 0 and size <= room)
    if not isinstance(given, int) or given < 1 or given % rows or own % (given // rows):
        each = (
            f"be a multiple of n = {rows}, so that no problem's samples are split, and "
            if rows > 1
            else ""
        )
        text = f"per_device_train_batch_size must {each}divide the {own * rows} rows of a process; {given} doesn't"
        raise UserError(text, where="args", hint=f"per_device_train_batch_size = {rows}")
    return int(given)


def order(lengths: Sequence[int], batch: int, steps: int, seed: int) -> list[int]:
    """The rows of all steps: every row once per epoch, shuffled as in our loop; in a step the
    longest first.
    """

    def epochs() -> Iterator[int]:
        epoch = 0
        while True:
            shuffled = list(range(len(lengths)))
            random.Random(seed_from("epoch", seed, epoch)).shuffle(shuffled)
            yield from shuffled
            epoch += 1

    stream = epochs()
    taken = (list(islice(stream, batch)) for _ in range(steps))
    return [row for step in taken for row in sorted(step, key=lambda row: -lengths[row])]


@dataclass
class Training:
    """One training with TRL. Iterate over it to run it, with progress; then read what it took."""

    job: Job
    rows: Sequence[Row]

    def __post_init__(self) -> None:
        self.tokens = 0  # as TRL counts them
        self.seconds = 0.0  # of CPU, in all processes and runs
        self.iterations: list[dict[str, Any]] = []

    def __iter__(self) -> Iterator[Progress]:
        folder = self.job.folder
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "failure.json").unlink(missing_ok=True)
        if self.rows:
            _write_rows(self.rows, folder / "rows.arrow")
        _write_job(self.job, folder / "job.pickle")
        make_room(self.job.source.device)
        command = self.job.launch.command(
            folder, "ponder.training.trl_worker", str(folder / "job.pickle")
        )
        environment = self.job.launch.environment(self.job.source.threads)
        with started(command, environment, folder / "output.log") as process:
            yield from self._followed(process)
        if process.returncode:
            raise _failure(folder, process.returncode)
        self._count()

    def _followed(self, process: Popen[bytes]) -> Iterator[Progress]:
        """The worker's reports until it ends; the last one again every second, so that a caller may
        stop.
        """
        log = self.job.folder / "steps.jsonl"
        read = log.stat().st_size if log.is_file() else 0
        report: Progress = {
            "starting": f"TRL {version('trl')}",
            "processes": self.job.launch.processes,
        }
        first: tuple[int, float] | None = None
        ended = False
        while not ended:
            ended = process.poll() is not None
            lines = _lines(log, read)
            read += sum(len(line) for line in lines)
            for line in lines:
                entry = json.loads(line)
                first = first or (entry["step"] - 1, entry["time"])
                done, passed = entry["step"] - first[0], entry["time"] - first[1]
                left = passed / max(1, done - 1) * (self.job.steps - entry["step"])
                report = {
                    "step": entry["step"],
                    "of": self.job.steps,
                    "loss": round(entry["loss"], 4),
                }
                report |= {"seconds_left": round(left)} if done > 1 else {}
            yield report
            if not ended:
                time.sleep(1.0)

    def _count(self) -> None:
        """Read the bill: the last count of tokens, and the CPU seconds of every run, killed ones
        too.
        """
        seconds: dict[str, float] = {}
        for line in (self.job.folder / "steps.jsonl").read_bytes().splitlines():
            entry = json.loads(line)
            seconds[entry["run"]], self.tokens = entry["seconds"], int(entry["num_tokens"])
        self.seconds = sum(seconds.values())
        if self.job.rl:
            self.iterations = read_iterations(
                self.job.folder, self.job.steps // self.job.rl.method.inner
            )

    def bill(self, record: MakingRecord) -> None:
        """Add what it took to a record. TRL counts tokens once, however often they are used."""
        record.seconds += self.seconds
        job, more = self.job, 0
        if job.rl:
            record.rollout_tokens += self.tokens + sum(
                entry["read_tokens"] for entry in self.iterations
            )
            more = (job.rl.method.inner - 1) * self.tokens
        elif job.kind == "dpo":  # the reference reads every pair once
            more = sum(
                2 * len(row["prompt_ids"]) + len(row["chosen_ids"]) + len(row["rejected_ids"])
                for row in self.rows
            )
        record.training_tokens += self.tokens + more
        record.notes["engine"] = {"trl": version("trl"), "processes": job.launch.processes}

    def write(self, loaded: Loaded, folder: Path) -> None:
        """Complete the folder that the worker wrote the weights to: its config and tokenizer, a
        LoRA adapter merged.
        """
        complete(self.job, loaded, self.job.folder / "adapter", folder)


def complete(job: Job, loaded: Loaded, adapter: Path, folder: Path) -> None:
    """Complete weights that TRL wrote: their config and tokenizer as they were, a LoRA adapter
    merged into them.
    """
    if job.settings.lora:
        from peft import PeftModel

        base = load_anew(job.source._replace(device="cpu")).model
        PeftModel.from_pretrained(base, str(adapter)).merge_and_unload().save_pretrained(folder)
    loaded.model.config.save_pretrained(folder)  # TRL adds a padding token to it
    convert(folder, job.source.dtype)
    loaded.model.generation_config.save_pretrained(folder)
    loaded.tokenizer.save_pretrained(folder)
    (folder / "training_args.bin").unlink(missing_ok=True)


def read_iterations(folder: Path, before: int) -> list[dict[str, Any]]:
    """What the iterations before this one gave, in their order; a repeated one counts as it was
    last.
    """
    path = folder / "iterations.jsonl"
    entries = (
        [json.loads(line) for line in path.read_bytes().splitlines()] if path.is_file() else []
    )
    last = {entry["iteration"]: entry for entry in entries if entry["iteration"] < before}
    return [last[iteration] for iteration in sorted(last)]


def _lines(path: Path, start: int) -> list[bytes]:
    """The complete lines of a growing file from a position on."""
    if not path.is_file():
        return []
    with path.open("rb") as file:
        file.seek(start)
        return [line for line in file.readlines() if line.endswith(b"\n")]


def _write_rows(rows: Sequence[Row], path: Path) -> None:
    """Rows in Arrow's format, which every process maps into memory instead of holding a copy."""
    import pyarrow as pa

    table = pa.Table.from_pylist(list(rows))
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=1000)


def _write_job(job: Job, path: Path) -> None:
    try:
        content = pickle.dumps((plugins.from_files(), pickle.dumps(job)))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        what = f"the training processes can't be told what to train on: {error}"
        raise UserError(
            what, hint="define tasks and rewards in a file of their own, not in a function"
        ) from None
    path.write_bytes(content)


def read_job(path: Path) -> Job:
    """The job in a file, as a worker reads it; plugins that are files are imported first."""
    files, content = pickle.loads(path.read_bytes())  # noqa: S301 written by `_write_job`, in a folder of our own
    for file in files:
        plugins.from_path(file)
    try:
        job: Job = pickle.loads(content)  # noqa: S301 the same
    except (AttributeError, ModuleNotFoundError) as error:
        what = f"the training processes can't import a plugin: {error}"
        raise UserError(what, hint="define tasks and rewards in a file of their own") from error
    return job


def _failure(folder: Path, code: int) -> UserError:
    """Why the worker failed: what it wrote down, or else the end of its output."""
    log = folder / "output.log"
    if (folder / "failure.json").is_file():
        failure = json.loads((folder / "failure.json").read_text("utf-8"))
        hint = failure["hint"] or f"all that it printed is in {log}"
        if "out of memory" in failure["what"]:
            hint = (
                f"lower `micro_tokens`, or share the weights among GPUs with FSDP: launch; {hint}"
            )
        return UserError(failure["what"], where=failure["where"], hint=hint)
    lines = [
        line.strip() for line in log.read_text("utf-8", "replace").splitlines() if line.strip()
    ]
    how = f"signal {-code}" if code < 0 else f"exit code {code}"
    said = f": {lines[-1]:.300}" if lines else ""
    return UserError(
        f"training with TRL ended with {how}{said}", hint=f"all that it printed is in {log}"
    )


def on_units(
    kind: Kind,
    settings: TrainingSettings,
    source: Source,
    folder: Path,
    units: Sequence[Unit],
    *,
    batch: int,
    steps: int,
    **more: Any,
) -> Training:
    """The training on units that are known beforehand."""
    launch = Launch.of(settings, source.device)
    all_rows = -(-len(units) // launch.processes) * launch.processes
    batch = min(batch, all_rows)
    lengths = [len(unit) for unit in units]
    size = per_device(settings, launch.processes, batch, 1, max(lengths), "batch")
    taken = order(lengths, batch, steps, settings.seed)
    job = Job(
        kind, settings, source, folder / "trl", steps, batch, size, launch, order=taken, **more
    )
    return Training(job, [ROWS[kind](unit) for unit in units])


def _sft_row(unit: Unit) -> Row:
    (text,) = unit.texts
    return {
        "input_ids": [*text.prompt, *text.said],
        "labels": [-100] * len(text.prompt) + list(text.said),
    }


def _dpo_row(unit: Unit) -> Row:
    chosen, rejected = unit.texts
    return {
        "prompt_ids": list(chosen.prompt),
        "chosen_ids": list(chosen.said),
        "rejected_ids": list(rejected.said),
    }


def _reward_row(unit: Unit) -> Row:
    row, steps, weights, trajectory = unit.data
    known = trajectory if math.isfinite(trajectory) else None
    targets = {"steps": steps.tolist(), "weights": weights.tolist(), "trajectory": known}
    return {"tokens": list(row.tokens), "positions": list(row.positions), **targets}


ROWS: Mapping[Kind, Callable[[Unit], Row]] = {
    "sft": _sft_row,
    "dpo": _dpo_row,
    "reward": _reward_row,
}


def on_samples(
    settings: TrainingSettings,
    source: Source,
    folder: Path,
    loaded: Loaded,
    rl: Rl,
    problems: int,
    iterations: int,
) -> Training:
    """Reinforcement learning: the samples are TRL's own, or those of a sampler."""
    launch = Launch.of(settings, source.device)
    longest = max(len(loaded.prompt(problem.request())) for problem in rl.pool) + rl.budget
    size = per_device(settings, launch.processes, problems, rl.method.n, longest, "problems")
    steps, batch = iterations * rl.method.inner, problems * rl.method.n
    return Training(
        Job("grpo", settings, source, folder / "trl", steps, batch, size, launch, rl=rl), []
    )
