"""Where the names of dots go so that they cover as little as possible: Vega-Lite would print them over each other."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt

from ponder.core import Records

Box = tuple[float, float, float, float]  # left, top, right, bottom, in pixels
DOT = 6  # pixels around a dot's middle
FAR = 14  # pixels between a dot and its name that a line must bridge
LINE, LETTER = 13, 5.7  # pixels of a line of text and of an average letter, at size 11


@dataclass(frozen=True, slots=True)
class Frame:
    """A panel: what its axes span, and its pixels."""

    x: tuple[float, float]
    y: tuple[float, float]
    width: int
    height: int

    def pixel(self, x: float, y: float) -> tuple[float, float]:
        (left, right), (bottom, top) = self.x, self.y
        return (x - left) / (right - left) * self.width, (top - y) / (top - bottom) * self.height

    def value(self, across: float, down: float) -> tuple[float, float]:
        (left, right), (bottom, top) = self.x, self.y
        return left + across / self.width * (right - left), top - down / self.height * (top - bottom)


def error_at(points: Records, frame: Frame, steps: Records, small: Sequence[dict[str, Any]] = ()) -> Records:
    """Points (tokens, accuracy, their intervals, a label), each with the place of its name and the end of a line to it.

    Names also keep off the steps of a line and off small dots.
    """
    middles = [frame.pixel(p["tokens"], p["accuracy"]) for p in points]
    dots = [(x - DOT, y - DOT, x + DOT, y + DOT) for x, y in middles]
    lines = [line for p, middle in zip(points, middles, strict=True) for line in _lines(p, middle, frame)]
    for a, b in itertools.pairwise([frame.pixel(s["tokens"], s["accuracy"]) for s in steps]):
        lines += [(a[0], a[1] - 1, b[0], a[1] + 1), (b[0] - 1, min(a[1], b[1]), b[0] + 1, max(a[1], b[1]))]
    for x, y in (frame.pixel(s["tokens"], s["accuracy"]) for s in small):
        lines.append((x - 3, y - 3, x + 3, y + 3))
    width = [LETTER * len(p["label"]) for p in points]
    places = [_places(x, y, w) for (x, y), w in zip(middles, width, strict=True)]
    # Every name begins at its dot's right; then each in turn moves to where it covers least.
    chosen = [options[0] for options in places]
    for _, k in itertools.product(range(4), range(len(points))):
        others = [(4.0, c) for i, c in enumerate(chosen) if i != k]
        others += [(3.0, dot) for dot in dots] + [(0.6, line) for line in lines]
        chosen[k] = min(places[k], key=lambda box: _cost(box, others, frame, middles[k]))
    return [_with_text(p, box, frame) for p, box in zip(points, chosen, strict=True)]


def lettering(x: str, colour: Any) -> list[alt.Chart]:
    """Names on a white rim, with a thin line where one stands far from its dot."""
    text = alt.Chart().encode(x=alt.X("text_x:Q"), y=alt.Y("text_y:Q"), text="label:N")
    align: Any = alt.expr("datum.align")
    lead = alt.Chart().mark_rule(strokeWidth=0.8, opacity=0.6)
    return [
        lead.encode(x=alt.X(f"{x}:Q"), y=alt.Y("accuracy:Q"), x2="lead_x:Q", y2="lead_y:Q", color=colour),
        text.mark_text(align=align, fontSize=11, stroke="white", strokeWidth=3, strokeJoin="round"),
        text.mark_text(align=align, fontSize=11).encode(color=colour),
    ]


def _lines(point: dict[str, Any], middle: tuple[float, float], frame: Frame) -> list[Box]:
    """The two bars of a point's interval."""
    x, y = middle
    low, high = (
        frame.pixel(point.get(f"tokens_{e}") or point["tokens"], point["accuracy"])[0] for e in ("low", "high")
    )
    top, bottom = (
        frame.pixel(point["tokens"], point["accuracy"] if (end := point.get(f"accuracy_{e}")) is None else end)[1]
        for e in ("high", "low")
    )
    return [(low, y - 1, high, y + 1), (x - 1, top, x + 1, bottom)]


def _places(x: float, y: float, width: float) -> list[Box]:
    """Around a dot, the nearest first."""
    found = []
    for away in (9, 16, 26, 38, 52):
        for across, down in itertools.product((1, -1, 0), (-1, 1, 0)):
            if across or down:
                reach = away * (1.0 if not (across and down) else 0.6)
                middle = y + down * (reach + (0.0 if across else LINE / 2 - 2))
                left = x - width / 2 + across * (reach + width / 2)
                found.append((left, middle - LINE / 2, left + width, middle + LINE / 2))
    return found


def _cost(box: Box, others: list[tuple[float, Box]], frame: Frame, middle: tuple[float, float]) -> float:
    left, top, right, bottom = box
    outside = max(0.0, -left) + max(0.0, right - frame.width) + max(0.0, -top) + max(0.0, bottom - frame.height)
    # Overlap counts by its length along the text: a thin line through a name spoils it from end to end.
    covered = sum(w * max(0.0, min(right, r) - max(left, x)) for w, (x, t, r, b) in others if b > top and bottom > t)
    return 8 * outside + covered + math.dist(middle, _nearest(box, middle))


def _nearest(box: Box, middle: tuple[float, float]) -> tuple[float, float]:
    left, top, right, bottom = box
    return min(max(middle[0], left), right), min(max(middle[1], top), bottom)


def _with_text(point: dict[str, Any], box: Box, frame: Frame) -> dict[str, Any]:
    left, top, right, bottom = box
    middle = frame.pixel(point["tokens"], point["accuracy"])
    near = _nearest(box, middle)
    align, across = (
        ("left", left) if near[0] == left else ("right", right) if near[0] == right else ("center", (left + right) / 2)
    )
    text = frame.value(across, (top + bottom) / 2)
    lead = frame.value(*near) if math.dist(near, middle) > FAR else (point["tokens"], point["accuracy"])
    return {**point, "align": align, "text_x": text[0], "text_y": text[1], "lead_x": lead[0], "lead_y": lead[1]}
