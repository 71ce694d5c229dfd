"""Evicts the tokens to which a small network predicts that the answer will attend least (DynTS).

arXiv 2601.18383: a predictor reads each token's last hidden state when the token is generated, and predicts how much
attention the answer will pay to it. `ponder prepare STUDY` trains a predictor for each model of a study, on the model's
own correct traces, and writes it among the made models: `dynts-…/predictor.safetensors`, with its recipe and accuracy
in `card.json`. What it is trained on is part of an attempt's key, so each study uses its own. With weights that ship
with Ponder, a study without [[train]] uses the predictor that ships beside them, in `dynts/`.

Unlike in the paper, the protected question doesn't count towards the ratio, labels are divided by their mean, so that
one recipe serves every model, and a training step draws tokens, not traces. `ratio_of = "all"` beside the policy, with
`settings = { recipe = "published" }`, is the published rule: labels 10 · I^0.3 / 0.3, with five times the loss where
they are from 4 to 5, and 256 traces per step.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ponder.core import Policy, Progress, TokenTrace, TrainedPerStudy, UserError, digest, weights_fingerprint

if TYPE_CHECKING:
    from torch import Tensor

    from ponder.kvcache import CacheView

WEIGHTS, CARD = "predictor.safetensors", "card.json"


@dataclass(frozen=True)
class Dynts(Policy, TrainedPerStudy):
    by_order = False
    per_layer = False
    recipe: Literal["ponder", "published"] = "ponder"  # how its predictor is trained
    on: Any = field(default="", compare=False)  # a digest; it and the folder are set by `with_training`
    made: Any = field(default=None, compare=False)
    predictor: Any = field(default=None, compare=False)  # set by `fitted`

    def fitted(self, folder: Path, tokenizer: Any) -> Dynts:  # noqa: ARG002 needs no vocabulary
        if self.predictor is not None:
            return self
        from safetensors.torch import load_file

        from ponder.policies.dynts.predictor import Predictor

        own, hint = self.fitted_path(folder), "ponder prepare STUDY trains one"
        try:
            card, weights = _card(own), load_file(own / WEIGHTS)
        except OSError:
            hint += f", for the weights of the tasks under [[train]], as {own}" if self.on else ""
            raise UserError(f"there is no predictor for the weights in {folder}", hint=hint) from None
        if self.needs_fit(folder):
            raise UserError(f"the predictor in {folder} was trained for other weights", hint=hint)
        predictor = Predictor(card["width"])
        predictor.load_state_dict({name: tensor.float() for name, tensor in weights.items()})
        return replace(self, predictor=predictor.eval())

    def with_training(self, on: str, made: Path) -> Dynts:
        return replace(self, on=on, made=made)

    def fitted_path(self, folder: Path) -> Path:
        # A folder of its own: vLLM takes every safetensors file beside the weights for a part of them.
        if not self.on and self.recipe == "ponder":
            return _beside(folder) / "dynts"
        model = _model(folder) if folder.is_dir() else str(folder)  # a file, or a name on the hub: refused by `fit`
        own = digest(self.on, self.recipe, model).hex()[:20]
        path: Path = (self.made or _beside(folder)) / f"dynts-{own}"
        return path

    def needs_fit(self, folder: Path) -> bool:
        try:
            return bool(_card(self.fitted_path(folder))["model"] != _model(folder))
        except FileNotFoundError:
            return True

    def fit(
        self, network: Any, traces: Sequence[TokenTrace], folder: Path, facts: Mapping[str, Any]
    ) -> Iterator[Progress]:
        from ponder.policies.dynts.predictor import RECIPES, fit

        own = self.fitted_path(folder)
        yield from fit(network, traces, RECIPES[self.recipe], own, {**facts, "model": _model(folder)})
        yield {"made": str(own / WEIGHTS)}

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


def _model(folder: Path) -> str | None:
    return weights_fingerprint(_beside(folder))


def _card(folder: Path) -> dict[str, Any]:
    card: dict[str, Any] = json.loads((folder / CARD).read_text("utf-8"))
    return card
