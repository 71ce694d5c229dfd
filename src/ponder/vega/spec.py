"""A Vega-Lite chart read into panels of layers and grids of panels; whatever is not understood here is an error."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ponder.vega.expressions import compiled
from ponder.vega.unknown import Unknown, one_of, only

Spec = dict[str, Any]
Rows = Sequence[Mapping[str, Any]]
MARKS = ("area", "line", "point", "rect", "rule", "text")
PATHS = ("area", "line")
LOOKS = {"type", "color", "fill", "stroke", "opacity", "filled", "strokeWidth", "strokeDash", "clip"}
MORE_LOOKS = {
    "area": ("interpolate",),
    "line": ("interpolate", "point"),
    "point": ("size", "shape", "xOffset", "yOffset"),
    "rect": ("cornerRadius",),
    "rule": (),
    "text": ("align", "dx", "dy", "fontSize", "fontWeight", "strokeJoin", "text"),
}
SCALED = ("x", "y", "yOffset", "color", "fill", "fillOpacity", "shape", "size", "strokeDash")
CHANNELS = {*SCALED, "x2", "y2", "detail", "order", "text", "tooltip"}
CONDITIONAL = ("color", "fill", "fillOpacity", "shape", "size", "strokeDash")
ENDED = ("area", "rect", "rule")  # marks that may reach from x to x2, or from y to y2
VIEW = {"title", "data", "transform", "width", "height", "encoding"}
GRID = {"title", "data", "resolve", "spacing", "bounds", "columns"}
TOP = {"$schema", "config", "datasets", "background", "padding"}
CONFIG = {
    "view": "stroke continuousWidth continuousHeight",
    "axis": "labelColor titleColor gridColor domainColor tickColor titleFontWeight titleFontSize labelFontSize",
    "title": "anchor fontSize subtitleColor subtitleFontSize offset",
    "legend": "labelFontSize titleFontSize symbolSize labelLimit",
}


@dataclass
class Unit:
    """One mark, what it shows, and its rows."""

    mark: Spec
    encoding: dict[str, Any]
    rows: Rows

    @property
    def type(self) -> str:
        return str(self.mark["type"])

    @property
    def filled(self) -> bool:
        return bool(self.mark.get("filled", self.type in ("area", "rect", "text")))


@dataclass
class Node:
    """Part of a picture, with its title and the legends that stand beside it."""

    title: Spec | None
    legends: list[Any] = field(default_factory=list)


@dataclass
class Panel(Node):
    """Layers over one pair of axes."""

    units: list[Unit] = field(default_factory=list)
    width: Any = None
    height: Any = None
    scales: dict[str, Any] = field(default_factory=dict)


@dataclass
class Grid(Node):
    """Panels, or grids of them, in rows of so many columns."""

    children: list[Node] = field(default_factory=list)
    columns: int = 1
    gaps: tuple[float, float] = (20.0, 20.0)  # between rows and between columns
    flush: bool = False  # gaps are between panels, not between all that belongs to them
    resolve: dict[str, str] = field(default_factory=dict)


def read(spec: Spec, data: Rows | None = None, datasets: Mapping[str, Rows] | None = None) -> Node:
    """The chart and all that is in it."""
    datasets = spec.get("datasets", datasets or {})
    data = _data(spec, data, datasets)
    kind = next((k for k in ("layer", "mark", "concat", "hconcat", "vconcat") if k in spec), None)
    if kind is None:
        raise Unknown(f"a chart of {', '.join(sorted(spec))}")
    title = _title(spec.get("title"))
    if kind in ("layer", "mark"):
        only(spec, VIEW | TOP | {kind}, "a chart")
        for name in ("width", "height"):
            size = spec.get(name)
            if not (size is None or is_number(size) or (isinstance(size, dict) and size.keys() == {"step"})):
                raise Unknown(f"the {name} `{size}`")
        units = list(_units(spec, data, datasets))
        return Panel(title, units=units, width=spec.get("width"), height=spec.get("height"))
    only(spec, GRID | TOP | {kind}, "a chart")
    children = [read(child, data, datasets) for child in spec[kind]]
    columns = 1 if kind == "vconcat" else spec.get("columns", len(children)) if kind == "concat" else len(children)
    resolve = spec.get("resolve", {})
    only(resolve, {"scale"}, "resolve")
    spacing = spec.get("spacing", 20)
    gaps = (spacing.get("row", 20), spacing.get("column", 20)) if isinstance(spacing, dict) else (spacing, spacing)
    one_of(spec.get("bounds", "full"), ("full", "flush"), "bounds")
    return Grid(
        title,
        children=children,
        columns=max(1, columns),
        gaps=gaps,
        flush=spec.get("bounds") == "flush",
        resolve=resolve.get("scale", {}),
    )


def configured(spec: Spec) -> Spec:
    """The chart's configuration, which says only what is understood."""
    config: Spec = spec.get("config", {})
    only(config, {"font", "padding", "background", *CONFIG}, "the configuration")
    for part, names in CONFIG.items():
        only(config.get(part, {}), names.split(), f"the configuration of {part}")
    one_of(config.get("title", {}).get("anchor", "start"), ("start",), "a title's anchor")
    for name in ("continuousWidth", "continuousHeight"):
        one_of(config.get("view", {}).get(name, 300), (300,), "the size of panels")
    top: Spec = {name: spec[name] for name in ("background", "padding") if name in spec}
    return {"background": "white", "padding": 5, **config, **top}


def _title(title: Any) -> Spec | None:
    if title is None:
        return None
    found = {"text": title} if isinstance(title, str | list) else dict(title)
    only(found, {"text", "subtitle", "fontSize", "frame", "anchor"}, "a title")
    one_of(found.get("anchor", "start"), ("start",), "a title's anchor")
    one_of(found.get("frame", "bounds"), ("bounds", "group"), "a title's frame")
    return found


def _data(spec: Spec, inherited: Rows | None, datasets: Mapping[str, Rows]) -> Rows | None:
    data = spec.get("data")
    if data is None:
        return inherited
    only(data, {"name", "values"}, "data")
    if "values" in data:
        rows: Rows = data["values"]
        return rows
    if data["name"] not in datasets:
        raise Unknown(f"data called `{data['name']}`")
    return datasets[data["name"]]


def _units(spec: Spec, data: Rows | None, datasets: Mapping[str, Rows]) -> Iterator[Unit]:
    data = _data(spec, data, datasets)
    if "layer" in spec:
        if "encoding" in spec or "transform" in spec:
            raise Unknown("an encoding or a transform that layers share")
        for layer in spec["layer"]:
            only(layer, VIEW - {"title", "width", "height"} | {"mark", "layer"}, "a layer")
            yield from _units(layer, data, datasets)
        return
    mark = {"type": spec["mark"]} if isinstance(spec["mark"], str) else dict(spec["mark"])
    one_of(mark["type"], MARKS, "the mark")
    only(mark, {*LOOKS, *MORE_LOOKS[mark["type"]]}, f"the mark `{mark['type']}`")
    one_of(mark.get("interpolate", "linear"), ("linear", "step-after"), "the interpolation")
    for name in mark.keys() - {"align", "point"}:
        if isinstance(mark[name], dict):
            raise Unknown(f"an expression as a mark's {name}")
    encoding = _encoding(spec.get("encoding", {}), mark["type"])
    rows = _filtered(data or [], spec.get("transform", []))
    point = mark.pop("point", None)
    valid = _valid(rows, encoding)
    yield Unit(mark, encoding, rows if mark["type"] in PATHS else valid)  # a path breaks where a number is missing
    if point:
        dots = {"type": "point", "filled": True, "opacity": 1, **(point if isinstance(point, dict) else {})}
        only(dots, {*LOOKS, *MORE_LOOKS["point"]}, "a line's points")
        yield Unit(dots, encoding, valid)


def _encoding(encoding: Spec, mark: str) -> Spec:
    """What a layer shows, where each channel says only what is understood."""
    only(encoding, CHANNELS - (set() if mark in ENDED else {"x2", "y2"}), f"an encoding of the mark `{mark}`")
    for name, definition in encoding.items():
        if isinstance(definition, list) and name != "tooltip":
            raise Unknown(f"several fields as {name}")
        for one in definition if isinstance(definition, list) else [definition]:
            _channel(name, one)
    if mark == "area" and ("y2" not in encoding or "x2" in encoding):
        raise Unknown("an area other than from y to y2")
    return encoding


def _channel(name: str, said: Spec) -> None:
    names = {"field", "type", "title", "value", "format"}
    if name in SCALED:
        names |= {"scale", "sort", "axis" if name in ("x", "y") else "legend"}
    only(said, names | ({"condition"} if name in CONDITIONAL else set()), f"the channel `{name}`")
    if "field" not in said and "value" not in said:
        raise Unknown(f"the channel `{name}` without a field or a value")
    if any(c in ".[\\" for c in said.get("field", "")):
        raise Unknown(f"the nested field `{said['field']}`")
    if "scale" in said and said["scale"] is None:
        raise Unknown(f"the channel `{name}` without a scale")
    one_of(said.get("type", "nominal"), ("nominal", "quantitative"), "the type")
    if "sort" in said and (said["type"] != "nominal" or not isinstance(said["sort"], list)):
        raise Unknown(f"the order `{said['sort']}`")
    if "condition" in said:
        only(said["condition"], {"test", "value"}, "a condition")
        if not isinstance(said["condition"].get("test"), str):
            raise Unknown("a condition that is no expression")


def _filtered(rows: Rows, transforms: Sequence[Spec]) -> Rows:
    for transform in transforms:
        only(transform, {"filter"}, "transform")
        if not isinstance(transform["filter"], str):
            raise Unknown("a filter that is no expression")
        keep = compiled(transform["filter"])
        rows = [row for row in rows if keep(row)]
    return rows


def _valid(rows: Rows, encoding: Spec) -> Rows:
    """Rows that have a number wherever a scale needs one."""
    needs = [encoding[name] for name in SCALED if name in encoding]
    wanted = [one["field"] for one in needs if one.get("type") == "quantitative" and "field" in one]
    if any(isinstance(row.get(name), str) for row in rows for name in wanted):
        raise Unknown("text as numbers")
    return [row for row in rows if all(is_number(row.get(name)) for name in wanted)]


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)
