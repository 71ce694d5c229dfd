"""How much attention the answer pays to each token of a trace: what DynTS learns to foresee.

The mean over layers, heads and the answer's tokens of their attention to the token, itself left out. Only the answer's
rows of the attention matrix are ever computed, so memory grows with the trace and not with its square.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

ROWS = 64  # of the answer at once


def _watched(
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
    """Attention as ever, which adds to `paid` what the rows from `answer` on pay to each column."""
    out, _ = sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **kwargs)
    if paid is not None:
        (_, heads, n, width), shared = query.shape, key.shape[1]
        for start in range(answer, n, ROWS):
            asked = query[0, :, start : start + ROWS]
            rows = asked.shape[1]
            logits = (asked.reshape(shared, -1, width) @ key[0].mT * scaling).view(heads, rows, n)
            ahead = torch.ones(rows, n, dtype=torch.bool, device=key.device).triu(start + 1)
            weights = logits.masked_fill_(ahead, -torch.inf).softmax(-1)
            itself = torch.arange(rows, device=key.device)
            weights[:, itself, start + itself] = 0
            paid += weights.sum((0, 1)) / heads
    return out, None


AttentionInterface.register("ponder_labels", _watched)
AttentionMaskInterface.register("ponder_labels", sdpa_mask)


@torch.no_grad()
def importance(model: Any, ids: Tensor, answer: int) -> tuple[Tensor, Tensor]:
    """For a trace (tokens) whose answer starts at a place: each token's importance, and its last hidden state."""
    before = model.config._attn_implementation
    model.set_attn_implementation("ponder_labels")
    try:
        paid = torch.zeros(len(ids), device=ids.device)
        hidden = model.base_model(ids[None], answer=answer, paid=paid, use_cache=False)[0][0]
    finally:
        model.set_attn_implementation(before)
    return paid / (model.config.num_hidden_layers * (len(ids) - answer)), hidden
