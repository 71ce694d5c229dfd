"""What each page shows, as plain values for its template."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ponder.core import UserError
from ponder.report.view.estimates import Estimated
from ponder.report.view.index import ENDINGS, OPEN, RIGHT, TRUNCATED, UNPARSED, WRONG
from ponder.report.view.live import progress
from ponder.report.view.queries import PAGE, Query, behind, chosen_cells, find, narrowed, search, settings_of
from ponder.report.view.stores import ViewedStore
from ponder.report.view.studies import ViewedStudy, studies
from ponder.report.view.transcript import transcript
from ponder.runner.progress import short
from ponder.runner.study import Study

SEARCH_SECONDS = 0.5  # that one page may search
COLUMNS = (
    "ended",
    "model",
    "task",
    "size",
    "tokens",
    "thinking",
    "answer",
    "prompt",
    "seconds",
    "why",
    "problem",
    "sample",
)
USUAL = ("ended", "model", "task", "size", "tokens", "seconds", "why", "problem")
MOST_VALUES = 40  # of a setting that is a filter


def clock(seconds: float) -> str:
    """A duration: `45 s`, `12 min`, `3 h 20 min`."""
    if seconds < 1:
        return f"{seconds:.2f} s"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def ago(moment: float) -> str:
    """How long ago a moment was, in words."""
    seconds = max(0.0, time.time() - moment)
    for unit, name in ((86400, "day"), (3600, "hour"), (60, "minute")):
        if seconds >= unit:
            number = int(seconds // unit)
            return f"{number} {name}{'s' * (number != 1)} ago"
    return "just now"


FILTERS: dict[str, Callable[..., Any]] = {"short": short, "clock": clock, "ago": ago}


class Shelf(NamedTuple):
    """A store with its studies, on the first page."""

    store: ViewedStore
    exists: bool
    studies: Sequence[Mapping[str, Any]] = ()
    error: str = ""


def shelves(stores: Iterable[ViewedStore], given: Sequence[Study]) -> list[Shelf]:
    shown = []
    for store in stores:
        if not store.path.is_file():
            shown.append(Shelf(store, exists=False))
            continue
        try:
            shown.append(Shelf(store, True, [{"study": s, **_card(s)} for s in studies(store, given)]))
        except UserError as error:
            shown.append(Shelf(store, True, error=str(error)))
    return shown


def _card(study: ViewedStudy) -> dict[str, Any]:
    return {"progress": progress(study) if study.study else None, "changed": study.store.changed()}


def study_page(study: ViewedStudy, query: Query) -> dict[str, Any]:
    return {
        "facets": facets(study, query, "study"),
        "progress": progress(study),
        "models": by_model(study, query),
        "changed": study.store.changed(),
        "settings": study.study.resolved() if study.study else {},
        "chips": chips(study, query),
    }


def by_model(study: ViewedStudy, query: Query) -> list[dict[str, Any]]:
    """How the attempts of each model ended, and what they took."""
    cells, _ = chosen_cells(study, query)
    index, rows = study.index, study.rows
    models: dict[str, list[int]] = {}
    for n in sorted(cells):
        models.setdefault(study.cells[n].model_label, []).append(n)
    shown = []
    for model, own in models.items():
        mine = rows[np.isin(study.cell_of[rows], own)]
        if len(mine):
            counts = np.bincount(index.ended[mine], minlength=len(ENDINGS)).tolist()
            shown.append(
                {
                    "model": model,
                    "attempts": len(mine),
                    "ended": {name: counts[n] for n, name in enumerate(ENDINGS) if n != OPEN},
                    "tokens": int(np.median(index.tokens[mine])),
                    "query": query.with_(chosen=(*query.only("task", "size", "method").chosen, ("model", model))),
                    "longest": longest_wrong(query).with_(
                        chosen=(*longest_wrong(query.only("task", "size", "method")).chosen, ("model", model)),
                        sort="-tokens",
                    ),
                }
            )
    return shown


def longest_wrong(query: Query) -> Query:
    """The longest wrong ones of what a query asks for."""
    rest = tuple(pair for pair in query.chosen if pair[0] != "ended")
    ended = tuple(("ended", ENDINGS[n]) for n in (WRONG, UNPARSED, TRUNCATED))
    return query.with_(chosen=rest + ended, sort="-tokens")


class Facet(NamedTuple):
    """A filter of a page: its values, each with the address that adds or removes it."""

    name: str
    values: Sequence[tuple[str, str, bool]]  # value, address, whether it is chosen


def facets(study: ViewedStudy, query: Query, page: str) -> list[Facet]:
    cells = study.cells
    values = {
        "model": dict.fromkeys(c.model_label for c in cells),
        "method": dict.fromkeys(name for c in cells for name in ([u.name for u in c.methods_used] or ["none"])),
        "task": dict.fromkeys(c.task_label for c in cells),
        "size": dict.fromkeys(str(size) for size in sorted({c.size for c in cells})),
    }
    values |= {name: dict.fromkeys(own) for name, own in swept(study).items() if name not in values}
    if page == "attempts":
        values["ended"] = dict.fromkeys(ENDINGS[1:])
    return [
        Facet(name, [(v, query.toggled(name, v).address() or "?", v in query.values(name)) for v in own])
        for name, own in values.items()
        if len(own) > 1
    ]


def swept(study: ViewedStudy) -> dict[str, list[str]]:
    """The settings of methods that the study sweeps, with their values in order."""
    names = dict.fromkeys(name for cell in study.cells for use in cell.methods_used for name in use.settings)
    values = {name: {own[name] for own in settings_of(study) if name in own} for name in names}
    return {name: sorted(own, key=_order) for name, own in values.items() if 1 < len(own) <= MOST_VALUES}


def _order(value: str) -> tuple[bool, float, str]:
    try:
        return False, float(value), ""
    except ValueError:
        return True, 0.0, value


def chips(study: ViewedStudy, query: Query) -> list[tuple[str, str]]:
    """What is chosen, each with the address without it."""
    shown = []
    for name, value in query.chosen:
        told = _problem_name(study, value) if name == "problem" else value
        shown.append(
            (f"{name}: {told}" if name != "id" else f"attempt {value}", query.toggled(name, value).address() or "?")
        )
    if query.q:
        shown.append((f"text: {query.q}", query.with_(q="").address() or "?"))
    if query.against:
        told = "another model" if query.against == "any" else query.against
        shown.append((f"right here, wrong with {told}", query.with_(against="").address() or "?"))
    return shown


def _problem_name(study: ViewedStudy, row: str) -> str:
    named = study.store.rows("SELECT name FROM problem WHERE id = ?", (int(row),)) if row.isdigit() else []
    name = str(named[0][0]) if named else row
    return name if len(name) <= 24 else f"{name[:22]}…"


def figures(study: ViewedStudy, query: Query, drawn: Sequence[Estimated]) -> list[dict[str, Any]]:
    """Figures with the addresses that lead from the rows of their tables to attempts."""
    shown = []
    for one in drawn:
        tables = []
        for (name, rows), length in zip((one.tables or {}).items(), one.lengths, strict=True):
            links = [_behind(study, query, row) for row in rows]
            tables.append({"name": name, "rows": rows, "links": links, "length": length})
        shown.append({"figure": one, "tables": tables, "query": query.address()})
    return shown


def _behind(study: ViewedStudy, base: Query, row: Mapping[str, Any]) -> str:
    if "attempt" in row:
        return f"attempt/{row['attempt']}"
    query = behind(study, row)
    return "" if query is None else f"attempts{narrowed(base, query).address()}"


def attempts_page(study: ViewedStudy, query: Query) -> dict[str, Any]:
    found = find(study, query)
    values: dict[str, Any] = {"total": len(found.rows), "unknown": found.unknown, "next": None, "previous": None}
    if query.q:
        hits, looked = search(study, found.rows, query, PAGE, SEARCH_SECONDS)
        values |= {"rows": hits, "looked": looked, "pages": 1}
        if looked < len(found.rows):
            values["next"] = query.with_(start=looked).address()
    else:
        number = min(query.page, found.pages)
        values |= {"rows": found.page(number).tolist(), "looked": None, "pages": found.pages, "number": number}
        values["next"] = query.with_(page=number + 1).address() if number < found.pages else None
        values["previous"] = (query.with_(page=number - 1).address() or "?") if number > 1 else None
    wide = [c for c in query.columns.split(",") if c in COLUMNS] if query.columns else list(USUAL)
    if len({c.task_label for c in study.cells}) == 1 and not query.columns:
        wide.remove("task")
    return {
        **values,
        "attempts": listed(study, values["rows"]),
        "columns": wide,
        "column_choices": [(c, c in wide, _with_column(query, wide, c)) for c in COLUMNS],
        "sorts": {
            c: _sort(query, c) for c in ("ended", "model", "size", "tokens", "thinking", "answer", "prompt", "seconds")
        },
        "most": int(study.index.tokens[study.rows].max(initial=1)),
        "facets": facets(study, query, "attempts"),
        "chips": chips(study, query),
        "ready": ready_filters(study, query),
        "position": PAGE * (query.page - 1),
    }


def _with_column(query: Query, wide: Sequence[str], column: str) -> str:
    chosen = [c for c in COLUMNS if (c in wide) != (c == column)]
    return query.with_(columns=",".join(chosen), page=query.page).address()


def _sort(query: Query, column: str) -> tuple[str, str]:
    """The address that sorts by a column, and how it is sorted now."""
    first = f"-{column}" if column not in ("model", "size", "ended") else column
    other = column if first.startswith("-") else f"-{column}"
    now = {column: "ascending", f"-{column}": "descending"}.get(query.sort, "")
    return query.with_(sort=other if query.sort == first else first).address(), now


def ready_filters(study: ViewedStudy, query: Query) -> list[tuple[str, str]]:
    """Questions that people ask, as addresses."""
    several = len({c.model_label for c in study.cells}) > 1
    right = query.with_(chosen=(*query.without("ended").chosen, ("ended", ENDINGS[RIGHT])))
    ready = [("Longest wrong", longest_wrong(query)), ("Longest right", right.with_(sort="-tokens"))]
    ready += [("Shortest right", right.with_(sort="tokens"))]
    ready += [("Right here, wrong there", query.with_(against="any"))] if several else []
    ready += [("Everything", Query())]
    return [(name, one.address() or "?") for name, one in ready]


def listed(study: ViewedStudy, rows: Sequence[int]) -> list[dict[str, Any]]:
    """Attempts as a list shows them."""
    index = study.index
    problems = {int(index.problem[row]) for row in rows}
    marks = ",".join("?" * len(problems))
    sql = f"SELECT id, name FROM problem WHERE id IN ({marks})"  # noqa: S608 question marks
    names = dict(study.store.rows(sql, list(problems))) if problems else {}
    shown = []
    for row in rows:
        cell, problem = study.cells[study.cell_of[row]], int(index.problem[row])
        shown.append(
            {
                "id": int(index.id[row]),
                "ended": ENDINGS[index.ended[row]],
                "model": cell.model_label,
                "task": cell.task_label,
                "size": cell.size,
                "tokens": int(index.tokens[row]),
                "thinking": int(index.thinking[row]),
                "answer": int(index.answer[row]),
                "prompt": int(index.prompt[row]),
                "seconds": index.milliseconds[row] / 1000,
                "why": index.reasons[index.why[row]],
                "problem": str(names.get(problem, "")),
                "sample": int(index.sample[row]),
                "problem_row": problem,
            }
        )
    return shown


def attempt_page(study: ViewedStudy, query: Query, attempt: int) -> dict[str, Any] | None:
    one = transcript(study, attempt) if attempt < 2**63 else None  # SQLite has no larger number
    if one is None:
        return None
    index = study.index
    place = int(np.searchsorted(index.id, attempt))
    rows = np.zeros(0, np.int64) if query.q else find(study, query).rows
    at = int(np.flatnonzero(rows == place)[0]) if place in rows else None
    around: dict[str, Any] = {"previous": None, "next": None, "place": at, "total": len(rows)}
    if at is not None:
        around["previous"] = int(index.id[rows[at - 1]]) if at else None
        around["next"] = int(index.id[rows[at + 1]]) if at + 1 < len(rows) else None
    same = study.rows[index.problem[study.rows] == one.problem_row]
    return {"one": one, "around": around, "same": listed(study, same[:24].tolist()), "same_total": len(same)}
