"""Frees GPU memory that this process holds and doesn't use: cached weights and idle vLLM servers.

A GPU mostly has room for only one of these: weights that answer, a training, a vLLM server. So each
of them frees what the others left behind before it takes memory for itself.
"""

from __future__ import annotations

import gc
import sys


def stop_servers(device: str, *, kept_open: bool = False) -> None:
    """Stop vLLM servers that nobody uses, before weights go onto a device.

    Those that are kept open are stopped only if `kept_open` says so.
    """
    pool = sys.modules.get("ponder.models.vllm.pool")
    if device != "cpu" and pool:  # not imported: there are none
        pool.stop_unused(kept_open=kept_open)


def drop_cached_weights() -> None:
    """Drop weights on GPUs that are kept for the next caller."""
    torch = sys.modules.get("torch")
    engine = sys.modules.get("ponder.models._torch_engine")
    if torch and engine and torch.cuda.is_available():
        engine.load.cache_clear()
        gc.collect()  # a network may be part of a cycle
        torch.cuda.empty_cache()


def make_room(device: str) -> None:
    """Free whatever can be freed, before a training starts on a device."""
    stop_servers(device, kept_open=True)
    if device != "cpu":
        drop_cached_weights()
