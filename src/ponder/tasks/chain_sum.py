"""Generates sums of k numbers, such as 31 - 7 + 54. The smallest complete example of a task; size = k."""

from __future__ import annotations

import random
from dataclasses import dataclass

from ponder.core import Grade, Problem, Task, UserError, answers

LARGEST = 100_000  # a problem of 0.5 MB, made in 0.1 s


@dataclass(frozen=True)
class ChainSum(Task):
    digits: int = 2  # digits of each number

    default_sizes = (2, 4, 8, 16, 32)
    unit = "terms"

    def __post_init__(self) -> None:
        if not 1 <= self.digits <= 100:
            raise UserError(f"digits must be from 1 to 100, not {self.digits}")

    def check_size(self, size: int) -> None:
        if size < 2:
            raise UserError(f"chain_sum adds at least 2 numbers, not {size}", hint="size = [2, 4, 8]")
        if size > LARGEST:
            raise UserError(f"chain_sum adds at most {LARGEST:,} numbers, not {size:,}", hint="size = [2, 4, 8]")

    def problem(self, size: int, seed: int) -> Problem:
        rng = random.Random(seed)
        low, high = 10 ** (self.digits - 1), 10**self.digits - 1
        numbers = [rng.choice((1, -1)) * rng.randint(low, high) for _ in range(size)]
        numbers[0] = abs(numbers[0])
        chain = str(numbers[0]) + "".join(f" {'-' if n < 0 else '+'} {abs(n)}" for n in numbers[1:])
        question = f"What is {chain}? End with the number alone in <answer></answer> tags."
        return Problem(id=chain, size=size, turns=(question,), gold=sum(numbers))

    def solve(self, problem: Problem) -> str:
        return f"<answer>{problem.gold}</answer>"

    def grade(self, problem: Problem, answer: str) -> Grade:
        parsed = answers.number(answers.final(answer) or "")
        if parsed is None:
            return Grade(correct=False, why="no number")
        correct = parsed == problem.gold
        return Grade(correct=correct, parsed=str(parsed), why="" if correct else "wrong sum")
