"""Measures what the thinking of stored attempts is made of, from their texts.

It is done when it is asked for, so that it works for every stored attempt and costs a run nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from ponder.core import Attempt, Outcome
from ponder.core.capabilities import SlowGrading, parse_answer
from ponder.store.outcomes import Details
from ponder.store.store import Store
from ponder.study.cell import StudyCell
from ponder.traces.anatomy import Anatomy, anatomy

# By the key of the cell, then by the problem's id and the sample.
Anatomies: TypeAlias = Mapping[bytes, Mapping[tuple[str, int], Anatomy]]


def attempt_anatomy(cell: StudyCell, attempt: Attempt, answer: Any) -> Anatomy | None:
    """Return what an attempt's replies are made of, given the parsed answer; None if unknown."""
    if attempt.ended in ("failed", "open"):
        return None
    if attempt.ended not in ("right", "wrong"):
        answer = None  # what is parsed of a truncated reply is not its answer
    one_call = not cell.methods
    limit = cell.turn_limit(0, None)
    if limit is not None:
        one_call = limit.calls == 1
    return anatomy(attempt.completions, answer, one_call=one_call)


def anatomies(store: Store, cells: Sequence[StudyCell]) -> Anatomies:
    """Read every attempt of these cells and return what their replies are made of."""
    by_cell: dict[bytes, dict[tuple[str, int], Anatomy]] = {}
    with store.snapshot():
        for cell in cells:
            task = cell.task
            parses_slowly = isinstance(task, SlowGrading) and task.is_slow()
            of_cell: dict[tuple[str, int], Anatomy] = {}
            for done in store.attempts(cell):
                attempt = done.attempt
                answer = None
                if len(attempt.completions) == 1 and not parses_slowly:
                    answer = parse_answer(task, attempt.problem, attempt.completions[0].answer)
                measured = attempt_anatomy(cell, attempt, answer)
                if measured is not None:
                    of_cell[attempt.problem.id, attempt.sample] = measured
            by_cell[cell.key] = of_cell
    return by_cell


def with_anatomies(outcomes: Sequence[Outcome], measured: Anatomies) -> list[Outcome]:
    """Return the outcomes, with `details["anatomy"]` where it is known."""
    added = []
    for outcome in outcomes:
        of_attempt = measured.get(outcome.cell.key, {}).get((outcome.problem, outcome.sample))
        if of_attempt is None:
            added.append(outcome)
            continue
        details = outcome.details
        extended = Details((*details, "anatomy"), (*details.values(), of_attempt))
        added.append(outcome._replace(details=extended))
    return added
