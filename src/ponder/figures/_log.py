"""A panel with a logarithmic axis across and accuracy upwards: its frame, its axes, and where the names of dots go."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import altair as alt

from ponder.core import Records
from ponder.figures._labels import Frame, error_at

SIZE = (430, 280)  # pixels


def log_frame(rows: Records, x: str, *, size: tuple[int, int] = SIZE, air: float = 0.09) -> Frame:
    """As far as points and their intervals go, with some air; across in powers of ten."""
    places = [math.log10(r[x]) for r in rows]
    beside = air * (max(places) - min(places)) or 0.3
    low, high = min(r["accuracy_low"] for r in rows), max(r["accuracy_high"] for r in rows)
    above = 0.05 * (high - low) or 0.05
    across = (min(places) - beside, max(places) + beside)
    return Frame(across, (max(0.0, low - above), min(1.0, high + above)), *size)


def log_axes(frame: Frame, x: str, title: str, ticks: Sequence[float]) -> tuple[alt.X, alt.Y]:
    # Vega would round the ends, and names would no longer stand where they were error_at.
    across = alt.Scale(type="log", domain=[10**end for end in frame.x], nice=False)
    count = "replace(format(datum.value, '.3~s'), 'G', 'B')"
    axis = alt.Axis(values=sorted(set(ticks)), labelExpr=count, labelOverlap="greedy", labelSeparation=6)
    up = alt.Scale(domain=list(frame.y), nice=False, zero=False)
    y = alt.Y("accuracy:Q", title="accuracy", scale=up, axis=alt.Axis(format="%", tickCount=6))
    return alt.X(f"{x}:Q", title=title, scale=across, axis=axis), y


def log_placed(points: Records, x: str, frame: Frame, lines: Sequence[Records] = ()) -> Records:
    """Points (`x`, accuracy, its interval, a label), each with the place of its name, off bars and lines."""
    at = [{**p, "tokens": math.log10(p[x])} for p in points]
    ends = [({**p, "accuracy": p["accuracy_low"]}, {**p, "accuracy": p["accuracy_high"]}) for p in at]
    for a, b in (pair for line in lines for pair in itertools.pairwise(line)):
        ends.append(({**a, "tokens": math.log10(a[x])}, {**b, "tokens": math.log10(b[x])}))
    beside = [
        {name: (1 - t) * a[name] + t * b[name] for name in ("tokens", "accuracy")}
        for a, b in ends
        for t in (i / 20 for i in range(21))
    ]
    found = error_at(at, frame, [], beside)
    return [{**p, "text_x": 10 ** p["text_x"], "lead_x": 10 ** p["lead_x"]} for p in found]
