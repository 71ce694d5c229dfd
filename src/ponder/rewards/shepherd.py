"""Scores steps with Math-Shepherd: the probability of `+` against `-` at a marker after each step.

Wang et al. 2024 (arXiv 2312.08935). The marker is the letters `ки`, which Russian text contains
too; only the markers set after steps are read. Steps without a number get one, as in the model's
training data.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ponder.core import Steps
from ponder.rewards._weights import Reading, SafeTokenizer, Weighted

if TYPE_CHECKING:
    from torch import Tensor

MARKER = "ки"
GOOD, BAD = "+", "-"


@dataclass(frozen=True, kw_only=True)
class Shepherd(Weighted):
    def network(self, tokenizer: SafeTokenizer) -> tuple[Any, Callable[[Tensor], Tensor]]:
        return plus_or_minus(self, tokenizer)

    def read(self, tokenizer: SafeTokenizer, traces: Sequence[Steps]) -> list[Reading]:
        texts, ends = [], []
        for trace in traces:
            text, step_ends = trace.question + " ", [len(trace.question)]
            for n, step in enumerate(trace.part(self.of), 1):
                numbered = (
                    step if re.match(r"step \d", step, re.IGNORECASE) else f"Step {n}: {step}"
                )
                text += f"{numbered} {MARKER}"
                step_ends.append(len(text))
                text += "\n"
            texts.append(text)
            ends.append(step_ends)
        begin = tokenizer.base.bos_token_id
        start = [] if begin is None else [begin]
        return [Reading(start + head, steps) for head, *steps in tokenizer.parts(texts, ends)]


def plus_or_minus(
    reward: Weighted, tokenizer: SafeTokenizer
) -> tuple[Any, Callable[[Tensor], Tensor]]:
    """A causal language model, and a head that returns the probability of + if only + and - were
    possible.
    """
    from transformers import AutoModelForCausalLM

    model = reward.load(AutoModelForCausalLM)
    good_or_bad = model.get_output_embeddings().weight[
        [tokenizer.token(GOOD), tokenizer.token(BAD)]
    ]
    return model.base_model, lambda hidden: (hidden @ good_or_bad.T).float().softmax(-1)[:, 0]
