"""Makes outcomes from the rows of a store, in little memory: equal neighbours are one object.

A report holds every outcome of a study at once. Without this, those of a million attempts at
`execution` take 3 GB.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType, NoneType
from typing import TYPE_CHECKING, Any, TypeVar

from ponder.core import CountedBy, Outcome
from ponder.core.capabilities import equal_answers, parse_answer
from ponder.store.schema import ended, verify_attempt
from ponder.study.cell import StudyCell

if TYPE_CHECKING:
    from ponder.store.store import Store

NOTHING: Mapping[str, Any] = MappingProxyType({})
MOST_VALUES = 50_000  # that are remembered, of each kind
MOST_SAMPLES = 16  # of a problem whose details are compared
Number = TypeVar("Number", int, float)
Value = TypeVar("Value")


class Details(Mapping[str, Any]):
    """A read-only mapping that shares its names with others: half as large as a dictionary."""

    __slots__ = ("_names", "_values")

    def __init__(self, names: tuple[str, ...], values: tuple[Any, ...]) -> None:
        self._names = names
        self._values = values

    def __getitem__(self, name: str) -> Any:
        try:
            return self._values[self._names.index(name)]
        except ValueError:
            raise KeyError(name) from None

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __repr__(self) -> str:
        return repr(dict(self))


class _Numbers(dict[str, Number]):
    """Numbers by their text."""

    def __init__(self, read: Callable[[str], Number]) -> None:
        self._read: Callable[[str], Number] = read

    def __missing__(self, text: str) -> Number:
        value = self._read(text)
        if len(self) < MOST_VALUES:
            self[text] = value
        return value


class OutcomeReader:
    """Reads the rows of a store, in the order of problems."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}
        self._counts: dict[int, int] = {}
        self._counters: dict[CountedBy, CountedBy] = {}
        self._seconds: dict[float, float] = {}
        self._names: dict[tuple[str, ...], tuple[str, ...]] = {}
        self._problem = ""
        self._details: dict[str, Details] = {}  # of this problem
        self._lists: list[list[Any]] = []  # in the details of this problem
        self._decode = json.JSONDecoder(
            parse_int=_Numbers(int).__getitem__, parse_float=_Numbers(float).__getitem__
        ).decode

    def read(
        self, cell: StudyCell, making_cost: Mapping[str, float], rows: Iterator[Sequence[Any]]
    ) -> Iterator[Outcome]:
        """Yield the outcomes of a cell's rows (attempt id, problem name, digest, attempt)."""
        texts = self._texts
        counts = self._counts
        for row_id, name, check, *row in rows:
            verify_attempt(f"attempt {row_id}", row, check)
            if name != self._problem:
                self._next(row_id, name)
            (
                _,
                _,
                sample,
                status,
                correct,
                why,
                details,
                prompt,
                thinking,
                answer,
                seconds,
                counted_by,
                cached,
            ) = row
            yield Outcome(
                cell,
                cell.label,
                self._problem,
                sample,
                ended(status, correct),
                _one(texts, why),
                _one(counts, prompt),
                _one(counts, thinking),
                _one(counts, answer),
                _one(self._seconds, seconds),
                _one(self._counters, counted_by),
                self._compact(details) if details else NOTHING,
                row_id,
                making_cost,
                cached,
            )

    def _next(self, row_id: int, name: Any) -> None:
        if not isinstance(name, str):
            raise ValueError(f"the problem of attempt {row_id} can't be read")
        self._problem = name
        self._details.clear()
        self._lists.clear()

    def _compact(self, text: str) -> Mapping[str, Any]:
        if text in self._details:
            return self._details[text]
        decoded = self._decode(text)
        names = tuple(map(sys.intern, decoded))
        names = self._names.setdefault(names, names)
        values = []
        for value in decoded.values():
            if isinstance(value, list):
                values.append(self._shared(value))
            else:
                values.append(value)
        details = Details(names, tuple(values))
        if len(self._details) < MOST_SAMPLES:
            self._details[text] = details
        return details

    def _shared(self, numbers: list[Any]) -> list[Any]:
        """Return an equal list of this problem if there is one, such as the true running sums."""
        if not {*map(type, numbers)} <= {int, NoneType}:  # 1 equals True and 1.0
            return numbers
        for earlier in self._lists:
            if earlier == numbers:
                return earlier
        if len(self._lists) < MOST_SAMPLES:
            self._lists.append(numbers)
        return numbers


def _one(values: dict[Value, Value], value: Value) -> Value:
    """Return the first of equal values, if there are not too many different ones."""
    first = values.get(value)
    if first is not None:
        return first
    if len(values) < MOST_VALUES:
        values[value] = value
    return value


def with_ballots(store: Store, cells: Sequence[StudyCell]) -> list[Outcome]:
    """Return the outcomes of these cells, with `details["ballot"]` equal for equal answers.

    Statistics count majority votes by it: an outcome has no text. Unparsed and truncated samples
    have none, nor do conversations: a vote on their last turn would say little.
    """
    outcomes = []
    ballots: dict[int, Details] = {}  # details of attempts that have no others
    with store.snapshot():
        for cell in cells:
            votes: dict[tuple[str, int], int] = {}
            if cell.quota.samples > 1:
                votes = _votes(store, cell)
            for outcome in store.outcomes([cell]):
                vote = votes.get((outcome.problem, outcome.sample))
                if vote is None:
                    outcomes.append(outcome)
                    continue
                details: Mapping[str, Any]
                if outcome.details:
                    details = {**outcome.details, "ballot": vote}
                else:
                    details = ballots.setdefault(vote, Details(("ballot",), (vote,)))
                outcomes.append(outcome._replace(details=details))
    return outcomes


def _votes(store: Store, cell: StudyCell) -> dict[tuple[str, int], int]:
    """Return a number for the answer of each problem and sample, equal for equal answers."""
    votes = {}
    for problem, samples in store.answers(cell):
        if len(problem.turns) > 1:
            continue
        # Right and wrong answers are compared separately, so that no comparison of two spellings
        # can put a right answer and a wrong one together.
        offset = 0
        for right in (True, False):
            numbers = []
            answers = []
            for sample, correct, answer in samples:
                if correct == right:
                    numbers.append(sample)
                    answers.append(parse_answer(cell.task, problem, answer))
            for sample, vote in zip(numbers, equal_answers(cell.task, answers), strict=True):
                if vote is not None:
                    votes[problem.id, sample] = offset + vote
            offset = len(answers)
    return votes
