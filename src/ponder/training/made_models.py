"""Makes models once and finds them again: folders of weights with `made.json`, and their cost.

A made model is a folder in the Hugging Face format with `made.json` beside the weights: the method
with its settings, the model it was made from, and the cost, including that of every model that went
into it. Made models are in `$PONDER_MODELS`, or in `~/.cache/ponder/models`, under a digest of the
settings and of the model they were made from.

A method says in `inputs` what making reads, and in `build` how the weights are made.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self, TypeAlias

from ponder import __version__
from ponder.core import (
    Limit,
    Method,
    Model,
    Prepared,
    Progress,
    Reward,
    Source,
    Task,
    TrainingProblems,
    UserError,
    WithWeights,
    digest,
    not_in_key,
    require,
)
from ponder.core.lock import Held, acquire
from ponder.core.wrapped import making_cost
from ponder.models import models_folder
from ponder.models._local_weights import as_folder, copy_of

COSTS = ("rollout_tokens", "training_tokens", "seconds")


@dataclass
class MakingRecord:
    """What making a model cost, and what `made.json` and figures should say of it."""

    rollout_tokens: int = 0  # sampled, or read by a reward
    training_tokens: int = 0
    seconds: float = 0.0  # of CPU
    notes: dict[str, Any] = field(default_factory=dict)
    measures: dict[str, float] = field(default_factory=dict)  # for figures, in `Outcome.made`

    def add_cost(self, cost: Mapping[str, float]) -> None:
        """Add the cost of another model that went into this one, as `Model.made` gives it."""
        self.rollout_tokens += int(cost.get("rollout_tokens", 0))
        self.training_tokens += int(cost.get("training_tokens", 0))
        self.seconds += cost.get("seconds", 0.0)

    def add_training(self, tokens: int, seconds: float, notes: Mapping[str, Any]) -> None:
        """Add a training: its tokens, the CPU seconds of other processes, and notes."""
        self.training_tokens += tokens
        self.seconds += seconds
        self.notes |= notes

    def write(self, folder: Path, settings: Mapping[str, Any], source: Mapping[str, Any]) -> None:
        """Write `made.json`: with it, the model is complete."""
        content = {
            "recipe": settings,
            "from": source,
            "cost": {name: float(getattr(self, name)) for name in COSTS},
            "measures": self.measures,
            "notes": self.notes,
            "ponder": __version__,
        }
        (folder / "made.json").write_text(
            json.dumps(content, indent=1, default=str) + "\n", "utf-8"
        )


class Input(NamedTuple):
    """A file or folder that making reads, written by the first method that needs it."""

    path: Path
    samplers: tuple[Model, ...] = ()  # models whose replies it holds
    limit: Limit | None = None  # an upper bound on what sampling them takes


class Making(Prepared):
    """A folder that is made from a model, on training problems: new weights, or a reward."""

    train_on: tuple[TrainingProblems, ...]

    @abstractmethod
    def identity(self) -> dict[str, Any]:
        """Return what identifies the result, besides the model that it is made from."""

    @abstractmethod
    def folder(self, model: Model) -> Path:
        """Return where the result for a model is, or will be."""

    @abstractmethod
    def inputs(self, model: Model) -> Iterator[Input]:
        """Yield what `build` reads that other methods may read too."""

    @abstractmethod
    def build(self, model: Model, folder: Path, record: MakingRecord) -> Iterator[Progress]:
        """Write the result into a folder, which may hold what an interrupted build left there."""

    @abstractmethod
    def check_making(self, model: Model) -> None:
        """Raise `UserError` if it can't be made from this model on this machine."""

    @abstractmethod
    def complete(self, model: Model, folder: Path, record: MakingRecord) -> None:
        """Write the card and `made.json` next to what was built."""

    def is_made(self, model: Model) -> bool:
        return (self.folder(model) / "made.json").is_file()

    def missing_outputs(self, model: Model) -> list[Path]:
        if self.is_made(model) or not self.train_on:
            return []
        missing = [self.folder(model)]
        for source in self.inputs(model):
            if not source.path.exists():
                missing.append(source.path)
        return missing

    def sampling_limits(self, model: Model) -> dict[Path, Limit]:
        if self.is_made(model) or not self.train_on:
            return {}
        limits = {}
        for source in self.inputs(model):
            if source.limit and not source.path.is_file():
                limits[source.path] = source.limit
        return limits

    def samplers(self, model: Model) -> Sequence[Model]:
        if self.is_made(model) or not self.train_on:
            return ()
        samplers: list[Model] = []
        for source in self.inputs(model):
            samplers += source.samplers
        return samplers

    def make(self, model: Model) -> Iterator[Progress]:
        if self.is_made(model):
            return
        if not self.train_on:
            raise UserError(
                f"{self.named_in_errors} needs problems to train on",
                hint="add a [[train]] to the study",
            )
        self.check_making(model)
        build = partial(self.build, model)
        complete = partial(self.complete, model)
        for progress in make_once(self.folder(model), build, complete):
            yield {**self.named_in_progress, **progress}

    @property
    @abstractmethod
    def named_in_errors(self) -> str: ...

    @property
    @abstractmethod
    def named_in_progress(self) -> Progress: ...


@dataclass(frozen=True, kw_only=True)
class WeightMethod(Method, Making):
    """A method whose model has weights of its own."""

    train_on: tuple[TrainingProblems, ...] = not_in_key(())  # set from the study's [[train]]

    changes_weights = True
    version: ClassVar[int] = 1  # raise it when the same settings make another model
    tried_on: ClassVar[Any] = (
        {"name": "pocket", "style": "long"},
        {"name": "execution", "dictionary": 6, "per_turn": 0},
        2,
    )

    def inputs(self, model: Model) -> Iterator[Input]:
        yield Input(weights_folder(model, self.train_on[0].task))

    def uses(self) -> Iterator[Model | Reward]:
        """Yield the models and rewards that making needs, besides the model itself."""
        for setting in fields(self):
            value = getattr(self, setting.name)
            if isinstance(value, Model | Reward):
                yield value

    def check_training(self, source: Source) -> None:
        """Raise `UserError` if these weights can't be trained with these settings here."""

    def identity(self) -> dict[str, Any]:
        return {
            **super().identity(),
            "version": self.version,
            "on": [problems.identity() for problems in self.train_on],
        }

    def with_training(self, train_on: tuple[TrainingProblems, ...]) -> Self:
        return replace(self, train_on=train_on)

    def folder(self, model: Model) -> Path:
        key = digest(self.identity(), model.identity()).hex()
        return models_folder() / f"{self.plugin_name()}-{key[:20]}"

    def check(self, model: Model, task: Task) -> None:
        source = require(model, WithWeights).source(task)
        if self.is_made(model):
            return
        for plugin in self.uses():
            plugin.ready()
        self.check_training(source)

    def check_making(self, model: Model) -> None:
        weights = require(model, WithWeights)
        self.check_training(weights.source(self.train_on[0].task))
        if len({weights.source(problems.task) for problems in self.train_on}) > 1:
            tasks = dict.fromkeys(problems.task.plugin_name() for problems in self.train_on)
            raise UserError(
                f"{model.title()} has different weights for {' and '.join(tasks)}, "
                f"and `{self.plugin_name()}` makes one model",
                hint="give [[train]] one task only",
            )

    def complete(self, model: Model, folder: Path, record: MakingRecord) -> None:
        task = self.train_on[0].task
        record.add_cost(making_cost(model, task))
        write_card(require(model, WithWeights).source(task).folder, folder)
        record.write(folder, self.identity(), model.identity())

    @property
    def named_in_errors(self) -> str:
        return f"`{self.plugin_name()}`"

    @property
    def named_in_progress(self) -> Progress:
        return {"method": self.title()}

    def apply(self, model: Model) -> Model:
        for _ in self.make(model):
            pass
        return require(model, WithWeights).with_weights(self.folder(model))


Build: TypeAlias = Callable[[Path, MakingRecord], Iterator[Progress]]


def make_once(
    folder: Path, build: Build, complete: Callable[[Path, MakingRecord], None]
) -> Iterator[Progress]:
    """Fill a folder, unless it is complete; one process at a time.

    `build` writes into a working folder, which may hold what an interrupted build left there;
    `complete` then writes `made.json`, and the folder is moved into place.
    """
    if (folder / "made.json").is_file():
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    lock = acquire(folder.with_suffix(".lock"))
    if lock is None:
        message = f"another process is making {folder.name}"
        raise Held(message, hint="wait until it is done, then run again")
    try:
        # another process may have made it since the look above
        if not (folder / "made.json").is_file():
            yield from _make(folder, build, complete)
    finally:
        lock.close()
    folder.with_suffix(".lock").unlink(missing_ok=True)


def _make(
    folder: Path, build: Build, complete: Callable[[Path, MakingRecord], None]
) -> Iterator[Progress]:
    work = folder.with_suffix(".part")
    work.mkdir(exist_ok=True)
    spent = work / "spent.json"
    before = 0.0
    if spent.is_file():
        before = float(json.loads(spent.read_text("utf-8")))
    began = time.process_time()
    record = MakingRecord()
    for progress in build(work, record):
        # Written at every step, so that a killed build's CPU time is counted.
        spent.write_text(json.dumps(before + time.process_time() - began), "utf-8")
        yield progress
    record.seconds += before + time.process_time() - began
    complete(work, record)
    for leftover in ("training.pt", "spent.json"):
        (work / leftover).unlink(missing_ok=True)
    for stale in (work / "rollouts", work / "trainer", folder):
        shutil.rmtree(stale, ignore_errors=True)
    work.rename(folder)


def write_card(source: Path, folder: Path) -> None:
    """Write the card of weights made from others with a card: same model and task, new digest."""
    if not (source / "card.json").is_file():
        return
    old_card = json.loads((source / "card.json").read_text("utf-8"))
    card = {key: old_card[key] for key in ("name", "task") if key in old_card}
    card["digest"] = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    (folder / "card.json").write_text(json.dumps(card, indent=1) + "\n", "utf-8")


def local_weights(model: Model, task: Task) -> Path:
    """Return a folder of a model's safetensors, converted from the hub or GGUF if need be."""
    return as_folder(require(model, WithWeights).source(task))


def weights_folder(model: Model, task: Task) -> Path:
    """Return where `local_weights` finds a model's weights or puts them."""
    return copy_of(require(model, WithWeights).source(task))


def samples_file(
    model: Model, train_on: Sequence[TrainingProblems], problems: int, n: int, seed: int
) -> Path:
    """Return where a model's samples are kept for all methods that train on them."""
    tasks = [on.identity() for on in train_on]
    key = digest(model.identity(), tasks, problems, n, seed).hex()
    return models_folder() / f"samples-{key[:20]}.json"
