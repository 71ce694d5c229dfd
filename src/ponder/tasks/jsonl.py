"""Your own problems from a JSONL file: one object a line with `prompt`, `answer` and, if you like, `size` and `id`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from ponder.core import Grade, Problem, Task, UserError, answers, digest, lines

EXAMPLE = Path(__file__).parent / "jsonl_example.jsonl"


class Line(msgspec.Struct, forbid_unknown_fields=True):
    prompt: str
    answer: str | int | float
    size: int = 0
    id: str = ""
    system: str = ""
    facts: dict[str, Any] = {}


@dataclass(frozen=True)
class Jsonl(Task):
    file: Path  # relative to the study's folder

    example: ClassVar[dict[str, Any]] = {"file": str(EXAMPLE)}

    def fixed(self) -> list[Problem]:
        return self._problems

    @cached_property
    def _problems(self) -> list[Problem]:
        found: dict[str, Problem] = {}
        for where, text in lines(self.file):
            problem = _problem(text, where)
            if problem.id in found:
                raise UserError(
                    f"the id {problem.id!r} stands here again",
                    where=where,
                    hint="give each problem its own id",
                )
            found[problem.id] = problem
        return list(found.values())

    def problem(self, size: int, seed: int) -> Problem:
        chosen = [p for p in self._problems if p.size == size]
        return chosen[seed % len(chosen)]

    def solve(self, problem: Problem) -> str:
        return f"<answer>{problem.gold}</answer>"

    def grade(self, problem: Problem, answer: str) -> Grade:
        said = answers.final(answer)
        if said is None:
            return Grade(correct=False, why="no answer")
        correct = answers.same(said, problem.gold)
        return Grade(correct=correct, parsed=said, why="" if correct else "wrong answer")


def _problem(text: str, where: str) -> Problem:
    try:
        line = msgspec.json.decode(text, type=Line)
    except msgspec.MsgspecError as error:
        hint = '{"prompt": "2 + 2?", "answer": 4, "size": 2}'
        raise UserError(str(error), where=where, hint=hint) from None
    name = line.id or digest(line.prompt, str(line.answer)).hex()
    return Problem(name, line.size, (line.prompt,), str(line.answer), line.system, facts=line.facts)
