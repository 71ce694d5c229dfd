"""The interface of the graders of `jsonl`, and the one that compares short answers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from ponder.core import Grade, Problem, UserError
from ponder.core.text import as_json
from ponder.tasks.grading.line import ProblemLine
from ponder.tasks.reading import read

NO_ANSWER = Grade(correct=False, why="no answer")


class Grader(ABC):
    """Grades replies to the problems of a JSONL file."""

    @abstractmethod
    def check(self, line: ProblemLine) -> None:
        """Raise `UserError` for a line that this grader can't use, before anything is asked."""

    @abstractmethod
    def grade(self, line: ProblemLine, reply: str) -> Grade:
        """Grade a reply, whatever text it is, without raising."""

    def solution(self, line: ProblemLine) -> str:
        """Return a right reply; "" if none is known."""
        return line.solution

    def identity(self) -> Any:
        """Return the settings that its grades depend on, as JSON."""
        return ""


class ShortAnswers(Grader):
    """Finds a number, a choice or a short text in the reply, and compares it by its kind."""

    def check(self, line: ProblemLine) -> None:
        need_answer(line)
        if isinstance(line.answer, bool) or not isinstance(line.answer, str | int | float):
            hint = 'grader = "json" compares the fields of an object or a list'
            raise wrong_answer(line, "text or a number", hint)

    def grade(self, line: ProblemLine, reply: str) -> Grade:
        return short_answer(line.problem(""), reply)


def short_answer(problem: Problem, reply: str) -> Grade:
    """Grade a reply by the problem's `gold`, a number or a text."""
    reading = read(reply, problem.gold, question=problem.turns[0])
    if reading is None:
        return NO_ANSWER
    return Grade(reading.right, reading.parsed, reading.why)


def need_answer(line: ProblemLine) -> None:
    """Raise `UserError` for a line without an answer."""
    if line.expected is None:
        raise UserError("the field `answer` is missing")


def wrong_answer(line: ProblemLine, expected: str, hint: str) -> UserError:
    """Return the error for an answer of the wrong kind."""
    return UserError(f"`answer` must be {expected}, not {as_json(line.answer):.60}", hint=hint)
