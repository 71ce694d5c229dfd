"""Plots tokens against problem size, with a fitted power law and the size at which accuracy falls
below 50 %.

The tokens are thinking tokens, or output tokens (thinking + answer) if a model reasons in its reply
and so reports no thinking. A task of one size, such as a benchmark, has no trend: its tokens are
shown by outcome, with their medians.

The curve is the geometric mean of a censored lognormal power law with a bend, through all attempts,
with a 95 % band and the 90 % quantile; beside it the curve of the solved attempts, which shows what
success took. Both are pale where more than 20 % of the attempts were truncated. The tables also
have the critical size under smaller budgets.

After figure 2 of Estermann & Wattenhofer (2025), who fit a straight line to the solved attempts
only. An overlay shows their lines, and the same line through these attempts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import altair as alt
import numpy as np

from ponder.core import Figure, Outcome, Records, Tables, TokenKind
from ponder.figures import (
    INK,
    MUTED,
    SOLVED,
    basis,
    by_series,
    counts,
    flat,
    heading,
    published,
    themed,
    values,
)
from ponder.figures._effort import (
    anywhere,
    compared_at,
    details,
    fit_tables,
    headlines,
    no_fits,
    shown_curves,
    trend,
)
from ponder.figures._labels import Frame, label_lines, lettering
from ponder.figures._strips import (
    MAX_POINTS,
    OUTCOMES,
    outcome_clause,
    outcome_marks,
    outcome_rows,
    strips,
)
from ponder.figures._tokens import (
    TITLES,
    Tokens,
    counted,
    estimated,
    overlay_notes,
    token_findings,
    token_kind,
)
from ponder.figures._units import size_title, unit_of
from ponder.stats.columns import columns
from ponder.stats.critical import critical_size
from ponder.stats.designs.critical_size import LEVEL, after_ladder
from ponder.stats.effort import by_budget, effort

ADAPTIVE = "adaptive run: more near the critical size"
MAX_LISTED = 100_000  # rows of the table of attempts; `ponder export` has every attempt
ONE_PANEL, SEVERAL_PANELS = (520, 330), (400, 280)  # pixels
DARK = "#444444"
# Fit: its name in the legend, colour, dashes.
LINES = {
    "all": ("all: geometric mean", DARK, [1, 0]),
    "all, 90 %": ("all: 90 % quantile", DARK, [6, 3]),
    "solved": ("solved: geometric mean", SOLVED, [1, 0]),
    "line": ("solved: straight line", SOLVED, [2, 2]),
    "published": ("published", MUTED, [2, 2]),
}


@dataclass(frozen=True)
class Effort(Figure):
    overlay: Literal["", "tents_effort"] = ""  # published lines to draw as well
    unit: str = ""  # what size counts, such as "cells"; default: the task's own unit
    # which to count; auto: thinking if every model reports it, else output (thinking + answer)
    tokens: Tokens = "auto"
    # intervals that are valid if the results decided where to ask; with `stop` always true
    adaptive: bool = False

    def estimate(self, outcomes: Sequence[Outcome]) -> Tables:
        names = ("summary", "fits", "sizes", "by_budget", "curves", "outcomes", "attempts")
        tables: Tables = {name: [] for name in names}
        kind, told = token_kind(outcomes, self.tokens), counted(outcomes, self.tokens)
        every = math.ceil(len(outcomes) / MAX_LISTED)
        for series, part in by_series(outcomes):
            data, unit = columns(part, kind), unit_of(part, self.unit)
            fits, critical = effort(data), critical_size(data, LEVEL if self.adaptive else 0.95)
            size = after_ladder(data) if self.adaptive else critical.size
            where = compared_at(fits, size)
            rests_on = (counts(part), estimated(part), ADAPTIVE if self.adaptive else "")
            tables["summary"].append(
                flat(
                    series=series,
                    critical_size=size,
                    lapse=critical.lapse,
                    effort=trend(fits),
                    compared_at=where,
                    **no_fits(data, fits, where),
                    rests_on="; ".join(filter(None, rests_on)),
                    unit=unit,
                    **told,
                    basis=basis(part),
                )
            )
            if len(np.unique(data.size)) == 1 and not self.overlay:
                tables["outcomes"] += outcome_rows(series, data, unit, part)
            else:
                for name, rows in fit_tables(series, fits, part).items():
                    tables[name] += rows
                for budget, critical_at in by_budget(data, size, LEVEL if self.adaptive else 0.95):
                    row = flat(
                        series=series, budget=budget, critical_size=critical_at, basis=basis(part)
                    )
                    tables["by_budget"].append(row)
            tables["attempts"] += [_attempt(series, o, kind) for o in _listed(part, kind, every)]
        return tables

    def findings(self, tables: Tables) -> list[str]:
        sentences = token_findings(tables["summary"])
        if self.overlay:
            sentences += [
                f"{note.capitalize()}."
                for note in overlay_notes("thinking", tables["summary"][0]["token_kind"])
            ]
        for row in tables["summary"]:
            medians = [r for r in tables["outcomes"] if r["series"] == row["series"]]
            tokens = f"{row['token_kind']} tokens"
            numbers = headlines(tables, row) + details(tables, row)
            clauses = [outcome_clause(medians, tokens)] if medians else numbers
            sentences.append(f"{row['series']}: {'; '.join(clauses)}.")
        return sentences

    def draw(self, tables: Tables) -> alt.TopLevelMixin:
        overlay = published(self.overlay) if self.overlay else []
        # One legend for all panels: an outcome that only one of them has must look the same in
        # each.
        kinds = [k for k in OUTCOMES if any(p["outcome"] == k for p in tables["attempts"])]
        alone = {r["series"] for r in tables["outcomes"]}
        tables = {**tables, "curves": shown_curves(tables)}
        sized, unsized = (
            {
                name: [r for r in rows if (r["series"] in alone) == here]
                for name, rows in tables.items()
            }
            for here in (False, True)
        )
        charts = [self._panels(sized, kinds, overlay)] if sized["summary"] else []
        charts += [strips(unsized, kinds, ONE_PANEL[0])] if alone else []
        return themed(charts[0] if len(charts) == 1 else alt.vconcat(*charts, spacing=40))

    def _panels(self, tables: Tables, kinds: Sequence[str], overlay: Records) -> Any:
        units = {row["series"]: row["unit"] for row in tables["summary"]}
        several = len(units) > 1
        axes = {
            unit: _Axes.around(
                [*(p for p in tables["attempts"] if units[p["series"]] == unit), *overlay],
                max([1, *(p["tokens"] for p in [*tables["attempts"], *overlay])]),
                *(SEVERAL_PANELS if several else ONE_PANEL),
            )
            for unit in units.values()
        }
        panels = [
            _panel(tables, row, axes[row["unit"]], kinds, overlay) for row in tables["summary"]
        ]
        if len(panels) == 1:
            return panels[0]
        # 30 cells and 30 steps have nothing in common
        x: Any = "shared" if len(axes) == 1 else "independent"
        return alt.concat(*panels, columns=2, spacing=30).resolve_scale(x=x, y="shared")


def _panel(
    tables: Tables, summary: dict[str, Any], axes: _Axes, kinds: Sequence[str], overlay: Records
) -> Any:
    axes = replace(axes, unit=summary["unit"], tokens=TITLES[summary["token_kind"]])
    own = {
        name: [r for r in tables[name] if r["series"] == summary["series"]]
        for name in ("attempts", "curves")
    }
    points = own["attempts"][:: max(1, math.ceil(len(own["attempts"]) / MAX_POINTS))]
    fitted = {r["fit"] for r in tables["curves"]} - {"line"} | (
        {"line", "published"} if overlay else set()
    )
    lines = [fit for fit in LINES if fit in fitted]
    layers = [
        *_critical(summary, axes, band=not anywhere(tables, summary)),
        _points(points, kinds, axes),
    ]
    if overlay:
        layers.append(_overlay(overlay, points, lines, axes))
    layers += _curves(own["curves"], lines, axes)
    drawn = f", {len(points):,} of them drawn" if len(points) < len(own["attempts"]) else ""
    notes = [summary["rests_on"] + drawn, *headlines(tables, summary)]
    notes += overlay_notes("thinking", summary["token_kind"]) if overlay else []
    title = heading(summary["series"], notes, axes.width)
    return alt.layer(*layers, width=axes.width, height=axes.height, title=title)


def _listed(outcomes: Sequence[Outcome], kind: TokenKind, every: int) -> list[Outcome]:
    """The attempts of a series that its table lists: all, or every so many, the largest and the
    longest included.
    """
    answered = sorted(
        (o for o in outcomes if o.answered), key=lambda o: (o.size, o.problem, o.sample)
    )
    if every <= 1 or not answered:
        return answered
    ends = {len(answered) - 1, max(range(len(answered)), key=lambda i: answered[i].tokens(kind))}
    return [answered[i] for i in sorted({*range(0, len(answered), every), *ends})]


def _attempt(series: str, o: Outcome, kind: TokenKind) -> dict[str, Any]:
    return {
        "series": series,
        "size": o.size,
        "tokens": o.tokens(kind),
        "outcome": "solved" if o.correct else o.ended,
        "why": o.why or "right",
        "problem": o.problem[:60],
        "sample": o.sample,
        "attempt": o.attempt,
    }


@dataclass(frozen=True)
class _Axes:
    """Axes that hold every attempt of the panels of one unit, and the overlay; tokens are those of
    all panels.
    """

    widest: float
    highest: float
    width: int
    height: int
    unit: str = ""
    tokens: str = "tokens"

    @classmethod
    def around(cls, points: Records, most: float, width: int, height: int) -> _Axes:
        return cls(1.04 * max([1, *(p["size"] for p in points)]), 1.1 * most, width, height)

    def x(self, field: str = "size") -> alt.X:
        scale = alt.Scale(domain=[0, self.widest], nice=False)
        ticks = min(10, int(self.widest))  # none between two levels
        return alt.X(
            f"{field}:Q", title=size_title(self.unit), scale=scale, axis=alt.Axis(tickCount=ticks)
        )

    def y(self, field: str = "tokens") -> alt.Y:
        scale = alt.Scale(domain=[0, self.highest], nice=False)
        return alt.Y(f"{field}:Q", title=self.tokens, scale=scale, axis=alt.Axis(tickCount=8))


def _critical(summary: dict[str, Any], axes: _Axes, *, band: bool) -> list[alt.Chart]:
    """The critical size and its interval, over the whole height."""
    if summary["critical_size"] is None:
        return []
    shown = alt.Chart(values([summary]))
    middle = axes.x("critical_size")
    tooltip = [alt.Tooltip(f"critical_size{e}:Q", format=".1f") for e in ("", "_low", "_high")]
    late = summary["critical_size"] > 0.8 * axes.widest
    text = shown.mark_text(
        align="right" if late else "left", dx=-5 if late else 5, color=INK, fontSize=10
    )
    layers = [
        shown.mark_rule(color=MUTED, strokeDash=[4, 3]).encode(x=middle, tooltip=tooltip),
        text.encode(x=middle, y=alt.value(axes.height - 8), text=alt.value("50 % right")),
    ]
    if band and None not in (summary["critical_size_low"], summary["critical_size_high"]):
        rect = shown.mark_rect(color=MUTED, opacity=0.2, clip=True)
        layers.insert(
            0,
            rect.encode(x=axes.x("critical_size_low"), x2="critical_size_high:Q", tooltip=tooltip),
        )
    return layers


def _points(points: Records, kinds: Sequence[str], axes: _Axes) -> Any:
    """One mark per attempt, the rarer outcomes on top."""
    marks = alt.Chart(values(sorted(points, key=lambda p: kinds.index(p["outcome"]))))
    return marks.mark_point(size=26, opacity=0.55, strokeWidth=1.2).encode(
        x=axes.x(), y=axes.y(), **outcome_marks(kinds)
    )


def _lines(rows: Records, fits: Sequence[str], axes: _Axes, y: str = "tokens") -> Any:
    """Lines that the legend names by their column `fit`, pale where they are extrapolated."""
    legend = alt.Legend(
        title=None, orient="bottom", symbolType="stroke", symbolSize=300, clipHeight=18, columns=2
    )
    names, colours, dashes = zip(*(LINES[fit] for fit in fits), strict=True)
    named = [{**r, "line": LINES[r["fit"]][0]} for r in rows]
    return (
        alt.Chart(values(named))
        .mark_line(strokeWidth=2, clip=True)
        .encode(
            x=axes.x(),
            y=axes.y(y),
            detail="model:N",
            color=alt.Color(
                "line:N", scale=alt.Scale(domain=list(names), range=list(colours)), legend=legend
            ),
            strokeDash=alt.StrokeDash(
                "line:N", scale=alt.Scale(domain=list(names), range=list(dashes)), legend=legend
            ),
            opacity=alt.Opacity(
                "extrapolated:N",
                scale=alt.Scale(domain=[False, True], range=[1, 0.35]),
                legend=None,
            ),
        )
    )


def _curves(curves: Records, fits: Sequence[str], axes: _Axes) -> list[Any]:
    """The curves of the fits, and the bands of the geometric means."""
    bands, rows = [], []
    for fit in fits:
        own = [r for r in curves if r["fit"] == fit and r["value"] is not None]
        beyond = [r for r in own if r["extrapolated"]]
        joint = (
            [{**r, "extrapolated": True} for r in own if not r["extrapolated"]][-1:]
            if beyond
            else []
        )
        rows += [r for r in own if not r["extrapolated"]] + joint + beyond
        if own and fit in ("all", "solved"):
            known = [r for r in own if r["low"] is not None and r["high"] is not None]
            area = alt.Chart(values(known)).mark_area(color=LINES[fit][1], opacity=0.16, clip=True)
            bands.append(area.encode(x=axes.x(), y=axes.y("low"), y2="high:Q"))
    return [*bands, _lines(rows, fits, axes, "value")] if rows else []


def _overlay(records: Records, points: Records, fits: Sequence[str], axes: _Axes) -> Any:
    """Published lines, on the same axes, each with its model's name."""
    lines = {
        m: [r for r in records if r["model"] == m]
        for m in dict.fromkeys(r["model"] for r in records)
    }
    frame = Frame((0, axes.widest), (0, axes.highest), axes.width, axes.height)
    dots = [[(p["size"], p["tokens"]), (p["size"], p["tokens"])] for p in points]
    labels = values(label_lines(lines, frame, "size", "tokens", dots))
    text = alt.layer(*lettering("size", alt.value(INK), "tokens"), data=labels)
    rows = [{**r, "fit": "published", "extrapolated": False} for r in records]
    return alt.layer(_lines(rows, fits, axes), text)
