"""Methods that change weights, and where the models that they make are kept.

A made model is a folder in the Hugging Face format with `made.json` beside the weights: its recipe, and what it cost,
its ancestors' making included. It is known by the digest of the recipe and of what it was made from, so it is made
once. Made models lie in `$PONDER_MODELS`, or in `~/.cache/ponder/models`.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import random
import shutil
import time
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, ClassVar, Self

from ponder import __version__
from ponder.core import Method, Model, Progress, Task, TrainingProblems, UserError, digest, not_in_key, seed_from
from ponder.models import making_cost
from ponder.models._torch_engine import Loaded, load_anew
from ponder.training.loop import Loss, Settings, Training, Unit
from ponder.training.rollouts import Rollouts, Sample, chosen


def made_models() -> Path:
    return Path(os.environ.get("PONDER_MODELS") or Path.home() / ".cache" / "ponder" / "models")


@dataclass
class Record:
    """What making a model took, and what is worth knowing of it."""

    rollout_tokens: int = 0
    training_tokens: int = 0
    seconds: float = 0.0  # of CPU
    notes: dict[str, Any] = field(default_factory=dict)
    measures: dict[str, float] = field(default_factory=dict)  # for figures: they stand with each attempt of the model


@dataclass(frozen=True, kw_only=True)
class WeightMethod(Method):
    """A method whose model has weights of its own."""

    train_on: tuple[TrainingProblems, ...] = not_in_key(())  # set from the study's [[train]]

    changes_weights = True
    version: ClassVar[int] = 1  # raise it when the same settings make another model
    tried_on: ClassVar[Any] = (
        {"name": "pocket", "style": "long"},
        {"name": "execution", "dictionary": 6, "per_turn": 0},
        2,
    )

    def identity(self) -> dict[str, Any]:
        return {**super().identity(), "version": self.version, "on": [p.identity() for p in self.train_on]}

    def with_training(self, train_on: tuple[TrainingProblems, ...]) -> Self:
        return replace(self, train_on=train_on)

    @abstractmethod
    def build(self, model: Model, folder: Path, record: Record) -> Iterator[Progress]:
        """Write the made model into a folder, which may hold what an interrupted build left there."""

    def folder(self, model: Model) -> Path:
        """Where the model made from this one is, or will be."""
        return made_models() / f"{self.plugin_name()}-{digest(self.identity(), model.identity()).hex()[:20]}"

    def make(self, model: Model) -> Iterator[Progress]:
        folder = self.folder(model)
        if (folder / "made.json").is_file():
            return
        if not self.train_on:
            raise UserError(f"`{self.plugin_name()}` needs something to train on", hint="add a [[train]] to the study")
        if len({model.source(practice.task) for practice in self.train_on}) > 1:
            names = " and ".join(dict.fromkeys(practice.task.plugin_name() for practice in self.train_on))
            what = f"{model.title()} has other weights for each of {names}, and `{self.plugin_name()}` makes one model"
            raise UserError(what, hint="a [[train]] with one task")
        folder.parent.mkdir(parents=True, exist_ok=True)
        with folder.with_suffix(".lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                what = f"another process is making {folder.name}"
                raise UserError(what, hint="wait for it, then run again") from None
            if (folder / "made.json").is_file():
                return  # while the lock was being opened
            work = folder.with_suffix(".part")
            work.mkdir(exist_ok=True)
            yield from self._made(model, work)
            for leftover in ("training.pt", "rollouts", "spent.json"):
                _remove(work / leftover)
            _remove(folder)
            work.rename(folder)
            _remove(folder.with_suffix(".lock"))

    def _made(self, model: Model, work: Path) -> Iterator[Progress]:
        """Build, and write down what was made, of what, and for how much."""
        began, before = time.process_time(), _spent(work)
        record = Record()
        for report in self.build(model, work, record):
            record.seconds = before + time.process_time() - began
            (work / "spent.json").write_text(json.dumps(record.seconds), "utf-8")  # what a kill would lose
            yield {"making": self.title(), **report}
        record.seconds = before + time.process_time() - began
        source = model.source(self.train_on[0].task).folder
        hand_card(source, work)
        cost = {f.name: getattr(record, f.name) for f in fields(Record) if f.name not in ("notes", "measures")}
        cost = {name: value + making_cost(source).get(name, 0.0) for name, value in cost.items()}
        made = {
            "recipe": self.identity(),
            "from": model.identity(),
            "cost": cost,
            "measures": record.measures,
            "notes": record.notes,
        }
        text = json.dumps({**made, "ponder": __version__}, indent=1, default=str)
        (work / "made.json").write_text(text + "\n", "utf-8")

    def apply(self, model: Model) -> Model:
        for _ in self.make(model):
            pass
        return model.with_weights(self.folder(model))


def hand_card(source: Path, folder: Path) -> None:
    """Write the card of a derived model, with its own digest, if the weights it comes from have one."""
    if (source / "card.json").is_file():
        card = json.loads((source / "card.json").read_text("utf-8"))
        kept = {key: card[key] for key in ("name", "task") if key in card}
        weights = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
        (folder / "card.json").write_text(json.dumps({**kept, "digest": weights}, indent=1) + "\n", "utf-8")


def local_weights(model: Model, task: Task) -> Path:
    """A folder with a model's weights as safetensors; those from the hub or from GGUF are written to one first."""
    source = model.source(task)
    if source.folder.is_dir():
        return source.folder
    folder = made_models() / f"copy-{digest(str(source.folder), source.revision, source.dtype).hex()[:20]}"
    if not folder.is_dir():
        loaded, new = load_anew(source), folder.with_suffix(".new")
        loaded.model.save_pretrained(new)
        loaded.tokenizer.save_pretrained(new)
        new.rename(folder)
    return folder


def samples_file(model: Model, on: Sequence[TrainingProblems], problems: int, n: int, seed: int) -> Path:
    """Where a model's samples are kept: methods that learn from the same ones needn't draw them again."""
    known = digest(model.identity(), [p.identity() for p in on], problems, n, seed).hex()
    return made_models() / f"samples-{known[:20]}.json"


def _spent(work: Path) -> float:
    """CPU seconds of builds that were interrupted."""
    path = work / "spent.json"
    return float(json.loads(path.read_text("utf-8"))) if path.is_file() else 0.0


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@dataclass(frozen=True, kw_only=True)
class TrainingMethod(WeightMethod, Settings):
    """A method that trains: the loop's settings are its own."""

    def training_seed(self) -> int:
        return self.seed

    def open(self, model: Model) -> Loaded:
        """The model's weights, to be changed."""
        task = self.train_on[0].task
        return load_anew(model.source(task)._replace(folder=local_weights(model, task), revision=""))

    def training(self, loaded: Loaded, folder: Path, temperature: float = 1.0) -> Training:
        settings = Settings(**{f.name: getattr(self, f.name) for f in fields(Settings)})
        return Training(loaded, settings, folder, temperature)


@dataclass(frozen=True, kw_only=True)
class EpochMethod(TrainingMethod):
    """A method that goes over the same units again and again."""

    epochs: int = 2
    steps: int | None = None  # instead of epochs: the same number whatever there is to learn from
    batch: int = 32  # texts, or pairs, a step

    def __post_init__(self) -> None:
        super().__post_init__()
        if min(self.epochs, self.batch, 1 if self.steps is None else self.steps) < 1:
            raise UserError("epochs, steps and batch must be at least 1")

    def over(self, units: Sequence[Unit]) -> float:
        """What a step's summed losses are divided by."""
        return len(units)

    def teach(
        self, training: Training, units: Sequence[Unit], loss: Loss, folder: Path, record: Record
    ) -> Iterator[Progress]:
        """Learn every unit in each epoch, and write the model."""
        training.resume()
        steps = self.steps or self.epochs * -(-len(units) // self.batch)
        yield from training.run(steps, lambda step: self._batch(units, step), loss, self.over)
        training.write(folder)
        record.training_tokens = training.tokens
        record.notes |= {"units": len(units), "steps": steps}

    def _batch(self, units: Sequence[Unit], step: int) -> list[Unit]:
        """Each unit once an epoch, in an order of its own."""
        a_round = -(-len(units) // self.batch)
        order = list(units)
        random.Random(seed_from("epoch", self.seed, step // a_round)).shuffle(order)
        return order[step % a_round * self.batch :][: self.batch]


@dataclass(frozen=True, kw_only=True)
class SamplingMethod(EpochMethod):
    """A method that trains on what the model itself says, sampled once before."""

    problems: int = 1000  # to sample
    n: int = 8  # samples of each
    temperature: float = 1.0  # at which they are drawn
    sampler: Model | None = None  # who is sampled, if not the model itself: the same weights behind an endpoint

    def __post_init__(self) -> None:
        super().__post_init__()
        if min(self.problems, self.n) < 1 or self.temperature <= 0:
            raise UserError("problems and n must be at least 1, and temperature above 0")

    @abstractmethod
    def units(self, samples: Sequence[Sequence[Sample]], record: Record) -> list[Unit]:
        """What is learnt from the samples of each problem."""

    @abstractmethod
    def loss(self, training: Training, units: Sequence[Unit]) -> tuple[Sequence[Unit], Loss]:
        """Every unit with what its loss must know, and the loss."""

    def build(self, model: Model, folder: Path, record: Record) -> Iterator[Progress]:
        loaded = self.open(model)
        asked = chosen(self.train_on, self.problems, self.seed)
        sampler = (self.sampler or model).at_temperature(self.temperature)
        kept = samples_file(sampler, self.train_on, self.problems, self.n, self.seed)
        rollouts = Rollouts(sampler, loaded, asked, self.n, self.seed, kept)
        yield from rollouts
        record.rollout_tokens = rollouts.tokens
        units = self.units(rollouts.samples, record)
        if not units:
            what = f"nothing to learn from: of {len(asked)} problems × {self.n} samples none will do"
            raise UserError(what, hint="train on smaller sizes, or sample more: problems, n")
        training = self.training(loaded, folder)
        learnt, loss = self.loss(training, units)
        yield from self.teach(training, learnt, loss, folder, record)
