"""The network that predicts how much attention the answer will pay to a token, and its training.

As published: three linear layers (d → 2d → d/2 → 1) without bias, Softplus after each; mean squared error on the
thinking tokens of correct traces; AdamW at 5e-4 with warm-up and cosine decay; the model itself is frozen. The
published label is 10 · I^0.3 / 0.3 for one model and 10,000 · I for another; here it is (I / mean of I)^0.3 for all,
except in the recipe `published`, which has the first of the two.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from ponder.core import TokenTrace, UserError
from ponder.policies.dynts import CARD, WEIGHTS
from ponder.policies.dynts.labels import importance


class Predictor(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        sizes = (width, 2 * width, width // 2, 1)
        self.maps = nn.ModuleList(nn.Linear(a, b, bias=False) for a, b in pairwise(sizes))

    def forward(self, hidden: Tensor) -> Tensor:
        for linear in self.maps:
            hidden = nn.functional.softplus(linear(hidden))
        return hidden[..., 0]


@dataclass(frozen=True)
class Recipe:
    """How a predictor is trained."""

    steps: int = 405
    tokens: int = 4096  # per step, drawn from all traces
    rate: float = 5e-4
    decay: float = 0.01
    power: float = 0.3  # of the importance, in the label
    test: float = 0.2  # fraction of the traces that are held out for measuring
    seed: int = 2025
    traces: int | None = None  # per step, whole, instead of tokens
    absolute: bool = False  # label 10 · I^power / power instead of (I / mean of I)^power
    weight: float = 1.0  # of the loss where 4 ≤ label < 5


RECIPES = {"ponder": Recipe(), "published": Recipe(traces=256, absolute=True, weight=5.0)}


@dataclass(frozen=True)
class Labelled:
    """The thinking tokens of a trace: hidden states, and the labels to predict from them."""

    hidden: Tensor
    wanted: Tensor


def labelled(model: Any, trace: TokenTrace, recipe: Recipe) -> Labelled:
    ids = torch.tensor(trace.ids, device=model.device)
    paid, hidden = importance(model, ids, trace.answer)
    thinking = slice(trace.question, trace.answer)
    return Labelled(hidden[thinking].float().cpu(), labels(paid[thinking], recipe).cpu())


def labels(paid: Tensor, recipe: Recipe) -> Tensor:
    """What a predictor learns, from the attention that the answer pays to each thinking token of a trace."""
    if recipe.absolute:
        return 10 * paid**recipe.power / recipe.power
    return (paid / paid.mean().clamp(min=1e-12)) ** recipe.power


def loss_of(predicted: Tensor, wanted: Tensor, recipe: Recipe) -> Tensor:
    """The mean squared error, weighted where labels are from 4 to 5."""
    weights = torch.where((wanted >= 4) & (wanted < 5), recipe.weight, 1.0)
    return (weights * (predicted - wanted) ** 2).mean()


def batches(lengths: Sequence[int], recipe: Recipe) -> Iterator[Tensor]:
    """For each step, which tokens of the traces, put end to end, it learns from."""
    if recipe.traces is None:
        for _ in range(recipe.steps):
            yield torch.randint(sum(lengths), (recipe.tokens,))
        return
    ends, order = list(accumulate(lengths, initial=0)), list[int]()
    for _ in range(recipe.steps):
        size = min(recipe.traces, len(lengths))
        while len(order) < size:  # each trace once, then all again
            order += torch.randperm(len(lengths)).tolist()
        drawn, order = order[:size], order[size:]
        yield torch.cat([torch.arange(ends[n], ends[n + 1]) for n in drawn])


def fit(
    model: Any, traces: Sequence[TokenTrace], recipe: Recipe, folder: Path, facts: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    """Train a predictor, measure it on held-out traces, and write it, with `facts` on its card, to a folder."""
    if len(traces) < 10:
        raise UserError(
            f"{len(traces)} correct traces are too few to train a predictor; 10 are needed",
            hint="[[train]] on a smaller size",
        )
    torch.manual_seed(recipe.seed)
    examples = []
    for n, trace in enumerate(traces):
        examples.append(labelled(model, trace, recipe))
        if (n + 1) % 100 == 0:
            yield {"labelled": n + 1}
    test = examples[: max(2, int(recipe.test * len(examples)))]
    train = examples[len(test) :]
    hidden, wanted = torch.cat([t.hidden for t in train]), torch.cat([t.wanted for t in train])
    predictor = Predictor(hidden.shape[1])
    adam = torch.optim.AdamW(predictor.parameters(), lr=recipe.rate, betas=(0.9, 0.95), weight_decay=recipe.decay)
    warm = max(1, recipe.steps // 10)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        adam, lambda n: min((n + 1) / warm, 0.5 + 0.5 * math.cos(math.pi * max(0, n - warm) / (recipe.steps - warm)))
    )
    losses = []
    for step, drawn in enumerate(batches([len(t.wanted) for t in train], recipe)):
        adam.zero_grad()
        loss = 0.0
        for start in range(0, len(drawn), recipe.tokens):  # whole traces may be too many tokens at once
            part = drawn[start : start + recipe.tokens]
            part_loss = loss_of(predictor(hidden[part]), wanted[part], recipe) * len(part) / len(drawn)
            part_loss.backward()  # type: ignore[no-untyped-call]
            loss += part_loss.item()
        nn.utils.clip_grad_norm_(predictor.parameters(), 1.0)
        adam.step()
        schedule.step()
        losses.append(loss)
        if (step + 1) % 100 == 0:
            yield {"step": step + 1, "loss": round(float(np.mean(losses[-100:])), 4)}
    quality = measured(predictor, test)
    folder.mkdir(parents=True, exist_ok=True)
    save_file({name: t.half() for name, t in predictor.state_dict().items()}, folder / WEIGHTS)
    card = {
        **facts,
        "width": hidden.shape[1],
        "recipe": asdict(recipe),
        "traces": {"learnt": len(train), "tested": len(test)},
        **quality,
    }
    (folder / CARD).write_text(json.dumps(card, indent=1) + "\n", "utf-8")
    yield quality


@torch.no_grad()
def measured(predictor: Predictor, test: Sequence[Labelled], fraction: float = 0.2) -> dict[str, float]:
    """Spearman's rank correlation and the overlap of the most important tokens, averaged over held-out traces."""
    correlations, overlaps = [], []
    for trace in test:
        guess, true = predictor(trace.hidden).numpy(), trace.wanted.numpy()
        top = max(1, int(fraction * len(true)))
        overlaps.append(len(set(np.argsort(-guess)[:top]) & set(np.argsort(-true)[:top])) / top)
        ranks = [np.argsort(np.argsort(x)).astype(float) for x in (guess, true)]
        correlations.append(float(np.corrcoef(ranks[0], ranks[1])[0, 1]) if len(true) > 2 else 0.0)
    return {
        "rank_correlation": round(float(np.mean(correlations)), 4),
        f"top_{fraction:.0%}_overlap": round(float(np.mean(overlaps)), 4),
    }
