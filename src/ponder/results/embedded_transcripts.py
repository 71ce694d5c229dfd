"""The transcripts inside a report: written by the live page's template, compressed, as many as fit.

Dots come first, since each is one attempt; then, in turns, one more attempt behind each bar, cell
or point that stands for several; then the rest of the study. What doesn't fit is left out evenly,
and the page says how many that are.
"""

from __future__ import annotations

import base64
import itertools
import json
import random
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ponder.core import ANSWERED, ENDINGS, Basis, Cell, Outcome, Records
from ponder.results.charts import DrawnFigure, Group
from ponder.results.document import rendered
from ponder.results.transcript import Transcript
from ponder.store.store import Store
from ponder.study.cell import StudyCell
from ponder.study.labels import group_label

MEGABYTES = 2.0  # of a report's file that transcripts take by default
BLOCK = 250_000  # characters that are compressed together: more is smaller, but slower to open one


@dataclass
class Attempts:
    """The attempts of a study for its report: those that a mark rests on, and which of them the
    file holds.
    """

    cells: Sequence[StudyCell]
    outcomes: Sequence[Outcome]

    def __post_init__(self) -> None:
        self._numbers: dict[Cell, int] = {
            cell: number for number, cell in reversed([*enumerate(self.cells)])
        }
        self._of_cell: list[list[Outcome]] = [[] for _ in self.cells]
        for o in self.outcomes:
            self._of_cell[self._number(o)].append(o)
        self._by_key = {cell.key: number for cell, number in self._numbers.items()}
        # what marks and rows were computed from, by their `basis`
        self._groups: dict[str, Group] = {}
        self._dots: dict[int, None] = {}  # ids of attempts that are drawn themselves

    def _number(self, o: Outcome) -> int:
        return self._numbers[o.cell]

    @cached_property
    def _counts(self) -> list[Counter[int]]:
        """How many attempts of each cell ended in which way."""
        return [Counter(ENDINGS.index(o.ended) for o in own) for own in self._of_cell]

    def add(self, basis: Basis) -> str:
        """Add the attempts of some cells, and return the address that opens them."""
        self._groups.setdefault(
            str(basis), Group(tuple(cell.key for cell in basis.cells), basis.ended)
        )
        return f"#behind-{basis}"

    def add_figure(self, figure: DrawnFigure) -> None:
        """Add the attempts that a figure's marks and rows were computed from."""
        self._groups |= figure.groups
        for rows in _data(figure.spec):
            for row in rows:
                if "attempt" in row:
                    self._dots[row["attempt"]] = None

    def link(self, row: dict[str, Any]) -> str:
        """Return the address that opens the attempts behind a row of a table; "" if there are none."""
        if "attempt" in row:
            return f"#attempt-{row['attempt']}"
        basis = row.get("basis", "")
        return f"#behind-{basis}" if basis in self._groups else ""

    def packed(self, store: Store, megabytes: float) -> dict[str, Any]:
        """What the page needs to list and open them: `index` for its script, and `blocks` of
        compressed texts.
        """
        problems: dict[str, int] = {}
        rows, blocks, part = [], list[str](), dict[int, str]()
        room, length = megabytes * 1e6, 0
        for o in _in_turns(self._wanted()) if megabytes else ():
            cell = self._number(o)
            part[o.attempt] = self._written(store, o.attempt, self.cells[cell])
            problem = problems.setdefault(o.problem, len(problems))
            tokens = (o.thinking_tokens, o.answer_tokens)
            rows.append((o.attempt, cell, ENDINGS.index(o.ended), *tokens, problem, len(blocks)))
            length += len(part[o.attempt])
            if length >= min(BLOCK, 4 * room):  # text is compressed to about a quarter
                blocks.append(_compressed(part))
                room -= len(blocks[-1])
                part, length = {}, 0
                if room <= 0:
                    break
        blocks += [_compressed(part)] if part else []
        names = [(c.label.model, c.label.task, c.size) for c in self.cells]
        groups = {basis: self._described(group) for basis, group in self._groups.items()}
        index = {
            "cells": names,
            "endings": ENDINGS,
            "rows": sorted(rows),
            "groups": groups,
            "all": len(self.outcomes),
        }
        return {"index": index, "blocks": blocks, "held": len(rows), "all": len(self.outcomes)}

    def _written(self, store: Store, attempt: int, cell: StudyCell) -> str:
        stored = store.attempt(attempt)
        assert stored is not None, "its outcome was read from this store"
        return rendered(
            "packed.html", one=Transcript(cell, stored.attempt, attempt, stored.problem)
        )

    def _wanted(self) -> Iterator[Iterable[Outcome]]:
        """The groups that want transcripts; those of one kind take turns."""
        dots = [o for o in self.outcomes if o.attempt in self._dots]
        random.Random(0).shuffle(dots)
        yield dots
        yield _round_robin([self._members(group) for group in self._groups.values()])
        yield _round_robin(list(self._of_cell))

    def _cells_of(self, group: Group) -> list[int]:
        return sorted(self._by_key[key] for key in group.cells)

    def _members(self, group: Group) -> Iterable[Outcome]:
        every = _round_robin([self._of_cell[n] for n in self._cells_of(group)])
        return (o for o in every if not group.ended or o.ended in group.ended)

    def _described(self, group: Group) -> dict[str, Any]:
        """Return a group for the page's script, which finds its attempts by their cells and
        endings.
        """
        cells = self._cells_of(group)
        endings = [ENDINGS.index(ended) for ended in group.ended]
        total = sum(self._counts[n][e] for n in cells for e in endings or range(len(ENDINGS)))
        ended = () if group.ended == ANSWERED else group.ended
        title = group_label([self.cells[n] for n in cells], self.cells, ended)
        return {"cells": cells, "endings": endings, "total": total, "title": title}


def _data(value: Any) -> Iterator[Records]:
    """The rows of every table of a chart."""
    for key, inner in (
        value.items()
        if isinstance(value, dict)
        else enumerate(value if isinstance(value, list) else ())
    ):
        if key == "datasets":
            yield from inner.values()
        elif key == "values" and all(isinstance(row, dict) for row in inner):
            yield inner
        else:
            yield from _data(inner)


def _in_turns(groups: Iterable[Iterable[Outcome]]) -> Iterator[Outcome]:
    """Every attempt once, in the order of the groups."""
    seen = set()
    for o in itertools.chain.from_iterable(groups):
        if o.attempt not in seen:
            seen.add(o.attempt)
            yield o


def _round_robin(groups: Sequence[Iterable[Outcome]]) -> Iterator[Outcome]:
    """One of each, then another of each."""
    waiting = [iter(group) for group in groups]
    while waiting:
        still = []
        for group in waiting:
            if (o := next(group, None)) is not None:
                yield o
                still.append(group)
        waiting = still


def _compressed(texts: dict[int, str]) -> str:
    """Texts by attempt as JSON, in the form that a browser's DecompressionStream("deflate") reads."""
    return base64.b64encode(zlib.compress(json.dumps(texts, ensure_ascii=False).encode())).decode()
