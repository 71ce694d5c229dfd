"""Draws `mine`: say here in one sentence what is plotted against what.

As it stands it draws output tokens (thinking and answer) against problem size, one series per
model. Write your own `estimate` and `draw`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import altair as alt

from ponder.core import Figure, Outcome, Tables
from ponder.figures import basis, by_series, flat, themed, values
from ponder.stats.accuracy import by_size
from ponder.stats.columns import columns


@dataclass(frozen=True)
class Mine(Figure):
    colour: str = "#1f6fb4"  # of every mark; each field is a key in a study's [[figure]]

    def estimate(self, outcomes: Sequence[Outcome]) -> Tables:
        rows = []
        for series, attempts in by_series(outcomes):
            for row in by_size(columns(attempts, "output")):
                # A click on a mark leads to these attempts.
                counted = basis(attempt for attempt in attempts if attempt.size == row.size)
                rows.append(flat(series=series, size=row.size, tokens=row.tokens, basis=counted))
        return {"sizes": rows}

    def draw(self, tables: Tables) -> alt.TopLevelMixin:
        chart = alt.Chart(values(tables["sizes"]))
        points = chart.mark_point(color=self.colour).encode(
            x="size:Q", y="tokens:Q", shape="series:N"
        )
        ranges = chart.mark_rule(color=self.colour).encode(
            x="size:Q", y="tokens_low:Q", y2="tokens_high:Q"
        )
        return themed(points + ranges, title="Output tokens by size")
