"""Scores with a reward that Ponder trained, or trains one on samples of the model that it scores.

With `id` it is the reward in that folder, which `ponder prepare reward` or `ponder prepare
own_reward` wrote. Without, a method that picks samples (`best_of`) first draws samples of its own
model on training problems, labels them with the task, and trains on them. A reward learns to tell
apart what it was trained on, so one that was trained on other models' errors may not see those of
yours.

    reward = { name = "trained", problems = 550, n = 8 }

Labels come from the task: whether the answer is right and, if the model's codec can check steps,
whether each step is. Duplicates are dropped; no problem that the study asks is trained on. The
weights to start from are the model's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from ponder.core import Model, Scores, Steps, TrainingProblems, UserError, plugins
from ponder.models import read_card
from ponder.rewards._weights import Weighted

VERSION = 1  # raise it when the same settings train another reward
# Settings that don't change what is learned; `training` is handled separately.
UNUSED = ("aggregate", "alpha", "training")
NOT_LEARNED = ("launch", "processes")  # settings of the training that don't either


@dataclass(frozen=True, kw_only=True)
class Trained(Weighted):
    # a folder with a trained reward; if not given, one is trained on samples of the model that is
    # scored
    id: str = ""
    # then: the language model to train, a folder or org/name; if not given, that model's weights
    start: str = ""
    # draws the samples instead: for example the same weights behind an endpoint
    sampler: Model | None = None
    problems: int = 550  # to sample
    n: int = 8  # samples per problem
    # its settings, as for `ponder prepare reward --set`
    training: dict[str, Any] = field(default_factory=dict)

    example: ClassVar[dict[str, Any]] = {"id": "folder-of-weights"}

    def __post_init__(self) -> None:
        super().__post_init__()
        if min(self.problems, self.n) < 1:
            raise UserError("problems and n must be at least 1")
        if self.id and (self.start or self.sampler or self.training):
            unused = "`start`, `sampler` and `training` have no effect"
            message = f"the reward in {self.id} is already trained: {unused}"
            raise UserError(message, hint="remove them, or remove `id` to train another")

    def title(self) -> str:
        if self.id:
            return super().title()
        return "own-sample reward"

    def trained_on(
        self, train_on: Sequence[TrainingProblems], cut: str, seed: int
    ) -> dict[str, Any]:
        """Return what identifies a reward trained on a model's own samples, besides that model."""
        identity = self.identity()
        for name in UNUSED:
            identity.pop(name, None)
        training = dict(self.training)
        for name in NOT_LEARNED:
            training.pop(name, None)
        if training.get("engine") == "ponder":  # the default
            del training["engine"]
        if training:
            identity["training"] = training
        identity["cut"] = cut
        identity["seed"] = seed
        identity["version"] = VERSION
        identity["on"] = [problems.identity() for problems in train_on]
        return identity

    def check_id(self) -> None:
        if not self.id:
            message = (
                "this reward has not been trained: only `best_of` trains one on its own model's"
                " samples"
            )
            raise UserError(message, hint="ponder prepare own_reward STUDY -o DIR, then id = DIR")
        super().check_id()

    def ready(self) -> None:
        plugins.need("torch", f"reward `{self.plugin_name()}`")
        if self.id:
            self.check_id()

    def rate(self, traces: Sequence[Steps]) -> list[Scores]:
        self.check_id()
        if self._reader is not None:
            return self._reader.rate(traces)
        return super().rate(traces)

    def parameters(self) -> int:
        self.check_id()
        if self._reader is not None:
            return self._reader.parameters()
        return super().parameters()

    def release(self) -> None:
        super().release()
        if self._reader:
            self._reader.release()

    @cached_property
    def _reader(self) -> Weighted | None:
        """Return the reward that reads these weights' own tokens, if their card names one."""
        folder = Path(self.id)
        if not folder.is_dir():
            return None
        card = read_card(folder)
        return reader(self, self.id, str(card.get("name", "")))


def reader(reward: Trained, weights: str, codec: str) -> Weighted | None:
    """Return the reward plugin named like a codec, with these weights; None if there is none.

    Its other settings are those of `reward`. Weights that read and write through a codec have no
    use for plain text: their reward reads the codec's tokens.
    """
    if codec not in plugins.names("rewards"):
        return None
    settings = {setting.name: getattr(reward, setting.name) for setting in fields(Weighted)}
    settings["id"] = weights
    codec_reward: Weighted = plugins.load("rewards", codec)(**settings)
    return codec_reward
