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
from ponder.rewards._weights import Reading, SafeTokenizer, Weighted, begin_tokens

if TYPE_CHECKING:
    from torch import Tensor

MARKER = "ки"
GOOD = "+"
BAD = "-"


@dataclass(frozen=True, kw_only=True)
class Shepherd(Weighted):
    def network(self, tokenizer: SafeTokenizer) -> tuple[Any, Callable[[Tensor], Tensor]]:
        return plus_or_minus(self, tokenizer)

    def read(self, tokenizer: SafeTokenizer, traces: Sequence[Steps]) -> list[Reading]:
        texts = list[str]()
        ends = list[list[int]]()
        for trace in traces:
            text = trace.question + " "
            step_ends = [len(trace.question)]
            for number, step in enumerate(trace.part(self.of), 1):
                if not re.match(r"step \d", step, re.IGNORECASE):
                    text += f"Step {number}: "
                text += f"{step} {MARKER}"
                step_ends.append(len(text))
                text += "\n"
            texts.append(text)
            ends.append(step_ends)
        start = begin_tokens(tokenizer)
        return [Reading(start + head, steps) for head, *steps in tokenizer.parts(texts, ends)]


def plus_or_minus(
    reward: Weighted, tokenizer: SafeTokenizer
) -> tuple[Any, Callable[[Tensor], Tensor]]:
    """Return a causal language model, and a head that gives the probability of + against -."""
    from transformers import AutoModelForCausalLM

    model = reward.load(AutoModelForCausalLM)
    both_tokens = [tokenizer.token(GOOD), tokenizer.token(BAD)]
    good_or_bad = model.get_output_embeddings().weight[both_tokens]
    return model.base_model, lambda hidden: (hidden @ good_or_bad.T).float().softmax(-1)[:, 0]
