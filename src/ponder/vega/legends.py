"""Legends and titles: what a scale's values look like, and what a picture is called."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ponder.vega.axes import apart
from ponder.vega.marks import dashes, symbol
from ponder.vega.scales import Colours, Continuous, Legend
from ponder.vega.spec import Spec, Unit
from ponder.vega.text import ASCENT, LINE, MIDDLE, Drawing, plain, shortened, tag, width, written
from ponder.vega.unknown import one_of, only

SETTINGS = {
    "title",
    "orient",
    "columns",
    "offset",
    "fillColor",
    "padding",
    "format",
    "values",
    "labelLimit",
    "tickCount",
}
LOOKS = {"symbolOpacity", "symbolType", "gradientThickness", "gradientLength"}
INSIDE = ("top-left", "top-right")
ORIENTS = ("right", "bottom", "top", *INSIDE)
NEAR, BETWEEN = 4, 12  # pixels between a sign and its name, and between columns


def lines_of(text: Any) -> list[str]:
    return [str(line) for line in text] if isinstance(text, list) else [str(text)] if text else []


def title(said: Spec, config: Spec) -> Drawing:
    """A title and its subtitles."""
    size, small = float(said.get("fontSize") or config.get("fontSize", 13)), float(config.get("subtitleFontSize", 12))
    lines = [(line, size, "black", "bold") for line in lines_of(said.get("text"))]
    grey = config.get("subtitleColor", "black")
    lines += [(line, small, grey, "normal") for line in lines_of(said.get("subtitle"))]
    parts, y = [], 0.0
    for line, high, fill, weight in lines:
        parts.append(written(line, 0, y + ASCENT * high, high, fill, weight=weight))
        y += high + LINE + (weight == "bold")
    most = max((width(line, high, weight) for line, high, _, weight in lines), default=0.0)
    return Drawing("".join(parts), 0, 0, most, y - LINE)


def legend(shown: Legend, config: Spec, room: float) -> tuple[str, float, Drawing]:
    """Where a legend stands, how far off, and the legend."""
    said = shown.said
    only(said, SETTINGS | LOOKS, "a legend")
    orient = said.get("orient", "right")
    one_of(orient, ORIENTS, "a legend's place")
    parts, top, most = [], 0.0, 0.0
    if shown.title:
        size = float(config.get("titleFontSize", 11))
        parts.append(written(shown.title, 0, ASCENT * size, size, "black", weight="bold"))
        top, most = size + 5, width(shown.title, size, "bold")
    scale = next(iter(shown.channels.values()))
    strip = isinstance(scale, Colours) and all(unit.filled for _, unit, _ in shown.claims)
    body = _strip(scale, said, config) if strip else _entries(shown, config, room)
    parts.append(body.moved(0, top))
    pad = float(said.get("padding", 0))
    whole = Drawing("".join(parts), 0, 0, max(most, body.right) + 2 * pad, top + body.bottom + 2 * pad)
    drawn = whole.moved(pad, pad)
    if "fillColor" in said:
        # Not quite opaque: what lies below it must be seen.
        back = tag("rect", width=whole.right, height=whole.bottom, fill=said["fillColor"], fill_opacity=0.75)
        drawn = back + drawn
    drawn = tag("g", drawn, **{"class": "legend"})
    return (
        orient,
        float(said.get("offset", 0 if orient in INSIDE else 18)),
        Drawing(drawn, 0, 0, whole.right, whole.bottom),
    )


def _strip(scale: Any, said: Spec, config: Spec) -> Drawing:
    """A strip of colours, the largest number on top."""
    one_of(said.get("orient", "right"), ("right",), "the place of a strip of colours")
    thick, long = float(said.get("gradientThickness", 16)), round(said.get("gradientLength", 200))
    size, count = float(config.get("labelFontSize", 10)), said.get("tickCount", 5)
    parts = []
    for i in range(long):
        # Half a pixel over the next one, or the seams would show.
        high = 1.5 if i < long - 1 else 1
        parts.append(tag("rect", y=i, width=thick, height=high, fill=scale.mixed(1 - (i + 0.5) / long)))
    marks = said.get("values") or scale.ticks(count)
    texts = list(map(scale.format(said.get("format"), count, skip=False), marks))
    places = [min(max((1 - scale.share(mark)) * long, size / 2), long - size / 2) for mark in marks]
    kept = apart(places, [size] * len(places), texts, "parity", 0)
    parts += [written(texts[i], thick + NEAR, places[i] + MIDDLE * size, size, "black") for i in kept]
    most = max((width(text, size) for text in texts), default=0.0)
    return Drawing("".join(parts), 0, 0, thick + NEAR + most, long)


def _entries(shown: Legend, config: Spec, room: float) -> Drawing:
    """A sign and a name for each value, in as many columns as there is room for."""
    said, size = shown.said, float(config.get("labelFontSize", 10))
    scale: Any = next(iter(shown.channels.values()))
    if isinstance(scale, Continuous):
        count = said.get("tickCount", 5)
        values = said.get("values") or scale.ticks(count)
        texts = list(map(scale.format(said.get("format"), count, skip=False), values))
    else:
        values, texts = scale.domain, [plain(name) for name in scale.domain]
    texts = [shortened(text, size, said.get("labelLimit") or config.get("labelLimit", 160)) for text in texts]
    sized = shown.channels.get("size")
    areas = [float(sized(value) if sized else config.get("symbolSize", 100)) for value in values]
    signs = [2 * math.sqrt(area / math.pi) + 1.5 for area in areas]
    sign = max(signs, default=0.0)
    flat = said.get("orient", "right") in ("bottom", "top")
    columns = max(1, min(said.get("columns", len(values) if flat else 1), len(values)))
    wide = [sign + NEAR + width(text, size) for text in texts]
    while columns > 1 and _lefts(wide, columns)[-1] - BETWEEN > room:
        columns -= 1
    lefts = _lefts(wide, columns)
    parts, y = [], 0.0
    for first in range(0, len(values), columns):
        row = range(first, min(first + columns, len(values)))
        middle = max(size, *(signs[i] for i in row)) / 2
        for x, i in zip(lefts, row, strict=False):
            parts.append(_sign(shown, values[i], areas[i], x + sign / 2, y + middle))
            parts.append(written(texts[i], x + sign + NEAR, y + middle + MIDDLE * size, size, "black"))
        y += 2 * middle + LINE
    return Drawing("".join(parts), 0, 0, lefts[-1] - BETWEEN, y - LINE)


def _lefts(widths: Sequence[float], columns: int) -> list[float]:
    """Where columns begin, and where the next one would."""
    found = [0.0]
    for i in range(columns):
        found.append(found[-1] + max(widths[i::columns], default=0.0) + BETWEEN)
    return found


def _sign(shown: Legend, value: Any, area: float, x: float, y: float) -> str:
    """A value as its marks show it: filled if some are, with a rim if some are not."""
    said, units = shown.said, [unit for _, unit, _ in shown.claims]
    scales: Any = shown.channels
    shape = scales["shape"](value) if "shape" in scales else said.get("symbolType") or _shape(units)
    coloured = scales.get("color") or scales.get("fill")
    ink = coloured.colour(value) if coloured else _ink(scales, units[0])
    deciding = next((unit for unit in units if unit.type == "point"), units[0])
    opacity = said.get("symbolOpacity", deciding.mark.get("opacity", 0.7 if deciding.type == "point" else 1))
    fill = any(unit.filled for unit in units) and shape != "stroke"
    rim = shape == "stroke" or not all(unit.filled for unit in units)
    look: Spec = {
        "fill": ink if fill else "none",
        "stroke": ink if rim else None,
        "stroke_width": 1.5 if rim else None,
        "stroke_dasharray": dashes(scales["strokeDash"](value)) if "strokeDash" in scales else None,
        "opacity": None if opacity == 1 else opacity,
    }
    return symbol(shape, area, x, y, **look)


def _shape(units: Sequence[Unit]) -> str:
    found = [{"rule": "stroke", "line": "stroke", "rect": "square"}.get(unit.type, "circle") for unit in units]
    return "circle" if "circle" in found else found[0]


def _ink(scales: Any, unit: Unit) -> str:
    """The colour of signs that stand for no colour."""
    if "strokeDash" in scales:
        return "#888"
    return str(unit.mark.get("color", "black" if "color" in unit.encoding else "#4c78a8"))
