"""The studies whose attempts a store holds, as they were last run, and how far each has got."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from ponder.core import ENDINGS, UserError
from ponder.results.results import Results
from ponder.results.study import Study
from ponder.results.view.stores import FAILED, OPEN, Index, ViewedStore, Whole
from ponder.store.benchmark_digests import STORED_CELLS, hub_benchmarks, with_digests
from ponder.store.file import DamagedStore
from ponder.study.cell import StudyCell

FAILURES = 5  # that the page shows
RUNS = "SELECT name, resolved, started, tokens, cost, lost_tokens, held_tokens, held_cost FROM study ORDER BY rowid"


@dataclass(frozen=True)
class Runs:
    """What a store knows of the runs of a study."""

    name: str
    resolved: str  # of the last run, as JSON
    started: str  # the last run
    runs: int
    tokens: int  # spent by all runs, calls without an answer included
    cost: float
    held_tokens: int = 0  # reserved for calls in progress, or in progress when a run was killed
    held_cost: float = 0.0
    damaged: bool = False  # whether what a run spent can't be read


class ViewedStudy:
    """A study at one state of its store."""

    def __init__(
        self, store: ViewedStore, runs: Runs, study: Study | None, error: str = ""
    ) -> None:
        self.store, self.runs, self.error = store, runs, error
        self.study = study
        self.results = Results(study, store.path) if study else None
        self.index: Index = store.index
        self.version = store.version

    @property
    def name(self) -> str:
        return self.runs.name

    @property
    def title(self) -> str:
        return (self.study.title if self.study else "") or self.name

    @cached_property
    def cells(self) -> Sequence[StudyCell]:
        return self.study.cells if self.study else ()

    @cached_property
    def settings(self) -> Sequence[Mapping[str, str]]:
        """The settings of each cell as text, by their last name too: `window` for
        `compress.window`.
        """
        return [_settings(cell) for cell in self.cells]

    @cached_property
    def cell_of(self) -> Whole:
        """For each attempt of the store the number of its cell in this study; -1 if the study
        doesn't ask for it.
        """
        index = self.index
        highest = max([0, *index.cells.values()])
        numbers, limits = np.full(highest + 1, -1), np.zeros((highest + 1, 2), np.int64)
        for n, cell in reversed([*enumerate(self.cells)]):  # of equal cells the first counts
            if (row := index.cells.get(cell.key)) is not None:
                numbers[row] = n
                limits[row] = (
                    (2**62 if cell.quota.problems is None else cell.quota.problems),
                    cell.quota.samples,
                )
        within = (index.positions[index.problem] < limits[index.cell, 0]) & (
            index.sample < limits[index.cell, 1]
        )
        return np.where(within & (index.ended != OPEN), numbers[index.cell], -1)

    @cached_property
    def rows(self) -> Whole:
        """The attempts that the study asks for, as places in the index."""
        return np.flatnonzero(self.cell_of >= 0)

    @cached_property
    def asked(self) -> int | None:
        """How many attempts it asks for; None while a run that chooses the sizes decides that."""
        if self.study and self.study.chooses_sizes and not self._question_answered:
            return None
        cells = self.results.cells if self.results and self._question_answered else self.cells
        return sum(cell.quota.samples * cell.count for cell in cells)

    @cached_property
    def _question_answered(self) -> bool:
        """Whether it is an adaptive run that has ended; while it goes on, it may ask everything."""
        if self.results is None or self.results.study.stop is None:
            return False
        return all(decision.ended for decision in self.results.decisions)

    @property
    def variants(self) -> int:
        """How many models it has, all training seeds of one counted once."""
        return len({cell.variant_key for cell in self.cells})

    @property
    def answered(self) -> int:
        return int((self.index.ended[self.rows] != FAILED).sum())

    @property
    def failed(self) -> int:
        return int((self.index.ended[self.rows] == FAILED).sum())

    @property
    def tokens(self) -> int:
        i, rows = self.index, self.rows
        return int((i.prompt[rows] + i.thinking[rows] + i.answer[rows]).sum())

    @cached_property
    def currency(self) -> str:
        return self.results.currency if self.results else ""

    @property
    def state(self) -> str:
        """complete, running, stopped (at a cap or otherwise), or unknown: it can't be read."""
        if self.study is None:
            return "unknown"
        if self.store.running and self.name == latest(self.store):
            return "running"
        if self.asked is None:
            return "ended"
        if self._question_answered:
            return "complete"  # its question is answered, though some attempts may have failed
        if self.answered >= self.asked:
            return "complete"
        return "stopped at its cap" if self._capped() else "stopped"

    def _capped(self) -> bool:
        """Whether what is left under the cap is less than what one more attempt takes."""
        study, attempts = self.study, max(1, self.answered)
        assert study is not None
        tokens = (
            study.max_tokens is not None
            and study.max_tokens - self.runs.tokens - self.runs.held_tokens < self._dearest
        )
        left = (
            math.inf
            if study.max_cost is None
            else study.max_cost - self.runs.cost - self.runs.held_cost
        )
        cost = left < self.runs.cost / attempts
        return tokens or cost

    @property
    def _dearest(self) -> int:
        limits = (cell.turn_limit(0, None) for cell in self.cells)
        return max((limit.tokens for limit in limits if limit), default=0)


def progress(study: ViewedStudy, rate: float | None = None) -> dict[str, Any]:
    """How far a study is, as JSON."""
    index, rows = study.index, study.rows
    ended = {
        name: int((index.ended[rows] == n).sum()) for n, name in enumerate(ENDINGS) if n != OPEN
    }
    left = None if study.asked is None else max(0, study.asked - study.answered)
    failed = rows[index.ended[rows] == FAILED][-FAILURES:][::-1]
    return {
        "state": study.state,
        "asked": study.asked,
        "answered": study.answered,
        "ended": ended,
        "tokens": study.runs.tokens,
        "cost": round(study.runs.cost, 4),
        "held_tokens": study.runs.held_tokens,
        "held_cost": round(study.runs.held_cost, 4),
        "currency": study.currency,
        "per_minute": None if rate is None else round(60 * rate, 1),
        "seconds_left": None if not rate or left is None else round(left / rate),
        "failures": [
            {"id": int(index.id[row]), "why": index.reasons[index.why[row]][:200]}
            for row in failed.tolist()
        ],
        "version": list(study.version),
    }


def _settings(cell: StudyCell) -> dict[str, str]:
    texts = {}
    for name, value in cell.settings.items():
        if not name.endswith(".name") and isinstance(value, str | int | float):
            texts[name] = text = as_text(value)
            texts[name.partition(".")[2]] = text
    return texts


def as_text(value: Any) -> str:
    """Return a setting or a table's value as an address holds it."""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def recorded(store: ViewedStore) -> list[Runs]:
    """The studies of a store, the last run first."""
    if not store.path.is_file():
        return []
    studies: dict[str, Runs] = {}
    for name, resolved, started, *amounts in store.rows(RUNS):
        before = studies.pop(str(name), None) or Runs(str(name), resolved, str(started), 0, 0, 0.0)
        damaged = not all(_is_amount(amount) for amount in amounts)
        tokens, cost, lost, held_tokens, held_cost = (
            [0] * 5 if damaged else [amount or 0 for amount in amounts]
        )
        studies[str(name)] = Runs(
            name=str(name),
            resolved=resolved,
            started=str(started),
            runs=before.runs + 1,
            tokens=before.tokens + tokens + lost,
            cost=before.cost + cost,
            held_tokens=before.held_tokens + held_tokens,
            held_cost=before.held_cost + held_cost,
            damaged=before.damaged or damaged,
        )
    return list(reversed(studies.values()))


def _is_amount(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and math.isfinite(value))


def latest(store: ViewedStore) -> str:
    """The study that was started last."""
    return next((runs.name for runs in recorded(store)), "")


@lru_cache(64)
def _built(resolved: str) -> tuple[Study | None, str]:
    try:
        table = json.loads(resolved)
        if not isinstance(table, dict):
            return None, "the store holds something else in its place"
        name = str(table.pop("name", "study"))
        study = Study.from_table(table, name=name, where=f"{name}.toml", folder=None)
        study.cells  # noqa: B018 its mistakes show when they are made
    except (UserError, ValueError, TypeError, RecursionError, ModuleNotFoundError) as error:
        return None, error.in_terminal() if isinstance(error, UserError) else str(error)
    return study, ""


def studies(store: ViewedStore, given: Sequence[Study] = ()) -> list[ViewedStudy]:
    """Every study of a store.

    One whose file was given is shown as the file says now, others as they were last run.
    """
    return [_viewed(store, runs, given) for runs in recorded(store)]


def study_named(store: ViewedStore, name: str, given: Sequence[Study] = ()) -> ViewedStudy | None:
    runs = next((runs for runs in recorded(store) if runs.name == name), None)
    return _viewed(store, runs, given) if runs else None


def _viewed(store: ViewedStore, runs: Runs, given: Sequence[Study]) -> ViewedStudy:
    known: ViewedStudy | None = store.known.get(runs.name)
    if known is None or known.version != store.version or known.runs != runs:
        file = next((study for study in given if study.name == runs.name), None)
        study, error = (file, "") if file else _built(runs.resolved)
        if study is not None and hub_benchmarks(study):
            try:
                study = with_digests(study, store.rows(STORED_CELLS))
            except UserError as wrong:
                study, error = None, str(wrong)
        if runs.damaged:
            damage = DamagedStore(store.path, "what a run has spent can't be read")
            study, error = None, damage.in_terminal()
        known = store.known[runs.name] = ViewedStudy(store, runs, study, error)
    return known
