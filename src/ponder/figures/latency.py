"""Draws the latency of each model: the median and the slow tail of its seconds per attempt, its
seconds to the first token, and its tokens per second.

p90 and p95 are the times that the slowest 10 % and 5 % of attempts exceed; for tokens per second,
where less is slower, p10 and p5. Intervals are 95 %, clustered by problem; one without an upper end
needs more problems. `seconds` count from when a request was sent, so they include the server's
queue. Streamed replies (`stream = true`) also record the first token, and servers that report their
own working time (llama.cpp, vLLM with `--enable-per-request-metrics`, Groq) the wait.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import altair as alt
import numpy as np

from ponder.core import Figure, Outcome, Records, Tables
from ponder.core.text import number
from ponder.figures import (
    COLOURS,
    INK,
    basis,
    by_series,
    counts,
    flat,
    heading,
    in_problem_order,
    interval_tooltips,
    pooled_findings,
    rows_of,
    span,
    themed,
    values,
)
from ponder.stats.columns import clusters
from ponder.stats.quantiles import quantile
from ponder.study.labels import pooled

SECONDS = "seconds"
SPEED = "tokens_per_second"
# What is drawn, in this order, and the title of its axis. All but `seconds` are details that only
# some models record.
TITLES = {
    SECONDS: "seconds per attempt",
    "first_token_seconds": "seconds to the first token",
    SPEED: "tokens per second, after the first token",
    "wait_seconds": "seconds of waiting: the server's queue and the network",
}
TAILS = (0.5, 0.1, 0.05)  # the fraction of attempts that are slower
TAIL_NAMES = ("median", "slowest 10 %", "slowest 5 %")
WIDTH = 300  # pixels of a panel
MARK = 15  # pixels from one mark to the next
LABEL = 30  # letters in a line of a model's name
LOG_FROM = 30  # ratio of the largest value to the smallest from which the axis is logarithmic
QUEUE = (
    "Seconds per attempt include the wait in the server's queue, which no server reported: "
    "stream = true records the seconds to the first token"
)


@dataclass(frozen=True)
class Latency(Figure):
    def estimate(self, outcomes: Sequence[Outcome]) -> Tables:
        tables: Tables = {"summary": [], "quantiles": []}
        for series, attempts in by_series(outcomes):
            answered = in_problem_order(attempts)
            recorded = [name for name in TITLES if any(_has(o, name) for o in answered)]
            summary = {
                "series": series,
                "rests_on": counts(attempts),
                "pooled": pooled([answered]),
                "queue_known": "wait_seconds" in recorded,
                "streamed": "first_token_seconds" in recorded,
                "basis": basis(attempts),
            }
            tables["summary"].append(summary)
            for name in recorded:
                tables["quantiles"] += _quantiles(series, name, answered)
        return tables

    def findings(self, tables: Tables) -> list[str]:
        sentences = pooled_findings(tables["summary"], "series")
        for summary in tables["summary"]:
            rows = rows_of(tables["quantiles"], summary)
            clauses = []
            for name in TITLES:
                clause = _clause(name, [row for row in rows if row["quantity"] == name])
                if clause:
                    clauses.append(clause)
            if clauses:
                sentences.append(f"{summary['series']}: {'; '.join(clauses)}.")
        if _queue_unknown(tables["summary"]):
            sentences.append(f"{QUEUE}.")
        return sentences

    def draw(self, tables: Tables) -> alt.TopLevelMixin:
        rows = tables["quantiles"]
        names = [summary["series"] for summary in tables["summary"]]
        panels = []
        for name in TITLES:
            panel_rows = [row for row in rows if row["quantity"] == name]
            if panel_rows:
                panels.append(_panel(name, panel_rows, names))
        notes = [f"{summary['series']}: {summary['rests_on']}" for summary in tables["summary"]]
        notes += dict.fromkeys(row["pooled"] for row in tables["summary"] if row["pooled"])
        notes.append("lines: 95 % intervals over problems; an arrow: no upper bound")
        if _queue_unknown(tables["summary"]):
            notes.append(QUEUE)
        columns = min(2, len(panels))
        title = heading("Latency", notes, columns * (WIDTH + 150))
        grid = alt.concat(*panels, columns=columns, spacing=30)
        return themed(grid.properties(title=title))


def _has(outcome: Outcome, name: str) -> bool:
    return name == SECONDS or name in outcome.details


def _value(outcome: Outcome, name: str) -> float:
    if name == SECONDS:
        return outcome.seconds
    return float(outcome.details[name])


def _quantiles(series: str, name: str, answered: Sequence[Outcome]) -> Records:
    """Return the rows of one quantity of one series, the median first."""
    measured = [outcome for outcome in answered if _has(outcome, name)]
    numbers = np.array([_value(outcome, name) for outcome in measured], dtype=np.float64)
    problem = clusters(measured)
    rows = []
    for tail, tail_name in zip(TAILS, TAIL_NAMES, strict=True):
        fraction = tail if name == SPEED else 1 - tail
        row = flat(
            series=series,
            quantity=name,
            percentile=f"p{100 * fraction:.0f}",
            tail=tail_name,
            value=quantile(numbers, problem, fraction),
            attempts=len(answered),
            measured=len(measured),
            problems=len(np.unique(problem)),
            basis=basis(answered),
        )
        rows.append(row)
    return rows


def _clause(name: str, rows: Records) -> str:
    """Say the median and the last percentile of a quantity; "" if it wasn't measured."""
    if not rows:
        return ""
    median = rows[0]
    last = rows[-1]
    clause = (
        f"{TITLES[name]} {span(median, 'value')} at the median "
        f"and {span(last, 'value')} at {last['percentile']}"
    )
    if median["measured"] < median["attempts"]:
        clause += f" (measured in {median['measured']:,} of {median['attempts']:,} attempts)"
    return clause


def _queue_unknown(summaries: Records) -> bool:
    """Return whether some model shows neither its wait nor its first token."""
    return any(not row["queue_known"] and not row["streamed"] for row in summaries)


def _panel(name: str, rows: Records, series: Sequence[str]) -> Any:
    """Draw a quantity: a group of three marks for each model."""
    present = [label for label in series if any(row["series"] == label for row in rows)]
    ends = []
    for row in rows:
        ends += [row["value"], row["value_low"], row["value_high"] or 0.0]
    largest = max(ends)
    smallest = min(row["value_low"] for row in rows)
    is_log = smallest > 0 and largest > LOG_FROM * smallest
    scale_type: Literal["linear", "log"] = "linear"
    axis_title = TITLES[name]
    start = 0.0
    edge = largest * 1.08 or 1.0  # where an interval without an end is drawn to
    room = 1.15  # for the numbers right of the intervals
    if is_log:
        scale_type = "log"
        axis_title += ", log scale"
        start = smallest / 1.2
        edge = largest * 1.3
        room = 1.8
    marks = []
    for row in rows:
        mark = {**row, "model": textwrap.fill(row["series"], LABEL), "text": number(row["value"])}
        mark["drawn_high"] = edge if row["value_high"] is None else row["value_high"]
        marks.append(mark)
    x = alt.X(
        "value:Q",
        title=axis_title,
        scale=alt.Scale(type=scale_type, domain=[start, edge * room], nice=False),
        axis=alt.Axis(format="~g", tickCount=6, labelOverlap="greedy", labelSeparation=6),
    )
    axis = alt.Axis(
        labelExpr=r"split(datum.label, '\n')", labelLimit=0, title=None, ticks=False, labelPadding=8
    )
    y = alt.Y(
        "model:N",
        sort=[textwrap.fill(label, LABEL) for label in present],
        axis=axis,
        scale=alt.Scale(paddingInner=0.3, paddingOuter=0.2),
    )
    offset = alt.YOffset("tail:N", sort=list(TAIL_NAMES))
    legend = alt.Legend(title=None, orient="bottom", symbolOpacity=1)
    scale = alt.Scale(domain=list(TAIL_NAMES), range=[COLOURS[0], COLOURS[1], COLOURS[4]])
    colour = alt.Color("tail:N", scale=scale, legend=legend)
    tooltip = ["series:N", "percentile:N", *interval_tooltips("value", ",.3~s")]
    tooltip += ["measured:Q", "problems:Q"]
    chart = alt.Chart(values(marks))
    open_ends = alt.Chart(values([mark for mark in marks if mark["value_high"] is None]))
    layers = [
        chart.mark_rule(strokeWidth=1.4).encode(
            x=alt.X("value_low:Q"), x2="drawn_high:Q", y=y, yOffset=offset, color=colour
        ),
        open_ends.mark_point(shape="triangle-right", filled=True, size=40, opacity=1).encode(
            x=alt.X("drawn_high:Q"), y=y, yOffset=offset, color=colour
        ),
        chart.mark_point(filled=True, size=50, opacity=1).encode(
            x=x, y=y, yOffset=offset, color=colour, tooltip=tooltip
        ),
        chart.mark_text(align="left", dx=7, fontSize=10, color=INK).encode(
            x=alt.X("drawn_high:Q"), y=y, yOffset=offset, text="text:N"
        ),
    ]
    percentiles = ", ".join(dict.fromkeys(row["percentile"] for row in rows))
    title = alt.TitleParams(f"{name} ({percentiles})", fontSize=12)
    return alt.layer(*layers, width=WIDTH, height=alt.Step(MARK, **{"for": "offset"}), title=title)
