"""Pictures of estimates: one a file. Here is what they share: their look, and the published numbers."""

from __future__ import annotations

import csv
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import altair as alt

from ponder.core import Estimate, Outcome, Records, UserError
from ponder.core.plugins import nearest

PUBLISHED = Path(__file__).parent / "published"
SOLVED, FAILED = "#1f6fb4", "#e8802f"
COLOURS = ["#1f6fb4", "#e8802f", "#2c9c69", "#8a5fbf", "#c8483f", "#7a6a58", "#d670ad", "#5b6770"]
MUTED = "#8b929a"
# Of published numbers; their other columns are numbers.
TEXT_COLUMNS = ("model", "method", "benchmark", "family", "selector", "reward")


def published(name: str) -> Records:
    """The numbers of a published figure, as `published/NAME.csv` has them; numbers are numbers."""
    known = {p.stem: p for p in PUBLISHED.glob("*.csv")}
    if name not in known:
        raise UserError(f"there are no published numbers called `{name}`", hint=nearest(name, known))
    with known[name].open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return [{k: v if k in TEXT_COLUMNS else float(v) if v else None for k, v in r.items()} for r in rows]


def by_series(outcomes: Sequence[Outcome]) -> Iterator[tuple[str, list[Outcome]]]:
    """Outcomes by model, and by task where there are several, in the order in which the study names them."""
    several = len({o.task for o in outcomes}) > 1
    groups: dict[str, list[Outcome]] = {}
    for o in outcomes:
        groups.setdefault(f"{o.model}, {o.task}" if several else o.model, []).append(o)
    yield from groups.items()


def with_details(outcomes: Sequence[Outcome], name: str) -> list[Outcome]:
    """Those outcomes whose task records this detail."""
    found = [o for o in outcomes if name in o.details]
    if not found:
        raise UserError(
            f"no attempt records `{name}`, which this figure draws", hint="it goes with the task `execution`"
        )
    return found


def flat(**values: Any) -> dict[str, Any]:
    """A record of plain values: an estimate `x` becomes `x`, `x_low` and `x_high`, and what is unknown becomes None."""
    record: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Estimate):
            record |= {name: value.value, f"{name}_low": value.low, f"{name}_high": value.high}
        else:
            record[name] = value
    return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in record.items()}


def curve_records(curve: Any, **labels: Any) -> Records:
    """A curve for drawing, one record a place."""
    columns = [f.name for f in fields(curve)]
    places = zip(*(getattr(curve, c) for c in columns), strict=True)
    return [flat(**labels, **dict(zip(columns, place, strict=True))) for place in places]


def span(record: dict[str, Any], name: str, form: str = ",.3g") -> str:
    """An estimate in a sentence: `41.3 [38, 45]`, with `?` for an open end, or `beyond 60` for what was not reached."""
    ends = (record[key] for key in (name, f"{name}_low", f"{name}_high"))
    value, low, high = ("?" if end is None else format(end, form) for end in ends)
    if value == high == "?" and low not in ("?", "0"):
        return f"beyond {low}"
    return f"{value} [{low}, {high}]"


def counts(outcomes: Sequence[Outcome]) -> str:
    """What a figure rests on, and what it leaves out."""
    answered = [o for o in outcomes if o.status != "failed"]
    problems = len({(o.size, o.problem) for o in answered})
    said = [f"{len(answered):,} attempts at {problems:,} problems"]
    for status, note in (("truncated", ""), ("unparsed", ""), ("failed", " and left out")):
        if n := sum(o.status == status for o in outcomes):
            said.append(f"{n:,} {status}{note}")
    return ", ".join(said)


def themed(chart: Any, *, title: str = "", subtitle: str = "") -> alt.TopLevelMixin:
    """The look of every figure."""
    if title:
        chart = chart.properties(title=alt.TitleParams(title, subtitle=subtitle))
    font = "Helvetica, Arial, sans-serif"
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
        .configure_title(anchor="start", fontSize=14, subtitleColor="#5f6368", subtitleFontSize=11, offset=10)
        .configure_legend(labelFontSize=11, titleFontSize=11, symbolSize=70, labelLimit=260)
        .configure_view(stroke=None)
    )
    return themed


def percent(field: str, title: alt.Optional[str] = alt.Undefined) -> alt.Y:
    """An axis from 0 to 100 %; of a chart's layers only one need name it."""
    return alt.Y(f"{field}:Q", title=title, scale=alt.Scale(domain=[0, 1]), axis=alt.Axis(format="%"))


def values(records: Records) -> alt.InlineData:
    return alt.InlineData(values=records)


def thinned(records: Records, most: int) -> Records:
    """At most so many records, evenly through their order."""
    step = max(1, math.ceil(len(records) / most))
    return list(itertools.islice(records, 0, None, step))
