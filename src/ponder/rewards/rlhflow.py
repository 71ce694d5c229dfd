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
from ponder.rewards._weights import Reading, SafeTokenizer, Weighted
from ponder.rewards.shepherd import GOOD, plus_or_minus

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Rlhflow(Weighted):
    def network(self, tokenizer: SafeTokenizer) -> tuple[Any, Callable[[Tensor], Tensor]]:
        return plus_or_minus(self, tokenizer)

    def read(self, tokenizer: SafeTokenizer, traces: Sequence[Steps]) -> list[Reading]:
        turns = ("user", ""), ("assistant", "")
        user, model, again, _, end = (
            tokenizer.control(part) for part in tokenizer.around(*turns, *turns)
        )
        good = tokenizer.token(GOOD)
        split = [(t.question, *t.part(self.of)) for t in traces]
        texts = iter(
            tokenizer.plain([text for question, *steps in split for text in (question, *steps)])
        )
        # The first step of a row follows the question in the same turn.
        firsts = iter(tokenizer.plain([f" {step}" for _, *steps in split for step in steps]))
        return [
            Reading(
                [*user, *next(texts)],
                [[*next(texts), *model, good] for _ in steps],
                again,
                end,
                back=2,
                first=[[*next(firsts), *model, good] for _ in steps],
            )
            for _, *steps in split
        ]
