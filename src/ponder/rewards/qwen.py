"""Scores steps with Qwen2.5-Math-PRM: the probability that a step is right, read at a marker after
it.

Zhang et al. 2025 (arXiv 2501.07301). The head, two linear layers on Qwen2's hidden states with two
classes, is built here, so that no remote code from the model's repository runs. A marker inside a
text is read as ordinary text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ponder.core import Steps
from ponder.rewards._weights import Reading, SafeTokenizer, Weighted

if TYPE_CHECKING:
    from torch import Tensor

MARKER = "<extra_0>"
SYSTEM = "Please reason step by step, and put your final answer within \\boxed{}."


@dataclass(frozen=True, kw_only=True)
class Qwen(Weighted):
    system: str = SYSTEM  # the system message; the default is as published

    marker = MARKER

    def network(self, tokenizer: SafeTokenizer) -> tuple[Any, Callable[[Tensor], Tensor]]:  # noqa: ARG002 not needed
        return two_classes(self)

    def read(self, tokenizer: SafeTokenizer, traces: Sequence[Steps]) -> list[Reading]:
        return marked(tokenizer, [(t.question, t.part(self.of)) for t in traces], self.system)


def two_classes(reward: Weighted) -> tuple[Any, Callable[[Tensor], Tensor]]:
    """Qwen2, and a head that returns the probability of the second of two classes."""
    from torch import nn
    from transformers import Qwen2Model, Qwen2PreTrainedModel

    class Network(Qwen2PreTrainedModel):
        _keys_to_ignore_on_load_unexpected = [r"lm_head\..*"]  # noqa: RUF012 its type there

        def __init__(self, config: Any) -> None:
            super().__init__(config)
            self.model = Qwen2Model(config)
            width = config.hidden_size
            self.score = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 2))
            self.post_init()  # type: ignore[no-untyped-call]

    network = reward.load(Network)
    return network.model, lambda hidden: network.score(hidden).float().softmax(-1)[:, 1]


def marked(
    tokenizer: SafeTokenizer, traces: Sequence[tuple[str, Sequence[str]]], system: str
) -> list[Reading]:
    """Questions and steps in the chat template, with a marker after each step."""
    first = [("system", system)] if system else []
    before, between, after = (
        tokenizer.control(p) for p in tokenizer.around(*first, ("user", ""), ("assistant", ""))
    )
    marker = tokenizer.token(MARKER)
    texts = iter(
        tokenizer.plain([text for question, steps in traces for text in (question, *steps)])
    )
    return [
        Reading(
            [*before, *next(texts), *between], [[*next(texts), marker] for _ in steps], tail=after
        )
        for _, steps in traces
    ]
