"""Trains weights on examples for several epochs: what `sft`, `shortest` and `dpo` do with theirs.

`fit` is the whole training. `open_engine` chooses what runs it: the loop of `training/loop.py`, or
`transformers.Trainer` under `engine = "trainer"`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

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
from ponder.models._torch_engine import load_light
from ponder.training import trainer_engine
from ponder.training.loop import (
    Loop,
    Objective,
    TrainingSettings,
    Unit,
    epoch_steps,
    load_language_model,
    steps_per_epoch,
)
from ponder.training.made_models import Input, MakingRecord, local_weights, samples_file
from ponder.training.rollouts import Rollouts, Sample, draw_problems, sampling_limit
from ponder.training.trainer_engine import TrainerEngine
from ponder.training.weights import convert


@dataclass(frozen=True, kw_only=True)
class EpochSettings(TrainingSettings):
    """The settings of a training that sees the same examples several times."""

    epochs: int = 2  # passes over the data
    # instead of epochs: this many steps, however much there is to train on
    steps: int | None = None
    batch: int = 32  # texts, or pairs of texts, per step

    def __post_init__(self) -> None:
        super().__post_init__()
        if min(self.epochs, self.batch) < 1 or (self.steps is not None and self.steps < 1):
            raise UserError("epochs, steps and batch must be at least 1")

    def check_training(self, source: Source) -> None:
        trainer_engine.check(self, source.device)


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
    divisor: Callable[[Sequence[Unit]], float] = len,
) -> Iterator[Progress]:
    """Train weights on units and write them into a folder, resuming from a checkpoint there.

    A step's summed losses are divided by what `divisor` returns for its units.
    """
    number = settings.steps or settings.epochs * steps_per_epoch(units, settings.batch)
    record.notes |= {"units": len(units), "steps": number}
    steps = epoch_steps(units, settings.batch, number, settings, divisor)
    engine = open_engine(source, settings, folder)
    yield from engine.train(units, steps, objective)
    engine.write(folder)
    convert(folder, source.dtype)
    record.add_training(engine.tokens, engine.seconds, engine.notes)


def open_engine(
    source: Source, settings: TrainingSettings, folder: Path, temperature: float = 1.0
) -> Loop | TrainerEngine:
    """Return what trains a language model: the loop in this process, or the Trainer in others."""
    hyperparameters = settings.hyperparameters()
    if settings.engine == "trainer":
        # The Trainer moves the weights to its device.
        load = partial(
            load_language_model, source._replace(device="cpu"), hyperparameters, temperature
        )
        return TrainerEngine(load, hyperparameters, source, folder)
    make_room(source.device)
    model = load_language_model(source, hyperparameters, temperature)
    return Loop(model, hyperparameters, folder)


def weights_to_train(model: Model, train_on: Sequence[TrainingProblems]) -> Source:
    """Return where a model's weights are, as a local folder of safetensors."""
    task = train_on[0].task
    source = require(model, WithWeights).source(task)
    folder = local_weights(model, task)
    dtype = source.dtype
    if dtype == "auto":
        dtype = own_dtype(folder)
    return source._replace(folder=folder, revision="", dtype=dtype)


def samples_of(
    settings: SampleSettings, train_on: Sequence[TrainingProblems], model: Model
) -> Input:
    """Return where a model's samples are kept, who draws them, and an upper bound on the cost."""
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
    """Sample the model on training problems, unless that is done; return each problem's samples."""
    problems = draw_problems(train_on, settings.problems, settings.seed)
    # Without weights: the sampler may need the memory that they would take.
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
        message = (
            f"nothing to train on: {len(samples)} problems × {n} samples gave no usable example"
        )
        raise UserError(message, hint="train on smaller sizes, or draw more samples: problems, n")


def _sampler(settings: SampleSettings, model: Model) -> Model:
    return require(settings.sampler or model, Sampled).at_temperature(settings.temperature)
