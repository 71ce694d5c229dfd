"""A language model whose states say, beside what they are, how surprising what was said has been so far.

A small model that knows which word follows can't easily learn to compare that with the word that came: of 250 steps of
training that way nothing stayed but where faults mostly are. Its own probabilities are that comparison. So each state
gets two more numbers: the least log-probability of any word since the pass began, and its exponential, times ten.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

LEAST = -10.0  # a word can't be more surprising


class Surprised(nn.Module):
    def __init__(self, model: Any, begins: list[int]) -> None:
        super().__init__()
        self.model, self.begins = model, begins  # the tokens with which a pass begins
        self.config = model.config

    def forward(self, input_ids: Tensor, use_cache: bool = False) -> Any:
        states = self.model.base_model(input_ids=input_ids, use_cache=use_cache).last_hidden_state
        begin = torch.isin(input_ids, torch.tensor(self.begins, device=input_ids.device))
        passes = begin.cumsum(1)
        said = (passes > 0) & ~begin  # nothing in a prompt is a surprise, nor where a pass begins
        logits = self.model.get_output_embeddings()(states[:, :-1][said[:, 1:]]).float()
        chosen = logits.gather(-1, input_ids[said][:, None]).squeeze(-1) - logits.logsumexp(-1)
        log = torch.zeros_like(states[..., 0]).masked_scatter(said, chosen.clamp(min=LEAST).to(states.dtype))
        # Each pass is moved below the one before it, so that the running minimum begins anew with it.
        down = 2 * LEAST * passes
        least = (log + down).cummin(1).values - down
        found = torch.cat([states, least[..., None], -LEAST * least.exp()[..., None]], -1)
        return SimpleNamespace(last_hidden_state=found)
