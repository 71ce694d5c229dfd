"""Simulates a model that is right up to a critical size, for tests and dry runs, with no network.

It knows the task's solution. Its accuracy falls along a logistic curve in log size and is 50 % at
`critical_size`; besides, a fraction `error` of its answers is wrong at any size. The number of
thinking tokens is sampled: it grows with size up to `peak` and falls beyond it, as Estermann &
Wattenhofer 2025 report for o3-mini. There is no thinking text.
"""

from __future__ import annotations

import asyncio
import math
import random
from dataclasses import dataclass

from ponder.core import (
    Bill,
    Completion,
    IgnoresMessages,
    Model,
    Request,
    UserError,
    not_in_key,
    renamed,
)
from ponder.core.capabilities import grade_turns, judge_of_task, solve_turn, solve_turns

GIVES_UP = "I give up."


@dataclass(kw_only=True)
class Oracle(Model, IgnoresMessages):
    critical_size: float = renamed("gives_out", math.inf)  # the size at which accuracy is 50 %
    steepness: float = 8.0  # slope of the logistic curve in log size
    error: float = 0.0  # fraction of wrong answers at any size
    tokens_at_zero: float = 200.0  # mean thinking tokens at size 0
    tokens_per_size: float = 60.0  # additional thinking tokens per unit of size
    spread: float = 0.25  # standard deviation of the log of the thinking tokens
    peak: float = math.inf  # the size beyond which thinking tokens fall
    budget: int = 1_000_000  # completion tokens, thinking included
    seconds: float = 0.0  # delay before each answer
    concurrency: int = not_in_key(64)  # answers in progress at once

    def __post_init__(self) -> None:
        if not 0 <= self.error <= 1:
            raise UserError(f"error is a fraction from 0 to 1, not {self.error}")

    def chance(self, size: float) -> float:
        """Return the probability of a right answer to a turn of this size."""
        if math.isinf(self.critical_size) or size == 0:
            return 1 - self.error
        fall = min(500.0, self.steepness * math.log(size / self.critical_size))
        return (1 - self.error) / (1 + math.exp(fall))

    def mean_tokens(self, size: float) -> float:
        if size > self.peak:
            size = self.peak**2 / size
        return self.tokens_at_zero + self.tokens_per_size * size

    def max_tokens(self) -> int:
        return self.budget

    async def complete(self, request: Request) -> Completion:
        rng = random.Random(request.seed)
        problem = request.problem
        # Per turn, so that a conversation of many small turns is easy and a single large one is
        # hard.
        turns = len(problem.turns) + len(problem.history) // 2
        size = problem.size / turns
        wanted_tokens = round(self.mean_tokens(size) * math.exp(rng.gauss(0, self.spread)))
        if rng.random() < self.chance(size):
            answer = solve_turn(request.task, problem, request.turn)
        else:
            answer = mistake(request, rng)
        await asyncio.sleep(self.seconds)
        prompt_tokens = sum(len(message.content) for message in request.messages) // 4
        answer_tokens = 1 + len(answer) // 4
        budget = min(self.budget, request.budget or self.budget)
        thinking_tokens = min(wanted_tokens, budget)
        bill = Bill(
            prompt_tokens,
            thinking_tokens,
            min(answer_tokens, budget - thinking_tokens),
            self.seconds,
            "estimate",
        )
        thinking = f"[{thinking_tokens:,} tokens of thinking, drawn at random by the oracle]"
        if wanted_tokens + answer_tokens > budget:
            return Completion(thinking, "", "length", bill)
        return Completion(thinking, answer, "end", bill)


def mistake(request: Request, rng: random.Random) -> str:
    """Return a well-formed wrong answer: the solution with one digit changed."""
    if judge_of_task(request.task):  # only the judge knows what is wrong
        return GIVES_UP
    answers = list(solve_turns(request.task, request.problem))
    solution = answers[request.turn]
    positions = [index for index, character in enumerate(solution) if character.isdigit()]
    for position in rng.sample(positions, min(20, len(positions))):
        digit = (int(solution[position]) + rng.randint(1, 9)) % 10
        wrong = f"{solution[:position]}{digit}{solution[position + 1 :]}"
        answers[request.turn] = wrong
        if not grade_turns(request.task, request.problem, answers).correct:
            return wrong
    return GIVES_UP
