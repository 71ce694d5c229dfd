"""How far a cache that forgets drifts from the full one, on a text that both are given.

Between two cuts the cache is fixed, so all tokens up to the next cut go through the model at once, with the very
numbers that one at a time would give: a policy is measured at the price of reading the text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ponder.caches._cache import SelectCache
from ponder.caches.full import Full
from ponder.core import CacheBudget, Policy

CHUNK = 256  # tokens read at once where no cut is near


@dataclass(frozen=True)
class Drift:
    """Of one text."""

    kl: float  # nats a token, of the forgetting model's next-token distribution from the full one's
    agrees: float  # share of tokens whose likeliest successor is the same
    tokens: int


@torch.no_grad()
def drift(model: Any, prompt: list[int], said: list[int], policy: Policy, keep: CacheBudget) -> Drift:
    """Between the full cache and one under a policy, over what was said after a prompt."""
    ids = torch.tensor([prompt + said], device=model.device)
    start = len(prompt)
    full = _read(model, SelectCache(model, Full(), None), ids, start)
    ours = _read(model, SelectCache(model, policy, keep), ids, start)
    kl = (full.exp() * (full - ours)).sum(-1)
    agrees = full.argmax(-1) == ours.argmax(-1)
    return Drift(float(kl.mean()), float(agrees.float().mean()), len(said))


def _read(model: Any, cache: SelectCache, ids: Tensor, start: int) -> Tensor:
    """Log-probabilities at each place whose successor was said."""
    found, place = [], 0
    while place < ids.shape[1] - 1:
        end = start if place < start else min(place + room(cache), ids.shape[1] - 1)
        logits = model(ids[:, place:end], past_key_values=cache).logits[0]
        found.append(logits[-1:] if place < start else logits)
        place = end
    return torch.cat(found).float().log_softmax(-1)


def room(cache: SelectCache) -> int:
    """How many tokens may come before the next cut."""
    if cache.keep is None:
        return CHUNK
    due = cache.keep.budget if cache.keep.ratio is not None else cache.keep.budget + 1
    return min(CHUNK, max(1, due - cache.longest))
