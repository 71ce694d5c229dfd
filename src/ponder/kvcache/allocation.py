"""Divides what is kept between layers and heads: not the same number for each, but as many together.

- `pyramid` (PyramidKV, Cai et al. 2024, arXiv 2406.02069): a number that falls linearly from first to last layer.
- `adakv` (Ada-KV, Feng et al. 2024, arXiv 2407.11550): the highest scores of a layer, whichever head they are in, and a
  minimum for each head. Scores of different heads are compared, so a policy's should be on one scale.

Unlike in the papers, protected tokens and the window are kept by all, and only the rest is divided.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

STEEPNESS = 20  # of the pyramid: its last layer keeps this fraction of the mean, one in twenty
MINIMUM = 0.2  # of the mean, for each head under `adakv`


def allotted(allocation: Literal["pyramid", "adakv"], scores: Tensor, kept: int) -> Tensor:
    """How many columns each layer, row and head keeps, if `kept` is the mean: layers × R × heads.

    Scores are layers × R × heads × columns, +inf for what must be kept and -inf for what is padding or empty.
    """
    certain, available = (scores == torch.inf).sum(-1), (scores > -torch.inf).sum(-1)
    if allocation == "adakv":
        return _by_score(scores, certain, kept)
    line = _line(len(scores), kept - int(certain.max()), int((available - certain)[0].min()))
    return torch.minimum(certain.max() + torch.tensor(line, device=scores.device)[:, None, None], available)


def _line(layers: int, mean: int, most: int) -> list[int]:
    """Numbers that fall linearly and have this mean; the first is at most `most`."""
    first = min(2 * mean - mean / STEEPNESS, max(most, mean))
    exact = [first + (2 * mean - 2 * first) * n / max(1, layers - 1) for n in range(layers)] if layers > 1 else [mean]
    whole = [int(x + 1e-9) for x in exact]
    over = layers * mean - sum(whole)  # lost by rounding down; the first layers get it, so that numbers still fall
    return [x + (n < over) for n, x in enumerate(whole)]


def _by_score(scores: Tensor, certain: Tensor, kept: int) -> Tensor:
    heads, n = scores.shape[2:]
    newest_first = scores.flip(-1)
    rank = newest_first.argsort(dim=-1, descending=True, stable=True).argsort(-1)
    least = certain + (MINIMUM * (kept - certain).clamp(min=0)).long()
    newest_first = newest_first.masked_fill((rank < least[..., None]) & (newest_first > -torch.inf), torch.inf)
    # Tokens side by side with the same tokens of other heads, so that equal scores don't favour the first head.
    together = newest_first.mT.flatten(2)
    best = together.sort(dim=-1, descending=True, stable=True).indices[..., : heads * kept]
    chosen = torch.zeros_like(together, dtype=torch.bool).scatter_(-1, best, True) & (together > -torch.inf)
    return chosen.view(*scores.shape[:2], n, heads).sum(2)
