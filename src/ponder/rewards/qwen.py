"""Scores steps with Qwen2.5-Math-PRM: the probability that a step is right, read after each step.

Zhang et al. 2025 (arXiv 2501.07301). The head, two linear layers on Qwen2's hidden states with two
classes, is built here, so that no remote code from the model's repository runs. A marker inside a
text is read as ordinary text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ponder.core import Steps
from ponder.rewards._weights import Reading, SafeTokenizer, Weighted, tokenized

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
    """Return Qwen2, and a head that gives the probability of the second of two classes."""
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
    """Return questions and steps in the chat template, with a marker after each step."""
    messages = [("user", ""), ("assistant", "")]
    if system:
        messages.insert(0, ("system", system))
    before, between, after = [tokenizer.control(text) for text in tokenizer.around(*messages)]
    marker = tokenizer.token(MARKER)
    readings = list[Reading]()
    for question, steps in tokenized(tokenizer, traces):
        head = [*before, *question, *between]
        readings.append(Reading(head, [[*step, marker] for step in steps], tail=after))
    return readings
