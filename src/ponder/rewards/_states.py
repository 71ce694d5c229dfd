"""Encodes texts as the mean of a language model's last hidden states, for
`ponder.traces.similarity`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from ponder.models._local_weights import no_bars
from ponder.rewards._windows import batches
from ponder.traces.alignment import Encoder, Floats


def mean_states(id: str, device: str = "cpu", batch: int = 8192) -> Encoder:  # noqa: A002 the name in every [[model]]
    """An encoder from the weights in a folder or on the hub; texts are truncated to 512 tokens."""

    def encode(texts: Sequence[str]) -> Floats:
        import torch

        model, tokenizer = _load(id, device)
        coded = tokenizer(list(texts), add_special_tokens=False)["input_ids"] if texts else []
        tokens = [row[:512] for row in coded]
        means = np.zeros((len(texts), model.config.hidden_size))
        for batch_rows in batches([len(row) for row in tokens], batch):
            longest = len(tokens[batch_rows[0]])
            rows = torch.zeros(len(batch_rows), longest, dtype=torch.long)
            for n, r in enumerate(batch_rows):
                rows[n, : len(tokens[r])] = torch.tensor(tokens[r], dtype=torch.long)
            real = torch.arange(longest) < torch.tensor([[len(tokens[r])] for r in batch_rows])
            if not longest:
                continue
            with torch.inference_mode():
                states = (
                    model(input_ids=rows.to(device), use_cache=False)
                    .last_hidden_state.float()
                    .cpu()
                )
            sums = (states * real[..., None]).sum(1) / real.sum(1, keepdim=True).clamp(min=1)
            means[batch_rows] = sums.numpy()
        return means

    return encode


@cache
def _load(id: str, device: str) -> tuple[Any, Any]:  # noqa: A002
    from transformers import AutoModel, AutoTokenizer

    no_bars()
    model = AutoModel.from_pretrained(id, trust_remote_code=False).to(device).eval()
    return model, AutoTokenizer.from_pretrained(id, trust_remote_code=False)
