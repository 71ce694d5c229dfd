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
from ponder.stats.frontier import summarize


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
            cheapest, best = _ends(variants, amounts.noun)
            row = {"panel": panel.title, "cheapest": cheapest["label"], "best": best["label"]}
            if cheapest is not best and cheapest[amounts.noun]:
                names = [variant.name for variant in panel.data.variants]
                summaries = summarize(panel.data, cheapest["variant"])
                comparison = summaries[names.index(best["variant"])].against
                assert comparison is not None, "the cheapest has answers"
                row |= flat(times=comparison.ratio, difference=comparison.difference)
            compared = {*cheapest["basis"].cells, *best["basis"].cells}
            row["basis"] = basis(o for o in panel.attempts if o.cell in compared)
            tables["ends"].append(row)
        return tables

    def headlines(self, tables: Tables, panel: Row) -> list[str]:
        """Name the cheapest and the most accurate setting on the frontier, and what it costs."""
        amounts = Amounts.of(panel)
        variants = rows_of(tables["variants"], panel)
        [ends] = rows_of(tables["ends"], panel)
        cheapest, best = _ends(variants, amounts.noun)
        word = "cheapest" if self.measure == "cost" else "fastest"
        if best is cheapest:
            return [f"{word} and most accurate, as measured: {_described(cheapest, amounts)}"]
        headlines = [
            f"{word} on the frontier: {_described(cheapest, amounts)}",
            f"most accurate on it: {_described(best, amounts)}",
        ]
        if "times" in ends:
            verb, more = ("costs", "much") if self.measure == "cost" else ("takes", "long")
            headlines.append(
                f"{best['label']} {verb} {span(ends, 'times')} times as {more} as "
                f"{cheapest['label']}, for {points(ends, 'difference')}"
            )
        return headlines


def _ends(variants: Records, amount: str) -> tuple[Row, Row]:
    """Return the cheapest and the most accurate variant on the frontier as measured."""
    on = [row for row in variants if row["on_frontier"]]
    cheapest = min(on, key=lambda row: (row[amount], -row["accuracy"]))
    best = max(on, key=lambda row: (row["accuracy"], -row[amount]))
    return cheapest, best


def _described(row: Row, amounts: Amounts) -> str:
    per_right = span(row, amounts.column("tokens_per_right"), amounts.form)
    return (
        f"{row['label']}, {span(row, amounts.noun, amounts.form)} {amounts.unit} per answer, "
        f"{per_right} per right answer, accuracy {span(row, 'accuracy', '.1%')}"
    )
