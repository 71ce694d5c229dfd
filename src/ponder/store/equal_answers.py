"""Tells statistics which stored samples of a problem gave the same answer, so that majority votes
can be counted.

The store keeps replies, not parsed answers, and an outcome has no text: it gets a number, its
ballot.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ponder.core import Outcome
from ponder.core.capabilities import equal_answers, parse_answer
from ponder.store.outcomes import Details
from ponder.store.store import Store
from ponder.study.cell import StudyCell


def with_ballots(store: Store, cells: Sequence[StudyCell]) -> list[Outcome]:
    """The outcomes of these cells. Samples of a problem with the same answer have the same
    `details["ballot"]`.

    Unparsed and truncated samples have none, nor do conversations: a vote on their last turn would
    say little.
    """
    outcomes = []
    alone: dict[int, Details] = {}  # the details of attempts that have no other
    with store.snapshot():
        for cell in cells:
            votes = dict(_votes(store, cell)) if cell.quota.samples > 1 else {}
            for o in store.outcomes([cell]):
                vote = votes.get((o.problem, o.sample))
                if vote is None:
                    outcomes.append(o)
                elif o.details:
                    outcomes.append(o._replace(details={**o.details, "ballot": vote}))
                else:
                    outcomes.append(
                        o._replace(details=alone.setdefault(vote, Details(("ballot",), (vote,))))
                    )
    return outcomes


def _votes(store: Store, cell: StudyCell) -> Iterator[tuple[tuple[str, int], int | None]]:
    for problem, samples in store.answers(cell):
        if len(problem.turns) > 1:
            continue
        # Apart, so that no comparison of two spellings can put a right answer and a wrong one
        # together.
        right, wrong = (
            [(n, answer) for n, ok, answer in samples if ok == correct] for correct in (True, False)
        )
        for first, part in ((0, right), (len(right), wrong)):
            parsed = [parse_answer(cell.task, problem, answer) for _, answer in part]
            for (sample, _), vote in zip(part, equal_answers(cell.task, parsed), strict=True):
                yield (problem.id, sample), None if vote is None else first + vote
