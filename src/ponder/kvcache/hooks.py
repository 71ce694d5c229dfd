"""Reports each forward pass of a model to its cache, and leaves nothing behind in the model.

A model has hooks as long as a `SelectCache` for it is alive. They act only on forward passes with a
`SelectCache`; for the time of such a pass, the model's attention is switched to one that reports to
the cache.
"""

from __future__ import annotations

import inspect
import threading
import weakref
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from torch import Tensor, nn
from transformers.cache_utils import Cache

from ponder.core import UserError
from ponder.kvcache.attention import OBSERVED, PASS

UNFINISHED = (
    "a forward pass with this cache raised an error or hasn't ended, so what it holds is incomplete"
)


class SelectCacheBase(Cache):
    """The interface through which the hooks use a `SelectCache`."""

    decoder: nn.Module
    observes: bool  # whether attention must report to this cache
    failed: str  # why the cache can't be used any more
    outer_inputs: dict[str, Any]  # what a multimodal model around the decoder was called with

    @abstractmethod
    def before_forward(
        self, shape: Sequence[int], mask: Tensor | None, position_ids: Tensor | None
    ) -> Tensor | None:
        """Check a forward pass of (rows, new) tokens, and return the attention mask for it."""

    @abstractmethod
    def after_forward(self, ids: Tensor | None, hidden: Tensor) -> None:
        """Record the tokens of a forward pass, and prune if the budget is reached.

        `ids` are (rows, new), `hidden` the decoder's last hidden states, (rows, new, width).
        """


class Hook:
    """A hook that does nothing in a copy of the model, for which no cache was made."""

    def __init__(self, act: Callable[..., Any] = lambda *_: None) -> None:
        self.act = act

    def __call__(self, *args: Any) -> Any:
        return self.act(*args)

    def __reduce__(self) -> tuple[type[Hook], tuple[()]]:
        return Hook, ()


class ModelHooks:
    """The hooks on a model's decoder; they switch its attention while a pass runs."""

    def __init__(self, decoder: nn.Module, outer: nn.Module) -> None:
        self.caches = 0  # that are alive
        self.running = 0  # forward passes with an observing cache
        self.stock = ""  # the attention that the model is set to, while a pass runs
        self.configs = _configs(decoder)
        self.parameters = inspect.signature(decoder.forward).parameters
        self.handles = [
            decoder.register_forward_pre_hook(Hook(self.before), with_kwargs=True),
            decoder.register_forward_hook(Hook(self.after), with_kwargs=True, always_call=True),
        ]
        if outer is not decoder:
            self.outer_parameters = inspect.signature(outer.forward).parameters
            self.handles.append(
                outer.register_forward_pre_hook(Hook(self.before_outer), with_kwargs=True)
            )

    def before_outer(self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Store the ids and the mask of a multimodal model, which its decoder doesn't get."""
        arguments = _by_name(self.outer_parameters, args, kwargs)
        cache = arguments.get("past_key_values")
        if isinstance(cache, SelectCacheBase):
            cache.outer_inputs = {
                "input_ids": arguments.get("input_ids"),
                "attention_mask": arguments.get("attention_mask"),
            }

    def before(self, decoder: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Let the cache check a forward pass and change its mask, and switch the attention."""
        # End a pass that Ctrl-C interrupted (torch calls no hooks then), or that this is nested in.
        _end_pass()
        arguments = _by_name(self.parameters, args, kwargs)
        cache = arguments.get("past_key_values")
        if not isinstance(cache, SelectCacheBase):
            return None
        if cache.decoder is not decoder:
            raise UserError(
                "this cache was made for another model", hint="make a SelectCache for this one"
            )
        if arguments.get("encoder_hidden_states") is not None:
            raise UserError(
                "a cache beside cross-attention can't be pruned", hint="use the model's own cache"
            )
        tokens = arguments.get("input_ids")
        if tokens is None:
            tokens = arguments["inputs_embeds"]
        mask = arguments.get("attention_mask")
        two_dimensional = isinstance(mask, Tensor) and mask.ndim == 2
        if mask is None or two_dimensional or not cache.outer_inputs:
            changed_mask = cache.before_forward(tokens.shape, mask, arguments.get("position_ids"))
            if changed_mask is not mask:
                args = ()
                kwargs = arguments | {"attention_mask": changed_mask}
        else:
            cache.before_forward(tokens.shape, cache.outer_inputs["attention_mask"], None)
        if cache.observes:
            self._switch_attention()
        PASS.cache = cache
        cache.failed = UNFINISHED
        return args, kwargs

    def after(
        self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> None:
        """Let the cache record a forward pass; `output` is None if it raised an error."""
        arguments = _by_name(self.parameters, args, kwargs)
        cache = arguments.get("past_key_values")
        if cache is None or cache is not PASS.cache:  # another cache, or `before` refused this one
            return
        _end_pass()
        ids = arguments.get("input_ids")
        if ids is None:
            ids = cache.outer_inputs.get("input_ids")
        cache.outer_inputs = {}
        if output is not None:
            cache.after_forward(ids, output[0])
            cache.failed = ""

    def _switch_attention(self) -> None:
        with _lock:
            if not self.running:
                self.stock = stock_attention(self.configs[0])
                for config in self.configs:
                    config._attn_implementation_internal = OBSERVED[self.stock]
            self.running += 1

    def restore_attention(self) -> None:
        with _lock:
            self.running -= 1
            if not self.running:
                for config in self.configs:
                    config._attn_implementation_internal = self.stock


_lock = threading.RLock()  # the collector may release a cache while this thread holds it
_hooks: weakref.WeakKeyDictionary[nn.Module, ModelHooks] = weakref.WeakKeyDictionary()  # by decoder


def attach(cache: SelectCacheBase, outer: nn.Module) -> None:
    """Put hooks on a decoder, and on the model around it, that live as long as the cache."""
    decoder = cache.decoder
    with _lock:
        if decoder not in _hooks:
            _hooks[decoder] = ModelHooks(decoder, outer)
        _hooks[decoder].caches += 1
    weakref.finalize(cache, _release, weakref.ref(decoder))


def _release(reference: weakref.ref[nn.Module]) -> None:
    """Remove the hooks of a decoder if this was its last cache."""
    decoder = reference()
    if decoder is None:
        return
    with _lock:
        hooks = _hooks[decoder]
        hooks.caches -= 1
        if not hooks.caches:
            for handle in hooks.handles:
                handle.remove()
            del _hooks[decoder]


def _end_pass() -> None:
    """End the forward pass that this thread is in, if any."""
    cache = PASS.cache
    PASS.cache = None
    if cache is not None and cache.observes:
        _hooks[cache.decoder].restore_attention()


def stock_attention(config: Any) -> str:
    """Return the attention that a model is set to: "sdpa" or "eager"."""
    implementation = str(config._attn_implementation)
    for stock, observed in OBSERVED.items():
        # Another thread may be in a forward pass, for whose time the attention is switched.
        if implementation in (stock, observed):
            return stock
    raise UserError(
        "a cache that evicts tokens works with the attention `sdpa` and `eager`, not with"
        f" `{implementation}`",
        hint='model.set_attn_implementation("sdpa")',
    )


def _configs(decoder: nn.Module) -> list[Any]:
    """Return the configurations that name the attention of the decoder and its layers."""
    configs: dict[int, Any] = {}
    for module in decoder.modules():
        config = getattr(module, "config", None)
        if config is not None and (module is decoder or hasattr(module, "layer_idx")):
            configs[id(config)] = config
    return list(configs.values())


def _by_name(
    parameters: Iterable[str], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Any]:
    """Return the arguments of a call by the names of their parameters."""
    return dict(zip(parameters, args, strict=False)) | kwargs
