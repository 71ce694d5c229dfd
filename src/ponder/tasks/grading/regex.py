"""Grades a reply by a regular expression: `answer` is a pattern that it must match somewhere.

The pattern is Python's, and a reply that doesn't match is wrong. It runs in a subprocess with a
limit of CPU time, because one like `(a+)+$` can take longer than the universe is old.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ponder.core import Grade, UserError
from ponder.tasks.grading.grader import NO_ANSWER, Grader, need_answer, wrong_answer
from ponder.tasks.grading.line import ProblemLine
from ponder.tasks.subprocess_call import CallFailed, SubprocessFunction, serve

CPU_SECONDS = 1.0  # an ordinary search takes microseconds


@dataclass(frozen=True)
class Regex(Grader):
    def check(self, line: ProblemLine) -> None:
        need_answer(line)
        if not isinstance(line.answer, str):
            hint = r'{"prompt": "…", "answer": "(?i)\\b(yes|sure)\\b"}'
            raise wrong_answer(line, "a regular expression", hint)
        try:
            re.compile(line.answer)
        except (re.error, OverflowError, RecursionError) as error:
            raise UserError(
                f"`answer` is not a regular expression: {error}",
                hint="a backslash is written twice in JSON; re.escape() of Python quotes a text",
            ) from None

    def grade(self, line: ProblemLine, reply: str) -> Grade:
        if not reply.strip():
            return NO_ANSWER
        try:
            matched = _search.call(line.answer, reply)
        except CallFailed as failed:
            return Grade(correct=False, parsed=reply, why=f"the pattern {failed}")
        if matched is None:
            return Grade(correct=False, parsed=reply, why="no match")
        return Grade(correct=True, parsed=matched)


_search = SubprocessFunction("ponder.tasks.grading.regex", CPU_SECONDS)


def _matched(pattern: str, text: str) -> str | None:
    """Return the text that matches a pattern; None if none does."""
    match = re.search(pattern, text)
    if match is None:
        return None
    return match[0]


if __name__ == "__main__":
    serve(_matched)
