"""The tutor in plain text: right without a slip, wrong by one rule with it, in steps that the tasks
can check.
"""

from __future__ import annotations

import asyncio
import itertools
import random

import pytest

from ponder.core import Request, UserError
from ponder.models.text_tutor import TextTutor, in_parts, without_carry
from ponder.tasks.chain_sum import ChainSum
from ponder.tasks.execution import Execution
from ponder.tasks.tents import Tents

SUMS = ChainSum()
PLAN = Execution(mode="cot", dictionary=6, per_turn=2, history_turns=1)
ASKED = [
    (task, p)
    for task, size in ((SUMS, 5), (PLAN, 4))
    for p in itertools.islice(task.problems(size, 3), 40)
]


def said(task, problem, **settings):
    return asyncio.run(TextTutor(**settings).complete(Request.first_turn(task, problem))).answer


@pytest.mark.parametrize("style", ["steps", "parts"])
def test_every_step_and_the_answer_are_right(style) -> None:
    for task, problem in ASKED:
        text = said(task, problem, style=style)
        assert task.grade(problem, text).correct
        paragraphs = text.split("\n\n")
        assert len(paragraphs) == len(task.addends(problem, 0))
        assert task.sound_steps(problem, paragraphs) == [True] * len(paragraphs)


def test_its_words() -> None:
    problem = SUMS.problem(3, 0)
    sums = "{} {}{} = {}"
    (_, a), (_, b), (_, c) = SUMS.addends(problem, 0)
    lines = [sums.format(a, "- " if b < 0 else "+ ", abs(b), a + b)]
    lines.append(sums.format(a + b, "- " if c < 0 else "+ ", abs(c), a + b + c))
    assert said(SUMS, problem) == "\n\n".join([*lines, f"<answer>{a + b + c}</answer>"])
    in_two = "60 + 50 = 110, 7 + 9 = 16, 110 + 16 = 126. So 67 + 59 = 126. Check: 126 - 59 = 67."
    assert in_parts(67, 59, 126) == in_two
    key, value = PLAN.addends(ASKED[-1][1], 0)[1]
    assert said(*ASKED[-1]).startswith(f"{key}: ")
    assert key.endswith(f" is {value}")


@pytest.mark.parametrize(
    ("total", "number", "wrong"),
    [
        (28, 15, 33),
        (31, -7, 34),
        (21, 7, 28),
        (67, 59, 116),
        (-28, -15, -33),
        (-31, 7, -34),
        (5, -9, -4),
        (9, -9, 0),
    ],
)
def test_sums_without_carry_by_hand(total, number, wrong) -> None:
    assert without_carry(total, number) == wrong


def test_a_slip_shows_in_the_steps() -> None:
    rng = random.Random(1)
    for task, problem in rng.sample(ASKED, 30):
        text = said(task, problem, slip="carry")
        verdicts = task.sound_steps(problem, text.split("\n\n"))
        assert all(verdicts) == (text == said(task, problem))


def test_a_fraction_of_the_problems() -> None:
    wrong = [said(*one, slip="carry", fraction=0.5) != said(*one) for one in ASKED]
    always = [said(*one, slip="carry") != said(*one) for one in ASKED]
    assert 0.3 * sum(always) < sum(wrong) < 0.7 * sum(always)


def test_bad_settings_and_tasks() -> None:
    with pytest.raises(UserError, match="fraction"):
        TextTutor(fraction=2)
    with pytest.raises(UserError, match="tents isn't a sum"):
        TextTutor().check(Tents(), 16)
