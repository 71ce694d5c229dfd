"""The models that methods make: where they are, what `made.json` says of them, and samples that methods share.

A made model is a folder in the Hugging Face format with `made.json` beside the weights: the method with its settings,
the model it was made from, and the cost, including that of every model that went into it. Made models are in
`$PONDER_MODELS`, or in `~/.cache/ponder/models`.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ponder import __version__
from ponder.core import Model, Task, TrainingProblems, digest
from ponder.models._torch_engine import load_anew


def models_folder() -> Path:
    return Path(os.environ.get("PONDER_MODELS") or Path.home() / ".cache" / "ponder" / "models")


@dataclass
class MakingRecord:
    """What making a model cost, and what `made.json` and figures should say of it."""

    rollout_tokens: int = 0  # sampled, or read by a reward
    training_tokens: int = 0
    seconds: float = 0.0  # of CPU
    notes: dict[str, Any] = field(default_factory=dict)
    measures: dict[str, float] = field(default_factory=dict)  # for figures, in `Outcome.made`

    def add_cost(self, made: Mapping[str, float]) -> None:
        """Add the cost of another model that went into this one, as `Model.made` gives it."""
        self.rollout_tokens += int(made.get("rollout_tokens", 0))
        self.training_tokens += int(made.get("training_tokens", 0))
        self.seconds += made.get("seconds", 0.0)

    def write(self, folder: Path, settings: Mapping[str, Any], source: Mapping[str, Any]) -> None:
        """Write `made.json`: with it, the model is complete."""
        cost = {name: float(getattr(self, name)) for name in ("rollout_tokens", "training_tokens", "seconds")}
        made = {
            "recipe": settings,
            "from": source,
            "cost": cost,
            "measures": self.measures,
            "notes": self.notes,
            "ponder": __version__,
        }
        (folder / "made.json").write_text(json.dumps(made, indent=1, default=str) + "\n", "utf-8")


def write_card(source: Path, folder: Path) -> None:
    """Write the card of weights that were made from others with a card: same model and task, new digest."""
    if (source / "card.json").is_file():
        card = json.loads((source / "card.json").read_text("utf-8"))
        same = {key: card[key] for key in ("name", "task") if key in card}
        weights = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
        (folder / "card.json").write_text(json.dumps({**same, "digest": weights}, indent=1) + "\n", "utf-8")


def local_weights(model: Model, task: Task) -> Path:
    """A folder with a model's weights as safetensors; weights from the hub or a GGUF file are converted first."""
    source = model.source(task)
    if source.folder.is_dir():
        return source.folder
    folder = models_folder() / f"copy-{digest(str(source.folder), source.revision, source.dtype).hex()[:20]}"
    if not folder.is_dir():
        loaded, new = load_anew(source), folder.with_suffix(".new")
        loaded.model.save_pretrained(new)
        loaded.tokenizer.save_pretrained(new)
        new.rename(folder)
    return folder


def samples_file(model: Model, train_on: Sequence[TrainingProblems], problems: int, n: int, seed: int) -> Path:
    """Where a model's samples are kept, so that methods that train on the same samples draw them once."""
    key = digest(model.identity(), [p.identity() for p in train_on], problems, n, seed).hex()
    return models_folder() / f"samples-{key[:20]}.json"
