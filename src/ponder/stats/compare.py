"""Compare two models on the same problems: accuracy, tokens, critical size, cost of a right answer.

    compare(outcomes_of_a, outcomes_of_b, margin=0.03).verdict

A is the reference. A difference is B − A, a ratio B / A; everything is paired by problem.
Accuracy: Tango's (1998) interval with one attempt per problem, Bonett and Price's (2012) on the
problems' means with several, widened by training seeds. The p-values of all rows are corrected
together (Benjamini & Hochberg 1995). "Not worse by more than the margin" is a test of its own, that
the interval of the difference lies above minus the margin.

If the verdict answers a question that was fixed beforehand, such as a gate's, its p-value is
corrected for the tasks alone, not for the other rows. After an adaptive run, intervals and p-values
are those that are valid at each of its analyses.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import numpy as np

from ponder.core import Estimate, Outcome, Resource
from ponder.core.text import count
from ponder.stats.columns import FEWEST_PAIRS, Bools
from ponder.stats.corrections import FALSE_RATE, benjamini_hochberg, p_value
from ponder.stats.designs.sequential import nominal_level, valid_p_value
from ponder.stats.distributions import z_quantile
from ponder.stats.effort import EXTRAPOLATED
from ponder.stats.frontier import Variant, Verdict, accuracy_difference, fraction, verdict
from ponder.stats.paired import tango
from ponder.stats.power import POWER, Components, of_two, problems_for_margin
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

MONEY_PER_RIGHT: Quantity = "money per right answer"
CLIFF = (
    "accuracy may fall within one step of sizes, so it is compared without pairing; "
    "sizes in between would tell more"
)
FEW = f"fewer than {FEWEST_PAIRS} problems in common"
FEW_OF_SIZE = f"fewer than {FEWEST_PAIRS} problems of that size in common"
FEW_SOLVED = "both are right, with tokens, on fewer than five problems"
NO_TOKENS = "one of them has no tokens, or no attempt that ended by itself"
LEVEL = 0.95
NO_RIGHT_ANSWER = "one of them has no right answer, or no tokens"


@dataclass(frozen=True, slots=True)
class Row:
    """One quantity of both models, and how B differs from A."""

    quantity: Quantity
    first: Estimate  # A
    second: Estimate  # B
    effect: Estimate  # B − A, or B / A
    ratio: bool  # whether it is B / A
    p_value: float  # of no difference
    q_value: float = math.nan  # corrected for all rows
    note: str = ""  # a caveat for the reader

    @property
    def differs(self) -> bool:
        return self.q_value <= FALSE_RATE


@dataclass(frozen=True, slots=True)
class SizeRow:
    """Both models at one size, pointwise."""

    size: float
    first: Estimate  # accuracy of A
    second: Estimate
    difference: Estimate  # B − A; from −1 to 1 if there are fewer than three problems
    # B / A, from the fitted curves; None too if there are fewer than three problems
    tokens: Estimate | None
    # problems that A got right and B wrong; with several attempts, A more often right than B
    only_first: int
    only_second: int
    extrapolated: bool  # more than 20 % of the attempts of one of them were truncated


@dataclass(frozen=True, slots=True)
class PairComparison:
    """The comparison on the problems that both models answered."""

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
        """Return the row of a quantity, if it could be compared."""
        for row in self.rows:
            if row.quantity == quantity:
                return row
        return None


def compare(
    first: Sequence[Outcome],
    second: Sequence[Outcome],
    margin: float = 0.03,
    resource: Resource = "output",
    *,
    money: bool = False,
) -> PairComparison | None:
    """Compare two models on one task, A first; None if they answered no problem in common."""
    return compare_tasks([(first, second)], margin, resource, money=money)[0]


def compare_tasks(
    tasks: Sequence[tuple[Sequence[Outcome], Sequence[Outcome]]],
    margin: float = 0.03,
    resource: Resource = "output",
    *,
    money: bool = False,
    planned: bool = False,
    analyses: int = 1,
) -> list[PairComparison | None]:
    """Compare two models on several tasks, with one correction for all.

    `planned`: the verdict was asked for beforehand, so accuracy is corrected for the tasks alone.
    `analyses`: at how many an adaptive run may have ended.
    """
    quantities: list[_Quantities | None] = []
    for first, second in tasks:
        matched = pair(first, second, resource, money=money)
        quantities.append(_Quantities(matched, analyses) if matched else None)
    q_values = iter(_q_values([task.rows for task in quantities if task], planned))
    results: list[PairComparison | None] = []
    for task in quantities:
        if task is None:
            results.append(None)
            continue
        rows = []
        for row, q in zip(task.rows, next(q_values), strict=True):
            rows.append(replace(row, q_value=q))
        results.append(_comparison(task, rows, margin))
    return results


def _q_values(tasks: Sequence[Sequence[Row]], planned: bool) -> list[list[float]]:
    """Return the q-values of each task's rows; `planned`: those of accuracy corrected by itself."""
    accuracies = [rows[0].p_value for rows in tasks]
    others = [row.p_value for rows in tasks for row in rows[1:]]
    if planned:
        corrected = [*benjamini_hochberg(accuracies), *benjamini_hochberg(others)]
    else:
        corrected = benjamini_hochberg([*accuracies, *others])
    start = len(accuracies)
    q_values = []
    for number, rows in enumerate(tasks):
        end = start + len(rows) - 1
        q_values.append([corrected[number], *corrected[start:end]])
        start = end
    return q_values


def planned_verdicts(pairs: Sequence[Pair], margin: float, analyses: int = 1) -> list[Verdict]:
    """Return the verdict on each task as `compare_tasks(…, planned=True)` does, and nothing else."""
    level = nominal_level(LEVEL, analyses)
    effects = []
    p_values = []
    for of_task in pairs:
        difference = difference_in_accuracy(of_task.first.variant, of_task.second.variant)
        effect = difference(level)
        effects.append(effect)
        if effect.low <= 0 <= effect.high:
            p_values.append(1.0)  # not below the rate of false findings, so it corrects no other
        else:
            p_values.append(valid_p_value(p_value(difference), analyses))
    verdicts = []
    for effect, q in zip(effects, benjamini_hochberg(p_values), strict=True):
        verdicts.append(verdict(effect, margin, q <= FALSE_RATE))
    return verdicts


def _comparison(
    quantities: _Quantities, corrected_rows: Sequence[Row], margin: float
) -> PairComparison:
    """Return the comparison with its verdict; the rows have their q-values."""
    pair = quantities.pair
    first, second = pair.sides
    accuracy = corrected_rows[0]
    variances = of_two(second.variant, first.variant)
    judged = verdict(accuracy.effect, margin, accuracy.differs)
    more_problems = 0.0
    if judged == "open":
        value = accuracy.effect.value
        more_problems = _more_problems(pair, variances, value, margin, quantities.level)
    return PairComparison(
        problems=pair.problems,
        sizes=tuple(pair.sizes.tolist()),
        attempts=(len(first.data), len(second.data)),
        seeds=(len(first.variant.seeds), len(second.variant.seeds)),
        left_out=(first.left_out, second.left_out),
        failed=(first.failed, second.failed),
        rows=tuple(corrected_rows),
        omitted=tuple(quantities.omitted),
        by_size=tuple(_by_size(pair, quantities.curves, quantities.level)),
        margin=margin,
        verdict=judged,
        components=variances,
        more_problems=more_problems,
    )


def difference_in_accuracy(first: Variant, second: Variant) -> Callable[[float], Estimate]:
    """Return B − A as a function of the level."""
    attempts = len(first.correct) + len(second.correct)
    first_right = first.by_problem(first.correct)
    second_right = second.by_problem(second.correct)
    if attempts == len(first_right) + len(second_right):  # one attempt per problem
        return lambda level: tango(second_right, first_right, level)
    return lambda level: replace(accuracy_difference(second, first, level), attempts=attempts)


class _Quantities:
    """The quantities that can be compared, as rows, and those that can't, each with a reason."""

    def __init__(self, pair: Pair, analyses: int = 1) -> None:
        self.pair = pair
        self.analyses = analyses
        self.level = nominal_level(LEVEL, analyses)
        self.rows: list[Row] = []
        self.omitted: list[tuple[Quantity, str]] = []
        self.curves = token_logs(pair)
        self._add_accuracy()
        if pair.problems < FEWEST_PAIRS:
            self.omitted.append(("tokens", FEW))
            self.omitted.append(("critical size", FEW))
            self.omitted.append(("tokens per right answer", FEW))
            return
        self._add_tokens()
        self._add_tokens_where_both_are_right()
        self._add_tokens_by_size()
        self._add_critical_size()
        self._add_tokens_per_right()
        self._add_money_per_right()

    def _add_accuracy(self) -> None:
        first = self.pair.first.variant
        second = self.pair.second.variant
        difference = difference_in_accuracy(first, second)
        self.rows.append(
            Row(
                quantity="accuracy",
                first=fraction(first, first.correct, self.level),
                second=fraction(second, second.correct, self.level),
                effect=difference(self.level),
                ratio=False,
                p_value=self._p_value(difference),
            )
        )

    def _p_value(self, interval: Callable[[float], Estimate], null: float = 0.0) -> float:
        return valid_p_value(p_value(interval, null), self.analyses)

    def _ratio(self, quantity: Quantity, first: Log, second: Log) -> Row:
        """Return the row of B / A."""
        ratio = second.over(first)
        return Row(
            quantity=quantity,
            first=first.interval(self.level),
            second=second.interval(self.level),
            effect=ratio(self.level),
            ratio=True,
            p_value=self._p_value(ratio, 1.0),
        )

    def _add_tokens(self) -> None:
        if self.curves is None:
            self.omitted.append(("tokens", NO_TOKENS))
            return
        row = self._ratio("tokens", *self.curves.overall)
        if self.curves.left_out:
            problems = count(self.curves.left_out, "problem")
            row = replace(row, note=f"without {problems} at which one of them used none")
        self.rows.append(row)

    def _add_tokens_where_both_are_right(self) -> None:
        solved = both_right(self.pair)
        if solved:
            self.rows.append(self._ratio("tokens where both are right", *solved))
        else:
            self.omitted.append(("tokens where both are right", FEW_SOLVED))

    def _add_tokens_by_size(self) -> None:
        if len(self.pair.sizes) < 2:
            self.omitted.append(("tokens at the largest size", "all problems have one size"))
        elif self.curves:
            self._add_tokens_at("tokens at the smallest size", self.curves.by_size[0])
            self._add_tokens_at("tokens at the largest size", self.curves.by_size[-1])

    def _add_tokens_at(self, quantity: Quantity, logs: tuple[Log, Log]) -> None:
        if logs[0].problems < FEWEST_PAIRS:
            self.omitted.append((quantity, FEW_OF_SIZE))
        else:
            self.rows.append(self._ratio(quantity, *logs))

    def _add_critical_size(self) -> None:
        critical = critical_ratio(self.pair, level=self.level)
        if isinstance(critical, str):
            self.omitted.append(("critical size", critical))
            return
        self.rows.append(
            Row(
                quantity="critical size",
                first=critical.first,
                second=critical.second,
                effect=critical.ratio(self.level),
                ratio=True,
                p_value=self._p_value(critical.ratio, 1.0),
                note="" if critical.paired else CLIFF,
            )
        )

    def _add_tokens_per_right(self) -> None:
        first = per_right(self.pair.first)
        second = per_right(self.pair.second)
        if first and second:
            self.rows.append(self._ratio("tokens per right answer", first, second))
        else:
            self.omitted.append(("tokens per right answer", NO_RIGHT_ANSWER))

    def _add_money_per_right(self) -> None:
        if self.pair.first.variant.resource in ("cost", "seconds"):
            return
        priced = [side for side in self.pair.sides if side.cost is not None]
        if not priced:
            self.omitted.append((MONEY_PER_RIGHT, "neither has `prices`"))
            return
        if len(priced) == 1:
            self.omitted.append((MONEY_PER_RIGHT, "only one of them has `prices`"))
            return
        first = per_right(self.pair.first, self.pair.first.cost)
        second = per_right(self.pair.second, self.pair.second.cost)
        if first and second:
            self.rows.append(self._ratio(MONEY_PER_RIGHT, first, second))


def _by_size(pair: Pair, curves: TokenLogs | None, level: float) -> list[SizeRow]:
    """Return both models at each size."""
    size_of = pair.first.data.size_of_problem
    rows = []
    for k, size in enumerate(pair.sizes.tolist()):
        first = _at(pair.first.variant, size_of == k)
        second = _at(pair.second.variant, size_of == k)
        first_right = first.by_problem(first.correct)
        second_right = second.by_problem(second.correct)
        truncated = []
        for side in pair.sides:
            truncated.append(float(side.data.truncated[side.data.size == size].mean()))
        tokens = None
        if curves and len(curves.by_size) == len(pair.sizes):
            first_log, second_log = curves.by_size[k]
            if first_log.problems >= FEWEST_PAIRS:
                tokens = second_log.over(first_log)(level)
        rows.append(
            SizeRow(
                size=size,
                first=fraction(first, first.correct, level),
                second=fraction(second, second.correct, level),
                difference=difference_in_accuracy(first, second)(level),
                tokens=tokens,
                only_first=int(np.count_nonzero(first_right > second_right)),
                only_second=int(np.count_nonzero(second_right > first_right)),
                extrapolated=max(truncated) > EXTRAPOLATED,
            )
        )
    return rows


def _at(variant: Variant, problems: Bools) -> Variant:
    """Return the attempts at these problems, renumbered from 0."""
    rows = problems[variant.problem]
    number = np.cumsum(problems) - 1
    return replace(
        variant,
        seed=variant.seed[rows],
        problem=number[variant.problem[rows]],
        tokens=variant.tokens[rows],
        correct=variant.correct[rows],
    )


def _more_problems(
    pair: Pair, variances: Components, difference: float, margin: float, level: float
) -> float:
    """Return the problems to add until 80 % of runs would decide, if the difference is real.

    They decide when they show the margin, or the difference itself. A higher level than 95 %, as
    after an adaptive run, takes more of them, by the square of the standard errors.
    """
    seeds = 1
    samples_per_seed = []
    for side in pair.sides:
        side_seeds = max(1, len(side.variant.seeds))
        seeds = max(seeds, side_seeds)
        samples_per_seed.append(len(side.data) / side.data.problems / side_seeds)
    samples = max(1, round(min(samples_per_seed)))
    for_margin = problems_for_margin(variances, margin, samples, seeds, difference=difference)
    for_difference = problems_for_margin(variances, 0.0, samples, seeds, difference=abs(difference))
    needed = min(for_margin, for_difference)
    if level > LEVEL:
        standard_errors = z_quantile((1 + level) / 2) + z_quantile(POWER)
        usual = z_quantile((1 + LEVEL) / 2) + z_quantile(POWER)
        needed *= (standard_errors / usual) ** 2
    return max(1.0, needed - pair.problems)
