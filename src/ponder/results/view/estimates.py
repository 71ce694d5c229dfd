"""Figures for the page, estimated in a process of their own and kept until the store changes.

That process holds the outcomes of the last study asked for, so that a filter redraws without
reading the store again. The server stays small and answers other requests meanwhile. Filters choose
whole cells before anything is estimated: every number has the interval that these attempts alone
allow.
"""

from __future__ import annotations

import json
import os
import signal
import threading
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context, parent_process
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ponder.core import Tables, UserError
from ponder.results.charts import DrawnFigure, draw_figure

if TYPE_CHECKING:
    from ponder.core import Figure, Outcome
    from ponder.results.results import Results
    from ponder.results.view.studies import ViewedStudy

KEPT = 40  # sets of figures


class Asked(NamedTuple):
    """What to estimate: enough to make the study again in another process."""

    store: Path
    version: tuple[int, int]
    study: str  # its tables, as JSON
    name: str
    folder: Path | None  # of the study file; None: the study is the store's
    cells: tuple[bytes, ...] | None = None  # their keys; None: all


def asked(
    study: ViewedStudy, cells: Sequence[int] | None, figures: Sequence[dict[str, Any]] | None = None
) -> Asked:
    """The question for a study, or for some of its cells, with its own figures or others."""
    assert study.study is not None
    table = study.study.resolved()
    table.pop("name")
    if figures is not None:
        table["figure"] = figures
    keys = None if cells is None else tuple(study.cells[n].key for n in sorted(cells))
    tables = json.dumps(table, default=str)
    folder = study.study.folder
    if folder is not None:
        folder = folder.resolve()
    return Asked(study.store.path.resolve(), study.version, tables, study.name, folder, keys)


class Estimates:
    """Asks the other process, and remembers what it said."""

    def __init__(self) -> None:
        self._pool: ProcessPoolExecutor | None = None
        self._lock = threading.Lock()
        self._known: OrderedDict[Asked, Future[list[DrawnFigure]]] = OrderedDict()

    def warm(self) -> None:
        """Start the process before anybody waits for it."""
        self._submit(_warm)

    def ready(self, question: Asked) -> list[DrawnFigure] | None:
        """The figures, if they are known."""
        with self._lock:
            known = self._known.get(question)
        return known.result() if known and known.done() and not known.exception() else None

    def figures(self, question: Asked) -> list[DrawnFigure]:
        """The figures; waits for them."""
        with self._lock:
            known = self._known.get(question)
            if known is None or (known.done() and known.exception()):
                known = self._known[question] = self._submit(_figures, question)
                while len(self._known) > KEPT:
                    self._known.popitem(last=False)
        return known.result()

    def picture(self, question: Asked, figure: str, ending: str) -> bytes:
        """A figure as SVG, PNG or PDF, drawn by Vega in a process that ends with it: it takes 150
        MB.
        """
        spec = next((one.spec for one in self.figures(question) if one.name == figure), None)
        if spec is None:
            raise UserError(f"there is no figure {figure}")
        with _pool() as pool:
            return pool.submit(_picture, spec, ending).result()

    def table(self, question: Asked, figure: str, table: str) -> str:
        """A whole table of a figure as CSV."""
        written: str = self._submit(_table, question, figure, table).result()
        return written

    def _submit(self, work: Any, *values: Any) -> Future[Any]:
        if self._pool is None:
            self._pool = _pool()
        try:
            return self._pool.submit(work, *values)
        except BrokenProcessPool:  # it was killed, for want of memory perhaps: a new one
            self._pool = _pool()
            return self._pool.submit(work, *values)

    def close(self) -> None:
        if self._pool:
            for process in list((self._pool._processes or {}).values()):
                process.terminate()  # nobody waits for it any more
            self._pool.shutdown(wait=False, cancel_futures=True)


def _pool() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(1, get_context("spawn"), _begin)


# From here on, in the other process.


def _begin() -> None:
    """Leave Ctrl-C to the server, and end with it, however it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    server = parent_process()
    assert server is not None

    def follow() -> None:
        server.join()
        os._exit(0)

    threading.Thread(target=follow, daemon=True).start()


class _Held(NamedTuple):
    """The last study that was read, and the last figures that were estimated."""

    asked: Asked | None = None
    results: Results | None = None


_held = _Held()
_tables: dict[Asked, dict[str, Tables]] = {}


def _warm() -> None:
    import ponder.figures
    import ponder.store.outcomes  # noqa: F401


def _outcomes(question: Asked) -> tuple[dict[str, Figure], Sequence[Outcome]]:
    """Return the figures and outcomes that are asked for; those of the whole study stay in memory."""
    from ponder.results.results import Results
    from ponder.results.study import Study

    global _held  # noqa: PLW0603 the memory of this process
    whole = question._replace(cells=None)
    if _held.asked != whole or _held.results is None:
        _held = _Held()
        table = json.loads(question.study)
        study = Study.from_table(
            table, name=question.name, where=f"{question.name}.toml", folder=question.folder
        )
        _held = _Held(whole, Results(study, question.store))
    assert _held.results is not None
    figures = _held.results.figures
    outcomes = _held.results.outcomes_for(figures.values())
    if question.cells is None:
        return figures, outcomes
    chosen = set(question.cells)
    return figures, [o for o in outcomes if o.cell.key in chosen]


def _figures(question: Asked) -> list[DrawnFigure]:
    _tables.clear()
    figures, outcomes = _outcomes(question)
    if not any(o.answered for o in outcomes):
        return [DrawnFigure(name, error="no attempt has an answer yet") for name in figures]
    return [_figure(question, name, figure, outcomes) for name, figure in figures.items()]


def _figure(question: Asked, name: str, figure: Any, outcomes: Sequence[Outcome]) -> DrawnFigure:
    try:
        drawn = draw_figure(name, figure, outcomes)
    except UserError as error:
        return DrawnFigure(name, error=error.in_terminal())
    except (
        Exception
    ) as error:  # a figure that can't draw these few attempts must not hide the others
        return DrawnFigure(
            name, error=f"it can't be drawn from these attempts ({type(error).__name__}: {error})"
        )
    _tables.setdefault(question, {})[name] = drawn.tables or {}
    return drawn.first_rows()


def _table(question: Asked, figure: str, table: str) -> str:
    from ponder.results.export import csv_text

    if question not in _tables:
        _figures(question)
    records = _tables.get(question, {}).get(figure, {}).get(table)
    if not records:
        raise UserError(f"there is no table {table} of {figure}")
    return csv_text(records)


def _picture(spec: dict[str, Any], ending: str) -> bytes:
    from ponder.results.charts import draw

    chart = draw("chart", spec)
    files = {"svg": chart.svg.encode(), "png": chart.png, "pdf": chart.pdf}
    return files[ending]
