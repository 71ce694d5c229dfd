"""Errors that a user can correct, and the names of variables that hold secrets.

A mistake in a study file, an option or a data file raises `UserError`; the command line prints it without a traceback
and exits with code 2. A model that gives no answer raises `ModelFailure`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self


class UserError(Exception):
    """A mistake that the user can correct: what is wrong, where, and what to do about it."""

    def __init__(self, what: str, *, where: str = "", hint: str = "") -> None:
        super().__init__(what)
        self.what, self.where, self.hint = what, where, hint

    def __str__(self) -> str:
        first = f"{self.where}: {self.what}" if self.where else self.what
        return f"{first}\nhint: {self.hint}" if self.hint else first


class ModelFailure(Exception):
    """A model gave no answer (endpoint down, connection lost): the attempt is `failed`, never wrong."""


class EnvVar(str):
    """The name of an environment variable that holds a secret, written `$NAME`. The secret itself is refused."""

    __slots__ = ()

    def __new__(cls, text: Any) -> Self:
        if not (isinstance(text, str) and text[:1] == "$" and text[1:].isidentifier()):
            # The text isn't repeated: it may be a secret, and error messages end up in logs.
            raise UserError(
                "a study must not contain an API key, only the name of an environment variable that holds it",
                hint='key = "$NAME", and export NAME=… in the shell',
            )
        return super().__new__(cls, text)

    def read(self) -> str:
        """The value of the variable."""
        if not (value := os.environ.get(self[1:])):
            raise UserError(f"the environment variable {self[1:]} is not set", hint=f"export {self[1:]}=…")
        return value


@contextmanager
def error_at(where: str) -> Iterator[None]:
    """Add a place, such as `study.toml: task[0].size`, to a `UserError` raised inside that has none."""
    try:
        yield
    except UserError as error:
        raise UserError(error.what, where=error.where or where, hint=error.hint) from error
