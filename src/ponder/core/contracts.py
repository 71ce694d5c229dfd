"""The interfaces of tasks, models and methods. Figures are in `figure.py`, plugins that score in
`scoring.py`.

A plugin is one file with one class. Its dataclass fields are its keys in a study file; the comment
beside each field is its documentation. These interfaces hold what every plugin has; what only some
can do is in `capabilities.py`.
"""

from __future__ import annotations

import dataclasses
import random
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self

from ponder.core.errors import UserError
from ponder.core.keys import digest, fingerprint, seed_from
from ponder.core.nouns import (
    Completion,
    Grade,
    Prices,
    Problem,
    Request,
    Spend,
    TurnLimit,
)


def not_in_key(default: Any, *, was: str = "") -> Any:
    """A setting that can't change an answer, and so is not part of an attempt's key.

    `was` is its former name.
    """
    return field(default=default, metadata={"not_in_key": True, "was": was})


def renamed(was: str, default: Any = MISSING) -> Any:
    """A setting with a former name, which attempts' keys keep, so that stored attempts stay valid."""
    return field(default=default, metadata={"was": was})


class Plugin:
    """A file in one of the plugin folders; the file's name is the plugin's name."""

    example: ClassVar[dict[str, Any]] = {}  # settings to try it with, if it has required ones

    @classmethod
    def plugin_name(cls) -> str:
        return cls.__name__ if cls.__module__ == "__main__" else cls.__module__.rsplit(".", 1)[-1]

    def identity(self) -> dict[str, Any]:
        """What an attempt's key holds of this plugin: its name, and each setting that isn't the
        default.

        Defaults are left out, so that a new setting with a default doesn't invalidate stored
        attempts.
        """
        changed = {}
        for f in dataclasses.fields(self):  # type: ignore[arg-type]
            default = f.default if f.default_factory is MISSING else f.default_factory()
            value = getattr(self, f.name)
            if not f.metadata.get("not_in_key") and value != default:
                changed[f.metadata.get("was") or f.name] = _identified(value)
        return {"name": self.plugin_name(), **changed}

    def title(self) -> str:
        """Its name in legends."""
        return self.plugin_name()


def _identified(value: Any) -> Any:
    """A setting's value as it enters a key: a file by its content, not by its path; a plugin by its
    identity.
    """
    if isinstance(value, tuple | list):
        return [_identified(one) for one in value]
    return (
        value.identity()
        if isinstance(value, Plugin)
        else fingerprint(value)
        if isinstance(value, Path)
        else value
    )


class Task(Plugin, ABC):
    """Makes problems of a given size and grades answers to them.

    Some tasks can do more, such as conversations: `ponder.core.capabilities`.
    """

    # raise it when the same seed gives another problem or another prompt
    version: ClassVar[int] = 1
    default_sizes: ClassVar[tuple[int, ...]] = ()  # used if a study names no size
    # What size counts, in the plural: "cells". "levels" if sizes are only ranks, "" if there is no
    # word for it.
    unit: ClassVar[str] = ""

    @abstractmethod
    def problem(self, size: int, seed: int) -> Problem:
        """Return one problem; the same size and seed always give the same one."""

    @abstractmethod
    def solve(self, problem: Problem) -> str:
        """Return a right answer, written as a model should write it."""

    @abstractmethod
    def grade(self, problem: Problem, answer: str) -> Grade:
        """Judge the text of an answer. Any text must be accepted without raising."""

    def fixed(self) -> Sequence[Problem] | None:
        """Return every problem of a task with a fixed set; None for a task that generates them."""
        return None

    def sizes(self) -> tuple[int, ...]:
        """Return the sizes used if a study names none."""
        fixed = self.fixed()
        if fixed is None:
            return self.default_sizes
        return tuple(sorted({problem.size for problem in fixed}))

    def check_size(self, size: int) -> None:
        """Raise `UserError` for a size that can't be made."""
        if self.fixed() is not None and size not in self.sizes():
            raise UserError(
                f"there is no problem of size {size}", hint=f"the sizes are {list(self.sizes())}"
            )

    def problems(self, size: int, seed: int) -> Iterator[Problem]:
        """Yield distinct problems of one size in a fixed order; endless unless the set is fixed or
        exhausted.
        """
        fixed = self.fixed()
        if fixed is None:
            return generated_problems(self, self.identity(), size, seed)
        return (problem for problem in fixed if problem.size == size)


def generated_problems(
    task: Task, identity: Mapping[str, Any], size: int, seed: int
) -> Iterator[Problem]:
    """Yield distinct problems of one size.

    Tasks whose problem seeds come from the same identity share their seeds.
    """
    ids: set[bytes] = set()
    key = digest(identity, task.version, size, seed).hex()
    index = repeats = 0
    while repeats < 200:  # enough to find the last of 240 puzzles, and no endless search among ten
        problem = task.problem(size, seed_from(key, index))
        index += 1
        short_id = digest(problem.id)[:8]
        if short_id in ids:
            repeats += 1
        else:
            repeats = 0
            ids.add(short_id)
            yield problem


@dataclass(frozen=True)
class TrainingProblems:
    """Problems of one task and size that methods may train on: none of them is asked by the study."""

    task: Task
    size: int
    seed: int  # the study's
    asked: int | None = 0  # problems of this task and size that the study asks; None: all of them
    # Whether an attempt's key holds them if a policy learns from them: the study names them, under
    # [[train]], or the weights don't ship with what a policy learnt.
    in_key: bool = False

    def identity(self) -> dict[str, Any]:
        # Without `asked`, so that a study that asks more needn't train again; but a fixed set has
        # no other problems.
        asked = {} if self.task.fixed() is None else {"asked": self.asked}
        return {
            **self.task.identity(),
            "version": self.task.version,
            "size": self.size,
            "seed": self.seed,
            **asked,
        }

    def problems(self, seed: int) -> Iterator[Problem]:
        """The problems in an order that depends on the seed; endless if the task generates them."""
        asked = {
            problem.id for problem in islice(self.task.problems(self.size, self.seed), self.asked)
        }
        if self.task.fixed() is None:
            drawn: Iterable[Problem] = self.task.problems(
                self.size, seed_from("practice", self.seed, seed)
            )
        else:
            drawn = list(self.task.problems(self.size, 0))
            random.Random(seed).shuffle(drawn)
        return (problem for problem in drawn if problem.id not in asked)


@dataclass(kw_only=True)
class Model(Plugin, ABC):
    """Answers requests. It may hold connections or weights from `async with` to its end.

    Some models can do more, such as those with local weights: `ponder.core.capabilities`.
    """

    label: str = not_in_key("")  # its name in legends
    concurrency: int = not_in_key(1, was="in_flight")  # requests in progress at once
    # per million tokens: { input = 0.5, output = 2.0, currency = "USD" }
    prices: Prices | None = not_in_key(None)

    @abstractmethod
    async def complete(self, request: Request) -> Completion:
        """Answer one request, or raise `ModelFailure`."""

    def check(self, task: Task, size: int) -> None:
        """Raise `UserError` for a task or size that the model can't answer, before a run starts."""

    def ready(self) -> None:
        """Raise `UserError` for what is missing on this machine, such as the variable that holds an
        API key.

        Called before a run and by `ponder plan`; a report needs no key.
        """

    def server(self) -> str:
        """Name the server that it waits for; "" is this machine.

        Models that wait for different servers run at the same time, others one by one.
        """
        return ""

    def max_tokens(self) -> int | None:
        """Return the most completion tokens of one reply; None if there is no limit."""
        return None

    def turn_limit(self, prompt_tokens: int, budget: int | None = None) -> Spend | None:
        """Return the most that one call may take; None if its reply has no limit."""
        budgets = [tokens for tokens in (self.max_tokens(), budget) if tokens is not None]
        if not budgets:
            return None
        return Spend(prompt_tokens, min(budgets), calls=1)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        return None


class Method(Plugin, ABC):
    """Turns a model into another one: cheaper, shorter or more accurate.

    A method that trains, or prepares something else, also inherits
    `ponder.core.capabilities.Prepared`.
    """

    # A model, a task and a size to try it on in `ponder check`, as in a study.
    tried_on: ClassVar[tuple[dict[str, Any], dict[str, Any], int]] = (
        {"name": "oracle", "tokens_at_zero": 1000},
        {"name": "chain_sum"},
        4,
    )

    @abstractmethod
    def apply(self, model: Model) -> Model:
        """Return the resulting model."""

    def turn_limit(self, inner: TurnLimit) -> TurnLimit:
        """Return the most that one turn of the resulting model may take, given that of the model it
        is applied to.

        A method that asks more than once per turn, or with another prompt or budget, says so here:
        `ponder plan` and the study's caps depend on it.
        """
        return inner

    def asks(self) -> Sequence[Model]:
        """Return other models that a turn of the resulting model asks, such as a judge: caps count
        them too.
        """
        return ()

    def ready(self) -> None:
        """Raise `UserError` for what is missing on this machine, as `Model.ready` does."""

    def check(self, model: Model, task: Task) -> None:
        """Raise `UserError` for a model that it can't be applied to, before a run starts."""
