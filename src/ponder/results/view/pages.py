"""Computes what each page shows, as plain values for its template."""

from __future__ import annotations

import shlex
import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

import msgspec
import numpy as np

from ponder.core import ANSWERED, ENDINGS, UserError
from ponder.core.text import count
from ponder.results.charts import DrawnFigure, Group
from ponder.results.study import Study
from ponder.results.transcript import Transcript
from ponder.results.tuning_section import looks_for_cheapest
from ponder.results.view.estimates import Estimated, FigureRequest, figure_request
from ponder.results.view.queries import (
    OF_ATTEMPTS,
    PAGE,
    Query,
    behind,
    chosen_cells,
    find,
    method_names,
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
from ponder.study.cell import StudyCell
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
SORTED_COLUMNS = (
    "ended",
    "model",
    "size",
    "tokens",
    "thinking",
    "answer",
    "prompt",
    "seconds",
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
    """Return the stores with their studies; `given` are the studies whose files were named."""
    filled = []
    for store in stores:
        if not store.path.is_file():
            filled.append(Shelf(store, exists=False))
            continue
        try:
            cards = []
            for study in studies(store, given):
                reached = progress(study) if study.study else None
                cards.append({"study": study, "progress": reached})
            filled.append(Shelf(store, exists=True, studies=cards))
        except UserError as error:
            filled.append(Shelf(store, exists=True, error=error.in_terminal()))
    return filled


def study_page(study: ViewedStudy, query: Query, left_out: Sequence[str]) -> dict[str, Any]:
    """Return the values of a study's page, without its figures."""
    cells, unknown = chosen_cells(study, query.chosen)
    assert study.results is not None
    is_filtered = len(cells) < len(study.cells)
    return {
        "verdict_is_left_out": is_filtered and looks_for_cheapest(study.results),
        "left_out": left_out,
        "unknown": unknown,
        "not_filters": not_filters(study, query.chosen),
        "facets": facets(study, query, "study"),
        "progress": progress(study),
        "models": by_model(study, query),
        "settings": study.study.resolved() if study.study else {},
        "chips": chips(study, query),
    }


def left_out(query: Query) -> list[str]:
    """Return the filters that a study's page doesn't follow: they would bias every estimate."""
    filters = [pair for pair in query.chosen if pair[0] in OF_ATTEMPTS]
    if query.q:
        filters.append(("q", query.q))
    if query.against:
        filters.append(("against", query.against))
    return [f"{name}={value}" for name, value in filters]


def by_model(study: ViewedStudy, query: Query) -> list[dict[str, Any]]:
    """Count how the attempts of each model ended, by task if there are several."""
    cell_numbers, _ = chosen_cells(study, query.chosen)
    several_tasks = len({cell.task_key for cell in study.cells}) > 1
    cells_of_model: dict[tuple[bytes, bytes], list[int]] = {}
    for number in sorted(cell_numbers):
        cell = study.cells[number]
        task_key = cell.task_key if several_tasks else b""
        cells_of_model.setdefault((cell.model_key, task_key), []).append(number)
    index = study.index
    attempts_address = address(study, "attempts")
    counted = []
    for cells in cells_of_model.values():
        rows = study.rows[np.isin(study.cell_of[study.rows], cells)]
        if not len(rows):
            continue
        label = study.cells[cells[0]].label
        filters = query.only("task", "size", "method").chosen
        task = ""
        if several_tasks:
            task = label.task
            filters = query.only("size", "method").chosen
        filters = (*filters, ("model", label.model))
        if several_tasks:
            filters = (*filters, ("task", task))
        of_model = query.with_(chosen=filters)
        counts = np.bincount(index.ended[rows], minlength=len(ENDINGS)).tolist()
        ended = dict(zip(ENDINGS, counts, strict=True))
        del ended[ENDINGS[OPEN]]
        counted.append(
            {
                "model": label.model,
                "task": task,
                "attempts": len(rows),
                "ended": ended,
                "tokens": int(np.median(index.tokens[rows])),
                "link": attempts_address + of_model.address(),
                "longest": attempts_address + longest_wrong(of_model).address(),
            }
        )
    return counted


def longest_wrong(query: Query) -> Query:
    """Return the query for the wrong attempts that a query chooses, the longest first."""
    filters = query.without("ended").chosen
    for ending in (WRONG, UNPARSED, TRUNCATED):
        filters = (*filters, ("ended", ENDINGS[ending]))
    return query.with_(chosen=filters, sort="-tokens")


class Facet(NamedTuple):
    """A filter of a page: its values, each with the address that adds or removes it."""

    name: str
    values: Sequence[tuple[str, str, bool]]  # value, address, whether it is chosen


def facets(study: ViewedStudy, query: Query, page: str) -> list[Facet]:
    """Return the filters of a page that have more than one value."""
    models: dict[str, None] = {}
    methods: dict[str, None] = {}
    tasks: dict[str, None] = {}
    for cell in study.cells:
        models[cell.label.model] = None
        tasks[cell.label.task] = None
        for method in method_names(cell):
            methods[method] = None
    sizes = [str(size) for size in sorted({cell.size for cell in study.cells})]
    values: dict[str, Collection[str]] = {
        "model": models,
        "method": methods,
        "task": tasks,
        "size": sizes,
    }
    for name, settings in swept(study).items():
        values.setdefault(name, settings)
    if page == "attempts":
        values["ended"] = ENDINGS[1:]
    filters = []
    for name, choices in values.items():
        if len(choices) > 1:
            active = query.values(name)
            links = [(v, query.toggled(name, v).address() or "?", v in active) for v in choices]
            filters.append(Facet(name, links))
    return filters


def swept(study: ViewedStudy) -> dict[str, list[str]]:
    """Return the settings of methods that the study sweeps, with their values in order."""
    names: dict[str, None] = {}
    for cell in study.cells:
        for use in cell.chain:
            names |= dict.fromkeys(use.settings)
    values = {}
    for name in names:
        distinct = {settings[name] for settings in study.settings if name in settings}
        if 1 < len(distinct) <= MOST_VALUES:
            values[name] = sorted(distinct, key=_order)
    return values


def _order(value: str) -> tuple[bool, float, str]:
    try:
        return False, float(value), ""
    except ValueError:
        return True, 0.0, value


def chips(study: ViewedStudy, query: Query) -> list[tuple[str, str]]:
    """Return the filters of an address as texts, each with the address without it."""
    filters = []
    for name, value in query.chosen:
        text = f"{name}: {value}"
        if name == "problem":
            text = f"problem: {_problem_name(study, value)}"
        elif name == "id":
            text = f"attempt {value}"
        elif name == "cells":
            text = _cells_name(study, value)
        filters.append((text, query.toggled(name, value)))
    if query.q:
        filters.append((f"text: {query.q}", query.with_(q="")))
    if query.against:
        opponent = "another model" if query.against == "any" else query.against
        filters.append((f"right here, wrong with {opponent}", query.with_(against="")))
    return [(text, without.address() or "?") for text, without in filters]


def _cells_name(study: ViewedStudy, value: str) -> str:
    """Describe the cells that an address names by their keys."""
    numbers, _ = chosen_cells(study, (("cells", value),))
    cells = [study.cells[n] for n in sorted(numbers)]
    return group_label(cells, study.cells) or count(len(cells), "cell")


def _problem_name(study: ViewedStudy, row: str) -> str:
    name = row
    if row.isdigit():
        for (stored_name,) in study.store.rows(
            "SELECT name FROM problem WHERE id = ?", (int(row),)
        ):
            name = str(stored_name)
    return name if len(name) <= 24 else f"{name[:22]}…"


def figures(
    study: ViewedStudy,
    query: Query,
    drawn: Sequence[DrawnFigure],
    download_query: str | None = None,
) -> list[dict[str, Any]]:
    """Return figures with the addresses behind their marks and rows, and those of downloads.

    `download_query` is the part of a download's address that chooses its figures; by default it has
    the filters.
    """
    if download_query is None:
        download_query = query.address()
    values = []
    for figure in drawn:
        downloads = []
        for ending in PICTURES:
            file = address(study, "figure", f"{figure.name}.{ending}")
            downloads.append((ending.upper(), file + download_query))
        values.append(
            {
                "figure": figure,
                "picture": None,
                "leads": {"study": address(study), "groups": _addresses(study, figure.groups)},
                "downloads": downloads,
                "tables": _tables(study, figure, download_query),
            }
        )
    return values


def _addresses(study: ViewedStudy, groups: Mapping[str, Group]) -> dict[str, str]:
    """Return the address of the attempts behind each mark or row, by its `basis`."""
    attempts = address(study, "attempts")
    addresses = {}
    for basis, group in groups.items():
        linked = group
        if not study.failed and len(group.ended) == len(ANSWERED):  # all of them are answered
            linked = group._replace(ended=())
        addresses[basis] = attempts + behind(linked).address()
    return addresses


def tuning(study: ViewedStudy, estimated: Estimated) -> dict[str, Any] | None:
    """Return the values of the section on the cheapest setting; None if that isn't the goal."""
    if estimated.tuning_error:
        return {"error": estimated.tuning_error}
    section = estimated.tuning
    if section is None:
        return None
    variants = variant_names(study)
    compared = []
    for step in section.steps:
        all_problems = ""
        if step.first in variants and step.second in variants:
            all_problems = address(study, "compare", a=step.first, b=step.second)
        compared.append(all_problems)
    transcripts = {}
    for first, second in section.replies():
        # The list that a transcript is opened from: `j` and `k` turn from one reply to the other.
        both = Query((("id", str(first)), ("id", str(second)))).address()
        transcripts[first, second] = (
            address(study, "attempt", first) + both,
            address(study, "attempt", second) + both,
        )
    return {
        "error": "",
        "section": section,
        "attempts": _addresses(study, section.groups),
        "transcripts": transcripts,
        "all_problems": compared,
    }


def _tables(study: ViewedStudy, figure: DrawnFigure, download_query: str) -> list[dict[str, Any]]:
    addresses = _addresses(study, figure.groups)
    tables = []
    for (name, rows), length in zip((figure.tables or {}).items(), figure.lengths, strict=True):
        links = []
        for row in rows:
            if "attempt" in row:
                links.append(address(study, "attempt", row["attempt"]))
            else:
                links.append(addresses.get(row.get("basis", ""), ""))
        download = address(study, "table", figure.name, f"{name}.csv") + download_query
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
    """Return the address of a page of a study."""
    names = (study.store.name, study.name, *parts)
    path = "/" + "/".join(quote(str(name), safe="") for name in names)
    if query:
        return f"{path}?{urlencode(query)}"
    return path


def attempts_page(study: ViewedStudy, query: Query) -> dict[str, Any]:
    """Return the values of a list of attempts: one page of those that a query chooses."""
    matching = find(study, query)
    searched = None
    previous_page = None
    next_page = None
    if query.q:
        rows, searched = search(study, matching.rows, query, PAGE, SEARCH_SECONDS)
        pages: dict[str, Any] = {"pages": 1}
        if searched < len(matching.rows):
            next_page = query.with_(start=searched).address()
    else:
        number = min(query.page, matching.pages)
        rows = matching.page(number).tolist()
        pages = {"pages": matching.pages, "number": number}
        if number < matching.pages:
            next_page = query.with_(page=number + 1).address()
        if number > 1:
            previous_page = query.with_(page=number - 1).address() or "?"
    columns = _list_columns(study, query)
    return {
        **pages,
        "total": len(matching.rows),
        "next": next_page,
        "previous": previous_page,
        "unknown": matching.unknown,
        "not_filters": not_filters(study, query.chosen),
        "rows": rows,
        "looked": searched,
        "attempts": listed(study, rows),
        "columns": columns,
        "column_choices": [(c, c in columns, _with_column(query, columns, c)) for c in COLUMNS],
        "sorts": {column: _sort(query, column) for column in SORTED_COLUMNS},
        "most": int(study.index.tokens[study.rows].max(initial=1)),
        "facets": facets(study, query, "attempts"),
        "chips": chips(study, query),
        "ready": ready_filters(study, query),
    }


def _list_columns(study: ViewedStudy, query: Query) -> list[str]:
    """Return the columns that a list has: those of the address, or the usual ones."""
    if query.columns:
        return [column for column in query.columns.split(",") if column in COLUMNS]
    columns = list(USUAL)
    if len({cell.task_key for cell in study.cells}) == 1:
        columns.remove("task")
    return columns


def _with_column(query: Query, columns: Sequence[str], column: str) -> str:
    """Return the address that adds a column to a list, or removes it."""
    wanted_columns = [name for name in COLUMNS if (name in columns) != (name == column)]
    return query.with_(columns=",".join(wanted_columns), page=query.page).address()


def _sort(query: Query, column: str) -> tuple[str, str]:
    """Return the address that sorts by a column, and how it is sorted now."""
    orders = [f"-{column}", column]  # the longest attempts first
    if column in ("model", "size", "ended"):
        orders.reverse()
    first, second = orders
    order = ""
    if query.sort == column:
        order = "ascending"
    elif query.sort == f"-{column}":
        order = "descending"
    next_order = second if query.sort == first else first
    return query.with_(sort=next_order).address(), order


def ready_filters(study: ViewedStudy, query: Query) -> list[tuple[str, str]]:
    """Return queries that people often want, with their addresses."""
    right = query.with_(chosen=(*query.without("ended").chosen, ("ended", ENDINGS[RIGHT])))
    ready = [
        ("Longest wrong", longest_wrong(query)),
        ("Longest right", right.with_(sort="-tokens")),
        ("Shortest right", right.with_(sort="tokens")),
    ]
    if len({cell.model_key for cell in study.cells}) > 1:
        ready.append(("Right here, wrong there", query.with_(against="any")))
    ready.append(("Everything", Query()))
    return [(name, filtered.address() or "?") for name, filtered in ready]


def listed(study: ViewedStudy, rows: Sequence[int]) -> list[dict[str, Any]]:
    """Return attempts as a list shows them."""
    index = study.index
    problems = list({int(index.problem[row]) for row in rows})
    names: dict[int, str] = {}
    if problems:
        marks = ",".join("?" * len(problems))
        sql = f"SELECT id, name FROM problem WHERE id IN ({marks})"  # noqa: S608 question marks
        names = dict(study.store.rows(sql, problems))
    attempts = []
    for row in rows:
        cell = study.cells[study.cell_of[row]]
        problem = int(index.problem[row])
        attempts.append(
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
    return attempts


def transcript(study: ViewedStudy, attempt: int) -> Transcript | None:
    """Read one attempt with its texts; return None if the study has none with this id."""
    try:
        with study.store.reading() as db:
            stored = read_attempt(db, attempt)
    except (zlib.error, ValueError, TypeError, msgspec.MsgspecError) as error:
        raise DamagedStore(study.store.path, str(error)) from None
    if stored is None:
        return None
    for cell in study.cells:
        if study.index.cells.get(cell.key) == stored.cell:
            return Transcript(cell, stored.attempt, attempt, stored.problem)
    return None


def attempt_page(study: ViewedStudy, query: Query, attempt: int) -> dict[str, Any] | None:
    """Return the values of a transcript's page, with its neighbours in the list of a query."""
    if attempt >= 2**63:  # SQLite has no larger number
        return None
    opened = transcript(study, attempt)
    if opened is None:
        return None
    index = study.index
    around: dict[str, Any] = {"previous": None, "next": None, "place": None, "total": 0}
    if not query.q:
        rows = find(study, query).rows
        around["total"] = len(rows)
        places = np.flatnonzero(index.id[rows] == attempt)
        if len(places):
            position = int(places[0])
            around["place"] = position
            if position > 0:
                around["previous"] = int(index.id[rows[position - 1]])
            if position + 1 < len(rows):
                around["next"] = int(index.id[rows[position + 1]])
    attempts_at_problem = study.rows[index.problem[study.rows] == opened.problem_row]
    return {
        "one": opened,
        "around": around,
        "same": listed(study, attempts_at_problem[:24].tolist()),
        "same_total": len(attempts_at_problem),
    }


SHOWN = 40  # problems of each kind


class Pair(NamedTuple):
    """The two models: A is the reference, B is compared with it."""

    a: str
    b: str


def variant_names(study: ViewedStudy) -> list[str]:
    """Return the models that can be compared: all training seeds of a variant count together."""
    names = {cell.variant_key: cell.label.variant for cell in study.cells}
    return list(names.values())


def chosen_pair(study: ViewedStudy, a: str, b: str) -> Pair | None:
    """Return the two models that are named; where one isn't, the first that remains.

    Return None if the study has only one model.
    """
    for name in (a, b):
        if name and not cells_called(study.cells, "variant", name):
            raise unknown_name(study.cells, "model", name)
    names = variant_names(study)
    if not a:
        a = next((name for name in names if name != b), "")
    if not b or b == a:
        b = next((name for name in names if name != a), "")
    if not a or not b:
        return None
    return Pair(a, b)


def pair_request(study: ViewedStudy, two: Pair) -> FigureRequest:
    """Return the request for the figure of a comparison."""
    figure = {"name": "compare", "a": two.a, "b": two.b}
    return figure_request(study, _cells(study, *two), figures=[figure])


def _cells(study: ViewedStudy, *variants: str) -> list[int]:
    """Return the numbers of the cells of some variants."""
    called: set[StudyCell] = set()
    for name in variants:
        called.update(cells_called(study.cells, "variant", name))
    return [number for number, cell in enumerate(study.cells) if cell in called]


def compare_command(study: ViewedStudy, two: Pair) -> str:
    """Return the command that makes the same comparison in a terminal."""
    name = f"{study.name}.toml"
    if (BUILT_IN / name).is_file():
        name = study.name
    words = ["ponder", "compare", name, *two]
    if str(study.store.path) != "ponder.db":
        words += ["--store", str(study.store.path)]
    return shlex.join(words)


def pair_query(two: Pair) -> Query:
    """Return the query for the attempts of both."""
    return Query((("variant", two.a), ("variant", two.b)))


def disagreements(study: ViewedStudy, two: Pair) -> list[dict[str, Any]]:
    """Return the problems that only one of two models got right, each with an attempt of both."""
    index = study.index
    attempts = {name: _attempts(study, name) for name in two}
    asked_problems = {name: set(index.problem[rows].tolist()) for name, rows in attempts.items()}
    right = {}
    for name, rows in attempts.items():
        right_rows = rows[index.ended[rows] == RIGHT]
        right[name] = set(index.problem[right_rows].tolist())
    kinds = []
    for letter, winner, loser in (("A", two.a, two.b), ("B", two.b, two.a)):
        problems = sorted(
            asked_problems[winner] & asked_problems[loser] & right[winner] - right[loser]
        )
        listed_problems = problems[:SHOWN]
        of_a = _first(study, attempts[two.a], listed_problems, right=winner == two.a)
        of_b = _first(study, attempts[two.b], listed_problems, right=winner == two.b)
        every = Query((("variant", winner),), against=loser, sort="size")
        kinds.append(
            {
                "name": letter,
                "total": len(problems),
                "rows": [{"a": a, "b": b} for a, b in zip(of_a, of_b, strict=True)],
                "query": every.address(),
            }
        )
    return kinds


def _attempts(study: ViewedStudy, variant: str) -> Whole:
    """Return the answered attempts of a variant, as places in the index."""
    rows = study.rows[np.isin(study.cell_of[study.rows], _cells(study, variant))]
    answered: Whole = rows[study.index.ended[rows] != FAILED]
    return answered


def _first(
    study: ViewedStudy, rows: Whole, problems: Sequence[int], *, right: bool
) -> list[dict[str, Any]]:
    """Return for each problem the first attempt at it that is right, or wrong."""
    index = study.index
    graded = rows[(index.ended[rows] == RIGHT) == right]
    first: dict[int, int] = {}
    for row in graded.tolist():
        first.setdefault(int(index.problem[row]), row)
    return listed(study, [first[problem] for problem in problems])
