"""Texts as the mean of a causal language model's last states: an encoder for `similarity` that knows the language."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from ponder.rewards._windows import batches
from ponder.traces.alignment import Encoder, Floats


def mean_states(id: str, device: str = "cpu", batch: int = 8192) -> Encoder:  # noqa: A002 as in every [[model]]
    """An encoder from the weights in a folder or on the hub; texts longer than 512 tokens are cut."""

    def encode(texts: Sequence[str]) -> Floats:
        import torch

        model, tokenizer = _load(id, device)
        coded = tokenizer(list(texts), add_special_tokens=False)["input_ids"] if texts else []
        tokens = [row[:512] for row in coded]
        found = np.zeros((len(texts), model.config.hidden_size))
        for some in batches([len(row) for row in tokens], batch):
            longest = len(tokens[some[0]])
            rows = torch.zeros(len(some), longest, dtype=torch.long)
            for n, r in enumerate(some):
                rows[n, : len(tokens[r])] = torch.tensor(tokens[r], dtype=torch.long)
            there = torch.arange(longest) < torch.tensor([[len(tokens[r])] for r in some])
            if not longest:
                continue
            with torch.inference_mode():
                states = model(input_ids=rows.to(device), use_cache=False).last_hidden_state.float().cpu()
            sums = (states * there[..., None]).sum(1) / there.sum(1, keepdim=True).clamp(min=1)
            found[some] = sums.numpy()
        return found

    return encode


@cache
def _load(id: str, device: str) -> tuple[Any, Any]:  # noqa: A002 as above
    from transformers import AutoModel, AutoTokenizer

    return AutoModel.from_pretrained(id).to(device).eval(), AutoTokenizer.from_pretrained(id)
