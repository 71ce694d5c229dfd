"""Asks a model at ten interim analyses, until its attempts answer a question, such as a gate's.

The question is a function of the attempts so far. As in other adaptive runs, an analysis is made of
the first problems of each cell, so that a run that resumes repeats its decisions from the store,
and attempts that the store holds beyond them change nothing.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from ponder.core import Outcome
from ponder.run.adaptive import Round
from ponder.stats.designs.sequential import ANALYSES
from ponder.store.store import Store
from ponder.study.cell import StudyCell


@dataclass(frozen=True)
class Interim:
    """The analyses of some cells. Each cell has as many problems as it may be asked."""

    cells: Sequence[StudyCell]
    answered: Callable[[list[Outcome]], bool]  # whether the attempts answer the question

    @property
    def arms(self) -> Sequence[Sequence[StudyCell]]:
        return (self.cells,)

    @property
    def across_models(self) -> bool:
        return len({cell.model_key for cell in self.cells}) > 1

    def analyses(self) -> Iterator[list[StudyCell]]:
        """Yield for each analysis the cells with the problems that it is made of."""
        previous: list[int] = []
        for analysis in range(1, ANALYSES + 1):
            counts = []
            for cell in self.cells:
                counts.append(math.ceil((cell.quota.problems or 0) * analysis / ANALYSES))
            if counts != previous:
                yield [_first(cell, n) for cell, n in zip(self.cells, counts, strict=True)]
            previous = counts

    def rounds(self, store: Store) -> Iterator[Round]:
        """Yield what to ask next until the question is answered; end if part of it wasn't asked."""
        for cells in self.analyses():
            missing = _missing(store, cells, failed=True)
            if missing:
                yield Round(cells, missing)
            if _missing(store, cells) or self.answered(list(store.outcomes(cells))):
                return

    def last(self, store: Store) -> list[StudyCell]:
        """Return the cells of the last analysis that was made; none if the first wasn't reached."""
        made: list[StudyCell] = []
        for cells in self.analyses():
            if _missing(store, cells):
                return made
            made = cells
            if self.answered(list(store.outcomes(cells))):
                return made
        return made


def limited(cell: StudyCell, problems: Collection[str]) -> StudyCell:
    """Return a cell that may be asked these problems, given by their ids."""
    if cell.task.fixed() is None:  # they are the first ones that the task generates
        return cell.with_quota(problems=min(cell.count, len(problems)), adaptive=True)
    available = itertools.islice(cell.task.problems(cell.size, cell.seed), cell.count)
    ids = [problem.id for problem in available]
    positions = tuple(position for position in cell.order if ids[position] in problems)
    return cell.with_quota(problems=len(positions), positions=positions, adaptive=True)


def _first(cell: StudyCell, problems: int) -> StudyCell:
    positions = cell.quota.positions
    if positions is not None:
        positions = positions[:problems]
    return cell.with_quota(problems=problems, positions=positions, adaptive=False)


def _missing(store: Store, cells: Sequence[StudyCell], *, failed: bool = False) -> int:
    """Count the attempts of these cells that were not made; `failed`: or that failed."""
    missing = 0
    for cell in cells:
        problems = cell.quota.problems or 0
        positions: Collection[int] = range(problems)
        if cell.quota.positions is not None:
            positions = set(cell.quota.positions)
        missing += problems * cell.quota.samples
        for position, (_, answers, attempts, *_) in store.results(cell).items():
            if position in positions:
                missing -= answers if failed else attempts
    return missing
