"""Figures and tunings for the page, estimated in a process of their own and kept until the store
changes.

That process holds the outcomes of the last study, so that a filter redraws without reading the
store again. The server stays small and answers other requests meanwhile. Filters choose whole cells
before anything is estimated: every number has the interval that these attempts alone allow.
"""

from __future__ import annotations

import json
import os
import signal
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context, parent_process
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ponder.core import Tables, UserError
from ponder.results.charts import DrawnFigure

if TYPE_CHECKING:
    from ponder.results.results import Results
    from ponder.results.tuning_section import TuningSection
    from ponder.results.view.studies import ViewedStudy

MOST_KEPT = 40  # sets of figures that are remembered


class FigureRequest(NamedTuple):
    """Which figures to estimate: enough to make the study again in another process."""

    store: Path
    version: tuple[int, int]
    study: str  # its tables, as JSON
    name: str
    folder: Path | None  # of the study file; None: the study is the store's
    cells: tuple[bytes, ...] | None = None  # their keys; None: all


def figure_request(
    study: ViewedStudy, cells: Sequence[int] | None, figures: Sequence[dict[str, Any]] | None = None
) -> FigureRequest:
    """Return the request for a study, or for some of its cells, with its own figures or others."""
    assert study.study is not None
    table = study.study.resolved()
    table.pop("name")
    if figures is not None:
        table["figure"] = figures
    keys = None
    if cells is not None:
        keys = tuple(study.cells[number].key for number in sorted(cells))
    folder = study.study.folder
    if folder is not None:
        folder = folder.resolve()
    tables = json.dumps(table, default=str)
    store = study.store.path.resolve()
    return FigureRequest(store, study.version, tables, study.name, folder, keys)


class Estimated(NamedTuple):
    """What a page shows of some attempts."""

    figures: list[DrawnFigure]
    tuning: TuningSection | None = None  # of a whole study with the goal `cheapest`
    tuning_error: str = ""  # why such a study has none


class Estimates:
    """Estimates figures in another process, and remembers the last ones."""

    def __init__(self) -> None:
        self._pool: ProcessPoolExecutor | None = None
        self._lock = threading.Lock()
        self._requested: OrderedDict[FigureRequest, Future[Estimated]] = OrderedDict()

    def warm(self) -> None:
        """Start the process before anybody waits for it."""
        self._submit(_import_figures)

    def ready(self, request: FigureRequest) -> Estimated | None:
        """Return what the page shows if it is estimated already."""
        with self._lock:
            future = self._requested.get(request)
        if future is None or not future.done() or future.exception():
            return None
        return future.result()

    def estimated(self, request: FigureRequest) -> Estimated:
        """Return what the page shows; wait for it."""
        with self._lock:
            future = self._requested.get(request)
            if future is None or (future.done() and future.exception()):
                future = self._submit(_estimated, request)
                self._requested[request] = future
                while len(self._requested) > MOST_KEPT:
                    self._requested.popitem(last=False)
        return future.result()

    def picture(self, request: FigureRequest, name: str, ending: str) -> bytes:
        """Return a figure as SVG, PNG or PDF.

        Vega draws it in a process that ends with it: it takes 150 MB.
        """
        for figure in self.estimated(request).figures:
            if figure.name == name and figure.spec is not None:
                with _new_pool() as pool:
                    return pool.submit(_picture, figure.spec, ending).result()
        raise UserError(f"there is no figure {name}")

    def table(self, request: FigureRequest, figure: str, table: str) -> str:
        """Return a whole table of a figure as CSV."""
        text: str = self._submit(_table, request, figure, table).result()
        return text

    def _submit(self, work: Callable[..., Any], *arguments: Any) -> Future[Any]:
        if self._pool is None:
            self._pool = _new_pool()
        try:
            return self._pool.submit(work, *arguments)
        except BrokenProcessPool:  # it was killed, for want of memory perhaps: a new one
            self._pool = _new_pool()
            return self._pool.submit(work, *arguments)

    def close(self) -> None:
        if self._pool:
            for process in list((self._pool._processes or {}).values()):
                process.terminate()  # nobody waits for it any more
            self._pool.shutdown(wait=False, cancel_futures=True)


def _new_pool() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(1, get_context("spawn"), _start_process)


# From here on, in the other process.


def _start_process() -> None:
    """Leave Ctrl-C to the server, and end with it, however it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    server = parent_process()
    assert server is not None

    def follow() -> None:
        server.join()
        os._exit(0)

    threading.Thread(target=follow, daemon=True).start()


class _LastRead(NamedTuple):
    """The last study that was read."""

    request: FigureRequest | None = None  # for all of its cells
    results: Results | None = None


_last_read = _LastRead()
_tables: dict[FigureRequest, dict[str, Tables]] = {}  # of the last figures, by their names


def _import_figures() -> None:
    import ponder.figures
    import ponder.store.outcomes  # noqa: F401


def _results(request: FigureRequest) -> Results:
    """Return the results of a study, whose outcomes stay in memory until another is requested."""
    from ponder.results.results import Results
    from ponder.results.study import Study

    global _last_read  # noqa: PLW0603 the memory of this process
    for_all_cells = request._replace(cells=None)
    if _last_read.request != for_all_cells or _last_read.results is None:
        _last_read = _LastRead()  # frees its memory first
        study = Study.from_table(
            json.loads(request.study),
            name=request.name,
            where=f"{request.name}.toml",
            folder=request.folder,
        )
        _last_read = _LastRead(for_all_cells, Results(study, request.store))
    assert _last_read.results is not None
    return _last_read.results


def _estimated(request: FigureRequest) -> Estimated:
    results = _results(request)
    figures = _figures(request, results)
    if request.cells is not None:  # some of the settings: the answer is about all of them
        return Estimated(figures)
    from ponder.results.results import any_answer
    from ponder.results.tuning_section import looks_for_cheapest, tuning_section

    if not looks_for_cheapest(results) or not any_answer(results.outcomes):
        return Estimated(figures)
    try:
        return Estimated(figures, tuning_section(results))
    except UserError as error:
        return Estimated(figures, tuning_error=error.in_terminal())
    except Exception as error:  # it must not hide the figures
        return Estimated(figures, tuning_error=f"{type(error).__name__}: {error}")


def _figures(request: FigureRequest, results: Results) -> list[DrawnFigure]:
    _tables.clear()
    cells = None
    if request.cells is not None:
        cells = set(request.cells)
    answered = any(
        outcome.answered and (cells is None or outcome.cell.key in cells)
        for outcome in results.outcomes_for(results.figures.values())
    )
    if not answered:
        error = "no attempt has an answer yet"
        return [DrawnFigure(name, error=error) for name in results.figures]
    figures = []
    for name in results.figures:
        try:
            figure = results.draw(name, cells)
        except UserError as error:
            figures.append(DrawnFigure(name, error=error.in_terminal()))
        except Exception as error:  # one that can't be drawn must not hide the others
            why = f"it can't be drawn from these attempts ({type(error).__name__}: {error})"
            figures.append(DrawnFigure(name, error=why))
        else:
            _tables.setdefault(request, {})[name] = figure.tables or {}
            figures.append(figure.first_rows())
    return figures


def _table(request: FigureRequest, figure: str, table: str) -> str:
    from ponder.results.export import csv_text

    if request not in _tables:
        _figures(request, _results(request))
    records = _tables.get(request, {}).get(figure, {}).get(table)
    if not records:
        raise UserError(f"there is no table {table} of {figure}")
    return csv_text(records)


def _picture(spec: dict[str, Any], ending: str) -> bytes:
    from ponder.results.charts import draw

    chart = draw("chart", spec)
    files = {"svg": chart.svg.encode(), "png": chart.png, "pdf": chart.pdf}
    return files[ending]
