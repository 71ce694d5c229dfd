"""Variants of a model on the frontier and under a budget, against numbers worked out by hand, by
SciPy or by force.
"""

from __future__ import annotations

import itertools
import math

import made_up
import numpy as np
import pytest
from made_up import variants_of
from scipy import stats

from ponder.core import Estimate
from ponder.figures.frontier import Frontier
from ponder.stats.accuracy import accuracy, mean
from ponder.stats.frontier import (
    Variant,
    Variants,
    accuracy_difference,
    aes,
    area_difference,
    budget_area,
    fraction,
    mean_tokens,
    on_frontier,
    summarize,
    under_budget,
    verdict,
)
from ponder.stats.paired import paired_difference


def outcome(
    model, problem, tokens, right, *, seed=None, made=0.0, ended="", size=8, task="tents", sample=0
):
    base, *methods = model.split(" + ")
    chain = []
    for method in methods:
        name, *settings = method.split()
        chain.append(
            (
                name,
                dict(pair.split("=") for pair in settings)
                | ({} if seed is None else {"seed": seed}),
            )
        )
    if seed is not None and not chain:
        chain = [("trained", {"seed": seed})]
    return made_up.outcome(
        task, base, size, problem, ended or ("right" if right else "wrong"), methods=chain, sample=sample,
        label={"variant": model, "methods": " + ".join(methods)},
        prompt_tokens=50, thinking_tokens=tokens - 9, answer_tokens=9,
        made={"rollout_tokens": made, "training_tokens": made / 2, "seconds": 3.0} if made else {},
    )  # fmt: skip


# Accuracy and log tokens against the long model, training seeds and their spread, tokens that
# making took.
MADE_UP = {
    "pocket": (0.0, 0.0, 0, 0.0, 0),
    "pocket + merge weight=0.5": (-0.9, -0.75, 0, 0.0, 0),
    "pocket + shortest": (-0.3, -0.45, 3, 0.1, 2e6),
    "pocket + dpo": (-0.1, -0.7, 3, 0.3, 2e6),
    "pocket + length_rl": (0.1, -0.95, 3, 0.2, 4e6),
    "pocket + sft": (-0.6, 0.2, 1, 0.0, 1e6),
    "pocket-short": (-1.5, -1.35, 0, 0.0, 0),
}


def attempts(problems=40, tasks=("execution", "tents"), sizes=(8, 16)):
    found = []
    for task in tasks:
        rng = np.random.default_rng(len(task))
        asked = [
            (size, f"{size}/{i}", rng.normal(2, 1.4)) for size in sizes for i in range(problems)
        ]
        for name, (better, longer, seeds, spread, made) in MADE_UP.items():
            for seed in range(1, seeds + 1) if seeds else (None,):
                lucky, wordy = (
                    (rng.normal(0, spread), rng.normal(0, spread / 2)) if seeds else (0.0, 0.0)
                )
                for size, problem, easy in asked:
                    right = bool(rng.random() < 1 / (1 + math.exp(-easy - better - lucky)))
                    tokens = 10 + int(math.exp(5.5 + longer + wordy + rng.normal(0, 0.4)))
                    found.append(
                        outcome(
                            name, problem, tokens, right, seed=seed, made=made, size=size, task=task
                        )
                    )
    return found


def test_by_hand() -> None:
    right = {"long": [1, 1, 1, 0], "short": [1, 1, 0, 0], "silly": [1, 0, 0, 0]}
    tokens = {"long": [100, 200, 300, 400], "short": [50, 60, 70, 80], "silly": [60, 70, 80, 90]}
    data = variants_of(
        [
            outcome(
                name,
                f"p{i}",
                tokens[name][i],
                bool(right[name][i]),
                seed=1 if name == "short" else None,
                made=740.0,
            )
            for name in right
            for i in range(4)
        ]
    )
    long, short, silly = summarize(data, "long")
    assert [s.tokens.value for s in (long, short, silly)] == [250, 65, 75]
    assert [s.accuracy.value for s in (long, short, silly)] == [0.75, 0.5, 0.25]
    assert [s.on_frontier for s in (long, short, silly)] == [True, True, False]
    assert [s.tokens_per_right.value for s in (long, short, silly)] == pytest.approx(
        [1000 / 3, 130, 300]
    )
    assert long.against is None
    assert short.against is not None
    assert short.against.difference.value == -0.25
    assert short.against.ratio.value == pytest.approx(65 / 250)
    assert short.against.aes.value == pytest.approx(185 / 250 - 5 / 3)
    # rollouts and half as many in training
    assert short.against.break_even.value == pytest.approx(1110 / 185)
    planted = [
        outcome(n, f"p{i}", t, i % 9 < r)
        for n, t, r in (("long", 90, 8), ("short", 30, 4), ("silly", 95, 2))
        for i in range(90)
    ]
    said = Frontier().findings(Frontier().estimate(planted))
    assert said[0] == "tents: on the frontier: surely long, short; surely not silly."
    assert silly.tokens_per_right.high == math.inf  # of four problems one was right: it may be none


def test_ties_share_the_frontier_and_equals_dominate_nothing() -> None:
    tokens, right = np.array([[10.0, 10, 20, 20, 30]]), np.array([[0.5, 0.5, 0.5, 0.9, 0.9]])
    assert on_frontier(tokens, right).tolist() == [[True, True, False, True, False]]
    rng = np.random.default_rng(2)
    tokens, right = rng.integers(0, 6, (50, 7)).astype(float), rng.integers(0, 6, (50, 7)) / 6
    for row, (t, r) in zip(
        on_frontier(tokens, right), zip(tokens, right, strict=True), strict=True
    ):
        for i, on in enumerate(row):
            beaten = [
                j
                for j in range(7)
                if t[j] <= t[i] and r[j] >= r[i] and (t[j] < t[i] or r[j] > r[i])
            ]
            assert on == (not beaten)


def test_untrained_models_have_the_intervals_of_every_other_figure() -> None:
    data = variants_of(attempts(tasks=("tents",)))
    long, short = data.variants[0], data.variants[1]
    assert mean_tokens(long) == mean(long.tokens, long.problem)
    assert fraction(long, long.correct) == accuracy(long.correct, long.problem)
    assert accuracy_difference(short, long) == paired_difference(
        short.by_problem(short.correct), long.by_problem(long.correct)
    )


def seeded(means, problems=50, name="made", wobble=0.0):
    """A variant whose seeds differ by tokens, and not by problem unless they wobble."""
    seed, problem = (x.ravel() for x in np.indices((len(means), problems)))
    tokens = np.array(means, dtype=float)[seed] + wobble * np.random.default_rng(3).normal(
        size=len(seed)
    )
    return Variant(
        name, tuple(range(len(means))), seed, problem, tokens, problem % 2 == 0, 0.0, 0.0
    )


def test_seeds_alone_give_students_interval() -> None:
    means = [100.0, 110.0, 130.0]
    found, sem = mean_tokens(seeded(means)), stats.sem(means)
    assert (found.low, found.high) == pytest.approx(stats.t.interval(0.95, 2, np.mean(means), sem))
    reference = seeded([200.0], name="long")
    ratio = summarize(
        Variants((reference, seeded(means)), np.zeros(50, dtype=np.int64), 0),
        "long",
        replicates=40_000,
    )[1]
    assert ratio.against is not None
    far = stats.t.ppf(0.975, 2) * sem / np.mean(means)
    ends = np.log([ratio.against.ratio.low, ratio.against.ratio.high]) - math.log(
        np.mean(means) / 200
    )
    assert ends == pytest.approx([-far, far], rel=0.05)


def test_what_problems_explain_is_not_counted_twice() -> None:
    """Comparison the variance of a mean over crossed seeds and problems, from many redraws of a
    made-up truth.
    """
    rng = np.random.default_rng(4)
    widths, means = [], []
    for _ in range(400):
        problem, noise = rng.normal(0, 5, 30), rng.normal(0, 20, (4, 30))
        tokens = 100 + rng.normal(0, 3, (4, 1)) + problem + noise
        seed, number = (x.ravel() for x in np.indices(tokens.shape))
        found = mean_tokens(
            Variant("v", (1, 2, 3, 4), seed, number, tokens.ravel(), seed > 9, 0.0, 0.0)
        )
        widths.append(found.high - found.low)
        means.append(found.low <= 100 <= found.high)
    true = math.sqrt(9 / 4 + 25 / 30 + 400 / 120)
    assert 0.92 <= np.mean(means) <= 0.985
    # Student's t with three degrees of freedom for all of it
    assert np.median(widths) / 2 < 3.182 * true


def test_the_chance_of_the_frontier_is_that_of_a_plain_bootstrap() -> None:
    rng = np.random.default_rng(5)
    n = 600
    right = rng.random((n, 3)) < [0.80, 0.78, 0.785]
    tokens = rng.gamma(4, [30.0, 20, 20.5], (n, 3))
    number, one = np.arange(n), np.zeros(n, dtype=np.int64)
    made = [
        Variant(f"v{k}", (), one, number, tokens[:, k], right[:, k], 0.0, 0.0) for k in range(3)
    ]
    found = [s.frontier_chance for s in summarize(Variants(tuple(made), one, 0), "v0")]
    picks = rng.integers(0, n, (4000, n))
    plain = on_frontier(tokens[picks].mean(axis=1), right[picks].mean(axis=1)).mean(axis=0)
    assert found == pytest.approx(plain, abs=0.04)
    assert all(0.1 < chance < 0.9 for chance in found[1:])


def drawn(rng, spread, seeds=3, problems=40):
    """A long model and a shorter one, trained with seeds that differ."""
    easy, long = rng.normal(1.5, 1.5, problems), rng.normal(5, 0.4, problems)
    made = []
    for name, n, shift in (("long", 1, 0.0), ("short", seeds, -0.5)):
        lucky = rng.normal(0, spread * (n > 1), (2, n, 1))
        right = rng.random((n, problems)) < 1 / (1 + np.exp(-easy - shift - lucky[0]))
        tokens = np.exp(long + shift + lucky[1] / 2 + rng.normal(0, 0.3, (n, problems)))
        seed, problem = (x.ravel() for x in np.indices(right.shape))
        names = tuple(range(n)) if n > 1 else ()
        made.append(Variant(name, names, seed, problem, tokens.ravel(), right.ravel(), 1e5, 0.0))
    return Variants(tuple(made), np.zeros(problems, dtype=np.int64), 0)


@pytest.mark.parametrize("spread", [0.0, 0.3, 1.0])
def test_three_seeds_cover(spread: float) -> None:
    rng, runs = np.random.default_rng(6), 250
    many = np.random.default_rng(7).normal(size=(3, 400_000))
    right = [
        float((1 / (1 + np.exp(-1.5 - 1.5 * many[0] - shift - s * many[1]))).mean())
        for shift, s in ((0, 0), (-0.5, spread))
    ]
    ratio = math.exp(-0.5 + spread**2 / 8)
    score = float(aes(np.array(ratio), np.array(right[1]), np.array(right[0])))
    hits, redrawn = np.zeros(3), 0
    for run in range(runs):
        data = drawn(rng, spread)
        found = summarize(data, "long", replicates=1000, seed=run)[1].against
        assert found is not None
        for i, (e, true) in enumerate(
            ((found.difference, right[1] - right[0]), (found.ratio, ratio), (found.aes, score))
        ):
            hits[i] += e.low <= true <= e.high
        redrawn += _redrawn(data, rng, ratio)
    assert (hits / runs > 0.92).all()
    if spread == 1.0:
        assert redrawn / runs < 0.85  # what redrawing three seeds would cover


def _redrawn(data: Variants, rng: np.random.Generator, true: float) -> bool:
    """Whether a plain bootstrap over problems and seeds covers the ratio of tokens."""
    long, short = (v.tokens.reshape(-1, data.problems) for v in data.variants)
    problems, seeds = rng.integers(0, 40, (500, 40)), rng.integers(0, 3, (500, 3))
    ratios = short[seeds[:, :, None], problems[:, None]].mean(axis=(1, 2)) / long[0][problems].mean(
        axis=1
    )
    low, high = np.quantile(ratios, [0.025, 0.975])
    return bool(low <= true <= high)


def test_two_perfect_variants_may_differ() -> None:
    perfect = [
        outcome(name, f"p{i}", tokens, True)
        for name, tokens in (("long", 90), ("short", 40))
        for i in range(30)
    ]
    long, short = summarize(variants_of(perfect), "long")
    assert short.frontier_chance == 1.0
    assert 0.4 < long.frontier_chance < 0.6  # nothing tells who is right more often
    assert short.against is not None
    assert short.against.difference.low < -0.05
    assert short.against.p_value > 0.9
    assert verdict(short.against.difference, 0.05) == "open"


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [
        (0.01, 0.1, "above"),
        (-0.04, 0.1, "not below"),
        (-0.04, -0.01, "slightly below"),
        (-0.2, -0.01, "below"),
        (-0.2, 0.1, "open"),
    ],
)
def test_no_evidence_of_a_loss_is_no_evidence_of_none(low: float, high: float, said: str) -> None:
    apart = Estimate((low + high) / 2, low, high, 9, 9)
    assert verdict(apart, 0.05) == said
    # A difference that doesn't withstand the correction for many comparisons is on neither side.
    uncertain = {"above": "not below", "slightly below": "not below", "below": "open"}
    assert verdict(apart, 0.05, differs=False) == uncertain.get(said, said)


def test_accuracy_under_every_budget() -> None:
    [variant] = (
        v for v in variants_of(attempts(tasks=("tents",))).variants if v.name == "pocket + dpo"
    )
    budgets = np.linspace(0, 900, 9001)[1:]
    counted = [(variant.correct & (variant.tokens <= t)).mean() for t in budgets]
    found = under_budget(variant, budgets[::300].tolist())
    assert [e.value for e in found] == pytest.approx(counted[::300])
    assert all(a.low <= b.low and a.high <= b.high for a, b in itertools.pairwise(found))
    alone = fraction(variant, variant.correct & (variant.tokens <= budgets[600]))
    assert found[2].low <= alone.low <= alone.high <= found[2].high
    assert budget_area(variant, 900.0).value == pytest.approx(np.mean(counted), abs=1e-4)


def test_a_variant_that_is_never_right_may_still_be() -> None:
    data = variants_of([outcome("long", f"p{i}", 90, False) for i in range(20)])
    assert budget_area(data.variants[0], 100.0) == accuracy(
        data.variants[0].correct, data.variants[0].problem
    )
    [found] = summarize(data, "long")
    assert (found.tokens_per_right.value, found.tokens_per_right.high) == (math.inf, math.inf)


def test_areas_of_a_few_problems_stay_within_one() -> None:
    answers = [(f"p{i}", 10, i == 0) for i in range(4)]
    data = variants_of([outcome(name, *one) for name in ("long", "short") for one in answers])
    assert budget_area(data.variants[0], 100.0).high <= 1
    assert area_difference(*data.variants, 100.0).high <= 1


def test_failed_attempts_never_count_and_truncated_ones_are_wrong() -> None:
    asked = [outcome(name, f"p{i}", 90, True) for name in ("long", "short") for i in range(5)]
    asked[0] = asked[0]._replace(ended="failed")
    asked[1] = asked[1]._replace(ended="truncated")
    data = variants_of(asked)
    assert (data.problems, data.left_out) == (4, 1)
    assert [float(v.correct.mean()) for v in data.variants] == [0.75, 1.0]
    [panel] = Frontier().estimate(asked)["panels"]
    assert panel["rests_on"].endswith(
        "1 truncated, 1 failed and left out, 1 problems that not all answered left out"
    )
