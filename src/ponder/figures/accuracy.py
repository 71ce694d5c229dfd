"""Plots accuracy against problem size, with 95 % intervals and the fitted curve that gives the
critical size.

The critical size is the size at which accuracy falls below 50 %. Next to it is a local estimate
from the three sizes nearest to it; the findings say if the two differ, or if accuracy does not fall
steadily with size. With `target`, the largest size with that accuracy is marked instead, for tasks
whose sizes an adaptive run chose (`stop = { goal = "max_size" }`); points are larger where it made
more attempts. A task of one size, such as a benchmark, or whose sizes are only levels, has bars
instead, one per model. The tables also have the tokens of each size.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from math import log10
from typing import Any, Literal

import altair as alt

from ponder.core import Estimate, Figure, Outcome, Records, Tables, UserError
from ponder.core.text import count, number
from ponder.figures import (
    INK,
    MUTED,
    Row,
    basis,
    by_series,
    counts,
    curve_records,
    flat,
    heading,
    interval_tooltips,
    percent,
    rows_of,
    series_colour,
    span,
    themed,
    values,
)
from ponder.figures._label_placement import Frame, label_lines, lettering
from ponder.figures._published import by_model, published
from ponder.figures._units import (
    LEVELS,
    Tokens,
    size_title,
    token_columns,
    token_kind,
    unit_of,
    with_unit,
)
from ponder.stats.accuracy import by_size
from ponder.stats.columns import columns
from ponder.stats.critical import critical_size
from ponder.stats.designs.critical_size import LEVEL, after_ladder
from ponder.stats.designs.max_size import Search
from ponder.stats.judged import corrected, judged

WIDTH = 520  # pixels
HEIGHT = 300
TARGET_WIDTH = 480  # pixels, if a target is drawn
DASHES = ([1, 0], [6, 3], [2, 2], [8, 3, 2, 3])  # a task's curves, where colours are the models'
DOUBT = 0.05  # a p-value below which the findings doubt the fitted curve
MISFIT = 0.01  # the test of fit gives up to 8 % of false alarms at 5 %
ADAPTIVE = "adaptive run: more attempts near the critical size, whose interval is valid for that"
SIDE_BY_SIDE = 6  # pixels between the intervals of two series
BAR = 22  # pixels of a bar, with the space to the next
LABEL = 32  # letters in a line of a label next to bars


@dataclass(frozen=True)
class Accuracy(Figure):
    overlay: Literal["", "tents_success"] = ""  # published accuracies to draw as well
    # what size counts, such as "cells", or "levels" for bars; default: the task's own unit
    unit: str = ""
    # in the tables; auto: thinking if every model reports it, else output (thinking + answer)
    tokens: Tokens = "auto"
    # intervals that are valid if the results decided where to ask; with `stop` always true
    adaptive: bool = False
    # mark the largest size with this accuracy, as in `stop = { goal = "max_size", target = 0.8 }`;
    # 0: draw the fitted curve instead
    target: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.target < 1:
            raise UserError(
                f"target is an accuracy below 1, not {self.target:g}", hint="target = 0.8"
            )

    def estimate(self, outcomes: Sequence[Outcome]) -> Tables:
        if self.target:
            return self._largest_sizes(outcomes)
        tables: Tables = {"summary": [], "sizes": [], "curves": []}
        kind = token_kind(outcomes, self.tokens)
        for series, attempts in by_series(outcomes):
            data = columns(attempts, kind)
            label = attempts[0].label
            unit = unit_of(attempts, self.unit)
            critical = critical_size(data, LEVEL if self.adaptive else 0.95)
            summary = flat(
                series=series,
                critical_size=after_ladder(data) if self.adaptive else critical.size,
                local_critical_size=critical.local,
                local_p_value=critical.local_p_value,
                lapse=critical.lapse,
                fit_p_value=critical.fit_p_value,
                steady_p_value=critical.steady_p_value,
                rise_from=critical.rise[0],
                rise_to=critical.rise[1],
                rests_on=counts(attempts) + _graded_by(attempts),
                model=label.model,
                task=label.task,
                unit=unit,
                **token_columns(outcomes, self.tokens),
                basis=basis(attempts),
            )
            tables["summary"].append(summary)
            if critical.curve:
                tables["curves"] += curve_records(
                    critical.curve, series=series, basis=summary["basis"]
                )
            for at_size in by_size(data):
                of_size = [attempt for attempt in attempts if attempt.size == at_size.size]
                judging = _judging(of_size, at_size.accuracy)
                row = flat(
                    series=series,
                    size=at_size.size,
                    accuracy=judging.pop("corrected", at_size.accuracy),
                    tokens=at_size.tokens,
                    geometric_mean_tokens=at_size.geometric,
                    median_tokens=at_size.median,
                    attempts=at_size.accuracy.attempts,
                    problems=at_size.accuracy.problems,
                    unparsed=at_size.unparsed,
                    truncated=at_size.truncated,
                    failed=at_size.failed,
                    model=label.model,
                    task=label.task,
                    unit=unit,
                    basis=basis(of_size),
                    **judging,
                )
                tables["sizes"].append(row)
        return tables

    def _largest_sizes(self, outcomes: Sequence[Outcome]) -> Tables:
        """Return for each series the largest size with the target accuracy."""
        tables: Tables = {"summary": [], "sizes": []}
        for series, attempts in by_series(outcomes):
            results = {}
            for at_size in by_size(columns(attempts)):
                accuracy = at_size.accuracy
                if not accuracy.attempts:
                    continue
                size = int(at_size.size)
                results[size] = (round(accuracy.value * accuracy.attempts), accuracy.attempts)
                row = flat(
                    series=series,
                    size=size,
                    accuracy=accuracy,
                    attempts=accuracy.attempts,
                    basis=basis(o for o in attempts if o.size == size),
                )
                tables["sizes"].append(row)
            search = Search(target=self.target, high=max([2, *results]))
            summary = flat(
                series=series,
                max_turn=search.estimate(results),
                rests_on=counts(attempts),
                unit=unit_of(attempts, self.unit),
                basis=basis(attempts),
            )
            tables["summary"].append(summary)
        return tables

    def findings(self, tables: Tables) -> list[str]:
        sentences = []
        if self.target:
            for summary in tables["summary"]:
                sentences.append(
                    f"{summary['series']}: the largest size with {self.target:.0%} accuracy is "
                    f"{_largest_size(summary)}."
                )
            return sentences
        tasks = self._tasks_with_curves(tables)
        for summary in tables["summary"]:
            rows = _answered(rows_of(tables["sizes"], summary))
            has_curve = _task(summary) in tasks
            quoted = rows
            if has_curve and len(rows) > 1:
                quoted = [rows[0], rows[-1]]
            clauses = []
            for row in quoted:
                where = _where(row, alone=len(rows) == 1)
                clauses.append(span(row, "accuracy", ".0%") + where + _judged(row))
            if clauses:
                critical = _critical_size(summary) if has_curve else ""
                sentences.append(
                    f"{summary['series']}: accuracy {' and '.join(clauses)}{critical}."
                )
            if has_curve:
                sentences += _doubts(summary, rows)
        return sentences

    def _tasks_with_curves(self, tables: Tables) -> set[bytes]:
        """Return the tasks of several sizes, unless their sizes are only levels."""
        sizes: dict[bytes, set[float]] = {}
        for row in _answered(tables["sizes"]):
            if row["unit"] != LEVELS:
                sizes.setdefault(_task(row), set()).add(row["size"])
        tasks = set()
        for task, task_sizes in sizes.items():
            if len(task_sizes) > 1 or self.overlay:
                tasks.add(task)
        return tasks

    def draw(self, tables: Tables) -> alt.TopLevelMixin:
        if self.target:
            return themed(self._target_chart(tables))
        tasks = self._tasks_with_curves(tables)
        with_curves: Tables = {"summary": [], "sizes": [], "curves": tables["curves"]}
        with_bars: Tables = {"summary": [], "sizes": []}
        for name in ("summary", "sizes"):
            for row in tables[name]:
                group = with_curves if _task(row) in tasks else with_bars
                group[name].append(row)
        models = list(dict.fromkeys(row["model"] for row in tables["summary"]))
        if not with_bars["summary"]:
            return themed(self._curves(with_curves, []))
        bars = _bars(with_bars, models)
        if not with_curves["summary"]:
            return themed(bars)
        both = alt.vconcat(self._curves(with_curves, models), bars, spacing=40)
        return themed(both.resolve_scale(color="independent", strokeDash="independent"))

    def _curves(self, tables: Tables, models: Sequence[str]) -> Any:
        """Draw a curve per series, with a colour per series.

        With `models`, a colour per model and a dash per task.
        """
        overlay = published(self.overlay) if self.overlay else []
        names = [summary["series"] for summary in tables["summary"]]
        measured: Records = []
        fitted: Records = []
        for summary in tables["summary"]:
            name = summary["model"] if models else summary["series"]
            for row in rows_of(tables["curves"], summary):
                fitted.append({**row, "drawn_as": name, "task": summary["task"]})
        for row in _answered(tables["sizes"]):
            measured.append({**row, "drawn_as": row["model"] if models else row["series"]})
        frame = _frame([row["size"] for row in [*measured, *overlay]])
        colour = series_colour(models or names, overlay=bool(overlay))
        colour.shorthand = "drawn_as:N"
        tasks = list(dict.fromkeys(summary["task"] for summary in tables["summary"]))
        dashes = _dashes(tasks) if models and len(tasks) > 1 else {}
        x = _size_axis(frame, [row["size"] for row in measured], _units(tables["summary"]))
        x_aside = x.copy()
        x_aside.shorthand = "place:Q"
        y = percent("accuracy", "accuracy")
        tooltip = [
            "series:N",
            "size:Q",
            *interval_tooltips("accuracy", ".3f"),
            "attempts:Q",
            "problems:Q",
        ]
        layers = []
        if overlay:
            layers.append(_published_lines(overlay, tables, frame, x, y, colour))
        curves = alt.Chart(values(fitted))
        sizes = alt.Chart(values(_side_by_side(measured, names, frame)))
        layers += [
            curves.mark_area(opacity=0.13).encode(
                x=x, y=percent("low"), y2="high:Q", color=colour, detail="series:N"
            ),
            curves.mark_line(strokeWidth=1.8).encode(
                x=x, y=percent("value"), color=colour, detail="series:N", **dashes
            ),
            sizes.mark_rule(strokeWidth=1.2).encode(
                x=x_aside, y=percent("accuracy_low"), y2="accuracy_high:Q", color=colour
            ),
            sizes.mark_point(filled=True, size=46, opacity=1).encode(
                x=x_aside, y=y, color=colour, tooltip=tooltip
            ),
        ]
        notes = [f"{summary['series']}: {summary['rests_on']}" for summary in tables["summary"]]
        if overlay:
            notes.append("published: read off a figure, without intervals")
        if self.adaptive:
            notes.append(ADAPTIVE)
        title = heading("Accuracy by problem size", notes, WIDTH)
        return alt.layer(*layers).properties(width=WIDTH, height=HEIGHT, title=title)

    def _target_chart(self, tables: Tables) -> Any:
        """Draw accuracy by size, with the largest size at the target and its interval."""
        summaries = tables["summary"]
        colour = series_colour([summary["series"] for summary in summaries])
        scale = alt.Scale(type="log", nice=False, padding=14)
        ticks = alt.Axis(
            values=sorted({row["size"] for row in tables["sizes"]}),
            labelOverlap="greedy",
            labelSeparation=4,
            format="~r",
        )
        x = alt.X(
            "size:Q", title=size_title(_units(summaries), "log scale"), scale=scale, axis=ticks
        )
        attempts = [row["attempts"] for row in tables["sizes"]]
        legend = alt.Legend(
            title="attempts",
            orient="right",
            values=sorted({min(attempts), max(attempts)}),
            format="d",
        )
        area = alt.Size("attempts:Q", scale=alt.Scale(domainMin=0, range=[10, 160]), legend=legend)
        largest = [row for row in summaries if row["max_turn"] is not None]
        bounded = [row for row in summaries if row["max_turn_low"] and row["max_turn_high"]]
        target = alt.Chart(values([{"target": self.target}]))
        points = alt.Chart(values(tables["sizes"]))
        layers = [
            target.mark_rule(color=MUTED, strokeDash=[4, 3]).encode(y=percent("target")),
            alt.Chart(values(bounded))
            .mark_rect(opacity=0.18)
            .encode(
                x=alt.X("max_turn_low:Q", scale=scale, axis=ticks),
                x2="max_turn_high:Q",
                color=colour,
            ),
            alt.Chart(values(largest))
            .mark_rule(strokeWidth=1.6)
            .encode(x=alt.X("max_turn:Q", scale=scale, axis=ticks), color=colour),
            points.mark_rule(opacity=0.4).encode(
                x=x, y=percent("accuracy_low"), y2="accuracy_high:Q", color=colour
            ),
            points.mark_point(filled=True, opacity=0.9).encode(
                x=x,
                y=percent("accuracy", "accuracy"),
                color=colour,
                size=area,
                tooltip=["series:N", "size:Q", "accuracy:Q", "attempts:Q"],
            ),
        ]
        notes = []
        for summary in summaries:
            notes.append(f"{summary['series']}: {_largest_size(summary)}; {summary['rests_on']}")
        notes.append("vertical line and band: the estimate and its 95 % interval")
        title = heading(
            f"Largest size with {self.target:.0%} accuracy (further right is better)",
            notes,
            TARGET_WIDTH,
        )
        return alt.layer(*layers, width=TARGET_WIDTH, height=HEIGHT, title=title)


def _judging(attempts: Sequence[Outcome], accuracy: Estimate) -> dict[str, Any]:
    """Return the columns of attempts that a judge has graded, such as its own accuracy.

    With enough labels, `corrected` is the accuracy without the judge's errors.
    """
    data = judged(attempts)
    if not data.judged.any():
        return {}
    columns: dict[str, Any] = {"labels": data.labels}
    estimate = corrected(data)
    if estimate is not None:
        columns |= {"corrected": estimate, "judged_accuracy": accuracy}
    return columns


def _graded_by(attempts: Sequence[Outcome]) -> str:
    """Say in a chart's heading that a judge has graded; "" if none has."""
    data = judged(attempts)
    if not data.judged.any():
        return ""
    if not data.labels:
        return ", graded by an unchecked judge"
    return f", graded by a judge, {count(data.labels, 'label')}"


def _judged(row: Row) -> str:
    """Say of an accuracy how the judge that found it was checked; "" if there was no judge."""
    if row.get("labels") is None:
        return ""
    labels = count(row["labels"], "label")
    if row["labels"] == 0:
        return " by a judge whose errors nobody has measured"
    if row.get("judged_accuracy") is None:
        return f" by a judge ({labels} here, too few to correct for its errors)"
    return f", corrected by {labels} (the judge alone: {span(row, 'judged_accuracy', '.0%')})"


def _task(row: Row) -> bytes:
    """Return the key of the task that a row is about."""
    task: bytes = row["basis"].cells[0].task_key
    return task


def _answered(rows: Records) -> Records:
    return [row for row in rows if row["accuracy"] is not None]


def _largest_size(summary: Row) -> str:
    """Write the largest size; `fewer than 1` if even the smallest size asked was too large."""
    size = span(summary, "max_turn")
    if summary["max_turn"] is None and not summary["max_turn_low"] and summary["max_turn_high"]:
        size = f"fewer than {number(summary['max_turn_high'])}"
    return f"{size} {summary['unit']}".strip()


def _critical_size(summary: Row) -> str:
    """Write the critical size and its local estimate, if both are known."""
    if summary["critical_size"] is None or summary["local_critical_size"] is None:
        return ""
    size = with_unit(span(summary, "critical_size"), summary["unit"])
    local = span(summary, "local_critical_size")
    return f"; below 50 % from {size} ({local} by the three nearest sizes alone)"


def _doubts(summary: Row, rows: Records) -> list[str]:
    """Return the strongest reason to doubt the fitted curve, if there is one."""
    series = summary["series"]
    steady_p = summary["steady_p_value"]
    if steady_p is not None and steady_p < DOUBT:
        by_size = {}
        for row in rows:
            size = with_unit(format(row["size"], "g"), summary["unit"])
            by_size[row["size"]] = f"{row['accuracy']:.0%} at {size}"
        rise = f"{by_size[summary['rise_from']]} and {by_size[summary['rise_to']]}"
        return [
            (
                f"{series}: accuracy does not fall steadily with size: {rise} ({_p(steady_p)}). "
                "No critical size describes it."
            )
        ]
    local_p = summary["local_p_value"]
    if local_p is not None and local_p < DOUBT:
        return [
            (
                f"{series}: the critical size depends on the curve's shape: the fit to all sizes "
                f"and the local one disagree ({_p(local_p)}). Quote both."
            )
        ]
    fit_p = summary["fit_p_value"]
    if fit_p is not None and fit_p < MISFIT:
        return [
            (
                f"{series}: the curve does not fit the accuracies ({_p(fit_p)}). "
                "Quote the local estimate too."
            )
        ]
    return []


def _p(p: float) -> str:
    return f"p = {p:.2g}" if p >= 1e-4 else "p < 0.0001"


def _where(row: Row, *, alone: bool) -> str:
    """Return ` at 16 cells`; "" for the only size of a task if it is just a number."""
    if alone and not row["unit"]:
        return ""
    return f" at {with_unit(format(row['size'], 'g'), row['unit'])}"


def _units(summaries: Records) -> str:
    """Return the unit of the size axis, by task if tasks have different units."""
    units = {}
    for summary in summaries:
        if summary["unit"]:
            units[summary.get("task"), summary["unit"]] = summary["unit"]
    distinct = dict.fromkeys(units.values())
    if len(distinct) > 1 and None not in {task for task, _ in units}:
        return ", ".join(f"{task}: {unit}" for task, unit in units)
    return ", ".join(distinct)


def _dashes(tasks: Sequence[str]) -> dict[str, alt.StrokeDash]:
    """Return the dashes that tell the curves of one model apart."""
    dashes = [DASHES[i % len(DASHES)] for i in range(len(tasks))]
    legend = alt.Legend(
        title=None, orient="bottom", symbolType="stroke", symbolSize=300, labelLimit=900
    )
    scale = alt.Scale(domain=list(tasks), range=dashes)
    return {"strokeDash": alt.StrokeDash("task:N", scale=scale, legend=legend)}


def _side_by_side(rows: Records, names: Sequence[str], frame: Frame) -> Records:
    """Move the points of each series sideways, so that their intervals don't cover each other."""
    step = min(SIDE_BY_SIDE, 3 * SIDE_BY_SIDE / max(1, len(names) - 1))
    moved = []
    for row in rows:
        aside = step * (names.index(row["series"]) - (len(names) - 1) / 2)
        place = row["size"]
        if aside:
            across, down = frame.pixel(row["size"], row["accuracy"])
            place, _ = frame.value(across + aside, down)
        moved.append({**row, "place": place})
    return moved


def _frame(sizes: Sequence[float]) -> Frame:
    """Return a logarithmic frame, unless a size is 0."""
    log = min(sizes) > 0
    first = log10(min(sizes)) if log else min(sizes)
    last = log10(max(sizes)) if log else max(sizes)
    margin = 0.03 * (last - first) or 0.1
    return Frame((first - margin, last + margin), (0.0, 1.0), WIDTH, HEIGHT, log=log)


def _size_axis(frame: Frame, sizes: Sequence[float], unit: str) -> alt.X:
    if frame.log:
        domain = [10**end for end in frame.x]
        scale = alt.Scale(type="log", domain=domain, nice=False, zero=False)
        title = size_title(unit, "log scale")
    else:
        scale = alt.Scale(type="linear", domain=list(frame.x), nice=False, zero=False)
        title = size_title(unit)
    axis = alt.Axis(
        values=sorted(set(sizes)), format="~r", labelOverlap="greedy", labelSeparation=4
    )
    return alt.X("size:Q", title=title, scale=scale, axis=axis)


def _published_lines(
    overlay: Records, tables: Tables, frame: Frame, x: alt.X, y: alt.Y, colour: alt.Color
) -> Any:
    """Draw dotted lines, each with its model's name where no other line crosses it."""
    avoid = []
    for summary in tables["summary"]:
        curve = rows_of(tables["curves"], summary)
        avoid.append([(row["size"], row["value"]) for row in curve])
    for row in tables["sizes"]:
        if row["attempts"]:
            avoid.append([(row["size"], row["accuracy_low"]), (row["size"], row["accuracy_high"])])
    names = alt.layer(
        *lettering("size", alt.value(INK)),
        data=values(label_lines(by_model(overlay), frame, "size", "accuracy", avoid)),
    )
    drawn = [{**row, "drawn_as": "published"} for row in overlay]
    point = alt.OverlayMarkDef(size=12, filled=True)
    line = alt.Chart(values(drawn)).mark_line(strokeDash=[2, 2], strokeWidth=1, point=point)
    tooltip = ["model:N", "size:Q", "accuracy:Q"]
    return alt.layer(line.encode(x=x, y=y, color=colour, detail="model:N", tooltip=tooltip), names)


def _bars(tables: Tables, models: Sequence[str]) -> Any:
    """Draw a group of bars per task and size, a bar per model; `models` orders their colours."""
    bars = _grouped(_answered(tables["sizes"]))
    groups = list(dict.fromkeys(row["group"] for row in bars))
    # A label that Vega cuts off would lose the level at its end.
    axis = alt.Axis(
        labelExpr=r"split(datum.label, '\n')", labelLimit=0, title=None, ticks=False, labelPadding=8
    )
    y = alt.Y(
        "group:N", sort=groups, axis=axis, scale=alt.Scale(paddingInner=0.3, paddingOuter=0.15)
    )
    offset = alt.YOffset("series:N", sort=models, scale=alt.Scale(paddingInner=0.15))
    x = alt.X(
        "accuracy:Q", title="accuracy", scale=alt.Scale(domain=[0, 1]), axis=alt.Axis(format="%")
    )
    tooltip = [
        "model:N",
        "task:N",
        "size:Q",
        *interval_tooltips("accuracy", ".3f"),
        "attempts:Q",
        "problems:Q",
        "unparsed:Q",
        "truncated:Q",
    ]
    chart = alt.Chart()
    layers = [
        chart.mark_bar(opacity=0.75).encode(
            y=y, yOffset=offset, x=x, color=series_colour(models), tooltip=tooltip
        ),
        chart.mark_rule(color="#222", strokeWidth=1.3).encode(
            y=y, yOffset=offset, x=alt.X("accuracy_low:Q"), x2="accuracy_high:Q"
        ),
        chart.mark_text(align="left", dx=5, fontSize=11, color="#222").encode(
            y=y,
            yOffset=offset,
            x=alt.X("accuracy_high:Q"),
            text=alt.Text("accuracy:Q", format=".0%"),
        ),
    ]
    notes = [f"{summary['series']}: {summary['rests_on']}" for summary in tables["summary"]]
    title = "Accuracy by task"
    if len(groups) == 1:
        title = f"Accuracy on {groups[0]}".replace("\n", " ")
    return alt.layer(
        *layers,
        data=values(bars),
        width=WIDTH,
        height=alt.Step(BAR, **{"for": "offset"}),
        title=heading(title, notes, WIDTH),
    )


def _grouped(rows: Records) -> Records:
    """Add the name of each row's group, by task in the study's order, then by size."""
    sizes: dict[bytes, set[float]] = {}
    for row in rows:
        sizes.setdefault(_task(row), set()).add(row["size"])
    tasks = list(sizes)
    ordered = sorted(rows, key=lambda row: (tasks.index(_task(row)), row["size"]))
    grouped = []
    for row in ordered:
        name = _group_name(row, alone=len(sizes[_task(row)]) == 1)
        grouped.append({**row, "series": row["model"], "group": name})
    return grouped


def _group_name(row: Row, *, alone: bool) -> str:
    """Name a task and its size; a benchmark's one size has no name, but its one level has."""
    if alone and not row["unit"]:
        return textwrap.fill(row["task"], LABEL)
    size = with_unit(format(row["size"], "g"), row["unit"])
    separator = " " if row["unit"] == LEVELS else ", "
    return textwrap.fill(f"{row['task']}{separator}{size}", LABEL)
