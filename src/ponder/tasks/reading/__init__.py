"""Reads answers from a model's text and compares them with the right ones: what tasks grade with.

A task imports from here instead of parsing text itself, so that the same reply is read in the same
way everywhere:

    from ponder.tasks.reading import final_number
"""

from ponder.tasks.reading.choices import choice
from ponder.tasks.reading.conclusion import expressions, final, final_number, readings
from ponder.tasks.reading.grids import last_grid
from ponder.tasks.reading.markup import split_thinking
from ponder.tasks.reading.maths import differs, need_maths
from ponder.tasks.reading.numerals import number
from ponder.tasks.reading.read import Reading, read
from ponder.tasks.reading.texts import same_text as same

__all__ = [
    "Reading", "choice", "differs", "expressions", "final", "final_number", "last_grid", "need_maths", "number", "read",
    "readings", "same", "split_thinking",
]  # fmt: skip
