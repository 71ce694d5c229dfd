"""Compares two models on the same problems: accuracy, tokens, critical size and the cost of a right
answer.

    compare(outcomes_of_a, outcomes_of_b, margin=0.03).verdict

A is the reference. A difference is B less A, a ratio B over A; everything is paired by problem.
Accuracy: Tango's (1998) interval with one attempt per problem, Bonett and Price's (2012) on the
problems' means with several, widened by training seeds. The p-values of all rows are corrected
together (Benjamini & Hochberg 1995). "Not worse by more than the margin" is a test of its own, that
the interval of the difference lies above minus the margin.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import numpy as np

from ponder.core import Estimate, Outcome, Prices, TokenKind
from ponder.core.text import count
from ponder.stats.columns import FEWEST_PAIRS, Bools
from ponder.stats.corrections import FALSE_RATE, benjamini_hochberg, p_value
from ponder.stats.effort import EXTRAPOLATED
from ponder.stats.frontier import Variant, Verdict, accuracy_difference, fraction, verdict
from ponder.stats.paired import tango
from ponder.stats.power import Components, of_two, problems_for_margin
from ponder.stats.ratios import (
    Log,
    Pair,
    TokenLogs,
    both_right,
    critical_ratio,
    pair,
    per_right,
    token_logs,
)

Quantity: TypeAlias = Literal[
    "accuracy",
    "tokens",
    "tokens at the smallest size",
    "tokens at the largest size",
    "tokens where both are right",
    "critical size",
    "tokens per right answer",
    "money per right answer",
]

CLIFF = "accuracy may fall within one step of sizes, so it is compared without pairing; sizes in between would tell more"


FEW = f"fewer than {FEWEST_PAIRS} problems in common"
FEW_OF_SIZE = f"fewer than {FEWEST_PAIRS} problems of that size in common"


@dataclass(frozen=True, slots=True)
class Row:
    """One quantity of both models, and how B differs from A."""

    quantity: Quantity
    first: Estimate  # A
    second: Estimate  # B
    effect: Estimate  # B less A, or B over A
    ratio: bool  # whether it is B over A
    p_value: float  # of no difference
    q_value: float = math.nan  # corrected for all rows
    note: str = ""  # what a reader should know of it

    @property
    def differs(self) -> bool:
        return self.q_value <= FALSE_RATE


@dataclass(frozen=True, slots=True)
class SizeRow:
    """Both models at one size, pointwise."""

    size: float
    first: Estimate  # accuracy of A
    second: Estimate
    difference: Estimate  # B less A; from −1 to 1 if there are fewer than three problems
    # B over A, from the fitted curves; None too if there are fewer than three problems
    tokens: Estimate | None
    # problems that A got right and B wrong; with several attempts, A more often right than B
    only_first: int
    only_second: int
    extrapolated: bool  # more than 20 % of the attempts of one of them were truncated


@dataclass(frozen=True, slots=True)
class PairComparison:
    """What the problems say that both models answered."""

    problems: int
    sizes: tuple[float, ...]
    attempts: tuple[int, int]
    seeds: tuple[int, int]  # training seeds; 0: not trained
    left_out: tuple[int, int]  # problems that only one of them answered
    failed: tuple[int, int]  # attempts
    rows: tuple[Row, ...]
    omitted: tuple[tuple[Quantity, str], ...]  # rows that make no sense here, and why
    by_size: tuple[SizeRow, ...]
    margin: float
    verdict: Verdict
    components: Components  # variances of the difference in accuracy
    # that would decide, if the difference is as measured; infinite: none would; 0: decided
    more_problems: float

    def row(self, quantity: Quantity) -> Row | None:
        return next((row for row in self.rows if row.quantity == quantity), None)


def compare(
    first: Sequence[Outcome],
    second: Sequence[Outcome],
    margin: float = 0.03,
    tokens: TokenKind = "output",
    prices: tuple[Prices | None, Prices | None] = (None, None),
) -> PairComparison | None:
    """Of two models on one task, A first; None if they answered no problem in common."""
    return (compare_tasks([(first, second)], margin, tokens, prices) or [None])[0]


def compare_tasks(
    tasks: Sequence[tuple[Sequence[Outcome], Sequence[Outcome]]],
    margin: float = 0.03,
    tokens: TokenKind = "output",
    prices: tuple[Prices | None, Prices | None] = (None, None),
) -> list[PairComparison | None]:
    """Of two models on several tasks, with one correction for all."""
    pairs = [pair(first, second, tokens, prices) for first, second in tasks]
    found = [_rows(one) if one else None for one in pairs]
    q = iter(benjamini_hochberg([row.p_value for one in found if one for row in one[0]]))
    results: list[PairComparison | None] = []
    for one, rows in zip(pairs, found, strict=True):
        if one is None or rows is None:
            results.append(None)
        else:
            corrected = tuple(replace(row, q_value=next(q)) for row in rows[0])
            results.append(_comparison(one, corrected, tuple(rows[1]), rows[2], margin))
    return results


def _comparison(
    pair: Pair,
    rows: tuple[Row, ...],
    omitted: tuple[tuple[Quantity, str], ...],
    curves: TokenLogs | None,
    margin: float,
) -> PairComparison:
    first, second = pair.sides
    variances, difference = of_two(second.variant, first.variant), rows[0].effect
    found = verdict(difference, margin, rows[0].differs)
    return PairComparison(
        problems=pair.problems,
        sizes=tuple(pair.sizes.tolist()),
        attempts=(len(first.data), len(second.data)),
        seeds=(len(first.variant.seeds), len(second.variant.seeds)),
        left_out=(first.left_out, second.left_out),
        failed=(first.failed, second.failed),
        rows=rows,
        omitted=omitted,
        by_size=tuple(_by_size(pair, curves)),
        margin=margin,
        verdict=found,
        components=variances,
        more_problems=_more(pair, variances, difference, margin) if found == "open" else 0.0,
    )


def difference_in_accuracy(first: Variant, second: Variant) -> Callable[[float], Estimate]:
    """B less A, as a function of the level."""
    attempts = len(first.correct) + len(second.correct)
    own = [v.by_problem(v.correct) for v in (first, second)]
    if attempts == len(own[0]) + len(own[1]):
        return lambda level: tango(own[1], own[0], level)
    return lambda level: replace(accuracy_difference(second, first, level), attempts=attempts)


def _rows(pair: Pair) -> tuple[list[Row], list[tuple[Quantity, str]], TokenLogs | None]:
    first, second = pair.sides
    apart = difference_in_accuracy(first.variant, second.variant)
    own = [fraction(side.variant, side.variant.correct) for side in pair.sides]
    rows, omitted = (
        [Row("accuracy", own[0], own[1], apart(0.95), False, p_value(apart))],
        list[tuple[Quantity, str]](),
    )
    curves = token_logs(pair)
    if pair.problems < FEWEST_PAIRS:
        omitted += [
            (quantity, FEW) for quantity in ("tokens", "critical size", "tokens per right answer")
        ]
        return rows, omitted, curves
    if curves is None:
        omitted.append(("tokens", "one of them has no tokens, or no attempt that ended by itself"))
    else:
        note = (
            f"without {count(curves.left_out, 'problem')} at which one of them used none"
            if curves.left_out
            else ""
        )
        rows.append(replace(_ratio("tokens", *curves.overall), note=note))
    solved = both_right(pair)
    if solved:
        rows.append(_ratio("tokens where both are right", *solved))
    else:
        omitted.append(
            (
                "tokens where both are right",
                "both are right, with tokens, on fewer than five problems",
            )
        )
    if len(pair.sizes) < 2:
        omitted.append(("tokens at the largest size", "all problems have one size"))
    elif curves:
        ends: tuple[tuple[Quantity, int], ...] = (
            ("tokens at the smallest size", 0),
            ("tokens at the largest size", -1),
        )
        for quantity, k in ends:
            if curves.by_size[k][0].problems < FEWEST_PAIRS:
                omitted.append((quantity, FEW_OF_SIZE))
            else:
                rows.append(_ratio(quantity, *curves.by_size[k]))
    critical = critical_ratio(pair)
    if isinstance(critical, str):
        omitted.append(("critical size", critical))
    else:
        p = p_value(critical.ratio, 1.0)
        sizes = critical.first, critical.second, critical.ratio(0.95)
        rows.append(Row("critical size", *sizes, True, p, note="" if critical.paired else CLIFF))
    spent = per_right(first), per_right(second)
    if spent[0] and spent[1]:
        rows.append(_ratio("tokens per right answer", spent[0], spent[1]))
    else:
        omitted.append(("tokens per right answer", "one of them has no right answer, or no tokens"))
    _money(pair, rows, omitted)
    return rows, omitted, curves


def _money(pair: Pair, rows: list[Row], omitted: list[tuple[Quantity, str]]) -> None:
    costs = [per_right(side, side.cost) for side in pair.sides if side.cost is not None]
    if len(costs) < 2:
        unknown = "neither has" if not costs else "only one of them has"
        omitted.append(("money per right answer", f"{unknown} `prices`"))
    elif costs[0] and costs[1]:
        rows.append(_ratio("money per right answer", costs[0], costs[1]))


def _ratio(quantity: Quantity, first: Log, second: Log) -> Row:
    ratio = second.over(first)
    return Row(
        quantity, first.interval(), second.interval(), ratio(0.95), True, p_value(ratio, 1.0)
    )


def _by_size(pair: Pair, curves: TokenLogs | None) -> list[SizeRow]:
    size_of, rows = pair.first.data.size_of_problem, []
    for k, size in enumerate(pair.sizes.tolist()):
        first, second = (_at(side.variant, size_of == k) for side in pair.sides)
        one, other = (v.by_problem(v.correct) for v in (first, second))
        cut = max(float(side.data.truncated[side.data.size == size].mean()) for side in pair.sides)
        ratio = None
        if (
            curves
            and len(curves.by_size) == len(pair.sizes)
            and curves.by_size[k][0].problems >= FEWEST_PAIRS
        ):
            ratio = curves.by_size[k]
        rows.append(
            SizeRow(
                size=size,
                first=fraction(first, first.correct),
                second=fraction(second, second.correct),
                difference=difference_in_accuracy(first, second)(0.95),
                tokens=ratio[1].over(ratio[0])(0.95) if ratio else None,
                only_first=int(np.count_nonzero(one > other)),
                only_second=int(np.count_nonzero(other > one)),
                extrapolated=cut > EXTRAPOLATED,
            )
        )
    return rows


def _at(variant: Variant, problems: Bools) -> Variant:
    """The attempts at these problems."""
    rows = problems[variant.problem]
    number = np.cumsum(problems) - 1
    return replace(
        variant,
        seed=variant.seed[rows],
        problem=number[variant.problem[rows]],
        tokens=variant.tokens[rows],
        correct=variant.correct[rows],
    )


def _more(pair: Pair, variances: Components, difference: Estimate, margin: float) -> float:
    """Problems to add until the margin, or the difference itself, would be shown in 80 % of runs,
    if it is real.
    """
    samples = max(
        1,
        round(
            min(len(s.data) / s.data.problems / max(1, len(s.variant.seeds)) for s in pair.sides)
        ),
    )
    seeds = max(1, *(len(s.variant.seeds) for s in pair.sides))
    value = difference.value
    ways = [problems_for_margin(variances, margin, samples, seeds, difference=value)]
    ways.append(problems_for_margin(variances, 0.0, samples, seeds, difference=abs(value)))
    return max(1.0, min(ways) - pair.problems)
