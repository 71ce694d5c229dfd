"""Plots accuracy against the steps in a single turn, and the largest number of steps at the target
accuracy.

For tasks whose sizes a search chose (`stop = { goal = "max_size" }`). Points are larger where the search made
more attempts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt

from ponder.core import Figure, Outcome, Tables
from ponder.core.text import number
from ponder.figures import (
    MUTED,
    basis,
    by_series,
    counts,
    flat,
    heading,
    percent,
    series_colour,
    span,
    themed,
    values,
)
from ponder.figures._units import unit_of
from ponder.stats.accuracy import by_size
from ponder.stats.columns import columns
from ponder.stats.designs.max_size import Search

WIDTH, HEIGHT = 480, 300  # pixels


@dataclass(frozen=True)
class MaxTurn(Figure):
    target: float = 0.8  # accuracy at the largest turn; as in the study's `stop`
    unit: str = ""  # what size counts, such as "steps"; default: the task's own unit

    def estimate(self, outcomes: Sequence[Outcome]) -> Tables:
        tables: Tables = {"summary": [], "sizes": []}
        for series, part in by_series(outcomes):
            asked = {int(r.size): r.accuracy for r in by_size(columns(part)) if r.accuracy.attempts}
            results = {size: (round(a.value * a.attempts), a.attempts) for size, a in asked.items()}
            search = Search(target=self.target, high=max([2, *results]))
            unit = unit_of(part, self.unit)
            tables["summary"].append(
                flat(
                    series=series,
                    max_turn=search.estimate(results),
                    rests_on=counts(part),
                    unit=unit,
                    basis=basis(part),
                )
            )
            for size, a in asked.items():
                of_size = basis(o for o in part if o.size == size)
                tables["sizes"].append(
                    flat(series=series, size=size, accuracy=a, attempts=a.attempts, basis=of_size)
                )
        return tables

    def findings(self, tables: Tables) -> list[str]:
        return [
            f"{r['series']}: the largest turn with {self.target:.0%} accuracy has {_reach(r)}."
            for r in tables["summary"]
        ]

    def draw(self, tables: Tables) -> alt.TopLevelMixin:
        colour = series_colour([r["series"] for r in tables["summary"]])
        scale = alt.Scale(type="log", nice=False, padding=14)
        unit = ", ".join(dict.fromkeys(r["unit"] for r in tables["summary"] if r["unit"]))
        ticks = alt.Axis(
            values=sorted({r["size"] for r in tables["sizes"]}),
            labelOverlap="greedy",
            labelSeparation=4,
            format="~r",
        )
        x = alt.X(
            "size:Q", title=f"{unit or 'size'} in one turn (log scale)", scale=scale, axis=ticks
        )
        shown = alt.Chart(values(tables["sizes"]))
        reached = alt.Chart(values([r for r in tables["summary"] if r["max_turn"] is not None]))
        known = alt.Chart(
            values([r for r in tables["summary"] if r["max_turn_low"] and r["max_turn_high"]])
        )
        target = alt.Chart(values([{"target": self.target}])).mark_rule(
            color=MUTED, strokeDash=[4, 3]
        )
        attempts = [r["attempts"] for r in tables["sizes"]]
        size = alt.Size(
            "attempts:Q",
            scale=alt.Scale(domainMin=0, range=[10, 160]),
            legend=alt.Legend(
                title="attempts",
                orient="right",
                values=sorted({min(attempts), max(attempts)}),
                format="d",
            ),
        )
        tooltip = ["series:N", "size:Q", "accuracy:Q", "attempts:Q"]
        low = alt.X("max_turn_low:Q", scale=scale, axis=ticks)
        layers = [
            target.encode(y=percent("target")),
            known.mark_rect(opacity=0.18).encode(x=low, x2="max_turn_high:Q", color=colour),
            reached.mark_rule(strokeWidth=1.6).encode(
                x=alt.X("max_turn:Q", scale=scale, axis=ticks), color=colour
            ),
            shown.mark_rule(opacity=0.4).encode(
                x=x, y=percent("accuracy_low"), y2="accuracy_high:Q", color=colour
            ),
            shown.mark_point(filled=True, opacity=0.9).encode(
                x=x, y=percent("accuracy", "accuracy"), color=colour, size=size, tooltip=tooltip
            ),
        ]
        notes = [f"{r['series']}: {_reach(r)}; {r['rests_on']}" for r in tables["summary"]]
        notes.append("vertical line and band: the estimate and its 95 % interval")
        title = heading(
            f"Largest turn with {self.target:.0%} accuracy (further right is better)", notes, WIDTH
        )
        return themed(alt.layer(*layers, width=WIDTH, height=HEIGHT, title=title))


def _reach(row: dict[str, Any]) -> str:
    """The estimate as text; `fewer than 1` if even the smallest size asked was too large."""
    reach = span(row, "max_turn")
    if row["max_turn"] is None and not row["max_turn_low"] and row["max_turn_high"]:
        reach = f"fewer than {number(row['max_turn_high'])}"
    return f"{reach} {row['unit']}".strip()
