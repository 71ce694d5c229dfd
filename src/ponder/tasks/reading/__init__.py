"""Reads answers from a model's text and compares them with the right ones: what tasks grade with.

A task imports from here instead of parsing text itself, so that the same reply is read in the same
way everywhere:

    from ponder.tasks.reading import final_number

Read the files in this order: `markup` (marks and sentences), `values` (numbers, dates, lists),
`question`, `candidates` (where an answer may stand), `numbers` and `read` (what it says, and
whether it is right); `maths` compares expressions.
"""

from ponder.tasks.reading.candidates import expressions, final
from ponder.tasks.reading.markup import split_thinking
from ponder.tasks.reading.maths import differs, need_maths
from ponder.tasks.reading.numbers import final_number
from ponder.tasks.reading.read import Reading, choice, read, readings
from ponder.tasks.reading.values import number
from ponder.tasks.reading.values import same_text as same

__all__ = [
    "Reading", "choice", "differs", "expressions", "final", "final_number", "need_maths", "number",
    "read", "readings", "same", "split_thinking",
]  # fmt: skip
