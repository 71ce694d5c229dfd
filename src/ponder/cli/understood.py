"""Shows how traces were read: each field with the column it came from, and the columns that were not read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ponder.cli.options import columns
from ponder.core.text import count

if TYPE_CHECKING:
    from ponder.traces import Understood
    from ponder.traces.segments import By

HEAD, TAIL = 60, 30  # characters of a text that are shown


def data(reading: Understood, by: By) -> dict[str, Any]:
    from ponder.traces import steps

    split = steps(reading.trace, by)
    fields = {name: value for name, value in _fields(reading).items() if value not in (None, "")}
    parts = {"thinking_steps": len(split.thinking), "answer_steps": len(split.answer)}
    return {"format": reading.format, **fields, **parts, "columns": reading.columns, "not_read": reading.ignored}


def _fields(reading: Understood) -> dict[str, Any]:
    from ponder.traces.trace import FIELDS

    return {name: getattr(reading.trace, name) for name in FIELDS}


def text(number: int, shown: dict[str, Any]) -> str:
    """A trace's fields, one per line."""
    rows = [("", "field", "read from", "")]
    for name in shown["columns"]:
        if name in shown:
            length = (
                f"{len(shown[name]):,} characters" if isinstance(shown[name], str) and len(shown[name]) > HEAD else ""
            )
            steps = f", {count(shown[f'{name}_steps'], 'step')}" if f"{name}_steps" in shown and length else ""
            rows.append(
                (
                    "",
                    name,
                    shown["columns"][name],
                    f"{_clipped(str(shown[name]))} {f'({length}{steps})' if length else ''}",
                )
            )
    missing = [name for name in ("thinking", "answer", "gold") if name not in shown]
    lines = [f"trace {number}, read as {shown['format']}", columns(rows)]
    lines += [f"  it has no {' and no '.join(missing)}"] if missing else []
    lines += [f"  not read: {', '.join(shown['not_read'])}"] if shown["not_read"] else []
    return "\n".join(lines)


def _clipped(value: str) -> str:
    """The beginning and the end of a text on one line."""
    line = " ".join(value.split())
    return line if len(line) <= HEAD + TAIL + 3 else f"{line[:HEAD]} … {line[-TAIL:]}"
