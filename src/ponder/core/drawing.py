"""How a task draws a problem and an answer to it: tables of marked cells, without HTML, for
whatever shows them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

# `given`: part of the problem; `right` and `wrong`: of the answer; `note`: said beside it.
MarkKind: TypeAlias = Literal["", "given", "right", "wrong", "note"]


class Mark(NamedTuple):
    """One cell of a drawing."""

    text: str
    kind: MarkKind = ""
    why: str = ""  # what is wrong with it, or what it means, for a tooltip and for screen readers


@dataclass(frozen=True)
class Drawing:
    """A table of marks. `square` draws it as a grid of equal cells."""

    name: str  # "answer", "solution": what it shows
    rows: tuple[tuple[Mark, ...], ...]
    columns: tuple[str, ...] = ()  # heads of the columns
    caption: str = ""
    square: bool = False
