"""The design behind `ponder tune`: whom it asks, when it ends, and how rarely it is wrong."""

from __future__ import annotations

import runpy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ponder.stats.columns import Floats
from ponder.stats.designs.cheapest import Cheapest

ROOT = Path(__file__).parents[1]
SIMULATION = runpy.run_path(str(ROOT / "benchmarks" / "coverage_tune.py"))


def scores(accuracy: float, cost: float, problems: int, seed: int) -> Floats:
    """Answers that are right with a probability of their own, whatever the problem."""
    rng = np.random.default_rng(seed)
    right = rng.random(problems) < accuracy
    return np.column_stack([right, cost * rng.lognormal(0, 0.3, problems)])


def ended(design: Cheapest, data: list[Floats]) -> list[Floats]:
    """Ask until the design ends; return what was asked."""
    asked = [0] * len(data)
    while True:
        some = [rows[:n] for rows, n in zip(data, asked, strict=True)]
        more = design.next(some)
        if not any(more):
            return some
        asked = [n + m for n, m in zip(asked, more, strict=True)]


def test_the_cheapest_good_setting_is_chosen_and_weak_ones_are_dropped() -> None:
    data = [scores(p, 100 * 2**k, 600, seed=k) for k, p in enumerate((0.4, 0.9, 0.9, 0.9))]
    design = Cheapest(600, margin=0.1)
    asked = ended(design, data)
    standing = design.standing(asked)
    assert standing.quality[0] == "weak"
    assert standing.choice == 1
    assert len(asked[0]) <= 120  # two of ten analyses: 40 points show at once
    assert max(map(len, asked)) < 600


def test_a_labelled_reference_is_good_and_dearer_settings_are_dropped() -> None:
    data = [scores(0.3, 100, 600, 0), scores(0.7, 200, 600, 1), scores(0.95, 400, 600, 2)]
    design = Cheapest(600, margin=0.05, reference=1)
    asked = ended(design, data)
    standing = design.standing(asked)
    assert standing.choice == 1
    assert standing.quality[0] == "weak"
    assert len(asked[2]) == 60  # surely more expensive than the reference at the first analysis


def test_a_margin_that_all_problems_could_not_decide_ends_early() -> None:
    data = [scores(0.8, 100, 400, 4), scores(0.8, 200, 400, 5)]
    design = Cheapest(400, margin=0.01)
    asked = ended(design, data)
    assert design.standing(asked).choice is None
    assert max(map(len, asked)) <= 120
    assert design.problems_to_decide(asked, 0, 1) > 1000


def test_as_many_problems_as_are_announced_decide_in_most_runs() -> None:
    right = np.array([1.0, 1.0, 1.0, 1.0, 0.0] * 80)
    cost = np.ones(400)
    rng = np.random.default_rng(0)
    pilot = [np.column_stack([rng.permutation(right), k * cost]) for k in (1, 2)]
    more = Cheapest(400, margin=0.06).problems_to_decide(pilot, 0, 1)
    design = Cheapest(400 + int(more), margin=0.06)
    decided = 0
    for seed in range(60):
        data = [scores(0.8, 100 * k, design.problems, 2 * seed + k) for k in (1, 2)]
        decided += design.standing(ended(design, data)).quality[0] == "good"
    assert 39 <= decided <= 58  # announced: 80 % of 60; P(outside) < .005


def test_a_floor_is_reached_surely_or_not_at_all() -> None:
    data = [scores(0.3, 100, 500, 0), scores(0.9, 200, 500, 1), scores(0.97, 400, 500, 2)]
    design = Cheapest(500, floor=0.8)
    standing = design.standing(ended(design, data))
    assert standing.quality[0] == "weak"
    assert standing.choice == 1
    nobody = Cheapest(500, floor=0.99)
    asked = ended(nobody, data[:2])
    assert nobody.standing(asked).quality == ["weak", "weak"]
    assert nobody.standing(asked).choice is None


def test_a_good_setting_is_not_worse_by_the_margin_with_the_interval_that_is_shown() -> None:
    for seed in range(20):
        data = [scores(p, 100 * 2**k, 800, 10 * seed + k) for k, p in enumerate((0.8, 0.85, 0.85))]
        design = Cheapest(800, margin=0.08)
        asked = ended(design, data)
        standing = design.standing(asked)
        for i in np.flatnonzero(np.array(standing.quality) == "good"):
            for j in range(3):
                if j != i and standing.holds[i, j]:
                    # at the analysis when it was called good the interval was this one or wider
                    assert design.difference(asked, int(i), j).value > -0.08


def test_failed_problems_are_left_out_for_all() -> None:
    data = [scores(0.9, 100, 300, 0), scores(0.9, 200, 300, 1)]
    data[0][::3] = np.nan
    design = Cheapest(300, margin=0.15)
    asked = ended(design, data)
    assert design.standing(asked).choice == 0
    difference = design.difference(asked, 0, 1)
    answered = ~np.isnan(data[0][: len(asked[0]), 0])
    expected = (data[0][: len(asked[0]), 0] - data[1][: len(asked[0]), 0])[answered].mean()
    assert difference.value == pytest.approx(expected)


def test_settings_are_compared_on_what_both_answered_as_in_a_log() -> None:
    """No problem was asked of all three."""
    data = [scores(p, 100 * 2**k, 900, 7 + k) for k, p in enumerate((0.5, 0.95, 0.95))]
    for k, rows in enumerate(data):
        rows[300 * k : 300 * (k + 1)] = np.nan
    design = Cheapest(900, margin=0.1, analyses=1)
    standing = design.standing(data)
    assert standing.quality == ["weak", "good", "good"]
    assert standing.choice == 1


def test_with_one_analysis_the_interval_is_that_of_a_fixed_sample() -> None:
    data = [scores(0.8, 100, 400, 0), scores(0.8, 200, 400, 1)]
    fixed = Cheapest(400, margin=0.05, analyses=1).difference(data, 0, 1)
    adaptive = Cheapest(400, margin=0.05).difference(data, 0, 1)
    assert fixed.high - fixed.low < 0.96 * (adaptive.high - adaptive.low)
    saving = Cheapest(400, margin=0.05, analyses=1).saving(data, 0, 1)
    assert saving.low < 0.5 < saving.high
    assert saving.high - saving.low < 0.1


@pytest.mark.parametrize(
    "name", ["at the margin, 60 problems", "at the margin, nearly the same", "at the floor"]
)
def test_a_wrong_choice_is_rare(name) -> None:
    """The short form of benchmarks/coverage_tune.py; without the boundaries it is .2 and more."""
    scenario = next(s for s in SIMULATION["SCENARIOS"] if s.name == name)
    scenario = replace(scenario, problems=min(300, scenario.problems))
    summary = SIMULATION["simulate"](scenario, 100)
    assert summary.wrong <= 0.1  # at most .05 in all runs; P(> 10 of 100) < .02


def test_settings_that_differ_cost_at_most_half_of_the_full_plan() -> None:
    scenario = next(s for s in SIMULATION["SCENARIOS"] if s.name == "steep decline")
    summary = SIMULATION["simulate"](scenario, 20)
    assert summary.calls < 0.4
    assert summary.cheapest > 0.9
