"""Scores steps with RLHFlow's PRM: the user sends one step per turn, and the model replies + or -.

Xiong et al. 2024 (RLHFlow/Llama3.1-8B-PRM-*). A step's score is the probability of `+` against `-`
at the start of the model's turn. As published, all earlier turns contain `+`, whatever their scores
were.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ponder.core import Steps
from ponder.rewards._weights import Reading, SafeTokenizer, Weighted, tokenized
from ponder.rewards.shepherd import GOOD, plus_or_minus

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Rlhflow(Weighted):
    def network(self, tokenizer: SafeTokenizer) -> tuple[Any, Callable[[Tensor], Tensor]]:
        return plus_or_minus(self, tokenizer)

    def read(self, tokenizer: SafeTokenizer, traces: Sequence[Steps]) -> list[Reading]:
        turns = [("user", ""), ("assistant", "")]
        template = tokenizer.around(*turns, *turns)
        user, model, again, _, end = [tokenizer.control(text) for text in template]
        verdict = [*model, tokenizer.token(GOOD)]
        texts = [(trace.question, trace.part(self.of)) for trace in traces]
        # The first step of a row follows the question in the same turn.
        first_texts = []
        for _, texts_of_steps in texts:
            first_texts.append(("", [f" {step}" for step in texts_of_steps]))
        tokens = tokenized(tokenizer, texts)
        first_tokens = tokenized(tokenizer, first_texts)
        readings = list[Reading]()
        for (question, steps), (_, first_steps) in zip(tokens, first_tokens, strict=True):
            reading = Reading(
                [*user, *question],
                [step + verdict for step in steps],
                again,
                end,
                back=2,
                first=[step + verdict for step in first_steps],
            )
            readings.append(reading)
        return readings
