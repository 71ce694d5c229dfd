"""Plots accuracy against problem size, with 95 % intervals and the fitted curve that gives the
critical size.

The critical size is the size at which accuracy falls below 50 %. Beside it is a local estimate from
the three sizes nearest to it; the findings say if the two differ, or if accuracy does not fall
steadily with size. A task of one size, such as a benchmark, or whose sizes are only levels, has
bars instead, one per model. The tables also have the tokens of each size.
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
    basis,
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
from ponder.figures._bars import bars
from ponder.figures._labels import Frame, label_lines, lettering
from ponder.figures._tokens import Tokens, counted, token_kind
from ponder.figures._units import LEVELS, at, size_title, unit_of
from ponder.stats.accuracy import by_size
from ponder.stats.columns import columns
from ponder.stats.critical import critical_size
from ponder.stats.designs.critical_size import LEVEL, after_ladder

WIDTH, HEIGHT = 520, 300  # pixels
DASHES = ([1, 0], [6, 3], [2, 2], [8, 3, 2, 3])  # a task's curves, where colours are the models'
DOUBT = 0.05  # a p-value below which the findings doubt the fitted curve
MISFIT = 0.01  # the test of fit gives up to 8 % of false alarms at 5 %
ADAPTIVE = "adaptive run: more attempts near the critical size, whose interval is valid for that"
SIDE_BY_SIDE = 6  # pixels between the intervals of two series


@dataclass(frozen=True)
class Accuracy(Figure):
    overlay: Literal["", "tents_success"] = ""  # published accuracies to draw as well
    # what size counts, such as "cells", or "levels" for bars; default: the task's own unit
    unit: str = ""
    # in the tables; auto: thinking if every model reports it, else output (thinking + answer)
    tokens: Tokens = "auto"
    # intervals that are valid if the results decided where to ask; with `stop` always true
    adaptive: bool = False

    def estimate(self, outcomes: Sequence[Outcome]) -> Tables:
        tables: Tables = {"summary": [], "sizes": [], "curves": []}
        kind, told = token_kind(outcomes, self.tokens), counted(outcomes, self.tokens)
        for series, part in by_series(outcomes):
            data = columns(part, kind)
            label = part[0].label
            named = {"model": label.model, "task": label.task, "unit": unit_of(part, self.unit)}
            critical = critical_size(data, LEVEL if self.adaptive else 0.95)
            size = after_ladder(data) if self.adaptive else critical.size
            tables["summary"].append(
                flat(
                    series=series,
                    critical_size=size,
                    local_critical_size=critical.local,
                    local_p_value=critical.local_p_value,
                    lapse=critical.lapse,
                    fit_p_value=critical.fit_p_value,
                    steady_p_value=critical.steady_p_value,
                    rise_from=critical.rise[0],
                    rise_to=critical.rise[1],
                    rests_on=counts(part),
                    **named,
                    **told,
                    basis=basis(part),
                )
            )
            if critical.curve:
                tables["curves"] += curve_records(critical.curve, series=series, basis=basis(part))
            for row in by_size(data):
                tables["sizes"].append(
                    flat(
                        series=series,
                        size=row.size,
                        accuracy=row.accuracy,
                        tokens=row.tokens,
                        geometric_mean_tokens=row.geometric,
                        median_tokens=row.median,
                        attempts=row.accuracy.attempts,
                        problems=row.accuracy.problems,
                        unparsed=row.unparsed,
                        truncated=row.truncated,
                        failed=row.failed,
                        **named,
                        basis=basis(o for o in part if o.size == row.size),
                    )
                )
        return tables

    def findings(self, tables: Tables) -> list[str]:
        sentences, sized = [], self._sized(tables)
        for summary in tables["summary"]:
            rows = [
                r
                for r in tables["sizes"]
                if r["series"] == summary["series"] and r["accuracy"] is not None
            ]
            shown = rows if len(rows) < 2 or summary["task"] not in sized else [rows[0], rows[-1]]
            clauses = [span(r, "accuracy", ".0%") + _where(r, alone=len(rows) == 1) for r in shown]
            if clauses:
                local = _local(summary) if summary["task"] in sized else ""
                sentences.append(f"{summary['series']}: accuracy {' and '.join(clauses)}{local}.")
            if summary["task"] in sized:
                sentences += _doubts(summary, rows)
        return sentences

    def _sized(self, tables: Tables) -> set[str]:
        """The tasks to draw as curves: those of several sizes, unless their sizes are only levels."""
        sizes: dict[str, set[float]] = {}
        for r in tables["sizes"]:
            if r["accuracy"] is not None and r["unit"] != LEVELS:
                sizes.setdefault(r["task"], set()).add(r["size"])
        return {task for task, asked in sizes.items() if len(asked) > 1 or self.overlay}

    def draw(self, tables: Tables) -> alt.TopLevelMixin:
        sized = self._sized(tables)
        curves, rest = (
            {
                name: [r for r in rows if "task" not in r or (r["task"] in sized) == here]
                for name, rows in tables.items()
            }
            for here in (True, False)
        )
        models = list(dict.fromkeys(r["model"] for r in tables["summary"]))
        charts = (
            [self._curves(curves, models if rest["summary"] else [])] if curves["summary"] else []
        )
        if rest["summary"]:
            charts.append(bars(rest, models, WIDTH))
        if len(charts) == 1:
            return themed(charts[0])
        return themed(
            alt.vconcat(*charts, spacing=40).resolve_scale(
                color="independent", strokeDash="independent"
            )
        )

    def _curves(self, tables: Tables, models: Sequence[str]) -> Any:
        """A curve per series, with a colour per series; or a colour for each of the models, and a
        dash per task.
        """
        overlay = [
            {**r, "drawn_as": "published"}
            for r in (published(self.overlay) if self.overlay else [])
        ]
        names = [r["series"] for r in tables["summary"]]
        drawn_as = {r["series"]: r["model" if models else "series"] for r in tables["summary"]}
        task = {r["series"]: r["task"] for r in tables["summary"]}
        measured = [
            {**r, "drawn_as": drawn_as[r["series"]]}
            for r in tables["sizes"]
            if r["accuracy"] is not None
        ]
        fitted = [
            {**r, "drawn_as": drawn_as[r["series"]], "task": task[r["series"]]}
            for r in tables["curves"]
            if r["series"] in names
        ]
        frame = _frame([r["size"] for r in [*measured, *overlay]])
        colour = series_colour(models or names, overlay=bool(overlay))
        colour.shorthand = "drawn_as:N"
        tasks = list(dict.fromkeys(task.values()))
        look = _by_task(tasks) if models and len(tasks) > 1 else {}
        units = dict.fromkeys((r["task"], r["unit"]) for r in tables["summary"] if r["unit"])
        several = len({unit for _, unit in units}) > 1
        unit = ", ".join(
            dict.fromkeys(f"{task}: {unit}" if several else unit for task, unit in units)
        )
        x, y = _across(frame, [r["size"] for r in measured], unit), percent("accuracy", "accuracy")
        sizes, curves = (
            alt.Chart(values(_side_by_side(measured, names, frame))),
            alt.Chart(values(fitted)),
        )
        numbers = [alt.Tooltip(f"accuracy{e}:Q", format=".3f") for e in ("", "_low", "_high")]
        tooltip = ["series:N", "size:Q", *numbers, "attempts:Q", "problems:Q"]
        place = x.copy()
        place.shorthand = "place:Q"
        layers = [
            *([_published(overlay, tables, frame, x, y, colour)] if overlay else []),
            curves.mark_area(opacity=0.13).encode(
                x=x, y=percent("low"), y2="high:Q", color=colour, detail="series:N"
            ),
            curves.mark_line(strokeWidth=1.8).encode(
                x=x, y=percent("value"), color=colour, detail="series:N", **look
            ),
            sizes.mark_rule(strokeWidth=1.2).encode(
                x=place, y=percent("accuracy_low"), y2="accuracy_high:Q", color=colour
            ),
            sizes.mark_point(filled=True, size=46, opacity=1).encode(
                x=place, y=y, color=colour, tooltip=tooltip
            ),
        ]
        notes = [f"{r['series']}: {r['rests_on']}" for r in tables["summary"]]
        if overlay:
            notes.append("published: read off a figure, without intervals")
        notes += [ADAPTIVE] if self.adaptive else []
        title = heading("Accuracy by problem size", notes, WIDTH)
        return alt.layer(*layers).properties(width=WIDTH, height=HEIGHT, title=title)


def _local(summary: dict[str, Any]) -> str:
    """The critical size and its local estimate, if both are known."""
    if summary["critical_size"] is None or summary["local_critical_size"] is None:
        return ""
    size = at(span(summary, "critical_size"), summary["unit"])
    return f"; below 50 % from {size} ({span(summary, 'local_critical_size')} by the three nearest sizes alone)"


def _doubts(summary: dict[str, Any], rows: Records) -> list[str]:
    """What speaks against the fitted curve: only the strongest of three reasons."""
    series, unit = summary["series"], summary["unit"]
    if (p := summary["steady_p_value"]) is not None and p < DOUBT:
        by_size = {
            r["size"]: f"{r['accuracy']:.0%} at {at(format(r['size'], 'g'), unit)}" for r in rows
        }
        rise = " and ".join(by_size[summary[end]] for end in ("rise_from", "rise_to"))
        return [
            f"{series}: accuracy does not fall steadily with size: {rise} ({_p(p)}). No critical size describes it."
        ]
    if (p := summary["local_p_value"]) is not None and p < DOUBT:
        both = "the fit to all sizes and the local one disagree"
        return [
            f"{series}: the critical size depends on the curve's shape: {both} ({_p(p)}). Quote both."
        ]
    if (p := summary["fit_p_value"]) is not None and p < MISFIT:
        return [
            f"{series}: the curve does not fit the accuracies ({_p(p)}). Quote the local estimate too."
        ]
    return []


def _p(p: float) -> str:
    return f"p = {p:.2g}" if p >= 1e-4 else "p < 0.0001"


def _by_task(tasks: Sequence[str]) -> dict[str, Any]:
    """Dashes that tell the curves of one model apart."""
    scale = alt.Scale(
        domain=list(tasks), range=[DASHES[i % len(DASHES)] for i in range(len(tasks))]
    )
    legend = alt.Legend(
        title=None, orient="bottom", symbolType="stroke", symbolSize=300, labelLimit=900
    )
    return {"strokeDash": alt.StrokeDash("task:N", scale=scale, legend=legend)}


def _where(row: dict[str, Any], *, alone: bool) -> str:
    """` at 16 cells`; nothing for the only size of a task if it is just a number, such as a
    benchmark's 0.
    """
    return "" if alone and not row["unit"] else f" at {at(format(row['size'], 'g'), row['unit'])}"


def _side_by_side(rows: Records, names: Sequence[str], frame: Frame) -> Records:
    """Moves the points of each series a few pixels sideways, so that their intervals don't cover
    each other.
    """
    apart = min(SIDE_BY_SIDE, 3 * SIDE_BY_SIDE / max(1, len(names) - 1))
    moved = []
    for r in rows:
        across, down = frame.pixel(r["size"], r["accuracy"])
        aside = apart * (names.index(r["series"]) - (len(names) - 1) / 2)
        moved.append({**r, "place": frame.value(across + aside, down)[0] if aside else r["size"]})
    return moved


def _frame(sizes: Sequence[float]) -> Frame:
    """Logarithmic, unless a size is 0."""
    log = min(sizes) > 0
    first, last = (log10(end) if log else end for end in (min(sizes), max(sizes)))
    margin = 0.03 * (last - first) or 0.1
    return Frame((first - margin, last + margin), (0.0, 1.0), WIDTH, HEIGHT, log=log)


def _across(frame: Frame, sizes: Sequence[float], unit: str) -> alt.X:
    ends = [10**end if frame.log else end for end in frame.x]
    scale = alt.Scale(type="log" if frame.log else "linear", domain=ends, nice=False, zero=False)
    axis = alt.Axis(
        values=sorted(set(sizes)), format="~r", labelOverlap="greedy", labelSeparation=4
    )
    return alt.X(
        "size:Q", title=size_title(unit, "log scale" if frame.log else ""), scale=scale, axis=axis
    )


def _published(
    overlay: Records, tables: Tables, frame: Frame, x: alt.X, y: alt.Y, colour: alt.Color
) -> Any:
    """Dotted lines, each with its model's name where no other line crosses it."""
    lines = {
        m: [r for r in overlay if r["model"] == m]
        for m in dict.fromkeys(r["model"] for r in overlay)
    }
    avoid = [
        [(r["size"], r["value"]) for r in tables["curves"] if r["series"] == row["series"]]
        for row in tables["summary"]
    ]
    avoid += [
        [(r["size"], r["accuracy_low"]), (r["size"], r["accuracy_high"])]
        for r in tables["sizes"]
        if r["attempts"]
    ]
    names = alt.layer(
        *lettering("size", alt.value(INK)),
        data=values(label_lines(lines, frame, "size", "accuracy", avoid)),
    )
    point = alt.OverlayMarkDef(size=12, filled=True)
    line = alt.Chart(values(overlay)).mark_line(strokeDash=[2, 2], strokeWidth=1, point=point)
    tooltip = ["model:N", "size:Q", "accuracy:Q"]
    return alt.layer(line.encode(x=x, y=y, color=colour, detail="model:N", tooltip=tooltip), names)
