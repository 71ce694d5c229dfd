"""Trains a process reward on any causal language model: one head scores each step, another the
whole trajectory.

After ReasonFlux-PRM (Zou et al. 2025, arXiv 2506.18896): the squared error of each step's score,
averaged over the steps of a trace, plus that of the trajectory's score, each with its weight. Where
labels are true or false, the cross-entropy (`loss`) learns the same faster. Traces are tokenized by
the reward that will score them, so that training and scoring can't differ; a trace longer than the
window is split into the rows that it would be scored in.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional

from ponder.core import Progress, Reward, Source, Steps, UserError
from ponder.core.settings import from_table
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
from ponder.training import trl_engine
from ponder.training.loop import (
    Loss,
    TokenExample,
    Trainer,
    TrainingSettings,
    Unit,
    epoch_batch,
    steps_per_epoch,
)
from ponder.training.made_models import MakingRecord
from ponder.training.targets import Target, Targets
from ponder.training.weights import convert


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
        if (
            min(self.epochs, self.batch) < 1
            or min(self.step_weight, self.trajectory_weight) < 0
            or self.head_rate <= 0
        ):
            raise UserError(
                "epochs and batch must be at least 1, head_rate above 0, and neither weight negative"
            )
        if self.lora:
            raise UserError("a reward is trained with all of its weights", hint="lora = 0")


class Scorer(nn.Module):
    """A language model without its output layer, and two heads on its last hidden states."""

    def __init__(self, states: Any, device: torch.device) -> None:
        super().__init__()
        self.states = states
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


class RewardTrainer(Trainer):
    """A reward with its optimizer."""

    def __init__(self, scorer: Scorer, settings: RewardSettings, folder: Path) -> None:
        super().__init__(Loaded(folder, scorer, None), settings, folder)  # type: ignore[arg-type]

    def groups(self) -> list[dict[str, Any]]:
        heads = list(self.plain.heads.parameters())
        rest = list(self.plain.states.parameters())
        assert isinstance(self.settings, RewardSettings)
        return [
            {"params": rest, "rate": self.settings.rate},
            {"params": heads, "rate": self.settings.head_rate},
        ]

    def scores(self, units: Sequence[Unit]) -> Tensor:
        """The logits of the two heads at every place."""
        mixed = self.settings.precision == "bfloat16"
        with torch.autocast(self.plain.device.type, torch.bfloat16, enabled=mixed):
            logits: Tensor = self.model([unit.data.row for unit in units])
        return logits.float()


def train(
    reader: Weighted,
    traces: Sequence[Steps],
    folder: Path,
    settings: RewardSettings,
    quality: Reward | None = None,
    record: MakingRecord | None = None,
) -> Iterator[Progress]:
    """Train a reward on the model that `reader` names, into a folder; an interrupted training
    resumes.

    `quality` scores each step for the targets; by default the traces' own labels do. The cost is
    added to `record`; if there is none, `made.json` is written.
    """
    began, own = time.process_time(), record or MakingRecord(notes={"traces": len(traces)})
    source = Source(Path(reader.id), reader.revision, reader.dtype, reader.device, reader.threads)
    check_engine(settings, source.device)
    targets = settings.of(traces, quality or Oracle(of=reader.of))
    make_room(source.device)
    loaded = (
        load_anew(settings.source_to_train(source))
        if settings.engine == "ponder"
        else load_light(source)
    )
    window = (
        reader.window or getattr(loaded.model.config, "max_position_embeddings", None) or WINDOW
    )
    rows = units(reader, SafeTokenizer(loaded.tokenizer), traces, targets, window)
    if not rows:
        hint = "give the traces `labels` or `correct`, or name a reward that judges their steps"
        raise UserError("no trace has a known target to train on", hint=hint)
    folder.mkdir(parents=True, exist_ok=True)
    steps = settings.epochs * steps_per_epoch(rows, settings.batch)
    if settings.engine == "trl":
        how: dict[str, Any] = {"batch": settings.batch, "steps": steps, "scorer": reader}
        training = trl_engine.on_units("reward", settings, source, folder, rows, **how)
        yield from training
        training.write(loaded, folder)
        training.bill(own)
    else:
        torch.manual_seed(settings.seed)
        trainer = RewardTrainer(
            Scorer(reader.states(loaded.model), loaded.model.device), settings, folder
        )
        trainer.resume()
        yield from trainer.run(
            steps,
            lambda step: epoch_batch(rows, settings.batch, settings.seed, step),
            joint_loss(settings),
            len,
        )
        heads = trainer.plain.heads.state_dict()
        save_file(
            {name: weight.detach().cpu().contiguous() for name, weight in heads.items()},
            folder / HEADS,
        )
        loaded.tokenizer.save_pretrained(folder)
        loaded.model.save_pretrained(folder)
        convert(folder, source.dtype)
        own.training_tokens += trainer.tokens
    if record is None:
        own.seconds += time.process_time() - began
        own.write(folder, asdict(settings), reader.identity())
    (folder / "training.pt").unlink(missing_ok=True)
    shutil.rmtree(folder / "trl", ignore_errors=True)


def check_engine(settings: RewardSettings, device: str) -> None:
    """Raise `UserError` if the engine can't be used with these settings on this machine."""
    if settings.engine == "trl":
        trl_engine.check("reward", settings, device, ("batch", settings.batch, 1))


def settings(start: str, table: Mapping[str, Any]) -> tuple[Weighted, RewardSettings]:
    """The reader and the training's settings from one table of both, as `--set` fills it."""
    own = {f.name for f in fields(RewardSettings)}
    training = {key: value for key, value in table.items() if key in own}
    reading = {"id": start, **{key: value for key, value in table.items() if key not in own}}
    reader = from_table(Weighted, reading, "training a reward", "--set", also=sorted(own))
    return reader, from_table(RewardSettings, training, "training a reward", "--set")


def units(
    reader: Weighted,
    tokenizer: SafeTokenizer,
    traces: Sequence[Steps],
    targets: Sequence[Target],
    window: int,
) -> list[Unit]:
    """The rows of all traces with a known target."""
    pairs = [
        (trace, target)
        for trace, target in zip(traces, targets, strict=True)
        if trace.part(reader.of)
    ]
    units = []
    for (_, target), reading in zip(
        pairs, reader.read(tokenizer, [trace for trace, _ in pairs]), strict=True
    ):
        rows = [] if isinstance(reading, str) else list(windows(reading, window, reader.context))
        known, first = np.isfinite(target.steps), 0
        for row in rows:
            own = slice(first, first := first + len(row.positions))
            weights = torch.tensor(known[own] / max(1, known.sum()), dtype=torch.float32)
            steps = torch.tensor(np.nan_to_num(target.steps[own]), dtype=torch.float32)
            trajectory = target.trajectory if row is rows[-1] else np.nan
            if known[own].any() or np.isfinite(trajectory):
                units.append(
                    Unit(
                        (TokenExample(row.tokens, ()),), RowTarget(row, steps, weights, trajectory)
                    )
                )
    return units


def joint_loss(settings: RewardSettings) -> Loss:
    """The loss of steps and trajectories together."""

    def error(logits: Tensor, wanted: Tensor) -> Tensor:
        if settings.loss == "squared":
            return (logits.sigmoid() - wanted) ** 2
        return functional.binary_cross_entropy_with_logits(logits, wanted, reduction="none")

    def loss(scores: Tensor, batch: Sequence[Unit]) -> Tensor:
        targets: list[RowTarget] = [unit.data for unit in batch]
        device = scores.device
        steps, weights = (
            torch.cat(part).to(device)
            for part in zip(*((t.steps, t.weights) for t in targets), strict=True)
        )
        ends = torch.tensor([len(target.steps) for target in targets], device=device).cumsum(0) - 1
        whole = torch.tensor([target.trajectory for target in targets], device=device)
        of_steps = (weights * error(scores[:, 0], steps)).sum()
        of_trajectories = (error(scores[ends, 1], whole.nan_to_num()) * whole.isfinite()).sum()
        return settings.step_weight * of_steps + settings.trajectory_weight * of_trajectories

    return loss
