"""Which attempts an address asks for. The address is the query: it can be shared, and the browser
can go back to it.

`model`, `variant`, `method`, `task`, `size`, any setting such as `window`, `ended` and `problem`
choose attempts; a name given twice means either. `cells` names cells by their keys: what a mark or
a row of a figure was computed from.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias
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
from ponder.study.labels import cells_called

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
        """From the part of an address after the question mark; what makes no sense is left out."""
        given = parse_qsl(text, max_num_fields=200)
        last = dict(given)
        chosen = tuple(dict.fromkeys((k, v) for k, v in given if k not in _SINGLE))
        sort = last.get("sort", "id")
        return cls(
            chosen,
            last.get("q", "").strip()[:200],
            last.get("against", ""),
            sort if sort.removeprefix("-") in (*SORTS, "size", "model") else "id",
            max(1, _number(last.get("page", ""), 1)),
            _number(last.get("from", ""), 0),
            last.get("columns", "")[:200],
        )

    def address(self) -> str:
        """The query as a part of an address, with its question mark; "" if it asks for everything."""
        more: dict[str, Any] = {
            "q": self.q,
            "against": self.against,
            "sort": self.sort if self.sort != "id" else "",
        }
        more |= {
            "page": self.page if self.page > 1 else "",
            "from": self.start or "",
            "columns": self.columns,
        }
        pairs = [*self.chosen, *((k, v) for k, v in more.items() if v)]
        return f"?{urlencode(pairs)}" if pairs else ""

    def values(self, name: str) -> list[str]:
        return [value for key, value in self.chosen if key == name]

    def with_(self, **changes: Any) -> Query:
        return replace(self, **{"page": 1, "start": 0, **changes})

    def toggled(self, name: str, value: str) -> Query:
        pair = (name, str(value))
        rest = tuple(one for one in self.chosen if one != pair)
        return self.with_(chosen=rest if len(rest) < len(self.chosen) else (*rest, pair))

    def of_cells(self) -> Query:
        """The filters that choose whole cells.

        To choose attempts by how they ended would bias every estimate.
        """
        return self.without(*OF_ATTEMPTS)

    def only(self, *names: str) -> Query:
        """The filters of these names alone."""
        return Query(tuple(pair for pair in self.chosen if pair[0] in names))

    def without(self, *names: str) -> Query:
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
    """Return the numbers of the cells that every filter admits, and the filters that none of them
    matches.

    What is no filter of the study (`not_filters`) chooses nothing.
    """
    admitted = set(range(len(study.cells)))
    unknown = []
    left_out = {*OF_ATTEMPTS, *not_filters(study, chosen)}
    for name in dict.fromkeys(name for name, _ in chosen if name not in left_out):
        either: set[int] = set()
        for value in (value for key, value in chosen if key == name):
            matching = _matching(study, name, value)
            if not matching:
                unknown.append(f"{name}={value}")
            either |= matching
        admitted &= either
    return admitted, tuple(unknown)


def not_filters(study: ViewedStudy, chosen: Choices) -> tuple[str, ...]:
    """Return the names that an address chooses by, though no attempt of the study has such a thing."""
    known = {*OF_CELLS, *OF_ATTEMPTS}.union(*study.settings)
    return tuple(dict.fromkeys(name for name, _ in chosen if name not in known))


def _matching(study: ViewedStudy, name: str, value: str) -> set[int]:
    """Return the numbers of the cells that a filter admits."""
    if name == "cells":
        keys = set(value.split("."))
        return {n for n, cell in enumerate(study.cells) if cell.key.hex()[:DIGITS] in keys}
    if name == "size":
        return {n for n, cell in enumerate(study.cells) if str(cell.size) == value}
    if name == "method":
        return {
            n
            for n, cell in enumerate(study.cells)
            if value in ([use.name for use in cell.chain] or ["none"])
        }
    if name in ("model", "variant", "task"):
        called = set(cells_called(study.cells, name, value))
        return {n for n, cell in enumerate(study.cells) if cell in called}
    return {n for n, settings in enumerate(study.settings) if settings.get(name) == value}


def find(study: ViewedStudy, query: Query) -> Found:
    """Choose and sort, without reading a text."""
    cells, unknown = chosen_cells(study, query.chosen)
    index, rows = study.index, study.rows
    keep = np.isin(study.cell_of[rows], sorted(cells))
    chosen: dict[str, Callable[[str], int | None]] = {"ended": _ending, "problem": _id, "id": _id}
    of = {"ended": index.ended, "problem": index.problem, "id": index.id}
    for name, number in chosen.items():
        numbers = {value: number(value) for value in query.values(name)}
        unknown += tuple(f"{name}={value}" for value, known in numbers.items() if known is None)
        if numbers:
            keep &= np.isin(
                of[name][rows], [known for known in numbers.values() if known is not None]
            )
    if query.against:
        keep &= _right_here(study, query.against)
    rows = rows[keep]
    return Found(_sorted(study, rows, query.sort), unknown)


def _ending(value: str) -> int | None:
    return ENDINGS.index(value) if value in ENDINGS else None


def _id(value: str) -> int | None:
    return int(value) if value.isascii() and value.isdigit() and len(value) < 19 else None


def _right_here(study: ViewedStudy, against: str) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """The attempts that are right, at problems that another model, or this one, answers wrongly."""
    index, rows = study.index, study.rows
    model = np.array(_ranks([cell.model_key for cell in study.cells]) or [0])[study.cell_of[rows]]
    problem = index.problem[rows]
    right, failed = index.ended[rows] == RIGHT, index.ended[rows] == FAILED
    wrong = ~right & ~failed
    if against == "any":
        pairs = np.unique(np.stack([problem[wrong], model[wrong]], axis=1), axis=0)
        models_wrong = np.bincount(pairs[:, 0], minlength=int(problem.max(initial=0)) + 1)
        mine = pairs[:, 0] * (int(model.max(initial=0)) + 1) + pairs[:, 1]
        own = np.isin(problem * (int(model.max(initial=0)) + 1) + model, mine)
        there = models_wrong[problem] - own > 0
        return np.asarray(right & there)
    others = _matching(study, "model", against) | _matching(study, "variant", against)
    named = np.isin(study.cell_of[rows], sorted(others))
    return np.asarray(right & ~named & np.isin(problem, problem[wrong & named]))


def _ranks(keys: Sequence[bytes]) -> list[int]:
    ranks = {key: n for n, key in enumerate(dict.fromkeys(keys))}
    return [ranks[key] for key in keys]


def _sorted(study: ViewedStudy, rows: Whole, sort: str) -> Whole:
    name = sort.removeprefix("-")
    if name in ("size", "model"):
        of_cell = (
            [c.size for c in study.cells]
            if name == "size"
            else _ranks([c.model_key for c in study.cells])
        )
        keys = np.array(of_cell or [0])[study.cell_of[rows]]
    else:
        keys = SORTS[name](study.index, rows)
    if sort == "id":
        return rows
    return rows[np.argsort(-keys if sort.startswith("-") else keys, kind="stable")]


def search(
    study: ViewedStudy, rows: Whole, query: Query, most: int, seconds: float
) -> tuple[list[int], int]:
    """The first attempts from `start` on whose texts hold `q`, and how many were looked at before
    time was up.

    Texts are compressed in the store: 200,000 long ones take a minute, so a page looks at some and
    offers to go on.
    """
    import time
    import zlib

    wanted, hits, looked = query.q.casefold(), list[int](), query.start
    ends = time.monotonic() + seconds
    why = [wanted in reason.casefold() for reason in study.index.reasons]
    sql = "SELECT thinking, answer FROM turn WHERE attempt = ?"
    while looked < len(rows) and len(hits) < most and time.monotonic() < ends:
        with study.store.reading() as db:
            for row in rows[looked : looked + 100].tolist():
                looked += 1
                turns = db.execute(sql, (int(study.index.id[row]),))
                if why[study.index.why[row]] or any(
                    wanted in answer.casefold()
                    or (
                        thinking
                        and wanted
                        in zlib.decompress(thinking).decode("utf-8", "replace").casefold()
                    )
                    for thinking, answer in turns.fetchall()
                ):
                    hits.append(row)
                    if len(hits) == most:
                        break
    return hits, looked
