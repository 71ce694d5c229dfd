"""Math-Shepherd: the chance of `+` against `-` at a marker after each step.

Wang et al. 2024 (arXiv 2312.08935). The marker is the letters `ки`, which a text in Russian holds too: only the places
where one was set are read. Steps without a number get one, as in its training data.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ponder.core import Steps
from ponder.rewards._weights import Reading, Weighted, Words

if TYPE_CHECKING:
    from torch import Tensor

MARKER = "ки"
GOOD, BAD = "+", "-"


@dataclass(frozen=True, kw_only=True)
class Shepherd(Weighted):
    def network(self, words: Words) -> tuple[Any, Callable[[Tensor], Tensor]]:
        return plus_or_minus(self, words)

    def read(self, words: Words, traces: Sequence[Steps]) -> list[Reading]:
        texts, ends = [], []
        for trace in traces:
            text, cuts = trace.question + " ", [len(trace.question)]
            for n, step in enumerate(trace.part(self.of), 1):
                numbered = step if re.match(r"step \d", step, re.IGNORECASE) else f"Step {n}: {step}"
                text += f"{numbered} {MARKER}"
                cuts.append(len(text))
                text += "\n"
            texts.append(text)
            ends.append(cuts)
        begin = words.tokenizer.bos_token_id
        start = [] if begin is None else [begin]
        return [Reading(start + head, steps) for head, *steps in words.runs(texts, ends)]


def plus_or_minus(reward: Weighted, words: Words) -> tuple[Any, Callable[[Tensor], Tensor]]:
    """A causal language model, and the chance that it says + where it can only say + or -."""
    from transformers import AutoModelForCausalLM

    model = reward.load(AutoModelForCausalLM)
    good_or_bad = model.get_output_embeddings().weight[[words.token(GOOD), words.token(BAD)]]
    return model.base_model, lambda hidden: (hidden @ good_or_bad.T).float().softmax(-1)[:, 0]
