"""Asks your own problems from a JSONL file: each line has `prompt` and `answer`, and may have
`size` and `id`.

It may also have `system` (a system message), `history` (the messages before the prompt, each with
`role` and `content`) and `facts` (kept with each attempt).

A reply's answer is what stands in `<answer>` tags or `\\boxed{}`, after "answer is", in bold, or in
the sentence that concludes it; numbers and words that the prompt already has are told from what the
reply adds. It is compared by what the right answer is. Numbers: by value, as `1,440`, `3/4`,
`0.75`, "seven" or with a unit, but not with another unit of the same kind than the one asked for;
in lowest terms, as a fraction or as a decimal if the prompt says so. `yes` and `no`, `true` and
`false`: also a sentence that affirms or denies the question. A letter, or the text of an option
that the prompt lists: either of the two. Lists (`3, 7, 9`): item by item, in order, with or without
brackets. Other texts: without case, articles, marks such as `**` and spaces around punctuation. A
reply that wavers is unparsed.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from ponder.core import Grade, Message, Problem, Task, UserError, digest
from ponder.core.capabilities import ComparesAnswers
from ponder.core.jsonl import records
from ponder.tasks.reading import read, same

EXAMPLE = Path(__file__).parent / "jsonl_example.jsonl"
LINE = '{"prompt": "2 + 2?", "answer": 4, "size": 2}'


class ProblemLine(msgspec.Struct, forbid_unknown_fields=True):
    """One line of the file."""

    prompt: str
    answer: str | int | float
    size: int = 0
    id: str = ""
    system: str = ""
    history: tuple[Message, ...] = ()
    facts: dict[str, Any] = {}

    def problem(self, instruction: str) -> Problem:
        """Return the problem, with an instruction appended to its prompt."""
        parts: list[Any] = [self.prompt, str(self.answer)]
        if self.history:
            parts.append([[message.role, message.content] for message in self.history])
        name = self.id or digest(*parts).hex()
        prompt = self.prompt
        if instruction:
            prompt = f"{prompt}\n\n{instruction}"
        gold = str(self.answer)
        turns = (prompt,)
        return Problem(name, self.size, turns, gold, self.system, self.history, self.facts)


@dataclass(frozen=True)
class Jsonl(Task, ComparesAnswers):
    file: Path  # relative to the study's folder
    # appended to every prompt, such as "Work step by step, then put the answer in \\boxed{}."
    instruction: str = ""

    example: ClassVar[dict[str, Any]] = {"file": str(EXAMPLE)}

    def fixed(self) -> list[Problem]:
        return self._problems

    @cached_property
    def _problems(self) -> list[Problem]:
        by_id: dict[str, Problem] = {}
        for where, line in records(self.file, ProblemLine, LINE):
            problem = line.problem(self.instruction)
            if problem.id in by_id:
                message = f"the id {problem.id!r} occurs twice"
                raise UserError(message, where=where, hint="give each problem its own id")
            by_id[problem.id] = problem
        return list(by_id.values())

    def problem(self, size: int, seed: int) -> Problem:
        of_size = [problem for problem in self._problems if problem.size == size]
        return of_size[seed % len(of_size)]

    def solve(self, problem: Problem) -> str:
        return f"<answer>{problem.gold}</answer>"

    def grade(self, problem: Problem, answer: str) -> Grade:
        reading = read(answer, problem.gold, question=problem.turns[0])
        if reading is None:
            return Grade(correct=False, why="no answer")
        return Grade(reading.right, reading.parsed, reading.why)

    def same_answer(self, one: str, other: str) -> bool:
        return same(one, other)
