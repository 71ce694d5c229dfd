"""How much of a study has been answered, for the report of a study that isn't finished."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from ponder.core import Outcome
from ponder.core.text import count
from ponder.runner.cells import Cell


@dataclass(frozen=True)
class Coverage:
    """Attempts that the study asks for, and how many have an answer."""

    asked: int | None  # without searches, which decide that themselves; None: there is nothing else
    answered: int
    failed: int

    @property
    def complete(self) -> bool:
        return not self.failed and (self.asked is None or self.answered >= self.asked)

    def text(self) -> str:
        """What is missing, as a sentence; "" if nothing is."""
        if self.complete:
            return ""
        failed = f"; {self.failed:,} failed" if self.failed else ""
        if self.asked is None:
            return f"incomplete: {count(self.failed, 'attempt')} failed"
        return f"incomplete: {self.answered:,} of {count(self.asked, 'attempt')} answered{failed}"


def coverage(cells: Sequence[Cell], outcomes: Sequence[Outcome]) -> Coverage:
    """Compare what a study asks for with what it got."""
    fixed = {(cell.model_label, cell.task_label, cell.size): cell for cell in cells if not cell.search}
    answered = Counter((o.model, o.task, o.size) for o in outcomes if o.status != "failed")
    failed = sum(o.status == "failed" for o in outcomes)
    if not fixed:
        return Coverage(None, answered.total(), failed)
    asked = sum(_asked(cell, answered[place]) for place, cell in fixed.items())
    return Coverage(asked, sum(answered[place] for place in fixed), failed)


def _asked(cell: Cell, answered: int) -> int:
    """The attempts of a cell. A small task may have fewer problems than the study wants, so an open cell is counted."""
    if cell.problems is not None and answered >= cell.samples * cell.problems:
        return answered
    return cell.samples * sum(1 for _ in cell.asked())
