"""The longest single turn: success against size as a search asked it, and the size where it falls to the target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import altair as alt

from ponder.core import Figure, Outcome, Tables
from ponder.figures import COLOURS, MUTED, by_series, counts, flat, percent, span, themed, values
from ponder.runner.search import Search
from ponder.stats.accuracy import by_size
from ponder.stats.columns import columns


@dataclass(frozen=True)
class MaxTurn(Figure):
    target: float = 0.8  # chance of success at the longest turn; as in the [[task]]
    unit: str = "step"  # what a size counts

    def estimate(self, outcomes: Sequence[Outcome]) -> Tables:
        tables: Tables = {"summary": [], "sizes": []}
        for series, part in by_series(outcomes):
            rows = by_size(columns(part))
            asked = {int(r.size): r.accuracy for r in rows if r.accuracy.attempts}
            results = {size: (round(a.value * a.attempts), a.attempts) for size, a in asked.items()}
            search = Search(target=self.target, high=max(2, *results))
            tables["summary"].append(flat(series=series, max_turn=search.estimate(results), rests_on=counts(part)))
            for size, a in asked.items():
                tables["sizes"].append(flat(series=series, size=size, accuracy=a, attempts=a.attempts))
        return tables

    def findings(self, tables: Tables) -> list[str]:
        found = []
        for row in tables["summary"]:
            below = row["max_turn"] is None and not row["longest_low"]
            reach = f"below {row['longest_high']:.3g}" if below and row["longest_high"] else span(row, "longest")
            found.append(f"{row['series']} is right in {self.target:.0%} of single turns up to {reach} {self.unit}s.")
        return found

    def draw(self, tables: Tables) -> alt.TopLevelMixin:
        names = [r["series"] for r in tables["summary"]]
        scale = alt.Scale(domain=names, range=COLOURS)
        colour = alt.Color("series:N", scale=scale, legend=alt.Legend(title=None, orient="bottom", symbolOpacity=1))
        x_scale = alt.Scale(type="log", nice=False, padding=14)
        x = alt.X("size:Q", title=f"{self.unit}s in one turn (log scale)", scale=x_scale)
        shown, found = alt.Chart(values(tables["sizes"])), alt.Chart(values(tables["summary"]))
        target = alt.Chart(values([{"target": self.target}])).mark_rule(color=MUTED, strokeDash=[4, 3])
        size = alt.Size("attempts:Q", legend=alt.Legend(title="attempts", orient="right"))
        tooltip = ["series:N", "size:Q", "accuracy:Q", "attempts:Q"]
        low = alt.X("max_turn_low:Q", scale=x_scale)
        layers = [
            target.encode(y=percent("target")),
            found.mark_rect(opacity=0.18).encode(x=low, x2="max_turn_high:Q", color=colour),
            found.mark_rule(strokeWidth=1.6).encode(x=alt.X("max_turn:Q", scale=x_scale), color=colour),
            shown.mark_rule(opacity=0.4).encode(x=x, y=percent("accuracy_low"), y2="accuracy_high:Q", color=colour),
            shown.mark_point(filled=True, opacity=0.9).encode(
                x=x, y=percent("accuracy", "success"), color=colour, size=size, tooltip=tooltip
            ),
        ]
        subtitle = [f"{r['series']}: {span(r, 'max_turn')} {self.unit}s; {r['rests_on']}" for r in tables["summary"]]
        title = alt.TitleParams(f"The longest turn with {self.target:.0%} success", subtitle=subtitle)
        return themed(alt.layer(*layers, width=480, height=300, title=title))
