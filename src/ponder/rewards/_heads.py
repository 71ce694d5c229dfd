"""Two heads on any language model, as `training.reward` trains them: one scores each step, the other the trajectory.

Question and steps are read as plain text with blank lines between them. A step's score is that of the first head at its
last token; the trajectory's score is that of the second head at the last token of all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ponder.core import Steps, UserError
from ponder.rewards._weights import Reading, SafeTokenizer, Weighted

if TYPE_CHECKING:
    from torch import Tensor

HEADS = "heads.safetensors"
GAP = "\n\n"


@dataclass(frozen=True, kw_only=True)
class Heads(Weighted):
    """A reward whose weights are a causal language model and two heads."""

    @classmethod
    def plugin_name(cls) -> str:
        return "trained" if cls is Heads else super().plugin_name()

    def network(self, tokenizer: SafeTokenizer) -> tuple[Any, Callable[[Tensor], Tensor]]:  # noqa: ARG002 not needed
        import torch
        from safetensors.torch import load_file
        from transformers import AutoModelForCausalLM

        if not (path := Path(self.id) / HEADS).is_file():
            what = f"{self.id} isn't a trained reward: it has no {HEADS}"
            raise UserError(what, hint="ponder prepare reward TRACES --from MODEL -o DIR trains one")
        saved = load_file(path)
        heads = torch.nn.Linear(saved["weight"].shape[1], 2).to(self.device)
        heads.load_state_dict(saved)
        return self.states(self.load(AutoModelForCausalLM)), lambda hidden: heads(hidden.float()).sigmoid()

    def states(self, model: Any) -> Any:
        """The part of a causal language model whose hidden states the heads read."""
        return model.base_model

    def read(self, tokenizer: SafeTokenizer, traces: Sequence[Steps]) -> Sequence[Reading | str]:
        begin = tokenizer.base.bos_token_id
        start, gap = [] if begin is None else [begin], tokenizer.control(GAP)
        split = [(t.question, *t.part(self.of)) for t in traces]
        texts = iter(tokenizer.plain([text for trace in split for text in trace]))
        return [Reading([*start, *next(texts), *gap], [next(texts) for _ in steps], gap) for _, *steps in split]
