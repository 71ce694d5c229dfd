"""The simulated model: accuracy, tokens and truncation are what its settings say."""

from __future__ import annotations

import asyncio
import math
from statistics import mean

import pytest

from ponder.core import Completion, Request
from ponder.models.oracle import Oracle
from ponder.tasks.chain_sum import ChainSum

TASK = ChainSum()


def ask(model: Oracle, size: int, n: int = 400) -> list[tuple[bool, Completion]]:
    async def in_turn() -> list[tuple[bool, Completion]]:
        requests = [Request.first_turn(TASK, TASK.problem(size, seed), seed) for seed in range(n)]
        replies = [await model.complete(request) for request in requests]
        return [
            (TASK.grade(request.problem, reply.answer).correct, reply)
            for request, reply in zip(requests, replies, strict=True)
        ]

    return asyncio.run(in_turn())


@pytest.mark.parametrize(
    ("settings", "size", "accuracy"),
    [
        ({}, 20, 1.0),
        ({"error": 0.25}, 20, 0.75),
        ({"critical_size": 20}, 20, 0.5),
        ({"critical_size": 20, "error": 0.5}, 20, 0.25),
        ({"critical_size": 20, "steepness": math.log(9) / math.log(2)}, 10, 0.9),
        ({"critical_size": 20, "steepness": math.log(9) / math.log(2)}, 40, 0.1),
    ],
)
def test_accuracy(settings, size, accuracy) -> None:
    correct = mean(correct for correct, _ in ask(Oracle(**settings), size))
    # three standard deviations
    assert correct == pytest.approx(accuracy, abs=0.075 if accuracy < 1 else 0)


@pytest.mark.parametrize(("size", "tokens"), [(10, 300), (20, 500), (40, 300)])
def test_tokens_grow_up_to_the_peak_and_fall_beyond(size, tokens) -> None:
    model = Oracle(tokens_at_zero=100, tokens_per_size=20, spread=0, peak=20)
    assert {reply.bill.thinking_tokens for _, reply in ask(model, size, 3)} == {tokens}


@pytest.mark.parametrize(
    ("budget", "thought", "answered"), [(500, 300, True), (301, 300, False), (200, 200, False)]
)
def test_beyond_the_budget_there_is_no_answer(budget, thought, answered) -> None:
    model = Oracle(tokens_at_zero=300, tokens_per_size=0, spread=0, budget=budget)
    for correct, reply in ask(model, 4, 3):
        assert (correct, reply.stop, bool(reply.answer)) == (
            answered,
            "end" if answered else "length",
            answered,
        )
        assert reply.bill.thinking_tokens == thought
        assert reply.bill.thinking_tokens + reply.bill.answer_tokens <= budget
