"""Trains a process reward on any causal language model: a head for steps, one for trajectories.

After ReasonFlux-PRM (Zou et al. 2025, arXiv 2506.18896): the squared error of each step's score,
averaged over the steps of a trace, plus that of the trajectory's score, each with its weight. Where
labels are true or false, the cross-entropy (`loss`) learns the same faster. Traces are tokenized by
the reward that will score them, so that training and scoring can't differ; a trace longer than the
window is split into the rows that it would be scored in.

`OwnSamples` first draws what it trains on: samples of the model whose answers the reward will pick,
labelled by the task.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional

from ponder.core import (
    Model,
    Progress,
    Reward,
    Source,
    Steps,
    Task,
    TrainingProblems,
    UserError,
    WithWeights,
    digest,
    require,
)
from ponder.core.settings import from_table
from ponder.core.wrapped import codec_name
from ponder.models import making_cost, models_folder
from ponder.models._gpu_memory import make_room
from ponder.models._torch_engine import Loaded, load_anew, load_light
from ponder.rewards._weights import (
    HEADS,
    WINDOW,
    Row,
    SafeTokenizer,
    Weighted,
    read_states,
    windows,
)
from ponder.rewards.oracle import Oracle
from ponder.rewards.trained import Trained
from ponder.rewards.trained import reader as codec_reader
from ponder.traces import steps, trace_of
from ponder.traces.split import By
from ponder.training import trainer_engine
from ponder.training.loop import (
    CHECKPOINT,
    Loop,
    Objective,
    TokenExample,
    TrainingSettings,
    Unit,
    epoch_steps,
    steps_per_epoch,
)
from ponder.training.made_models import (
    Input,
    Making,
    MakingRecord,
    local_weights,
    samples_file,
    weights_folder,
    write_card,
)
from ponder.training.rollouts import (
    Rollouts,
    Sample,
    TrainingProblem,
    draw_problems,
    sampling_limit,
)
from ponder.training.targets import Target, Targets
from ponder.training.trainer_engine import TrainerEngine
from ponder.training.weights import convert

# Labels of a model's own samples are exact.
LABELS: Mapping[str, Any] = {"targets": "labels", "loss": "cross-entropy"}


@dataclass(frozen=True, kw_only=True)
class RewardSettings(TrainingSettings, Targets):
    """The settings of a reward's training: its targets, its loss and its optimizer."""

    head_rate: float = 1e-3  # learning rate of the two heads, which start at zero
    loss: Literal["squared", "cross-entropy"] = "squared"
    step_weight: float = 1.0  # of the steps' loss
    trajectory_weight: float = 1.0  # of the trajectories' loss
    epochs: int = 2  # passes over the data
    batch: int = 32  # traces per step

    def __post_init__(self) -> None:
        TrainingSettings.__post_init__(self)
        Targets.__post_init__(self)
        if min(self.epochs, self.batch) < 1:
            raise UserError("epochs and batch must be at least 1")
        if min(self.step_weight, self.trajectory_weight) < 0 or self.head_rate <= 0:
            raise UserError("head_rate must be above 0, and neither weight negative")
        if self.lora:
            raise UserError("a reward is trained with all of its weights", hint="lora = 0")


class Scorer(nn.Module):
    """A language model without its output layer, and two heads on its last hidden states."""

    def __init__(self, states: Any, device: torch.device) -> None:
        super().__init__()
        self.states = states
        # FSDP shards the same layers as of the language model.
        for module in states.modules():
            if hasattr(module, "_no_split_modules"):
                self._no_split_modules = module._no_split_modules
                break
        with torch.no_grad():
            width = read_states(states, [Row([0], [0])], device).shape[1]
        self.heads = nn.Linear(width, 2, device=device)
        nn.init.zeros_(self.heads.weight)
        nn.init.zeros_(self.heads.bias)

    @property
    def device(self) -> torch.device:
        return self.heads.weight.device

    def forward(self, rows: Sequence[Row]) -> Tensor:
        logits: Tensor = self.heads(read_states(self.states, rows, self.device).float())
        return logits


class RowTarget(NamedTuple):
    """The scores that a row should give at its positions, and the weight of each."""

    row: Row
    steps: Tensor
    weights: Tensor  # 1 / number of steps of the trace; 0 where a step's target is unknown
    trajectory: float  # NaN: not trained in this row


class RewardModel:
    """A reward that is trained: all weights of the language model and the two heads."""

    def __init__(self, loaded: Loaded, reader: Weighted, settings: RewardSettings) -> None:
        torch.manual_seed(settings.seed)
        states = reader.states(loaded.model)
        self.loaded = loaded
        self.settings = settings
        self.dtype = str(loaded.model.dtype)
        self.module = Scorer(states, loaded.model.device)
        # The language model's names of the scorer's weights; sharding replaces the tensors.
        names: dict[int, str] = {}
        for name, weight in loaded.model.state_dict(keep_vars=True).items():
            names.setdefault(id(weight), name)
        self._names: dict[str, str] = {}
        for name, weight in self.module.state_dict(keep_vars=True).items():
            if id(weight) in names:
                self._names[name] = names[id(weight)]

    def scores(self, module: Any, units: Sequence[Unit]) -> Tensor:
        """Return the logits of the two heads at every position (positions × 2)."""
        logits: Tensor = module([unit.data.row for unit in units])
        return logits.float()

    def groups(self) -> list[dict[str, Any]]:
        return [
            {"params": list(self.module.states.parameters()), "lr": self.settings.rate},
            {"params": list(self.module.heads.parameters()), "lr": self.settings.head_rate},
        ]

    def write(self, folder: Path) -> None:
        self.write_trained(folder, self.module.state_dict())

    def write_trained(self, folder: Path, state: dict[str, Tensor]) -> None:
        heads = {}
        weights = {}
        for name, weight in state.items():
            if name.startswith("heads."):
                heads[name.removeprefix("heads.")] = weight.detach().cpu().contiguous()
            elif name in self._names:
                weights[self._names[name]] = weight.detach()
        # An output layer that the scorer doesn't have isn't trained.
        trained = set(self._names.values())
        for name, weight in self.loaded.model.named_parameters():
            if name not in trained:
                weights[name] = weight.detach()
        self.loaded.model.save_pretrained(folder, state_dict=weights)
        self.loaded.tokenizer.save_pretrained(folder)
        save_file(heads, folder / HEADS)


def load_reward_model(
    source: Source, reader: Weighted, settings: RewardSettings, trained: Path | None = None
) -> RewardModel:
    """Load the language model that a reward is trained from."""
    assert trained is None, "a reward is trained at once"
    return RewardModel(load_anew(settings.source_to_train(source)), reader, settings)


def train(
    reader: Weighted,
    traces: Sequence[Steps],
    folder: Path,
    settings: RewardSettings,
    quality: Reward | None = None,
    record: MakingRecord | None = None,
) -> Iterator[Progress]:
    """Train a reward on the model that `reader` names, into a folder, resuming if interrupted.

    `quality` scores each step for the targets; by default the traces' own labels do. The cost is
    added to `record`; if there is none, `made.json` is written.
    """
    began = time.process_time()
    cost = record or MakingRecord(notes={"traces": len(traces)})
    source = Source(Path(reader.id), reader.revision, reader.dtype, reader.device, reader.threads)
    trainer_engine.check(settings, source.device)
    targets = settings.of(traces, quality or Oracle(of=reader.of))
    light = load_light(source)
    config_window = getattr(light.model.config, "max_position_embeddings", None)
    window = reader.window or config_window or WINDOW
    rows = units(reader, SafeTokenizer(light.tokenizer), traces, targets, window)
    if not rows:
        hint = "give the traces `labels` or `correct`, or name a reward that judges their steps"
        raise UserError("no trace has a known target to train on", hint=hint)
    folder.mkdir(parents=True, exist_ok=True)
    number = settings.epochs * steps_per_epoch(rows, settings.batch)
    steps = epoch_steps(rows, settings.batch, number, settings)
    engine = _engine(source, reader, settings, folder)
    yield from engine.train(rows, steps, Objective(partial(joint_loss, settings)))
    engine.write(folder)
    convert(folder, source.dtype)
    cost.add_training(engine.tokens, engine.seconds, engine.notes)
    if record is None:
        cost.seconds += time.process_time() - began
        cost.write(folder, asdict(settings), reader.identity())
    (folder / CHECKPOINT).unlink(missing_ok=True)
    shutil.rmtree(folder / trainer_engine.WORK, ignore_errors=True)


def _engine(
    source: Source, reader: Weighted, settings: RewardSettings, folder: Path
) -> Loop | TrainerEngine:
    if settings.engine == "trainer":
        on_cpu = source._replace(device="cpu")  # the Trainer moves the weights
        load = partial(load_reward_model, on_cpu, reader, settings)
        return TrainerEngine(load, settings, source, folder)
    make_room(source.device)
    return Loop(load_reward_model(source, reader, settings), settings, folder)


def settings(start: str, table: Mapping[str, Any]) -> tuple[Weighted, RewardSettings]:
    """Return the reader and the training's settings from one table of both, as of `--set`."""
    names = {setting.name for setting in fields(RewardSettings)}
    training = {key: value for key, value in table.items() if key in names}
    reading = {"id": start}
    for key, value in table.items():
        if key not in names:
            reading[key] = value
    reader = from_table(Weighted, reading, "training a reward", "--set", Path(), also=sorted(names))
    return reader, from_table(RewardSettings, training, "training a reward", "--set", Path())


def units(
    reader: Weighted,
    tokenizer: SafeTokenizer,
    traces: Sequence[Steps],
    targets: Sequence[Target],
    window: int,
) -> list[Unit]:
    """Return the rows of all traces with a known target."""
    pairs = []
    for trace, target in zip(traces, targets, strict=True):
        if trace.part(reader.of):
            pairs.append((trace, target))
    readings = reader.read(tokenizer, [trace for trace, _ in pairs])
    units: list[Unit] = []
    for (_, target), reading in zip(pairs, readings, strict=True):
        if not isinstance(reading, str):
            rows = list(windows(reading, window, reader.context))
            units += _trace_units(rows, target)
    return units


def _trace_units(rows: Sequence[Row], target: Target) -> Iterator[Unit]:
    """Yield the rows of one trace that have a known target."""
    finite = np.isfinite(target.steps)
    start = 0
    for row in rows:
        positions = slice(start, start + len(row.positions))
        start = positions.stop
        weights = torch.tensor(finite[positions] / max(1, finite.sum()), dtype=torch.float32)
        steps = torch.tensor(np.nan_to_num(target.steps[positions]), dtype=torch.float32)
        trajectory = np.nan
        if row is rows[-1]:
            trajectory = target.trajectory
        if finite[positions].any() or np.isfinite(trajectory):
            text = TokenExample(row.tokens, ())
            yield Unit((text,), RowTarget(row, steps, weights, trajectory))


def joint_loss(settings: RewardSettings, scores: Tensor, batch: Sequence[Unit]) -> Tensor:
    """Return the loss of steps and trajectories together.

    `scores` are the logits of the two heads at every position of every row (positions × 2).
    """
    targets: list[RowTarget] = [unit.data for unit in batch]
    device = scores.device
    steps = torch.cat([target.steps for target in targets]).to(device)
    weights = torch.cat([target.weights for target in targets]).to(device)
    lengths = torch.tensor([len(target.steps) for target in targets], device=device)
    last = lengths.cumsum(0) - 1
    trajectories = torch.tensor([target.trajectory for target in targets], device=device)
    step_errors = weights * _error(settings, scores[:, 0], steps)
    trajectory_errors = _error(settings, scores[last, 1], trajectories.nan_to_num())
    step_loss = step_errors.sum()
    trajectory_loss = (trajectory_errors * trajectories.isfinite()).sum()
    return settings.step_weight * step_loss + settings.trajectory_weight * trajectory_loss


def _error(settings: RewardSettings, logits: Tensor, targets: Tensor) -> Tensor:
    if settings.loss == "squared":
        return (logits.sigmoid() - targets) ** 2
    return functional.binary_cross_entropy_with_logits(logits, targets, reduction="none")


@dataclass(frozen=True)
class OwnSamples(Making):
    """The training of a reward on samples of the model whose answers it will pick.

    A reward that was trained on other errors than a model makes can't find them. So this one sees
    the model's own: several samples of each training problem, without duplicates. The task says
    whether an answer is right, and the codec of the model, if it has one, which steps are. Without
    step labels only the trajectory's head is trained. Training starts from the model's own weights
    (or from `start`), which already know which token should come next.
    """

    reward: Trained
    train_on: tuple[TrainingProblems, ...]
    cut: By = "blank"
    seed: int = 1  # of the samples

    named_in_errors = "a reward"

    @property
    def named_in_progress(self) -> Progress:
        return {"reward": self.reward.title()}

    def identity(self) -> dict[str, Any]:
        return self.reward.trained_on(self.train_on, self.cut, self.seed)

    def folder(self, model: Model) -> Path:
        key = digest(self.identity(), model.identity()).hex()
        return models_folder() / f"reward-{key[:20]}"

    def settings(self) -> RewardSettings:
        table = {**LABELS, **self.reward.training, "seed": self.seed}
        return from_table(RewardSettings, table, "training a reward", "reward.training")

    def inputs(self, model: Model) -> Iterator[Input]:
        sampler = self.reward.sampler or model
        limit = partial(
            sampling_limit,
            sampler,
            self.train_on,
            self.reward.problems,
            self.reward.n,
            self.seed,
        )
        yield Input(self.samples_file(sampler), (sampler,), limit)
        if not self.reward.start:
            yield Input(weights_folder(model, self.train_on[0].task))

    def samples_file(self, sampler: Model) -> Path:
        return samples_file(sampler, self.train_on, self.reward.problems, self.reward.n, self.seed)

    def check(self, model: Model, task: Task) -> None:
        """Raise `UserError` for settings, or for a model, that it can't train with."""
        if "seed" in self.reward.training:
            hint = "write seed = 1 beside `reward`"
            raise UserError("the seed is the method's own", where="reward.training", hint=hint)
        trainer_engine.check(self.settings(), self.reward.device)
        if not self.reward.start:
            try:
                require(model, WithWeights).source(task)
            except UserError as error:
                hint = 'start = "org/name": a small language model to train'
                raise UserError(
                    f"{error.what}, which a reward could be trained from", hint=hint
                ) from None

    def check_making(self, model: Model) -> None:
        self.check(model, self.train_on[0].task)
        if self.reward.start:
            return
        if len({local_weights(model, problems.task) for problems in self.train_on}) > 1:
            message = (
                f"{model.title()} has different weights for its tasks, and one reward is trained"
            )
            raise UserError(message, hint="give [[train]] one task only")

    def build(self, model: Model, folder: Path, record: MakingRecord) -> Iterator[Progress]:
        task = self.train_on[0].task
        weights = self.reward.start
        codec = ""
        if not weights:
            weights = str(local_weights(model, task))
            codec = require(model, WithWeights).source(task).codec
        # What reads text, with the settings of this reward, unless the codec has a reader.
        plain = replace(self.reward, id=weights, start="", sampler=None, training={})
        reading = codec_reader(self.reward, weights, codec) or plain
        source = Source(
            Path(weights), reading.revision, reading.dtype, reading.device, reading.threads, codec
        )
        problems = draw_problems(self.train_on, self.reward.problems, self.seed)
        sampler = self.reward.sampler or model
        path = self.samples_file(sampler)
        rollouts = Rollouts(sampler, load_light(source), problems, self.reward.n, self.seed, path)
        yield from rollouts
        record.rollout_tokens += rollouts.tokens
        traces = list(distinct(problems, rollouts.samples, sampler, self.cut))
        self._note(rollouts.samples, traces, record)
        yield {"samples": len(problems) * self.reward.n, "distinct": len(traces)}
        yield from train(reading, traces, folder, self.settings(), record=record)

    def _note(
        self, samples: Sequence[Sequence[Sample]], traces: Sequence[Steps], record: MakingRecord
    ) -> None:
        """Record what was drawn; raise `UserError` if it is all right or all wrong."""
        right = sum(bool(trace.facts["correct"]) for trace in traces)
        if right in (0, len(traces)):
            verdict = "right" if right else "wrong"
            raise UserError(
                f"all {len(traces)} distinct samples are {verdict}: there is nothing to learn",
                hint="train on other sizes ([[train]]), or sample at a higher temperature",
            )
        record.measures["distinct_samples"] = len(traces)
        record.measures["distinct_right"] = right / len(traces)
        record.notes["samples"] = sum(map(len, samples))

    def complete(self, model: Model, folder: Path, record: MakingRecord) -> None:
        if not self.reward.start:
            write_card(local_weights(model, self.train_on[0].task), folder)
        record.write(folder, self.identity(), model.identity())

    def made(self, model: Model) -> Trained:
        """Return the reward, once it is made."""
        return replace(self.reward, start="", sampler=None, training={}, id=str(self.folder(model)))

    def cost(self, model: Model) -> dict[str, float]:
        """Return what making it took, and what was measured."""
        return making_cost(self.folder(model))


def distinct(
    problems: Sequence[TrainingProblem],
    samples: Sequence[Sequence[Sample]],
    sampler: Model,
    cut: By,
) -> Iterator[Steps]:
    """Yield the samples as labelled traces, each text once per problem.

    Otherwise what is written most often would count most.
    """
    for problem, problem_samples in zip(problems, samples, strict=True):
        codec = codec_name(sampler, problem.task)
        texts = set[tuple[str, str]]()
        for sample in problem_samples:
            text = (sample.thinking, sample.answer)
            if text in texts:
                continue
            texts.add(text)
            yield steps(trace_of(problem.request(), *text, codec, correct=sample.right), cut)
