"""Comparisons at their edges: no tokens, no upper end."""

from __future__ import annotations

import math

from test_compare import attempts, outcome

from ponder.figures.compare import Compare
from ponder.stats.compare import compare


def test_problems_without_tokens_are_told() -> None:
    one, other = attempts("a", 20, 1), attempts("b", 20, 1)
    lazy = [o._replace(thinking_tokens=0, answer_tokens=0) if o.problem.endswith("1") else o for o in one]
    dropped = len({o.problem for o in one if o.problem.endswith("1")})
    found = compare(lazy, other)
    assert found.row("tokens").note == f"without {dropped} problems at which one of them used none"
    assert found.row("tokens where both are right").effect.value < 2


def test_a_ratio_without_an_upper_end_is_infinite() -> None:
    one, other = (
        [outcome(model, size, f"p{size}", 100, size < limit) for size in (4, 6, 8, 12, 16)]
        for model, limit in (("a", 10), ("b", 14))
    )
    assert compare(one, other).row("critical size").effect.high == math.inf
    outcomes = [*one, *other]
    Compare().draw(Compare().estimate(outcomes)).to_dict()
