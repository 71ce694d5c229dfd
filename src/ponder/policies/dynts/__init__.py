"""Evicts the tokens to which a small network predicts that the answer will attend least (DynTS).

arXiv 2601.18383: a predictor reads each token's last hidden state when the token is generated, and
predicts how much attention the answer will pay to it. `ponder prepare STUDY` trains a predictor for
each model of a study, on the model's own correct traces, and writes it among the made models:
`dynts-…/predictor.safetensors`, with its recipe and accuracy in `card.json`. What it is trained on
is part of an attempt's key, so each study uses its own. With weights that ship with Ponder, a study
without [[train]] uses the predictor that ships next to them, in `dynts/`.

Unlike in the paper, the protected question doesn't count towards the ratio, labels are divided by
their mean, so that one recipe serves every model, and a training step draws tokens, not traces.
`ratio_of = "all"` next to the policy, with `settings = { recipe = "published" }`, is the published
rule: labels 10 · I^0.3 / 0.3, with five times the loss where they are from 4 to 5, and 256 traces
per step.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ponder.core import (
    Policy,
    Progress,
    TokenTrace,
    TrainedPerStudy,
    UserError,
    digest,
    weights_fingerprint,
)

if TYPE_CHECKING:
    from torch import Tensor

    from ponder.kvcache import CacheView

WEIGHTS = "predictor.safetensors"
CARD = "card.json"


@dataclass(frozen=True)
class Dynts(Policy, TrainedPerStudy):
    by_order = False
    per_layer = False
    recipe: Literal["ponder", "published"] = "ponder"  # how its predictor is trained
    # Set by `with_training`: a digest of what it is trained on, and the folder of made models.
    on: Any = field(default="", compare=False)
    made: Any = field(default=None, compare=False)
    predictor: Any = field(default=None, compare=False)  # set by `fitted`

    def fitted(self, folder: Path, tokenizer: Any) -> Dynts:  # noqa: ARG002 needs no vocabulary
        if self.predictor is not None:
            return self
        from safetensors.torch import load_file

        from ponder.policies.dynts.predictor import Predictor

        path = self.fitted_path(folder)
        hint = "ponder prepare STUDY trains one"
        try:
            card = _card(path)
            weights = load_file(path / WEIGHTS)
        except OSError:
            if self.on:
                hint += f", for the weights of the tasks under [[train]], as {path}"
            raise UserError(
                f"there is no predictor for the weights in {folder}", hint=hint
            ) from None
        if self.needs_fit(folder):
            raise UserError(f"the predictor in {folder} was trained for other weights", hint=hint)
        predictor = Predictor(card["width"])
        predictor.load_state_dict({name: tensor.float() for name, tensor in weights.items()})
        return replace(self, predictor=predictor.eval())

    def with_training(self, on: str, made: Path) -> Dynts:
        return replace(self, on=on, made=made)

    def fitted_path(self, folder: Path) -> Path:
        # A separate folder: vLLM reads every safetensors file next to the weights as one of them.
        if not self.on and self.recipe == "ponder":
            return _weights_folder(folder) / "dynts"
        model: str | None = str(folder)  # a file, or a name on the hub: refused by `fit`
        if folder.is_dir():
            model = _model(folder)
        key = digest(self.on, self.recipe, model).hex()[:20]
        path: Path = (self.made or _weights_folder(folder)) / f"dynts-{key}"
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

        path = self.fitted_path(folder)
        yield from fit(
            network, traces, RECIPES[self.recipe], path, {**facts, "model": _model(folder)}
        )
        yield {"made": str(path / WEIGHTS)}

    def token_features(self, hidden: Tensor, ids: Tensor) -> Tensor:  # noqa: ARG002 needs only the states
        assert self.predictor is not None
        predicted: Tensor = self.predictor(hidden.float())
        return predicted

    def score(self, view: CacheView) -> Tensor:
        assert view.features is not None
        return view.features


def _weights_folder(weights: Path) -> Path:
    """Return the folder of a model's weights, which may also be a single .gguf file."""
    if weights.is_dir():
        return weights
    return weights.parent


def _model(folder: Path) -> str | None:
    """Return the fingerprint of a model's weights."""
    return weights_fingerprint(_weights_folder(folder))


def _card(folder: Path) -> dict[str, Any]:
    card: dict[str, Any] = json.loads((folder / CARD).read_text("utf-8"))
    return card
