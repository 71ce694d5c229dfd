"""What a problem's size counts, in words: `16 cells`, `level 3`, `problem size (cells, log scale)`."""

from __future__ import annotations

from collections.abc import Sequence

from ponder.core import Outcome
from ponder.core.text import plural
from ponder.study.labels import cells_of

LEVELS = "levels"  # the unit of sizes that are only ranks: level 4 isn't twice level 2


def unit_of(outcomes: Sequence[Outcome], given: str) -> str:
    """The unit that a figure was given (in the singular or the plural), or else that of the
    outcomes' tasks.
    """
    if given:
        return given if given.endswith("s") else plural(given)
    units = sorted(
        {
            (label.task, cell.task.unit)
            for cell, label in cells_of(outcomes).items()
            if cell.task.unit
        }
    )
    if len({unit for _, unit in units}) > 1:
        return ", ".join(f"{task}: {unit}" for task, unit in units)
    return next((unit for _, unit in units), "")


def one(unit: str) -> str:
    """The singular, as in `tokens per cell`."""
    return unit.removesuffix("s") or "unit of size"


def at(size: str, unit: str) -> str:
    """A size in a sentence: `16 cells`, `1 cell`, `level 3`, and `size 16` if there is no unit."""
    if unit == LEVELS or not unit:
        return f"{one(unit) if unit else 'size'} {size}"
    return f"{size} {one(unit) if size == '1' else unit}"


def size_title(unit: str, *notes: str) -> str:
    """The title of an axis of sizes."""
    inside = ", ".join(part for part in (unit, *notes) if part)
    return f"problem size ({inside})" if inside else "problem size"
