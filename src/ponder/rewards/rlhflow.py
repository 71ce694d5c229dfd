"""RLHFlow's PRM: a conversation in which the user says one step a turn and the model answers + or -.

Xiong et al. 2024 (RLHFlow/Llama3.1-8B-PRM-*). A step's score is the chance of `+` against `-` where the model's turn
begins; the turns before it hold `+`, as published, whatever their scores were.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ponder.core import Steps
from ponder.rewards._weights import Reading, Weighted, Words
from ponder.rewards.shepherd import GOOD, plus_or_minus

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Rlhflow(Weighted):
    def network(self, words: Words) -> tuple[Any, Callable[[Tensor], Tensor]]:
        return plus_or_minus(self, words)

    def read(self, words: Words, traces: Sequence[Steps]) -> list[Reading]:
        turns = ("user", ""), ("assistant", "")
        user, model, again, _, end = (words.control(part) for part in words.around(*turns, *turns))
        good = words.token(GOOD)
        cut = [(t.question, *t.part(self.of)) for t in traces]
        texts = iter(words.plain([text for question, *steps in cut for text in (question, *steps)]))
        # The first step of a row stands behind the question, in the same turn.
        firsts = iter(words.plain([f" {step}" for _, *steps in cut for step in steps]))
        return [
            Reading(
                [*user, *next(texts)],
                [[*next(texts), *model, good] for _ in steps],
                again,
                end,
                back=2,
                first=[[*next(firsts), *model, good] for _ in steps],
            )
            for _, *steps in cut
        ]
