"""Marks: the rows of a layer as lines, areas, dots, bars, boxes and words."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ponder.vega.expressions import compiled
from ponder.vega.numbers import Format
from ponder.vega.scales import Bands, Continuous
from ponder.vega.spec import PATHS, Panel, Rows, Spec, Unit, is_number
from ponder.vega.text import MIDDLE, number, plain, safe, tag, width, written
from ponder.vega.unknown import Unknown

Row = Mapping[str, Any]
Box = tuple[float, float, float, float]  # left, top, right, bottom
INK = {"rule": "black", "text": "black"}
BLUE = "#4c78a8"


def drawn(panel: Panel, unit: Unit) -> tuple[str, list[Box]]:
    """A layer's marks, and the boxes that its words take."""
    words: list[Box] = []
    if unit.type in PATHS:
        parts = list(_paths(panel, unit))
    elif unit.type == "text":
        parts = [part for row in unit.rows for part in _word(panel, unit, row, words)]
    else:
        draw = {"point": _point, "rect": _rect, "rule": _rule}[unit.type]
        parts = [part for row in unit.rows for part in draw(panel, unit, row)]
    body = "".join(parts)
    if unit.mark.get("clip") and body:
        body = tag("svg", body, width=panel.width, height=panel.height)
    return tag("g", body, **{"class": f"marks {unit.type}"}), words


def symbol(shape: str, size: float, x: float, y: float, body: str = "", **look: Any) -> str:
    """A sign of so many square pixels."""
    if shape == "circle":
        return tag("circle", body, cx=x, cy=y, r=math.sqrt(size / math.pi), **look)
    return tag(
        "path", body, d=_outline(shape, math.sqrt(size)), transform=f"translate({number(x)},{number(y)})", **look
    )


def _outline(shape: str, side: float) -> str:
    half, tall = side / 2, side * math.sqrt(3) / 2
    corners: list[tuple[float, float]]
    if shape == "square":
        corners = [(-half, -half), (half, -half), (half, half), (-half, half)]
    elif shape == "diamond":
        corners = [(-half, 0), (0, -half), (half, 0), (0, half)]
    elif shape == "cross":
        arm = side / 5
        one = [(-half, -arm), (-arm, -arm), (-arm, -half), (arm, -half), (arm, -arm), (half, -arm)]
        corners = one + [(-x, -y) for x, y in one]
    elif shape.startswith("triangle-"):
        up = [(0.0, -tall / 2), (-half, tall / 2), (half, tall / 2)]
        turned = {"up": (1, 0), "right": (0, 1), "down": (-1, 0), "left": (0, -1)}
        if shape.removeprefix("triangle-") not in turned:
            raise Unknown(f"the shape `{shape}`")
        cos, sin = turned[shape.removeprefix("triangle-")]
        corners = [(x * cos - y * sin, x * sin + y * cos) for x, y in up]
    elif shape == "stroke":
        return f"M{number(-half)},0L{number(half)},0"
    else:
        raise Unknown(f"the shape `{shape}`")
    return "M" + "L".join(f"{number(x)},{number(y)}" for x, y in corners) + "Z"


def _value(panel: Panel, unit: Unit, channel: str, row: Row, default: Any = None) -> Any:
    """What a channel shows of a row."""
    said = unit.encoding.get(channel)
    if said is None:
        return default
    if "condition" in said and compiled(said["condition"]["test"])(row):
        return said["condition"]["value"]
    if "value" in said:
        return said["value"]
    scale: Any = panel.scales[channel]
    value = row.get(said["field"])
    return scale.colour(value) if channel in ("color", "fill") else scale(value)


def _look(panel: Panel, unit: Unit, row: Row) -> Spec:
    """Fill, stroke and the like, of a mark or of a layer's line."""
    mark = unit.mark
    colour = _value(panel, unit, "color", row, mark.get("color", INK.get(unit.type, BLUE)))
    fill = _value(panel, unit, "fill", row, mark.get("fill", colour if unit.filled else None))
    stroke = mark.get("stroke", None if unit.filled else colour)
    dash = _value(panel, unit, "strokeDash", row, mark.get("strokeDash"))
    opacity = mark.get("opacity", 0.7 if unit.type == "point" else 1)
    thick = mark.get("strokeWidth", 1 if unit.type in ("rule", "rect", "text") else 2)
    return {
        "fill": fill or "none",
        "fill_opacity": None if fill is None else _value(panel, unit, "fillOpacity", row),
        "stroke": stroke,
        "stroke_width": thick if stroke else None,
        "stroke_dasharray": dashes(dash) if stroke else None,
        "opacity": None if opacity == 1 else opacity,
    }


def dashes(pattern: Sequence[float] | None) -> str | None:
    """As SVG says it; a gap of nothing is no gap."""
    return " ".join(map(number, pattern)) if pattern and any(pattern[1::2]) else None


def _place(panel: Panel, unit: Unit, channel: str, row: Row) -> float:
    """Where a mark stands along x or y; without either in its middle."""
    said = unit.encoding.get(channel)
    size = float(panel.width if channel[0] == "x" else panel.height)
    if said is None:
        return size / 2
    if "field" not in said:
        return float(said["value"])
    scale = panel.scales[channel[0]]
    value = row.get(said["field"])
    inside = unit.encoding.get(f"{channel}Offset")
    if isinstance(scale, Bands) and inside:
        return scale.start(value) + float(panel.scales[f"{channel}Offset"](row.get(inside["field"])))
    return float(scale(value))


def _ends(panel: Panel, unit: Unit, channel: str, row: Row) -> tuple[float, float]:
    """From where to where a mark reaches: its band, what its second channel says, or from end to end."""
    said = unit.encoding.get(channel)
    if said is None:
        return 0.0, float(panel.width if channel == "x" else panel.height)
    first = _place(panel, unit, channel, row)
    scale = panel.scales.get(channel)
    if second := unit.encoding.get(f"{channel}2"):
        if "field" not in second or not isinstance(scale, Continuous):
            raise Unknown(f"{channel}2 without numbers")
        return scale.reach(row.get(said["field"])), scale.reach(row.get(second["field"]))
    if unit.type == "rect":
        if not isinstance(scale, Bands):
            raise Unknown(f"a rectangle without an end along {channel}")
        start = scale.start(row.get(said["field"]))
        return start, start + scale.width
    return first, first


def _known(*places: float) -> bool:
    return not any(math.isnan(place) for place in places)


def _point(panel: Panel, unit: Unit, row: Row) -> Iterator[str]:
    x, y = (_place(panel, unit, c, row) + unit.mark.get(f"{c}Offset", 0) for c in ("x", "y"))
    if _known(x, y):
        shape = _value(panel, unit, "shape", row, unit.mark.get("shape", "circle"))
        size = _value(panel, unit, "size", row, unit.mark.get("size", 30))
        yield symbol(shape, size, x, y, tooltip(unit, row), **_look(panel, unit, row))


def _rule(panel: Panel, unit: Unit, row: Row) -> Iterator[str]:
    (x1, x2), (y1, y2) = (_ends(panel, unit, c, row) for c in ("x", "y"))
    if _known(x1, x2, y1, y2):
        look = {**_look(panel, unit, row), "fill": None}
        yield tag("line", tooltip(unit, row), x1=x1, y1=y1, x2=x2, y2=y2, **look)


def _rect(panel: Panel, unit: Unit, row: Row) -> Iterator[str]:
    (x1, x2), (y1, y2) = (sorted(_ends(panel, unit, c, row)) for c in ("x", "y"))
    if _known(x1, x2, y1, y2):
        look = {**_look(panel, unit, row), "rx": unit.mark.get("cornerRadius")}
        yield tag("rect", tooltip(unit, row), x=x1, y=y1, width=x2 - x1, height=y2 - y1, **look)


def _word(panel: Panel, unit: Unit, row: Row, words: list[Box]) -> Iterator[str]:
    mark = unit.mark
    x, y = (_place(panel, unit, c, row) + mark.get(f"d{c}", 0) for c in ("x", "y"))
    said = unit.encoding.get("text", {"value": mark.get("text", "")})
    text = shown(row.get(said["field"]), said) if "field" in said else str(said["value"])
    if not _known(x, y) or not text:
        return
    align = mark.get("align", "center")
    if isinstance(align, dict):
        align = compiled(align["expr"])(row)
    size, weight = mark.get("fontSize", 11), mark.get("fontWeight", "normal")
    long = width(text, size, weight)
    left = x - {"left": 0.0, "center": long / 2, "right": long}[align]
    words.append((left, y - size / 2, left + long, y + size / 2))
    look = _look(panel, unit, row)
    join = {"stroke_linejoin": mark.get("strokeJoin")}
    yield written(text, x, y + MIDDLE * size, size, align=align, weight=weight, **{**look, **join})


def _paths(panel: Panel, unit: Unit) -> Iterator[str]:
    """A line or an area for each group of rows that look alike, broken where a number is missing."""
    apart = [c for c in ("color", "fill", "detail", "strokeDash") if "field" in unit.encoding.get(c, {})]
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in unit.rows:
        groups.setdefault(tuple(row.get(unit.encoding[c]["field"]) for c in apart), []).append(row)
    order = unit.encoding.get("order", {}).get("field")
    steps = unit.mark.get("interpolate") == "step-after"
    for rows in groups.values():
        rows.sort(key=lambda row: _rank(row.get(order) if order else _place(panel, unit, "x", row)))
        path = ""
        for part in _runs(panel, unit, rows):
            if unit.type == "area":
                there, back = _steps(part, 1, steps), _steps(part, 2, steps)[::-1]
                path += "M" + "L".join(there + back) + "Z"
            else:
                path += "M" + "L".join(_steps(part, 1, steps))
        if path:
            look = _look(panel, unit, rows[0])
            alike = {k: v for k, v in rows[0].items() if all(row.get(k) == v for row in rows)}
            yield tag("path", tooltip(unit, alike), d=path, **look)


def _rank(value: Any) -> tuple[bool, float]:
    """Numbers in their order, then what is none."""
    return (False, value) if is_number(value) else (True, 0.0)


def _runs(panel: Panel, unit: Unit, rows: Rows) -> Iterator[list[tuple[float, ...]]]:
    """x, y and y2 of rows without a gap between them."""
    run: list[tuple[float, ...]] = []
    for row in rows:
        y = _ends(panel, unit, "y", row) if unit.type == "area" else (_place(panel, unit, "y", row),) * 2
        place = (_place(panel, unit, "x", row), *y)
        if _known(*place):
            run.append(place)
        elif run:
            yield run
            run = []
    if run:
        yield run


def _steps(run: Sequence[tuple[float, ...]], which: int, steps: bool) -> list[str]:
    places = [(place[0], place[which]) for place in run]
    if steps:
        turns = [(after[0], before[1]) for before, after in itertools.pairwise(places)]
        places = [place for pair in zip(places, [*turns, places[-1]], strict=True) for place in pair][:-1]
    return [f"{number(x)},{number(y)}" for x, y in places]


def tooltip(unit: Unit, row: Row) -> str:
    """What a reader sees who points at a mark."""
    said = unit.encoding.get("tooltip", [])
    fields = [one for one in (said if isinstance(said, list) else [said]) if one.get("field") in row]
    lines = [f"{one.get('title', one['field'])}: {shown(row[one['field']], one)}" for one in fields]
    return tag("title", safe("\n".join(lines))) if lines else ""


def shown(value: Any, said: Spec) -> str:
    """A value as text: numbers by their format."""
    if said.get("type") == "quantitative" and is_number(value):
        return Format.parse(said.get("format", ""))(value)
    return "–" if value is None else plain(value)
