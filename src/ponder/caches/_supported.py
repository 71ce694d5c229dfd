"""Which models a cache can be pruned for, and which of their layers."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from torch import nn
from transformers import DynamicCache
from transformers.cache_utils import CacheLayerMixin, DynamicLayer

from ponder.core import UserError

OWN = "use the model's own cache"


def decoder_of(model: Any) -> nn.Module:
    """The part of a model that reads tokens with a cache."""
    if not hasattr(model, "get_decoder"):
        raise UserError(f"{type(model).__name__} isn't a transformers model that generates text")
    decoder: nn.Module = model.get_decoder()
    if getattr(model.config, "is_encoder_decoder", False):
        raise UserError("the cache of an encoder-decoder model can't be pruned", hint=OWN)
    return decoder


def layers_of(decoder: Any, new: Callable[[int], Any], *, untested: bool) -> list[Any]:
    """The layers of a cache: `new` ones for full attention, transformers' own for any other kind."""
    config = decoder.config.get_text_config(decoder=True)
    stock = DynamicCache(config=config).layers
    pruned = [type(layer) is DynamicLayer for layer in stock]
    bounded = sum(isinstance(layer, CacheLayerMixin) for layer in stock) - sum(pruned)
    if not any(pruned):
        raise UserError("no layer of this model has a cache that grows: sliding windows, or none at all", hint=OWN)
    if bounded:
        what = f"{bounded} of {len(stock)} layers have a sliding window; only {sum(pruned)} are pruned"
        warnings.warn(what, stacklevel=4)
    return [new(n) if prune else layer for n, (prune, layer) in enumerate(zip(pruned, stock, strict=True))]
