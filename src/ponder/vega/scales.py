"""From values to places, colours, sizes and shapes: what a channel's layers say of its scale, brought together.

What one layer says outright holds for all; what no layer says follows from the mark, as in Vega-Lite.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ponder.vega.numbers import Write, log_format, log_ticks, rounded_ends, tick_format, ticks
from ponder.vega.spec import Grid, Node, Panel, Spec, Unit, is_number
from ponder.vega.unknown import Unknown, one_of, only

CATEGORIES = "4c78a8 f58518 e45756 72b7b2 54a24b eeca3b b279a2 ff9da6 9d755d bab0ac"
SCHEMES = {
    "yellowgreenblue": "eff9bd dbf1b4 bde5b5 94d5b9 69c5be 45b4c2 2c9ec0 2182b8 2163aa 23479c 1c3185",
    "viridis": "440154 470e61 481a6c 482575 472f7d 443a83 414487 3d4e8a 39568c 35608d 31688e 2d708e 2a788e 27818e "
    "23888e 21918d 1f988b 1fa088 22a884 2ab07f 35b779 43bf71 54c568 66cc5d 7ad151 8fd744 a5db36 bcdf27 d2e21b e9e51a "
    "fde725",
}
SHAPES = ["circle", "square", "triangle-up", "cross", "diamond", "triangle-right", "triangle-down", "triangle-left"]
DASHES = [[1, 0], [4, 2], [2, 1], [1, 1], [1, 2, 4, 2]]
RANGES: dict[str, list[Any]] = {"shape": SHAPES, "strokeDash": DASHES}
SETTINGS = {"type", "domain", "range", "scheme", "nice", "zero", "padding", "paddingInner", "paddingOuter"}
SIZES = (0.0, 361.0)  # square pixels of the smallest and the largest dot


@dataclass(frozen=True)
class Continuous:
    """Numbers along a line, evenly or by their logarithms; without a domain nothing has a place."""

    domain: tuple[float, float] | None
    range: tuple[float, float]
    log: bool = False

    def share(self, value: Any) -> float:
        """How far a value lies from one end to the other."""
        if self.domain is None or not is_number(value) or (self.log and value <= 0):
            return math.nan
        low, high = self.domain
        if low == high:
            return 0.5
        if self.log:
            return math.log(value / low) / math.log(high / low)
        return float((value - low) / (high - low))

    def __call__(self, value: Any) -> float:
        return self.range[0] + self.share(value) * (self.range[1] - self.range[0])

    def reach(self, value: Any) -> float:
        """The place of a bar's end; one that a logarithmic scale can't show lies at the scale's edge."""
        return self.range[0] if self.log and is_number(value) and value <= 0 else self(value)

    def ticks(self, count: int) -> list[float]:
        if self.domain is None:
            return []
        return log_ticks(*self.domain, count) if self.log else ticks(*self.domain, count)

    def format(self, specifier: str | None, count: int, *, skip: bool) -> Write:
        if self.log and self.domain:
            return log_format(specifier, self.ticks(count), count=count, skip=skip)
        return tick_format(specifier, *(self.domain or (0.0, 1.0)), count)


@dataclass(frozen=True)
class Colours(Continuous):
    """Numbers as colours between those of a scheme."""

    scheme: str = ""

    def colour(self, value: Any) -> str:
        return self.mixed(self.share(value))

    def mixed(self, share: float) -> str:
        knots = [bytes.fromhex(knot) for knot in SCHEMES[self.scheme].split()]
        place = min(max(share, 0.0), 1.0) * (len(knots) - 1)
        i = min(int(place), len(knots) - 2)
        mixed = (math.floor(a + (place - i) * (b - a) + 0.5) for a, b in zip(knots[i], knots[i + 1], strict=True))
        return "#" + "".join(f"{part:02x}" for part in mixed)


@dataclass(frozen=True)
class Bands:
    """Names along a line, each with a band of its own."""

    domain: list[Any]
    length: float
    inner: float
    outer: float

    @property
    def step(self) -> float:
        return self.length / max(1.0, len(self.domain) - self.inner + 2 * self.outer)

    @property
    def width(self) -> float:
        return self.step * (1 - self.inner)

    def start(self, value: Any) -> float:
        if value not in self.domain:
            return math.nan
        return self.step * (self.outer + self.domain.index(value))

    def __call__(self, value: Any) -> float:
        return self.start(value) + self.width / 2


@dataclass(frozen=True)
class Named:
    """A look for each name; they come again where there are more names than looks."""

    domain: list[Any]
    looks: list[Any]

    def __call__(self, value: Any) -> Any:
        return self.looks[self.domain.index(value) % len(self.looks)] if value in self.domain else None

    colour = __call__


Scale = Continuous | Bands | Named
Claim = tuple[Panel, Unit, Spec]  # who asks for a scale, and what is said of it


@dataclass(frozen=True)
class Legend:
    """A scale to be explained, or several that explain the same names."""

    channels: dict[str, Scale]
    claims: list[Claim]
    said: Spec
    title: str | None


def resolve(root: Node) -> None:
    """Give every panel its scales, and every legend its place beside those panels that share its scale."""
    found = list(_settled(root))
    found += [(root, name, claims) for name, claims in _claims(root).items()]
    for node, name, claims in sorted(found, key=lambda one: list(MAKERS).index(one[1])):
        panels = {id(panel): panel for panel, _, _ in claims}.values()
        for panel in panels:
            panel.scales[name] = scale = MAKERS[name](name, claims, panel)
            if isinstance(scale, Bands) and name in ("x", "y"):
                setattr(panel, "width" if name == "x" else "height", scale.length)
        if name not in ("x", "y", "yOffset"):
            _explain(node, name, claims)


def _claims(node: Node) -> dict[str, list[Claim]]:
    """Who asks for which scale here or below, other than for those that are settled below."""
    found: dict[str, list[Claim]] = {}
    if isinstance(node, Panel):
        for unit in node.units:
            for name, definition in unit.encoding.items():
                if name in MAKERS and "field" in definition:
                    found.setdefault(name, []).append((node, unit, definition))
    elif isinstance(node, Grid):
        for child in node.children:
            for name, claims in _claims(child).items():
                if _shared(node, name):
                    found.setdefault(name, []).extend(claims)
    return found


def _settled(node: Node) -> Iterator[tuple[Node, str, list[Claim]]]:
    """Scales that are not shared beyond a part of the picture."""
    if isinstance(node, Grid):
        for child in node.children:
            yield from _settled(child)
            yield from ((child, name, found) for name, found in _claims(child).items() if not _shared(node, name))


def _shared(grid: Grid, channel: str) -> bool:
    return grid.resolve.get(channel, "independent" if channel in ("x", "y") else "shared") == "shared"


def _explain(node: Node, name: str, claims: list[Claim]) -> None:
    legends = [definition["legend"] for _, _, definition in claims if "legend" in definition]
    if None in legends:
        return
    said: Spec = {key: value for legend in reversed(legends) for key, value in legend.items()}
    definition = claims[0][2]
    title = said.get("title", definition.get("title", definition["field"]))
    scale = claims[0][0].scales[name]
    if scale.domain in ([], [""]):
        return
    for known in node.legends:
        same = next(iter(known.channels.values()))
        if (known.title, known.claims[0][2]["field"]) == (title, definition["field"]) and same.domain == scale.domain:
            known.channels[name] = scale
            return
    node.legends.append(Legend({name: scale}, claims, said, title))


def _said(claims: Sequence[Claim]) -> Spec:
    """What layers say of their scale outright; the first to say something is right."""
    scales = [definition.get("scale", {}) for _, _, definition in claims]
    for scale in scales:
        only(scale, SETTINGS, "a scale")
        for name in ("nice", "zero"):
            one_of(scale.get(name, False), (True, False), f"a scale's {name}")
        if not isinstance(scale.get("domain", []), list):
            raise Unknown(f"the domain `{scale['domain']}`")
    return {key: value for scale in reversed(scales) for key, value in scale.items()}


def _names(claims: Sequence[Claim], said: Spec) -> list[Any]:
    """As the chart orders them, or else in alphabetical order."""
    if "domain" in said:
        every = (name for _, _, d in claims for name in d.get("scale", {}).get("domain", []))
        return list(dict.fromkeys(every))
    found = {row.get(definition["field"]) for _, unit, definition in claims for row in unit.rows}
    order: list[Any] = next((d["sort"] for _, _, d in claims if "sort" in d), [])
    known = sorted(found, key=lambda name: (isinstance(name, str), name is not None, name))
    return [name for name in order if name in found] + [name for name in known if name not in order]


def _extent(channel: str, claims: Sequence[Claim], said: Spec) -> tuple[float, float] | None:
    """The numbers that a scale must show: as said, or as in the data."""
    if "domain" in said:
        domains = [d["scale"]["domain"] for _, _, d in claims if "domain" in d.get("scale", {})]
        if any(len(ends) != 2 or not all(map(is_number, ends)) or ends[0] > ends[1] for ends in domains):
            raise Unknown(f"the domain `{domains[0]}`")
        values = [end for ends in domains for end in ends]
    else:
        values = [
            row[key]
            for _, unit, d in claims
            for key in (d["field"], unit.encoding.get(f"{channel}2", {}).get("field"))
            for row in unit.rows
            if is_number(row.get(key)) and (row[key] > 0 or said.get("type") != "log")
        ]
    return (float(min(values)), float(max(values))) if values else None


def _zero(channel: str, claims: Sequence[Claim], said: Spec) -> bool:
    """Whether the scale must reach zero: yes for dots and bars, no along a line."""
    if "zero" in said or "domain" in said:
        return bool(said.get("zero", False))
    along = claims[0][1].type in ("line", "area") and "y" in claims[0][1].encoding
    return channel in ("size", "y") or (channel == "x" and not along)


def _continuous(channel: str, claims: list[Claim], ends: tuple[float, float]) -> Continuous:
    said = _said(claims)
    log = said.get("type") == "log"
    domain = _extent(channel, claims, said)
    if domain is None:
        return Continuous(None, ends, log)
    low, high = domain
    if not log and _zero(channel, claims, said):
        low, high = min(low, 0.0), max(high, 0.0)
    if (air := said.get("padding", 0)) and low != high:
        length = abs(ends[1] - ends[0])
        wider = 0.5 * (length / (length - 2 * air) - 1)
        if log:
            low, high = low * (low / high) ** wider, high * (high / low) ** wider
        else:
            low, high = low - wider * (high - low), high + wider * (high - low)
    if said.get("nice", channel in ("x", "y") and "domain" not in said):
        if log:
            low, high = 10.0 ** math.floor(math.log10(low)), 10.0 ** math.ceil(math.log10(high))
        else:
            low, high = rounded_ends(low, high)
    return Continuous((low, high), ends, log)


def _position(channel: str, claims: list[Claim], panel: Panel) -> Scale:
    kinds = {definition["type"] for _, _, definition in claims}
    said = _said(claims)
    if len(kinds) > 1:
        raise Unknown(f"both numbers and names along {channel}")
    size = panel.width if channel == "x" else panel.height
    if kinds == {"quantitative"}:
        one_of(said.get("type", "linear"), ("linear", "log"), "the scale")
        if "range" in said:
            raise Unknown(f"a range along {channel}")
        length = 300 if size is None else size
        if not is_number(length):
            raise Unknown(f"the size `{length}` along numbers")
        return _continuous(channel, claims, (0.0, length) if channel == "x" else (length, 0.0))
    only(said, {"domain", "paddingInner", "paddingOuter"}, "a scale of names")
    names = _names(claims, said)
    nested = panel.scales.get(f"{channel}Offset")
    band = nested or any(unit.type == "rect" for _, unit, _ in claims)
    default = (0.2, 0.2) if nested else (0.0, 0.0) if band else (1.0, 0.5)
    inner, outer = said.get("paddingInner", default[0]), said.get("paddingOuter", default[1])
    if is_number(size):
        if nested:
            raise Unknown("an offset within a panel of fixed size")
        return Bands(names, size, inner, outer)
    step = size["step"] if size else 20
    step *= len(nested.domain) / (1 - inner) if nested else 1
    return Bands(names, step * max(0.0, len(names) - inner + 2 * outer), inner, outer)


def _offset(channel: str, claims: list[Claim], panel: Panel) -> Scale:
    if not isinstance(panel.height, dict):
        raise Unknown(f"{channel} within a panel of fixed size")
    names = _names(claims, _said(claims))
    return Bands(names, panel.height["step"] * len(names), 0.0, 0.0)


def _colour(channel: str, claims: list[Claim], _: Panel) -> Scale:
    said = _said(claims)
    scheme = said.get("scheme")
    if scheme is not None:
        one_of(scheme, SCHEMES, "the colour scheme")
    if claims[0][2]["type"] == "nominal":
        names = _names(claims, said)
        if scheme:
            scale = Colours((0.0, max(1.0, len(names) - 1)), (0.0, 1.0), scheme=scheme)
            return Named(names, [scale.colour(i) for i in range(len(names))] or ["black"])
        return Named(names, said.get("range") or [f"#{c}" for c in CATEGORIES.split()])
    if "range" in said or scheme is None:
        raise Unknown("colours for numbers without a scheme")
    plain = _continuous(channel, claims, (0.0, 1.0))
    return Colours(plain.domain, plain.range, plain.log, scheme)


def _measure(channel: str, claims: list[Claim], _: Panel) -> Scale:
    if claims[0][2]["type"] != "quantitative":
        raise Unknown(f"names as {channel}")
    low, high = _said(claims).get("range", SIZES if channel == "size" else (0.0, 1.0))
    return _continuous(channel, claims, (low, high))


def _look(channel: str, claims: list[Claim], _: Panel) -> Scale:
    if claims[0][2]["type"] != "nominal":
        raise Unknown(f"numbers as {channel}")
    said = _said(claims)
    return Named(_names(claims, said), said.get("range") or RANGES[channel])


# In this order, because bands need the offsets within them.
MAKERS: dict[str, Callable[[str, list[Claim], Panel], Scale]] = {
    "yOffset": _offset,
    "x": _position,
    "y": _position,
    "color": _colour,
    "fill": _colour,
    "fillOpacity": _measure,
    "shape": _look,
    "size": _measure,
    "strokeDash": _look,
}
