"""Draws a chart as SVG, PNG and PDF with vl-convert, which runs Vega: a figure may use all of Altair."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from ponder.core.text import visible

NOT_XML = re.compile("[\ufffe\uffff]")


class Chart(NamedTuple):
    """A Vega-Lite spec, and the pictures drawn from it."""

    name: str
    spec: dict[str, Any]
    svg: str
    png: bytes
    pdf: bytes

    @property
    def title(self) -> str:
        return self.name.replace("_", " ").capitalize()

    @property
    def source(self) -> str:
        """The SVG as the source of an `<img>`; as elements of one page, the ids of two SVGs would clash."""
        return f"data:image/svg+xml;base64,{base64.b64encode(self.svg.encode()).decode()}"

    @property
    def size(self) -> tuple[int, int]:
        """Width and height in pixels."""
        width, height = re.findall(r'\b(?:width|height)="([\d.]+)', self.svg)[:2]
        return round(float(width)), round(float(height))


def draw(name: str, spec: dict[str, Any]) -> Chart:
    """Draw a spec as SVG, and that SVG as PNG and PDF: Vega runs once, and the three files show the same."""
    import vl_convert

    svg = vl_convert.vegalite_to_svg(json.dumps(_drawable(spec)))
    # A line of length 1e-14, such as from a label to the dot it touches, makes vl-convert's PDF writer panic.
    svg = re.sub(r"-?\d+(\.\d+)?e-\d\d+", "0", svg)
    # Text in a font that isn't installed would be missing; vl-convert brings Liberation Sans as its sans-serif font.
    svg = re.sub(r'font-family="([^"]*)"', r'font-family="\1, sans-serif"', svg)
    return Chart(name, spec, svg, bytes(vl_convert.svg_to_png(svg, scale=2)), bytes(vl_convert.svg_to_pdf(svg)))


def _drawable(value: Any) -> Any:
    """Return a spec with symbols for control characters, at which vl-convert aborts the process: XML has none."""
    if isinstance(value, str):
        return NOT_XML.sub("\ufffd", visible(value))
    if isinstance(value, Mapping):
        return {_drawable(key): _drawable(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_drawable(inner) for inner in value]
    return value
