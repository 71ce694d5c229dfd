"""A reward that `ponder train-reward` made: two heads on any language model, for a step and for the trajectory.

Question and steps are read as plain text with a blank line between. A step's score is that of the first head at its
last token, which has seen everything up to there; the trajectory's is that of the second at the last of all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ponder.core import Steps, UserError
from ponder.rewards._weights import Reading, Weighted, Words

if TYPE_CHECKING:
    from torch import Tensor

HEADS = "heads.safetensors"
GAP = "\n\n"


@dataclass(frozen=True, kw_only=True)
class Trained(Weighted):
    def network(self, words: Words) -> tuple[Any, Callable[[Tensor], Tensor]]:  # noqa: ARG002 its heads need none
        import torch
        from safetensors.torch import load_file
        from transformers import AutoModelForCausalLM

        if not (path := Path(self.id) / HEADS).is_file():
            what = f"{self.id} holds no reward that was trained here: there is no {HEADS}"
            raise UserError(what, hint="ponder train-reward TRACES -o DIR makes such a folder")
        saved = load_file(path)
        heads = torch.nn.Linear(saved["weight"].shape[1], 2).to(self.device)
        heads.load_state_dict(saved)
        return self.states(self.load(AutoModelForCausalLM)), lambda hidden: heads(hidden.float()).sigmoid()

    def states(self, model: Any) -> Any:
        """The part of a causal language model that turns tokens into what the heads read."""
        return model.base_model

    def read(self, words: Words, traces: Sequence[Steps]) -> Sequence[Reading | str]:
        begin = words.tokenizer.bos_token_id
        start, gap = [] if begin is None else [begin], words.control(GAP)
        cut = [(t.question, *t.part(self.of)) for t in traces]
        texts = iter(words.plain([text for trace in cut for text in trace]))
        return [Reading([*start, *next(texts), *gap], [next(texts) for _ in steps], gap) for _, *steps in cut]
