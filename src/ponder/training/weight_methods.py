"""Methods that change weights: what they share, from finding a made model to training on samples.

`WeightMethod` makes a model once and finds it again; `TrainingMethod` adds the training loop's settings, `EpochMethod`
several epochs over the same units, and `SamplingMethod` samples that the model draws before training. A made model is
identified by a digest of the method's settings and of the model it was made from.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Self

from ponder.core import (
    Limit,
    Method,
    Model,
    Progress,
    Reward,
    Sampled,
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
from ponder.models._gpu_memory import make_room
from ponder.models._local_weights import own_dtype
from ponder.models._torch_engine import Loaded, load_anew, load_light
from ponder.training import trl_engine
from ponder.training.loop import Loss, Trainer, TrainingSettings, Unit, epoch_batch, steps_per_epoch
from ponder.training.made_models import (
    MakingRecord,
    local_weights,
    make_once,
    samples_file,
    weights_folder,
    write_card,
)
from ponder.training.rollouts import Rollouts, Sample, draw_problems, sampling_limit
from ponder.training.weights import convert


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

    def check(self, model: Model, task: Task) -> None:
        require(model, WithWeights).source(task)
        if not (self.folder(model) / "made.json").is_file():
            for plugin in self.uses():
                plugin.ready()

    def uses(self) -> Iterator[Model | Reward]:
        """The models and rewards that making needs, besides the model itself."""
        yield from (value for f in fields(self) if isinstance(value := getattr(self, f.name), Model | Reward))

    def sampling_limits(self, model: Model) -> dict[Path, Limit]:
        if not self.train_on or (self.folder(model) / "made.json").is_file():
            return {}
        return {path: limit for path, limit in self.samples(model) if not path.is_file()}

    def samplers(self, model: Model) -> Sequence[Model]:
        if not self.train_on or (self.folder(model) / "made.json").is_file():
            return ()
        return [*self.asked_models(model)]

    def asked_models(self, model: Model) -> Iterator[Model]:  # noqa: ARG002 for subclasses
        """Yield the models that `build` asks."""
        yield from ()

    def samples(self, model: Model) -> Iterator[tuple[Path, Limit]]:  # noqa: ARG002 for subclasses
        """Where samples that it trains on are kept, and the most that drawing them may take."""
        yield from ()

    @abstractmethod
    def build(self, model: Model, folder: Path, record: MakingRecord) -> Iterator[Progress]:
        """Write the new weights into a folder, which may hold what an interrupted build left there."""

    def folder(self, model: Model) -> Path:
        """Where the model made from this one is, or will be."""
        return models_folder() / f"{self.plugin_name()}-{digest(self.identity(), model.identity()).hex()[:20]}"

    def unmade(self, model: Model) -> tuple[Path, ...]:
        folder = self.folder(model)
        if (folder / "made.json").is_file() or not self.train_on:
            return ()
        return folder, *(path for path in self.shared(model) if not path.exists())

    def shared(self, model: Model) -> Iterator[Path]:
        """What it reads and others may read too, such as samples: made by the first that needs it."""
        yield weights_folder(model, self.train_on[0].task)

    def make(self, model: Model) -> Iterator[Progress]:
        folder = self.folder(model)
        if (folder / "made.json").is_file():
            return
        if not self.train_on:
            raise UserError(f"`{self.plugin_name()}` needs problems to train on", hint="add a [[train]] to the study")
        if len({require(model, WithWeights).source(problems.task) for problems in self.train_on}) > 1:
            names = " and ".join(dict.fromkeys(problems.task.plugin_name() for problems in self.train_on))
            what = f"{model.title()} has different weights for {names}, and `{self.plugin_name()}` makes one model"
            raise UserError(what, hint="give [[train]] one task only")
        for progress in make_once(folder, partial(self.build, model), partial(self._complete, model)):
            yield {"method": self.title(), **progress}

    def _complete(self, model: Model, folder: Path, record: MakingRecord) -> None:
        task = self.train_on[0].task
        record.add_cost(making_cost(model, task))
        write_card(require(model, WithWeights).source(task).folder, folder)
        record.write(folder, self.identity(), model.identity())

    def apply(self, model: Model) -> Model:
        for _ in self.make(model):
            pass
        return require(model, WithWeights).with_weights(self.folder(model))


@dataclass(frozen=True, kw_only=True)
class TrainingMethod(WeightMethod, TrainingSettings):
    """A method that trains: the training loop's settings are its own."""

    def training_seed(self) -> int:
        return self.seed

    trl_trainer: ClassVar[trl_engine.Kind] = "sft"

    def check(self, model: Model, task: Task) -> None:
        super().check(model, task)
        if not (self.folder(model) / "made.json").is_file():
            self._check_engine(model, task)

    def _check_engine(self, model: Model, task: Task) -> None:
        if self.engine == "trl":
            trl_engine.check(self.trl_trainer, self, require(model, WithWeights).source(task).device, self.trl_step())

    @abstractmethod
    def trl_step(self) -> tuple[str, int, int]:
        """What a step trains on: the setting that says how many units, their number, and the rows of a unit."""

    def make(self, model: Model) -> Iterator[Progress]:
        if self.train_on and not (self.folder(model) / "made.json").is_file():
            self._check_engine(model, self.train_on[0].task)
        yield from super().make(model)

    def weights(self, model: Model) -> Source:
        """Where the weights are that are to be trained."""
        task = self.train_on[0].task
        source, folder = require(model, WithWeights).source(task), local_weights(model, task)
        dtype = own_dtype(folder) if source.dtype == "auto" else source.dtype
        return source._replace(folder=folder, revision="", dtype=dtype)

    def load(self, model: Model) -> Loaded:
        """The model with its weights, to be trained in this process."""
        make_room((source := self.weights(model)).device)
        return load_anew(self.settings().trained(source))

    def settings(self) -> TrainingSettings:
        return TrainingSettings(**{f.name: getattr(self, f.name) for f in fields(TrainingSettings)})

    def trainer(self, loaded: Loaded, folder: Path, temperature: float = 1.0) -> Trainer:
        return Trainer(loaded, self.settings(), folder, temperature)


@dataclass(frozen=True, kw_only=True)
class EpochMethod(TrainingMethod):
    """A method that trains on the same units for several epochs."""

    epochs: int = 2  # passes over the data
    steps: int | None = None  # instead of epochs: this many steps, however much there is to train on
    batch: int = 32  # texts, or pairs of texts, per step

    def __post_init__(self) -> None:
        super().__post_init__()
        if min(self.epochs, self.batch, 1 if self.steps is None else self.steps) < 1:
            raise UserError("epochs, steps and batch must be at least 1")

    def over(self, units: Sequence[Unit]) -> float:
        """What the summed losses of a step are divided by."""
        return len(units)

    @abstractmethod
    def loss(self, trainer: Trainer, units: Sequence[Unit]) -> tuple[Sequence[Unit], Loss]:
        """The loss, and each unit with the data that the loss needs."""

    def train(
        self, model: Model, light: Loaded, units: Sequence[Unit], folder: Path, record: MakingRecord
    ) -> Iterator[Progress]:
        """Train, resuming from a checkpoint if there is one, and write the model; `light` is it without weights."""
        steps = self.steps or self.epochs * steps_per_epoch(units, self.batch)
        record.notes |= {"units": len(units), "steps": steps}
        if self.engine == "trl":
            yield from self._train_trl(model, light, units, folder, steps, record)
            return
        trainer = self.trainer(self.load(model), folder)
        prepared, loss = self.loss(trainer, units)
        trainer.resume()
        yield from trainer.run(steps, lambda step: epoch_batch(prepared, self.batch, self.seed, step), loss, self.over)
        trainer.write(folder)
        convert(folder, self.weights(model).dtype)
        record.training_tokens += trainer.tokens

    def trl_step(self) -> tuple[str, int, int]:
        return "batch", self.batch, 1

    def trl_job(self) -> dict[str, Any]:
        """What TRL's trainer needs besides the hyperparameters that all have."""
        return {}

    def _train_trl(
        self, model: Model, light: Loaded, units: Sequence[Unit], folder: Path, steps: int, record: MakingRecord
    ) -> Iterator[Progress]:
        kind, batch = self.trl_trainer, self.batch
        how = {"batch": batch, "steps": steps, **self.trl_job()}
        training = trl_engine.on_units(kind, self.settings(), self.weights(model), folder, units, **how)
        yield from training
        training.write(light, folder)
        training.bill(record)


@dataclass(frozen=True, kw_only=True)
class SamplingMethod(EpochMethod):
    """A method that trains on the model's own samples, drawn once before training."""

    problems: int = 1000  # to sample
    n: int = 8  # samples per problem
    temperature: float = 1.0  # of the samples
    sampler: Model | None = None  # draws the samples instead of the model: for example its weights behind an endpoint

    def __post_init__(self) -> None:
        super().__post_init__()
        if min(self.problems, self.n) < 1 or self.temperature <= 0:
            raise UserError("problems and n must be at least 1, and temperature above 0")

    def samples(self, model: Model) -> Iterator[tuple[Path, Limit]]:
        sampler = self._sampler(model)
        yield self._kept(sampler), partial(sampling_limit, sampler, self.train_on, self.problems, self.n, self.seed)

    @abstractmethod
    def units(self, samples: Sequence[Sequence[Sample]], record: MakingRecord) -> list[Unit]:
        """What to train on, from the samples of each problem."""

    def asked_models(self, model: Model) -> Iterator[Model]:
        yield self.sampler or model

    def shared(self, model: Model) -> Iterator[Path]:
        yield from super().shared(model)
        yield self._kept(self._sampler(model))

    def _sampler(self, model: Model) -> Model:
        return require(self.sampler or model, Sampled).at_temperature(self.temperature)

    def _kept(self, sampler: Model) -> Path:
        return samples_file(sampler, self.train_on, self.problems, self.n, self.seed)

    def build(self, model: Model, folder: Path, record: MakingRecord) -> Iterator[Progress]:
        light = load_light(self.weights(model))  # the sampler may need the memory that the weights would take
        problems = draw_problems(self.train_on, self.problems, self.seed)
        sampler = self._sampler(model)
        rollouts = Rollouts(sampler, light, problems, self.n, self.seed, self._kept(sampler))
        yield from rollouts
        record.rollout_tokens += rollouts.tokens
        units = self.units(rollouts.samples, record)
        if not units:
            what = f"nothing to train on: {len(problems)} problems × {self.n} samples gave no usable example"
            raise UserError(what, hint="train on smaller sizes, or draw more samples: problems, n")
        yield from self.train(model, light, units, folder, record)
