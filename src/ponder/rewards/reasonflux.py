"""Scores steps and the trajectory with ReasonFlux-PRM.

Zou et al. 2025 (arXiv 2506.18896), in both published forms; the smaller one has a `reward_head.pt`
next to its weights.

- 7B has the format of Qwen2.5-Math-PRM. The published code never computes the trajectory's score
  that the paper adds; here it is the score of the whole trace as a single step.
- 1.5B has one linear layer, read at the last token of question and trace as plain text. A step's
  score is that of the trace up to it, and the trajectory's score that of the whole trace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from ponder.core import Scores, Steps
from ponder.rewards._weights import Reading, SafeTokenizer, Weighted
from ponder.rewards.qwen import MARKER, marked, two_classes

if TYPE_CHECKING:
    from torch import Tensor

HEAD = "reward_head.pt"
GAP = "\n\n"  # between steps that are read as one text


@dataclass(frozen=True, kw_only=True)
class Reasonflux(Weighted):
    system: str = ""  # the system message; the default, as published, is the chat template's own

    marker = MARKER

    @cached_property
    def _head(self) -> str | None:
        from transformers.utils.hub import cached_file

        path = cached_file(
            self.id,
            HEAD,
            revision=self.revision or None,
            _raise_exceptions_for_missing_entries=False,
        )
        if path is None:
            return None
        return str(path)

    def network(self, tokenizer: SafeTokenizer) -> tuple[Any, Callable[[Tensor], Tensor]]:  # noqa: ARG002 not needed
        if self._head is None:
            return two_classes(self)
        import torch
        from transformers import AutoModel

        states = self.load(AutoModel)
        head = torch.nn.Linear(states.config.hidden_size, 1)
        head.load_state_dict(torch.load(self._head, map_location="cpu", weights_only=True))
        head = head.to(device=self.device, dtype=states.dtype)
        return states, lambda hidden: head(hidden).squeeze(-1).float().sigmoid()

    def read(self, tokenizer: SafeTokenizer, traces: Sequence[Steps]) -> list[Reading]:
        texts = [(trace.question, trace.part(self.of)) for trace in traces]
        if self._head is None:
            return marked(tokenizer, texts, self.system)
        return _prefixes(tokenizer, texts)

    def whole(self, tokenizer: SafeTokenizer, traces: Sequence[Steps]) -> list[Reading]:
        if self._head is not None:
            return []
        texts = [(trace.question, [GAP.join(trace.part(self.of))]) for trace in traces]
        return marked(tokenizer, texts, self.system)

    def rate_each(self, traces: Sequence[Steps]) -> Iterator[tuple[int, Scores]]:
        for index, scores in super().rate_each(traces):
            if self._head is not None and scores.steps:
                # the last step's score is that of the whole trace
                yield index, replace(scores, trajectory=scores.steps[-1])
            else:
                yield index, scores


def _prefixes(
    tokenizer: SafeTokenizer, traces: Sequence[tuple[str, Sequence[str]]]
) -> list[Reading]:
    """Return question and steps as one plain text, each step read at its last character."""
    texts = list[str]()
    ends = list[list[int]]()
    for question, steps in traces:
        texts.append(question + GAP.join(steps))
        lengths = [len(question), *(len(GAP) + len(step) for step in steps)]
        lengths[1] -= len(GAP)  # there is no gap before the first step
        ends.append(list(accumulate(lengths)))
    return [Reading(head, steps) for head, *steps in tokenizer.parts(texts, ends)]
