"""Asks `mine`: say here in one sentence what a problem asks for, and what its size is.

As it stands it asks for the largest of a few numbers. Write your own `problem`, `solve` and
`grade`.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from ponder.core import Grade, Problem, Task
from ponder.tasks.reading import final_number


@dataclass(frozen=True)
class Mine(Task):
    highest: int = 9  # the largest number asked; each field is a key in a study's [[task]]

    default_sizes = (2, 4, 8)
    unit = "numbers"  # what size counts

    def problem(self, size: int, seed: int) -> Problem:
        rng = random.Random(seed)
        numbers = [rng.randint(0, self.highest) for _ in range(size)]
        text = " ".join(map(str, numbers))
        question = (
            f"Which is the largest of {text}? Write the number between <answer> and </answer>."
        )
        return Problem(text, size, (question,), max(numbers))

    def solve(self, problem: Problem) -> str:
        return f"<answer>{problem.gold}</answer>"

    def grade(self, problem: Problem, answer: str) -> Grade:
        parsed = final_number(answer)
        if parsed is None:
            return Grade(correct=False, why="no number")
        correct = parsed == problem.gold
        return Grade(correct=correct, parsed=str(parsed), why="" if correct else "not the largest")
