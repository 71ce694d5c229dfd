"""Places labels beside points and lines, so that they overlap little and stay inside the panel.

Vega-Lite draws every label at the same offset from its point, so that labels of crowded points
overlap.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import altair as alt
import numpy as np

from ponder.core import Records
from ponder.stats.columns import Floats

Row: TypeAlias = dict[str, Any]
Pixel: TypeAlias = tuple[float, float]
Box: TypeAlias = tuple[float, float, float, float]  # left, top, right, bottom, in pixels
DOT = 6  # pixels from a point's centre to its edge
FAR = 14  # a label further from its point than this many pixels gets a line to it
# pixels: height of a line of text and width of an average letter, at font size 11
LINE, LETTER = 13, 5.7
OFFSETS = (9, 16, 26, 38, 52)  # pixels between a point and its label, tried in turn
# Cost per pixel of a label that lies over another label, a point, or a line; outside the panel is
# worse than any.
LABEL_COST, DOT_COST, LINE_COST, OUTSIDE_COST = 4.0, 3.0, 0.6, 1000.0
CROSSING = 8  # pixels added to every overlap


@dataclass(frozen=True, slots=True)
class Frame:
    """A panel: the ends of its axes, its size in pixels, and whether x is logarithmic (its ends are
    then log10).
    """

    x: tuple[float, float]
    y: tuple[float, float]
    width: int
    height: int
    log: bool = False

    def pixel(self, x: float, y: float) -> Pixel:
        (left, right), (bottom, top) = self.x, self.y
        place = math.log10(x) if self.log else x
        return (place - left) / (right - left) * self.width, (top - y) / (
            top - bottom
        ) * self.height

    def value(self, across: float, down: float) -> tuple[float, float]:
        (left, right), (bottom, top) = self.x, self.y
        place = left + across / self.width * (right - left)
        return 10**place if self.log else place, top - down / self.height * (top - bottom)


class _Option(NamedTuple):
    """One possible place of a label, and the point that it belongs to."""

    box: Box
    anchor: Pixel


def place_labels(
    points: Records,
    frame: Frame,
    steps: Sequence[Row] = (),
    small: Sequence[Row] = (),
    *,
    lines: Sequence[Records] = (),
    x: str = "tokens",
) -> Records:
    """Adds to each point (`x`, accuracy, their intervals, a label) where its label goes and where a
    line to it ends.

    Labels also avoid the step line through `steps`, the dots `small`, and `lines`.
    """
    anchors = [frame.pixel(p[x], p["accuracy"]) for p in points]
    fixed: list[tuple[float, ...]] = [(DOT_COST, *_around(anchor, DOT)) for anchor in anchors]
    fixed += [
        (LINE_COST, *bar)
        for p, anchor in zip(points, anchors, strict=True)
        for bar in _bars(p, x, anchor, frame)
    ]
    for a, b in itertools.pairwise([frame.pixel(s[x], s["accuracy"]) for s in steps]):
        fixed.append((LINE_COST, a[0], a[1] - 1, b[0], a[1] + 1))
        fixed.append((LINE_COST, b[0] - 1, min(a[1], b[1]), b[0] + 1, max(a[1], b[1])))
    fixed += [(LINE_COST, *_around(frame.pixel(s[x], s["accuracy"]), 3)) for s in small]
    fixed += [
        box for line in lines for box in _trail([frame.pixel(p[x], p["accuracy"]) for p in line])
    ]
    options = [
        _options(anchor, p["label"], OFFSETS) for p, anchor in zip(points, anchors, strict=True)
    ]
    chosen = _arrange(options, [fixed] * len(options), frame)
    return [_with_text(p, option, frame) for p, option in zip(points, chosen, strict=True)]


def label_lines(
    lines: Mapping[str, Records],
    frame: Frame,
    x: str,
    y: str,
    avoid: Sequence[Sequence[tuple[float, float]]] = (),
) -> Records:
    """One record per line: where along it its name covers least.

    Names also avoid the polylines in `avoid`.
    """
    drawn = {name: [frame.pixel(p[x], p[y]) for p in line] for name, line in lines.items()}
    common = [box for line in avoid for box in _trail([frame.pixel(*place) for place in line])]
    common += [box for line in drawn.values() for box in _trail(line, cost=LABEL_COST)]
    options, fixed = [], []
    for name, line in drawn.items():
        # A name keeps more distance from other lines than from its own, or it could be read as
        # theirs.
        others = [
            box
            for other, places in drawn.items()
            if other != name
            for box in _trail(places, reach=2 * DOT)
        ]
        fixed.append([*common, *others])
        anchors = [
            _between(a, b, i / 4) for a, b in itertools.pairwise(line) for i in range(5)
        ] or line
        options.append([o for anchor in anchors for o in _options(anchor, name, OFFSETS[:4])])
    labels = []
    for name, option in zip(lines, _arrange(options, fixed, frame), strict=True):
        place = frame.value(*option.anchor)
        labels.append(_with_text({"label": name, x: place[0], y: place[1]}, option, frame))
    return labels


def lettering(x: str, colour: Any, y: str = "accuracy") -> list[alt.Chart]:
    """Layers for labels that were placed: the text on a white outline, and a thin line to a distant
    point.
    """
    text = alt.Chart().encode(x=alt.X("text_x:Q"), y=alt.Y("text_y:Q"), text="label:N")
    align: Any = alt.expr("datum.align")
    lead = alt.Chart().mark_rule(strokeWidth=0.8, opacity=0.6)
    return [
        lead.encode(
            x=alt.X(f"{x}:Q"), y=alt.Y(f"{y}:Q"), x2="lead_x:Q", y2="lead_y:Q", color=colour
        ),
        text.mark_text(align=align, fontSize=11, stroke="white", strokeWidth=3, strokeJoin="round"),
        text.mark_text(align=align, fontSize=11).encode(color=colour),
    ]


def _around(place: Pixel, reach: float) -> Box:
    return place[0] - reach, place[1] - reach, place[0] + reach, place[1] + reach


def _between(a: Pixel, b: Pixel, fraction: float) -> Pixel:
    return a[0] + fraction * (b[0] - a[0]), a[1] + fraction * (b[1] - a[1])


def _bars(point: Row, x: str, anchor: Pixel, frame: Frame) -> list[Box]:
    """The error bars of a point."""
    left, right = (
        frame.pixel(point.get(f"{x}_{e}") or point[x], point["accuracy"])[0]
        for e in ("low", "high")
    )
    top, bottom = (
        frame.pixel(
            point[x], point["accuracy"] if (end := point.get(f"accuracy_{e}")) is None else end
        )[1]
        for e in ("high", "low")
    )
    return [
        (left, anchor[1] - 1, right, anchor[1] + 1),
        (anchor[0] - 1, top, anchor[0] + 1, bottom),
    ]


def _trail(
    line: Sequence[Pixel], *, reach: float = 3, cost: float = LINE_COST
) -> list[tuple[float, ...]]:
    """A polyline as small boxes, closer to each other than a line of text is high."""
    places = []
    for a, b in itertools.pairwise(line):
        count = math.ceil(math.dist(a, b) / 5) or 1
        places += [_between(a, b, i / count) for i in range(count + 1)]
    return [(cost, *_around(place, reach)) for place in places]


def _options(anchor: Pixel, label: str, offsets: Sequence[int]) -> list[_Option]:
    """The places around a point, nearest first."""
    (x, y), width = anchor, LETTER * len(label)
    options = []
    for offset, across, down in itertools.product(offsets, (1, -1, 0), (-1, 1, 0)):
        if across or down:
            reach = offset * (0.6 if across and down else 1.0)
            middle = y + down * (reach + (0.0 if across else LINE / 2 - 2))
            left = x - width / 2 + across * (reach + width / 2)
            options.append(
                _Option((left, middle - LINE / 2, left + width, middle + LINE / 2), anchor)
            )
    return options


def _arrange(
    options: Sequence[list[_Option]], fixed: Sequence[Sequence[tuple[float, ...]]], frame: Frame
) -> list[_Option]:
    """Every label starts at its first option; then each in turn moves to the option of least cost."""
    chosen = [own[0] for own in options]
    for _, k in itertools.product(range(4), range(len(options))):
        others = [(LABEL_COST, *c.box) for i, c in enumerate(chosen) if i != k]
        covered = np.array([*others, *fixed[k]], dtype=np.float64).reshape(-1, 5)
        chosen[k] = min(options[k], key=lambda option: _cost(option, covered, frame))
    return chosen


def _cost(option: _Option, covered: Floats, frame: Frame) -> float:
    left, top, right, bottom = option.box
    outside = (
        max(0.0, -left)
        + max(0.0, right - frame.width)
        + max(0.0, -top)
        + max(0.0, bottom - frame.height)
    )
    weight, x0, y0, x1, y1 = covered.T
    # Overlap counts by its length along the text, and never as less than a letter or so: a thin
    # line spoils what it crosses.
    overlap = (np.minimum(right, x1) - np.maximum(left, x0)) * ((y1 > top) & (bottom > y0))
    covered_pixels = np.where(overlap > 0, overlap + CROSSING, 0.0)
    return (
        OUTSIDE_COST * outside
        + float(weight @ covered_pixels)
        + math.dist(option.anchor, _nearest(option))
    )


def _nearest(option: _Option) -> Pixel:
    """The point of a label's box that is nearest to its anchor."""
    (left, top, right, bottom), (x, y) = option
    return min(max(x, left), right), min(max(y, top), bottom)


def _with_text(point: Row, option: _Option, frame: Frame) -> Row:
    left, top, right, bottom = option.box
    near = _nearest(option)
    align, across = (
        ("left", left)
        if near[0] == left
        else ("right", right)
        if near[0] == right
        else ("center", (left + right) / 2)
    )
    text = frame.value(across, (top + bottom) / 2)
    lead = frame.value(*(near if math.dist(near, option.anchor) > FAR else option.anchor))
    return {
        **point,
        "align": align,
        "text_x": text[0],
        "text_y": text[1],
        "lead_x": lead[0],
        "lead_y": lead[1],
    }
