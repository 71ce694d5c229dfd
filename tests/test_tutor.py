"""The tutor: right without a slip, wrong by one rule with it, on as many problems as it is told."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from ponder.core import Request, UserError, plugins
from ponder.models.pocket import Pocket
from ponder.models.tutor import Tutor
from ponder.tasks.execution import Execution, dictionary, keys_in
from ponder.tasks.tents import Tents

TASK = Execution(dictionary=16, per_turn=0)
PROBLEMS = [p for size in (4, 8, 16) for p in itertools.islice(TASK.problems(size, 3), 60)]


def said(problem, task=TASK, **settings):
    return asyncio.run(Tutor(**settings).complete(Request.first_turn(task, problem)))


def without_carry(problem) -> int:
    """The sum without carries from tens to hundreds, by hand: each step changes only the last two
    digits.
    """
    total = 0
    for key in keys_in(problem.turns[0]):
        total = total // 100 * 100 + (total + dictionary(problem)[key]) % 100
    return total


def test_without_a_slip_every_step_is_right() -> None:
    codec = plugins.codec("pocket", "execution")
    for problem in PROBLEMS[::9]:
        reply = said(problem)
        assert TASK.grade(problem, reply.answer).correct
        assert all(codec.sound(Request.first_turn(TASK, problem), codec.split(reply.thinking)))
        assert reply.bill.thinking_tokens + reply.bill.answer_tokens == len(reply.tokens)
    tents = Tents()
    problem = next(tents.problems(16, 1))
    assert tents.grade(problem, said(problem, tents).answer).correct


def test_it_forgets_the_carry_from_tens_to_hundreds_and_nothing_else() -> None:
    codec, lucky = plugins.codec("pocket", "execution"), 0
    for problem in PROBLEMS:
        reply = said(problem, slip="carry")
        assert TASK.parse(problem, reply.answer) == without_carry(problem)
        right = said(problem)
        assert len(reply.tokens) == len(right.tokens)
        verdicts = codec.sound(Request.first_turn(TASK, problem), codec.split(reply.thinking))
        assert all(verdicts) == (reply.thinking == right.thinking)
        lucky += TASK.grade(problem, reply.answer).correct and not all(verdicts)
        assert not [word for word in reply.thinking.split() if word[0] == "t" and word[-1] in "^_"]
        units = [word for word in reply.thinking.split() if word[0] == "u"]
        assert units == [word for word in right.thinking.split() if word[0] == "u"]
    # right answers with wrong steps: a check of answers lets them through
    assert 0 < lucky < 0.3 * len(PROBLEMS)


def test_a_fraction_of_the_problems_and_the_same_ones_in_a_larger_fraction() -> None:
    affected = {
        fraction: {
            p.id
            for p in PROBLEMS
            if Tutor(slip="carry", fraction=fraction).slips(Request.first_turn(TASK, p))
        }
        for fraction in (0.0, 0.25, 0.75, 1.0)
    }
    assert [len(ids) / len(PROBLEMS) for ids in affected.values()] == pytest.approx(
        [0, 0.25, 0.75, 1], abs=0.09
    )
    assert affected[0.25] < affected[0.75]
    assert not any(Tutor(fraction=1.0).slips(Request.first_turn(TASK, p)) for p in PROBLEMS)


def test_mistakes() -> None:
    with pytest.raises(UserError, match="fraction is a number from 0 to 1"):
        Tutor(fraction=75)
    with pytest.raises(UserError, match="tents has none"):
        Tutor(slip="carry").check(Tents(), 16)
    with pytest.raises(UserError, match="no vocabulary for 99 steps"):
        Tutor().check(TASK, 99)
    assert Tutor().codec_name(TASK) == Pocket().codec_name(TASK)
