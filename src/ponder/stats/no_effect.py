"""Decide whether two settings of one model write different replies, problem by problem.

Replies that are the same in every attempt are certain. Otherwise it is a test of equivalence, two
one-sided tests at 5 % (Schuirmann 1987): the 90 % interval of the ratio of output tokens must lie
within ±10 %, and that of the difference in accuracy within ±10 points. A difference that is found at
5 % is a difference, however small. Both are corrected for the number of comparisons (Bonferroni).

A variant whose tokens truly differ by 25 % was taken for an ignored one in none of 4,000 simulated
runs of 40 or 100 problems. An ignored dial is found in 30 % and 89 % of runs of 40 and 100 problems
if replies to one problem vary little (sigma 0.2 of their log) and are right, in 0 % and 21 % if they
vary more (0.35); with four samples per problem in 98 % and 99 %, and in 54 % and 99 %. Where
accuracy is 80 %, it takes more. tests/test_no_effect.py has a shorter form.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from ponder.core import Estimate, Outcome
from ponder.stats.compare import difference_in_accuracy
from ponder.stats.corrections import FALSE_RATE
from ponder.stats.effort import EXTRAPOLATED
from ponder.stats.ratios import pair, token_logs

MOST_RATIO = 1.1  # of output tokens, either way, that counts as none
MOST_DIFFERENCE = 0.1  # in accuracy that counts as none
FEWEST_PROBLEMS = 5  # for a test, and of identical replies that leave no doubt

# "none": no effect was shown; "some": an effect was shown; "open": neither.
Shown: TypeAlias = Literal["none", "some", "open"]


@dataclass(frozen=True, slots=True)
class Effect:
    """How the replies under a second setting differ from those under a first."""

    shown: Shown
    tokens: tuple[float, float]  # output tokens of a reply under each, geometric means
    ratio: Estimate  # second / first, with the interval that was tested for equivalence
    accuracy: Estimate  # second − first, likewise
    identical: int  # attempts, if all replies are the same; 0 if not


def effect(
    first: Sequence[Outcome], second: Sequence[Outcome], comparisons: int = 1
) -> Effect | None:
    """Compare the attempts under two settings at one task; None if they can't be compared.

    `comparisons` is the number of pairs of settings that are tested.
    """
    matched = pair(first, second, "output")
    if matched is None or matched.problems < FEWEST_PROBLEMS:
        return None
    logs = token_logs(matched)
    if logs is None:
        return None
    ratio = logs.overall[1].over(logs.overall[0])
    difference = difference_in_accuracy(matched.first.variant, matched.second.variant)
    narrow = 1 - 2 * FALSE_RATE / comparisons
    wide = 1 - FALSE_RATE / 2 / comparisons  # of either of the two
    identical = _identical(first, second)
    shown: Shown = "open"
    if identical:
        shown = "none"
    elif (
        not _includes(ratio(wide), 1.0)
        or not _includes(difference(wide), 0.0)
        or _thinks(first) != _thinks(second)
    ):
        shown = "some"
    elif (
        _within(ratio(narrow), 1 / MOST_RATIO, MOST_RATIO)
        and _within(difference(narrow), -MOST_DIFFERENCE, MOST_DIFFERENCE)
        # The tokens of truncated replies are extrapolated from the others.
        and max(side.data.truncated.mean() for side in matched.sides) <= EXTRAPOLATED
    ):
        shown = "none"
    tokens = (logs.overall[0].interval().value, logs.overall[1].interval().value)
    return Effect(shown, tokens, ratio(narrow), difference(narrow), identical)


def _includes(estimate: Estimate, value: float) -> bool:
    return estimate.low <= value <= estimate.high


def _within(estimate: Estimate, low: float, high: float) -> bool:
    return low <= estimate.low and estimate.high <= high


def _thinks(outcomes: Sequence[Outcome]) -> bool:
    return any(outcome.thinking_tokens for outcome in outcomes)


def _identical(first: Sequence[Outcome], second: Sequence[Outcome]) -> int:
    """Return how many attempts both made with the same tokens and result; 0 if some differ.

    Two truncated replies say nothing: both have the length of the budget.
    """
    replies = []
    for outcomes in (first, second):
        table = {}
        for o in outcomes:
            if o.answered:
                attempt = (o.cell.training_seeds, o.size, o.problem, o.sample)
                table[attempt] = (o.ended, o.thinking_tokens, o.answer_tokens)
        replies.append(table)
    common = replies[0].keys() & replies[1].keys()
    complete = []
    for attempt in common:
        if replies[0][attempt] != replies[1][attempt]:
            return 0
        if replies[0][attempt][0] != "truncated":
            complete.append(attempt)
    problems = {(size, problem) for _, size, problem, _ in complete}
    if len(problems) < FEWEST_PROBLEMS:
        return 0
    return len(complete)
