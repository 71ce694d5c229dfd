"""Which models a cache can be pruned for, and which of their layers."""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Callable
from typing import Any

import transformers
from packaging.version import Version
from torch import nn
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import CacheLayerMixin, DynamicLayer
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from ponder.core import UserError
from ponder.kvcache.tested_architectures import EXACT, TRANSFORMERS

STOCK_CACHE = "use the model's own cache"


def decoder_of(model: Any) -> tuple[nn.Module, nn.Module]:
    """Return the module that reads tokens with a cache, and the one around it that gets the mask.

    Raise `UserError` if the model's cache can't be pruned.
    """
    if not isinstance(model, PreTrainedModel):  # such as PEFT's or a compiled model
        raise UserError(
            f"{type(model).__name__} isn't a transformers model that generates text",
            hint=(
                "make the cache for the transformers model that it wraps, if it wraps one, and"
                " call either"
            ),
        )
    if getattr(model.config, "is_encoder_decoder", False):
        raise UserError("the cache of an encoder-decoder model can't be pruned", hint=STOCK_CACHE)
    if getattr(model.config, "is_decoder", True) is False:
        raise UserError(
            "this model is an encoder, which attends in both directions",
            hint="config.is_decoder = True",
        )
    config = model.config.get_text_config(decoder=True)
    if getattr(config, "use_bidirectional_attention", None) in (True, "all"):
        raise UserError(
            "this model attends in both directions, so what it cached would change with every token"
        )
    if config.model_type in ("phi3", "phimoe"):
        short_context = getattr(
            config, "original_max_position_embeddings", config.max_position_embeddings
        )
        if short_context < config.max_position_embeddings:
            raise UserError(
                "`generate` of this model drops its cache when the text has more than"
                f" {short_context} tokens",
                hint=STOCK_CACHE,
            )
    if "past_key_values" not in inspect.signature(model.forward).parameters:
        raise UserError(f"{type(model).__name__} has no KV cache")

    decoder: nn.Module = model.get_decoder()  # type: ignore[no-untyped-call]
    if not _reads_with_cache(decoder):
        decoder = model.base_model  # ModernBERT names its last linear layer as its decoder
    inner = _inner_decoder(decoder)
    while inner is not None:  # Llama 4 names its language model as its decoder
        decoder = inner
        inner = _inner_decoder(decoder)
    return decoder, model.base_model


def _inner_decoder(decoder: nn.Module) -> nn.Module | None:
    """Return the first module inside a decoder that reads tokens with a cache, if any."""
    for module in decoder.modules():
        if module is not decoder and _reads_with_cache(module):
            return module
    return None


def _reads_with_cache(module: nn.Module) -> bool:
    return (
        isinstance(module, PreTrainedModel)
        and "past_key_values" in inspect.signature(module.forward).parameters
    )


def check_tested(model: Any) -> None:
    """Raise `UserError` for an architecture on which pruned caches weren't found exact."""
    if Version(transformers.__version__).release[:2] != Version(TRANSFORMERS).release[:2]:
        raise UserError(
            f"transformers {transformers.__version__} is installed, and pruned caches were"
            f" tested with {TRANSFORMERS}",
            hint=f"pip install 'transformers=={TRANSFORMERS}', or untested=True",
        )
    architecture = str(model.config.model_type)
    text_architecture = str(model.config.get_text_config(decoder=True).model_type)
    # A multimodal model may contain any text model. One that only exists in it is tested with it.
    if architecture in EXACT and text_architecture in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        architecture = text_architecture
    if architecture not in EXACT:
        raise UserError(
            f"a pruned cache wasn't found exact on the architecture `{architecture}` with"
            f" transformers {TRANSFORMERS}",
            hint="`ponder.kvcache.exactness` measures it; untested=True uses it anyway",
        )


def reveals_attention(decoder: nn.Module) -> bool:
    """Return whether a model calls its attention through transformers' interface.

    Only then can the attention be observed.
    """
    for module in decoder.modules():
        if hasattr(module, "layer_idx"):
            file = sys.modules[type(module).__module__]
            if hasattr(file, "ALL_ATTENTION_FUNCTIONS") and hasattr(
                file, "eager_attention_forward"
            ):
                return True
    return False


def restarts(decoder: Any) -> bool:
    """Return whether recurrent layers restart in every pass of several tokens.

    They do so with transformers' own cache too.
    """
    return str(decoder.config.model_type) == "jamba"


def cache_layers(decoder: Any, new_layer: Callable[[int], Any]) -> list[Any]:
    """Return a cache's layers: new ones for full attention, transformers' for all others.

    The others are sliding windows and recurrences, which don't grow.
    """
    config = decoder.config.get_text_config(decoder=True)
    if config.model_type in ("bloom", "mpt") or getattr(config, "alibi", False):
        raise UserError(
            "the attention of this model depends on columns (ALiBi), so none can be evicted",
            hint=STOCK_CACHE,
        )
    layers: list[Any] = list(DynamicCache(config=config).layers)
    pruned = 0
    sliding = 0
    for index, layer in enumerate(layers):
        if not isinstance(layer, CacheLayerMixin):
            continue
        if getattr(layer, "is_sliding", False):
            sliding += 1
        elif type(layer) is DynamicLayer:
            pruned += 1
            layers[index] = new_layer(index)
        else:
            raise UserError(
                f"layers with a {type(layer).__name__} as their cache can't be pruned",
                hint=STOCK_CACHE,
            )
    if not pruned:
        raise UserError(
            "no layer of this model has a cache that grows: sliding windows, or none at all",
            hint=STOCK_CACHE,
        )
    if sliding:
        warnings.warn(
            f"{sliding} of {len(layers)} layers have a sliding window; only {pruned} are pruned",
            stacklevel=4,
        )
    return layers
