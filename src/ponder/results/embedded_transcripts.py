"""The transcripts inside a report: written by the live page's template, compressed, as many as fit.

Dots come first, since each is one attempt; then, in turns, one more attempt behind each bar, cell or point that stands
for several; then the rest of the study. What doesn't fit is left out evenly, and the page says how many that are.
"""

from __future__ import annotations

import base64
import itertools
import json
import random
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from ponder.core import Outcome, Records
from ponder.results.behind import (
    ENDINGS,
    Choices,
    behind,
    chosen_cells,
    ended,
)
from ponder.results.document import rendered
from ponder.results.transcript import Transcript
from ponder.store.store import Store
from ponder.study.cell import Cell

MEGABYTES = 2.0  # of a report's file that transcripts take by default
BLOCK = 250_000  # characters that are compressed together: more is smaller, but slower to open one


@dataclass
class Attempts:
    """The attempts of a study for its report: those that a mark rests on, and which of them the file holds."""

    cells: Sequence[Cell]
    outcomes: Sequence[Outcome]
    memo: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._numbers = {(c.model_label, c.task_label, c.size): n for n, c in enumerate(self.cells)}
        self._of_cell: list[list[Outcome]] = [[] for _ in self.cells]
        for o in self.outcomes:
            self._of_cell[self._number(o)].append(o)
        self._groups: dict[Choices, int] = {}  # what marks and rows rest on, by number
        self._dots: dict[int, None] = {}  # ids of attempts that are drawn themselves

    def _number(self, o: Outcome) -> int:
        return self._numbers[o.model, o.task, o.size]

    @cached_property
    def _counts(self) -> list[Counter[int]]:
        """How many attempts of each cell ended in which way."""
        return [Counter(ENDINGS.index(ended(o)) for o in own) for own in self._of_cell]

    def group(self, chosen: Choices) -> int:
        """The number of a group of attempts, by which the page opens it."""
        return self._groups.setdefault(chosen, len(self._groups))

    def link(self, row: dict[str, Any]) -> str:
        """The address that opens the attempts behind a row of a table; "" if there are none."""
        if "attempt" in row:
            return f"#attempt-{row['attempt']}"
        chosen = behind(self, row)
        return "" if chosen is None else f"#behind-{self.group(chosen)}"

    def mark(self, spec: Any) -> None:
        """Write into a chart's data which attempts each mark stands for."""
        for rows in _data(spec):
            for row in rows:
                if "attempt" in row:
                    self._dots[row["attempt"]] = None
                elif (chosen := behind(self, row)) is not None:
                    row["behind"] = self.group(chosen)

    def packed(self, store: Store, megabytes: float) -> dict[str, Any]:
        """What the page needs to list and open them: `index` for its script, and `blocks` of compressed texts."""
        problems: dict[str, int] = {}
        rows, blocks, part = [], list[str](), dict[int, str]()
        room, length = megabytes * 1e6, 0
        for o in _in_turns(self._wanted()) if megabytes else ():
            cell = self._number(o)
            part[o.attempt] = self._written(store, o.attempt, self.cells[cell])
            problem = problems.setdefault(o.problem, len(problems))
            tokens = (o.thinking_tokens, o.answer_tokens)
            rows.append((o.attempt, cell, ENDINGS.index(ended(o)), *tokens, problem, len(blocks)))
            length += len(part[o.attempt])
            if length >= min(BLOCK, 4 * room):  # text is compressed to about a quarter
                blocks.append(_compressed(part))
                room -= len(blocks[-1])
                part, length = {}, 0
                if room <= 0:
                    break
        blocks += [_compressed(part)] if part else []
        names = [(c.model_label, c.task_label, c.size) for c in self.cells]
        groups = [self._described(chosen) for chosen in self._groups]
        index = {"cells": names, "endings": ENDINGS, "rows": sorted(rows), "groups": groups, "all": len(self.outcomes)}
        return {"index": index, "blocks": blocks, "held": len(rows), "all": len(self.outcomes)}

    def _written(self, store: Store, attempt: int, cell: Cell) -> str:
        stored = store.attempt(attempt)
        assert stored is not None, "its outcome was read from this store"
        return rendered("packed.html", one=Transcript(cell, stored.attempt, attempt, stored.problem))

    def _wanted(self) -> Iterator[Iterable[Outcome]]:
        """The groups that want transcripts; those of one kind take turns."""
        dots = [o for o in self.outcomes if o.attempt in self._dots]
        random.Random(0).shuffle(dots)
        yield dots
        yield _round_robin([self._members(chosen) for chosen in self._groups])
        yield _round_robin(list(self._of_cell))

    def _members(self, chosen: Choices) -> Iterable[Outcome]:
        cells, _ = chosen_cells(self, chosen)
        endings = {value for name, value in chosen if name == "ended"}
        every = _round_robin([self._of_cell[n] for n in sorted(cells)])
        return (o for o in every if not endings or ended(o) in endings)

    def _described(self, chosen: Choices) -> dict[str, Any]:
        """A group for the page's script, which finds its attempts by their cells and endings."""
        cells, _ = chosen_cells(self, chosen)
        endings = [ENDINGS.index(value) for name, value in chosen if name == "ended"]
        total = sum(self._counts[n][e] for n in cells for e in endings or range(len(ENDINGS)))
        title = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in chosen)
        return {"cells": sorted(cells), "endings": endings, "total": total, "title": title}


def _data(value: Any) -> Iterator[Records]:
    """The rows of every table of a chart."""
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value if isinstance(value, list) else ()):
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
