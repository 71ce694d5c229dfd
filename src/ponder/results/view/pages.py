"""What each page shows, as plain values for its template."""

from __future__ import annotations

import shlex
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

import msgspec
import numpy as np

from ponder.core import ANSWERED, ENDINGS, UserError
from ponder.core.text import count
from ponder.results.charts import DrawnFigure
from ponder.results.study import Study
from ponder.results.transcript import Transcript
from ponder.results.view.estimates import FigureRequest, figure_request
from ponder.results.view.queries import (
    OF_ATTEMPTS,
    PAGE,
    Query,
    behind,
    chosen_cells,
    find,
    not_filters,
    search,
)
from ponder.results.view.stores import (
    FAILED,
    OPEN,
    RIGHT,
    TRUNCATED,
    UNPARSED,
    WRONG,
    ViewedStore,
    Whole,
)
from ponder.results.view.studies import ViewedStudy, progress, studies
from ponder.store.file import DamagedStore
from ponder.store.store import read_attempt
from ponder.study.labels import cells_called, group_label, unknown_name
from ponder.study.study import BUILT_IN

PICTURES = {"png": "image/png", "svg": "image/svg+xml", "pdf": "application/pdf"}  # of a figure
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
            shown.append(
                Shelf(store, True, [{"study": s, **_card(s)} for s in studies(store, given)])
            )
        except UserError as error:
            shown.append(Shelf(store, True, error=error.in_terminal()))
    return shown


def _card(study: ViewedStudy) -> dict[str, Any]:
    return {"progress": progress(study) if study.study else None}


def study_page(study: ViewedStudy, query: Query, left_out: Sequence[str]) -> dict[str, Any]:
    return {
        "left_out": left_out,
        "unknown": chosen_cells(study, query.chosen)[1],
        "not_filters": not_filters(study, query.chosen),
        "facets": facets(study, query, "study"),
        "progress": progress(study),
        "models": by_model(study, query),
        "settings": study.study.resolved() if study.study else {},
        "chips": chips(study, query),
    }


def left_out(query: Query) -> list[str]:
    """The filters of an address that the study's page does not follow: they would bias every
    estimate.
    """
    found = [f"{name}={value}" for name, value in query.chosen if name in OF_ATTEMPTS]
    return found + [
        f"{name}={value}" for name, value in (("q", query.q), ("against", query.against)) if value
    ]


def by_model(study: ViewedStudy, query: Query) -> list[dict[str, Any]]:
    """How the attempts of each model ended, by task if there are several, and what they took."""
    cells, _ = chosen_cells(study, query.chosen)
    index, rows = study.index, study.rows
    several = len({cell.task_key for cell in study.cells}) > 1
    models: dict[tuple[bytes, bytes], list[int]] = {}
    for n in sorted(cells):
        cell = study.cells[n]
        models.setdefault((cell.model_key, cell.task_key if several else b""), []).append(n)
    shown = []
    for own in models.values():
        label = study.cells[own[0]].label
        model, task = label.model, label.task if several else ""
        mine = rows[np.isin(study.cell_of[rows], own)]
        if len(mine):
            counts = np.bincount(index.ended[mine], minlength=len(ENDINGS)).tolist()
            only = (
                query.only("size", "method").chosen
                if several
                else query.only("task", "size", "method").chosen
            )
            of_task = (("task", task),) if several else ()
            own_attempts = query.with_(chosen=(*only, ("model", model), *of_task))
            shown.append(
                {
                    "model": model,
                    "task": task,
                    "attempts": len(mine),
                    "ended": {name: counts[n] for n, name in enumerate(ENDINGS) if n != OPEN},
                    "tokens": int(np.median(index.tokens[mine])),
                    "link": address(study, "attempts") + own_attempts.address(),
                    "longest": address(study, "attempts") + longest_wrong(own_attempts).address(),
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
        "model": dict.fromkeys(c.label.model for c in cells),
        "method": dict.fromkeys(
            name for c in cells for name in ([use.name for use in c.chain] or ["none"])
        ),
        "task": dict.fromkeys(c.label.task for c in cells),
        "size": dict.fromkeys(str(size) for size in sorted({c.size for c in cells})),
    }
    values |= {name: dict.fromkeys(own) for name, own in swept(study).items() if name not in values}
    if page == "attempts":
        values["ended"] = dict.fromkeys(ENDINGS[1:])
    return [
        Facet(
            name,
            [(v, query.toggled(name, v).address() or "?", v in query.values(name)) for v in own],
        )
        for name, own in values.items()
        if len(own) > 1
    ]


def swept(study: ViewedStudy) -> dict[str, list[str]]:
    """The settings of methods that the study sweeps, with their values in order."""
    names = dict.fromkeys(
        name for cell in study.cells for use in cell.chain for name in use.settings
    )
    values = {name: {own[name] for own in study.settings if name in own} for name in names}
    return {
        name: sorted(own, key=_order) for name, own in values.items() if 1 < len(own) <= MOST_VALUES
    }


def _order(value: str) -> tuple[bool, float, str]:
    try:
        return False, float(value), ""
    except ValueError:
        return True, 0.0, value


def chips(study: ViewedStudy, query: Query) -> list[tuple[str, str]]:
    """What is chosen, each with the address without it."""
    shown = []
    for name, value in query.chosen:
        text = f"{name}: {value}"
        if name == "problem":
            text = f"problem: {_problem_name(study, value)}"
        elif name == "id":
            text = f"attempt {value}"
        elif name == "cells":
            text = _cells_name(study, value)
        shown.append((text, query.toggled(name, value).address() or "?"))
    if query.q:
        shown.append((f"text: {query.q}", query.with_(q="").address() or "?"))
    if query.against:
        told = "another model" if query.against == "any" else query.against
        shown.append((f"right here, wrong with {told}", query.with_(against="").address() or "?"))
    return shown


def _cells_name(study: ViewedStudy, value: str) -> str:
    """Describe the cells that an address names by their keys."""
    numbers, _ = chosen_cells(study, (("cells", value),))
    chosen = [study.cells[n] for n in sorted(numbers)]
    return group_label(chosen, study.cells) or count(len(chosen), "cell")


def _problem_name(study: ViewedStudy, row: str) -> str:
    named = (
        study.store.rows("SELECT name FROM problem WHERE id = ?", (int(row),))
        if row.isdigit()
        else []
    )
    name = str(named[0][0]) if named else row
    return name if len(name) <= 24 else f"{name[:22]}…"


def figures(
    study: ViewedStudy, query: Query, drawn: Sequence[DrawnFigure], asked: str | None = None
) -> list[dict[str, Any]]:
    """Figures with the addresses that lead from their marks and rows to attempts, and those of
    downloads.

    `asked`: the part of a download's address that says which figures they are; by default the
    filters.
    """
    filters = query.address()
    asked = filters if asked is None else asked
    return [
        {
            "figure": one,
            "picture": None,
            "leads": {"study": address(study), "groups": _addresses(study, one)},
            "downloads": [
                (kind.upper(), address(study, "figure", f"{one.name}.{kind}") + asked)
                for kind in PICTURES
            ],
            "tables": _tables(study, one, asked),
        }
        for one in drawn
    ]


def _addresses(study: ViewedStudy, figure: DrawnFigure) -> dict[str, str]:
    """Return the address of the attempts behind each mark of a figure, by its `basis`."""
    attempts = address(study, "attempts")
    addresses = {}
    for basis, group in figure.groups.items():
        if not study.failed and len(group.ended) == len(ANSWERED):
            group = group._replace(ended=())  # noqa: PLW2901 all of them are answered
        addresses[basis] = attempts + behind(group).address()
    return addresses


def _tables(study: ViewedStudy, figure: DrawnFigure, asked: str) -> list[dict[str, Any]]:
    addresses = _addresses(study, figure)
    tables = []
    for (name, rows), length in zip((figure.tables or {}).items(), figure.lengths, strict=True):
        links = []
        for row in rows:
            if "attempt" in row:
                links.append(address(study, "attempt", row["attempt"]))
            else:
                links.append(addresses.get(row.get("basis", ""), ""))
        download = address(study, "table", figure.name, f"{name}.csv") + asked
        tables.append(
            {
                "name": name,
                "rows": rows,
                "links": links,
                "length": length,
                "download": download,
                "file": "",
            }
        )
    return tables


def address(study: ViewedStudy, *parts: object, **query: object) -> str:
    """The address of a page of a study."""
    path = "/".join(quote(str(part), safe="") for part in (study.store.name, study.name, *parts))
    return f"/{path}" + (f"?{urlencode(query)}" if query else "")


def attempts_page(study: ViewedStudy, query: Query) -> dict[str, Any]:
    found = find(study, query)
    values: dict[str, Any] = {"total": len(found.rows), "next": None, "previous": None}
    values |= {"unknown": found.unknown, "not_filters": not_filters(study, query.chosen)}
    if query.q:
        hits, looked = search(study, found.rows, query, PAGE, SEARCH_SECONDS)
        values |= {"rows": hits, "looked": looked, "pages": 1}
        if looked < len(found.rows):
            values["next"] = query.with_(start=looked).address()
    else:
        number = min(query.page, found.pages)
        values |= {
            "rows": found.page(number).tolist(),
            "looked": None,
            "pages": found.pages,
            "number": number,
        }
        values["next"] = query.with_(page=number + 1).address() if number < found.pages else None
        values["previous"] = (query.with_(page=number - 1).address() or "?") if number > 1 else None
    wide = [c for c in query.columns.split(",") if c in COLUMNS] if query.columns else list(USUAL)
    if len({c.task_key for c in study.cells}) == 1 and not query.columns:
        wide.remove("task")
    return {
        **values,
        "attempts": listed(study, values["rows"]),
        "columns": wide,
        "column_choices": [(c, c in wide, _with_column(query, wide, c)) for c in COLUMNS],
        "sorts": {
            c: _sort(query, c)
            for c in ("ended", "model", "size", "tokens", "thinking", "answer", "prompt", "seconds")
        },
        "most": int(study.index.tokens[study.rows].max(initial=1)),
        "facets": facets(study, query, "attempts"),
        "chips": chips(study, query),
        "ready": ready_filters(study, query),
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
    several = len({c.model_key for c in study.cells}) > 1
    right = query.with_(chosen=(*query.without("ended").chosen, ("ended", ENDINGS[RIGHT])))
    ready = [
        ("Longest wrong", longest_wrong(query)),
        ("Longest right", right.with_(sort="-tokens")),
    ]
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
                "model": cell.label.model,
                "task": cell.label.task,
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


def transcript(study: ViewedStudy, attempt: int) -> Transcript | None:
    """Read one attempt; None if the study has none with this id."""
    try:
        with study.store.reading() as db:
            stored = read_attempt(db, attempt)
    except (zlib.error, ValueError, TypeError, msgspec.MsgspecError) as error:
        raise DamagedStore(study.store.path, str(error)) from None
    cell = next(
        (c for c in study.cells if stored and study.index.cells.get(c.key) == stored.cell), None
    )
    return Transcript(cell, stored.attempt, attempt, stored.problem) if stored and cell else None


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
    return {
        "one": one,
        "around": around,
        "same": listed(study, same[:24].tolist()),
        "same_total": len(same),
    }


SHOWN = 40  # problems of each kind


class Pair(NamedTuple):
    """The two models: A is the reference, B is compared with it."""

    a: str
    b: str


def variant_names(study: ViewedStudy) -> list[str]:
    """The models that can be compared: all training seeds of a variant count together."""
    return list({cell.variant_key: cell.label.variant for cell in study.cells}.values())


def chosen_pair(study: ViewedStudy, a: str, b: str) -> Pair | None:
    """The two that are named; where one isn't, the first that remains.

    None if the study has only one model.
    """
    for name in (a, b):
        if name and not cells_called(study.cells, "variant", name):
            raise unknown_name(study.cells, "model", name)
    known = variant_names(study)
    a = a or next((one for one in known if one != b), "")
    b = b if b and b != a else next((one for one in known if one != a), "")
    return Pair(a, b) if a and b else None


def pair_question(study: ViewedStudy, two: Pair) -> FigureRequest:
    """The figure of the comparison, for `Estimates`."""
    return figure_request(
        study, _cells(study, *two), figures=[{"name": "compare", "a": two.a, "b": two.b}]
    )


def compare_command(study: ViewedStudy, two: Pair) -> str:
    """The same comparison in a terminal."""
    built_in = (BUILT_IN / f"{study.name}.toml").is_file()
    store = [] if str(study.store.path) == "ponder.db" else ["--store", str(study.store.path)]
    return shlex.join(
        ["ponder", "compare", study.name if built_in else f"{study.name}.toml", *two, *store]
    )


def pair_query(two: Pair) -> Query:
    """The attempts of both."""
    return Query((("variant", two.a), ("variant", two.b)))


def disagreements(study: ViewedStudy, two: Pair) -> list[dict[str, Any]]:
    """The problems that only one of them got right, each with an attempt of both, side by side."""
    index = study.index
    sides = [_attempts(study, label) for label in two]
    rights = [set(index.problem[rows[index.ended[rows] == RIGHT]].tolist()) for rows in sides]
    asked_both = set(index.problem[sides[0]].tolist()) & set(index.problem[sides[1]].tolist())
    kinds = []
    for right, other in ((0, 1), (1, 0)):
        problems = sorted(asked_both & rights[right] - rights[other])
        shown = problems[:SHOWN]
        firsts = [_first(study, sides[side], shown, wanted=side == right) for side in (0, 1)]
        rows = [{"a": a, "b": b} for a, b in zip(*firsts, strict=True)]
        every = Query((("variant", two[right]),), against=two[other], sort="size")
        kinds.append(
            {"name": "AB"[right], "total": len(problems), "rows": rows, "query": every.address()}
        )
    return kinds


def _cells(study: ViewedStudy, *variants: str) -> list[int]:
    """Return the numbers of the cells of some variants."""
    chosen = {cell for name in variants for cell in cells_called(study.cells, "variant", name)}
    return [n for n, cell in enumerate(study.cells) if cell in chosen]


def _attempts(study: ViewedStudy, label: str) -> Whole:
    """The answered attempts of a variant."""
    rows = study.rows[np.isin(study.cell_of[study.rows], _cells(study, label))]
    answered: Whole = rows[study.index.ended[rows] != FAILED]
    return answered


def _first(
    study: ViewedStudy, rows: Whole, problems: Sequence[int], *, wanted: bool
) -> list[dict[str, Any]]:
    """For each problem the first attempt at it that is right, or wrong."""
    index = study.index
    chosen = rows[(index.ended[rows] == RIGHT) == wanted]
    places = {int(index.problem[row]): row for row in chosen[::-1].tolist()}
    return listed(study, [places[problem] for problem in problems])
