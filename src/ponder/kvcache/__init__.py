"""A KV cache for transformers models that evicts the tokens with the lowest scores.

    from ponder.kvcache import CacheBudget, SelectCache
    from ponder.policies.snapkv import Snapkv

    cache = SelectCache(model, Snapkv(), CacheBudget(budget=1024, window=256, ratio=0.3))
    model.generate(**inputs, past_key_values=cache)

It is pruned whenever it reaches its budget. It works inside `generate()`, in batches, with left
padding. Four ideas:

- A token's position (how many tokens came before it) and its column in the buffer are separate.
  Keys keep the rotary embedding of their position; eviction only moves columns.
- All rows of a batch lose equally many columns, padding first. The padding that remains in a row is
  then the model's own attention mask, shifted by the number of evicted columns, so the mask needs
  no change.
- The cache decides which tokens are never evicted (sinks, question, answer, the recent window); a
  policy only scores.
- All layers and heads have equally many columns. Where a budget is divided between them
  (`allocation`), some of the columns are empty: attention doesn't see them, policies see them as
  padding, and they don't count as tokens.

Begin with `cache.py`, which describes a decoding step. `layer.py` has the buffers, `attention.py`
and `hooks.py` connect them to the model, `view.py` is what policies see, `slots.py` is the cache
for continuous batching, and `fidelity.py` measures what eviction changes.
"""

from __future__ import annotations

from ponder.core import CacheBudget
from ponder.kvcache.cache import SelectCache
from ponder.kvcache.exactness import Exactness, exactness
from ponder.kvcache.fidelity import (
    Drift,
    FidelityRow,
    FidelityTable,
    drift,
    fidelity,
)
from ponder.kvcache.layer import Layer
from ponder.kvcache.slots import SlotCache
from ponder.kvcache.view import CacheView

__all__ = [
    "CacheBudget",
    "CacheView",
    "Drift",
    "Exactness",
    "FidelityRow",
    "FidelityTable",
    "Layer",
    "SelectCache",
    "SlotCache",
    "drift",
    "exactness",
    "fidelity",
]
