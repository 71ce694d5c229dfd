"""How much of a study has been answered, for the report of a study that isn't finished."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from ponder.core import Cell, Outcome
from ponder.core.text import count
from ponder.study.cell import StudyCell


@dataclass(frozen=True)
class Coverage:
    """Attempts that the study asks for, and how many have an answer."""

    asked: int | None  # without searches, which decide that themselves; None: there is nothing else
    answered: int
    failed: int
    searching: bool = False  # whether a search has not ended

    @property
    def complete(self) -> bool:
        return not self.failed and not self.searching and (self.asked is None or self.answered >= self.asked)

    def text(self) -> str:
        """What is missing, as a sentence; "" if nothing is."""
        if self.complete:
            return ""
        asked = "" if self.asked is None else f"{self.answered:,} of {count(self.asked, 'attempt')} answered"
        failed = f"{count(self.failed, 'attempt')} failed" if self.failed else ""
        search = "a search has not ended" if self.searching else ""
        return f"incomplete: {'; '.join(part for part in (asked, failed, search) if part)}"


def coverage(cells: Sequence[StudyCell], outcomes: Sequence[Outcome]) -> Coverage:
    """Compare what a study asks for with what it got."""
    fixed = [cell for cell in dict.fromkeys(cells) if not cell.quota.search]
    answered: Counter[Cell] = Counter()
    failed: Counter[Cell] = Counter()
    for o in outcomes:
        counter = answered if o.answered else failed
        counter[o.cell] += 1
    searching = any(_searching(group, outcomes) for group in _searches(cells))
    if not fixed:
        return Coverage(None, answered.total(), failed.total(), searching)
    asked = sum(_asked(cell, answered[cell] + failed[cell]) for cell in fixed)
    return Coverage(asked, sum(answered[cell] for cell in fixed), failed.total(), searching)


def _searches(cells: Sequence[StudyCell]) -> list[list[StudyCell]]:
    """The cells of each search: those of one model and task."""
    groups: dict[tuple[bytes, bytes], list[StudyCell]] = {}
    for cell in cells:
        if cell.quota.search:
            groups.setdefault((cell.model_key, cell.task_key), []).append(cell)
    return list(groups.values())


def _searching(cells: Sequence[StudyCell], outcomes: Sequence[Outcome]) -> bool:
    """Whether the search would ask more."""
    first = cells[0]
    assert first.quota.search
    results = {cell.size: (0, 0) for cell in cells}
    searched = set(cells)
    for o in outcomes:
        if o.cell in searched and o.answered:
            right, tries = results[o.size]
            results[o.size] = right + o.correct, tries + 1
    return bool(first.quota.search.next(results))


def _asked(cell: StudyCell, tried: int) -> int:
    """The attempts of a cell. A small task may have fewer problems than the study wants, so they are counted.

    Unless all were tried: to make 20,000 problems of `execution` again takes 6 s.
    """
    if cell.quota.problems is not None and tried >= cell.quota.samples * cell.quota.problems:
        return tried
    if cell.task.fixed() is not None:
        return cell.quota.samples * cell.count
    return cell.quota.samples * sum(1 for _ in cell.asked())
