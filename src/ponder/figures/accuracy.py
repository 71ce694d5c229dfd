"""Accuracy against problem size, with clustered intervals and the curve that finds where the model gives out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import altair as alt

from ponder.core import Figure, Outcome, Tables
from ponder.figures import (
    COLOURS,
    MUTED,
    by_series,
    counts,
    curve_records,
    flat,
    percent,
    published,
    span,
    themed,
    values,
)
from ponder.stats.accuracy import by_size
from ponder.stats.columns import columns
from ponder.stats.critical import critical_size


@dataclass(frozen=True)
class Accuracy(Figure):
    overlay: str = ""  # published numbers to draw beside: `tents_success`
    unit: str = "cell"  # what a size counts

    def estimate(self, outcomes: Sequence[Outcome]) -> Tables:
        tables: Tables = {"summary": [], "sizes": [], "curves": []}
        for series, part in by_series(outcomes):
            data = columns(part)
            critical = critical_size(data)
            tables["summary"].append(flat(series=series, critical_size=critical.size, rests_on=counts(part)))
            if critical.curve:
                tables["curves"] += curve_records(critical.curve, series=series)
            for row in by_size(data):
                tables["sizes"].append(
                    flat(
                        series=series,
                        size=row.size,
                        accuracy=row.accuracy,
                        tokens=row.tokens,
                        median_tokens=row.median,
                        attempts=row.accuracy.attempts,
                        problems=row.accuracy.problems,
                        unparsed=row.unparsed,
                        truncated=row.truncated,
                        failed=row.failed,
                    )
                )
        return tables

    def findings(self, tables: Tables) -> list[str]:
        found = []
        for series in dict.fromkeys(r["series"] for r in tables["sizes"]):
            rows = [r for r in tables["sizes"] if r["series"] == series and r["accuracy"] is not None]
            if rows:
                ends = [
                    f"{span(row, 'accuracy', '.0%')} of its attempts at {row['size']:g} {self.unit}s"
                    for row in (rows[0], rows[-1])
                ]
                found.append(f"{series} is right in {' and in '.join(ends)}.")
        return found

    def draw(self, tables: Tables) -> alt.TopLevelMixin:
        names = [r["series"] for r in tables["summary"]]
        colour = alt.Color(
            "series:N",
            scale=alt.Scale(domain=names, range=COLOURS),
            legend=alt.Legend(title=None, orient="bottom", columns=2, symbolOpacity=1),
        )
        x = alt.X(
            "size:Q",
            scale=alt.Scale(type="log", nice=False, padding=12),
            title=f"problem size ({self.unit}s, log scale)",
        )
        y = percent("accuracy", "accuracy")
        sizes, curves = alt.Chart(values(tables["sizes"])), alt.Chart(values(tables["curves"]))
        tooltip = [
            "series:N",
            "size:Q",
            *(alt.Tooltip(f"accuracy{e}:Q", format=".3f") for e in ("", "_low", "_high")),
            "attempts:Q",
            "problems:Q",
        ]
        layers: list[alt.Chart] = []
        if self.overlay:
            dashed = alt.Chart(values(published(self.overlay))).mark_line(
                strokeDash=[2, 2], strokeWidth=1, color=MUTED, point=alt.OverlayMarkDef(color=MUTED, size=12)
            )
            layers.append(dashed.encode(x=x, y=y, detail="model:N", tooltip=["model:N", "size:Q", "accuracy:Q"]))
            named = {r["model"]: r for r in published(self.overlay) if r["accuracy"] > 0}
            text = alt.Chart(values(list(named.values()))).mark_text(align="left", dx=5, fontSize=10, color="#5f6368")
            layers.append(text.encode(x=x, y=y, text="model:N"))
        layers += [
            curves.mark_area(opacity=0.13).encode(x=x, y=percent("low"), y2="high:Q", color=colour),
            curves.mark_line(strokeWidth=1.8).encode(x=x, y=percent("value"), color=colour),
            sizes.mark_rule(strokeWidth=1.2).encode(x=x, y=percent("accuracy_low"), y2="accuracy_high:Q", color=colour),
            sizes.mark_point(filled=True, size=46, opacity=1).encode(x=x, y=y, color=colour, tooltip=tooltip),
        ]
        subtitle = [f"{r['series']}: {r['rests_on']}" for r in tables["summary"]]
        if self.overlay:
            subtitle.append("grey: published, read off a figure, without intervals")
        title = alt.TitleParams("Accuracy by problem size", subtitle=subtitle)
        return themed(alt.layer(*layers).properties(width=520, height=300, title=title))
