"""The interfaces of tasks, models, methods and figures. A plugin is one class in one file.

A plugin is a dataclass. Its fields are its keys in a study file, and the comment at each field is
the key's documentation. The file's name is the plugin's name. To write one, subclass `Task`,
`Model`, `Method` or `Figure` and define the abstract methods; every other method has a default.
`ponder new task NAME` writes a file to start from, and `ponder check ./NAME.py` runs it against its
interface.

An attempt's key is a hash of everything that can change its answer; the store finds attempts by it.

What only some plugins can do, such as conversations or local weights, is in `capabilities.py`.
Eviction policies and rewards are in `scoring.py`.
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
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeAlias

from ponder.core.errors import UserError
from ponder.core.keys import digest, fingerprint, seed_from
from ponder.core.nouns import (
    Completion,
    Grade,
    Outcome,
    Prices,
    Problem,
    Request,
    Spend,
    Tables,
    TurnLimit,
)

if TYPE_CHECKING:
    import altair

# Repeated problems in a row after which a generator counts as exhausted: enough to find the last of
# 240 puzzles, and few enough not to search forever where there are only ten.
MAX_REPEATS = 200
# The type of a figure's setting that holds a model's label; "" for none.
ModelLabel: TypeAlias = str


def not_in_key(default: Any, *, was: str = "") -> Any:
    """Declare a setting that can't change an answer, so it isn't part of an attempt's key.

    Attempts stay valid when such a setting changes. `was` is its former name.

        concurrency: int = not_in_key(1)
    """
    return field(default=default, metadata={"not_in_key": True, "was": was})


def renamed(was: str, default: Any = MISSING) -> Any:
    """Declare a setting that had another name before.

    Keys of attempts keep the former name, so stored attempts stay valid; in a study file the former
    name is an error that says the new one.
    """
    return field(default=default, metadata={"was": was})


class Plugin:
    """The base of every plugin: its name, its identity in keys, and its title in legends."""

    # Settings that `ponder check` and `ponder show` try the plugin with, if it has required ones.
    example: ClassVar[dict[str, Any]] = {}

    @classmethod
    def plugin_name(cls) -> str:
        """Return the name that a study file uses: that of the plugin's file."""
        if cls.__module__ == "__main__":
            return cls.__name__
        return cls.__module__.rsplit(".", 1)[-1]

    def identity(self) -> dict[str, Any]:
        """Return this plugin's part of an attempt's key: its name and its non-default settings.

        Defaults are left out, so that a new setting with a default doesn't invalidate stored
        attempts. Override it to add what else changes an answer, such as a digest of weights.
        """
        identity: dict[str, Any] = {"name": self.plugin_name()}
        for setting in dataclasses.fields(self):  # type: ignore[arg-type]
            if setting.metadata.get("not_in_key"):
                continue
            default = setting.default
            if setting.default_factory is not MISSING:
                default = setting.default_factory()
            value = getattr(self, setting.name)
            if value != default:
                key = setting.metadata.get("was") or setting.name
                identity[key] = _identity_of(value)
        return identity

    def title(self) -> str:
        """Return the plugin's name in legends."""
        return self.plugin_name()


def _identity_of(value: Any) -> Any:
    """Return a setting's value for the key: a fingerprint for a file, its identity for a plugin."""
    if isinstance(value, tuple | list):
        return [_identity_of(item) for item in value]
    if isinstance(value, Plugin):
        return value.identity()
    if isinstance(value, Path):
        return fingerprint(value)
    return value


class Task(Plugin, ABC):
    """Generates problems of a given size and grades answers to them.

        @dataclass(frozen=True)
        class Addition(Task):
            default_sizes = (2, 4, 8)

            def problem(self, size, seed):
                numbers = random.Random(seed).choices(range(10), k=size)
                text = " + ".join(map(str, numbers))
                return Problem(text, size, (f"What is {text}?",), gold=sum(numbers))

            def solve(self, problem):
                return str(problem.gold)

            def grade(self, problem, answer):
                correct = answer.strip() == str(problem.gold)
                return Grade(correct, parsed=answer.strip(), why="" if correct else "wrong sum")

    Tasks with several turns also inherit `ponder.core.Conversation`; other things that only some
    tasks can do are in `ponder.core.capabilities` too.
    """

    # Raise it when the same seed gives another problem or another prompt: stored attempts then
    # belong to the earlier version.
    version: ClassVar[int] = 1
    # The sizes asked if a study names none.
    default_sizes: ClassVar[tuple[int, ...]] = ()
    # What size counts, in the plural, for axes: "cells". "levels" if sizes are only ranks, "" if
    # there is no word for it.
    unit: ClassVar[str] = ""

    @abstractmethod
    def problem(self, size: int, seed: int) -> Problem:
        """Return one problem. The same size and seed must always give the same one.

        `problems` calls it with as many seeds as a study needs; two seeds may give equal problems.
        """

    @abstractmethod
    def solve(self, problem: Problem) -> str:
        """Return a correct answer as a model should write it; `grade` must accept it.

        `ponder show` prints it, the `oracle` model answers with it, and `ponder check` grades it.
        """

    @abstractmethod
    def grade(self, problem: Problem, answer: str) -> Grade:
        """Grade the text of a reply, after each attempt and again on `ponder regrade`.

        Accept any text without raising: no answer in it is `Grade(False, why="no number")`.
        """

    def fixed(self) -> Sequence[Problem] | None:
        """Return all problems of a benchmark; None, the default, for a task that generates them."""
        return None

    def sizes(self) -> tuple[int, ...]:
        """Return the sizes that a study asks if it names none."""
        fixed = self.fixed()
        if fixed is None:
            return self.default_sizes
        return tuple(sorted({problem.size for problem in fixed}))

    def check_size(self, size: int) -> None:
        """Raise `UserError` if the task has no problems of a size. Called when a study is read."""
        if self.fixed() is not None and size not in self.sizes():
            sizes = list(self.sizes())
            raise UserError(f"there is no problem of size {size}", hint=f"the sizes are {sizes}")

    def problems(self, size: int, seed: int) -> Iterator[Problem]:
        """Yield distinct problems of one size in a fixed order, until there are no more.

        A run takes as many as its study asks. Few tasks need to override it.
        """
        fixed = self.fixed()
        if fixed is None:
            return generated_problems(self, self.identity(), size, seed)
        return (problem for problem in fixed if problem.size == size)


def generated_problems(
    task: Task, identity: Mapping[str, Any], size: int, seed: int
) -> Iterator[Problem]:
    """Yield distinct problems of one size from `Task.problem`.

    Problem seeds are hashed from `identity`: tasks that pass the same one share their seeds.
    """
    seen: set[bytes] = set()
    key = digest(identity, task.version, size, seed).hex()
    index = 0
    repeats = 0
    while repeats < MAX_REPEATS:
        problem = task.problem(size, seed_from(key, index))
        index += 1
        short_id = digest(problem.id)[:8]
        if short_id in seen:
            repeats += 1
        else:
            repeats = 0
            seen.add(short_id)
            yield problem


@dataclass(frozen=True)
class TrainingProblems:
    """Problems of one task and size that methods may train on: the study asks none of them."""

    task: Task
    size: int
    seed: int  # the study's
    # How many problems of this task and size the study asks; None if it asks all of them.
    asked: int | None = 0
    # Whether keys of attempts include these problems, if an eviction policy is trained on them.
    # They don't for weights that ship with a trained policy, unless the study has a [[train]].
    in_key: bool = False

    def identity(self) -> dict[str, Any]:
        """Return the part that these problems have in the key of a model trained on them."""
        identity = {
            **self.task.identity(),
            "version": self.task.version,
            "size": self.size,
            "seed": self.seed,
        }
        # A generator never runs out, so a study that asks more problems needn't train again. In a
        # fixed set, every problem asked is one less to train on.
        if self.task.fixed() is not None:
            identity["asked"] = self.asked
        return identity

    def problems(self, seed: int) -> Iterator[Problem]:
        """Yield the problems in an order that depends on the seed; endless for a generator."""
        evaluated = islice(self.task.problems(self.size, self.seed), self.asked)
        evaluated_ids = {problem.id for problem in evaluated}
        candidates: Iterable[Problem]
        if self.task.fixed() is None:
            candidates = self.task.problems(self.size, seed_from("practice", self.seed, seed))
        else:
            shuffled = list(self.task.problems(self.size, 0))
            random.Random(seed).shuffle(shuffled)
            candidates = shuffled
        return (problem for problem in candidates if problem.id not in evaluated_ids)


@dataclass(kw_only=True)
class Model(Plugin, ABC):
    """Answers requests.

        @dataclass
        class Echo(Model):
            async def complete(self, request):
                text = request.messages[-1].content
                tokens = len(text.split())
                return Completion("", text, "end", Bill(tokens, 0, tokens, counted_by="estimate"))

    A run opens a model with `async with` and calls `complete` up to `concurrency` times at once, so
    connections and weights belong in `__aenter__`. What only some models can do, such as those
    with local weights, is in `ponder.core.capabilities`.
    """

    label: str = not_in_key("")  # its name in legends
    concurrency: int = not_in_key(1, was="in_flight")  # requests in progress at once
    # per million tokens: { input = 0.5, output = 2.0, currency = "USD" }
    prices: Prices | None = not_in_key(None)

    @abstractmethod
    async def complete(self, request: Request) -> Completion:
        """Answer one request, or raise `ModelFailure` if there is no answer.

        Return the thinking and the answer separately, and a `Bill` of the tokens they took.
        """

    def check(self, task: Task, size: int) -> None:
        """Raise `UserError` for a task or size that the model can't answer, before a run starts."""

    def ready(self) -> None:
        """Raise `UserError` if something is missing on this machine, such as an API key.

        Called before a run and by `ponder plan`, not by a report.
        """

    def server(self) -> str:
        """Return an id of the server that answers; "", the default, for this machine.

        A run calls models on different servers at the same time, and those on one server one after
        another.
        """
        return ""

    def max_tokens(self) -> int | None:
        """Return the maximum completion tokens of one reply; None if there is no limit."""
        return None

    def turn_limit(self, prompt_tokens: int, budget: int | None = None) -> Spend | None:
        """Return an upper bound on what one call may spend; None if its reply has no limit.

        `ponder plan` and the study's caps are computed from it. `budget` is a limit on the
        completion tokens that a method sets.
        """
        limits = [tokens for tokens in (self.max_tokens(), budget) if tokens is not None]
        if not limits:
            return None
        return Spend(prompt_tokens, min(limits), calls=1)

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

        @dataclass(frozen=True)
        class Brief(Method):
            def apply(self, model):
                return _Brief(model)

        class _Brief(Wrapped):
            async def complete(self, request):
                messages = (Message("system", "Be brief."), *request.messages)
                return await self.inner.complete(replace(request, messages=messages))

    A method that trains, or prepares something else, also inherits `ponder.core.Prepared`.
    """

    # A model, a task and a size that `ponder check` tries it on, as tables of a study.
    tried_on: ClassVar[tuple[dict[str, Any], dict[str, Any], int]] = (
        {"name": "oracle", "tokens_at_zero": 1000},
        {"name": "chain_sum"},
        4,
    )

    @abstractmethod
    def apply(self, model: Model) -> Model:
        """Return the resulting model. Called once per cell, after `Prepared.make` if it has one."""

    def turn_limit(self, inner: TurnLimit) -> TurnLimit:
        """Return the `turn_limit` of the resulting model, given that of the model it is applied to.

        Override it if a turn makes several calls, or calls with another prompt or budget: `ponder
        plan` and the study's caps are computed from it.
        """
        return inner

    def asks(self) -> Sequence[Model]:
        """Return further models that a turn calls, such as a judge, so that caps count them."""
        return ()

    def ready(self) -> None:
        """Raise `UserError` if something is missing on this machine, as `Model.ready` does."""

    def check(self, model: Model, task: Task) -> None:
        """Raise `UserError` for a model that it can't be applied to, before a run starts."""


class Figure(Plugin, ABC):
    """Turns outcomes into tables of estimates, and draws a chart from these tables alone.

        @dataclass(frozen=True)
        class Counts(Figure):
            def estimate(self, outcomes):
                counts = Counter(outcome.size for outcome in outcomes)
                rows = [{"size": size, "attempts": counts[size]} for size in sorted(counts)]
                return {"sizes": rows}

            def draw(self, tables):
                chart = alt.Chart(values(tables["sizes"]))
                return themed(chart.mark_bar().encode(x="size:Q", y="attempts:Q"))

    Because a chart sees only the tables, the chart, its CSV file and the page always agree.
    """

    # Settings of methods and details of attempts that it can't be drawn without, each with a hint.
    # A name that is one of the figure's own keys stands for that key's value. Write a literal:
    # `study/check.py` parses it from the source, because importing Altair takes 0.3 s.
    needs: ClassVar[Mapping[str, str]] = {}
    # Whether outcomes need `details["ballot"]`, a number that is the same for all samples of a
    # problem with equal answers. Stored answers are parsed again only for figures that set it.
    counts_votes: ClassVar[bool] = False
    # Whether it compares two models. Other figures are not given the outcomes of a setting that has
    # no effect, such as an effort that the server ignores.
    compares_two: ClassVar[bool] = False

    @abstractmethod
    def estimate(self, outcomes: Sequence[Outcome]) -> Tables:
        """Return every number that is drawn, as named lists of rows of plain JSON values.

        The result must not depend on the order of the outcomes.
        """

    @abstractmethod
    def draw(self, tables: Tables) -> altair.TopLevelMixin:
        """Return the chart of what `estimate` returned."""

    def findings(self, tables: Tables) -> list[str]:  # noqa: ARG002 for subclasses
        """Return what the figure shows, as full sentences for the text below it on the page."""
        return []
