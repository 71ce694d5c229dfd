"""What a run of a study would ask and spend, estimated before anything is spent."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from ponder.core import Bill, Message, Problem
from ponder.runner.cells import Cell
from ponder.runner.store import Store
from ponder.runner.study import Study


@dataclass(frozen=True)
class Forecast:
    """What one model on one task still has to be asked, and what that will cost."""

    model: str
    task: str
    cells: int
    attempts: int  # that the study asks for
    stored: int  # of those, the ones already answered
    tokens: int | None  # still to spend, prompt tokens included; None: unknown
    basis: str  # what the number of tokens is estimated from
    cost: float | None  # still to spend; None: unknown, or the model has no prices

    @property
    def to_run(self) -> int:
        return self.attempts - self.stored


def plan(study: Study, path: Path) -> list[Forecast]:
    """A forecast for each model on each task, given what the store at a path already holds."""
    if not path.is_file():
        return [_forecast(cells, None) for cells in _groups(study)]
    with Store(path) as store:
        return [_forecast(cells, store) for cells in _groups(study)]


def _groups(study: Study) -> Iterable[list[Cell]]:
    for _, cells in itertools.groupby(study.cells, key=lambda c: (c.model_label, c.task_label)):
        yield list(cells)


def _forecast(cells: list[Cell], store: Store | None) -> Forecast:
    stored, spent = store.spent(cells) if store else (0, Bill())
    # How many attempts a search needs depends on their results.
    asked = stored if cells[0].search else sum(cell.samples * _problems(cell) for cell in cells)
    left = asked - stored
    model = cells[0].model
    budget = model.max_tokens()
    bill: Bill | None
    if cells[0].search:
        bill, basis = None, "the search decides"
    elif stored:
        prompt, thinking, answer = (
            round(n / stored) for n in (spent.prompt_tokens, spent.thinking_tokens, spent.answer_tokens)
        )
        bill, basis = Bill(prompt, thinking, answer), "stored attempts"
    elif budget:
        firsts = [(cell, next(cell.asked())) for cell in (cells[0], cells[-1])]  # of the first and of the last size
        prompt_tokens = round(fmean(_characters(cell, problem) for cell, problem in firsts) / 4)
        turns = max(len(problem.turns) for _, problem in firsts)
        bill, basis = Bill(prompt_tokens, thinking_tokens=turns * budget), "budget (at most)"
    else:
        bill, basis = None, "unknown"
    return Forecast(
        model=cells[0].model_label,
        task=cells[0].task_label,
        cells=len(cells),
        attempts=asked,
        stored=stored,
        tokens=left * bill.tokens if bill else None,
        basis=basis,
        cost=left * model.prices.cost(bill) if bill and model.prices else None,
    )


def _characters(cell: Cell, problem: Problem) -> int:
    """How long the prompts of an attempt are together: a conversation sends its history again in every turn.

    Only the model's own replies are missing from it, because nothing is known about them yet.
    """
    total, past = 0, list[Message]()
    for turn in problem.turns:
        asked = Message("user", turn)
        total += sum(len(m.content) for m in (*problem.opening(), *cell.memory.visible(past), asked))
        past += [asked, Message("assistant", "")]
    return total


def _problems(cell: Cell) -> int:
    return cell.problems if cell.task.fixed() is None and cell.problems else sum(1 for _ in cell.asked())
