"""Plots accuracy against problem size, with 95 % intervals and the fitted curve that gives the critical size.

The critical size is the size at which accuracy falls below 50 %.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log10
from typing import Any, Literal

import altair as alt

from ponder.core import Figure, Outcome, Records, Tables
from ponder.figures import (
    INK,
    by_series,
    counts,
    curve_records,
    flat,
    heading,
    percent,
    published,
    series_colour,
    span,
    themed,
    values,
)
from ponder.figures._labels import Frame, label_lines, lettering
from ponder.stats.accuracy import by_size
from ponder.stats.columns import columns
from ponder.stats.critical import critical_size

WIDTH, HEIGHT = 520, 300  # pixels


@dataclass(frozen=True)
class Accuracy(Figure):
    overlay: Literal["", "tents_success"] = ""  # published accuracies to draw as well
    unit: str = "cell"  # what size counts

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
        sentences = []
        for series in dict.fromkeys(r["series"] for r in tables["sizes"]):
            rows = [r for r in tables["sizes"] if r["series"] == series and r["accuracy"] is not None]
            ends = [f"{span(row, 'accuracy', '.0%')} at {row['size']:g} {self.unit}s" for row in rows]
            if ends:
                sentences.append(f"{series}: accuracy {' and '.join(dict.fromkeys((ends[0], ends[-1])))}.")
        return sentences

    def draw(self, tables: Tables) -> alt.TopLevelMixin:
        overlay = [{**r, "series": "published"} for r in (published(self.overlay) if self.overlay else [])]
        measured = [r for r in tables["sizes"] if r["accuracy"] is not None]
        frame = _frame([r["size"] for r in [*measured, *overlay]])
        colour = series_colour([r["series"] for r in tables["summary"]], overlay=bool(overlay))
        x, y = _across(frame, [r["size"] for r in measured], self.unit), percent("accuracy", "accuracy")
        sizes, curves = alt.Chart(values(measured)), alt.Chart(values(tables["curves"]))
        numbers = [alt.Tooltip(f"accuracy{e}:Q", format=".3f") for e in ("", "_low", "_high")]
        tooltip = ["series:N", "size:Q", *numbers, "attempts:Q", "problems:Q"]
        layers = [
            *([_published(overlay, tables, frame, x, y, colour)] if overlay else []),
            curves.mark_area(opacity=0.13).encode(x=x, y=percent("low"), y2="high:Q", color=colour),
            curves.mark_line(strokeWidth=1.8).encode(x=x, y=percent("value"), color=colour),
            sizes.mark_rule(strokeWidth=1.2).encode(x=x, y=percent("accuracy_low"), y2="accuracy_high:Q", color=colour),
            sizes.mark_point(filled=True, size=46, opacity=1).encode(x=x, y=y, color=colour, tooltip=tooltip),
        ]
        notes = [f"{r['series']}: {r['rests_on']}" for r in tables["summary"]]
        if overlay:
            notes.append("published: read off a figure, without intervals")
        title = heading("Accuracy by problem size", notes, WIDTH)
        return themed(alt.layer(*layers).properties(width=WIDTH, height=HEIGHT, title=title))


def _frame(sizes: Sequence[float]) -> Frame:
    """Logarithmic, unless a size is 0."""
    log = min(sizes) > 0
    first, last = (log10(end) if log else end for end in (min(sizes), max(sizes)))
    margin = 0.03 * (last - first) or 0.1
    return Frame((first - margin, last + margin), (0.0, 1.0), WIDTH, HEIGHT, log=log)


def _across(frame: Frame, sizes: Sequence[float], unit: str) -> alt.X:
    ends = [10**end if frame.log else end for end in frame.x]
    scale = alt.Scale(type="log" if frame.log else "linear", domain=ends, nice=False, zero=False)
    axis = alt.Axis(values=sorted(set(sizes)), format="~r", labelOverlap="greedy", labelSeparation=4)
    return alt.X("size:Q", title=f"problem size ({unit}s{', log scale' if frame.log else ''})", scale=scale, axis=axis)


def _published(overlay: Records, tables: Tables, frame: Frame, x: alt.X, y: alt.Y, colour: alt.Color) -> Any:
    """Dotted lines, each with its model's name where no other line crosses it."""
    lines = {m: [r for r in overlay if r["model"] == m] for m in dict.fromkeys(r["model"] for r in overlay)}
    avoid = [
        [(r["size"], r["value"]) for r in tables["curves"] if r["series"] == row["series"]] for row in tables["summary"]
    ]
    avoid += [
        [(r["size"], r["accuracy_low"]), (r["size"], r["accuracy_high"])] for r in tables["sizes"] if r["attempts"]
    ]
    names = alt.layer(
        *lettering("size", alt.value(INK)), data=values(label_lines(lines, frame, "size", "accuracy", avoid))
    )
    point = alt.OverlayMarkDef(size=12, filled=True)
    line = alt.Chart(values(overlay)).mark_line(strokeDash=[2, 2], strokeWidth=1, point=point)
    tooltip = ["model:N", "size:Q", "accuracy:Q"]
    return alt.layer(line.encode(x=x, y=y, color=colour, detail="model:N", tooltip=tooltip), names)
