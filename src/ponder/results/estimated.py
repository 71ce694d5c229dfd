"""A figure as the pages show it: its chart, what it shows in sentences, and the first rows of its tables."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ponder.core import Figure, Outcome, Tables
from ponder.core.text import visible

MAX_ROWS = 200  # of a table that a page shows
DESCRIBED = 3  # findings in the description of a chart


@dataclass(frozen=True)
class Estimated:
    """A figure, drawn from its estimates alone."""

    name: str
    spec: Any = None
    findings: Sequence[str] = ()
    tables: Tables | None = None  # without the rows beyond MAX_ROWS
    lengths: Sequence[int] = ()  # of the whole tables
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
    short = {key: rows[:MAX_ROWS] for key, rows in tables.items() if rows}
    return Estimated(name, spec, findings, short, [len(rows) for rows in tables.values() if rows]), tables


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
        return visible(value)
    if isinstance(value, dict):
        return {key: _shown(inner) for key, inner in value.items()}
    return [_shown(inner) for inner in value] if isinstance(value, list) else value
