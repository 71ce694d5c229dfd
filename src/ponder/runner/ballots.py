"""Tells statistics which stored samples of a problem gave the same answer, so that majority votes can be counted.

The store keeps replies, not parsed answers, and an outcome has no text: it gets a number, its ballot.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from ponder.core import Attempt, Outcome
from ponder.core.ballots import ballots
from ponder.runner.cells import Cell
from ponder.runner.store import Store


def with_ballots(store: Store, cells: Sequence[Cell]) -> list[Outcome]:
    """The outcomes of these cells. Samples of a problem with the same answer have the same `details["ballot"]`.

    Unparsed and truncated samples have none, nor do conversations: a vote on their last turn would say little.
    """
    outcomes = []
    with store.snapshot():
        for cell in cells:
            votes = dict(_votes(store, cell)) if cell.samples > 1 else {}
            for o in store.outcomes([cell]):
                vote = votes.get((o.problem, o.sample))
                outcomes.append(o if vote is None else o._replace(details={**o.details, "ballot": vote}))
    return outcomes


def _votes(store: Store, cell: Cell) -> Iterator[tuple[tuple[str, int], int | None]]:
    for _, group in itertools.groupby(store.attempts(cell), key=lambda done: done.position):
        graded = [done.attempt for done in group if done.attempt.status == "graded"]
        # Apart, so that no comparison of two spellings can put a right answer and a wrong one together.
        right, wrong = ([a for a in graded if a.correct == correct] for correct in (True, False))
        for first, part in ((0, right), (len(right), wrong)):
            for attempt, vote in zip(part, ballots(cell.task, [_parsed(cell, a) for a in part]), strict=True):
                yield (attempt.problem.id, attempt.sample), None if vote is None else first + vote


def _parsed(cell: Cell, attempt: Attempt) -> object:
    if len(attempt.problem.turns) > 1:
        return None
    return cell.task.parse(attempt.problem, attempt.completions[-1].answer)
