"""KV caches that forget: hold the cache of a transformers model at a budget by evicting what matters least.

    from ponder.caches import CacheBudget, SelectCache
    from ponder.caches.snapkv import Snapkv

    cache = SelectCache(model, Snapkv(), CacheBudget(budget=1024, window=256, ratio=0.3))
    model.generate(**inputs, past_key_values=cache)

It works inside `generate()` today, in batches, under left padding. Three ideas:

- A token's logical place (how many came before it) and its physical one (its column in the buffer) are two numbers.
  Keys keep the rotation of their logical place; what leaves only moves columns.
- Every row of a batch loses equally many columns, its padding first. Then the padding that is left of a row is what
  the model's own mask says it is, shifted by the number that left, and no mask need be changed.
- What may not leave (sinks, question, answer, the local window) is the engine's affair; a policy only gives scores.
"""

from __future__ import annotations

from ponder.caches._cache import CacheView, Layer, SelectCache, SlotCache
from ponder.caches._fidelity import Drift, drift
from ponder.core import CacheBudget

__all__ = ["Drift", "CacheBudget", "Layer", "CacheView", "SelectCache", "SlotCache", "drift"]
