"""Runs cells in ten steps, until their attempts answer a question, such as a gate's.

After each step there is an interim analysis: a function of the attempts so far says whether the
question is answered. As in other adaptive runs, an analysis is made of
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
    """The interim analyses of some cells, whose quotas are the most problems that may be asked."""

    cells: Sequence[StudyCell]
    answered: Callable[[list[Outcome]], bool]  # whether the attempts answer the question

    @property
    def arms(self) -> Sequence[Sequence[StudyCell]]:
        return (self.cells,)

    @property
    def across_models(self) -> bool:
        return len({cell.model_key for cell in self.cells}) > 1

    def analyses(self) -> Iterator[list[StudyCell]]:
        """Yield the cells of each analysis, limited to the problems that it includes."""
        previous: list[int] = []
        for analysis in range(1, ANALYSES + 1):
            counts = []
            for cell in self.cells:
                counts.append(math.ceil((cell.quota.problems or 0) * analysis / ANALYSES))
            if counts != previous:
                yield [_first(cell, n) for cell, n in zip(self.cells, counts, strict=True)]
            previous = counts

    def rounds(self, store: Store) -> Iterator[Round]:
        """Yield rounds to run until the question is answered, or a round was not completed."""
        for cells in self.analyses():
            missing = _missing(store, cells, failed=True)
            if missing:
                yield Round(cells, missing)
            if _missing(store, cells) or self.answered(list(store.outcomes(cells))):
                return

    def last(self, store: Store) -> list[StudyCell]:
        """Return the cells of the last analysis, or none if the run ended before the first."""
        last_cells: list[StudyCell] = []
        for cells in self.analyses():
            if _missing(store, cells):
                return last_cells
            last_cells = cells
            if self.answered(list(store.outcomes(cells))):
                return last_cells
        return last_cells


def with_problems(cell: StudyCell, problems: Collection[str]) -> StudyCell:
    """Return a cell with its problems limited to these ids."""
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
    """Count the attempts that these cells lack; with `failed`, failed attempts count as lacking."""
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
