"""Training a process reward on any causal language model: steps and trajectory at once, through the scoring's own eyes.

After ReasonFlux-PRM (Zou et al. 2025, arXiv 2506.18896): the squared error of each step's score, averaged over the
steps of a trace, and that of the trajectory's, each with its weight. Where labels are true or false, the cross-entropy
(`loss`) learns the same thing sooner. Traces become tokens in the reward that will score them, so that training and
scoring can't differ; one that is longer than the window is learnt in the rows that it would be scored in.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional

from ponder import __version__
from ponder.core import Progress, Reward, Source, Steps, UserError, seed_from
from ponder.core.plugins import nearest
from ponder.models.transformers import Loaded, load_anew
from ponder.rewards._weights import WINDOW, Row, SafeTokenizer, read_states, windows
from ponder.rewards.oracle import Oracle
from ponder.rewards.trained import HEADS, Trained
from ponder.training.loop import Example, Settings, Training, Unit
from ponder.training.targets import Target, Targets


@dataclass(frozen=True, kw_only=True)
class Recipe(Settings, Targets):
    """How a reward is trained: its targets, and how to learn them."""

    head_rate: float = 1e-3  # of the heads, which begin at nothing
    loss: Literal["squared", "cross-entropy"] = "squared"
    step_weight: float = 1.0
    trajectory_weight: float = 1.0
    epochs: int = 2
    batch: int = 32  # traces a step

    def __post_init__(self) -> None:
        Settings.__post_init__(self)
        Targets.__post_init__(self)
        if min(self.epochs, self.batch) < 1 or min(self.step_weight, self.trajectory_weight) < 0 or self.head_rate <= 0:
            raise UserError("epochs and batch must be at least 1, head_rate above 0, and neither weight negative")
        if self.lora:
            raise UserError("a reward is trained with all of its weights", hint="lora = 0")


class Scorer(nn.Module):
    """A language model's states, and two heads on them."""

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
        found: Tensor = self.heads(read_states(self.states, rows, self.device).float())
        return found


class RowTarget(NamedTuple):
    """What a row is to say at its places, and how much each counts."""

    row: Row
    steps: Tensor
    weights: Tensor  # 1 over the steps of its trace; 0 where a step's target isn't known
    trajectory: float  # NaN: isn't learnt here


class Fitting(Training):
    """A reward with its optimiser, at some step."""

    def __init__(self, scorer: Scorer, recipe: Recipe, folder: Path) -> None:
        super().__init__(Loaded(folder, scorer, None), recipe, folder)  # type: ignore[arg-type]

    def groups(self) -> list[dict[str, Any]]:
        heads = list(self.plain.heads.parameters())
        rest = list(self.plain.states.parameters())
        assert isinstance(self.settings, Recipe)
        return [{"params": rest, "rate": self.settings.rate}, {"params": heads, "rate": self.settings.head_rate}]

    def scores(self, units: Sequence[Unit]) -> Tensor:
        """What the two heads say at every place, before they are brought to [0, 1]."""
        mixed = self.settings.precision == "bfloat16"
        with torch.autocast(self.plain.device.type, torch.bfloat16, enabled=mixed):
            found: Tensor = self.model([unit.data.row for unit in units])
        return found.float()


def train(
    reader: Trained,
    traces: Sequence[Steps],
    folder: Path,
    recipe: Recipe,
    quality: Reward | None = None,
) -> Iterator[Progress]:
    """Train on the model that `reader` names, as it reads; stopped, it goes on. `quality` is the labels by default."""
    targets = recipe.of(traces, quality or Oracle(of=reader.of))
    loaded = load_anew(Source(Path(reader.id), reader.revision, reader.dtype, reader.device, reader.threads))
    window = reader.window or getattr(loaded.model.config, "max_position_embeddings", None) or WINDOW
    found = units(reader, SafeTokenizer(loaded.tokenizer), traces, targets, window)
    if not found:
        hint = "give them `labels` or `correct`, or name a judge"
        raise UserError("nothing is known of the traces that could be learnt", hint=hint)
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(recipe.seed)
    fitting = Fitting(Scorer(reader.states(loaded.model), loaded.model.device), recipe, folder)
    fitting.resume()
    a_round = -(-len(found) // recipe.batch)
    yield from fitting.run(recipe.epochs * a_round, lambda step: _batch(found, recipe, step), joint(recipe), len)
    if fitting.accelerator.is_main_process:
        heads = fitting.plain.heads.state_dict()
        save_file({name: weight.detach().cpu().contiguous() for name, weight in heads.items()}, folder / HEADS)
        loaded.tokenizer.save_pretrained(folder)
        loaded.model.save_pretrained(folder)
        made = {"recipe": asdict(recipe), "from": reader.identity(), "traces": len(traces)}
        cost = {"training_tokens": fitting.tokens, "ponder": __version__}
        (folder / "made.json").write_text(json.dumps({**made, **cost}, indent=1) + "\n", "utf-8")
        (folder / "training.pt").unlink(missing_ok=True)


def settings(start: str, table: Mapping[str, Any]) -> tuple[Trained, Recipe]:
    """A reader and a recipe from keys and values that a user gave."""
    own, rest = ({f.name: f.type for f in fields(kind)} for kind in (Recipe, Trained))
    if unknown := next((key for key in table if key not in {**own, **rest}), None):
        raise UserError(f"training a reward has no setting `{unknown}`", hint=nearest(unknown, {**own, **rest}))
    try:
        recipe = msgspec.convert({k: v for k, v in table.items() if k in own}, Recipe)
        return msgspec.convert({"id": start, **{k: v for k, v in table.items() if k not in own}}, Trained), recipe
    except msgspec.ValidationError as error:
        raise UserError(str(error), where="--set") from None


def units(
    reader: Trained, tokenizer: SafeTokenizer, traces: Sequence[Steps], targets: Sequence[Target], window: int
) -> list[Unit]:
    """The rows of traces of which something is known, with what they are to say."""
    some = [(trace, target) for trace, target in zip(traces, targets, strict=True) if trace.part(reader.of)]
    found = []
    for (_, target), reading in zip(some, reader.read(tokenizer, [trace for trace, _ in some]), strict=True):
        rows = [] if isinstance(reading, str) else list(windows(reading, window, reader.context))
        known, first = np.isfinite(target.steps), 0
        for row in rows:
            mine = slice(first, first := first + len(row.positions))
            weights = torch.tensor(known[mine] / max(1, known.sum()), dtype=torch.float32)
            steps = torch.tensor(np.nan_to_num(target.steps[mine]), dtype=torch.float32)
            whole = target.trajectory if row is rows[-1] else np.nan
            if known[mine].any() or np.isfinite(whole):
                found.append(Unit((Example(row.tokens, ()),), RowTarget(row, steps, weights, whole)))
    return found


def joint(recipe: Recipe) -> Any:
    """The loss of some units: of their steps and of their trajectories."""

    def error(said: Tensor, wanted: Tensor) -> Tensor:
        if recipe.loss == "squared":
            return (said.sigmoid() - wanted) ** 2
        return functional.binary_cross_entropy_with_logits(said, wanted, reduction="none")

    def loss(scores: Tensor, some: Sequence[Unit]) -> Tensor:
        aims: list[RowTarget] = [unit.data for unit in some]
        device = scores.device
        steps, weights = (
            torch.cat(part).to(device) for part in zip(*((a.steps, a.weights) for a in aims), strict=True)
        )
        ends = torch.tensor([len(aim.steps) for aim in aims], device=device).cumsum(0) - 1
        whole = torch.tensor([aim.trajectory for aim in aims], device=device)
        final = error(scores[ends, 1], whole.nan_to_num()) * whole.isfinite()
        return (
            recipe.step_weight * (weights * error(scores[:, 0], steps)).sum() + recipe.trajectory_weight * final.sum()
        )

    return loss


def _batch(found: Sequence[Unit], recipe: Recipe, step: int) -> list[Unit]:
    """Each row once an epoch, in an order of its own."""
    a_round = -(-len(found) // recipe.batch)
    order = list(found)
    random.Random(seed_from("epoch", recipe.seed, step // a_round)).shuffle(order)
    return order[step % a_round * recipe.batch :][: recipe.batch]
