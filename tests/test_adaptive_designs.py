"""Designs of adaptive runs: where the next attempts go, when they end, and whether the intervals
hold after that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from ponder.stats.columns import Columns, Floats
from ponder.stats.designs.best_arm import Best
from ponder.stats.designs.critical_size import Ladder, after_ladder
from ponder.stats.designs.frontier import Frontier
from ponder.stats.designs.sequential import (
    Paired,
    Precise,
    analysis_sizes,
    pocock,
    valid_difference,
)
from ponder.stats.paired import paired_difference

SIZES = (9, 11, 13, 16, 20, 24, 30, 37, 45, 55, 67, 82, 100)


def played(next_: Callable[[Sequence[Floats]], list[int]], full: Sequence[Floats]) -> list[Floats]:
    """What a run with this design sees of the full plan's scores."""
    counts = [0] * len(full)
    while any(more := next_([score[:n] for score, n in zip(full, counts, strict=True)])):
        counts = [n + m for n, m in zip(counts, more, strict=True)]
    return [score[:n] for score, n in zip(full, counts, strict=True)]


def made(seen: Sequence[Floats], full: Sequence[Floats]) -> float:
    return sum(map(len, seen)) / sum(map(len, full))


def ladder(rng: np.random.Generator, half: float, slope: float, problems: int) -> list[Floats]:
    chance = 1 / (1 + np.exp(-slope * (math.log(half) - np.log(SIZES))))
    return [(rng.random(problems) < p).astype(float) for p in chance]


def columns(scores: Sequence[Floats]) -> Columns:
    size = np.repeat(np.array(SIZES, dtype=float), [len(score) for score in scores])
    no = np.zeros(len(size), dtype=np.bool_)
    return Columns(
        size,
        np.arange(len(size)),
        np.concatenate(scores) > 0,
        no,
        no,
        np.ones(len(size)),
        np.array([]),
    )


# Pocock's constants as in Jennison & Turnbull (2000), table 2.1.
@pytest.mark.parametrize(("looks", "value"), [(1, 1.960), (2, 2.178), (5, 2.413), (10, 2.555)])
def test_pocock(looks: int, value: float) -> None:
    assert pocock(0.95, 2, looks) == pytest.approx(value, abs=5e-4)


def test_looks_end_with_all_problems() -> None:
    assert analysis_sizes(100) == [10, 20, 30, 40, 50, 60, 70, 80, 90, 100]
    assert analysis_sizes(7) == [2, 3, 4, 5, 6, 7]
    assert analysis_sizes(1) == [1]


def test_one_look_is_the_paired_interval() -> None:
    rng = np.random.default_rng(1)
    first, second = (rng.random((2, 30)) < 0.6).astype(float)
    one, known = (
        valid_difference(first - second, 0.95, analyses=1),
        paired_difference(first, second),
    )
    assert (one.value, one.low, one.high) == pytest.approx((known.value, known.low, known.high))


def test_a_ladder_asks_near_the_critical_size_and_covers_it() -> None:
    rng, hits, parts, near, widths = np.random.default_rng(2), [], [], [], []
    for _ in range(40):
        full = ladder(rng, 35, 9, 20)
        seen = played(Ladder(SIZES, 20).next, full)
        found = after_ladder(columns(seen))
        hits.append(found.low <= 35 <= found.high)
        parts.append(made(seen, full))
        whole = after_ladder(columns(full))
        widths.append(math.log(found.high / found.low) / math.log(whole.high / whole.low))
        near.append(
            sum(len(s) for s, size in zip(seen, SIZES, strict=True) if 20 <= size <= 60)
            / sum(map(len, seen))
        )
    assert np.mean(hits) >= 0.9
    assert np.mean(parts) <= 0.5
    assert np.mean(near) > 0.7
    assert np.median(widths) < 1.25  # about as narrow as the full ladder's


def test_a_ladder_that_is_never_crossed_ends() -> None:
    full = [np.ones(20) for _ in SIZES]
    seen = played(Ladder(SIZES, 20).next, full)
    assert made(seen, full) < 0.8
    found = after_ladder(columns(seen))
    assert found.high == math.inf
    assert found.low >= 67


def test_a_ladder_to_a_margin() -> None:
    full = ladder(np.random.default_rng(3), 35, 9, 80)
    seen = played(Ladder(SIZES, 80, margin=0.1).next, full)
    found = Ladder(SIZES, 80).estimate(seen, 0.95)
    assert found.high / found.low <= 1.1**2 * 1.01  # the grid has the sizes asked alone
    assert made(seen, full) < made(played(Ladder(SIZES, 80).next, full), full)
    # never more than all
    assert made(played(Ladder(SIZES, 80, margin=0.001).next, full), full) == 1


def test_samples_that_always_agree_count_once() -> None:
    full = ladder(np.random.default_rng(4), 35, 9, 20)
    assert (
        played(Ladder(SIZES, 20, samples=4).next, full)[6].size
        == played(Ladder(SIZES, 20).next, full)[6].size
    )


def cells(rng: np.random.Generator, accuracies: Sequence[float], problems: int) -> list[Floats]:
    hard = rng.random(problems)
    return [(0.5 * hard + 0.5 * rng.random(problems) < _cut(a)).astype(float) for a in accuracies]


def _cut(accuracy: float) -> float:
    """The mean of two uniforms is below this with probability `accuracy`."""
    return math.sqrt(accuracy / 2) if accuracy < 0.5 else 1 - math.sqrt((1 - accuracy) / 2)


def test_elimination_keeps_the_best() -> None:
    rng, hits, parts = np.random.default_rng(5), [], []
    for _ in range(40):
        full = cells(rng, [0.5, 0.6, 0.65, 0.7, 0.8], 400)
        design = Best(400)
        seen = played(design.next, full)
        hits.append(bool(design.left(seen)[4]))
        parts.append(made(seen, full))
    assert np.mean(hits) >= 0.93
    assert np.mean(parts) <= 0.45


def test_elimination_of_equal_cells_saves_nothing_and_keeps_them() -> None:
    rng = np.random.default_rng(6)
    kept, parts = [], []
    for _ in range(25):
        full = cells(rng, [0.6] * 6, 100)
        seen = played(Best(100).next, full)
        kept.append(bool(Best(100).left(seen)[0]))
        parts.append(made(seen, full))
    assert np.mean(kept) >= 0.9
    assert np.mean(parts) > 0.9


def test_a_margin_picks_one_of_two_nearly_equal_cells() -> None:
    rng, left, certified = np.random.default_rng(7), [], []
    for _ in range(20):
        full = cells(rng, [0.70, 0.71], 1000)
        left.append(made(played(Best(1000, margin=0.1).next, full), full))
        certified.append(made(played(Best(1000).next, full), full))
    assert np.mean(left) < 0.6 < np.mean(certified)


def test_dominated_variants_are_dropped_and_those_on_the_frontier_kept() -> None:
    """Accuracies of 90, 80 and 60 %; the second is the cheapest, the third the dearest."""
    rng, kept, parts = np.random.default_rng(14), [], []
    for _ in range(20):
        right = cells(rng, [0.9, 0.7, 0.6], 300)
        tokens = [t * np.exp(0.5 * rng.standard_normal(300)) for t in (200, 60, 250)]
        full = [np.column_stack(both) for both in zip(right, tokens, strict=True)]
        seen = played(Frontier(300).next, full)
        kept.append(Frontier(300).left(seen).tolist())
        parts.append(made(seen, full))
    assert sum(k == [True, True, False] for k in kept) >= 19
    assert np.mean(parts) < 0.5


def test_equal_variants_stay_on_the_frontier() -> None:
    rng = np.random.default_rng(15)
    full = [
        np.column_stack([right, rng.lognormal(5, 0.5, 100)]) for right in cells(rng, [0.7] * 4, 100)
    ]
    seen = played(Frontier(100).next, full)
    assert Frontier(100).left(seen).all()
    assert made(seen, full) == 1


def test_a_lead_has_an_interval_for_all_looks_and_cells() -> None:
    full = cells(np.random.default_rng(8), [0.6, 0.6, 0.8], 200)
    lead, alone = Best(200).lead(full, 2, 0), paired_difference(full[2], full[0])
    assert lead.value == pytest.approx(alone.value)
    assert lead.high - lead.low > 1.3 * (alone.high - alone.low)


def two(rng: np.random.Generator, difference: float, problems: int) -> list[Floats]:
    """Two models that differ on 30 % of the problems."""
    drawn = rng.random(problems)
    first, second = (
        drawn < (0.3 + difference) / 2,
        (drawn >= (0.3 + difference) / 2) & (drawn < 0.3),
    )
    return [np.where(first, 1.0, 0.0), np.where(second, 1.0, 0.0)]


@pytest.mark.parametrize(("difference", "share"), [(0.0, 0.75), (0.076, 0.8), (0.152, 0.4)])
def test_a_comparison_stops_early_and_covers(difference: float, share: float) -> None:
    rng, hits, parts, clear = np.random.default_rng(9), [], [], []
    for _ in range(200):
        full = two(rng, difference, 400)
        design = Paired(400)
        seen = played(design.next, full)
        found = design.difference(seen)
        hits.append(found.low <= difference <= found.high)
        parts.append(made(seen, full))
        clear.append(design.why(seen) == "clear")
    assert np.mean(hits) >= 0.93
    assert np.mean(parts) <= share
    assert np.mean(clear) <= 0.07 if difference == 0 else np.mean(clear) > 0.5


def test_why_a_comparison_ends() -> None:
    rng = np.random.default_rng(10)
    assert Paired(400).why(two(rng, 0.25, 200)) == "clear"
    assert Paired(400).why(two(rng, 0.0, 320)) == "futile"
    assert Paired(400, margin=0.1).why(two(rng, 0.0, 200)) == "precise"
    assert Paired(400, effect=0.3).why(two(rng, 0.0, 200)) == "small"
    assert Paired(400).why(two(rng, 0.08, 40)) == ""


def test_accuracy_to_a_margin() -> None:
    rng, hits, parts = np.random.default_rng(11), [], []
    for _ in range(300):
        full = [(rng.random(400) < 0.9).astype(float)]
        design = Precise(400, 0.05)
        (seen,) = played(design.next, full)
        found = design.accuracy(seen)
        hits.append(found.low <= 0.9 <= found.high)
        parts.append(len(seen) / 400)
    assert np.mean(hits) >= 0.92
    assert np.mean(parts) < 0.6


def test_problems_without_an_answer_are_left_out() -> None:
    full = cells(np.random.default_rng(12), [0.3, 0.8], 100)
    full[0][::7] = math.nan
    assert played(Best(100).next, full)[0].size < 100
    assert played(Paired(100).next, full)[0].size < 100
    holes = ladder(np.random.default_rng(13), 35, 9, 20)
    holes[6][:3] = math.nan
    assert sum(map(len, played(Ladder(SIZES, 20).next, holes))) < 200
