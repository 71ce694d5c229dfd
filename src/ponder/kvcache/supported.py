"""Which models a cache can be pruned for, and which of their layers."""

from __future__ import annotations

import inspect
import math
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

OWN = "use the model's own cache"
SHORT = "original_max_position_embeddings"


def decoder_of(model: Any) -> tuple[nn.Module, nn.Module]:
    """The part of a model that reads tokens with a cache, and the model around it that is given the attention mask."""
    if not isinstance(model, PreTrainedModel):  # PEFT's or a compiled one: calls of either reach the hooks
        hint = "make the cache for the transformers model that it wraps, if it wraps one, and call either"
        raise UserError(f"{type(model).__name__} isn't a transformers model that generates text", hint=hint)
    if getattr(model.config, "is_encoder_decoder", False):
        raise UserError("the cache of an encoder-decoder model can't be pruned", hint=OWN)
    if getattr(model.config, "is_decoder", True) is False:
        raise UserError("this model is an encoder, which attends in both directions", hint="config.is_decoder = True")
    text = model.config.get_text_config(decoder=True)
    if getattr(text, "use_bidirectional_attention", None) in (True, "all"):
        raise UserError("this model attends in both directions, so what it cached would change with every token")
    if text.model_type in ("phi3", "phimoe") and getattr(text, SHORT, math.inf) < text.max_position_embeddings:
        what = f"`generate` of this model drops its cache when the text has more than {getattr(text, SHORT)} tokens"
        raise UserError(what, hint=OWN)
    if "past_key_values" not in inspect.signature(model.forward).parameters:
        raise UserError(f"{type(model).__name__} has no KV cache")
    decoder: nn.Module = model.get_decoder()  # type: ignore[no-untyped-call]
    if not _reads_with_cache(decoder):
        decoder = model.base_model  # ModernBERT names its last linear layer as its decoder
    while inner := [part for part in decoder.modules() if part is not decoder and _reads_with_cache(part)]:
        decoder = inner[0]  # Llama 4 names its language model as its decoder
    return decoder, model.base_model


def _reads_with_cache(module: nn.Module) -> bool:
    return isinstance(module, PreTrainedModel) and "past_key_values" in inspect.signature(module.forward).parameters


def check_tested(model: Any) -> None:
    """Raise `UserError` for an architecture on which nobody has measured whether a pruned cache is exact."""
    if Version(transformers.__version__).release[:2] != Version(TRANSFORMERS).release[:2]:
        what = (
            f"transformers {transformers.__version__} is installed, and pruned caches were tested with {TRANSFORMERS}"
        )
        raise UserError(what, hint=f"pip install 'transformers=={TRANSFORMERS}', or untested=True")
    # The text model in a multimodal one may be any, and those that are known only as such a part are tested in it.
    own, inner = (str(c.model_type) for c in (model.config, model.config.get_text_config(decoder=True)))
    kind = inner if own in EXACT and inner in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES else own
    if kind not in EXACT:
        what = f"a pruned cache wasn't found exact on the architecture `{kind}` with transformers {TRANSFORMERS}"
        raise UserError(what, hint="`ponder.kvcache.exactness` measures it; untested=True uses it anyway")


def reveals_attention(decoder: nn.Module) -> bool:
    """Whether a model's attention is called through transformers' interface, so that it can be observed."""
    files = {sys.modules[type(m).__module__] for m in decoder.modules() if hasattr(m, "layer_idx")}
    return any(hasattr(f, "ALL_ATTENTION_FUNCTIONS") and hasattr(f, "eager_attention_forward") for f in files)


def restarts(decoder: Any) -> bool:
    """Whether recurrent layers start anew in every pass of several tokens, as they do with transformers' own cache."""
    return str(decoder.config.model_type) == "jamba"


def layers_of(decoder: Any, new: Callable[[int], Any]) -> list[Any]:
    """The layers of a cache: `new` ones for full attention, transformers' own for sliding windows and recurrences."""
    config = decoder.config.get_text_config(decoder=True)
    if config.model_type in ("bloom", "mpt") or getattr(config, "alibi", False):
        raise UserError("the attention of this model depends on columns (ALiBi), so none can be evicted", hint=OWN)
    stock = DynamicCache(config=config).layers
    growing = [isinstance(layer, CacheLayerMixin) and not getattr(layer, "is_sliding", False) for layer in stock]
    sliding = sum(isinstance(layer, CacheLayerMixin) for layer in stock) - sum(growing)
    for layer, grows in zip(stock, growing, strict=True):
        if grows and type(layer) is not DynamicLayer:
            raise UserError(f"layers with a {type(layer).__name__} as their cache can't be pruned", hint=OWN)
    if not any(growing):
        raise UserError("no layer of this model has a cache that grows: sliding windows, or none at all", hint=OWN)
    if sliding:
        what = f"{sliding} of {len(stock)} layers have a sliding window; only {sum(growing)} are pruned"
        warnings.warn(what, stacklevel=4)
    return [new(n) if grows else layer for n, (grows, layer) in enumerate(zip(growing, stock, strict=True))]
