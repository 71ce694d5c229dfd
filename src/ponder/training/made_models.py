"""The models that methods make: where they are, what `made.json` says of them, and samples that
methods share.

A made model is a folder in the Hugging Face format with `made.json` beside the weights: the method
with its settings, the model it was made from, and the cost, including that of every model that went
into it. Made models are in `$PONDER_MODELS`, or in `~/.cache/ponder/models`.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from ponder import __version__
from ponder.core import Model, Progress, Task, TrainingProblems, WithWeights, digest, require
from ponder.core.lock import Held, acquire
from ponder.models import models_folder
from ponder.models._local_weights import as_folder, copy_of


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
        cost = {
            name: float(getattr(self, name))
            for name in ("rollout_tokens", "training_tokens", "seconds")
        }
        made = {
            "recipe": settings,
            "from": source,
            "cost": cost,
            "measures": self.measures,
            "notes": self.notes,
            "ponder": __version__,
        }
        (folder / "made.json").write_text(json.dumps(made, indent=1, default=str) + "\n", "utf-8")


Build: TypeAlias = Callable[[Path, MakingRecord], Iterator[Progress]]


def make_once(
    folder: Path, build: Build, complete: Callable[[Path, MakingRecord], None]
) -> Iterator[Progress]:
    """Make what a folder is to hold, unless it is there; by one process at a time.

    `build` writes into a working folder, which may hold what an interrupted build left there;
    `complete` then writes `made.json`, and the folder is moved into place.
    """
    if (folder / "made.json").is_file():
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    lock = acquire(folder.with_suffix(".lock"))
    if lock is None:
        what = f"another process is making {folder.name}"
        raise Held(what, hint="wait until it is done, then run again")
    try:
        # another process may have made it since the look above
        if not (folder / "made.json").is_file():
            yield from _make(folder, build, complete)
    finally:
        lock.close()
    folder.with_suffix(".lock").unlink(missing_ok=True)


def _make(
    folder: Path, build: Build, complete: Callable[[Path, MakingRecord], None]
) -> Iterator[Progress]:
    work = folder.with_suffix(".part")
    work.mkdir(exist_ok=True)
    spent = work / "spent.json"
    before = float(json.loads(spent.read_text("utf-8"))) if spent.is_file() else 0.0
    began, record = time.process_time(), MakingRecord()
    for progress in build(work, record):
        # Written at every step, so that a killed build's CPU time is counted.
        spent.write_text(json.dumps(before + time.process_time() - began), "utf-8")
        yield progress
    record.seconds += before + time.process_time() - began
    complete(work, record)
    for leftover in ("training.pt", "spent.json"):
        (work / leftover).unlink(missing_ok=True)
    for stale in (work / "rollouts", work / "trl", folder):
        shutil.rmtree(stale, ignore_errors=True)
    work.rename(folder)


def write_card(source: Path, folder: Path) -> None:
    """Write the card of weights that were made from others with a card: same model and task, new
    digest.
    """
    if (source / "card.json").is_file():
        card = json.loads((source / "card.json").read_text("utf-8"))
        same = {key: card[key] for key in ("name", "task") if key in card}
        weights = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
        (folder / "card.json").write_text(
            json.dumps({**same, "digest": weights}, indent=1) + "\n", "utf-8"
        )


def local_weights(model: Model, task: Task) -> Path:
    """A folder with a model's weights as safetensors; weights from the hub or a GGUF file are
    converted first.
    """
    return as_folder(require(model, WithWeights).source(task))


def weights_folder(model: Model, task: Task) -> Path:
    """Where `local_weights` finds a model's weights or puts them."""
    return copy_of(require(model, WithWeights).source(task))


def samples_file(
    model: Model, train_on: Sequence[TrainingProblems], problems: int, n: int, seed: int
) -> Path:
    """Where a model's samples are kept, so that methods that train on the same samples draw them
    once.
    """
    key = digest(model.identity(), [p.identity() for p in train_on], problems, n, seed).hex()
    return models_folder() / f"samples-{key[:20]}.json"
