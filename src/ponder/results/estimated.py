"""A figure as the pages show it: its chart, what it shows in sentences, and the first rows of its tables."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ponder.core import Basis, Ended, Figure, Outcome, Tables
from ponder.core.text import visible

MAX_ROWS = 200  # of a table that a page shows
DESCRIBED = 3  # findings in the description of a chart


class Group(NamedTuple):
    """The attempts that rows and marks were computed from, by the keys of their cells."""

    cells: tuple[bytes, ...]
    ended: tuple[Ended, ...]  # empty: however they ended


@dataclass(frozen=True)
class Estimated:
    """A figure, drawn from its estimates alone."""

    name: str
    spec: Any = None
    findings: Sequence[str] = ()
    tables: Tables | None = None  # without the rows beyond MAX_ROWS
    lengths: Sequence[int] = ()  # of the whole tables
    groups: Mapping[str, Group] = field(default_factory=dict)  # by what rows and marks have as `basis`
    error: str = ""  # why there is none

    @property
    def title(self) -> str:
        return self.name.replace("_", " ").capitalize()


def estimate(name: str, figure: Figure, outcomes: Sequence[Outcome]) -> tuple[Estimated, Tables]:
    """Estimate, then draw from the estimates alone; also returns the whole tables."""
    tables = figure.estimate(outcomes)
    spec, findings = _shown(figure.draw(tables).to_dict()), figure.findings(tables)
    # Vega makes it the chart's label for screen readers.
    spec["description"] = described(name, spec, findings)
    short = {key: [_plain(row) for row in rows[:MAX_ROWS]] for key, rows in tables.items() if rows}
    lengths = [len(rows) for rows in tables.values() if rows]
    return Estimated(name, spec, findings, short, lengths, _groups(tables)), tables


def _groups(tables: Tables) -> dict[str, Group]:
    groups = {}
    for rows in tables.values():
        for row in rows:
            basis = row.get("basis")
            if isinstance(basis, Basis) and basis not in groups:
                groups[str(basis)] = Group(tuple(cell.key for cell in basis.cells), basis.ended)
    return groups


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row without its cells, which stay where they are: a page is made in another process."""
    return {key: str(value) if isinstance(value, Basis) else value for key, value in row.items()}


def described(name: str, spec: Any, findings: Sequence[str]) -> str:
    """What a chart shows, for those who can't see it: its axes, and the first clause of the first findings."""
    y, x = (
        next(itertools.chain(_titles(spec, axis, "title"), _titles(spec, axis, "field")), "") for axis in ("y", "x")
    )
    axes = f"{y} against {x}" if x and y else y or x
    shown = " ".join(finding.partition("; ")[0].rstrip(".") + "." for finding in findings[:DESCRIBED])
    return ". ".join(part for part in (f"Chart {name.replace('_', ' ')}{': ' if axes else ''}{axes}", shown) if part)


def _titles(value: Any, axis: str, key: str) -> Iterator[str]:
    """The titles of an axis, or the names of its columns, in the order of the panels."""
    if isinstance(value, dict):
        channel = value.get("encoding", {}).get(axis) if isinstance(value.get("encoding"), dict) else None
        if isinstance(channel, dict) and isinstance(title := channel.get(key), str):
            yield title.replace("_", " ")
        for name, inner in value.items():
            if name not in ("data", "datasets", "encoding", "config"):
                yield from _titles(inner, axis, key)
    elif isinstance(value, list):
        for inner in value:
            yield from _titles(inner, axis, key)


def _shown(value: Any) -> Any:
    """A chart whose texts show control characters as symbols."""
    if isinstance(value, str):
        return visible(str(value))
    if isinstance(value, dict):
        return {key: _shown(inner) for key, inner in value.items()}
    return [_shown(inner) for inner in value] if isinstance(value, list) else value
