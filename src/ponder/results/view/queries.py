"""Finds the attempts that an address asks for.

The address is the query: it can be shared, and the browser can go back to it.

`model`, `variant`, `method`, `task`, `size`, any setting such as `window`, `ended` and `problem`
choose attempts; a name given twice means either. `cells` names cells by their keys: what a mark or
a row of a figure was computed from.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import parse_qsl, urlencode

import numpy as np

from ponder.core import ENDINGS
from ponder.results.charts import Group
from ponder.results.view.stores import (
    FAILED,
    RIGHT,
    Index,
    Whole,
)
from ponder.results.view.studies import ViewedStudy
from ponder.study.cell import StudyCell
from ponder.study.labels import cells_called

if TYPE_CHECKING:
    import sqlite3

PAGE = 50  # attempts
SORTS: dict[str, Callable[[Index, Whole], Whole]] = {
    "id": lambda i, rows: i.id[rows],
    "tokens": lambda i, rows: i.tokens[rows],
    "thinking": lambda i, rows: i.thinking[rows],
    "answer": lambda i, rows: i.answer[rows],
    "prompt": lambda i, rows: i.prompt[rows],
    "seconds": lambda i, rows: i.milliseconds[rows],
    "ended": lambda i, rows: i.ended[rows],
}
OF_ATTEMPTS = ("ended", "problem", "id")  # filters that choose among the attempts of a cell
# and those of whole cells, besides settings
OF_CELLS = ("model", "variant", "method", "task", "size", "cells")
DIGITS = 8  # of a cell's key, in an address
# filters as names and values; a name given twice means either
Choices: TypeAlias = tuple[tuple[str, str], ...]
_SINGLE = ("q", "sort", "against", "page", "from", "columns", "token")


@dataclass(frozen=True)
class Query:
    """What an address asks for."""

    chosen: Choices = ()
    q: str = ""  # text to search for
    against: str = ""  # right here and wrong there: a model, or "any" other
    sort: str = "id"
    page: int = 1
    start: int = 0  # where a search goes on
    columns: str = ""  # of the list, joined by commas; "": the usual ones

    @classmethod
    def read(cls, text: str) -> Query:
        """Parse the part of an address after the question mark; what makes no sense is left out."""
        pairs = parse_qsl(text, max_num_fields=200)
        last = dict(pairs)
        filters: dict[tuple[str, str], None] = {}
        for name, value in pairs:
            if name not in _SINGLE:
                filters[name, value] = None
        sort = last.get("sort", "id")
        if sort.removeprefix("-") not in (*SORTS, "size", "model"):
            sort = "id"
        return cls(
            chosen=tuple(filters),
            q=last.get("q", "").strip()[:200],
            against=last.get("against", ""),
            sort=sort,
            page=max(1, _number(last.get("page", ""), 1)),
            start=_number(last.get("from", ""), 0),
            columns=last.get("columns", "")[:200],
        )

    def address(self) -> str:
        """Return the query as a part of an address, with its question mark; "" for everything."""
        pairs: list[tuple[str, object]] = list(self.chosen)
        if self.q:
            pairs.append(("q", self.q))
        if self.against:
            pairs.append(("against", self.against))
        if self.sort != "id":
            pairs.append(("sort", self.sort))
        if self.page > 1:
            pairs.append(("page", self.page))
        if self.start:
            pairs.append(("from", self.start))
        if self.columns:
            pairs.append(("columns", self.columns))
        if not pairs:
            return ""
        return f"?{urlencode(pairs)}"

    def values(self, name: str) -> list[str]:
        return [value for key, value in self.chosen if key == name]

    def with_(self, **changes: Any) -> Query:
        """Return the query with changes, from its first page on."""
        return replace(self, **{"page": 1, "start": 0, **changes})

    def toggled(self, name: str, value: str) -> Query:
        """Return the query with a filter added, or removed if it has it."""
        pair = (name, str(value))
        if pair in self.chosen:
            return self.with_(chosen=tuple(filter_ for filter_ in self.chosen if filter_ != pair))
        return self.with_(chosen=(*self.chosen, pair))

    def of_cells(self) -> Query:
        """Return the filters that choose whole cells.

        To choose attempts by how they ended would bias every estimate.
        """
        return self.without(*OF_ATTEMPTS)

    def only(self, *names: str) -> Query:
        """Return the filters of these names alone."""
        return Query(tuple(pair for pair in self.chosen if pair[0] in names))

    def without(self, *names: str) -> Query:
        """Return the filters of other names alone."""
        return Query(tuple(pair for pair in self.chosen if pair[0] not in names))


def _number(text: str, default: int) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else default


@dataclass(frozen=True)
class Found:
    """The attempts that a query chooses, in its order, as places in the index."""

    rows: Whole
    # filters that no attempt of the study matches, such as `model=nobody`
    unknown: tuple[str, ...] = ()

    def page(self, number: int) -> Whole:
        return self.rows[PAGE * (number - 1) : PAGE * number]

    @property
    def pages(self) -> int:
        return max(1, -(-len(self.rows) // PAGE))


def behind(group: Group) -> Query:
    """Return the query for the attempts that a row or a mark was computed from."""
    keys = ".".join(key.hex()[:DIGITS] for key in group.cells)
    return Query((("cells", keys), *(("ended", ended) for ended in group.ended)))


def chosen_cells(study: ViewedStudy, chosen: Choices) -> tuple[set[int], tuple[str, ...]]:
    """Return the numbers of the cells that every filter admits, and the filters that match none.

    A name that is not a filter of the study (`not_filters`) chooses nothing.
    """
    ignored = {*OF_ATTEMPTS, *not_filters(study, chosen)}
    matching: dict[str, set[int]] = {}  # by the filter's name: several values mean either
    unknown = []
    for name, value in chosen:
        if name in ignored:
            continue
        cells = _matching(study, name, value)
        if not cells:
            unknown.append(f"{name}={value}")
        matching[name] = matching.get(name, set()) | cells
    admitted = set(range(len(study.cells)))
    for cells in matching.values():
        admitted &= cells
    return admitted, tuple(unknown)


def not_filters(study: ViewedStudy, chosen: Choices) -> tuple[str, ...]:
    """Return the names in an address that no attempt of the study can be chosen by."""
    filters = {*OF_CELLS, *OF_ATTEMPTS}.union(*study.settings)
    names = dict.fromkeys(name for name, _ in chosen)
    return tuple(name for name in names if name not in filters)


def _matching(study: ViewedStudy, name: str, value: str) -> set[int]:
    """Return the numbers of the cells that a filter admits."""
    if name in ("model", "variant", "task"):
        called = set(cells_called(study.cells, name, value))
        return {number for number, cell in enumerate(study.cells) if cell in called}
    keys = value.split(".")
    numbers = set()
    for number, cell in enumerate(study.cells):
        if name == "cells":
            matches = cell.key.hex()[:DIGITS] in keys
        elif name == "size":
            matches = str(cell.size) == value
        elif name == "method":
            matches = value in method_names(cell)
        else:
            matches = study.settings[number].get(name) == value
        if matches:
            numbers.add(number)
    return numbers


def method_names(cell: StudyCell) -> list[str]:
    """Return the names of a cell's methods, as a filter names them: `none` if there are none."""
    if not cell.chain:
        return ["none"]
    return [use.name for use in cell.chain]


def find(study: ViewedStudy, query: Query) -> Found:
    """Choose and sort attempts, without reading a text."""
    cells, unknown = chosen_cells(study, query.chosen)
    index = study.index
    rows = study.rows
    keep = np.isin(study.cell_of[rows], sorted(cells))
    parsers: dict[str, Callable[[str], int | None]] = {"ended": _ending, "problem": _id, "id": _id}
    for name, parse in parsers.items():
        values = query.values(name)
        if not values:
            continue
        numbers = []
        for value in values:
            number = parse(value)
            if number is None:
                unknown = (*unknown, f"{name}={value}")
            else:
                numbers.append(number)
        column: Whole = getattr(index, name)
        keep &= np.isin(column[rows], numbers)
    if query.against:
        keep &= _right_here(study, query.against)
    return Found(_sorted(study, rows[keep], query.sort), unknown)


def _ending(value: str) -> int | None:
    if value not in ENDINGS:
        return None
    return ENDINGS.index(value)


def _id(value: str) -> int | None:
    if value.isascii() and value.isdigit() and len(value) < 19:
        return int(value)
    return None


def _right_here(study: ViewedStudy, against: str) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Return which attempts are right where `against`, or any other model, is wrong."""
    index = study.index
    rows = study.rows
    problem = index.problem[rows]
    right = index.ended[rows] == RIGHT
    failed = index.ended[rows] == FAILED
    wrong = ~right & ~failed
    if against != "any":
        other_cells = _matching(study, "model", against) | _matching(study, "variant", against)
        is_of_others = np.isin(study.cell_of[rows], sorted(other_cells))
        wrong_problems = problem[wrong & is_of_others]
        return np.asarray(right & ~is_of_others & np.isin(problem, wrong_problems))
    model_of_cell = np.array(_ranks([cell.model_key for cell in study.cells]) or [0])
    model = model_of_cell[study.cell_of[rows]]
    models = int(model.max(initial=0)) + 1
    # each problem and model as one number
    pair = problem * models + model
    wrong_pairs = np.unique(pair[wrong])
    models_wrong = np.bincount(wrong_pairs // models, minlength=int(problem.max(initial=0)) + 1)
    other_models_wrong = models_wrong[problem] - np.isin(pair, wrong_pairs)
    return np.asarray(right & (other_models_wrong > 0))


def _ranks(keys: Sequence[bytes]) -> list[int]:
    """Return for each key the number of its first occurrence among the distinct ones."""
    ranks: dict[bytes, int] = {}
    for key in keys:
        ranks.setdefault(key, len(ranks))
    return [ranks[key] for key in keys]


def _sorted(study: ViewedStudy, rows: Whole, sort: str) -> Whole:
    if sort == "id":
        return rows
    column = sort.removeprefix("-")
    if column == "size":
        of_cell = [cell.size for cell in study.cells]
        values = np.array(of_cell or [0])[study.cell_of[rows]]
    elif column == "model":
        of_cell = _ranks([cell.model_key for cell in study.cells])
        values = np.array(of_cell or [0])[study.cell_of[rows]]
    else:
        values = SORTS[column](study.index, rows)
    if sort.startswith("-"):
        values = -values
    return rows[np.argsort(values, kind="stable")]


def search(
    study: ViewedStudy, rows: Whole, query: Query, most: int, seconds: float
) -> tuple[list[int], int]:
    """Return the first attempts from `start` on whose texts hold `q`, and how many were searched.

    Texts are compressed in the store: 200,000 long ones take a minute, so a page searches some and
    offers to continue.
    """
    needle = query.q.casefold()
    in_reason = [needle in reason.casefold() for reason in study.index.reasons]
    hits: list[int] = []
    searched = query.start
    deadline = time.monotonic() + seconds
    while searched < len(rows) and len(hits) < most and time.monotonic() < deadline:
        with study.store.reading() as db:
            for row in rows[searched : searched + 100].tolist():
                searched += 1
                attempt = int(study.index.id[row])
                if in_reason[study.index.why[row]] or _in_texts(db, attempt, needle):
                    hits.append(row)
                    if len(hits) == most:
                        break
    return hits, searched


def _in_texts(db: sqlite3.Connection, attempt: int, wanted: str) -> bool:
    """Return whether a text is in an attempt's answers or its thinking."""
    turns = db.execute("SELECT thinking, answer FROM turn WHERE attempt = ?", (attempt,))
    for thinking, answer in turns.fetchall():
        if wanted in answer.casefold():
            return True
        if thinking:
            text = zlib.decompress(thinking).decode("utf-8", "replace")
            if wanted in text.casefold():
                return True
    return False
