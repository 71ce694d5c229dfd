"""A model that knows the answer, up to a size: the fake that ships, for tests and dry runs.

Its accuracy falls along a logistic curve through `critical_size`, minus a fraction of slips; its thinking grows with size up to
`peak` and shrinks after, as Estermann & Wattenhofer 2025 report of o3-mini. Its tokens are drawn, not written.
"""

from __future__ import annotations

import asyncio
import math
import random
from dataclasses import dataclass

from ponder.core import Bill, Completion, Model, Request, UserError, not_in_key, renamed


@dataclass(kw_only=True)
class Oracle(Model):
    critical_size: float = renamed("gives_out", math.inf)  # the size at which half of the answers are right
    steepness: float = 8.0  # of the fall, in log size
    error: float = 0.0  # share of slips at any size
    tokens_at_zero: float = 200.0  # thinking tokens, were the size 0
    tokens_per_size: float = 60.0  # thinking tokens more for each unit of size
    spread: float = 0.25  # of the log of the tokens
    peak: float = math.inf  # the size from which it thinks less
    budget: int = 1_000_000  # completion tokens, thinking included
    seconds: float = 0.0  # before it answers
    concurrency: int = not_in_key(64)

    def __post_init__(self) -> None:
        if not 0 <= self.error <= 1:
            raise UserError(f"error is a share from 0 to 1, not {self.error}")

    def chance(self, size: float) -> float:
        """How likely an answer to a turn of this size is right."""
        if math.isinf(self.critical_size) or size == 0:
            return 1 - self.error
        fall = min(500.0, self.steepness * math.log(size / self.critical_size))
        return (1 - self.error) / (1 + math.exp(fall))

    def mean_tokens(self, size: float) -> float:
        return self.tokens_at_zero + self.tokens_per_size * (size if size <= self.peak else self.peak**2 / size)

    def max_tokens(self) -> int:
        return self.budget

    async def complete(self, request: Request) -> Completion:
        rng = random.Random(request.seed)
        # The work of one turn, so that a conversation of many small turns is easy and a single large one is hard.
        size = request.problem.size / (len(request.problem.turns) + len(request.problem.history) // 2)
        thinking = round(self.mean_tokens(size) * math.exp(rng.gauss(0, self.spread)))
        right = rng.random() < self.chance(size)
        answer = request.task.solve_turn(request.problem, request.turn) if right else mistake(request, rng)
        await asyncio.sleep(self.seconds)
        prompt_tokens = sum(len(m.content) for m in request.messages) // 4
        answer_tokens = 1 + len(answer) // 4
        budget = min(self.budget, request.budget or self.budget)
        thought = min(thinking, budget)
        bill = Bill(prompt_tokens, thought, min(answer_tokens, budget - thought), self.seconds, "estimate")
        note = f"[{thought:,} tokens of thinking, drawn at random by the oracle]"
        if thinking + answer_tokens > budget:
            return Completion(note, "", "length", bill)
        return Completion(note, answer, "end", bill)


def mistake(request: Request, rng: random.Random) -> str:
    """A wrong answer in the right form: the solution with one digit changed."""
    task, problem, turn = request.task, request.problem, request.turn
    solutions = [task.solve_turn(problem, t) for t in range(len(problem.turns))]
    solution = solutions[turn]
    digits = [i for i, c in enumerate(solution) if c.isdigit()]
    for at in rng.sample(digits, min(20, len(digits))):
        wrong = f"{solution[:at]}{(int(solution[at]) + rng.randint(1, 9)) % 10}{solution[at + 1 :]}"
        if not task.grade_turns(problem, [*solutions[:turn], wrong, *solutions[turn + 1 :]]).correct:
            return wrong
    return "I give up."
