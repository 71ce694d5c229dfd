"""What a study would ask and spend, before anything is spent."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from ponder.core import Bill
from ponder.runner.cells import Cell
from ponder.runner.store import Store
from ponder.runner.study import Study


@dataclass(frozen=True)
class Line:
    """One model on one task. Tokens are those still to spend: as stored attempts have it, or at most the budget."""

    model: str
    task: str
    cells: int
    attempts: int
    stored: int
    tokens: int | None
    basis: str  # where the number of tokens comes from
    cost: float | None

    @property
    def to_run(self) -> int:
        return self.attempts - self.stored


def plan(study: Study, path: Path) -> list[Line]:
    """A line for each model and task of the study, given what the store already holds."""
    if not path.is_file():
        return [_line(cells, None) for cells in _groups(study)]
    with Store(path) as store:
        return [_line(cells, store) for cells in _groups(study)]


def _groups(study: Study) -> Iterable[list[Cell]]:
    for _, cells in itertools.groupby(study.cells, key=lambda c: (c.model_label, c.task_label)):
        yield list(cells)


def _line(cells: list[Cell], store: Store | None) -> Line:
    stored, paid = store.spent(cells) if store else (0, Bill())
    # A search asks until it knows; what it will need is not known before.
    asked = stored if cells[0].search else sum(cell.samples * _problems(cell) for cell in cells)
    left = asked - stored
    model = cells[0].model
    budget = model.max_tokens()
    bill: Bill | None
    if cells[0].search:
        bill, basis = None, "a search decides"
    elif stored:
        mean = (round(n / stored) for n in (paid.prompt_tokens, paid.thinking_tokens, paid.answer_tokens))
        bill, basis = Bill(next(mean), next(mean), next(mean)), "stored attempts"
    elif budget:
        prompts = [next(cell.asked()) for cell in (cells[0], cells[-1])]
        prompt_tokens = round(fmean(sum(map(len, p.turns)) + len(p.system) for p in prompts) / 4)
        bill, basis = Bill(prompt_tokens, thinking_tokens=budget), "budget (at most)"
    else:
        bill, basis = None, "unknown"
    return Line(
        model=cells[0].model_label,
        task=cells[0].task_label,
        cells=len(cells),
        attempts=asked,
        stored=stored,
        tokens=left * bill.tokens if bill else None,
        basis=basis,
        cost=left * model.prices.cost(bill) if bill and model.prices else None,
    )


def _problems(cell: Cell) -> int:
    return cell.problems if cell.task.fixed() is None and cell.problems else sum(1 for _ in cell.asked())
