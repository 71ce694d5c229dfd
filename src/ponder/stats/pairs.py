"""Two models on the same problems: their attempts at the problems that both answered, matched by size and problem."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ponder.core import Bill, Outcome, Prices, TokenKind
from ponder.stats.columns import Columns, Floats, columns
from ponder.stats.frontier import Variant, variants


@dataclass(frozen=True)
class Side:
    """One of the two models, on the common problems, which are numbered alike on both sides."""

    data: Columns
    variant: Variant
    cost: Floats | None  # money per attempt, by problem; None: no prices
    left_out: int  # problems that it answered and the other did not
    failed: int  # attempts

    @property
    def right(self) -> Floats:
        """The fraction right, by problem."""
        return self.variant.by_problem(self.variant.correct)

    @property
    def single(self) -> bool:
        """Whether it has one attempt per problem."""
        return len(self.data) == self.data.problems


@dataclass(frozen=True)
class Pair:
    first: Side
    second: Side

    @property
    def problems(self) -> int:
        return self.first.data.problems

    @property
    def sizes(self) -> Floats:
        return np.unique(self.first.data.size)

    @property
    def sides(self) -> tuple[Side, Side]:
        return self.first, self.second


def pair(
    first: Sequence[Outcome],
    second: Sequence[Outcome],
    tokens: TokenKind = "output",
    prices: tuple[Prices | None, Prices | None] = (None, None),
) -> Pair | None:
    """The outcomes of two models on one task; None if they have no problem in common.

    A problem counts if every training seed of both models answered it.
    """
    matched = variants({"A": first, "B": second}, tokens)
    if len(matched.variants) < 2:
        return None
    answered = [_answered(outcomes) for outcomes in (first, second)]
    common = set.intersection(*(problems for by_seed in answered for problems in by_seed))
    sides = []
    for outcomes, by_seed, variant, price in zip((first, second), answered, matched.variants, prices, strict=True):
        kept = [o for o in outcomes if (o.size, o.problem) in common]
        sides.append(
            Side(
                data=columns(kept, tokens, pooled=True),
                variant=variant,
                cost=_cost(kept, price) if price else None,
                left_out=len(set.union(*by_seed) - common),
                failed=sum(o.ended == "failed" for o in outcomes),
            )
        )
    return Pair(*sides)


def _answered(outcomes: Sequence[Outcome]) -> list[set[tuple[int, str]]]:
    """Return the problems that each training seed answered."""
    by_seed: dict[tuple[int, ...], set[tuple[int, str]]] = {}
    for o in outcomes:
        if o.answered:
            by_seed.setdefault(o.cell.training_seeds, set()).add((o.size, o.problem))
    return list(by_seed.values())


def _cost(outcomes: Sequence[Outcome], prices: Prices) -> Floats:
    """The mean cost of an attempt, by problem."""
    paid: dict[tuple[int, str], list[float]] = {}
    for o in outcomes:
        if o.answered:
            bill = Bill(o.prompt_tokens, o.thinking_tokens, o.answer_tokens, cached_tokens=o.cached_tokens)
            paid.setdefault((o.size, o.problem), []).append(prices.cost(bill))
    return np.array([np.mean(sorted(paid[problem])) for problem in sorted(paid)], dtype=np.float64)
