"""Scores steps with Skywork-o1-Open-PRM: a value at the line break after each step.

Skywork o1 team 2024. The value head, one linear layer on Qwen2's hidden states, is built here. The model was trained
with one step per line, so line breaks within a paragraph look to it like ends of steps; only those that end a step of
the trace are read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ponder.core import Steps
from ponder.rewards._weights import Reading, SafeTokenizer, Weighted

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Skywork(Weighted):
    def network(self, tokenizer: SafeTokenizer) -> tuple[Any, Callable[[Tensor], Tensor]]:  # noqa: ARG002 not needed
        from torch import nn
        from transformers import Qwen2Model, Qwen2PreTrainedModel

        class Network(Qwen2PreTrainedModel):
            def __init__(self, config: Any) -> None:
                super().__init__(config)
                self.model = Qwen2Model(config)
                self.v_head = nn.ModuleDict({"summary": nn.Linear(config.hidden_size, 1)})
                self.post_init()  # type: ignore[no-untyped-call]

        network = self.load(Network)
        return network.model, lambda hidden: network.v_head["summary"](hidden).squeeze(-1).float().sigmoid()

    def read(self, tokenizer: SafeTokenizer, traces: Sequence[Steps]) -> list[Reading]:
        begin, line = tokenizer.base.bos_token_id, tokenizer.token("\n")
        start = [] if begin is None else [begin]
        split = [(t.question + "\n", *t.part(self.of)) for t in traces]
        texts = iter(tokenizer.plain([text for trace in split for text in trace]))
        return [Reading([*start, *next(texts)], [[*next(texts), line] for _ in steps]) for _, *steps in split]
