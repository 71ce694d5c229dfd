"""Text as wide as it will be: measured by the advance widths of Roboto, the font that pictures are drawn with."""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

WEIGHTS = {"normal": "Regular", "bold": "Bold"}
ASCENT, MIDDLE, DESCENT = 0.79, 0.3, 0.21  # of a text's size: from the baseline up to its top and middle, and down
LINE = 2  # pixels between lines
FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # in XML


@dataclass(frozen=True)
class Font:
    path: Path
    widths: Mapping[int, float]  # of characters, in parts of the font's size

    @classmethod
    @cache
    def load(cls, weight: str) -> Font:
        path = Path(str(files("font_roboto") / "files" / f"Roboto-{WEIGHTS[weight]}.ttf"))
        data = path.read_bytes()
        entries = struct.iter_unpack(">4sLLL", data[12 : 12 + 16 * struct.unpack_from(">H", data, 4)[0]])
        at = {name.decode(): start for name, _, start, _ in entries}
        unit = struct.unpack_from(">H", data, at["head"] + 18)[0]
        count = struct.unpack_from(">H", data, at["hhea"] + 34)[0]
        advances = [width for width, _ in struct.iter_unpack(">Hh", data[at["hmtx"] : at["hmtx"] + 4 * count])]
        widths = {}
        for first, last, glyph in _groups(data, at["cmap"]):
            for i in range(last - first + 1):
                widths[first + i] = advances[min(glyph + i, count - 1)] / unit
        return cls(path, widths)


def _groups(data: bytes, start: int) -> list[tuple[int, int, int]]:
    """Runs of characters with the first one's glyph, from the table that has all of them (format 12)."""
    tables = struct.iter_unpack(">HHL", data[start + 4 : start + 4 + 8 * struct.unpack_from(">H", data, start + 2)[0]])
    whole = next(start + offset for *_, offset in tables if struct.unpack_from(">H", data, start + offset)[0] == 12)
    count = struct.unpack_from(">L", data, whole + 12)[0]
    return list(struct.iter_unpack(">LLL", data[whole + 16 : whole + 16 + 12 * count]))


@dataclass(frozen=True)
class Drawing:
    """Part of a picture, and the box that it takes."""

    body: str
    left: float
    top: float
    right: float
    bottom: float

    def moved(self, x: float, y: float) -> str:
        if not self.body or not (x or y):
            return self.body
        return tag("g", self.body, transform=f"translate({number(x)},{number(y)})")


def width(text: str, size: float, weight: str = "normal") -> float:
    widths = Font.load(weight).widths
    return size * sum(widths.get(ord(c), 0.6 if ord(c) < 0x2E80 else 1.0) for c in text)


def shortened(text: str, size: float, most: float, weight: str = "normal") -> str:
    """The text, or as much of it as fits, with an ellipsis."""
    if width(text, size, weight) <= most:
        return text
    while text and width(text + "…", size, weight) > most:
        text = text[:-1]
    return text + "…"


def number(value: float) -> str:
    """A coordinate to a thousandth of a pixel."""
    text = f"{value:.3f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def safe(text: str) -> str:
    """Text that is nothing but text in XML and in HTML."""
    return escape(FORBIDDEN.sub("\ufffd", text))


def plain(value: Any) -> str:
    """A name as text."""
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    return f"{value:g}" if isinstance(value, float) and value == int(value) else str(value)


def tag(name: str, body: str = "", **attributes: Any) -> str:
    """An element; `stroke_width` becomes `stroke-width`, and attributes that are None are left out."""
    said = "".join(
        f' {key.replace("_", "-")}="{safe(value) if isinstance(value, str) else number(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    return f"<{name}{said}>{body}</{name}>" if body else f"<{name}{said}/>"


def written(
    text: str, x: float, y: float, size: float, fill: str, *, align: str = "left", weight: str = "normal", **more: Any
) -> str:
    """A line of text whose baseline begins, is centred or ends at a place."""
    anchor = {"left": None, "center": "middle", "right": "end"}[align]
    bold = None if weight == "normal" else weight
    return tag("text", safe(text), x=x, y=y, font_size=size, fill=fill, text_anchor=anchor, font_weight=bold, **more)
