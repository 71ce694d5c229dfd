"""Tells a cache about each forward pass of its model, and leaves nothing in the model behind.

A model has hooks as long as a `SelectCache` for it is alive. They act on forward passes with a `SelectCache` only, and
its attention is switched to one that reports queries for the time of such a pass.
"""

from __future__ import annotations

import inspect
import threading
import weakref
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn
from transformers.cache_utils import Cache

from ponder.core import UserError
from ponder.kvcache.attention import OBSERVED, PASS

UNFINISHED = "a forward pass with this cache raised an error or hasn't ended, so what it holds is incomplete"
_lock = threading.RLock()  # the collector may release a cache while this thread holds it
_attached: weakref.WeakKeyDictionary[nn.Module, Attached] = weakref.WeakKeyDictionary()


class SelectCacheBase(Cache):
    """What the hooks know of a `SelectCache`."""

    decoder: nn.Module
    observes: bool  # whether attention must report to this cache
    failed: str  # why the cache can't be used any more
    outer: dict[str, Any]  # what a multimodal model was given, around its decoder

    @abstractmethod
    def before_forward(self, shape: Sequence[int], mask: Tensor | None, position_ids: Tensor | None) -> Tensor | None:
        """Check a forward pass of rows × new tokens, and return the attention mask for it."""

    @abstractmethod
    def after_forward(self, ids: Tensor | None, hidden: Tensor) -> None:
        """Record the tokens of a forward pass, and prune if the budget is reached."""


class Hook:
    """Does nothing in a copy of the model, for which no cache was made."""

    def __init__(self, act: Callable[..., Any] = lambda *_: None) -> None:
        self.act = act

    def __call__(self, *args: Any) -> Any:
        return self.act(*args)

    def __reduce__(self) -> tuple[type[Hook], tuple[()]]:
        return Hook, ()


class Attached:
    """The hooks on a model's decoder, and its attention while passes are running."""

    def __init__(self, decoder: nn.Module, outer: nn.Module) -> None:
        self.caches = self.running = 0
        self.stock = ""
        self.configs = _configs(decoder)
        self.parameters = inspect.signature(decoder.forward).parameters
        self.handles = [
            decoder.register_forward_pre_hook(Hook(self.before), with_kwargs=True),
            decoder.register_forward_hook(Hook(self.after), with_kwargs=True, always_call=True),
        ]
        if outer is not decoder:
            self.outer_parameters = inspect.signature(outer.forward).parameters
            self.handles.append(outer.register_forward_pre_hook(Hook(self.around), with_kwargs=True))

    def around(self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A multimodal model turns ids into embeddings and masks into other masks before it calls its decoder."""
        given = dict(zip(self.outer_parameters, args, strict=False)) | kwargs
        if isinstance(cache := given.get("past_key_values"), SelectCacheBase):
            cache.outer = {name: given.get(name) for name in ("input_ids", "attention_mask")}

    def before(self, decoder: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        _end_pass()  # one that Ctrl-C ended, after which torch calls no hooks, or one that this is a part of
        given = self._given(args, kwargs)
        cache = given.get("past_key_values")
        if not isinstance(cache, SelectCacheBase):
            return None
        if cache.decoder is not decoder:
            raise UserError("this cache was made for another model", hint="make a SelectCache for this one")
        if given.get("encoder_hidden_states") is not None:
            raise UserError("a cache beside cross-attention can't be pruned", hint="use the model's own cache")
        tokens = given["inputs_embeds"] if given.get("input_ids") is None else given["input_ids"]
        mask = given.get("attention_mask")
        if mask is not None and not (isinstance(mask, Tensor) and mask.ndim == 2) and cache.outer:
            cache.before_forward(tokens.shape, cache.outer["attention_mask"], None)
        else:
            changed = cache.before_forward(tokens.shape, mask, given.get("position_ids"))
            if changed is not mask:
                args, kwargs = (), given | {"attention_mask": changed}
        if cache.observes:
            self.switch()
        PASS.cache, cache.failed = cache, UNFINISHED
        return args, kwargs

    def after(self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        given = self._given(args, kwargs)
        cache = given.get("past_key_values")
        if cache is None or cache is not PASS.cache:  # another cache, or `before` refused this one
            return
        _end_pass()
        ids, outer = given.get("input_ids"), cache.outer
        cache.outer = {}
        if output is not None:
            cache.after_forward(outer.get("input_ids") if ids is None else ids, output[0])
            cache.failed = ""

    def _given(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        return dict(zip(self.parameters, args, strict=False)) | kwargs

    def switch(self) -> None:
        with _lock:
            if not self.running:
                self.stock = own_attention(self.configs)
                for config in self.configs:
                    config._attn_implementation_internal = OBSERVED[self.stock]
            self.running += 1

    def restore(self) -> None:
        with _lock:
            self.running -= 1
            if not self.running:
                for config in self.configs:
                    config._attn_implementation_internal = self.stock


def _end_pass() -> None:
    cache, PASS.cache = PASS.cache, None
    if cache is not None and cache.observes:
        _attached[cache.decoder].restore()


def _configs(decoder: nn.Module) -> list[Any]:
    """The configuration objects that the decoder and its attention read their implementation from."""
    every = [decoder, *(module for module in decoder.modules() if hasattr(module, "layer_idx"))]
    return list({id(c): c for module in every if (c := getattr(module, "config", None)) is not None}.values())


def own_attention(configs: list[Any]) -> str:
    """The attention that a model is set to."""
    set_to = str(configs[0]._attn_implementation)
    # Another thread may be in a forward pass, for whose time it is switched.
    stock = next((own for own, observed in OBSERVED.items() if observed == set_to), set_to)
    if stock not in OBSERVED:
        what = f"a cache that evicts tokens works with the attention `sdpa` and `eager`, not with `{stock}`"
        raise UserError(what, hint='model.set_attn_implementation("sdpa")')
    return stock


def attach(cache: SelectCacheBase, outer: nn.Module) -> None:
    """Put hooks on a model's decoder, and on the model around it, that live as long as the cache."""
    decoder = cache.decoder
    with _lock:
        attached = _attached.get(decoder)
        if attached is None:
            attached = _attached[decoder] = Attached(decoder, outer)
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
