"""Qwen2.5-Math-PRM: two classes at a marker after each step, the second of which is a right one.

Zhang et al. 2025 (arXiv 2501.07301). The head, two layers on Qwen2's states, is built here, so none of the code that
lies beside the published weights is run. A marker that a text itself holds is read as letters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ponder.core import Steps
from ponder.rewards._weights import Reading, Weighted, Words

if TYPE_CHECKING:
    from torch import Tensor

MARKER = "<extra_0>"
SYSTEM = "Please reason step by step, and put your final answer within \\boxed{}."


@dataclass(frozen=True, kw_only=True)
class Qwen(Weighted):
    system: str = SYSTEM  # the system message; as published

    marker = MARKER

    def network(self, words: Words) -> tuple[Any, Callable[[Tensor], Tensor]]:  # noqa: ARG002 its head needs none
        return two_classes(self)

    def read(self, words: Words, traces: Sequence[Steps]) -> list[Reading]:
        return marked(words, [(t.question, t.part(self.of)) for t in traces], self.system)


def two_classes(reward: Weighted) -> tuple[Any, Callable[[Tensor], Tensor]]:
    """Qwen2 with its head for two classes, and the chance of the second."""
    from torch import nn
    from transformers import Qwen2Model, Qwen2PreTrainedModel

    class Network(Qwen2PreTrainedModel):
        def __init__(self, config: Any) -> None:
            super().__init__(config)
            self.model = Qwen2Model(config)
            width = config.hidden_size
            self.score = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 2))
            self.post_init()  # type: ignore[no-untyped-call]

    network = reward.load(Network)
    return network.model, lambda hidden: network.score(hidden).float().softmax(-1)[:, 1]


def marked(words: Words, traces: Sequence[tuple[str, Sequence[str]]], system: str) -> list[Reading]:
    """Questions and steps in the chat template, a marker after each step."""
    told = [("system", system)] if system else []
    before, between, after = (words.control(p) for p in words.around(*told, ("user", ""), ("assistant", "")))
    marker = words.token(MARKER)
    texts = iter(words.plain([text for question, steps in traces for text in (question, *steps)]))
    return [
        Reading([*before, *next(texts), *between], [[*next(texts), marker] for _ in steps], tail=after)
        for _, steps in traces
    ]
