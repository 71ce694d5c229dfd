"""Tokens by outcome where there is only one size: a strip of attempts per outcome, with the median.

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
from ponder.figures import (
    SOLVED,
    TRUNCATED,
    UNPARSED,
    WRONG,
    Row,
    basis,
    flat,
    heading,
    rows_of,
    span,
    values,
)
from ponder.figures._units import Amounts, with_unit
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
BLACK = "#222"


def outcome_rows(series: str, data: Columns, unit: str, outcomes: Sequence[Outcome]) -> Records:
    """Return the median tokens of the attempts with each outcome.

    Truncated attempts have none: they needed more tokens than they were given.
    """
    masks: dict[Ended, Bools] = {
        "right": data.correct,
        "wrong": ~(data.correct | data.unparsed | data.truncated),
        "unparsed": data.unparsed,
        "truncated": data.truncated,
    }
    rows = []
    for ended, mask in masks.items():
        if not mask.any():
            continue
        attempts = data.where(mask)
        median = Estimate(math.nan, math.nan, math.nan, 0, 0)
        if ended != "truncated":
            median = median_tokens(attempts)
        row = flat(
            series=series,
            outcome="solved" if ended == "right" else ended,
            median=median,
            attempts=len(attempts),
            problems=attempts.problems,
            size=float(attempts.size[0]),
            unit=unit,
            basis=basis(outcomes, (ended,)),
        )
        rows.append(row)
    return rows


def outcome_clause(rows: Records, amounts: Amounts) -> str:
    """Write the medians of one series.

    `the median of solved attempts is 210 [180, 240] output tokens, of wrong ones …`
    """
    size = _size(rows[0])
    at_size = f" at {size}" if size else ""
    clauses: list[str] = []
    for row in rows:
        if row["outcome"] == "truncated":
            continue
        median = span(row, amounts.column("median"))
        if clauses:
            clauses.append(f"of {row['outcome']} ones {median}")
        else:
            clauses.append(
                f"the median of {row['outcome']} attempts{at_size} is {median} {amounts.unit}"
            )
    if not clauses:
        return f"every attempt{at_size} was truncated"
    return ", ".join(clauses)


def outcome_marks(kinds: Sequence[str], amount: str) -> dict[str, Any]:
    """Return the channels that show an attempt's outcome, with one legend."""
    legend = alt.Legend(
        title=None, orient="bottom", symbolOpacity=1, symbolStrokeWidth=1.2, clipHeight=18
    )
    shapes, fills, strokes = zip(*(OUTCOMES[kind] for kind in kinds), strict=True)
    domain = list(kinds)
    return {
        "shape": alt.Shape(
            "outcome:N", scale=alt.Scale(domain=domain, range=list(shapes)), legend=legend
        ),
        "fill": alt.Fill(
            "outcome:N", scale=alt.Scale(domain=domain, range=list(fills)), legend=legend
        ),
        "stroke": alt.Stroke(
            "outcome:N", scale=alt.Scale(domain=domain, range=list(strokes)), legend=legend
        ),
        "tooltip": ["size:Q", f"{amount}:Q", "outcome:N", "why:N", "problem:N", "sample:Q"],
    }


def strips(tables: Tables, kinds: Sequence[str], width: int) -> Any:
    """Draw a group of strips per series, a strip per outcome, on one axis of tokens."""
    present = {row["outcome"] for row in tables["outcomes"]}
    strip_of = {kind: n for n, kind in enumerate(kind for kind in kinds if kind in present)}
    amounts = Amounts.of(tables["summary"][0])
    median = amounts.column("median")
    medians: Records = []
    for row in tables["outcomes"]:
        if row[median] is not None:
            label = textwrap.fill(row["series"], LABEL)
            medians.append({**row, "label": label, "place": strip_of[row["outcome"]]})
    with_interval = [row for row in medians if row[f"{median}_high"] is not None]
    labels = [textwrap.fill(summary["series"], LABEL) for summary in tables["summary"]]
    axis = alt.Axis(
        labelExpr=r"split(datum.label, '\n')", labelLimit=0, title=None, ticks=False, labelPadding=8
    )
    y = alt.Y("label:N", sort=labels, axis=axis, scale=alt.Scale(padding=0.1))
    offset = alt.YOffset(
        "place:Q", scale=alt.Scale(domain=[-0.6, len(strip_of) - 0.4], nice=False, zero=False)
    )
    x = alt.X(
        f"{amounts.noun}:Q",
        title=amounts.answer_title,
        scale=alt.Scale(domainMin=0),
        axis=alt.Axis(tickCount=8),
    )
    dots = alt.Chart(values(_spread(tables["attempts"], strip_of)))
    intervals = alt.Chart(values(with_interval))
    ticks = alt.Chart(values(medians))
    tooltip = ["outcome:N", f"{median}:Q", f"{median}_low:Q", f"{median}_high:Q", "attempts:Q"]
    layers = [
        dots.encode(y=y, yOffset=offset)
        .mark_point(size=26, opacity=0.45, strokeWidth=1.2)
        .encode(x=x, **outcome_marks(kinds, amounts.noun)),
        intervals.encode(y=y, yOffset=offset)
        .mark_rule(color=BLACK, strokeWidth=2)
        .encode(x=alt.X(f"{median}_low:Q"), x2=f"{median}_high:Q"),
        ticks.encode(y=y, yOffset=offset)
        .mark_tick(color=BLACK, thickness=3, size=0.9 * STRIP)
        .encode(x=alt.X(f"{median}:Q"), tooltip=tooltip),
    ]
    notes = []
    for summary in tables["summary"]:
        name = summary["series"]
        size = _size(rows_of(tables["outcomes"], summary)[0])
        if size:
            name = f"{name}, {size}"
        notes.append(f"{name}: {summary['rests_on']}")
    notes.append("black: median and its 95 % interval")
    return alt.layer(
        *layers,
        width=width,
        height=alt.Step(STRIP * len(strip_of) + 10),
        title=heading(f"{amounts.noun.capitalize()} by outcome", notes, width),
    )


def _spread(attempts: Records, strip_of: Mapping[str, int]) -> Records:
    """Return the attempts to draw, spread over the height of their strips so that more show."""
    groups: dict[tuple[str, str], Records] = {}
    for attempt in attempts:
        groups.setdefault((attempt["series"], attempt["outcome"]), []).append(attempt)
    drawn = []
    for (series, outcome), group in groups.items():
        label = textwrap.fill(series, LABEL)
        every = max(1, math.ceil(len(group) / MAX_POINTS))
        for n, attempt in enumerate(group[::every]):
            place = strip_of[outcome] + SPREAD * (n * GOLDEN % 1 - 0.5)
            drawn.append({**attempt, "place": place, "label": label})
    return drawn


def _size(row: Row) -> str:
    """Write a size, `36 cells`; "" if it is just a number, such as a benchmark's 0."""
    if not row["unit"]:
        return ""
    return with_unit(format(row["size"], "g"), row["unit"])
