"""How much attention the answer pays to each token of a trace: the labels that the DynTS predictor learns.

The mean over layers, heads and answer tokens of their attention to a token, except to themselves. Only the answer's
rows of the attention matrix are computed, so memory grows linearly with the length of the trace.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

ROWS = 64  # answer tokens per block


def _attention_with_labels(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    answer: int = 0,
    paid: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Standard attention that also adds to `paid` the attention from tokens at or after `answer` to each token."""
    out, _ = sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **kwargs)
    if paid is not None:
        (_, heads, n, width), shared = query.shape, key.shape[1]
        for start in range(answer, n, ROWS):
            block = query[0, :, start : start + ROWS]
            rows = block.shape[1]
            logits = (block.reshape(shared, -1, width) @ key[0].mT * scaling).view(heads, rows, n)
            future = torch.ones(rows, n, dtype=torch.bool, device=key.device).triu(start + 1)
            weights = logits.masked_fill_(future, -torch.inf).softmax(-1)
            itself = torch.arange(rows, device=key.device)
            weights[:, itself, start + itself] = 0
            paid += weights.sum((0, 1)) / heads
    return out, None


AttentionInterface.register("ponder_labels", _attention_with_labels)
AttentionMaskInterface.register("ponder_labels", sdpa_mask)


@torch.no_grad()
def importance(model: Any, ids: Tensor, answer: int) -> tuple[Tensor, Tensor]:
    """Each token's importance and last hidden state, for a trace whose answer starts at token `answer`."""
    before = model.config._attn_implementation
    model.set_attn_implementation("ponder_labels")
    try:
        paid = torch.zeros(len(ids), device=ids.device)
        hidden = model.base_model(ids[None], answer=answer, paid=paid, use_cache=False)[0][0]
    finally:
        model.set_attn_implementation(before)
    return paid / (model.config.num_hidden_layers * (len(ids) - answer)), hidden
