"""Errors that a user can correct, and answers that did not come.

A mistake in a study file, an option or a data file raises `UserError`; the command line prints it without a traceback
and exits with code 2. A model that gives no answer raises `ModelFailure`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ponder.core.nouns import Bill


class UserError(Exception):
    """A mistake that the user can correct: what is wrong, where, and what to do about it.

    `hint` is what the command line prints; `in_python`, where another word is needed, what a script or notebook shows.
    """

    def __init__(self, what: str, *, where: str = "", hint: str = "", in_python: str = "") -> None:
        super().__init__(what)
        self.what, self.where, self.hint, self.in_python = what, where, hint, in_python

    def __str__(self) -> str:
        first = f"{self.where}: {self.what}" if self.where else self.what
        hint = self.in_python or self.hint
        return f"{first}\nhint: {hint}" if hint else first

    def _render_traceback_(self) -> list[str]:
        """What IPython shows: no traceback, because the mistake isn't in this code."""
        return f"UserError: {self}".splitlines()


class ModelFailure(Exception):
    """A model gave no answer (endpoint down, connection lost): the attempt is `failed`, never wrong.

    `bill` is what other calls of the same turn cost, if a method makes several and knows; None if it doesn't.
    """

    def __init__(self, why: str, bill: Bill | None = None) -> None:
        super().__init__(why)
        self.bill = bill


@contextmanager
def error_at(where: str) -> Iterator[None]:
    """Add a place, such as `study.toml: task[0].size`, to a `UserError` raised inside that has none."""
    try:
        yield
    except UserError as error:
        where = error.where or where
        raise UserError(error.what, where=where, hint=error.hint, in_python=error.in_python) from error
