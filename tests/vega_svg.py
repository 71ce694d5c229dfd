"""What a picture shows, read back from SVG: from Ponder's own and from Vega's, in the same terms."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ET
from dataclasses import dataclass, field

NUMBER = re.compile(r"-?\d+\.?\d*(?:e-?\d+)?")
SVG = "{http://www.w3.org/2000/svg}"


@dataclass
class Shown:
    """Marks by layer, each as its outline's box and its paint; labels of axes with their places; legends and titles."""

    marks: list[tuple[str, list[tuple[tuple[float, ...], str]]]] = field(default_factory=list)
    axes: list[tuple[str, list[tuple[str, float]]]] = field(default_factory=list)
    legends: list[list[str]] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)


def numbers(text: str) -> list[float]:
    return [float(found) for found in NUMBER.findall(text)]


def outline(node: ET.Element, sign: bool = False) -> tuple[float, ...]:
    """Left, top, right and bottom; of a sign and of a word only its place."""
    kind = node.tag.removeprefix(SVG)
    moved = numbers(node.get("transform", "").partition(")")[0]) if "translate" in node.get("transform", "") else [0, 0]
    if kind == "circle":
        return float(node.get("cx")), float(node.get("cy"))
    if kind == "text":
        return (float(node.get("x", 0)) + moved[0],)  # renderers differ in where a baseline is
    if kind == "line":
        ends = [float(node.get(name, 0)) for name in ("x1", "y1", "x2", "y2")]
        xs, ys = (sorted(moved[i] + end for end in ends[i::2]) for i in (0, 1))
    elif kind == "rect":
        x, y, wide, high = (float(node.get(name, 0)) for name in ("x", "y", "width", "height"))
        xs, ys = [x, x + wide], [y, y + high]
    elif sign:
        return tuple(moved)
    else:
        places = path(node.get("d", ""))
        xs, ys = [x for x, _ in places], [y for _, y in places]
    return min(xs), min(ys), max(xs), max(ys)


def path(text: str) -> list[tuple[float, float]]:
    """Corners and handles of a path."""
    x = y = 0.0
    found = []
    for letter, rest in re.findall(r"([A-Za-z])([^A-Za-z]*)", text.replace("e-", "E-0")):
        given = numbers(rest)
        if letter in "MLC":
            pairs = list(zip(given[::2], given[1::2], strict=True))
        elif letter in "hv":
            pairs = [(x + given[0], y)] if letter == "h" else [(x, y + given[0])]
        elif letter in "HV":
            pairs = [(given[0], y)] if letter == "H" else [(x, given[0])]
        else:
            pairs = []
        found += pairs
        x, y = found[-1] if found else (x, y)
    return found


def paint(node: ET.Element) -> str:
    """Fill and stroke, as six digits each."""
    return " ".join(colour(node.get(name)) for name in ("fill", "stroke"))


def colour(text: str | None) -> str:
    if text in (None, "none", "transparent"):
        return "-"
    if text.startswith("rgb"):
        return "#" + "".join(f"{int(part):02x}" for part in numbers(text)[:3])
    named = {"white": "#ffffff", "black": "#000000"}
    return named.get(text, "#" + "".join(c * 2 for c in text[1:]) if len(text) == 4 else text)


def alike(paints: str, others: str) -> bool:
    """The same but for rounding."""
    for one, other in zip(paints.split(), others.split(), strict=True):
        if "-" in (one, other):
            if one != other:
                return False
        elif any(abs(a - b) > 1 for a, b in zip(bytes.fromhex(one[1:]), bytes.fromhex(other[1:]), strict=True)):
            return False
    return True


def by_class(root: ET.Element, *names: str) -> list[ET.Element]:
    return [node for node in root.iter(f"{SVG}g") if set(names) <= set(node.get("class", "").split())]


def words(node: ET.Element) -> list[str]:
    return [text.text for text in node.iter(f"{SVG}text") if text.text and text.get("opacity") != "0"]


def vega(svg: str) -> Shown:
    """What Vega drew."""
    root, found, layers = ET.fromstring(svg), Shown(), {}
    for node in by_class(root, "role-mark"):
        kind, _, name = node.get("class").split()
        drawn = [(outline(child, kind == "mark-symbol"), paint(child)) for child in node if child.get("d") != ""]
        layers.setdefault(name, (kind.removeprefix("mark-"), []))[1].extend(drawn)
    renamed = {"symbol": "point"}
    found.marks = [(renamed.get(kind, kind), drawn) for kind, drawn in layers.values()]
    for node in by_class(root, "role-axis"):
        for labels in by_class(node, "role-axis-label"):
            along = 0 if node.get("aria-label", "X").startswith("X") else 1
            places = [(t.text, numbers(t.get("transform"))[along]) for t in labels if t.text]
            found.axes.append(("xy"[along], places))
    for node in by_class(root, "role-legend"):
        found.legends.append([text for label in by_class(node, "role-legend-label") for text in words(label)])
    for role in ("role-axis-title", "role-title-text", "role-title-subtitle", "role-legend-title"):
        for node in by_class(root, role):
            for text in node.iter(f"{SVG}text"):
                lines = [span.text for span in text.iter(f"{SVG}tspan")]
                found.texts += lines or [text.text]
    return found


def ours(svg: str) -> Shown:
    """What Ponder drew."""
    root, found = ET.fromstring(svg), Shown()
    for node in by_class(root, "marks"):
        drawn = [child for child in node.iter() if child.tag.removeprefix(SVG) not in ("g", "svg", "title")]
        kind = node.get("class").split()[1]
        found.marks.append((kind, [(outline(child, kind == "point"), paint(child)) for child in drawn]))
    known = set()
    for node in by_class(root, "labels"):
        channel = node.get("class").split()[0]
        name = "xy"["xy".index(channel)]
        places = [(t.text, float(t.get(name))) for t in node]
        known.update(node.iter())
        found.axes.append((channel, places))
    for node in by_class(root, "legend"):
        texts = list(node.iter(f"{SVG}text"))
        known.update(texts)
        found.texts += [t.text for t in texts if t.get("font-weight") == "bold"]
        found.legends.append([t.text for t in texts if t.get("font-weight") != "bold"])
    for node in by_class(root, "marks"):
        known.update(node.iter())
    found.texts += [t.text for t in root.iter(f"{SVG}text") if t not in known]
    return found


def differences(mine: Shown, theirs: Shown, within: float = 0.5) -> list[str]:
    """How two pictures of one chart differ, but for the room between their parts."""
    found = []
    if sorted(mine.texts) != sorted(theirs.texts):
        found.append(f"texts: {sorted(set(mine.texts) ^ set(theirs.texts))}")
    if sorted(map(sorted, mine.legends)) != sorted(sorted(names) for names in theirs.legends if names):
        found.append(f"legends: {mine.legends} but {theirs.legends}")
    mine_axes, their_axes = (sorted(a.axes, key=lambda axis: axis[0]) for a in (mine, theirs))
    for (channel, one), (_, other) in zip(mine_axes, their_axes, strict=False):
        # Which labels give way to others depends on how wide letters are; those that stay must be some of Vega's.
        if not {text for text, _ in one} <= {text for text, _ in other} or len(one) < len(other) / 4:
            found.append(f"{channel}: {[t for t, _ in one]} but {[t for t, _ in other]}")
    if len(mine_axes) != len(their_axes):
        found.append(f"{len(mine_axes)} axes but {len(their_axes)}")
    if [(kind, len(drawn)) for kind, drawn in mine.marks if drawn] != [(k, len(d)) for k, d in theirs.marks if d]:
        found.append(f"marks: {[(k, len(d)) for k, d in mine.marks]} but {[(k, len(d)) for k, d in theirs.marks]}")
        return found
    pairs = zip([m for m in mine.marks if m[1]], [m for m in theirs.marks if m[1]], strict=True)
    for i, ((kind, drawn), (_, other)) in enumerate(pairs):
        far = max(
            (abs(a - b) for (p, _), (q, _) in zip(drawn, other, strict=True) for a, b in zip(p, q, strict=True)),
            default=0.0,
        )
        if far > within or math.isnan(far):
            found.append(f"layer {i}, {kind}: {far:.2f} pixels apart")
        wrong = [(p, q) for (_, p), (_, q) in zip(drawn, other, strict=True) if not alike(p, q)]
        if wrong:
            found.append(f"layer {i}, {kind}: painted {wrong[0]}")
    return found
