"""Evicts the tokens to which a small network predicts that the answer will attend least (DynTS).

arXiv 2601.18383: a predictor reads each token's last hidden state when the token is generated, and predicts how much
attention the answer will pay to it. `ponder prepare STUDY` trains a predictor for each model of a study, on the model's
own correct traces, and writes it beside the weights: `dynts/predictor.safetensors`, with its recipe and accuracy in
`dynts/card.json`. Unlike in the paper, the protected question doesn't count towards the ratio, and labels are divided
by their mean, so that one recipe serves every model.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ponder.core import Policy, Progress, TokenTrace, UserError, fingerprint

if TYPE_CHECKING:
    from torch import Tensor

    from ponder.caches import CacheView

# In a folder of their own: vLLM takes every safetensors file beside the weights for a part of them.
WEIGHTS, CARD = "dynts/predictor.safetensors", "dynts/card.json"


@dataclass(frozen=True)
class Dynts(Policy):
    by_order = False
    per_layer = False
    predictor: Any = field(default=None, compare=False)  # set by `fitted`

    def fitted(self, folder: Path, tokenizer: Any) -> Dynts:  # noqa: ARG002 needs no vocabulary
        if self.predictor is not None:
            return self
        from safetensors.torch import load_file

        from ponder.caches.dynts.predictor import Predictor

        beside, hint = _beside(folder), "ponder prepare STUDY trains one"
        try:
            card, weights = _card(beside), load_file(beside / WEIGHTS)
        except OSError:
            raise UserError(f"there is no predictor beside the weights in {folder}", hint=hint) from None
        if self.needs_fit(folder):
            raise UserError(f"the predictor in {folder} was trained for other weights", hint=hint)
        predictor = Predictor(card["width"])
        predictor.load_state_dict({name: tensor.float() for name, tensor in weights.items()})
        return Dynts(predictor.eval())

    def needs_fit(self, folder: Path) -> bool:
        beside = _beside(folder)
        try:
            return bool(_card(beside)["model"] != fingerprint(beside / "model.safetensors"))
        except FileNotFoundError:
            return True

    def fit(
        self, network: Any, traces: Sequence[TokenTrace], folder: Path, facts: Mapping[str, Any]
    ) -> Iterator[Progress]:
        from ponder.caches.dynts.predictor import Recipe, fit

        yield from fit(network, traces, Recipe(), folder, dict(facts))
        yield {"made": str(folder / WEIGHTS)}

    def token_features(self, hidden: Tensor, ids: Tensor) -> Tensor:  # noqa: ARG002 needs only the states
        assert self.predictor is not None
        predicted: Tensor = self.predictor(hidden.float())
        return predicted

    def score(self, view: CacheView) -> Tensor:
        assert view.features is not None
        return view.features


def _beside(folder: Path) -> Path:
    """The folder in which the weights are; they may also be one .gguf file."""
    return folder if folder.is_dir() else folder.parent


def _card(folder: Path) -> dict[str, Any]:
    card: dict[str, Any] = json.loads((folder / CARD).read_text("utf-8"))
    return card
