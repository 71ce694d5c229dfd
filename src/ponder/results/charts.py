"""Estimates a figure, draws it from its estimates alone, and makes pictures of the chart.

vl-convert, which runs Vega, draws SVG, PNG and PDF: a figure may use all of Altair.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

from ponder.core import Basis, Ended, Figure, Outcome, Tables
from ponder.core.text import visible

MAX_ROWS = 200  # of a table that a page shows
DESCRIBED = 3  # findings in the description of a chart
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
        return title(self.name)

    @property
    def source(self) -> str:
        """The SVG as the source of an `<img>`; as elements of one page, the ids of two SVGs would
        clash.
        """
        return f"data:image/svg+xml;base64,{base64.b64encode(self.svg.encode()).decode()}"

    @property
    def size(self) -> tuple[int, int]:
        """Width and height in pixels."""
        width, height = re.findall(r'\b(?:width|height)="([\d.]+)', self.svg)[:2]
        return round(float(width)), round(float(height))


def title(name: str) -> str:
    """Return a figure's name as a heading."""
    return name.replace("_", " ").capitalize()


def draw(name: str, spec: dict[str, Any]) -> Chart:
    """Draw a spec as SVG, and that SVG as PNG and PDF: Vega runs once, and the three files show the
    same.
    """
    import vl_convert

    svg = vl_convert.vegalite_to_svg(json.dumps(_drawable(spec)))
    # A line of length 1e-14, such as from a label to the dot it touches, makes vl-convert's PDF
    # writer panic.
    svg = re.sub(r"-?\d+(\.\d+)?e-\d\d+", "0", svg)
    # Text in a font that isn't installed would be missing; vl-convert brings Liberation Sans as its
    # sans-serif font.
    svg = re.sub(r'font-family="([^"]*)"', r'font-family="\1, sans-serif"', svg)
    return Chart(
        name,
        spec,
        svg,
        bytes(vl_convert.svg_to_png(svg, scale=2)),
        bytes(vl_convert.svg_to_pdf(svg)),
    )


def _drawable(value: Any) -> Any:
    """Return a spec with symbols for control characters, at which vl-convert aborts the process:
    XML has none.
    """
    if isinstance(value, str):
        return NOT_XML.sub("\ufffd", visible(value))
    if isinstance(value, Mapping):
        return {_drawable(key): _drawable(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_drawable(inner) for inner in value]
    return value


class Group(NamedTuple):
    """The attempts that rows and marks were computed from, by the keys of their cells."""

    cells: tuple[bytes, ...]
    ended: tuple[Ended, ...]  # empty: however they ended


@dataclass(frozen=True)
class DrawnFigure:
    """A figure of a study: its estimates, and what was drawn from them alone."""

    name: str
    spec: Any = None  # the chart, in Vega-Lite
    findings: Sequence[str] = ()
    tables: Tables | None = None
    # of the tables that have rows, also where only their first rows are here
    lengths: Sequence[int] = ()
    # by what rows and marks have as `basis`
    groups: Mapping[str, Group] = field(default_factory=dict)
    error: str = ""  # why there is none

    @property
    def title(self) -> str:
        return title(self.name)

    @cached_property
    def picture(self) -> Chart:
        return draw(self.name, self.spec)

    def first_rows(self) -> DrawnFigure:
        """Return the figure with the rows that a page shows."""
        tables = {}
        for name, rows in (self.tables or {}).items():
            if rows:
                tables[name] = [_plain(row) for row in rows[:MAX_ROWS]]
        return replace(self, tables=tables)


def draw_figure(name: str, figure: Figure, outcomes: Sequence[Outcome]) -> DrawnFigure:
    """Estimate, then draw from the estimates alone."""
    tables = figure.estimate(outcomes)
    spec = _shown(figure.draw(tables).to_dict())
    findings = figure.findings(tables)
    # Vega makes it the chart's label for screen readers
    spec["description"] = described(name, spec, findings)
    lengths = [len(rows) for rows in tables.values() if rows]
    return DrawnFigure(name, spec, findings, tables, lengths, _groups(tables))


def _groups(tables: Tables) -> dict[str, Group]:
    groups = {}
    for rows in tables.values():
        for row in rows:
            basis = row.get("basis")
            if isinstance(basis, Basis) and basis not in groups:
                groups[str(basis)] = Group(tuple(cell.key for cell in basis.cells), basis.ended)
    return groups


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row with the text of its `basis` instead of its cells, for another process."""
    return {key: str(value) if isinstance(value, Basis) else value for key, value in row.items()}


def described(name: str, spec: Any, findings: Sequence[str]) -> str:
    """Describe a chart for screen readers: its axes, and the first clause of the first findings."""
    x = _axis_title(spec, "x")
    y = _axis_title(spec, "y")
    text = f"Chart {name.replace('_', ' ')}"
    if x and y:
        text += f": {y} against {x}"
    elif x or y:
        text += f": {y or x}"
    clauses = []
    for finding in findings[:DESCRIBED]:
        clause = finding.partition("; ")[0].rstrip(".")
        clauses.append(f"{clause}.")
    if clauses:
        text += f". {' '.join(clauses)}"
    return text


def _titles(value: Any, axis: str, key: str) -> Iterator[str]:
    """Yield the titles of an axis, or the names of its columns, in the order of the panels."""
    if isinstance(value, list):
        for inner in value:
            yield from _titles(inner, axis, key)
    elif isinstance(value, dict):
        encoding = value.get("encoding")
        if isinstance(encoding, dict) and isinstance(encoding.get(axis), dict):
            title = encoding[axis].get(key)
            if isinstance(title, str):
                yield title.replace("_", " ")
        for name, inner in value.items():
            if name not in ("data", "datasets", "encoding", "config"):
                yield from _titles(inner, axis, key)


def _shown(value: Any) -> Any:
    """Return a chart whose texts show control characters as symbols."""
    if isinstance(value, str):
        return visible(str(value))
    if isinstance(value, dict):
        return {key: _shown(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_shown(inner) for inner in value]
    return value


def _axis_title(spec: Any, axis: str) -> str:
    """Return the first title of an axis, or the name of its column if none has a title."""
    for key in ("title", "field"):
        for title in _titles(spec, axis, key):
            return title
    return ""
