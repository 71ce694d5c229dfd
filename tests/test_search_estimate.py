"""The search for the longest turn: simulated models whose curves are known."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import optimize, special

from ponder.core import UserError
from ponder.stats.designs.max_size import Search


def power(p, lapse=0.0):
    return lambda size: (1 - lapse) * p**size


def logistic(middle, slope, lapse=0.0):
    return lambda size: (1 - lapse) * special.expit(slope * (math.log(middle) - math.log(size)))


def cliff(last):
    return lambda size: float(size <= last)


def truth(curve, target=0.8) -> float:
    return math.exp(optimize.brentq(lambda x: curve(math.exp(x)) - target, -5, 12))


def searched(search, curve, rng) -> dict[int, tuple[int, int]]:
    results: dict[int, tuple[int, int]] = {}
    while asked := search.next(results):
        for size, tries in asked:
            right, before = results.get(size, (0, 0))
            results[size] = (right + int(rng.binomial(tries, curve(size))), before + tries)
    return results


def ladder(search, curve, rng, tries) -> dict[int, tuple[int, int]]:
    return {2**i: (int(rng.binomial(tries, curve(2**i))), tries) for i in range(11)}


CURVES = [
    power(0.9),
    power(0.99),
    power(0.999),
    power(0.99, lapse=0.05),
    logistic(100, 3),
    logistic(60, 2, lapse=0.05),
]


def test_interval_covers_and_is_as_narrow_as_asked() -> None:
    rng, search, hits = np.random.default_rng(1), Search(width=2.0, high=4096), []
    for curve in CURVES:
        right = truth(curve)
        found = [search.estimate(searched(search, curve, rng)) for _ in range(50)]
        hits.append(sum(e.low <= right <= e.high for e in found))
        assert np.median([e.value for e in found]) == pytest.approx(right, rel=0.15)
        assert all(
            e.low <= e.value <= e.high <= 2 * e.low for e in found if e.attempts < search.most
        )
    # Fifty runs of one curve may miss 95 % by 6: all together by 2.5.
    assert sum(hits) >= 0.92 * 300
    assert min(hits) >= 0.82 * 50


@pytest.mark.parametrize("last", [1, 2, 3, 7, 30, 100, 700])
@pytest.mark.parametrize("width", [1.3, 2.0])
def test_a_cliff_is_bracketed(last, width) -> None:
    search = Search(width=width)
    results = searched(search, cliff(last), np.random.default_rng(0))
    found = search.estimate(results)
    assert found.low <= last + 1
    assert found.high >= last
    assert found.high <= max(width * found.low, found.low + 1)
    assert found.attempts <= 100


def test_never_right_and_always_right() -> None:
    never = Search()
    found = never.estimate(searched(never, lambda _: 0.0, np.random.default_rng(0)))
    assert math.isnan(found.value)
    assert (found.low, found.high) == (0, 1)
    assert found.attempts <= 40
    for curve in (lambda _: 1.0, power(1 - 1e-7)):
        always = Search(high=2000)
        found = always.estimate(searched(always, curve, np.random.default_rng(0)))
        assert math.isnan(found.value)
        assert (found.low, found.high) == (2000, math.inf)
        assert found.attempts <= 60


def test_too_few_attempts_leave_the_interval_wide() -> None:
    search = Search(most=30)
    found = search.estimate(searched(search, power(0.99), np.random.default_rng(2)))
    assert found.attempts == 30
    assert found.high > 2 * found.low


def test_nothing_tried_says_nothing() -> None:
    found = Search().estimate({})
    assert (found.low, found.high, found.attempts) == (0, math.inf, 0)


def test_starts_small_and_doubles_until_something_goes_wrong() -> None:
    search, results, asked = Search(low=3, high=100), {}, []
    for _ in range(6):
        [(size, tries)] = search.next(results)
        asked.append(size)
        results[size] = (tries, tries)
    assert asked == [3, 6, 12, 24, 48, 96]
    assert search.next(results) == [(100, 1)]
    results[96] = (0, 1)
    assert all(3 <= size <= 100 for size, _ in search.next(results))
    assert sum(tries for _, tries in search.next(results)) == search.batch


def test_never_leaps_beyond_twice_what_was_tried() -> None:
    assert max(size for size, _ in Search().next({1: (1, 1), 2: (0, 1)})) <= 4


def test_depends_on_the_results_only() -> None:
    search = Search(width=2.0)
    results = searched(search, power(0.97), np.random.default_rng(3))
    part = {size: (right // 2, tries // 2) for size, (right, tries) in results.items()}
    backwards = dict(reversed(part.items()))
    for tried in (part, results):
        again = dict(reversed(tried.items()))
        assert Search(width=2.0).next(again) == search.next(tried)
        assert Search(width=2.0).estimate(again) == search.estimate(tried)
    # a size asked, not yet answered
    assert search.next(backwards) == search.next({**part, 5000: (0, 0)})


def test_attempts_gather_near_the_target() -> None:
    curve = logistic(200, 4)
    results = searched(Search(width=1.5), curve, np.random.default_rng(4))
    near = sum(tries for size, (_, tries) in results.items() if 0.3 < curve(size) < 0.97)
    assert near >= 0.6 * sum(tries for _, tries in results.values())


@pytest.mark.parametrize(
    ("curve", "times"),
    [(logistic(200, 6, lapse=0.02), 3), (logistic(60, 2, lapse=0.05), 2), (power(0.99), 1.25)],
)
def test_a_ladder_needs_more_calls_for_the_same_width(curve, times) -> None:
    rng, search = np.random.default_rng(5), Search(width=1.5, high=4096)
    calls = np.mean([search.estimate(searched(search, curve, rng)).attempts for _ in range(10)])
    tries = math.ceil(calls * times / 11)
    found = [search.estimate(ladder(search, curve, rng, tries)) for _ in range(20)]
    assert np.median([e.high / max(e.low, 1e-9) for e in found]) > 1.5


@pytest.mark.parametrize(
    "settings",
    [{"low": 0}, {"low": 9, "high": 9}, {"target": 1.0}, {"target": 0.0}, {"width": 1.0}],
)
def test_settings_that_make_no_sense_are_refused(settings) -> None:
    with pytest.raises(UserError):
        Search(**settings)


@pytest.mark.parametrize("target", [0.5, 0.95])
def test_other_targets(target) -> None:
    rng, search, curve = np.random.default_rng(6), Search(target=target, width=2.0), logistic(80, 3)
    right = truth(curve, target)
    found = [search.estimate(searched(search, curve, rng)) for _ in range(20)]
    assert sum(e.low <= right <= e.high for e in found) >= 17
