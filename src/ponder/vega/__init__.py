"""Charts drawn without a browser: the part of Vega-Lite that figures use, as SVG, and SVG as PNG.

Vega itself needs a JavaScript engine: 84 MB on disk and 200 MB of memory for a picture. What is drawn here is placed
where Vega places it; a chart that asks for more raises `Unknown`, which says what.
"""

from __future__ import annotations

from typing import Any

from ponder.vega.layout import picture
from ponder.vega.text import WEIGHTS, Font
from ponder.vega.unknown import Unknown

__all__ = ["Unknown", "png", "svg"]


def svg(spec: dict[str, Any]) -> str:
    """A Vega-Lite chart as SVG that needs nothing else."""
    return picture(spec)


def png(drawing: str, scale: float = 2) -> bytes:
    """The drawing in pixels, with the same letters on every machine."""
    import resvg_py

    fonts = [Font.load(weight) for weight in WEIGHTS]
    # Letters that the font lacks are looked for among the machine's own fonts.
    whole = all(ord(c) in fonts[0].widths or c < " " for c in drawing)
    return bytes(
        resvg_py.svg_to_bytes(
            svg_string=drawing,
            zoom=scale,
            skip_system_fonts=whole,
            font_files=[str(font.path) for font in fonts],
            font_family="Roboto",
            sans_serif_family="Roboto",
        )
    )
