"""Two models of a study on the same problems: the figure and the words of `ponder compare`, and
where they differ.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ponder.results.view.estimates import Asked, asked
from ponder.results.view.index import FAILED, RIGHT, Whole
from ponder.results.view.pages import listed
from ponder.results.view.queries import Query
from ponder.results.view.studies import ViewedStudy
from ponder.study.labels import cells_called, unknown_name
from ponder.study.study import BUILT_IN

SHOWN = 40  # problems of each kind


class Pair(NamedTuple):
    """The two models: A is the reference, B is compared with it."""

    a: str
    b: str


def variants(study: ViewedStudy) -> list[str]:
    """The models that can be compared: all training seeds of a variant count together."""
    return list({cell.variant_key: cell.label.variant for cell in study.cells}.values())


def pair(study: ViewedStudy, a: str, b: str) -> Pair | None:
    """The two that are named; where one isn't, the first that remains.

    None if the study has only one model.
    """
    for name in (a, b):
        if name and not cells_called(study.cells, "variant", name):
            raise unknown_name(study.cells, "model", name)
    known = variants(study)
    a = a or next((one for one in known if one != b), "")
    b = b if b and b != a else next((one for one in known if one != a), "")
    return Pair(a, b) if a and b else None


def question(study: ViewedStudy, two: Pair) -> Asked:
    """The figure of the comparison, for `Estimates`."""
    return asked(study, _cells(study, *two), figures=[{"name": "compare", "a": two.a, "b": two.b}])


def command(study: ViewedStudy, two: Pair) -> str:
    """The same comparison in a terminal."""
    built_in = (BUILT_IN / f"{study.name}.toml").is_file()
    store = [] if str(study.store.path) == "ponder.db" else ["--store", str(study.store.path)]
    return shlex.join(
        ["ponder", "compare", study.name if built_in else f"{study.name}.toml", *two, *store]
    )


def query(two: Pair) -> Query:
    """The attempts of both."""
    return Query((("variant", two.a), ("variant", two.b)))


def differing(study: ViewedStudy, two: Pair) -> list[dict[str, Any]]:
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
