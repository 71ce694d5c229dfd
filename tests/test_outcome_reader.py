"""A report of many attempts: it reads no text, equal values are one object, and counts give what
attempts would.
"""

from __future__ import annotations

import itertools
import json
import random
import sqlite3
import zlib
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from ponder import Study
from ponder.core import Estimate, Outcome
from ponder.figures import _variants, effort
from ponder.results.results import coverage
from ponder.stats.accuracy import effective_sample, wilson
from ponder.stats.columns import clusters, one_series
from ponder.stats.frontier import simultaneous_level
from ponder.stats.horizon import horizon, rollouts
from ponder.store import outcomes
from ponder.store.outcomes import Details
from ponder.store.schema import digest
from ponder.store.store import Store

EXECUTION = """
problems = 5
samples = 6
[[task]]
name = "execution"
size = 12
per_turn = [1, 3]
[[model]]
name = "oracle"
error = 0.05
"""


@pytest.fixture
def stored(write, ponder) -> list[Outcome]:
    write("s.toml", EXECUTION)
    assert ponder("run", "s.toml").exit_code == 0
    with Store(Path("ponder.db")) as store:
        return list(store.outcomes(Study.load("s.toml").cells))


def test_details_read_as_they_were_stored(stored) -> None:
    with closing(sqlite3.connect("ponder.db")) as db:
        rows = dict(db.execute("SELECT id, details FROM attempt"))
    assert len(stored) == 60
    for o in stored:
        plain = json.loads(rows[o.attempt])
        assert dict(o.details) == plain
        assert o.details == plain
        assert plain == o.details
        assert list(o.details) == list(plain)
        assert "parsed" in o.details
        assert "ballot" not in o.details
        assert o.details.get("ballot") is None
        assert len(o.details) == len(plain)
        assert repr(o.details) == repr(plain)
        with pytest.raises(KeyError):
            o.details["ballot"]


def test_attempts_share_their_cell_and_label(stored) -> None:
    cells = Study.load("s.toml").cells
    assert {o.cell for o in stored} == set(cells)
    for o, other in itertools.pairwise(stored):
        assert (o.cell is other.cell) == (o.cell == other.cell)
        assert (o.label is other.label) == (o.cell == other.cell)


def test_equal_values_of_neighbours_are_one_object(stored) -> None:
    by_problem: dict[str, list[Outcome]] = {}
    for o in stored:
        by_problem.setdefault(o.problem, []).append(o)
    assert len(by_problem) == 10
    for samples in by_problem.values():
        assert len({id(o.problem) for o in samples}) == 1
        assert len({id(o.details["true"]) for o in samples}) == 1
        assert len({id(o.details) for o in samples if o.correct}) <= 1
        assert all(o.details["parsed"] is o.details["true"] for o in samples if o.correct)
    assert len({id(o.details._names) for o in stored if isinstance(o.details, Details)}) == 1
    large = [o.prompt_tokens for o in stored if o.prompt_tokens > 256]
    assert len({id(n) for n in large}) == len(set(large)) < len(large)


def test_values_of_other_types_stay_apart() -> None:
    reader = outcomes.OutcomeReader()
    texts = (
        '{"a": [1, 2], "b": 1}',
        '{"a": [1.0, 2], "b": true}',
        '{"a": [true, 2], "b": 1.0}',
        '{"a": [1, null]}',
    )
    for text in texts:
        assert repr(dict(reader._compact(text))) == repr(json.loads(text))
    huge = 10**39 + 7
    assert reader._compact(f'{{"a": [{huge}]}}')["a"] == [huge]


def test_what_is_remembered_is_limited(monkeypatch) -> None:
    monkeypatch.setattr(outcomes, "MOST_VALUES", 3)
    monkeypatch.setattr(outcomes, "MOST_SAMPLES", 2)
    reader, known = outcomes.OutcomeReader(), {}
    for n in range(1000, 1010):
        assert outcomes._one(known, n) == n
        assert reader._compact(f'{{"a": [{n}, {n}.5]}}')["a"] == [n, n + 0.5]
        assert reader._compact(f'{{"a": [{n}]}}')["a"] == [n]
    assert len(known) == 3
    assert len(reader._details) == 2
    assert len(reader._lists) == 2


def test_a_report_reads_no_text_but_that_of_its_transcripts(stored, monkeypatch) -> None:
    read: list[str] = []
    with Store(Path("ponder.db")) as store:
        store._db.set_authorizer(
            lambda *what: read.append(f"{what[1]}.{what[2]}") or sqlite3.SQLITE_OK
        )
        outcomes = list(store.outcomes(Study.load("s.toml").cells))
    assert len(outcomes) == 60
    assert "attempt.details" in read
    assert "problem.name" in read
    assert not [column for column in read if column.startswith("turn.") or column == "problem.body"]


def test_problems_are_not_made_again_if_all_were_tried(stored, monkeypatch) -> None:
    cells = Study.load("s.toml").cells
    failed = [o._replace(ended="failed") if o.sample == 0 else o for o in stored]

    def never(cell: object) -> None:
        raise AssertionError("problems were made")

    monkeypatch.setattr(type(cells[0]), "asked", never)
    found = coverage(cells, failed)
    assert (found.asked, found.answered, found.failed) == (60, 50, 10)
    with pytest.raises(AssertionError, match="problems were made"):
        coverage(cells, failed[1:])


def test_the_digest_of_a_row_has_not_changed() -> None:
    # As the first version computed it: a zero byte before each value.
    for row in [(1, None, "", 2.5, True), (b"\x00\xff", "ä", 3), ("%s", -1, 1e300), (0, b"")]:
        total = 0
        for value in row:
            kind = (
                value
                if isinstance(value, bytes)
                else (value if isinstance(value, str) else repr(value)).encode()
            )
            total = zlib.crc32(kind, zlib.crc32(b"\0", total))
        assert digest(*row) == total


def shuffled(outcomes: list[Outcome]) -> list[Outcome]:
    return random.Random(3).sample(outcomes, len(outcomes))


def test_outcomes_are_sorted_as_tuples_would_be(stored) -> None:
    sizes = [replace(stored[0].cell, size=size) for size in (12, 13)]
    one = [o._replace(cell=sizes[o.sample % 2]) for o in stored]
    one += [o._replace(thinking_tokens=o.thinking_tokens - 1, ended="unparsed") for o in one[:20]]
    one += [o._replace(ended="failed") for o in one[:5]]
    endings = ("wrong", "right", "truncated", "unparsed")

    def key(o: Outcome) -> tuple[object, ...]:
        return (
            o.size,
            o.problem,
            o.sample,
            o.thinking_tokens,
            endings.index(o.ended),
            o.answer_tokens,
        )

    mixed = shuffled(one)
    assert list(map(key, one_series(mixed))) == sorted(key(o) for o in one if o.answered)
    numbers = {p: n for n, p in enumerate(sorted({(o.size, o.problem) for o in mixed}))}
    assert clusters(mixed).tolist() == [numbers[o.size, o.problem] for o in mixed]
    assert clusters([]).tolist() == []


def judged(details) -> list[tuple[bool, bool, bool]]:
    shown = before = details["start"]
    rows = []
    for answer, total in zip(details["parsed"], details["true"], strict=False):
        rows.append(
            (
                answer == total,
                answer is not None and answer - shown == total - before,
                answer is None,
            )
        )
        shown, before = shown if answer is None else answer, total
    return rows


def pooled(rows: list[tuple[int, int, bool]]) -> Estimate:
    """The fraction of True of (rollout, problem, value), one turn at a time."""
    rollout, problem, value = (np.array(column) for column in zip(*rows, strict=True))
    n, fraction, groups = len(value), float(value.mean()), np.unique(problem)
    totals = np.array([(value[problem == g] - fraction).sum() for g in groups])
    variance = float(totals @ totals) / n**2 * len(groups) / (len(groups) - 1)
    rarer = len(np.unique(problem[value == (fraction < 0.5)]))
    ends = wilson(fraction, effective_sample(fraction, variance, n, len(groups), rarer, 0.95), 0.95)
    return Estimate(fraction, *ends, len(np.unique(rollout)), len(groups))


def test_rates_from_counts_equal_those_from_turns(stored) -> None:
    own = [o for o in stored if o.details["per_turn"] == 1]
    own = [
        o._replace(details={**o.details, "parsed": [*o.details["parsed"][:9], None]})
        if o.sample == 1
        else o
        for o in own
    ]
    data = rollouts(shuffled(own))
    found = horizon(data)
    ended = one_series(own)
    turns = [judged(o.details) for o in ended]
    assert data.length.tolist() == [len(rows) for rows in turns]
    assert {*data.length.tolist()} == {10, 12}
    for row, expected in enumerate(turns):
        for column, values in zip(
            (data.index, data.turn, data.unparsed), zip(*expected, strict=True), strict=True
        ):
            assert column[row].tolist() == [*values, *[False] * (12 - len(values))]
    problem = clusters(ended).tolist()
    after = [[], []]
    for r, rows in enumerate(turns):
        for (before, _, _), (_, right, _) in itertools.pairwise(rows):
            after[not before].append((r, problem[r], right))
    for estimate, events in zip((found.after_right, found.after_wrong), after, strict=True):
        expected = pooled(events)
        assert (estimate.value, estimate.low, estimate.high) == pytest.approx(
            (expected.value, expected.low, expected.high)
        )
        assert (estimate.attempts, estimate.problems) == (expected.attempts, expected.problems)
    early = pooled(
        [(r, problem[r], rows[t][1]) for r, rows in enumerate(turns) for t in range(len(rows) // 2)]
    )
    assert found.trend.early == pytest.approx(early)


def test_the_survival_band_is_that_of_each_rollouts_influence(stored) -> None:
    """Greenwood's variance, summed by problem, from a table of rollouts × turns."""
    own = [o for o in stored if o.details["per_turn"] == 1]
    fault = {
        problem: at
        for at, problem in zip((2, 5, 9), sorted({o.problem for o in own}), strict=False)
    }

    def slip(o: Outcome) -> Outcome:
        # all samples of a problem err together, so that they are correlated
        at = fault.get(o.problem, 99)
        parsed = [n + (turn >= at) for turn, n in enumerate(o.details["parsed"])]
        return o._replace(details={**o.details, "parsed": parsed})

    data = rollouts([slip(o) for o in own])
    curve, error = horizon(data).survival, data.first_error
    t = 12
    value, influence = 1.0, np.zeros(len(data))
    for turn in range(1, t + 1):
        at_risk, events = int((error >= turn).sum()), int((error == turn).sum())
        value *= 1 - events / at_risk
        influence += ((error == turn) - (error >= turn) * events / at_risk) / (at_risk - events)
    by_problem = np.array([influence[data.problem == p].sum() for p in range(5)])
    variance = float(((value * by_problem) ** 2).sum()) * 5 / 4
    wrong = error <= t
    rarer = len(np.unique(data.problem[wrong == (value > 0.5)]))
    low, high = wilson(value, effective_sample(value, variance, len(data), 5, rarer, 0.95), 0.95)
    assert curve.size[-1] == 12
    assert curve.value[-1] == pytest.approx(value)
    assert curve.low[-1] == pytest.approx(min(low, curve.low[-2]))
    assert curve.high[-1] == pytest.approx(high)


def test_correlations_of_parts_are_those_of_all(monkeypatch) -> None:
    rng = np.random.default_rng(5)
    attempts = rng.integers(1, 6, 300)
    easy = rng.random((300, 1)) + np.linspace(0, 0.7, 9)
    right = np.minimum(attempts[:, None], (easy * attempts[:, None]).astype(np.int64)).astype(
        np.uint8
    )
    whole = simultaneous_level(right, 0.95, attempts)
    corr = np.corrcoef(right / attempts[:, None], rowvar=False)
    drawn = np.random.default_rng(0).standard_normal((4000, 9))
    values, vectors = np.linalg.eigh(corr)
    largest = np.quantile(np.abs(drawn @ (vectors * np.sqrt(values.clip(0))).T).max(axis=1), 0.95)
    assert whole == pytest.approx(2 * stats.norm.cdf(largest) - 1, abs=2e-4)
    monkeypatch.setattr("ponder.stats.frontier.CHUNK", 7)
    assert simultaneous_level(right, 0.95, attempts) == pytest.approx(whole, abs=2e-4)


def test_a_long_table_of_attempts_is_thinned_with_its_ends(stored, monkeypatch) -> None:
    own = [o for o in stored if o.details["per_turn"] == 1]
    own[7] = own[7]._replace(thinking_tokens=99_999)
    whole = effort.Effort().estimate(own)
    monkeypatch.setattr(effort, "MAX_LISTED", 8)
    few = effort.Effort().estimate(shuffled(own))
    assert len(whole["attempts"]) == 30
    assert len(few["attempts"]) in range(8, 11)
    assert all(row in whole["attempts"] for row in few["attempts"])
    assert few["attempts"][-1] == whole["attempts"][-1]
    assert max(r["tokens"] for r in few["attempts"]) == 99_999
    assert {k: v for k, v in few.items() if k != "attempts"} == {
        k: v for k, v in whole.items() if k != "attempts"
    }


def test_a_setting_is_read_once_for_a_cell(stored) -> None:
    read = _variants.setting_reader("per_turn")
    assert [read(o) for o in stored] == [_variants.setting(o, "per_turn") for o in stored]
