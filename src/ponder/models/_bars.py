"""Turns off the progress bars of other libraries, which would be drawn over Ponder's own."""

from __future__ import annotations


def no_bars() -> None:
    """No bars while transformers loads weights or the hub sends them."""
    from transformers import modeling_gguf_pytorch_utils as gguf
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    # For GGUF files it takes tqdm's own class, whose bars can't be turned off.
    gguf.tqdm = logging.tqdm  # type: ignore[attr-defined]
