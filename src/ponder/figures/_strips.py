"""Tokens by outcome where there is only one size: a strip of attempts per outcome, with the median
and its interval.

A task of one size, such as a benchmark, has no trend to fit. What is left to see is how tokens are
distributed, and whether wrong answers take more of them than right ones.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt

from ponder.core import Ended, Estimate, Outcome, Records, Tables
from ponder.figures import SOLVED, TRUNCATED, UNPARSED, WRONG, basis, flat, heading, span, values
from ponder.figures._tokens import TITLES
from ponder.figures._units import at
from ponder.stats.accuracy import median_tokens
from ponder.stats.columns import Bools, Columns

# Outcome: shape, fill, outline. Wrong answers are hollow: attempts of one size share one x, and all
# kinds must show.
OUTCOMES = {
    "solved": ("circle", SOLVED, SOLVED),
    "wrong": ("square", "transparent", WRONG),
    "unparsed": ("diamond", "transparent", UNPARSED),
    "truncated": ("triangle-up", TRUNCATED, TRUNCATED),
}
MAX_POINTS = 2000  # attempts drawn per panel, or per strip
STRIP = 24  # pixels
LABEL = 32  # letters in a line of a label
SPREAD = 0.6  # of a strip's height, over which its attempts are spread
GOLDEN = (math.sqrt(5) - 1) / 2


def outcome_rows(series: str, data: Columns, unit: str, outcomes: Sequence[Outcome]) -> Records:
    """The median tokens of the attempts with each outcome; truncated ones needed more than they
    were given.
    """
    wrong = ~(data.correct | data.unparsed | data.truncated)
    parts: dict[Ended, Bools] = {
        "right": data.correct,
        "wrong": wrong,
        "unparsed": data.unparsed,
        "truncated": data.truncated,
    }
    rows = []
    for ended, chosen in parts.items():
        if chosen.any():
            own = data.where(chosen)
            median = (
                median_tokens(own)
                if ended != "truncated"
                else Estimate(math.nan, math.nan, math.nan, 0, 0)
            )
            rests = {"attempts": len(own), "problems": own.problems}
            where = {"size": float(own.size[0]), "unit": unit}
            outcome = "solved" if ended == "right" else ended
            row = flat(series=series, outcome=outcome, median=median, **rests, **where)
            rows.append({**row, "basis": basis(outcomes, (ended,))})
    return rows


def outcome_clause(rows: Records, tokens: str) -> str:
    """The medians of one series: `the median of solved attempts is 210 [180, 240] output tokens, of
    wrong ones …`.
    """
    medians = [(r["outcome"], span(r, "median")) for r in rows if r["outcome"] != "truncated"]
    where = f" at {asked}" if (asked := _size(rows[0])) else ""
    if not medians:
        return f"every attempt{where} was truncated"
    first, *others = medians
    told = f"the median of {first[0]} attempts{where} is {first[1]} {tokens}"
    return told + "".join(f", of {outcome} ones {median}" for outcome, median in others)


def outcome_marks(kinds: Sequence[str]) -> dict[str, Any]:
    """How attempts look by their outcome, with one legend."""
    legend = alt.Legend(
        title=None, orient="bottom", symbolOpacity=1, symbolStrokeWidth=1.2, clipHeight=18
    )
    scales = [
        alt.Scale(domain=list(kinds), range=[OUTCOMES[k][i] for k in kinds]) for i in range(3)
    ]
    return {
        "shape": alt.Shape("outcome:N", scale=scales[0], legend=legend),
        "fill": alt.Fill("outcome:N", scale=scales[1], legend=legend),
        "stroke": alt.Stroke("outcome:N", scale=scales[2], legend=legend),
        "tooltip": ["size:Q", "tokens:Q", "outcome:N", "why:N", "problem:N", "sample:Q"],
    }


def strips(tables: Tables, kinds: Sequence[str], width: int) -> Any:
    """A group of strips per series, a strip per outcome, on one axis of tokens."""
    places = {
        k: n
        for n, k in enumerate(
            k for k in kinds if any(r["outcome"] == k for r in tables["outcomes"])
        )
    }
    label = {r["series"]: textwrap.fill(r["series"], LABEL) for r in tables["summary"]}
    up = alt.Axis(
        labelExpr=r"split(datum.label, '\n')", labelLimit=0, title=None, ticks=False, labelPadding=8
    )
    y = alt.Y("label:N", sort=list(label.values()), axis=up, scale=alt.Scale(padding=0.1))
    place = alt.YOffset(
        "place:Q", scale=alt.Scale(domain=[-0.6, len(places) - 0.4], nice=False, zero=False)
    )
    tokens = TITLES[tables["summary"][0]["token_kind"]]
    x = alt.X("tokens:Q", title=tokens, scale=alt.Scale(domainMin=0), axis=alt.Axis(tickCount=8))
    medians = [
        {**r, "label": label[r["series"]], "place": places[r["outcome"]]}
        for r in tables["outcomes"]
        if r["median"] is not None
    ]
    known = [r for r in medians if r["median_high"] is not None]
    points = [{**p, "label": label[p["series"]]} for p in _spread(tables["attempts"], places)]
    dots, intervals, middles = (
        alt.Chart(values(rows)).encode(y=y, yOffset=place) for rows in (points, known, medians)
    )
    numbers = ["outcome:N", "median:Q", "median_low:Q", "median_high:Q", "attempts:Q"]
    layers = [
        dots.mark_point(size=26, opacity=0.45, strokeWidth=1.2).encode(x=x, **outcome_marks(kinds)),
        intervals.mark_rule(color="#222", strokeWidth=2).encode(
            x=alt.X("median_low:Q"), x2="median_high:Q"
        ),
        middles.mark_tick(color="#222", thickness=3, size=0.9 * STRIP).encode(
            x=alt.X("median:Q"), tooltip=numbers
        ),
    ]
    height = alt.Step(STRIP * len(places) + 10)
    return alt.layer(
        *layers,
        width=width,
        height=height,
        title=heading("Tokens by outcome", _notes(tables), width),
    )


def _spread(attempts: Records, places: Mapping[str, int]) -> Records:
    """The attempts to draw, each at its place: spread over the height of its strip, so that more of
    them show.
    """
    strips: dict[tuple[str, str], Records] = {}
    for p in attempts:
        strips.setdefault((p["series"], p["outcome"]), []).append(p)
    return [
        {**p, "place": places[outcome] + SPREAD * (n * GOLDEN % 1 - 0.5)}
        for (_, outcome), strip in strips.items()
        for n, p in enumerate(strip[:: max(1, math.ceil(len(strip) / MAX_POINTS))])
    ]


def _notes(tables: Tables) -> list[str]:
    size = {r["series"]: _size(r) for r in tables["outcomes"]}
    notes = [
        f"{r['series']}{', ' if size[r['series']] else ''}{size[r['series']]}: {r['rests_on']}"
        for r in tables["summary"]
    ]
    return [*notes, "black: median and its 95 % interval"]


def _size(row: dict[str, Any]) -> str:
    """`36 cells`; nothing if the size is just a number, such as a benchmark's 0."""
    return at(format(row["size"], "g"), row["unit"]) if row["unit"] else ""
