"""The network that predicts how much attention the answer will pay to a token, and its training.

As published: three linear layers (d → 2d → d/2 → 1) without bias, Softplus after each; mean squared
error on the thinking tokens of correct traces; AdamW at 5e-4 with warm-up and cosine decay; the
model itself is frozen. The published label is 10 · I^0.3 / 0.3 for one model and 10,000 · I for
another; here it is (I / mean of I)^0.3 for all, except in the recipe `published`, which has the
first of the two.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from torch import Tensor, nn

from ponder.core import TokenTrace, UserError
from ponder.policies.dynts import CARD, WEIGHTS
from ponder.policies.dynts.labels import importance


class Predictor(nn.Module):
    """Predicts a token's label from its last hidden state: (…, width) becomes (…)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        sizes = (width, 2 * width, width // 2, 1)
        self.maps = nn.ModuleList(
            nn.Linear(inputs, outputs, bias=False) for inputs, outputs in pairwise(sizes)
        )

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
    traces: int | None = None  # entire traces per step, instead of tokens
    absolute: bool = False  # label 10 · I^power / power instead of (I / mean of I)^power
    weight: float = 1.0  # of the loss where 4 ≤ label < 5


RECIPES = {"ponder": Recipe(), "published": Recipe(traces=256, absolute=True, weight=5.0)}


@dataclass(frozen=True)
class Example:
    """The thinking tokens of a trace, and what to predict for them."""

    hidden: Tensor  # (tokens, width): last hidden states
    labels: Tensor  # (tokens,)


def example(model: Any, trace: TokenTrace, recipe: Recipe) -> Example:
    """Return what a predictor learns from a trace."""
    ids = torch.tensor(trace.ids, device=model.device)
    paid, hidden = importance(model, ids, trace.answer)
    thinking = slice(trace.question, trace.answer)
    return Example(hidden[thinking].float().cpu(), labels(paid[thinking], recipe).cpu())


def labels(paid: Tensor, recipe: Recipe) -> Tensor:
    """Return the labels of a trace, from the attention I that the answer pays to each token."""
    if recipe.absolute:
        return 10 * paid**recipe.power / recipe.power
    return (paid / paid.mean().clamp(min=1e-12)) ** recipe.power


def loss_of(predicted: Tensor, target: Tensor, recipe: Recipe) -> Tensor:
    """Return the mean squared error, weighted where labels are from 4 to 5."""
    weights = torch.where((target >= 4) & (target < 5), recipe.weight, 1.0)
    return (weights * (predicted - target) ** 2).mean()


def batches(lengths: Sequence[int], recipe: Recipe) -> Iterator[Tensor]:
    """Yield the tokens that each step learns from, as indices into all traces end to end."""
    if recipe.traces is None:
        for _ in range(recipe.steps):
            yield torch.randint(sum(lengths), (recipe.tokens,))
        return
    starts = list(accumulate(lengths, initial=0))
    size = min(recipe.traces, len(lengths))
    order: list[int] = []
    for _ in range(recipe.steps):
        while len(order) < size:  # each trace once, then all again
            order += torch.randperm(len(lengths)).tolist()
        batch = order[:size]
        order = order[size:]
        yield torch.cat([torch.arange(starts[trace], starts[trace + 1]) for trace in batch])


def fit(
    model: Any, traces: Sequence[TokenTrace], recipe: Recipe, folder: Path, facts: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    """Train a predictor, measure it on held-out traces, and write it to a folder.

    `facts` go on its card.
    """
    if len(traces) < 10:
        raise UserError(
            f"{len(traces)} correct traces are too few to train a predictor; 10 are needed",
            hint="[[train]] on a smaller size",
        )
    torch.manual_seed(recipe.seed)
    examples = []
    for number, trace in enumerate(traces, 1):
        examples.append(example(model, trace, recipe))
        if number % 100 == 0:
            yield {"labelled": number}
    test = examples[: max(2, int(recipe.test * len(examples)))]
    train = examples[len(test) :]
    hidden = torch.cat([trace.hidden for trace in train])
    target = torch.cat([trace.labels for trace in train])
    predictor = Predictor(hidden.shape[1])
    optimizer = torch.optim.AdamW(
        predictor.parameters(), lr=recipe.rate, betas=(0.9, 0.95), weight_decay=recipe.decay
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, partial(_learning_rate, steps=recipe.steps)
    )

    losses = []
    lengths = [len(trace.labels) for trace in train]
    for step, batch in enumerate(batches(lengths, recipe), 1):
        optimizer.zero_grad()
        loss = 0.0
        for start in range(0, len(batch), recipe.tokens):  # traces may be too many at once
            tokens = batch[start : start + recipe.tokens]
            tokens_loss = (
                loss_of(predictor(hidden[tokens]), target[tokens], recipe)
                * len(tokens)
                / len(batch)
            )
            tokens_loss.backward()  # type: ignore[no-untyped-call]
            loss += tokens_loss.item()
        nn.utils.clip_grad_norm_(predictor.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss)
        if step % 100 == 0:
            yield {"step": step, "loss": round(float(np.mean(losses[-100:])), 4)}

    quality = measure(predictor, test)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(
        {name: weights.half() for name, weights in predictor.state_dict().items()}, folder / WEIGHTS
    )
    card = {
        **facts,
        "width": hidden.shape[1],
        "recipe": asdict(recipe),
        "traces": {"learnt": len(train), "tested": len(test)},
        **quality,
    }
    (folder / CARD).write_text(json.dumps(card, indent=1) + "\n", "utf-8")
    yield quality


def _learning_rate(step: int, steps: int) -> float:
    """Return the factor of the learning rate: linear warm-up, then cosine decay."""
    warmup = max(1, steps // 10)
    decayed = max(0, step - warmup) / (steps - warmup)
    return min((step + 1) / warmup, 0.5 + 0.5 * math.cos(math.pi * decayed))


@torch.no_grad()
def measure(
    predictor: Predictor, test: Sequence[Example], fraction: float = 0.2
) -> dict[str, float]:
    """Return the mean rank correlation and top-token overlap over held-out traces.

    The correlation is Spearman's; the overlap is that of the most important `fraction` of tokens.
    """
    correlations = []
    overlaps = []
    for trace in test:
        predicted = predictor(trace.hidden).numpy()
        target = trace.labels.numpy()
        top = max(1, int(fraction * len(target)))
        top_predicted = set(np.argsort(-predicted)[:top])
        top_target = set(np.argsort(-target)[:top])
        overlaps.append(len(top_predicted & top_target) / top)
        correlation = 0.0
        if len(target) > 2:
            correlation = float(np.corrcoef(_ranks(predicted), _ranks(target))[0, 1])
        correlations.append(correlation)
    return {
        "rank_correlation": round(float(np.mean(correlations)), 4),
        f"top_{fraction:.0%}_overlap": round(float(np.mean(overlaps)), 4),
    }


def _ranks(values: NDArray[np.float32]) -> NDArray[np.float64]:
    return np.argsort(np.argsort(values)).astype(float)
