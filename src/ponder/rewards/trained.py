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
# settings that don't change what is learned, or that are told apart below
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
            what = f"the reward in {self.id} is already trained: `start`, `sampler` and `training` have no effect"
            raise UserError(what, hint="remove them, or remove `id` to train another")

    def title(self) -> str:
        return super().title() if self.id else "own-sample reward"

    def trained_on(
        self, train_on: Sequence[TrainingProblems], cut: str, seed: int
    ) -> dict[str, Any]:
        """What identifies the reward that is trained on a model's own samples, besides that model."""
        own = {name: value for name, value in self.identity().items() if name not in UNUSED}
        training = {name: value for name, value in self.training.items() if name not in NOT_LEARNED}
        if training.get("engine") == "ponder":  # the default
            del training["engine"]
        own |= {"training": training} if training else {}
        on = [problems.identity() for problems in train_on]
        return {**own, "cut": cut, "seed": seed, "version": VERSION, "on": on}

    def check_id(self) -> None:
        if not self.id:
            what = "this reward has not been trained: only `best_of` trains one on its own model's samples"
            raise UserError(what, hint="ponder prepare own_reward STUDY -o DIR, then id = DIR")
        super().check_id()

    def ready(self) -> None:
        plugins.need("torch", f"reward `{self.plugin_name()}`")
        if self.id:
            self.check_id()

    def rate(self, traces: Sequence[Steps]) -> list[Scores]:
        self.check_id()
        return super().rate(traces) if self._reader is None else self._reader.rate(traces)

    def parameters(self) -> int:
        self.check_id()
        return super().parameters() if self._reader is None else self._reader.parameters()

    def release(self) -> None:
        super().release()
        if self._reader:
            self._reader.release()

    @cached_property
    def _reader(self) -> Weighted | None:
        """The reward that reads these weights' own tokens, if their card names a model with such a
        reward.
        """
        card = read_card(Path(self.id)) if Path(self.id).is_dir() else {}
        return reader(self, self.id, str(card.get("name", ""))) if card else None


def reader(reward: Trained, weights: str, codec: str) -> Weighted | None:
    """The reward plugin named like a codec, with these weights and the settings of this reward;
    None if there is none.

    Weights that read and write through a codec have no use for plain text: their reward reads the
    codec's tokens.
    """
    if codec not in plugins.names("rewards"):
        return None
    own = {f.name: getattr(reward, f.name) for f in fields(Weighted) if f.name != "id"}
    made: Weighted = plugins.load("rewards", codec)(id=weights, **own)
    return made
