"""Axes: which values are marked, what is written there, and the room that this takes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ponder.vega.expressions import compiled
from ponder.vega.scales import Bands
from ponder.vega.spec import Panel, Spec
from ponder.vega.text import ASCENT, DESCENT, LINE, MIDDLE, Drawing, number, plain, shortened, tag, width, written
from ponder.vega.unknown import Unknown, one_of, only

SETTINGS = {"title", "format", "tickCount", "values", "ticks", "domain", "grid", "minExtent"}
LABELS = {"labelExpr", "labelOverlap", "labelSeparation", "labelAngle"}
TICK, GAP, TITLE_GAP = 5, 2, 4  # pixels of a tick, before its label, and before the axis's title
LONGEST, ROOM = 180, 4  # pixels of a label, and between two


def axis(panel: Panel, channel: str, config: Spec) -> Drawing:
    """The axis at the left or at the bottom, with its grid."""
    asked = [unit.encoding[channel] for unit in panel.units if "field" in unit.encoding.get(channel, {})]
    given = [one["axis"] for one in asked if "axis" in one]
    if not asked or None in given:
        if any(given):
            raise Unknown("an axis that only some layers have")
        return Drawing("", 0, 0, panel.width, panel.height)
    for one in given:
        only(one, SETTINGS | LABELS, "an axis")
    said = {key: value for one in reversed(given) for key, value in one.items()}
    return _Axis(panel, channel == "x", panel.scales[channel], said, config).drawn(_title(panel, channel, asked, said))


def _title(panel: Panel, channel: str, asked: Sequence[Spec], said: Spec) -> list[str]:
    """What layers say outright, or else the fields that they show."""
    titles = [one["title"] for one in [*asked, said] if "title" in one]
    if not titles:
        shown = [unit.encoding.get(name, {}) for unit in panel.units for name in (channel, f"{channel}2")]
        titles = [one["field"] for one in shown if "field" in one]
    texts = [title for title in titles if title]
    if any(isinstance(title, list) for title in texts):
        return [str(line) for line in texts[0]]
    return [", ".join(dict.fromkeys(texts))] if texts else []


@dataclass(frozen=True)
class _Axis:
    panel: Panel
    across: bool
    scale: Any
    said: Spec
    config: Spec

    @property
    def length(self) -> float:
        return float(self.panel.width if self.across else self.panel.height)

    def drawn(self, title: list[str]) -> Drawing:
        marks, texts = self.marks()
        places = [float(self.scale(mark)) for mark in marks]
        size = float(self.config.get("labelFontSize", 10))
        texts = [shortened(text, size, LONGEST) for text in texts]
        names = isinstance(self.scale, Bands)
        angle = self.said.get("labelAngle", 270 if self.across and names else 0) % 360
        one_of(angle, (0, 270) if self.across else (0,), "the angle of labels")
        flat = self.across and not angle
        along = [width(text, size) if flat else size for text in texts]
        default = None if names else "greedy" if self.scale.log else "parity"
        kept = apart(
            places, along, texts, self.said.get("labelOverlap", default), self.said.get("labelSeparation", ROOM)
        )
        start = GAP + (TICK if self.said.get("ticks", True) else 0)
        labels = "".join(self.label(texts[i], places[i], start, size, flat) for i in kept)
        deep = size if flat else max((width(texts[i], size) for i in kept), default=0.0)
        extent = max(self.said.get("minExtent", 0), start + (deep if kept else 0))
        body, long, taken = self.title(title, extent)
        body = self.lines(places) + tag("g", labels, **{"class": f"{'yx'[self.across]} labels"}) + body
        spill = max(0.0, (long - self.length) / 2)
        before = max(spill, *(along[i] / 2 - places[i] for i in kept), 0.0)
        after = max(spill, *(along[i] / 2 + places[i] - self.length for i in kept), 0.0)
        if self.across:
            return Drawing(body, -before, 0, self.panel.width + after, self.panel.height + extent + taken)
        return Drawing(body, -(extent + taken), -before, self.panel.width, self.panel.height + after)

    def marks(self) -> tuple[list[Any], list[str]]:
        """The values that are marked, and what is written there."""
        scale, said = self.scale, self.said
        if isinstance(scale, Bands):
            marks, texts = scale.domain, [plain(name) for name in scale.domain]
        else:
            count = said.get("tickCount", 10 if scale.log else math.ceil(self.length / 40))
            if not isinstance(count, int):
                raise Unknown(f"the number of ticks `{count}`")
            marks, values = scale.ticks(count), said.get("values")
            if values:
                marks = [v for v in values if 0 <= scale(v) <= math.ceil(self.length)]
            texts = list(map(scale.format(said.get("format"), count, skip=not values), marks))
        if "labelExpr" in said:
            expression = compiled(said["labelExpr"])
            texts = [plain(expression({"value": m, "label": t})) for m, t in zip(marks, texts, strict=True)]
        return marks, texts

    def lines(self, places: Sequence[float]) -> str:
        """The grid, the ticks and the axis itself."""
        said, config, crisp = self.said, self.config, [_crisp(place) for place in places]
        deep = float(self.panel.height if self.across else self.panel.width)
        parts = []
        if said.get("grid", not isinstance(self.scale, Bands)):
            parts += [self.line(at, -deep, at, 0, config.get("gridColor", "#ddd")) for at in crisp]
        if said.get("ticks", True):
            parts += [self.line(at, 0, at, TICK, config.get("tickColor", "#888")) for at in crisp]
        if said.get("domain", True):
            parts.append(self.line(0, 0, self.length, 0, config.get("domainColor", "#888")))
        return "".join(parts)

    def line(self, along: float, out: float, to_along: float, to_out: float, stroke: str) -> str:
        """A line given by how far along the axis and how far outside of the panel it begins and ends."""
        low = _crisp(self.panel.height)
        if self.across:
            return tag("line", x1=along, y1=low + out, x2=to_along, y2=low + to_out, stroke=stroke)
        return tag("line", x1=0.5 - out, y1=along, x2=0.5 - to_out, y2=to_along, stroke=stroke)

    def label(self, text: str, place: float, start: float, size: float, flat: bool) -> str:
        fill, high = self.config.get("labelColor", "black"), self.panel.height
        if flat:
            return written(text, place, high + start + ASCENT * size, size, fill, align="center")
        if self.across:
            return _turned(text, place + MIDDLE * size, high + start, size, fill, align="right")
        return written(text, -start, place + MIDDLE * size, size, fill, align="right")

    def title(self, lines: Sequence[str], extent: float) -> tuple[str, float, float]:
        """The title outside of the labels, its length and its depth."""
        size, weight = float(self.config.get("titleFontSize", 11)), self.config.get("titleFontWeight", "bold")
        look = {"fill": self.config.get("titleColor", "black"), "align": "center", "weight": weight}
        parts, out = [], extent + TITLE_GAP
        for line in lines if self.across else reversed(lines):
            if self.across:
                parts.append(written(line, self.length / 2, self.panel.height + out + ASCENT * size, size, **look))
            else:
                parts.append(_turned(line, -out - DESCENT * size, self.length / 2, size, **look))
            out += size + LINE
        long = max((width(line, size, weight) for line in lines), default=0.0)
        return "".join(parts), long, out - LINE - extent if lines else 0.0


def _turned(text: str, x: float, y: float, size: float, fill: str, **more: Any) -> str:
    """Text that reads upwards."""
    return written(text, x, y, size, fill, transform=f"rotate(-90,{number(x)},{number(y)})", **more)


def _crisp(place: float) -> float:
    """In the middle of a pixel, so that a thin line is thin."""
    return math.floor(place + 0.5) + 0.5


def apart(places: Sequence[float], along: Sequence[float], texts: Sequence[str], method: Any, room: float) -> list[int]:
    """Labels that leave each other room: every second one, every fourth, …; or, if greedy, each that has room."""
    one_of(method, (None, False, True, "parity", "greedy"), "the way that labels make room")
    kept = [i for i, text in enumerate(texts) if text]

    def meet(a: int, b: int) -> bool:
        return abs(places[a] - places[b]) < (along[a] + along[b]) / 2 + room

    if method == "greedy" and len(kept) > 2:
        found = kept[:1]
        for i in kept[1:]:
            if not meet(found[-1], i):
                found.append(i)
        return found
    while method and len(kept) > 2 and any(itertools.starmap(meet, itertools.pairwise(kept))):
        kept = kept[::2]
    return kept
