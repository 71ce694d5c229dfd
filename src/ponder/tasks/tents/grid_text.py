"""Reads a grid of whole numbers from a model's text, however it is written."""

from __future__ import annotations

import json
import re
from collections import deque
from typing import Any

_TAIL = 20_000  # characters at the end of a text in which rows are searched
# A row: a label such as "Row 1:", brackets and separators, and the cells, which may stand together
# ("0120").
_ROW = re.compile(
    r"[\s|\[({*`>-]{0,9}(?:(?:row|r|zeile|fila|ligne)\s?\d{1,3}[\s|:*.)=-]{1,9}\[?)?"
    r"((?:\d{1,4}[\s,;|&]{1,9}){1,400}\d{1,4}|[0-9]{3,400})[\s|\])}*`,\\]{0,9}",
    re.IGNORECASE,
)
# a row and a column: `- (1, 2)`
_PLACE = re.compile(r"[\s*•-]{0,9}\(\d{1,4},\s{0,3}\d{1,4}\)[\s,]{0,9}")
_NOT_CELLS = re.compile(r"\\(?:begin|end)\{[^{}\n]{1,20}\}|\\boxed\{|\$+|(?:#|//)[^\n]*")


def last_grid(text: str) -> list[Any] | None:
    """Return the last grid in a text, whatever surrounds it; None if there is none.

    A grid is a JSON array of arrays, or two or more lines that are rows: `[0, 1],`, `0 1`, `| 0 | 1
    |`, `Row 1: 0 1`, `0 & 1 \\\\`.
    """
    grid, end = _last_json_grid(text)
    tail = text[max(end, len(text) - _TAIL) :].replace("\\\\", "\n")
    block: list[list[int]] = []
    for line in reversed(_NOT_CELLS.sub("", tail).splitlines()):
        if (row := _ROW.fullmatch(line)) and not _PLACE.fullmatch(line):
            block.insert(
                0,
                [
                    int(cell)
                    for cell in (re.findall(r"\d+", row[1]) if not row[1].isdigit() else row[1])
                ],
            )
        elif len(block) > 1:
            break
        elif line.strip(" \t`|-+:]})"):
            block = []
    if len(block) < 2 or len(set(map(len, block))) > 1:
        return grid
    # Numbers after a JSON grid may be something else, such as the tents' places.
    return (
        block if grid is None or (len(block), len(block[0])) == (len(grid), len(grid[0])) else grid
    )


def _last_json_grid(text: str) -> tuple[list[Any] | None, int]:
    """Return the last JSON array of arrays in a text, and where it ends."""
    # At most twenty tries, which together read the text twice, bound the time for 10 MB of nothing
    # but brackets.
    starts = deque((m.start() for m in re.finditer(r"\[\s{0,99}\[", text)), maxlen=20)
    budget = 2 * len(text) + 10_000
    while starts and budget > 0:
        start = starts.pop()
        try:
            grid, end = json.JSONDecoder().raw_decode(text, start)
            return list(grid), end
        except (ValueError, RecursionError) as error:
            budget -= getattr(error, "pos", len(text)) - start
    return None, 0
