"""The execution task: its prompt, its injected errors, and the grading of each turn."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from itertools import accumulate, islice

import pytest

from ponder.core import Problem
from ponder.models.oracle import Oracle
from ponder.study.cell import Cell
from ponder.tasks.execution import Execution, dictionary, keys_in


def sums(problem: Problem) -> tuple[list[int], list[int]]:
    """The true sums of the turns in a problem's history, and those that the history shows."""
    table = dictionary(problem)
    turns = [m.content.split(", ") for m in problem.history if m.role == "user"]
    shown = [
        int(m.content[len("<answer>") : -len("</answer>")])
        for m in problem.history
        if m.role == "assistant"
    ]
    return list(accumulate(sum(table[key] for key in turn) for turn in turns)), shown


@pytest.mark.parametrize(
    ("settings", "digest"),
    [
        ({"mode": "thinking", "per_turn": 1}, "42455cd7bf7a"),
        ({"mode": "answer", "per_turn": 1}, "42455cd7bf7a"),
        ({"mode": "thinking", "per_turn": 2}, "00bca769bcd7"),
        ({"mode": "cot", "per_turn": 1}, "695425f07270"),
        ({"mode": "cot", "per_turn": 0}, "aa319c9144a1"),
    ],
)
def test_the_prompt_of_version_1(settings, digest) -> None:
    """Another prompt is another task: raise `version` with it, or `prompt` in the identity of one
    mode.
    """
    problem = Execution(dictionary=8, **settings).problem(4, 1)
    assert Execution.version == 1
    assert Execution(**settings).identity().get("prompt", 1) == (
        2 if settings["mode"] == "cot" else 1
    )
    assert hashlib.sha256(problem.system.encode()).hexdigest()[:12] == digest


def test_every_turn_asks_for_steps_only_in_cot() -> None:
    for mode in ("cot", "thinking", "answer"):
        problem = Execution(dictionary=8, mode=mode, per_turn=2, history_turns=1).problem(6, 1)
        asked = [m.content for m in problem.history if m.role == "user"] + list(problem.turns)
        assert [("step by step" in message) for message in asked] == [mode == "cot"] * 3
        assert [len(keys_in(message)) for message in asked] == [2] * 3
        assert all(key in dictionary(problem) for message in asked for key in keys_in(message))


def test_an_injected_error_is_never_0_and_is_not_carried_on() -> None:
    true, shown = sums(Execution(history_turns=999, error_rate=1.0, dictionary=5).problem(1000, 2))
    errors = {b - a for a, b in zip(true, shown, strict=True)}
    assert errors == set(range(-10, 11)) - {0}


@pytest.mark.parametrize("rate", [0.0, 0.3])
def test_the_error_rate_is_the_rate_of_wrong_sums(rate) -> None:
    true, shown = sums(
        Execution(history_turns=1999, error_rate=rate, dictionary=5, per_turn=2).problem(4000, 3)
    )
    wrong = sum(a != b for a, b in zip(true, shown, strict=True)) / len(true)
    assert wrong == pytest.approx(rate, abs=0.035 if rate else 0)  # three standard deviations


def test_a_turn_is_judged_from_the_sum_that_the_history_shows() -> None:
    task = Execution(history_turns=3, error_rate=1.0, dictionary=5, per_turn=2)
    problem = task.problem(12, 4)
    true, shown = sums(problem)
    table = dictionary(problem)
    asked = [sum(table[key] for key in turn.split(", ")) for turn in problem.turns]
    assert problem.gold["sums"] == list(accumulate(asked, initial=shown[-1]))[1:]
    assert problem.gold["start"] == shown[-1] != true[-1]


def test_every_turn_must_be_right() -> None:
    task = Execution(per_turn=2)
    problem = task.problem(6, 3)
    right = [task.solve_turn(problem, turn) for turn in range(3)]
    assert task.grade_turns(problem, right).correct
    for turn in range(3):
        answers = [*right[:turn], "<answer>99999</answer>", *right[turn + 1 :]]
        grade = task.grade_turns(problem, answers)
        assert (grade.correct, grade.why, grade.parsed[turn]) == (False, "wrong sum", 99999)
        silent = task.grade_turns(problem, [*right[:turn], "hm", *right[turn + 1 :]])
        assert (silent.correct, silent.why, silent.parsed[turn]) == (False, "no number", None)
    assert not task.grade_turns(problem, right[:2]).correct
    assert task.grade_turns(problem, ["", "", ""]).parsed is None


def test_details_hold_what_the_horizon_needs() -> None:
    task = Execution(per_turn=2, history_turns=1, error_rate=0.5)
    problem = task.problem(6, 3)
    right = [task.solve_turn(problem, turn) for turn in range(2)]
    details = {
        "parsed": problem.gold["sums"],
        "true": problem.gold["sums"],
        "start": problem.gold["start"],
    }
    details |= {"per_turn": 2, "history_turns": 1, "error_rate": 0.5, "plan": problem.facts["plan"]}
    assert task.grade_turns(problem, right).details == details


def test_old_names_are_in_the_key() -> None:
    """Stored attempts have them."""
    assert Execution(history_turns=2, error_rate=0.5).identity() == {
        "name": "execution",
        "filled": 2,
        "errors": 0.5,
    }


@pytest.mark.parametrize(
    ("settings", "key", "problem"),
    [
        ({}, "6d1134ab0597a78ca22d4e50232b4205", "b376905827077d5bb5a9b2e3c5fcc031"),
        ({"per_turn": 0}, "265d71ede90346d6462c4298738dad93", "bdec2ec9860d24370e33f0809824feb0"),
        (
            {"per_turn": 0, "dictionary": 16},
            "383c0d3d75f7bb4a80f4c77dafbc0576",
            "05134f49cf3ffec2adea026e6c3dacaa",
        ),
        ({"mode": "cot"}, "defbcad61404dac5cd18a26663c2408f", "fb732daab9c3dd177ceda9fcb29f4429"),
        (
            {"history_turns": 2, "error_rate": 0.5},
            "136e4e9da22e67dd31f00bd8107d525c",
            "786ad1133b4d05dace8958b656c4a956",
        ),
    ],
)
def test_stored_attempts_of_one_step_or_all_steps_per_turn_stay_valid(
    settings, key, problem
) -> None:
    """Keys and problems as they were before turn lengths shared their plans."""
    task = Execution(**settings)
    cell = Cell(task, 12, Oracle(), seed=7)
    assert cell.key.hex() == key
    assert next(task.problems(12, 7)).id == problem


def test_turn_lengths_share_plans_and_have_keys_of_their_own() -> None:
    def asked(per_turn: int) -> list[Problem]:
        return list(islice(Execution(per_turn=per_turn, dictionary=8).problems(12, 7), 5))

    def plans(problems: list[Problem]) -> list[tuple[object, ...]]:
        return [
            (dictionary(p), [key for turn in p.turns for key in keys_in(turn)]) for p in problems
        ]

    single = asked(1)
    for per_turn in (2, 3, 12):
        shared = asked(per_turn)
        assert plans(shared) == plans(single)
        assert [p.facts["plan"] for p in shared] == [p.facts["plan"] for p in single]
        assert not {p.id for p in shared} & {p.id for p in single}
    assert not {p.facts["plan"] for p in asked(0)} & {p.facts["plan"] for p in single}
    assert Execution(per_turn=2).identity() == {"name": "execution", "per_turn": 2, "plans": 2}


@pytest.mark.parametrize("settings", [{}, {"history_turns": 2, "error_rate": 1.0}, {"mode": "cot"}])
def test_a_stored_problem_without_its_plan_is_graded_with_it(settings) -> None:
    task = Execution(per_turn=2, **settings)
    problem = task.problem(12, 5)
    old = replace(problem, facts={"per_turn": 2})
    assert task.grade(old, "").details["plan"] == problem.facts["plan"]


@pytest.mark.parametrize(
    "reply",
    [
        "apple is 5: 0 + 5 = 5. <answer>8</answer>\n(anew, from 0)\nuser: kiwi\nyou: <answer>2</answer>",
        "(anew, from 0) user: apple, grape\nyou: apple is 5: 0 + 5 = 5. <answer>8</answer>",
        "<answer>8</answer>\nuser: apple\nyou: <answer>13</answer>",
        "you: <answer>8</answer>",
    ],
)
def test_what_a_reply_copies_from_the_examples_is_no_answer(reply: str) -> None:
    assert Execution().parse(Execution().problem(2, 1), reply) == 8
