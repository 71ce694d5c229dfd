"""Scores of a reward: totals, reasons where there is none, and every step once in windows and
batches.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

pytest.importorskip("torch")

from ponder.core import Reward, Scores, Steps
from ponder.core.scoring import scored
from ponder.rewards._windows import batches, spans


class Fixed(Reward):
    """Says what it is told."""

    def rate(self, traces):
        return [Scores(tuple(t.facts["says"]), t.facts.get("whole")) for t in traces]


def says(*scores: float, whole: float | None = None) -> Steps:
    return Steps("t", "q", ("s",) * 3, (), {"says": scores, "whole": whole})


@pytest.mark.parametrize(
    ("aggregate", "total"), [("mean", 0.5), ("min", 0.2), ("last", 0.4), ("product", 0.072)]
)
def test_totals(aggregate, total) -> None:
    (scores,) = Fixed(aggregate=aggregate).score([says(0.9, 0.2, 0.4)])
    assert scores.total == pytest.approx(total)
    (scores,) = Fixed(aggregate=aggregate, alpha=0.8).score([says(0.9, 0.2, 0.4, whole=0.5)])
    assert scores.total == pytest.approx(total + 0.4)


def test_what_is_no_score_fails_and_says_why() -> None:
    given = [
        says(0.9, 0.2),
        says(0.9, math.nan, 0.1),
        says(0.9, 1.2, 0.1),
        says(0, 0, 0, whole=-1),
        says(0, 1, 0.5),
    ]
    found = Fixed().score(given)
    assert [scores.why for scores in found] == [
        "the reward returned 2 scores for 3 steps",
        "the reward returned NaN",
        "the reward returned 1.2, which is not from 0 to 1",
        "the reward returned -1, which is not from 0 to 1",
        "",
    ]
    assert [scores.total for scores in found] == [None, None, None, None, 0.5]


def test_any_number_of_traces_is_scored_a_few_at_a_time() -> None:
    taken = itertools.count()
    endless = (says(0.9, 0.2, 0.4) for _ in taken)
    found = list(itertools.islice(scored(Fixed(), endless, batch=4), 6))
    assert len(found) == 6
    assert next(taken) == 8


def test_windows_hold_every_step_once() -> None:
    rng = np.random.default_rng(1)
    for _ in range(200):
        lengths = rng.integers(1, 30, rng.integers(1, 40)).tolist()
        room, context = int(rng.integers(30, 90)), int(rng.integers(0, 40))
        done = 0
        for first, new, last in spans(lengths, room, context):
            assert new == done
            assert first <= new < last
            assert sum(lengths[first:last]) <= room
            assert sum(lengths[first:new]) <= context
            assert last == len(lengths) or sum(lengths[first : last + 1]) > room
            done = last
        assert done == len(lengths)


def test_batches_hold_every_row_once() -> None:
    lengths = np.random.default_rng(2).integers(1, 90, 200).tolist()
    found = batches(lengths, 256)
    assert sorted(n for some in found for n in some) == list(range(200))
    assert all(len(some) * max(lengths[n] for n in some) <= 256 for some in found)
    padding = sum(len(some) * max(lengths[n] for n in some) for some in found) / sum(lengths)
    assert padding < 1.05
