"""Methods that make new weights: what they share, from checking a model to finding the weights
again.

A made model is identified by a digest of the method's settings and of the model it was made from. A
method says in `inputs` what it reads, and in `build` how it makes the weights; `training/fit.py`
trains them.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

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
from ponder.core.wrapped import making_cost
from ponder.models import models_folder
from ponder.training.made_models import MakingRecord, make_once, weights_folder, write_card


class Input(NamedTuple):
    """A file or folder that making reads, which the first method that needs it writes: weights,
    samples, scores.
    """

    path: Path
    asked: tuple[Model, ...] = ()  # models that are asked to write it
    limit: Limit | None = None  # the most that asking them may take


@dataclass(frozen=True, kw_only=True)
class WeightMethod(Method, Prepared):
    """A method whose model has weights of its own."""

    train_on: tuple[TrainingProblems, ...] = not_in_key(())  # set from the study's [[train]]

    changes_weights = True
    version: ClassVar[int] = 1  # raise it when the same settings make another model
    tried_on: ClassVar[Any] = (
        {"name": "pocket", "style": "long"},
        {"name": "execution", "dictionary": 6, "per_turn": 0},
        2,
    )

    @abstractmethod
    def build(self, model: Model, folder: Path, record: MakingRecord) -> Iterator[Progress]:
        """Write the new weights into a folder, which may hold what an interrupted build left there."""

    def inputs(self, model: Model) -> Iterator[Input]:
        """Yield what `build` reads that other methods may read too."""
        yield Input(weights_folder(model, self.train_on[0].task))

    def uses(self) -> Iterator[Model | Reward]:
        """Yield the models and rewards that making needs, besides the model itself."""
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, Model | Reward):
                yield value

    def check_training(self, source: Source) -> None:
        """Raise `UserError` if these weights can't be trained with these settings on this machine."""

    def identity(self) -> dict[str, Any]:
        return {
            **super().identity(),
            "version": self.version,
            "on": [p.identity() for p in self.train_on],
        }

    def with_training(self, train_on: tuple[TrainingProblems, ...]) -> Self:
        return replace(self, train_on=train_on)

    def folder(self, model: Model) -> Path:
        """Return where the model made from this one is, or will be."""
        return (
            models_folder()
            / f"{self.plugin_name()}-{digest(self.identity(), model.identity()).hex()[:20]}"
        )

    def is_made(self, model: Model) -> bool:
        return (self.folder(model) / "made.json").is_file()

    def check(self, model: Model, task: Task) -> None:
        source = require(model, WithWeights).source(task)
        if self.is_made(model):
            return
        for plugin in self.uses():
            plugin.ready()
        self.check_training(source)

    def missing_outputs(self, model: Model) -> list[Path]:
        if self.is_made(model) or not self.train_on:
            return []
        missing = [read.path for read in self.inputs(model) if not read.path.exists()]
        return [self.folder(model), *missing]

    def sampling_limits(self, model: Model) -> dict[Path, Limit]:
        if self.is_made(model) or not self.train_on:
            return {}
        return {
            read.path: read.limit
            for read in self.inputs(model)
            if read.limit and not read.path.is_file()
        }

    def samplers(self, model: Model) -> Sequence[Model]:
        if self.is_made(model) or not self.train_on:
            return ()
        return [asked for read in self.inputs(model) for asked in read.asked]

    def make(self, model: Model) -> Iterator[Progress]:
        if self.is_made(model):
            return
        if not self.train_on:
            raise UserError(
                f"`{self.plugin_name()}` needs problems to train on",
                hint="add a [[train]] to the study",
            )
        weights = require(model, WithWeights)
        self.check_training(weights.source(self.train_on[0].task))
        if len({weights.source(problems.task) for problems in self.train_on}) > 1:
            names = " and ".join(
                dict.fromkeys(problems.task.plugin_name() for problems in self.train_on)
            )
            what = f"{model.title()} has different weights for {names}, and `{self.plugin_name()}` makes one model"
            raise UserError(what, hint="give [[train]] one task only")
        for progress in make_once(
            self.folder(model), partial(self.build, model), partial(self._complete, model)
        ):
            yield {"method": self.title(), **progress}

    def _complete(self, model: Model, folder: Path, record: MakingRecord) -> None:
        """Write the card and `made.json` next to weights that were built."""
        task = self.train_on[0].task
        record.add_cost(making_cost(model, task))
        write_card(require(model, WithWeights).source(task).folder, folder)
        record.write(folder, self.identity(), model.identity())

    def apply(self, model: Model) -> Model:
        for _ in self.make(model):
            pass
        return require(model, WithWeights).with_weights(self.folder(model))
