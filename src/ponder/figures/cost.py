"""Draws accuracy against money or seconds per answer, one labelled dot per setting, with the frontier
and each setting's chance to be on it.

This is the figure `frontier` by cost. It also names the cheapest and the most accurate setting on
the frontier, with the cost of a right answer, and says what the latter costs more, paired by
problem. A cost is what the server reported, else the tokens at the model's prices; a judge's calls
are included.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ponder.core import Outcome, Records, Tables
from ponder.figures import Row, basis, flat, rows_of, span
from ponder.figures._units import Amounts, amount_columns
from ponder.figures._variants import by_variant, panels, points
from ponder.figures.frontier import Frontier
from ponder.stats.frontier import Comparison, Variants, summarize


@dataclass(frozen=True)
class Cost(Frontier):
    measure: Literal["cost", "seconds"] = "cost"  # of an answer, on the axis

    def estimate(self, outcomes: Sequence[Outcome]) -> Tables:
        tables = super().estimate(outcomes)
        tables["ends"] = []
        amounts = Amounts.of(amount_columns(outcomes, self.measure, self.tokens))
        groups = panels(by_variant(outcomes), self.by, amounts.resource, self.pool_seeds)
        for panel, panel_row in zip(groups, tables["panels"], strict=True):
            variants = rows_of(tables["variants"], panel_row)
            if not variants:
                continue
            cheapest, best = _cheapest_and_best(variants, amounts.noun)
            row = {"panel": panel.title, "cheapest": cheapest["label"], "best": best["label"]}
            if cheapest is not best and cheapest[amounts.noun]:
                comparison = _comparison(panel.data, cheapest["variant"], best["variant"])
                row |= flat(times=comparison.ratio, difference=comparison.difference)
            compared = {*cheapest["basis"].cells, *best["basis"].cells}
            row["basis"] = basis(o for o in panel.attempts if o.cell in compared)
            tables["ends"].append(row)
        return tables

    def headlines(self, tables: Tables, panel: Row) -> list[str]:
        """Name the cheapest and the most accurate setting on the frontier; compare their costs."""
        amounts = Amounts.of(panel)
        variants = rows_of(tables["variants"], panel)
        [ends] = rows_of(tables["ends"], panel)
        cheapest, best = _cheapest_and_best(variants, amounts.noun)
        adjective = "fastest"
        times_as = "takes {times} times as long as"
        if self.measure == "cost":
            adjective = "cheapest"
            times_as = "costs {times} times as much as"
        if best is cheapest:
            return [f"{adjective} and most accurate, as measured: {_described(cheapest, amounts)}"]
        headlines = [
            f"{adjective} on the frontier: {_described(cheapest, amounts)}",
            f"most accurate on it: {_described(best, amounts)}",
        ]
        if "times" in ends:
            clause = times_as.format(times=span(ends, "times"))
            difference = points(ends, "difference")
            headlines.append(f"{best['label']} {clause} {cheapest['label']}, for {difference}")
        return headlines


def _cheapest_and_best(variants: Records, amount: str) -> tuple[Row, Row]:
    """Return the cheapest and the most accurate variant on the frontier as measured."""
    frontier = [row for row in variants if row["on_frontier"]]
    cheapest = min(frontier, key=lambda row: (row[amount], -row["accuracy"]))
    best = max(frontier, key=lambda row: (row["accuracy"], -row[amount]))
    return cheapest, best


def _comparison(data: Variants, cheapest: str, best: str) -> Comparison:
    """Compare the most accurate variant with the cheapest, paired by problem."""
    names = [variant.name for variant in data.variants]
    summary = summarize(data, cheapest)[names.index(best)]
    assert summary.against is not None, "the cheapest has answers"
    return summary.against


def _described(row: Row, amounts: Amounts) -> str:
    per_right = span(row, amounts.column("tokens_per_right"), amounts.form)
    return (
        f"{row['label']}, {span(row, amounts.noun, amounts.form)} {amounts.unit} per answer, "
        f"{per_right} per right answer, accuracy {span(row, 'accuracy', '.1%')}"
    )
