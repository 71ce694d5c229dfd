"""Divides the KV cache between layers and heads: how many tokens each keeps, with a given mean.

- `pyramid` (PyramidKV, Cai et al. 2024, arXiv 2406.02069): the number of tokens falls linearly from
  the first to the last layer.
- `adakv` (Ada-KV, Feng et al. 2024, arXiv 2407.11550): a layer keeps its highest scores, whichever
  head they are in, and a minimum for each head. Scores of different heads are compared, so a
  policy's scores should be on one scale.

Unlike in the papers, every head keeps the protected tokens and the window, and only the remaining
tokens are divided. A column is the place of one cached token, as in `cache.py`.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

STEEPNESS = 20  # of the pyramid: its last layer keeps 1/20 of the mean
MINIMUM = 0.2  # fraction of the mean that each head keeps at least under `adakv`


def columns_per_head(allocation: Literal["pyramid", "adakv"], scores: Tensor, mean: int) -> Tensor:
    """Return how many columns each head keeps, (layers, rows, heads).

    `mean` is the average over heads, protected columns included. `scores` are (layers,
    rows, heads, columns): +inf for protected columns and the window, -inf for padding and empty
    columns.
    """
    if allocation == "adakv":
        return _adakv(scores, mean)
    return _pyramid(scores, mean)


def _pyramid(scores: Tensor, mean: int) -> Tensor:
    layers = len(scores)
    available = (scores > -torch.inf).sum(-1)
    protected = (scores == torch.inf).sum(-1)
    most_protected = protected.max()
    largest = int((available - protected)[0].min())
    by_layer = falling_linearly(layers, mean - int(most_protected), largest)
    counts = most_protected + torch.tensor(by_layer, device=scores.device)[:, None, None]
    return torch.minimum(counts, available)


def falling_linearly(layers: int, mean: int, largest: int) -> list[int]:
    """Return how many columns each layer keeps, falling linearly, `mean` on average.

    The first layer keeps at most `largest`. Without that bound, the numbers fall from
    (2 - 1/STEEPNESS) · mean to mean/STEEPNESS.
    """
    if layers == 1:
        return [mean]
    first = min(2 * mean - mean / STEEPNESS, max(largest, mean))
    last_minus_first = 2 * mean - 2 * first
    numbers = []
    for layer in range(layers):
        exact = first + last_minus_first * layer / (layers - 1)
        numbers.append(int(exact + 1e-9))
    # The first layers get what rounding down lost, so that the numbers still fall.
    lost = layers * mean - sum(numbers)
    for layer in range(min(lost, layers)):
        numbers[layer] += 1
    return numbers


def _adakv(scores: Tensor, mean: int) -> Tensor:
    layers, rows, heads, columns = scores.shape
    protected = (scores == torch.inf).sum(-1)
    # Newest first, so that a stable sort keeps the newest of equal scores.
    scores = scores.flip(-1)
    # A head's minimum is protected like the tokens that are never evicted.
    minimum = protected + (MINIMUM * (mean - protected).clamp(min=0)).long()
    rank = scores.argsort(dim=-1, descending=True, stable=True).argsort(-1)
    in_minimum = (rank < minimum[..., None]) & (scores > -torch.inf)
    scores = scores.masked_fill(in_minimum, torch.inf)
    # The same token of all heads side by side, so that equal scores don't favour the first head.
    across_heads = scores.mT.flatten(2)  # (layers, rows, columns * heads)
    best = across_heads.sort(dim=-1, descending=True, stable=True).indices[..., : heads * mean]
    kept = torch.zeros_like(across_heads, dtype=torch.bool).scatter_(-1, best, True)
    kept &= across_heads > -torch.inf
    return kept.view(layers, rows, columns, heads).sum(2)
