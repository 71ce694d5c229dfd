"""Adds token log-probabilities to a language model's hidden states.

A small model that knows which token should follow can't easily learn to compare that with the token
that did: with the states alone, 250 training steps taught the heads only where errors usually
occur. The model's own probabilities are that comparison. So each state gets two more numbers: the
lowest log-probability of any token since the pass began, and ten times its exponential.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

LEAST = -10.0  # log-probabilities are clamped here


class WithLogProbs(nn.Module):
    """A language model whose states have two more features."""

    def __init__(self, model: Any, begins: list[int]) -> None:
        super().__init__()
        self.model = model
        self.begins = begins  # the tokens with which a pass begins
        self.config = model.config

    def forward(self, input_ids: Tensor, use_cache: bool = False) -> Any:
        """Return an object whose `last_hidden_state` is (rows, tokens, features + 2)."""
        states = self.model.base_model(input_ids=input_ids, use_cache=use_cache).last_hidden_state
        begin = torch.isin(input_ids, torch.tensor(self.begins, device=input_ids.device))
        passes = begin.cumsum(1)
        # neither tokens of the prompt nor those with which a pass begins
        counted = (passes > 0) & ~begin
        logits = self.model.get_output_embeddings()(states[:, :-1][counted[:, 1:]]).float()
        chosen_logits = logits.gather(-1, input_ids[counted][:, None]).squeeze(-1)
        log_probs = (chosen_logits - logits.logsumexp(-1)).clamp(min=LEAST).to(states.dtype)
        per_token = torch.zeros_like(states[..., 0]).masked_scatter(counted, log_probs)
        # Each pass is shifted below the one before it, so that the running minimum starts again
        # with it.
        shift = 2 * LEAST * passes
        lowest = (per_token + shift).cummin(1).values - shift
        extended = torch.cat([states, lowest[..., None], -LEAST * lowest.exp()[..., None]], -1)
        return SimpleNamespace(last_hidden_state=extended)
