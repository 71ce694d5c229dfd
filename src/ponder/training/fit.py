"""Trains weights on examples for several epochs: what `sft`, `shortest` and `dpo` do once they have
their examples.

`fit` trains with the loop of `training/loop.py`, or with TRL under `engine = "trl"`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

from ponder.core import (
    Model,
    Progress,
    Sampled,
    Source,
    TrainingProblems,
    UserError,
    WithWeights,
    require,
)
from ponder.models._gpu_memory import make_room
from ponder.models._local_weights import own_dtype
from ponder.models._torch_engine import load_anew, load_light
from ponder.training import trl_engine
from ponder.training.loop import (
    Loss,
    Trainer,
    TrainingSettings,
    Unit,
    epoch_batch,
    likelihood,
    steps_per_epoch,
)
from ponder.training.made_models import MakingRecord, local_weights, samples_file
from ponder.training.rollouts import Rollouts, Sample, draw_problems, sampling_limit
from ponder.training.weight_methods import Input
from ponder.training.weights import convert

# Returns a loss, and each unit with what the loss needs of it, such as its log-probabilities before
# training.
Objective: TypeAlias = Callable[[Trainer, Sequence[Unit]], tuple[Sequence[Unit], Loss]]


@dataclass(frozen=True, kw_only=True)
class EpochSettings(TrainingSettings):
    """The settings of a training that sees the same examples several times."""

    epochs: int = 2  # passes over the data
    # instead of epochs: this many steps, however much there is to train on
    steps: int | None = None
    batch: int = 32  # texts, or pairs of texts, per step

    trl_trainer: ClassVar[trl_engine.Kind] = "sft"

    def __post_init__(self) -> None:
        super().__post_init__()
        if min(self.epochs, self.batch, 1 if self.steps is None else self.steps) < 1:
            raise UserError("epochs, steps and batch must be at least 1")

    def check_training(self, source: Source) -> None:
        if self.engine == "trl":
            trl_engine.check(self.trl_trainer, self, source.device, ("batch", self.batch, 1))

    def trl_job(self) -> dict[str, Any]:
        """Return what TRL's trainer needs besides the hyperparameters that all have."""
        return {}


@dataclass(frozen=True, kw_only=True)
class SampleSettings(EpochSettings):
    """The settings of a training on the model's own samples, drawn once before it."""

    problems: int = 1000  # to sample
    n: int = 8  # samples per problem
    temperature: float = 1.0  # of the samples
    # draws the samples instead of the model: for example its weights behind an endpoint
    sampler: Model | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if min(self.problems, self.n) < 1 or self.temperature <= 0:
            raise UserError("problems and n must be at least 1, and temperature above 0")


def fit(
    source: Source,
    units: Sequence[Unit],
    objective: Objective,
    settings: EpochSettings,
    folder: Path,
    record: MakingRecord,
    over: Callable[[Sequence[Unit]], float] = len,
) -> Iterator[Progress]:
    """Train weights on units and write them into a folder, resuming from a checkpoint that is
    there.

    A step's summed losses are divided by what `over` returns.
    """
    steps = settings.steps or settings.epochs * steps_per_epoch(units, settings.batch)
    record.notes |= {"units": len(units), "steps": steps}
    if settings.engine == "trl":
        job = {"batch": settings.batch, "steps": steps, **settings.trl_job()}
        training = trl_engine.on_units(
            settings.trl_trainer, settings.settings(), source, folder, units, **job
        )
        yield from training
        training.write(load_light(source), folder)
        training.bill(record)
        return
    make_room(source.device)
    trainer = Trainer(load_anew(settings.source_to_train(source)), settings, folder)
    units, loss = objective(trainer, units)
    trainer.resume()
    batch = partial(epoch_batch, units, settings.batch, settings.seed)
    yield from trainer.run(steps, batch, loss, over)
    trainer.write(folder)
    convert(folder, source.dtype)
    record.training_tokens += trainer.tokens


def supervised(trainer: Trainer, units: Sequence[Unit]) -> tuple[Sequence[Unit], Loss]:  # noqa: ARG001 an `Objective`
    """Return the loss of supervised fine-tuning."""
    return units, likelihood


def weights_to_train(model: Model, train_on: Sequence[TrainingProblems]) -> Source:
    """Return where a model's weights are, as a local folder of safetensors."""
    task = train_on[0].task
    source = require(model, WithWeights).source(task)
    folder = local_weights(model, task)
    dtype = own_dtype(folder) if source.dtype == "auto" else source.dtype
    return source._replace(folder=folder, revision="", dtype=dtype)


def samples_of(
    settings: SampleSettings, train_on: Sequence[TrainingProblems], model: Model
) -> Input:
    """Return where the samples of a model are kept, who draws them, and the most that this may
    take.
    """
    sampler = _sampler(settings, model)
    limit = partial(sampling_limit, sampler, train_on, settings.problems, settings.n, settings.seed)
    path = samples_file(sampler, train_on, settings.problems, settings.n, settings.seed)
    return Input(path, (settings.sampler or model,), limit)


def draw_samples(
    settings: SampleSettings,
    train_on: Sequence[TrainingProblems],
    model: Model,
    source: Source,
    record: MakingRecord,
) -> Generator[Progress, None, list[list[Sample]]]:
    """Sample the model on training problems, unless the samples are there; return those of each
    problem.
    """
    problems = draw_problems(train_on, settings.problems, settings.seed)
    # without weights: the sampler may need the memory that they would take
    tokenizer = load_light(source)
    path = samples_of(settings, train_on, model).path
    rollouts = Rollouts(
        _sampler(settings, model), tokenizer, problems, settings.n, settings.seed, path
    )
    yield from rollouts
    record.rollout_tokens += rollouts.tokens
    return rollouts.samples


def check_usable(units: Sequence[Unit], samples: Sequence[Sequence[Sample]], n: int) -> None:
    """Raise `UserError` if no sample can be trained on."""
    if not units:
        what = f"nothing to train on: {len(samples)} problems × {n} samples gave no usable example"
        raise UserError(what, hint="train on smaller sizes, or draw more samples: problems, n")


def _sampler(settings: SampleSettings, model: Model) -> Model:
    return require(settings.sampler or model, Sampled).at_temperature(settings.temperature)
