"""Figures: each file turns outcomes into tables of estimates and draws them as one Altair chart.

This module holds what all figures share: colours, table rows, titles, axes and the theme.
"""

from __future__ import annotations

import itertools
import math
import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields, replace
from typing import Any, TypeAlias

import altair as alt

from ponder.core import ANSWERED, Basis, Ended, Estimate, Outcome, Records, UserError
from ponder.core.text import count, number
from ponder.study.labels import cells_of, series_labels

Row: TypeAlias = dict[str, Any]  # of a figure's table
SOLVED = "#1f6fb4"
WRONG = "#e8802f"
UNPARSED = "#8a5fbf"
TRUNCATED = "#b03a2e"
COLOURS = ["#1f6fb4", "#e8802f", "#2c9c69", "#8a5fbf", "#c8483f", "#7a6a58", "#d670ad", "#5b6770"]
MUTED = "#8b929a"
INK = "#5f6368"  # text beside muted marks
NO_BREAK = "\u00a0"  # a space at which no line ends


def by_series(outcomes: Sequence[Outcome]) -> Iterator[tuple[str, list[Outcome]]]:
    """Group outcomes by model, and by task if the study has several, in the study's order.

    Outcomes of two studies may have the same labels and different settings, which then name the
    model too.
    """
    names = series_labels(outcomes)
    groups: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        cell = outcome.cell
        model, series = names[cell.model_key, cell.task_key]
        if model != outcome.label.model:
            outcome = outcome._replace(label=replace(outcome.label, model=model))  # noqa: PLW2901
        groups.setdefault(series, []).append(outcome)
    yield from groups.items()


def basis(outcomes: Iterable[Outcome], ended: Iterable[Ended] = ANSWERED) -> Basis:
    """Return what a row is computed from: the attempts' cells, and the endings that it counts."""
    return Basis(cells_of(outcomes), ended)


def rows_of(rows: Records, group: Row) -> Records:
    """Return the rows of a panel or a series: those computed from its cells alone."""
    cells = set(group["basis"].cells)
    return [row for row in rows if cells.issuperset(row["basis"].cells)]


def in_problem_order(outcomes: Iterable[Outcome]) -> list[Outcome]:
    """Return the attempts that were answered, sorted by size, problem and sample."""
    answered = [outcome for outcome in outcomes if outcome.answered]
    return sorted(answered, key=lambda outcome: (outcome.size, outcome.problem, outcome.sample))


def pooled_findings(records: Records, name: str) -> list[str]:
    """Return sentences on what a figure pools, from the column `pooled` of its panels or series.

    `name` is the column that has the panel's or the series' name.
    """
    texts = {record["pooled"] for record in records}
    if len(texts) == 1:
        [text] = texts
        return [f"{text[0].upper()}{text[1:]}."] if text else []
    sentences = []
    for record in records:
        if record["pooled"]:
            sentences.append(f"{record[name]}: {record['pooled']}.")
    return sentences


def with_details(outcomes: Sequence[Outcome], name: str) -> list[Outcome]:
    """Return the outcomes whose task records this detail; raise if none does."""
    recorded = [outcome for outcome in outcomes if name in outcome.details]
    if not recorded:
        raise UserError(
            f"no attempt records `{name}`, which this figure needs", hint="use the task `execution`"
        )
    return recorded


def flat(**values: Any) -> Row:
    """Return a table row: an estimate `x` becomes `x`, `x_low` and `x_high`.

    NaN and infinity become None.
    """
    row: Row = {}
    for name, value in values.items():
        if isinstance(value, Estimate):
            row[name] = _finite(value.value)
            row[f"{name}_low"] = _finite(value.low)
            row[f"{name}_high"] = _finite(value.high)
        else:
            row[name] = _finite(value)
    return row


def _finite(value: Any) -> Any:
    if not isinstance(value, float):
        return value
    # NumPy's numbers are floats too, but JSON doesn't know them.
    return float(value) if math.isfinite(value) else None


def curve_records(curve: Any, **labels: Any) -> Records:
    """Return a curve as table rows, one per point."""
    columns = [field.name for field in fields(curve)]
    points = zip(*(getattr(curve, column) for column in columns), strict=True)
    return [flat(**labels, **dict(zip(columns, point, strict=True))) for point in points]


def ends(row: Row, name: str) -> tuple[Any, Any, Any]:
    """Return an estimate's value, and the low and the high end of its interval."""
    return row[name], row[f"{name}_low"], row[f"{name}_high"]


def span(row: Row, name: str, form: str = "") -> str:
    """Write an estimate: `41.3 [38, 45]`, `41.3 [38, no upper bound]`, or `beyond 60`."""

    def text(end: float | None) -> str:
        if end is None:
            return ""
        return format(end, form) if form else number(end)

    value, low, high = map(text, ends(row, name))
    if not value:
        return f"beyond {low}" if low not in ("", "0") and not high else "unknown"
    if not low and not high:
        return f"{value} (no interval)"
    return f"{value} [{low or 'no lower bound'}, {high or 'no upper bound'}]"


def counts(outcomes: Sequence[Outcome]) -> str:
    """Say how many attempts a figure draws, and how many it leaves out because they failed."""
    ended: Counter[str] = Counter(outcome.ended for outcome in outcomes)
    problems = {
        (outcome.size, outcome.problem) for outcome in outcomes if outcome.ended != "failed"
    }
    answered = ended.total() - ended["failed"]
    parts = [f"{count(answered, 'attempt')} at {count(len(problems), 'problem')}"]
    for ending in ("truncated", "unparsed"):
        if ended[ending]:
            parts.append(f"{ended[ending]:,} {ending}")
    if ended["failed"]:
        parts.append(f"{ended['failed']:,} failed and left out")
    return ", ".join(parts)


def themed(chart: Any, *, title: str = "", subtitle: str = "") -> alt.TopLevelMixin:
    """Apply the fonts, colours and spacing that every figure has."""
    if title:
        chart = chart.properties(title=alt.TitleParams(title, subtitle=subtitle))
    font = "Liberation Sans, Arial, Helvetica, sans-serif"  # vl-convert brings the first
    themed: alt.TopLevelMixin = (
        chart.configure(font=font, padding=12, background="white")
        .configure_axis(
            labelColor="#444",
            titleColor="#222",
            gridColor="#eceff1",
            domainColor="#9aa0a6",
            tickColor="#9aa0a6",
            titleFontWeight="normal",
            titleFontSize=12,
            labelFontSize=11,
        )
        .configure_title(
            anchor="start", fontSize=14, subtitleColor="#5f6368", subtitleFontSize=11, offset=10
        )
        .configure_legend(labelFontSize=11, titleFontSize=11, symbolSize=70, labelLimit=260)
        .configure_view(stroke=None)
    )
    return themed


def percent(field: str, title: alt.Optional[str] = alt.Undefined) -> alt.Y:
    """Return a y axis from 0 to 100 %. Only one layer of a chart needs the title."""
    return alt.Y(
        f"{field}:Q", title=title, scale=alt.Scale(domain=[0, 1]), axis=alt.Axis(format="%")
    )


def values(records: Records) -> alt.InlineData:
    return alt.InlineData(values=records)


def interval_tooltips(field: str, form: str) -> list[alt.Tooltip]:
    """Return the tooltips of an estimate and of both ends of its interval."""
    return [alt.Tooltip(f"{field}{end}:Q", format=form) for end in ("", "_low", "_high")]


def series_colour(names: Sequence[str], *, overlay: bool = False) -> alt.Color:
    """Return one colour per series, with a legend below the chart.

    An overlay is grey and called "published".
    """
    domain = list(names)
    palette = list(itertools.islice(itertools.cycle(COLOURS), len(names)))
    if overlay:
        domain.append("published")
        palette.append(MUTED)
    longest = max(map(len, domain), default=0)
    legend = alt.Legend(
        title=None,
        orient="bottom",
        columns=1 if longest > 30 else 4,
        symbolOpacity=1,
        labelLimit=900,
    )
    return alt.Color("series:N", scale=alt.Scale(domain=domain, range=palette), legend=legend)


def heading(title: str, notes: Sequence[str], width: int) -> alt.TitleParams:
    """Return a title and notes below it, broken into lines that fit a panel of this many pixels."""
    lines: list[str] = []
    for note in notes:
        lines += wrapped(note, max(20, int(width / 5.1)))
    return alt.TitleParams(
        textwrap.wrap(title, max(16, int(width / 6.6))), subtitle=lines or alt.Undefined
    )


def wrapped(note: str, letters: int) -> list[str]:
    """Break a note into lines.

    An interval stays on the line of its number: `41.3 [38, 45]`; so does a `%`.
    """
    unbroken = re.sub(r" (?=\[|%|[^\[\]]*\])", NO_BREAK, note)
    return [line.replace(NO_BREAK, " ") for line in textwrap.wrap(unbroken, letters)]
