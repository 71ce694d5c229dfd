"""`UserError` for mistakes that a user can correct, and `ModelFailure` for answers that never came.

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


# Commands in hints, and the calls that replace them in Python. A command without a counterpart
# stays and is marked "(in a terminal)".
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
    """The location of a value in a study file: the file, and the keys and indices that lead to it.

    `Location("study.toml", "task", 0) / "size"` reads `study.toml: task[0].size`.
    """

    file: str
    parts: tuple[str | int, ...]

    def __new__(cls, file: str, *parts: str | int) -> Self:
        path = ""
        for key in parts:
            if isinstance(key, int):
                path += f"[{key}]"
            elif path:
                path += f".{key}"
            else:
                path = key
        text = f"{file}: {path}" if file and path else file or path
        location = super().__new__(cls, text)
        location.file = file
        location.parts = parts
        return location

    @classmethod
    def of(cls, where: str) -> Location:
        """Return a location as it is, and any other text as a location without a file."""
        return where if isinstance(where, Location) else cls("", where)

    def __truediv__(self, key: str | int) -> Location:
        return Location(self.file, *self.parts, key)


class UserError(Exception):
    """A mistake that the user can correct: what is wrong, where, and what to do about it.

        raise UserError("`tens` is unknown", where="task[0].name", hint="did you mean `tents`?")

    Write it for the command line, which prints `in_terminal()`. A script or a notebook shows
    `str()`, in which commands and options become calls and arguments; pass `in_python` where it
    needs another hint.
    """

    def __init__(self, what: str, *, where: str = "", hint: str = "", in_python: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.hint = hint
        self.in_python = in_python

    def __str__(self) -> str:
        where = OPTION.sub(r"\1=", self.where)
        what = OPTION.sub(r"\1=", self.what)
        return _text(where, what, self.in_python or python_hint(self.hint))

    def in_terminal(self) -> str:
        """Return the message as the command line prints it."""
        return _text(self.where, self.what, self.hint)

    def _render_traceback_(self) -> list[str]:
        """Return what IPython shows: no traceback, because the mistake isn't in this code."""
        return f"UserError: {self}".splitlines()


def _text(where: str, what: str, hint: str) -> str:
    first = f"{where}: {what}" if where else what
    return f"{first}\nhint: {hint}" if hint else first


def python_hint(hint: str) -> str:
    """Translate a hint that was written for the command line into Python."""
    for pattern, call in IN_PYTHON:
        hint = re.sub(pattern, call, hint)
    hint = OPTION.sub(r"\1=", hint)
    hint = LIST.sub(_plugin_names, hint)
    if COMMAND.search(hint):
        return f"{hint} (in a terminal)"
    return hint


def _plugin_names(command: re.Match[str]) -> str:
    """Return the names that `ponder list KIND` would print."""
    from ponder.core import plugins  # which imports this module

    if command[1] not in plugins.KINDS:
        return command[0]
    return f"one of {', '.join(plugins.names(command[1]))}"


class ModelFailure(Exception):
    """A model gave no answer (endpoint down, connection lost): the attempt is `failed`, not wrong.

    `bill` is what other calls of the same turn cost, if a method makes several; None if unknown.
    """

    def __init__(self, why: str, bill: Bill | None = None) -> None:
        super().__init__(why)
        self.bill = bill


@contextmanager
def error_at(where: str) -> Iterator[None]:
    """Add a location to a `UserError` that is raised in the block without one."""
    try:
        yield
    except UserError as error:
        where = error.where or where
        raise UserError(
            error.what, where=where, hint=error.hint, in_python=error.in_python
        ) from error
