"""Holds the problems of an evaluation that another program ran, or the requests of a production log,
as `ponder import` reads them.

Which attempts are right was decided when they were imported, as a rule by the log's own scorer, and
`ponder regrade` leaves that as it is. Where Ponder needs to read an answer itself, such as for a majority
vote, it compares texts as `jsonl` does.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from ponder.core import Grade, Problem, Task
from ponder.core.capabilities import ComparesAnswers, FromLog
from ponder.core.jsonl import records
from ponder.tasks.reading import read, same

EXAMPLE = Path(__file__).parent / "imported_example.jsonl"
LINE = '{"id": "1", "size": 0, "turns": ["2 + 2?"], "gold": ["4"]}'


@dataclass(frozen=True)
class Imported(Task, ComparesAnswers, FromLog):
    file: Path  # its problems, as `ponder import` writes them; relative to the study's folder
    task: str = "imported"  # its name in the log
    scorer: str = ""  # the scorer of the log that says which attempts are right
    right: float = 1.0  # the lowest score of a right attempt

    example: ClassVar[dict[str, Any]] = {"file": str(EXAMPLE)}

    def title(self) -> str:
        return self.task

    def fixed(self) -> list[Problem]:
        return self._problems

    @cached_property
    def _problems(self) -> list[Problem]:
        return [problem for _, problem in records(self.file, Problem, LINE)]

    def problem(self, size: int, seed: int) -> Problem:
        of_size = [problem for problem in self._problems if problem.size == size]
        return of_size[seed % len(of_size)]

    def solve(self, problem: Problem) -> str:
        return f"<answer>{next(iter(problem.gold), '')}</answer>"

    def grade(self, problem: Problem, answer: str) -> Grade:
        best = None  # the first right reading, else the first
        for gold in problem.gold or [""]:
            reading = read(answer, gold, question=problem.turns[-1])
            if reading is None:
                continue
            if best is None or (reading.right and not best.right):
                best = reading
        if best is None:
            return Grade(correct=False, why="no answer")
        return Grade(best.right, best.parsed, best.why)

    def same_answer(self, one: str, other: str) -> bool:
        return same(one, other)
