"""Thinking tokens against problem size, solved and failed apart, with the fit and the size where the model gives out.

After figure 2 of Estermann & Wattenhofer 2025. They fit a line to the successes alone; here the fit to all attempts,
truncated ones as censored, stands beside it, each with a 95 % band, and the band of the critical size behind both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt

from ponder.core import Figure, Outcome, Records, Tables
from ponder.figures import (
    FAILED,
    MUTED,
    SOLVED,
    by_series,
    counts,
    curve_records,
    flat,
    published,
    span,
    themed,
    thinned,
    values,
)
from ponder.stats.columns import columns
from ponder.stats.critical import critical_size
from ponder.stats.effort import Effort as Fits
from ponder.stats.effort import effort

MOST_POINTS = 2000
HEIGHT = 330


@dataclass(frozen=True)
class Effort(Figure):
    overlay: str = ""  # published numbers to draw beside: `tents_effort`
    unit: str = "cell"  # what a size counts

    def estimate(self, outcomes: Sequence[Outcome]) -> Tables:
        tables: Tables = {"summary": [], "fits": [], "curves": [], "attempts": []}
        for series, part in by_series(outcomes):
            data = columns(part)
            fit, critical = effort(data), critical_size(data)
            tables["summary"].append(
                flat(
                    series=series,
                    critical_size=critical.size,
                    lapse=critical.lapse,
                    effort=_phrase(fit),
                    rests_on=counts(part),
                )
            )
            for name, line in (("solved", fit.line_on_successes), ("all", fit.line_on_all)):
                if line:
                    row = flat(
                        series=series,
                        fitted_to=name,
                        tokens_per_size=line.slope,
                        tokens_at_zero=line.intercept,
                        r2=line.r2,
                    )
                    tables["fits"].append(row)
                    tables["curves"] += curve_records(line.curve, series=series, fit=name)
            if bend := fit.bend_on_all:
                row = flat(
                    series=series,
                    fitted_to="all, with a bend",
                    peak=bend.peak,
                    before=bend.before,
                    after=bend.after,
                    p_value=bend.p_value,
                )
                tables["fits"].append(row)
                tables["curves"] += curve_records(bend.curve, series=series, fit="bend")
            answered = sorted(o for o in part if o.status != "failed")
            tables["attempts"] += [_point(series, o) for o in answered]
        return tables

    def findings(self, tables: Tables) -> list[str]:
        found = []
        for row in tables["summary"]:
            name = row["series"]
            if row["critical_size"] is not None:
                found.append(f"{name} is right half of the time at {span(row, 'critical_size')} {self.unit}s.")
            else:
                found.append(f"{name} doesn't cross 50 % within the sizes asked.")
            line = next((f for f in tables["fits"] if f["series"] == name and f["fitted_to"] == "solved"), None)
            if line:
                r2 = f" (R² {line['r2']:.2f})" if line["r2"] is not None else ""
                more = f"{span(line, 'tokens_per_size')} thinking tokens more for each {self.unit}{r2}"
                found.append(f"Where it is right, it spends {more}.")
            found.append(f"Over all its attempts, effort {row['effort']}.")
        return found

    def draw(self, tables: Tables) -> alt.TopLevelMixin:
        panels = [self._panel(tables, row) for row in tables["summary"]]
        if len(panels) == 1:
            return themed(panels[0])
        return themed(alt.concat(*panels, columns=2).resolve_scale(y="shared", x="shared"))

    def _panel(self, tables: Tables, summary: dict[str, Any]) -> Any:
        series = summary["series"]
        mine = {name: [r for r in tables[name] if r["series"] == series] for name in ("attempts", "curves", "fits")}
        points = thinned(mine["attempts"], MOST_POINTS)
        axes = _Axes.around(mine["attempts"], self.unit)
        fits = _fits(mine["curves"], summary["effort"], axes)
        layers = [*_critical_band(summary, axes), *_points(points, axes), *fits]
        if self.overlay:
            layers += _overlay(published(self.overlay), axes)
        drawn = f", {len(points):,} of them drawn" if len(points) < len(mine["attempts"]) else ""
        title = alt.TitleParams(
            series, subtitle=[summary["rests_on"] + drawn, *_says(summary, mine["fits"], self.unit)]
        )
        return alt.layer(*layers, width=520, height=HEIGHT, title=title)


def _phrase(fit: Fits) -> str:
    """The verdict; a peak with its interval, because two straight lines only come near a sudden drop."""
    bend = fit.bend_on_all
    if fit.verdict != "falls after a peak" or bend is None:
        return fit.verdict
    return f"falls after a peak near {span(flat(peak=bend.peak), 'peak')}"


def _point(series: str, o: Outcome) -> dict[str, Any]:
    outcome = "solved" if o.correct else "truncated" if o.status == "truncated" else "failed"
    return {
        "series": series,
        "size": o.size,
        "tokens": o.thinking_tokens,
        "outcome": outcome,
        "why": o.why or "right",
        "problem": o.problem[:60],
        "sample": o.sample,
    }


def _says(summary: dict[str, Any], fits: Records, unit: str) -> list[str]:
    """The numbers of the panel, below its title."""
    lines = []
    if summary["critical_size"] is not None:
        lines.append(
            f"half right at {span(summary, 'critical_size')} {unit}s; effort {summary['effort']} (dashed: all attempts)"
        )
    else:
        lines.append(f"doesn't cross 50 % within these sizes; effort {summary['effort']} (dashed: all attempts)")
    for fit in fits:
        if fit["fitted_to"] == "solved":
            r2 = "" if fit["r2"] is None else f", R² {fit['r2']:.2f}"
            lines.append(f"solved: {span(fit, 'tokens_per_size')} tokens per {unit}{r2} (95 % intervals over problems)")
    return lines


@dataclass(frozen=True)
class _Axes:
    """Axes that hold the user's own attempts, whatever was published."""

    widest: float
    highest: float
    unit: str

    @classmethod
    def around(cls, points: Records, unit: str) -> _Axes:
        widest, highest = (max((p[k] for p in points), default=1) for k in ("size", "tokens"))
        return cls(1.04 * widest, 1.1 * highest, unit)

    def x(self, field: str = "size") -> alt.X:
        scale = alt.Scale(domain=[0, self.widest], nice=False)
        return alt.X(f"{field}:Q", title=f"problem size ({self.unit}s)", scale=scale)

    def y(self, field: str = "tokens") -> alt.Y:
        scale = alt.Scale(domain=[0, self.highest], nice=False)
        return alt.Y(f"{field}:Q", title="thinking tokens", scale=scale)


def _critical_band(summary: dict[str, Any], axes: _Axes) -> list[alt.Chart]:
    """The interval of the critical size over the whole height; none where the size is unknown."""
    if summary["critical_size"] is None:
        return []
    shown = alt.Chart(values([summary]))
    middle = axes.x("critical_size")
    tooltip = [alt.Tooltip(f"critical_size{e}:Q", format=".1f") for e in ("", "_low", "_high")]
    layers = [
        shown.mark_rule(color=MUTED, strokeDash=[4, 3]).encode(x=middle, tooltip=tooltip),
        shown.mark_text(align="left", dx=4, color="#5f6368", fontSize=10, text="half right").encode(
            x=middle, y=alt.value(HEIGHT - 8)
        ),
    ]
    if None not in (summary["critical_size_low"], summary["critical_size_high"]):
        band = shown.mark_rect(color=MUTED, opacity=0.25, clip=True)
        layers.insert(0, band.encode(x=axes.x("critical_size_low"), x2="critical_size_high:Q", tooltip=tooltip))
    return layers


def _fits(curves: Records, verdict: str, axes: _Axes) -> list[alt.Chart]:
    """The line through the solved, and the better of line and bend through all."""
    all_fit = "bend" if verdict.startswith("falls after") else "all"
    layers = []
    for fit, colour, dash in (("solved", SOLVED, [1, 0]), (all_fit, "#444444", [6, 3])):
        shown = alt.Chart(values([r for r in curves if r["fit"] == fit]))
        layers.append(
            shown.mark_area(color=colour, opacity=0.16, clip=True).encode(x=axes.x(), y=axes.y("low"), y2="high:Q")
        )
        line = shown.mark_line(color=colour, strokeDash=dash, strokeWidth=2, clip=True)
        layers.append(line.encode(x=axes.x(), y=axes.y("value")))
    return layers


def _points(points: Records, axes: _Axes) -> list[alt.Chart]:
    """Circles for solved and squares for failed, a few pixels apart so that neither hides the other."""
    looks = {
        "failed": ("square", FAILED, 3),
        "truncated": ("triangle-up", "#b03a2e", 3),
        "solved": ("circle", SOLVED, -3),
    }
    used = [k for k in looks if any(p["outcome"] == k for p in points)]
    legend = alt.Legend(title=None, orient="top-left", offset=6, fillColor="white", padding=4, symbolOpacity=1)
    shape = alt.Scale(domain=used, range=[looks[k][0] for k in used])
    colour = alt.Scale(domain=used, range=[looks[k][1] for k in used])
    return [
        alt.Chart(values([p for p in points if p["outcome"] == kind]))
        .mark_point(filled=True, size=26, opacity=0.5, xOffset=looks[kind][2])
        .encode(
            x=axes.x(),
            y=axes.y(),
            color=alt.Color("outcome:N", scale=colour, legend=legend),
            shape=alt.Shape("outcome:N", scale=shape, legend=legend),
            tooltip=["size:Q", "tokens:Q", "outcome:N", "why:N", "problem:N", "sample:Q"],
        )
        for kind in used
    ]


def _overlay(records: Records, axes: _Axes) -> list[alt.Chart]:
    """Published lines, named where they end or leave the picture."""
    drawn = []
    for model in dict.fromkeys(r["model"] for r in records):
        first, *_, last = (r for r in records if r["model"] == model)
        for share in (i / 40 for i in range(41)):
            place = {k: first[k] + share * (last[k] - first[k]) for k in ("size", "tokens")}
            if place["size"] <= axes.widest and place["tokens"] <= axes.highest:
                drawn.append({"model": model, **place})
    ends = list({r["model"]: r for r in drawn}.values())
    lines = alt.Chart(values(drawn)).mark_line(color="#5f6368", strokeWidth=1.2, strokeDash=[2, 2])
    text = alt.Chart(values(ends)).mark_text(align="left", dx=4, color="#5f6368", fontSize=10)
    tooltip = alt.Tooltip("model:N", title="published")
    x, y = axes.x(), axes.y()
    return [lines.encode(x=x, y=y, detail="model:N", tooltip=tooltip), text.encode(x=x, y=y, text="model:N")]
