"""Grades a reply with a Python function of the user's: `function = "graders.py:polite"`.

    def polite(reply, answer):
        return "please" in reply.lower()

It is called with the text of the reply and with `answer` of the line, None if the line has none,
and returns whether the reply is right; or a tuple of that and the reason if it isn't. It runs in
Ponder's own process, so it may import anything, and it must take any text: an exception ends the
run, with the replies stored.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ponder.core import Grade, UserError, plugins
from ponder.core.jsonl import RELATIVE
from ponder.core.keys import fingerprint
from ponder.tasks.grading.grader import NO_ANSWER, Grader
from ponder.tasks.grading.line import ProblemLine

EXAMPLE = 'function = "graders.py:polite"'


@dataclass(frozen=True)
class PythonFunction(Grader):
    reference: Path  # graders.py:polite

    @property
    def _file(self) -> Path:
        return self.reference.with_name(self.reference.name.rpartition(":")[0])

    @cached_property
    def _function(self) -> Callable[[str, Any], Any]:
        """The function; raise `UserError` if there is none."""
        file, _, name = self.reference.name.rpartition(":")
        if not file.endswith(".py") or not name:
            raise UserError(
                f"`{self.reference.name}` is not a file and a function in it", hint=EXAMPLE
            )
        if not self._file.is_file():
            raise UserError(f"there is no file {self._file}", hint=RELATIVE)
        module = plugins.from_path(self._file.resolve())
        function = getattr(module, name, None)
        if callable(function):
            checked: Callable[[str, Any], Any] = function
            return checked
        functions = []
        for attribute, value in vars(module).items():
            if callable(value) and getattr(value, "__module__", "") == module.__name__:
                functions.append(attribute)
        hint = f"def {name}(reply, answer): …"
        if functions:
            hint = plugins.nearest(name, functions)
        raise UserError(f"{self._file} has no function `{name}`", hint=hint)

    def check(self, line: ProblemLine) -> None:  # noqa: ARG002 any answer, or none
        self._function  # noqa: B018 raises if there is none

    def grade(self, line: ProblemLine, reply: str) -> Grade:
        if not reply.strip():
            return NO_ANSWER
        verdict = self._function(reply, line.expected)
        why = "wrong answer"
        if isinstance(verdict, tuple) and len(verdict) == 2:
            verdict, why = verdict
        if not isinstance(verdict, bool):
            raise TypeError(f"it returned {verdict!r:.60}, not True or False")
        if verdict:
            return Grade(correct=True, parsed=reply)
        return Grade(correct=False, parsed=reply, why=str(why) or "wrong answer")

    def identity(self) -> Any:
        return [self.reference.name, fingerprint(self._file)]
