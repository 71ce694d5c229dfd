"""Evicts the oldest tokens that aren't separators, then the oldest separators (SepLLM).

Chen et al. 2025 (arXiv 2412.12094): a segment's information collects in the punctuation that ends
it. Separators are the tokens of the model's vocabulary that consist only of `. , ? ! ; :` and white
space. The paper keeps separators and recent tokens in caches of fixed sizes; here both share the
budget.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ponder.core import Fitted, Policy

if TYPE_CHECKING:
    from torch import Tensor

    from ponder.kvcache import CacheView


@dataclass(frozen=True)
class Sepllm(Policy, Fitted):
    by_order = False
    per_layer = False
    separators: tuple[int, ...] = ()  # token ids; if not given, taken from the vocabulary

    def fitted(self, folder: Path, tokenizer: Any) -> Sepllm:  # noqa: ARG002 the vocabulary is enough
        texts = tokenizer.batch_decode([[token] for token in range(len(tokenizer))])
        separators = []
        for token, text in enumerate(texts):
            if text and not text.strip(".,?!;: \t\n"):
                separators.append(token)
        return Sepllm(tuple(separators))

    def score(self, view: CacheView) -> Tensor:
        import torch

        separators = torch.tensor(self.separators, dtype=torch.long, device=view.ids.device)
        is_separator = torch.isin(view.ids, separators)
        return view.positions + is_separator * view.seen_tokens
