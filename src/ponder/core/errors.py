"""Errors that a user can correct, and answers that did not come.

A mistake in a study file, an option or a data file raises `UserError`; the command line prints it
without a traceback and exits with code 2. A model that gives no answer raises `ModelFailure`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from ponder.core.nouns import Bill


# How a hint of the command line is said in Python. A command that has no counterpart there stays,
# and is marked.
IN_PYTHON = (
    (r"ponder (?:run|prepare) STUDY", "study.run()"),
    (r"ponder run --ray", 'study.run(ray="auto")'),
    (r"ponder plan STUDY", "study.plan()"),
    (r"ponder report STUDY(?! --)", "study.results().report(FOLDER)"),
    (r"ponder compare STUDY A B", "ponder.compare(results, a, b)"),
    (r"belongs at the top of the study, above the first \[\[…\]\]", "is an argument of Study"),
)
OPTION = re.compile(r"--(jobs|ray|store)\b")  # options that are arguments of `study.run`
LIST = re.compile(r"ponder list (\w+)")
COMMAND = re.compile(r"\bponder [a-z]")


class Location(str):
    """A place in a study or in an option: the file, and the keys and indices that lead to a value
    in it.

    `Location("study.toml", "task", 0) / "size"` reads `study.toml: task[0].size`.
    """

    file: str
    parts: tuple[str | int, ...]

    def __new__(cls, file: str, *parts: str | int) -> Self:
        path = ""
        for part in parts:
            if isinstance(part, int):
                path += f"[{part}]"
            else:
                path += f".{part}" if path else part
        location = super().__new__(cls, f"{file}: {path}" if file and path else file or path)
        location.file = file
        location.parts = parts
        return location

    @classmethod
    def of(cls, where: str) -> Location:
        """Return a place as it is, and any other text as a place without a file."""
        return where if isinstance(where, Location) else cls("", where)

    def __truediv__(self, part: str | int) -> Location:
        return Location(self.file, *self.parts, part)


class UserError(Exception):
    """A mistake that the user can correct: what is wrong, where, and what to do about it.

    It is written in the words of the command line, which prints `in_terminal()`. A script or a
    notebook shows `str()`, where commands and options become calls and arguments; `in_python` is a
    hint of its own for these.
    """

    def __init__(self, what: str, *, where: str = "", hint: str = "", in_python: str = "") -> None:
        super().__init__(what)
        self.what, self.where, self.hint, self.in_python = what, where, hint, in_python

    def __str__(self) -> str:
        where = OPTION.sub(r"\1=", self.where)
        what = OPTION.sub(r"\1=", self.what)
        return _text(where, what, self.in_python or python_hint(self.hint))

    def in_terminal(self) -> str:
        """Return the message as the command line prints it."""
        return _text(self.where, self.what, self.hint)

    def _render_traceback_(self) -> list[str]:
        """What IPython shows: no traceback, because the mistake isn't in this code."""
        return f"UserError: {self}".splitlines()


def _text(where: str, what: str, hint: str) -> str:
    first = f"{where}: {what}" if where else what
    return f"{first}\nhint: {hint}" if hint else first


def python_hint(hint: str) -> str:
    """Return a hint that was written for the command line in the words of Python."""
    for pattern, words in IN_PYTHON:
        hint = re.sub(pattern, words, hint)
    hint = LIST.sub(_listed, OPTION.sub(r"\1=", hint))
    return f"{hint} (in a terminal)" if COMMAND.search(hint) else hint


def _listed(command: re.Match[str]) -> str:
    """Return the names that `ponder list KIND` would print."""
    from ponder.core import plugins  # which imports this module

    if command[1] not in plugins.KINDS:
        return command[0]
    return f"one of {', '.join(plugins.names(command[1]))}"


class ModelFailure(Exception):
    """A model gave no answer (endpoint down, connection lost): the attempt is `failed`, never
    wrong.

    `bill` is what other calls of the same turn cost, if a method makes several and knows; None if
    it doesn't.
    """

    def __init__(self, why: str, bill: Bill | None = None) -> None:
        super().__init__(why)
        self.bill = bill


@contextmanager
def error_at(where: str) -> Iterator[None]:
    """Add a place, such as `study.toml: task[0].size`, to a `UserError` raised inside that has
    none.
    """
    try:
        yield
    except UserError as error:
        where = error.where or where
        raise UserError(
            error.what, where=where, hint=error.hint, in_python=error.in_python
        ) from error
