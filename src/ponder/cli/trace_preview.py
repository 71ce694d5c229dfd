"""Shows how traces were read: each field with the column it came from, and the columns that were not read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ponder.cli.options import columns
from ponder.core.text import count
from ponder.traces.trace import FIELDS

if TYPE_CHECKING:
    from ponder.traces import Understood
    from ponder.traces.segments import By

HEAD, TAIL = 60, 30  # characters of a text that are shown


def data(reading: Understood, by: By) -> dict[str, Any]:
    from ponder.traces import steps

    split = steps(reading.trace, by)
    fields = {name: value for name in FIELDS if (value := getattr(reading.trace, name)) not in (None, "")}
    parts = {"thinking_steps": len(split.thinking), "answer_steps": len(split.answer)}
    return {"format": reading.format, **fields, **parts, "columns": reading.columns, "not_read": reading.ignored}


def text(number: int, shown: dict[str, Any]) -> str:
    """A trace's fields, one per line."""
    rows = [("", "field", "read from", "")]
    rows += [("", name, shown["columns"][name], _said(shown, name)) for name in FIELDS if name in shown["columns"]]
    missing = [name for name in ("thinking", "answer", "gold") if name not in shown]
    lines = [f"trace {number}, read as {shown['format']}", columns(rows)]
    lines += [f"  it has no {' and no '.join(missing)}"] if missing else []
    lines += [f"  not read: {', '.join(shown['not_read'])}"] if shown["not_read"] else []
    return "\n".join(lines)


def _said(shown: dict[str, Any], name: str) -> str:
    """A field on one line: of a long text the beginning, the end and the length."""
    value = str(shown.get(name, ""))
    line = " ".join(value.split())
    if len(line) <= HEAD + TAIL:
        return line
    steps = f", {count(shown[f'{name}_steps'], 'step')}" if f"{name}_steps" in shown else ""
    return f"{line[:HEAD].rstrip()} … {line[-TAIL:].lstrip()} ({len(value):,} characters{steps})"
