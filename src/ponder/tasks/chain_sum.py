"""Generates sums of k numbers, such as 31 - 7 + 54.

The smallest complete example of a task; size = k.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass

from ponder.core import Grade, Problem, Task, UserError
from ponder.core.capabilities import Addends, CheckedSteps
from ponder.tasks._equations import states_a_sum, true_sums, up_to_the_first_error
from ponder.tasks.reading import final_number

LARGEST = 100_000  # a problem of 0.5 MB, made in 0.1 s
MOST_SHOTS = 100
# An empty pair of tags in a prompt is copied by some models; this wording made two small ones work
# in steps (35 of 36).
ASK = "Work step by step, then write the final number between <answer> and </answer>."


@dataclass(frozen=True)
class ChainSum(Task, CheckedSteps, Addends):
    digits: int = 2  # digits of each number
    shots: int = 0  # worked examples in the prompt

    version = 2  # another prompt
    default_sizes = (2, 4, 8, 16, 32)
    unit = "terms"

    def __post_init__(self) -> None:
        if not 1 <= self.digits <= 100:
            raise UserError(f"digits must be from 1 to 100, not {self.digits}")
        if not 0 <= self.shots <= MOST_SHOTS:
            raise UserError(f"shots must be from 0 to {MOST_SHOTS}, not {self.shots}")

    def check_size(self, size: int) -> None:
        if size < 2:
            raise UserError(
                f"chain_sum adds at least 2 numbers, not {size}", hint="size = [2, 4, 8]"
            )
        if size > LARGEST:
            raise UserError(
                f"chain_sum adds at most {LARGEST:,} numbers, not {size:,}", hint="size = [2, 4, 8]"
            )

    def problem(self, size: int, seed: int) -> Problem:
        numbers = self._numbers(size, random.Random(seed))
        chain = _chain(numbers)
        shots = ""
        for n in range(self.shots):
            shots += _shot(self._numbers(4, random.Random(f"shot {n}")))
        return Problem(
            id=chain, size=size, turns=(f"{shots}What is {chain}? {ASK}",), gold=sum(numbers)
        )

    def _numbers(self, size: int, rng: random.Random) -> list[int]:
        """Return random numbers, the first one positive."""
        smallest = 10 ** (self.digits - 1)
        largest = 10**self.digits - 1
        numbers = [rng.choice((1, -1)) * rng.randint(smallest, largest) for _ in range(size)]
        numbers[0] = abs(numbers[0])
        return numbers

    def solve(self, problem: Problem) -> str:
        return f"<answer>{problem.gold}</answer>"

    def addends(self, problem: Problem, turn: int) -> list[tuple[str, int]]:  # noqa: ARG002 there is one turn
        terms = re.findall(r"(-?) ?(\d+)", problem.id)
        return [("", int(sign + digits)) for sign, digits in terms]

    @classmethod
    def sound_steps(cls, problem: Problem, steps: Sequence[str]) -> list[bool] | None:  # noqa: ARG003 a sum is right or not
        """Return which steps are right: those before the first false sum.

        Numbers may be added in any order.
        """
        if not any(map(states_a_sum, steps)):
            return None
        return up_to_the_first_error(steps, true_sums)

    def grade(self, problem: Problem, answer: str) -> Grade:
        parsed = final_number(answer, question=problem.turns[0])
        if parsed is None:
            return Grade(correct=False, why="no number")
        correct = parsed == problem.gold
        return Grade(correct=correct, parsed=str(parsed), why="" if correct else "wrong sum")


def _chain(numbers: Sequence[int]) -> str:
    """Return a sum as text: `31 - 7 + 54`."""
    terms = [str(numbers[0])]
    for number in numbers[1:]:
        sign = "-" if number < 0 else "+"
        terms.append(f"{sign} {abs(number)}")
    return " ".join(terms)


def _shot(numbers: Sequence[int]) -> str:
    """Return a worked example."""
    lines = [f"Example: What is {_chain(numbers)}?"]
    total = numbers[0]
    for number in numbers[1:]:
        lines.append(f"{_chain((total, number))} = {total + number}")
        total += number
    lines.append(f"<answer>{total}</answer>\n\n")
    return "\n".join(lines)
