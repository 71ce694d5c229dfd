"""Tells a cache about each forward pass of its model, and leaves nothing in the model behind.

A model has hooks as long as a `SelectCache` for it is alive. They act on forward passes with a `SelectCache` only, and
its attention is switched to one that reports queries for the time of such a pass.
"""

from __future__ import annotations

import inspect
import threading
import weakref
from typing import TYPE_CHECKING, Any

from torch import nn

from ponder.caches._attention import OBSERVED, PASS
from ponder.core import UserError

if TYPE_CHECKING:
    from ponder.caches._cache import SelectCache

_lock = threading.RLock()  # the collector may release a cache while this thread holds it
_attached: weakref.WeakKeyDictionary[nn.Module, Attached] = weakref.WeakKeyDictionary()


class Attached:
    """The hooks on a model's decoder, and its attention while passes are running."""

    def __init__(self, decoder: nn.Module) -> None:
        self.caches = self.running = 0
        self.stock = ""
        self.configs = _configs(decoder)
        self.parameters = inspect.signature(decoder.forward).parameters
        self.handles = (
            decoder.register_forward_pre_hook(self.before, with_kwargs=True),
            decoder.register_forward_hook(self.after, with_kwargs=True, always_call=True),
        )

    def before(self, decoder: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given = self._given(args, kwargs)
        cache = given.get("past_key_values")
        if not hasattr(cache, "before_forward"):
            return None
        if cache.decoder is not decoder:
            raise UserError("this cache was made for another model", hint="make a SelectCache for this one")
        ids, states = given.get("input_ids"), given.get("inputs_embeds")
        shape = ids.shape[:2] if ids is not None else states.shape[:2]
        mask = cache.before_forward(tuple(shape), given.get("attention_mask"), given.get("position_ids"))
        if mask is not given.get("attention_mask"):
            given["attention_mask"] = mask
            args, kwargs = (), given
        if cache.observes:
            self._switch()
        PASS.cache = cache
        return args, kwargs

    def after(self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        given = self._given(args, kwargs)
        cache = given.get("past_key_values")
        if cache is None or cache is not PASS.cache:  # another cache, or `before` refused this one
            return
        PASS.cache = None
        if cache.observes:
            self._restore()
        if output is None:
            cache.failed = "a forward pass with this cache raised an error, so what it holds is incomplete"
        else:
            cache.after_forward(given.get("input_ids"), output[0])

    def _given(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        return dict(zip(self.parameters, args, strict=False)) | kwargs

    def _switch(self) -> None:
        with _lock:
            if not self.running:
                self.stock = own_attention(self.configs)
                for config in self.configs:
                    config._attn_implementation_internal = OBSERVED[self.stock]
            self.running += 1

    def _restore(self) -> None:
        with _lock:
            self.running -= 1
            if not self.running:
                for config in self.configs:
                    config._attn_implementation_internal = self.stock


def _configs(decoder: nn.Module) -> list[Any]:
    """The configuration objects that the decoder and its attention read their implementation from."""
    every = [decoder, *(module for module in decoder.modules() if hasattr(module, "layer_idx"))]
    return list({id(c): c for module in every if (c := getattr(module, "config", None)) is not None}.values())


def own_attention(configs: list[Any]) -> str:
    """The attention that a model is set to."""
    stock = str(configs[0]._attn_implementation)
    if stock not in OBSERVED:
        what = f"a cache that evicts tokens works with the attention `sdpa` and `eager`, not with `{stock}`"
        raise UserError(what, hint='model.set_attn_implementation("sdpa")')
    return stock


def attach(cache: SelectCache, decoder: nn.Module) -> None:
    """Put hooks on a model that live as long as the cache."""
    with _lock:
        attached = _attached.get(decoder)
        if attached is None:
            attached = _attached[decoder] = Attached(decoder)
        attached.caches += 1
    weakref.finalize(cache, _release, weakref.ref(decoder))


def _release(reference: weakref.ref[nn.Module]) -> None:
    decoder = reference()
    if decoder is None:
        return
    with _lock:
        attached = _attached[decoder]
        attached.caches -= 1
        if not attached.caches:
            for handle in attached.handles:
                handle.remove()
            del _attached[decoder]
