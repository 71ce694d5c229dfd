"""Where everything goes: axes and words around each panel, panels in rows and columns, legends and titles around."""

from __future__ import annotations

import math

from ponder.vega.axes import axis
from ponder.vega.legends import INSIDE, ORIENTS, legend, lines_of, title
from ponder.vega.marks import drawn
from ponder.vega.scales import resolve
from ponder.vega.spec import Grid, Node, Panel, Spec, configured, is_number, read
from ponder.vega.text import Drawing, safe, tag
from ponder.vega.unknown import Unknown

AIR = 16  # pixels at least between panels and what belongs to them


def picture(spec: Spec) -> str:
    """The whole chart as SVG."""
    config = configured(spec)
    root = read(spec)
    resolve(root)
    whole = _placed(root, config)
    if not is_number(config["padding"]):
        raise Unknown("a padding that differs by side")
    pad = float(config["padding"])
    wide, high = (math.ceil(size + 2 * pad) for size in (whole.right - whole.left, whole.bottom - whole.top))
    back = tag("rect", width=wide, height=high, fill=config["background"])
    body = whole.moved(pad - whole.left, pad - whole.top)
    size = f'width="{wide}" height="{high}" viewBox="0 0 {wide} {high}"'
    font = safe(f"Roboto, {config.get('font', 'sans-serif')}")  # it was measured with Roboto
    label = safe(" ".join(lines_of((root.title or {}).get("text"))))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="{font}" role="img" aria-label="{label}">'
        f"{back}{body}</svg>\n"
    )


def _placed(node: Node, config: Spec) -> Drawing:
    """A part with its legends and its title; the first panel's upper left corner is at (0, 0)."""
    inner, wide = _panel(node, config) if isinstance(node, Panel) else _grid(node, config)
    for orient in ORIENTS:
        inner = _with_legends(node, inner, orient, config, wide)
    if not node.title or not lines_of(node.title.get("text")):
        return inner
    look = config.get("title", {})
    block = title(node.title, look)
    x = 0.0 if node.title.get("frame") == "group" else inner.left
    y = inner.top - float(look.get("offset", 4)) - block.bottom
    body = block.moved(x, y) + inner.body
    return Drawing(body, min(inner.left, x), y, max(inner.right, x + block.right), inner.bottom)


def _with_legends(node: Node, inner: Drawing, orient: str, config: Spec, wide: float) -> Drawing:
    """Legends of one side: below each other at the right, else beside each other."""
    body, left, top, right, bottom = inner.body, inner.left, inner.top, inner.right, inner.bottom
    along = 0.0
    for shown in node.legends:
        side, offset, block = legend(shown, config.get("legend", {}), wide)
        if side in INSIDE and isinstance(node, Grid):
            side, offset = "right", AIR  # inside, it would hide part of one panel of several
        if side != orient:
            continue
        if orient == "right":
            x, y = inner.right + offset, along
            along += block.bottom + AIR
        elif orient in INSIDE:
            x, y = offset if orient == "top-left" else wide - block.right - offset, along + offset
            along += block.bottom
        else:
            x, y = along, inner.bottom + offset if orient == "bottom" else inner.top - offset - block.bottom
            along += block.right + AIR
        body += block.moved(x, y)
        left, top = min(left, x), min(top, y)
        right, bottom = max(right, x + block.right), max(bottom, y + block.bottom)
    return Drawing(body, left, top, right, bottom)


def _panel(panel: Panel, config: Spec) -> tuple[Drawing, float]:
    """Axes and marks, and how wide the panel is."""
    for name, channel in (("width", "x"), ("height", "y")):
        if getattr(panel, name) is None:
            setattr(panel, name, 300 if channel in panel.scales else 20)
    wide, high = float(panel.width), float(panel.height)
    axes = [axis(panel, channel, config.get("axis", {})) for channel in ("x", "y")]
    bodies = [one.body for one in axes]
    if rim := config.get("view", {}).get("stroke", "#ddd"):
        bodies.insert(0, tag("rect", x=0.5, y=0.5, width=wide, height=high, fill="none", stroke=rim))
    left, top = min(0.0, *(a.left for a in axes)), min(0.0, *(a.top for a in axes))
    right, bottom = max(wide, *(a.right for a in axes)), max(high, *(a.bottom for a in axes))
    for unit in panel.units:
        body, words = drawn(panel, unit)
        bodies.append(body)
        if not unit.mark.get("clip"):
            for box in words:
                left, top = min(left, box[0]), min(top, box[1])
                right, bottom = max(right, box[2]), max(bottom, box[3])
    return Drawing("".join(bodies), left, top, right, bottom), wide


def _grid(node: Node, config: Spec) -> tuple[Drawing, float]:
    """Panels in rows and columns, each row and column as wide as its widest, and the width of all panels together."""
    assert isinstance(node, Grid)
    if not node.children:
        return Drawing("", 0, 0, 0, 0), 0.0
    cells = [(divmod(i, node.columns), _placed(child, config)) for i, child in enumerate(node.children)]
    sizes = [_size(child) for child in node.children]
    rows, columns = 1 + max(r for (r, _), _ in cells), 1 + max(c for (_, c), _ in cells)
    spans = {
        "x": [(-cell.left, cell.right, size[0], c) for ((_, c), cell), size in zip(cells, sizes, strict=True)],
        "y": [(-cell.top, cell.bottom, size[1], r) for ((r, _), cell), size in zip(cells, sizes, strict=True)],
    }
    xs = _origins(spans["x"], columns, node.gaps[1], node.flush)
    ys = _origins(spans["y"], rows, node.gaps[0], node.flush)
    body = "".join(cell.moved(xs[c], ys[r]) for (r, c), cell in cells)
    left, top = min(xs[c] + cell.left for (_, c), cell in cells), min(ys[r] + cell.top for (r, _), cell in cells)
    right = max(xs[c] + cell.right for (_, c), cell in cells)
    bottom = max(ys[r] + cell.bottom for (r, _), cell in cells)
    wide = max(xs[c] + size[0] for ((_, c), _), size in zip(cells, sizes, strict=True))
    return Drawing(body, left, top, right, bottom), wide


def _origins(spans: list[tuple[float, float, float, int]], count: int, gap: float, flush: bool) -> list[float]:
    """Where each row or column begins, from what its members need before it, up to its end, and of that the panel."""
    before, reach, size = (
        [max((span[k] for span in spans if span[3] == i), default=0.0) for i in range(count)] for k in range(3)
    )
    found = [0.0]
    for i in range(1, count):
        apart = reach[i - 1] + before[i]
        needed = max(size[i - 1] + gap, apart + AIR) if flush else apart + gap
        found.append(found[-1] + needed)
    return found


def _size(node: Node) -> tuple[float, float]:
    """Of a panel; a grid counts as its first one."""
    if isinstance(node, Panel):
        return float(node.width), float(node.height)
    assert isinstance(node, Grid)
    return _size(node.children[0]) if node.children else (0.0, 0.0)
