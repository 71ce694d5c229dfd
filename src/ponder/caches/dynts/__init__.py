"""Those stay that a small network expects the answer to look at.

DynTS (arXiv 2601.18383): a predictor reads the last hidden state of each token, in the step that makes it, and says how
much attention the answer's tokens will pay to it; `ponder prepare STUDY` trains one for a study's model from the model's
own right traces. It lies beside the weights, as `dynts.safetensors` with its recipe and quality in `dynts.json`.
Departures: what is protected is the engine's affair, so the question doesn't use up the ratio; labels are scaled by
their own mean, so that one recipe serves every model.
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

WEIGHTS, CARD = "dynts.safetensors", "dynts.json"


@dataclass(frozen=True)
class Dynts(Policy):
    per_layer = False
    predictor: Any = field(default=None, compare=False)

    def fitted(self, folder: Path, tokenizer: Any) -> Dynts:  # noqa: ARG002 the folder is enough
        if self.predictor is not None:
            return self
        from safetensors.torch import load_file

        from ponder.caches.dynts.predictor import Predictor

        beside = folder if folder.is_dir() else folder.parent
        try:
            card = json.loads((beside / CARD).read_text("utf-8"))
            weights = load_file(beside / WEIGHTS)
        except OSError:
            what = f"there is no predictor beside {folder}"
            raise UserError(what, hint="ponder prepare STUDY trains one") from None
        if card["model"] != fingerprint(beside / "model.safetensors"):
            what = f"the predictor beside {folder} was trained for other weights"
            raise UserError(what, hint="ponder prepare STUDY trains one")
        predictor = Predictor(card["width"])
        predictor.load_state_dict({name: tensor.float() for name, tensor in weights.items()})
        return Dynts(predictor.eval())

    def needs_fit(self, folder: Path) -> bool:
        beside = folder if folder.is_dir() else folder.parent
        try:
            card = json.loads((beside / CARD).read_text("utf-8"))
            return bool(card["model"] != fingerprint(beside / "model.safetensors"))
        except FileNotFoundError:
            return True

    def fit(
        self, network: Any, traces: Sequence[TokenTrace], folder: Path, facts: Mapping[str, Any]
    ) -> Iterator[Progress]:
        from ponder.caches.dynts.predictor import Recipe, fit

        yield from fit(network, traces, Recipe(), folder, dict(facts))
        yield {"made": str(folder / WEIGHTS)}

    def token_features(self, hidden: Tensor, ids: Tensor) -> Tensor:  # noqa: ARG002 the state says it all
        assert self.predictor is not None
        said: Tensor = self.predictor(hidden.float())
        return said

    def score(self, seen: CacheView) -> Tensor:
        assert seen.born is not None
        return seen.born
