"""Figures: each file turns outcomes into tables of estimates, and draws those tables as one Altair
chart.

This module holds what figures share: colours, titles, axes, the theme, and the published numbers
for overlays.
"""

from __future__ import annotations

import csv
import itertools
import math
import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import altair as alt

from ponder.core import ANSWERED, Basis, Ended, Estimate, Outcome, Records, UserError
from ponder.core.plugins import nearest
from ponder.core.text import count, number
from ponder.study.labels import cells_of, series_labels

PUBLISHED = Path(__file__).parent / "published"
SOLVED, WRONG, UNPARSED, TRUNCATED = "#1f6fb4", "#e8802f", "#8a5fbf", "#b03a2e"
COLOURS = ["#1f6fb4", "#e8802f", "#2c9c69", "#8a5fbf", "#c8483f", "#7a6a58", "#d670ad", "#5b6770"]
MUTED = "#8b929a"
INK = "#5f6368"  # text beside muted marks
NO_BREAK = "\u00a0"  # a space at which no line ends
# Columns of published/*.csv that hold text; all others hold numbers.
TEXT_COLUMNS = ("model", "method", "benchmark", "family", "selector", "reward")


def published(name: str) -> Records:
    """Reads `published/NAME.csv`. An empty cell becomes None."""
    known = {p.stem: p for p in PUBLISHED.glob("*.csv")}
    if name not in known:
        raise UserError(
            f"there are no published numbers called `{name}`", hint=nearest(name, known)
        )
    with known[name].open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return [
        {k: v if k in TEXT_COLUMNS else float(v) if v else None for k, v in r.items()} for r in rows
    ]


def by_series(outcomes: Sequence[Outcome]) -> Iterator[tuple[str, list[Outcome]]]:
    """Groups outcomes by model, and by task if the study has several, in the study's order.

    Outcomes of two studies may have the same labels and different settings, which then name the
    model too.
    """
    names = series_labels(outcomes)
    groups: dict[str, list[Outcome]] = {}
    for o in outcomes:
        model, series = names[o.cell.model_key, o.cell.task_key]
        named = o if model == o.label.model else o._replace(label=replace(o.label, model=model))
        groups.setdefault(series, []).append(named)
    yield from groups.items()


def basis(outcomes: Iterable[Outcome], ended: Iterable[Ended] = ANSWERED) -> Basis:
    """Return what a row is computed from: the cells of these attempts, and how those of them ended
    that it counts.
    """
    return Basis(cells_of(outcomes), ended)


def pooled_findings(records: Records, name: str) -> list[str]:
    """Sentences on what a figure pools, from the column `pooled` of its panels or series, whose
    name is in `name`.
    """
    said = dict.fromkeys(r["pooled"] for r in records)
    if len(said) == 1:
        return [f"{text[0].upper()}{text[1:]}." for text in said if text]
    return [f"{r[name]}: {r['pooled']}." for r in records if r["pooled"]]


def with_details(outcomes: Sequence[Outcome], name: str) -> list[Outcome]:
    """The outcomes whose task records this detail."""
    recorded = [o for o in outcomes if name in o.details]
    if not recorded:
        raise UserError(
            f"no attempt records `{name}`, which this figure needs", hint="use the task `execution`"
        )
    return recorded


def flat(**values: Any) -> dict[str, Any]:
    """A table row: an estimate `x` becomes `x`, `x_low` and `x_high`; nan and infinity become None."""
    record: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Estimate):
            record |= {name: value.value, f"{name}_low": value.low, f"{name}_high": value.high}
        else:
            record[name] = value
    # NumPy's numbers are floats too, but JSON doesn't know them.
    return {
        k: (float(v) if math.isfinite(v) else None) if isinstance(v, float) else v
        for k, v in record.items()
    }


def curve_records(curve: Any, **labels: Any) -> Records:
    """A curve as table rows, one per point."""
    columns = [f.name for f in fields(curve)]
    rows = zip(*(getattr(curve, c) for c in columns), strict=True)
    return [flat(**labels, **dict(zip(columns, row, strict=True))) for row in rows]


def span(record: dict[str, Any], name: str, form: str = "") -> str:
    """An estimate: `41.3 [38, 45]`, `41.3 [38, no upper bound]`, or `beyond 60` if it exceeds what
    was tried.
    """
    ends = (record[key] for key in (name, f"{name}_low", f"{name}_high"))
    value, low, high = (
        "" if end is None else format(end, form) if form else number(end) for end in ends
    )
    if not value:
        return f"beyond {low}" if low not in ("", "0") and not high else "unknown"
    if not low and not high:
        return f"{value} (no interval)"
    return f"{value} [{low or 'no lower bound'}, {high or 'no upper bound'}]"


def counts(outcomes: Sequence[Outcome]) -> str:
    """How many attempts a figure draws, and how many it leaves out because they failed."""
    ended: Counter[str] = Counter(o.ended for o in outcomes)
    problems: dict[int, set[str]] = {}
    for o in outcomes:
        if o.ended != "failed":
            problems.setdefault(o.size, set()).add(o.problem)
    answered, asked = ended.total() - ended["failed"], sum(map(len, problems.values()))
    parts = [f"{count(answered, 'attempt')} at {count(asked, 'problem')}"]
    for ending, note in (("truncated", ""), ("unparsed", ""), ("failed", " and left out")):
        if n := ended[ending]:
            parts.append(f"{n:,} {ending}{note}")
    return ", ".join(parts)


def themed(chart: Any, *, title: str = "", subtitle: str = "") -> alt.TopLevelMixin:
    """Applies the fonts, colours and spacing that every figure has."""
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
    """A y axis from 0 to 100 %. Only one layer of a chart needs the title."""
    return alt.Y(
        f"{field}:Q", title=title, scale=alt.Scale(domain=[0, 1]), axis=alt.Axis(format="%")
    )


def values(records: Records) -> alt.InlineData:
    return alt.InlineData(values=records)


def series_colour(names: Sequence[str], *, overlay: bool = False) -> alt.Color:
    """One colour per series, with a legend below the chart; an overlay is grey and called
    "published".
    """
    domain = [*names, "published"] if overlay else list(names)
    palette = [*itertools.islice(itertools.cycle(COLOURS), len(names)), MUTED][: len(domain)]
    columns = 1 if max(map(len, domain), default=0) > 30 else 4
    legend = alt.Legend(
        title=None, orient="bottom", columns=columns, symbolOpacity=1, labelLimit=900
    )
    return alt.Color("series:N", scale=alt.Scale(domain=domain, range=palette), legend=legend)


def heading(title: str, notes: Sequence[str], width: int) -> alt.TitleParams:
    """A title and notes below it, broken into lines that fit a panel of this many pixels."""
    lines = [line for note in notes for line in wrapped(note, max(20, int(width / 5.1)))]
    return alt.TitleParams(
        textwrap.wrap(title, max(16, int(width / 6.6))), subtitle=lines or alt.Undefined
    )


def wrapped(note: str, letters: int) -> list[str]:
    """The lines of a note.

    An interval stays on the line of its number: `41.3 [38, 45]`; so does a `%`.
    """
    whole = re.sub(r" (?=\[|%|[^\[\]]*\])", NO_BREAK, note)
    return [line.replace(NO_BREAK, " ") for line in textwrap.wrap(whole, letters)]
