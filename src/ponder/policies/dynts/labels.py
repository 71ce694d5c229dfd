"""The labels that the DynTS predictor learns: how much the answer attends to each token of a trace.

The mean over layers, heads and answer tokens of their attention to a token, except to themselves.
Only the answer's rows of the attention matrix are computed, so memory grows linearly with the
length of the trace.
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
    """Return standard attention, and add the attention that the answer pays to `paid`, (tokens,).

    The answer starts at token `answer`. Queries are (1, heads, tokens, head_dim), keys and values
    (1, kv_heads, tokens, head_dim).
    """
    output, _ = sdpa_attention_forward(
        module, query, key, value, attention_mask, scaling=scaling, **kwargs
    )
    if paid is None:
        return output, None
    _, heads, tokens, head_dim = query.shape
    kv_heads = key.shape[1]
    for start in range(answer, tokens, ROWS):
        block = query[0, :, start : start + ROWS]
        rows = block.shape[1]
        logits = block.reshape(kv_heads, -1, head_dim) @ key[0].mT * scaling
        logits = logits.view(heads, rows, tokens)
        future = torch.ones(rows, tokens, dtype=torch.bool, device=key.device).triu(start + 1)
        weights = logits.masked_fill_(future, -torch.inf).softmax(-1)
        row = torch.arange(rows, device=key.device)
        weights[:, row, start + row] = 0  # a token's attention to itself
        paid += weights.sum((0, 1)) / heads
    return output, None


AttentionInterface.register("ponder_labels", _attention_with_labels)
AttentionMaskInterface.register("ponder_labels", sdpa_mask)


@torch.no_grad()
def importance(model: Any, ids: Tensor, answer: int) -> tuple[Tensor, Tensor]:
    """Return each token's importance, (tokens,), and last hidden state, (tokens, width).

    The answer of the trace starts at token `answer`.
    """
    before = model.config._attn_implementation
    model.set_attn_implementation("ponder_labels")
    try:
        paid = torch.zeros(len(ids), device=ids.device)
        hidden = model.base_model(ids[None], answer=answer, paid=paid, use_cache=False)[0][0]
    finally:
        model.set_attn_implementation(before)
    answer_tokens = len(ids) - answer
    return paid / (model.config.num_hidden_layers * answer_tokens), hidden
