"""How far a pruned cache's predictions drift from the full cache's, on a given text.

Between two prunings the cache only grows, so all tokens up to the next pruning go through the model in one pass, with
the same results as one at a time: measuring a policy costs about as much as reading the text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ponder.caches._cache import SelectCache
from ponder.caches.full import Full
from ponder.core import CacheBudget, Policy

CHUNK = 256  # tokens per forward pass if no pruning comes earlier


@dataclass(frozen=True)
class Drift:
    """The drift on one text."""

    kl: float  # mean per token, in nats: divergence of the pruned cache's next-token distribution from the full one's
    agrees: float  # fraction of tokens after which both predict the same most likely token
    tokens: int


@torch.no_grad()
def drift(model: Any, prompt: list[int], reply: list[int], policy: Policy, budget: CacheBudget) -> Drift:
    """Compare the full cache with one pruned by a policy, over the tokens of a reply."""
    ids = torch.tensor([prompt + reply], device=model.device)
    start = len(prompt)
    full = _log_probs(model, SelectCache(model, Full(), None), ids, start)
    pruned = _log_probs(model, SelectCache(model, policy, budget, prompt=start), ids, start)
    kl = (full.exp() * (full - pruned)).sum(-1)
    agrees = full.argmax(-1) == pruned.argmax(-1)
    return Drift(float(kl.mean()), float(agrees.float().mean()), len(reply))


def _log_probs(model: Any, cache: SelectCache, ids: Tensor, start: int) -> Tensor:
    """Next-token log-probabilities wherever the next token belongs to the reply, which begins at `start`."""
    parts, position = [], 0
    while position < ids.shape[1] - 1:
        end = start if position < start else min(position + tokens_until_pruning(cache), ids.shape[1] - 1)
        logits = model(ids[:, position:end], past_key_values=cache).logits[0]
        parts.append(logits[-1:] if position < start else logits)
        position = end
    return torch.cat(parts).float().log_softmax(-1)


def tokens_until_pruning(cache: SelectCache) -> int:
    """How many tokens one forward pass may add; the last of them may cause a pruning."""
    if cache.budget is None:
        return CHUNK
    due = cache.budget.budget if cache.budget.ratio is not None else cache.budget.budget + 1
    return min(CHUNK, max(1, due - cache.max_length))
