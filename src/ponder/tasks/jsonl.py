"""Asks your own problems from a JSONL file: each line has `prompt` and `answer`, and may have `size` and `id`.

It may also have `system` (a system message) and `facts` (kept with each attempt). Answers are compared as numbers if
both are, else as text, ignoring case and spacing.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from ponder.core import Grade, Problem, Task, UserError, answers, digest
from ponder.core.jsonl import records

EXAMPLE = Path(__file__).parent / "jsonl_example.jsonl"
LINE = '{"prompt": "2 + 2?", "answer": 4, "size": 2}'


class GivenProblem(msgspec.Struct, forbid_unknown_fields=True):
    """One line of the file."""

    prompt: str
    answer: str | int | float
    size: int = 0
    id: str = ""
    system: str = ""
    facts: dict[str, Any] = {}

    def problem(self) -> Problem:
        name = self.id or digest(self.prompt, str(self.answer)).hex()
        return Problem(name, self.size, (self.prompt,), str(self.answer), self.system, facts=self.facts)


@dataclass(frozen=True)
class Jsonl(Task):
    file: Path  # relative to the study's folder

    example: ClassVar[dict[str, Any]] = {"file": str(EXAMPLE)}

    def fixed(self) -> list[Problem]:
        return self._problems

    @cached_property
    def _problems(self) -> list[Problem]:
        by_id: dict[str, Problem] = {}
        for where, given in records(self.file, GivenProblem, LINE):
            problem = given.problem()
            if problem.id in by_id:
                what = f"the id {problem.id!r} occurs twice"
                raise UserError(what, where=where, hint="give each problem its own id")
            by_id[problem.id] = problem
        return list(by_id.values())

    def problem(self, size: int, seed: int) -> Problem:
        of_size = [p for p in self._problems if p.size == size]
        return of_size[seed % len(of_size)]

    def solve(self, problem: Problem) -> str:
        return f"<answer>{problem.gold}</answer>"

    def grade(self, problem: Problem, answer: str) -> Grade:
        parsed = answers.final(answer)
        if parsed is None:
            return Grade(correct=False, why="no answer")
        correct = answers.same(parsed, problem.gold)
        return Grade(correct=correct, parsed=parsed, why="" if correct else "wrong answer")
