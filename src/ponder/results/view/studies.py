"""The studies whose attempts a store holds, as they were last run, and how far each has got."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from ponder.core import ENDINGS, FromLog, UserError
from ponder.results.results import Results
from ponder.results.study import Study
from ponder.results.view.stores import FAILED, OPEN, Index, ViewedStore, Whole
from ponder.store.benchmark_digests import STORED_CELLS, hub_benchmarks, with_digests
from ponder.store.file import DamagedStore
from ponder.store.store import FOUND_PRICES
from ponder.study.cell import StudyCell
from ponder.study.prices import restore_prices

FAILURES = 5  # that the page shows
RUNS = """SELECT name, resolved, started, tokens, cost, lost_tokens, held_tokens, held_cost
          FROM study ORDER BY rowid"""


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
        self.store = store
        self.runs = runs
        self.error = error
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
        """The number of each attempt's cell in this study; -1 if the study doesn't ask for it."""
        index = self.index
        rows_of_cells = max([0, *index.cells.values()]) + 1
        numbers = np.full(rows_of_cells, -1)
        most_problems = np.zeros(rows_of_cells, np.int64)
        most_samples = np.zeros(rows_of_cells, np.int64)
        for number, cell in reversed([*enumerate(self.cells)]):  # of equal cells the first counts
            row = index.cells.get(cell.key)
            if row is not None:
                numbers[row] = number
                most_samples[row] = cell.quota.samples
                most_problems[row] = 2**62
                if cell.quota.problems is not None:
                    most_problems[row] = cell.quota.problems
        is_asked = index.positions[index.problem] < most_problems[index.cell]
        is_asked &= index.sample < most_samples[index.cell]
        is_asked &= index.ended != OPEN
        return np.where(is_asked, numbers[index.cell], -1)

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
        asked = 0
        for number, cell in enumerate(cells):
            if isinstance(cell.model, FromLog):
                asked += int((self.cell_of == number).sum())  # nothing more was asked
            else:
                asked += cell.quota.samples * cell.count
        return asked

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
        if self.cells and all(isinstance(cell.model, FromLog) for cell in self.cells):
            return "complete"
        if self._question_answered:
            return "complete"  # its question is answered, though some attempts may have failed
        if self.answered >= self.asked:
            return "complete"
        return "stopped at its cap" if self._capped() else "stopped"

    def _capped(self) -> bool:
        """Return whether less is left under a cap than one more attempt takes."""
        study = self.study
        assert study is not None
        if study.max_tokens is not None:
            tokens_left = study.max_tokens - self.runs.tokens - self.runs.held_tokens
            if tokens_left < self._most_tokens_per_turn:
                return True
        if study.max_cost is not None:
            cost_left = study.max_cost - self.runs.cost - self.runs.held_cost
            return cost_left < self.runs.cost / max(1, self.answered)
        return False

    @property
    def _most_tokens_per_turn(self) -> int:
        limits = [cell.turn_limit(0, None) for cell in self.cells]
        return max((limit.tokens for limit in limits if limit), default=0)


def progress(study: ViewedStudy, rate: float | None = None) -> dict[str, Any]:
    """Return how far a study is, as JSON; `rate` is in attempts per second."""
    index = study.index
    rows = study.rows
    ended = {}
    for number, name in enumerate(ENDINGS):
        if number != OPEN:
            ended[name] = int((index.ended[rows] == number).sum())
    per_minute = None
    if rate is not None:
        per_minute = round(60 * rate, 1)
    seconds_left = None
    if rate and study.asked is not None:
        seconds_left = round(max(0, study.asked - study.answered) / rate)
    failures = []
    last_failed = rows[index.ended[rows] == FAILED][-FAILURES:]
    for row in reversed(last_failed.tolist()):
        why = index.reasons[index.why[row]][:200]
        failures.append({"id": int(index.id[row]), "why": why})
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
        "prices": study.results.prices if study.results and study.runs.cost else [],
        "per_minute": per_minute,
        "seconds_left": seconds_left,
        "failures": failures,
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
    if isinstance(value, float):
        return f"{value:g}"
    return str(value)


def recorded(store: ViewedStore) -> list[Runs]:
    """Return the studies of a store, the last run first."""
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
    """Return the name of the study that was started last."""
    return next((runs.name for runs in recorded(store)), "")


@lru_cache(64)
def _built(resolved: str) -> tuple[Study | None, str]:
    try:
        table = json.loads(resolved)
        if not isinstance(table, dict):
            return None, "the store holds something else in its place"
        name = str(table.pop("name", "study"))
        table.pop(FOUND_PRICES, None)
        study = Study.from_table(table, name=name, where=f"{name}.toml", folder=None)
        study.cells  # noqa: B018 its mistakes show when they are made
    except (UserError, ValueError, TypeError, RecursionError, ModuleNotFoundError) as error:
        return None, error.in_terminal() if isinstance(error, UserError) else str(error)
    return study, ""


def _table(resolved: str) -> dict[str, Any]:
    """Return a study's tables as a run recorded them; nothing if they can't be read."""
    try:
        table = json.loads(resolved)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(table, dict):
        return {}
    return table


def studies(store: ViewedStore, given: Sequence[Study] = ()) -> list[ViewedStudy]:
    """Return every study of a store.

    One whose file was given is shown as the file says now, others as they were last run.
    """
    return [_viewed(store, runs, given) for runs in recorded(store)]


def study_named(store: ViewedStore, name: str, given: Sequence[Study] = ()) -> ViewedStudy | None:
    runs = next((runs for runs in recorded(store) if runs.name == name), None)
    return _viewed(store, runs, given) if runs else None


def _tuned(study: Study, runs: Runs, last: ViewedStudy | None) -> Study:
    """Return a study with the goal of its last run if that was `ponder tune`."""
    stop = _table(runs.resolved).get("stop")
    if stop and last is not None and last.study is not None and last.study.stop == stop:
        return last.study  # whose cells are made already
    from ponder.results.tuning import tuned_study

    return tuned_study(study, stop)


def _viewed(store: ViewedStore, runs: Runs, given: Sequence[Study]) -> ViewedStudy:
    """Return a study of a store, as it was last read if nothing has changed since."""
    last: ViewedStudy | None = store.known.get(runs.name)
    if last is not None and last.version == store.version and last.runs == runs:
        return last
    study = next((study for study in given if study.name == runs.name), None)
    error = ""
    if study is None:
        study, error = _built(runs.resolved)
    elif study.stop is None:
        study = _tuned(study, runs, last)
    if study is not None and hub_benchmarks(study):
        try:
            study = with_digests(study, store.rows(STORED_CELLS))
        except UserError as wrong:
            study = None
            error = str(wrong)
    if runs.damaged:
        study = None
        error = DamagedStore(store.path, "what a run has spent can't be read").in_terminal()
    if study is not None:
        restore_prices(study.cells, _table(runs.resolved).get(FOUND_PRICES, {}))
    viewed = ViewedStudy(store, runs, study, error)
    store.known[runs.name] = viewed
    return viewed
