"""Reinforcement learning with a length reward: rewards and draws by hand, steps as plain torch
makes them.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from tiny import flat, gradients, open_loop, plain_score, texts, tiny

from ponder.core import TrainingProblems
from ponder.methods.length_rl import LengthRl, Surrogate
from ponder.models.pocket import Pocket
from ponder.rewards.length.dot import Dot
from ponder.rewards.length.kimi import Kimi
from ponder.rewards.length.shorter_better import ShorterBetter
from ponder.rewards.length.truncate import Truncate
from ponder.tasks.execution import Execution
from ponder.training.loop import Loop, Objective, Step, TokenExample, Unit
from ponder.training.rollouts import Sample, draw_problems

TASK = Execution(dictionary=6, per_turn=0)


def practice(*sizes: int) -> tuple[TrainingProblems, ...]:
    return tuple(TrainingProblems(TASK, size, 0, 4) for size in sizes)


def samples(right: list[bool], tokens: list[int]) -> list[Sample]:
    return [Sample(TokenExample([3], [5] * n), ok) for ok, n in zip(right, tokens, strict=True)]


def iterate(method: LengthRl, training: Loop, units: list[Unit], samples: int) -> None:
    """Take the steps of one iteration."""
    steps = [Step(range(len(units)), samples)] * method.inner
    list(training.train(units, steps, Objective(Surrogate(method.tau)), resumable=False))


MIXED = [True, False, True, False], [10, 20, 50, 40]
RIGHT = [True, True, True, True], [10, 10, 10, 50]
WRONG = [False, False], [30, 90]


@pytest.mark.parametrize(
    ("reward", "group", "progress", "expected"),
    [
        (Kimi(), MIXED, 0.0, [0.5, 0.0, -0.5, -0.25]),  # λ = ½, ¼, −½, −¼
        (Kimi(), RIGHT, 0.9, [0.5, 0.5, 0.5, -0.5]),
        (Kimi(), WRONG, 0.5, [0.0, -0.5]),
        (ShorterBetter(), MIXED, 0.0, [0.0, -1.0, -1.0, -1.0]),
        (ShorterBetter(), ([True, True, False], [40, 50, 30]), 0.0, [0.0, -0.25, -0.25]),
        (ShorterBetter(), WRONG, 0.0, [-0.5, -0.5]),  # from their mean
        (Truncate((45, 15)), MIXED, 0.0, [0.0, 0.0, -1.0, 0.0]),
        (Truncate((45, 15)), MIXED, 0.49, [0.0, 0.0, -1.0, 0.0]),
        (Truncate((45, 10)), MIXED, 0.5, [0.0, 0.0, -1.0, 0.0]),
        (Truncate((45, 9)), MIXED, 1.0, [-1.0, 0.0, -1.0, 0.0]),
        (Truncate((90, 60, 50)), RIGHT, 0.67, [0.0, 0.0, 0.0, 0.0]),
        (Dot(), RIGHT, 0.0, [0.0, 0.0, 0.0, -1.0]),  # mean 20, deviation √300
        (Dot(2.0), RIGHT, 0.0, [0.0, 0.0, 0.0, 0.0]),
        (Dot(), MIXED, 0.0, [0.0, 0.0, 0.0, 0.0]),
        (Dot(), WRONG, 0.0, [0.0, 0.0]),
    ],
)
def test_what_length_adds(reward, group, progress, expected) -> None:
    assert reward.rewards(*group, progress) == pytest.approx(expected)


@pytest.mark.parametrize("reward", [Kimi(), ShorterBetter(), Truncate((99,)), Dot()])
def test_equal_lengths_earn_nothing(reward) -> None:
    for right in ([True, True, True], [True, False, True], [False, False, False]):
        assert reward.rewards(right, [33, 33, 33], 0.5) == [0.0, 0.0, 0.0]


def test_an_advantage_is_a_reward_less_the_mean_of_its_problem() -> None:
    method = LengthRl(weight=0.5, free=2, iterations=4)
    group = samples(*MIXED)
    # Right 1 or 0, and half of ½, 0, −½, −¼: 1.25, 0, 0.75, −0.125, whose mean is 0.46875.
    assert method.advantages(group, 2) == pytest.approx([0.78125, -0.46875, 0.28125, -0.59375])
    for iteration in (0, 1):  # without length
        assert method.advantages(group, iteration) == pytest.approx([0.5, -0.5, 0.5, -0.5])
    assert method.advantages(samples([True, True], [7, 7]), 3) == [0.0, 0.0]
    rounds = replace(method, reward=Truncate((60, 45)), weight=1.0, free=0)
    assert rounds.advantages(group, 1) == pytest.approx([0.5, -0.5, 0.5, -0.5])
    assert rounds.advantages(group, 2) == pytest.approx([0.75, -0.25, -0.25, -0.25])


def test_an_advantage_of_zero_is_left_out_of_a_single_step_but_counts() -> None:
    """The mean is over all samples: fewer that differ must not weigh more."""
    steps = {}
    for inner in (1, 2):
        method = LengthRl(inner=inner, tau=0.3, clip=0.0, rate=1e-3)
        training = open_loop(tiny(), method, None)
        same = [Sample(text, True) for text in [texts(1, seed=9)[0]] * 3]
        other = [Sample(text, n > 1) for n, text in enumerate(texts(3))]
        units = [u for some in (same, other) for u in method.units(some, 0)]
        assert len(units) == (3 if inner == 1 else 6)
        seen = gradients(training)
        iterate(method, training, units, 6)
        steps[inner] = flat(seen[0])
    torch.testing.assert_close(steps[1], steps[2], rtol=1e-4, atol=1e-6)


def test_steps_are_those_of_the_paper_and_forget_the_optimiser_between_iterations() -> None:
    method = LengthRl(tau=0.4, inner=3, clip=0.0, rate=5e-3, micro_tokens=60)
    training, model = open_loop(tiny(), method, None), tiny().model
    seen = gradients(training)
    for iteration in range(2):
        groups = [
            [Sample(text, n % 2 == 0) for n, text in enumerate(texts(4, seed=7 * iteration + g))]
            for g in (1, 2)
        ]
        iterate(method, training, [u for some in groups for u in method.units(some, iteration)], 8)
        rule = torch.optim.AdamW(model.parameters(), lr=5e-3, weight_decay=0.0)  # a new one
        old = [[plain_score(model, s.text).item() for s in some] for some in groups]
        for inner in range(3):
            loss = torch.zeros(())
            for some, before in zip(groups, old, strict=True):
                lengths = [len(s.text.said) for s in some]
                short = [0.5 - (n - min(lengths)) / (max(lengths) - min(lengths)) for n in lengths]
                earned = [
                    s.right + 0.5 * (x if s.right else min(0.0, x))
                    for s, x in zip(some, short, strict=True)
                ]
                for s, reward, was in zip(some, earned, before, strict=True):
                    score = plain_score(model, s.text)
                    loss = (
                        loss - (reward - sum(earned) / 4) * score / 8 + 0.2 * (score - was) ** 2 / 8
                    )
            rule.zero_grad()
            loss.backward()
            wanted = flat({name: p.grad for name, p in model.named_parameters()})
            found = flat(seen[3 * iteration + inner])
            assert torch.cosine_similarity(found, wanted, 0) > 0.9999
            torch.testing.assert_close(
                found, wanted, rtol=1e-2, atol=1e-3 * float(wanted.abs().max())
            )
            rule.step()
    assert len(seen) == 6
    torch.testing.assert_close(
        flat(training.trainable()), flat(dict(model.named_parameters())), rtol=1e-2, atol=1e-3
    )


def test_without_the_squared_term_the_second_step_would_be_another() -> None:
    found = {}
    for tau in (0.0, 0.4):
        method = LengthRl(tau=tau, clip=0.0, rate=5e-3)
        training = open_loop(tiny(), method, None)
        seen = gradients(training)
        some = [Sample(text, n % 2 == 0) for n, text in enumerate(texts(4))]
        iterate(method, training, method.units(some, 0), 4)
        found[tau] = seen
    torch.testing.assert_close(flat(found[0.0][0]), flat(found[0.4][0]))
    assert not torch.allclose(flat(found[0.0][1]), flat(found[0.4][1]), rtol=1e-2)


def test_problems_that_often_fail_are_drawn_more_often() -> None:
    pool = draw_problems(practice(2), 40, seed=1)
    method = LengthRl(problems=10, seed=3)
    rates = [(8, 8)] * 20 + [(4, 8)] * 10 + [(0, 8)] * 10
    drawn = Counter(
        place for iteration in range(300) for place in method.drawn(pool, rates, iteration)
    )
    always, half, never = (
        sum(drawn[p] for p in part) / len(part)
        for part in (range(20), range(20, 30), range(30, 40))
    )
    assert 0 < always < half / 4 < half < 0.8 * never
    assert sum(drawn.values()) == 300 * 10  # none twice in an iteration
    plain = replace(method, prioritised=False)
    drawn = Counter(
        place for iteration in range(300) for place in plain.drawn(pool, rates, iteration)
    )
    assert max(drawn.values()) < 1.6 * min(drawn.values())
    assert all(
        len(set(places)) == 10 for places in (plain.drawn(pool, rates, n) for n in range(20))
    )
    assert (
        method.drawn(pool, rates, 5) == method.drawn(pool, rates, 5) != method.drawn(pool, rates, 6)
    )
    assert len(replace(method, problems=99).drawn(pool, rates, 0)) == 40


@pytest.mark.parametrize("prioritised", [False, True])
def test_after_the_easy_iterations_only_the_harder_half_is_drawn(prioritised) -> None:
    pool = draw_problems(practice(1, 2, 4, 6), 40, seed=1)
    method = LengthRl(easy=3, problems=12, prioritised=prioritised)

    def sizes(iteration: int, method: LengthRl = method) -> set[int]:
        return {pool[place].problem.size for place in method.drawn(pool, [(0, 0)] * 40, iteration)}

    assert all(sizes(n) == {1, 2, 4, 6} for n in range(3))
    assert all(sizes(n) == {4, 6} for n in range(3, 9))
    assert 1 in sizes(99, replace(method, easy=None))


def test_the_second_phase_allows_fewer_tokens(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("PONDER_MODELS", str(tmp_path))
    method = LengthRl(
        train_on=practice(4), iterations=3, problems=2, n=2, pool=4, limit=9, second=1, rate=1e-9
    )
    model = method.apply(Pocket())
    notes = json.loads((model.weights / "made.json").read_text("utf-8"))["notes"]
    first, *second = notes["iterations"]
    assert first["accuracy"] > 0
    assert first["tokens"] > 20
    # cut off, and so wrong
    assert [(then["accuracy"], then["tokens"]) for then in second] == [(0.0, 9.0)] * 2


def test_every_iteration_draws_new_samples(tmp_path, monkeypatch) -> None:
    """Of the same problems, by a model that hardly changes: only the seed differs."""
    monkeypatch.setenv("PONDER_MODELS", str(tmp_path))
    how = {"rate": 1e-12, "prioritised": False}
    model = LengthRl(train_on=practice(4), iterations=3, problems=4, n=3, pool=4, **how).apply(
        Pocket(style="long")
    )
    notes = json.loads((model.weights / "made.json").read_text("utf-8"))["notes"]
    assert len({row["tokens"] for row in notes["iterations"]}) == 3
