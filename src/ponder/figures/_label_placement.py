"""Places labels next to points and lines, so that they overlap little and stay inside the panel.

Vega-Lite draws every label at the same offset from its point, so that labels of crowded points
overlap. A `Frame` knows where a value is in pixels, so that labels can be placed before Vega draws.
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
from ponder.figures import Row
from ponder.stats.columns import Floats

Pixel: TypeAlias = tuple[float, float]
Box: TypeAlias = tuple[float, float, float, float]  # left, top, right, bottom, in pixels
Obstacle: TypeAlias = tuple[float, ...]  # cost per pixel, and the box
DOT = 6  # pixels from a point's centre to its edge
FAR = 14  # a label further from its point than this many pixels gets a line to it
LINE = 13  # pixels: height of a line of text at font size 11
LETTER = 5.7  # pixels: width of an average letter at font size 11
OFFSETS = (9, 16, 26, 38, 52)  # pixels between a point and its label, tried in turn
# Also tried if labels would still overlap, as those of many points of one accuracy do.
FAR_OFFSETS = (68, 86, 106, 128, 152, 178)
# Cost per pixel of a label that lies over another label, a point, or a line; outside the panel is
# worse than any.
LABEL_COST = 4.0
DOT_COST = 8.0
LINE_COST = 0.6
OUTSIDE_COST = 1000.0
CROSSING = 8  # pixels added to every overlap
ROUNDS = 4  # in which every label may move once
SIZE = (430, 280)  # pixels of a panel with a logarithmic axis


@dataclass(frozen=True, slots=True)
class Frame:
    """A panel: the ends of its axes, its size in pixels, and whether x is logarithmic.

    The ends of a logarithmic axis are powers of ten.
    """

    x: tuple[float, float]
    y: tuple[float, float]
    width: int
    height: int
    log: bool = False

    def pixel(self, x: float, y: float) -> Pixel:
        left, right = self.x
        bottom, top = self.y
        if self.log:
            x = math.log10(x)
        across = (x - left) / (right - left) * self.width
        down = (top - y) / (top - bottom) * self.height
        return across, down

    def value(self, across: float, down: float) -> tuple[float, float]:
        left, right = self.x
        bottom, top = self.y
        x = left + across / self.width * (right - left)
        if self.log:
            x = 10**x
        return x, top - down / self.height * (top - bottom)


def log_frame(rows: Records, x: str, *, size: tuple[int, int] = SIZE, air: float = 0.09) -> Frame:
    """Return a frame with a logarithmic x axis that holds the accuracies and their intervals.

    `air` is the margin left and right, as a fraction of the width.
    """
    exponents = [math.log10(row[x]) for row in rows]
    first = min(exponents)
    last = max(exponents)
    margin = air * (last - first) or 0.3
    low = min(row["accuracy_low"] for row in rows)
    high = max(row["accuracy_high"] for row in rows)
    above = 0.05 * (high - low) or 0.05
    y = (max(0.0, low - above), min(1.0, high + above))
    return Frame((first - margin, last + margin), y, *size, log=True)


def log_axes(
    frame: Frame, x: str, title: str, ticks: Sequence[float], form: str = ".3~s"
) -> tuple[alt.X, alt.Y]:
    """Return the axes of a frame; `form` is the format of the ticks.

    Vega may not round their ends, or labels would no longer be where they were placed.
    """
    x_axis = alt.Axis(
        values=sorted(set(ticks)),
        labelExpr=f"replace(format(datum.value, '{form}'), 'G', 'B')",
        labelOverlap="greedy",
        labelSeparation=6,
    )
    x_scale = alt.Scale(type="log", domain=[10**end for end in frame.x], nice=False)
    y_scale = alt.Scale(domain=list(frame.y), nice=False, zero=False)
    y_axis = alt.Axis(format="%", tickCount=6)
    return (
        alt.X(f"{x}:Q", title=title, scale=x_scale, axis=x_axis),
        alt.Y("accuracy:Q", title="accuracy", scale=y_scale, axis=y_axis),
    )


class _Option(NamedTuple):
    """A candidate position of a label, and the point that it belongs to."""

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
    """Add to each point where its label goes, and where a line to it ends.

    A point has `x`, accuracy, their intervals and a label. Labels also avoid the step line through
    `steps`, the dots `small`, and `lines`.
    """

    def pixel(row: Row) -> Pixel:
        return frame.pixel(row[x], row["accuracy"])

    anchors = [pixel(point) for point in points]
    obstacles: list[Obstacle] = [(DOT_COST, *_around(anchor, DOT)) for anchor in anchors]
    for point, anchor in zip(points, anchors, strict=True):
        for bar in _error_bars(point, x, anchor, frame):
            obstacles.append((LINE_COST, *bar))
    for a, b in itertools.pairwise(map(pixel, steps)):
        obstacles.append((LINE_COST, a[0], a[1] - 1, b[0], a[1] + 1))
        obstacles.append((LINE_COST, b[0] - 1, min(a[1], b[1]), b[0] + 1, max(a[1], b[1])))
    for dot in small:
        obstacles.append((LINE_COST, *_around(pixel(dot), 3)))
    for line in lines:
        obstacles += _along([pixel(point) for point in line])
    for offsets in (OFFSETS, OFFSETS + FAR_OFFSETS):
        options = []
        for point, anchor in zip(points, anchors, strict=True):
            options.append(_options(anchor, point["label"], offsets))
        chosen = _arrange(options, [obstacles] * len(options), frame)
        if not _overlap([option.box for option in chosen]):
            break
    return [_with_text(point, option, frame) for point, option in zip(points, chosen, strict=True)]


def label_lines(
    lines: Mapping[str, Records],
    frame: Frame,
    x: str,
    y: str,
    avoid: Sequence[Sequence[tuple[float, float]]] = (),
) -> Records:
    """Return one record per line: where along it its name covers least.

    Names also avoid the polylines in `avoid`.
    """
    drawn: dict[str, list[Pixel]] = {}
    for name, line in lines.items():
        drawn[name] = [frame.pixel(point[x], point[y]) for point in line]
    common: list[Obstacle] = []
    for polyline in avoid:
        common += _along([frame.pixel(*point) for point in polyline])
    for pixels in drawn.values():
        common += _along(pixels, cost=LABEL_COST)
    options = []
    obstacles = []
    for name, pixels in drawn.items():
        # A name keeps more distance from other lines than from its own, or it could be read as
        # theirs.
        near_others: list[Obstacle] = []
        for other, other_pixels in drawn.items():
            if other != name:
                near_others += _along(other_pixels, reach=2 * DOT)
        obstacles.append([*common, *near_others])
        anchors = []
        for a, b in itertools.pairwise(pixels):
            anchors += [_between(a, b, quarter / 4) for quarter in range(5)]
        line_options: list[_Option] = []
        for anchor in anchors or pixels:
            line_options += _options(anchor, name, OFFSETS[:4])
        options.append(line_options)
    labels = []
    for name, option in zip(lines, _arrange(options, obstacles, frame), strict=True):
        anchor_x, anchor_y = frame.value(*option.anchor)
        labels.append(_with_text({"label": name, x: anchor_x, y: anchor_y}, option, frame))
    return labels


def lettering(x: str, colour: Any, y: str = "accuracy") -> list[alt.Chart]:
    """Return the layers of placed labels: text on white, and a line to a distant point."""
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


def _around(pixel: Pixel, reach: float) -> Box:
    return pixel[0] - reach, pixel[1] - reach, pixel[0] + reach, pixel[1] + reach


def _between(a: Pixel, b: Pixel, fraction: float) -> Pixel:
    return a[0] + fraction * (b[0] - a[0]), a[1] + fraction * (b[1] - a[1])


def _error_bars(point: Row, x: str, anchor: Pixel, frame: Frame) -> list[Box]:
    """Return the boxes of a point's horizontal and vertical error bar."""
    left, _ = frame.pixel(point.get(f"{x}_low") or point[x], point["accuracy"])
    right, _ = frame.pixel(point.get(f"{x}_high") or point[x], point["accuracy"])
    high = point.get("accuracy_high")
    low = point.get("accuracy_low")
    _, top = frame.pixel(point[x], point["accuracy"] if high is None else high)
    _, bottom = frame.pixel(point[x], point["accuracy"] if low is None else low)
    return [
        (left, anchor[1] - 1, right, anchor[1] + 1),
        (anchor[0] - 1, top, anchor[0] + 1, bottom),
    ]


def _along(line: Sequence[Pixel], *, reach: float = 3, cost: float = LINE_COST) -> list[Obstacle]:
    """Return a polyline as small boxes, closer to each other than a line of text is high."""
    obstacles: list[Obstacle] = []
    for a, b in itertools.pairwise(line):
        count = math.ceil(math.dist(a, b) / 5) or 1
        for i in range(count + 1):
            obstacles.append((cost, *_around(_between(a, b, i / count), reach)))
    return obstacles


def _options(anchor: Pixel, label: str, offsets: Sequence[int]) -> list[_Option]:
    """Return the candidate positions around a point, nearest first."""
    x, y = anchor
    width = LETTER * len(label)
    options = []
    for offset, across, down in itertools.product(offsets, (1, -1, 0), (-1, 1, 0)):
        if not across and not down:
            continue
        diagonal = across and down
        reach = offset * (0.6 if diagonal else 1.0)
        above = 0.0 if across else LINE / 2 - 2
        middle = y + down * (reach + above)
        left = x - width / 2 + across * (reach + width / 2)
        box = (left, middle - LINE / 2, left + width, middle + LINE / 2)
        options.append(_Option(box, anchor))
    return options


def _arrange(
    options: Sequence[list[_Option]], obstacles: Sequence[Sequence[Obstacle]], frame: Frame
) -> list[_Option]:
    """Choose an option for every label: each in turn moves to the option of least cost."""
    chosen = [label_options[0] for label_options in options]
    for _ in range(ROUNDS):
        for k, label_options in enumerate(options):
            other_labels = [(LABEL_COST, *option.box) for i, option in enumerate(chosen) if i != k]
            covered = np.array([*other_labels, *obstacles[k]], dtype=np.float64).reshape(-1, 5)
            costs = [_cost(option, covered, frame) for option in label_options]
            chosen[k] = label_options[costs.index(min(costs))]
    return chosen


def _overlap(boxes: Sequence[Box]) -> bool:
    """Return whether any two boxes overlap."""
    for a, b in itertools.combinations(boxes, 2):
        if a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]:
            return True
    return False


def _cost(option: _Option, covered: Floats, frame: Frame) -> float:
    """Return the cost of an option; `covered` has a row per obstacle: cost per pixel, and box."""
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
    distance = math.dist(option.anchor, _nearest(option))
    return OUTSIDE_COST * outside + float(weight @ covered_pixels) + distance


def _nearest(option: _Option) -> Pixel:
    """Return the point of a label's box that is nearest to its anchor."""
    left, top, right, bottom = option.box
    x, y = option.anchor
    return min(max(x, left), right), min(max(y, top), bottom)


def _with_text(point: Row, option: _Option, frame: Frame) -> Row:
    left, top, right, bottom = option.box
    near = _nearest(option)
    if near[0] == left:
        align = "left"
        across = left
    elif near[0] == right:
        align = "right"
        across = right
    else:
        align = "center"
        across = (left + right) / 2
    text_x, text_y = frame.value(across, (top + bottom) / 2)
    far = math.dist(near, option.anchor) > FAR
    lead_x, lead_y = frame.value(*(near if far else option.anchor))
    return {
        **point,
        "align": align,
        "text_x": text_x,
        "text_y": text_y,
        "lead_x": lead_x,
        "lead_y": lead_y,
    }
