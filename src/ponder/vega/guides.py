"""What explains a panel: its axes, its legends and its title."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ponder.vega.expressions import compiled
from ponder.vega.marks import MIDDLE, dashes, symbol
from ponder.vega.scales import Bands, Colours, Continuous, Legend
from ponder.vega.spec import Panel, Spec, Unit
from ponder.vega.text import shortened, tag, width, written
from ponder.vega.unknown import Unknown, one_of, only

AXIS = "title format tickCount values labelExpr labelOverlap labelSeparation labelAngle ticks domain grid minExtent".split()
LEGEND = (
    "title orient columns offset symbolOpacity symbolType fillColor padding format values labelLimit tickCount "
    "gradientThickness gradientLength".split()
)
ORIENTS = ("right", "bottom", "top", "top-right")
TICK, GAP, TITLE_GAP = 5, 2, 4  # pixels of a tick, before its label, and before the axis's title
ASCENT, DESCENT = 0.79, 0.21  # of a line's size
LINE = 2  # pixels between lines
LONGEST_LABEL = 180  # pixels


@dataclass(frozen=True)
class Style:
    """The colours and sizes of what is no mark."""

    axis: Spec
    legend: Spec
    title: Spec

    @property
    def label_size(self) -> float:
        return float(self.axis.get("labelFontSize", 10))

    @property
    def title_size(self) -> float:
        return float(self.axis.get("titleFontSize", 11))


@dataclass(frozen=True)
class Drawing:
    """Part of the picture, and the box that it takes."""

    body: str
    left: float
    top: float
    right: float
    bottom: float


def lines_of(text: Any) -> list[str]:
    return [str(line) for line in text] if isinstance(text, list) else [str(text)] if text else []


def axis(panel: Panel, channel: str, style: Style) -> Drawing:
    """An axis with its grid, at the left or at the bottom."""
    across, scale = channel == "x", panel.scales.get(channel)
    wide, high = float(panel.width), float(panel.height)
    nothing = Drawing("", 0, 0, wide, high)
    if scale is None:
        return nothing
    asked = [unit.encoding[channel] for unit in panel.units if "field" in unit.encoding.get(channel, {})]
    given = [one["axis"] for one in asked if "axis" in one]
    if None in given:
        if len(given) != len(asked) or any(given):
            raise Unknown("an axis that only some layers have")
        return nothing
    for one in given:
        only(one, AXIS, "an axis")
    said: Spec = {key: value for one in reversed(given) for key, value in one.items()}
    names = isinstance(scale, Bands)
    marks, labels = _marks(scale, said, wide if across else high)
    places = [float(scale(mark)) for mark in marks]
    parts = []
    ink = style.axis
    if said.get("grid", not names):
        stroke = {"stroke": ink.get("gridColor", "#ddd")}
        for at in map(_crisp, places):
            ends = {"x1": at, "x2": at, "y1": 0, "y2": high} if across else {"x1": 0, "x2": wide, "y1": at, "y2": at}
            parts.append(tag("line", **ends, **stroke))
    tick = TICK if said.get("ticks", True) else 0
    for at in map(_crisp, places if tick else []):
        low = _crisp(high)
        ends = (
            {"x1": at, "x2": at, "y1": low, "y2": low + tick}
            if across
            else {"x1": -tick, "x2": 0.5, "y1": at, "y2": at}
        )
        parts.append(tag("line", **ends, stroke=ink.get("tickColor", "#888")))
    if said.get("domain", True):
        low = _crisp(high)
        ends = {"x1": 0, "x2": wide, "y1": low, "y2": low} if across else {"x1": 0.5, "x2": 0.5, "y1": 0, "y2": low}
        parts.append(tag("line", **ends, stroke=ink.get("domainColor", "#888")))
    size = style.label_size
    labels = [shortened(label, size, LONGEST_LABEL) for label in labels]
    long = [width(label, size) for label in labels]
    angle = said.get("labelAngle", 270 if across and names else 0) % 360
    one_of(angle, (0, 270) if across else (0,), "the angle of labels")
    flat = across and angle == 0
    boxes = [(at, extent) for at, extent in zip(places, long if flat else [size] * len(long), strict=True)]
    kept = _apart(boxes, labels, said, isinstance(scale, Continuous) and scale.log) if not names else range(len(labels))
    fill, written_labels = ink.get("labelColor", "black"), []
    start = tick + GAP
    reach = max((long[i] for i in kept), default=0.0)
    overhang = [0.0, 0.0]
    for i in kept:
        if flat:
            written_labels.append(
                written(labels[i], places[i], high + start + ASCENT * size, size, fill, align="center")
            )
            overhang = [max(overhang[0], long[i] / 2 - places[i]), max(overhang[1], places[i] + long[i] / 2 - wide)]
        elif across:
            x, y = places[i] + MIDDLE * size, high + start
            turn = f"rotate(-90,{x:.3f},{y:.3f})"
            written_labels.append(written(labels[i], x, y, size, fill, align="right", transform=turn))
        else:
            written_labels.append(written(labels[i], -start, places[i] + MIDDLE * size, size, fill, align="right"))
    parts.append(tag("g", "".join(written_labels), **{"class": f"{channel} labels"}))
    extent = max(said.get("minExtent", 0), start + ((size if flat else reach) if kept else 0))
    title = _axis_title(panel, channel, asked, said)
    size, fill = style.title_size, ink.get("titleColor", "black")
    weight = ink.get("titleFontWeight", "bold")
    taken = TITLE_GAP + len(title) * size + (len(title) - 1) * LINE if title else 0
    for i, line in enumerate(title):
        if across:
            y = high + extent + TITLE_GAP + i * (size + LINE) + ASCENT * size
            parts.append(written(line, wide / 2, y, size, fill, align="center", weight=weight))
        else:
            x = -(extent + TITLE_GAP + (len(title) - 1 - i) * (size + LINE) + DESCENT * size)
            turn = f"rotate(-90,{x:.3f},{high / 2:.3f})"
            parts.append(written(line, x, high / 2, size, fill, align="center", weight=weight, transform=turn))
    body = "".join(parts)
    most = max((width(line, size, weight) for line in title), default=0.0)
    if across:
        spill = max(0.0, (most - wide) / 2)
        return Drawing(body, -max(overhang[0], spill), 0, wide + max(overhang[1], spill), high + extent + taken)
    spill = max(0.0, (most - high) / 2)
    beyond = size / 2 if kept else 0.0
    return Drawing(body, -(extent + taken), -max(spill, beyond), wide, high + max(spill, beyond))


def _crisp(place: float) -> float:
    """In the middle of a pixel, so that a thin line is thin."""
    return math.floor(place + 0.5) + 0.5


def _marks(scale: Any, said: Spec, length: float) -> tuple[list[Any], list[str]]:
    """The values that an axis marks, and what it writes there."""
    if isinstance(scale, Bands):
        marks, labels = scale.domain, [str(name) for name in scale.domain]
    else:
        count = said.get("tickCount", 10 if scale.log else math.ceil(length / 40))
        marks = scale.ticks(count)
        if values := said.get("values"):
            low, high = sorted(scale.range)
            marks = [v for v in values if math.floor(low) <= scale(v) <= math.ceil(high)]
        write = scale.format(said.get("format"), count, skip=not values)
        labels = [write(mark) for mark in marks]
    if "labelExpr" in said:
        expression = compiled(said["labelExpr"])
        labels = [str(expression({"value": m, "label": t})) for m, t in zip(marks, labels, strict=True)]
    return marks, labels


def _apart(boxes: Sequence[tuple[float, float]], labels: Sequence[str], said: Spec, log: bool) -> list[int]:
    """Labels that leave each other room: every second one, every fourth, …; or, if greedy, each that has room."""
    method = said.get("labelOverlap", "greedy" if log else "parity")
    one_of(method, ("greedy", "parity", True), "the way that labels give way")
    room = said.get("labelSeparation", 0)
    kept = [i for i, label in enumerate(labels) if label]

    def meet(a: int, b: int) -> bool:
        return abs(boxes[a][0] - boxes[b][0]) < (boxes[a][1] + boxes[b][1]) / 2 + room

    if len(kept) < 3 or not any(itertools.starmap(meet, itertools.pairwise(kept))):
        return kept
    if method == "greedy":
        found: list[int] = []
        for i in kept:
            if not found or not meet(found[-1], i):
                found.append(i)
        return found
    while len(kept) >= 3 and any(itertools.starmap(meet, itertools.pairwise(kept))):
        kept = kept[::2]
    return kept


def _axis_title(panel: Panel, channel: str, asked: Sequence[Spec], said: Spec) -> list[str]:
    """What layers say outright, or else the fields that they show."""
    titles = [one["title"] for one in asked if "title" in one] + ([said["title"]] if "title" in said else [])
    if titles:
        texts = [title for title in titles if title]
        if any(isinstance(title, list) for title in texts):
            return lines_of(texts[0])
        return lines_of(", ".join(dict.fromkeys(texts)))
    fields = [
        unit.encoding[name]["field"]
        for unit in panel.units
        for name in (channel, f"{channel}2")
        if "field" in unit.encoding.get(name, {})
    ]
    return [", ".join(dict.fromkeys(fields))]


def title_block(title: Spec, style: Style) -> Drawing:
    """A title and its subtitles; the box begins at the top left."""
    look = style.title
    size, small = float(title.get("fontSize", look.get("fontSize", 13))), float(look.get("subtitleFontSize", 12))
    parts, y, most = [], 0.0, 0.0
    for texts, height, fill, weight in (
        (lines_of(title.get("text")), size, "black", "bold"),
        (lines_of(title.get("subtitle")), small, look.get("subtitleColor", "black"), "normal"),
    ):
        for text in texts:
            parts.append(written(text, 0, y + ASCENT * height, height, fill, weight=weight))
            most = max(most, width(text, height, weight))
            y += height + LINE
        y += 1
    return Drawing("".join(parts), 0, 0, most, y - LINE)


def legend_block(legend: Legend, style: Style, room: float) -> tuple[str, float, Drawing]:
    """Where a legend stands, how far off, and the legend; the box begins at the top left."""
    said = legend.said
    only(said, LEGEND, "a legend")
    orient = said.get("orient", "right")
    one_of(orient, ORIENTS, "a legend's place")
    parts, top, most = [], 0.0, 0.0
    if legend.title:
        size = float(style.legend.get("titleFontSize", 11))
        parts.append(written(legend.title, 0, ASCENT * size, size, "black", weight="bold"))
        top, most = size + 5, width(legend.title, size, "bold")
    body = _gradient(legend, style) if _is_gradient(legend) else _entries(legend, style, room)
    parts.append(tag("g", body.body, transform=f"translate(0,{top:.3f})"))
    pad = float(said.get("padding", 0))
    right, bottom = max(most, body.right) + 2 * pad, top + body.bottom + 2 * pad
    drawn = tag("g", "".join(parts), transform=f"translate({pad:g},{pad:g})") if pad else "".join(parts)
    if "fillColor" in said:
        drawn = tag("rect", width=right, height=bottom, fill=said["fillColor"], fill_opacity=0.75) + drawn
    offset = float(said.get("offset", 18 if orient != "top-right" else 0))
    return orient, offset, Drawing(tag("g", drawn, **{"class": "legend"}), 0, 0, right, bottom)


def _is_gradient(legend: Legend) -> bool:
    scale = next(iter(legend.channels.values()))
    return isinstance(scale, Colours) and all(unit.filled for _, unit, _ in legend.claims)


def _gradient(legend: Legend, style: Style) -> Drawing:
    """A strip of colours, the largest number on top."""
    (scale,) = (scale for scale in legend.channels.values() if isinstance(scale, Colours))
    said = legend.said
    one_of(said.get("orient", "right"), ("right",), "the place of a strip of colours")
    thick, long = float(said.get("gradientThickness", 16)), round(said.get("gradientLength", 200))
    low, high = scale.domain or (0.0, 1.0)
    parts = []
    for i in range(long):
        share = 1 - (i + 0.5) / long
        value = low * (high / low) ** share if scale.log else low + share * (high - low)
        # Half a pixel over the next one, or the seams would show.
        parts.append(tag("rect", y=i, width=thick, height=1.5 if i < long - 1 else 1, fill=scale.colour(value)))
    count = said.get("tickCount", 5)
    marks = said.get("values") or scale.ticks(count)
    write = scale.format(said.get("format"), count, skip=False)
    size = float(style.legend.get("labelFontSize", 10))
    labels = [write(mark) for mark in marks]
    places = [min(max((1 - scale.share(mark)) * long, size / 2), long - size / 2) for mark in marks]
    for i in _apart([(place, size) for place in places], labels, {}, log=False):
        parts.append(written(labels[i], thick + 4, places[i] + MIDDLE * size, size, "black"))
    most = max((width(label, size) for label in labels), default=0.0)
    return Drawing("".join(parts), 0, 0, thick + 4 + most, long)


def _entries(legend: Legend, style: Style, room: float) -> Drawing:
    """A sign and a name for each value, in as many columns as have room."""
    said, size = legend.said, float(style.legend.get("labelFontSize", 10))
    scale: Any = next(iter(legend.channels.values()))
    if isinstance(scale, Continuous):
        values = said.get("values") or scale.ticks(said.get("tickCount", 5))
        write = scale.format(said.get("format"), said.get("tickCount", 5), skip=False)
        labels = [write(value) for value in values]
    else:
        values, labels = scale.domain, [str(name) for name in scale.domain]
    limit = float(said.get("labelLimit", style.legend.get("labelLimit", 160)))
    labels = [shortened(label, size, limit) for label in labels]
    areas = [_symbol_size(legend, value, style) for value in values]
    sign = max((math.sqrt(area) for area in areas), default=0.0) + 1.5
    flat = said.get("orient", "right") in ("bottom", "top")
    columns = min(said.get("columns", len(values) if flat else 1), max(1, len(values)))
    wide = [sign + 4 + width(label, size) for label in labels]
    while columns > 1 and sum(_columns(wide, columns)) + 12 * (columns - 1) > room:
        columns -= 1
    each = _columns(wide, columns)
    lefts = [sum(each[:i]) + 12 * i for i in range(columns)]
    parts, y, bottom = [], 0.0, 0.0
    for first in range(0, len(values), columns):
        row = range(first, min(first + columns, len(values)))
        height = max(size, *(math.sqrt(areas[i]) + 1.5 for i in row))
        for x, i in zip(lefts, row, strict=False):
            parts.append(_sign(legend, values[i], areas[i], x + sign / 2, y + height / 2))
            parts.append(written(labels[i], x + sign + 4, y + height / 2 + MIDDLE * size, size, "black"))
        bottom, y = y + height, y + height + 3
    return Drawing("".join(parts), 0, 0, sum(each) + 12 * (columns - 1), bottom)


def _columns(widths: Sequence[float], columns: int) -> list[float]:
    return [max(widths[i::columns], default=0.0) for i in range(columns)]


def _symbol_size(legend: Legend, value: Any, style: Style) -> float:
    scale = legend.channels.get("size")
    return float(scale(value) if scale else style.legend.get("symbolSize", 100))


def _sign(legend: Legend, value: Any, area: float, x: float, y: float) -> str:
    """A value as its marks show it: filled if some are, with a rim if some are not."""
    said, units = legend.said, [unit for _, unit, _ in legend.claims]
    scales: Any = legend.channels
    shape = scales["shape"](value) if "shape" in scales else said.get("symbolType") or _symbol_type(units)
    colour = next((scales[c] for c in ("color", "fill") if c in scales), None)
    if isinstance(colour, Colours):
        ink = colour.colour(value)
    else:
        ink = colour(value) if colour else _ink(legend, units)
    deciding = next((unit for unit in units if unit.type == "point"), units[0])
    usual = deciding.mark.get("opacity", 0.7 if deciding.type == "point" else 1)
    opacity = said.get("symbolOpacity", usual)
    fill = any(unit.filled for unit in units) and shape != "stroke"
    rim = not all(unit.filled for unit in units) or shape == "stroke"
    return symbol(
        shape,
        area,
        x,
        y,
        fill=ink if fill else "none",
        stroke=ink if rim else None,
        stroke_width=1.5 if rim else None,
        stroke_dasharray=dashes(scales["strokeDash"](value)) if "strokeDash" in scales else None,
        opacity=None if opacity == 1 else opacity,
    )


def _symbol_type(units: Sequence[Unit]) -> str:
    kinds = {"rule": "stroke", "line": "stroke", "rect": "square"}
    found = [kinds.get(unit.type, "circle") for unit in units]
    return "circle" if "circle" in found else found[0]


def _ink(legend: Legend, units: Sequence[Unit]) -> str:
    """The colour of signs that stand for no colour."""
    if "strokeDash" in legend.channels:
        return "#888"
    return str(units[0].mark.get("color", "black" if "color" in units[0].encoding else "#4c78a8"))
