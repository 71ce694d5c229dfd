"""Panels with accuracy on a linear y axis and a logarithmic x axis: their frame, axes and labels."""

from __future__ import annotations

import math
from collections.abc import Sequence

import altair as alt

from ponder.core import Records
from ponder.figures._labels import Frame, place_labels

SIZE = (430, 280)  # pixels


def log_frame(rows: Records, x: str, *, size: tuple[int, int] = SIZE, air: float = 0.09) -> Frame:
    """A frame that holds the points and their intervals, with a margin; `frame.x` is in powers of
    ten.
    """
    places = [math.log10(r[x]) for r in rows]
    beside = air * (max(places) - min(places)) or 0.3
    low, high = min(r["accuracy_low"] for r in rows), max(r["accuracy_high"] for r in rows)
    above = 0.05 * (high - low) or 0.05
    across = (min(places) - beside, max(places) + beside)
    return Frame(across, (max(0.0, low - above), min(1.0, high + above)), *size, log=True)


def log_axes(frame: Frame, x: str, title: str, ticks: Sequence[float]) -> tuple[alt.X, alt.Y]:
    """Both axes, with the ends of the frame: if Vega rounded them, labels would no longer be where
    they were placed.
    """
    across = alt.Scale(type="log", domain=[10**end for end in frame.x], nice=False)
    count = "replace(format(datum.value, '.3~s'), 'G', 'B')"
    axis = alt.Axis(
        values=sorted(set(ticks)), labelExpr=count, labelOverlap="greedy", labelSeparation=6
    )
    up = alt.Scale(domain=list(frame.y), nice=False, zero=False)
    y = alt.Y("accuracy:Q", title="accuracy", scale=up, axis=alt.Axis(format="%", tickCount=6))
    return alt.X(f"{x}:Q", title=title, scale=across, axis=axis), y


def log_placed(points: Records, x: str, frame: Frame, lines: Sequence[Records] = ()) -> Records:
    """Points (`x`, accuracy, its interval, a label), each with the place of its label, away from
    bars and lines.
    """
    return place_labels(points, frame, lines=lines, x=x)
