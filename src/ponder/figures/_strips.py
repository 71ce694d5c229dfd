"""Tokens by outcome where there is only one size: a strip of attempts per outcome, with the median and its interval.

A task of one size, such as a benchmark, has no trend to fit. What is left to see is how tokens are distributed, and
whether wrong answers take more of them than right ones.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from typing import Any

import altair as alt

from ponder.core import Estimate, Records, Tables
from ponder.figures import SOLVED, TRUNCATED, WRONG, flat, heading, span, values
from ponder.figures._tokens import TITLES
from ponder.figures._units import at
from ponder.stats.accuracy import median_tokens
from ponder.stats.columns import Columns

# Outcome: shape, fill, outline. Wrong answers are hollow: attempts of one size share one x, and both kinds must show.
OUTCOMES = {
    "solved": ("circle", SOLVED, SOLVED),
    "wrong": ("square", "transparent", WRONG),
    "truncated": ("triangle-up", TRUNCATED, TRUNCATED),
}
MAX_POINTS = 2000  # attempts drawn per panel, or per strip
STRIP = 24  # pixels
LABEL = 32  # letters in a line of a label
SPREAD = 0.6  # of a strip's height, over which its attempts are spread
GOLDEN = (math.sqrt(5) - 1) / 2


def outcome_rows(series: str, data: Columns, unit: str) -> Records:
    """The median tokens of the solved and of the wrong attempts; truncated ones needed more than they were given."""
    answered = ~data.truncated
    parts = {"solved": data.correct, "wrong": answered & ~data.correct, "truncated": data.truncated}
    rows = []
    for outcome, chosen in parts.items():
        if chosen.any():
            own = data.where(chosen)
            median = median_tokens(own) if outcome != "truncated" else Estimate(math.nan, math.nan, math.nan, 0, 0)
            rests = {"attempts": len(own), "problems": own.problems}
            where = {"size": float(own.size[0]), "unit": unit}
            rows.append(flat(series=series, outcome=outcome, median=median, **rests, **where))
    return rows


def outcome_clause(rows: Records, tokens: str) -> str:
    """The medians of one series: `the median of solved attempts is 210 [180, 240] output tokens, of wrong ones …`."""
    medians = [(r["outcome"], span(r, "median")) for r in rows if r["outcome"] != "truncated"]
    where = f" at {asked}" if (asked := _size(rows[0])) else ""
    if not medians:
        return f"every attempt{where} was truncated"
    first, *others = medians
    told = f"the median of {first[0]} attempts{where} is {first[1]} {tokens}"
    return told + "".join(f", of {outcome} ones {median}" for outcome, median in others)


def outcome_marks(kinds: Sequence[str]) -> dict[str, Any]:
    """How attempts look by their outcome, with one legend."""
    legend = alt.Legend(title=None, orient="bottom", symbolOpacity=1, symbolStrokeWidth=1.2, clipHeight=18)
    scales = [alt.Scale(domain=list(kinds), range=[OUTCOMES[k][i] for k in kinds]) for i in range(3)]
    return {
        "shape": alt.Shape("outcome:N", scale=scales[0], legend=legend),
        "fill": alt.Fill("outcome:N", scale=scales[1], legend=legend),
        "stroke": alt.Stroke("outcome:N", scale=scales[2], legend=legend),
        "tooltip": ["size:Q", "tokens:Q", "outcome:N", "why:N", "problem:N", "sample:Q"],
    }


def strips(tables: Tables, kinds: Sequence[str], width: int) -> Any:
    """A group of strips per series, a strip per outcome, on one axis of tokens."""
    tokens = TITLES[tables["summary"][0]["token_kind"]]
    names = [r["series"] for r in tables["summary"]]
    up = alt.Axis(labelExpr=r"split(datum.label, '\n')", labelLimit=0, title=None, ticks=False, labelPadding=8)
    label = {name: textwrap.fill(name, LABEL) for name in names}
    y = alt.Y("label:N", sort=list(label.values()), axis=up, scale=alt.Scale(padding=0.1))
    places = {k: n for n, k in enumerate(k for k in kinds if any(r["outcome"] == k for r in tables["outcomes"]))}
    place = alt.YOffset("place:Q", scale=alt.Scale(domain=[-0.6, len(places) - 0.4], nice=False, zero=False))
    x = alt.X("tokens:Q", title=tokens, scale=alt.Scale(domainMin=0), axis=alt.Axis(tickCount=8))
    medians = [
        {**r, "label": label[r["series"]], "place": places[r["outcome"]]}
        for r in tables["outcomes"]
        if r["median"] is not None
    ]
    points = [
        {**p, "label": label[name], "place": places[kind] + SPREAD * (n * GOLDEN % 1 - 0.5)}
        for name in names
        for kind in places
        for n, p in enumerate(_some([p for p in tables["attempts"] if (p["series"], p["outcome"]) == (name, kind)]))
    ]
    middle, numbers = (
        alt.Chart(values(medians)),
        ["outcome:N", "median:Q", "median_low:Q", "median_high:Q", "attempts:Q"],
    )
    layers = [
        alt.Chart(values(points))
        .mark_point(size=26, opacity=0.45, strokeWidth=1.2)
        .encode(x=x, y=y, yOffset=place, **outcome_marks(kinds)),
        alt.Chart(values([r for r in medians if r["median_high"] is not None]))
        .mark_rule(color="#222", strokeWidth=2)
        .encode(x=alt.X("median_low:Q"), x2="median_high:Q", y=y, yOffset=place),
        middle.mark_tick(color="#222", thickness=3, size=STRIP * 0.9).encode(
            x=alt.X("median:Q"), y=y, yOffset=place, tooltip=numbers
        ),
    ]
    size = {r["series"]: _size(r) for r in tables["outcomes"]}
    notes = [
        ", ".join(filter(None, (n, size[n]))) + f": {r['rests_on']}"
        for n, r in zip(names, tables["summary"], strict=True)
    ]
    notes.append("black: median and its 95 % interval")
    title = heading("Tokens by outcome", notes, width)
    return alt.layer(*layers, width=width, height=alt.Step(STRIP * len(places) + 10), title=title)


def _size(row: dict[str, Any]) -> str:
    """`36 cells`; nothing if the size is just a number, such as a benchmark's 0."""
    return at(format(row["size"], "g"), row["unit"]) if row["unit"] else ""


def _some(points: Records) -> Records:
    return points[:: max(1, math.ceil(len(points) / MAX_POINTS))]
