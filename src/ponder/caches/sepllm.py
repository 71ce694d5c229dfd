"""Separators stay, the newest first, then the most recent of the others.

SepLLM (Chen et al. 2025): what a segment says gathers in the punctuation that ends it. Which tokens separate is found
from the model's own vocabulary: those that are nothing but `. , ? ! ; :` and white space.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ponder.core import Policy

if TYPE_CHECKING:
    from torch import Tensor

    from ponder.caches import CacheView


@dataclass(frozen=True)
class Sepllm(Policy):
    per_layer = False
    separators: tuple[int, ...] = ()  # token ids; found in the model's vocabulary if not given

    def fitted(self, folder: Path, tokenizer: Any) -> Sepllm:  # noqa: ARG002 the vocabulary is enough
        texts = tokenizer.batch_decode([[n] for n in range(len(tokenizer))])
        return Sepllm(tuple(n for n, text in enumerate(texts) if text and not text.strip(".,?!;: \t\n")))

    def score(self, seen: CacheView) -> Tensor:
        import torch

        separates = torch.isin(seen.ids, torch.tensor(self.separators, dtype=torch.long, device=seen.ids.device))
        return seen.places + separates * seen.seen
