"""The traces of a file, in any of the formats that `formats` reads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import msgspec

from ponder.core import UserError
from ponder.traces.formats import NAMES, Understood, understand
from ponder.traces.rows import rows
from ponder.traces.trace import Trace


@dataclass
class TraceFile:
    """The traces of a file, read one record at a time on each iteration.

    `skipped` lists the records that were skipped, and `formats` counts the traces of each format.
    """

    path: Path
    bad: Literal["refuse", "skip"] = "refuse"
    columns: Mapping[str, str] = field(default_factory=dict)  # columns with other names
    skipped: list[str] = field(default_factory=list)
    formats: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        for name in self.columns:
            if name not in NAMES:
                raise UserError(f"a trace has no `{name}`", hint=f"it has {', '.join(NAMES)}")

    def __iter__(self) -> Iterator[Trace]:
        return (reading.trace for reading in self.understood())

    def understood(self) -> Iterator[Understood]:
        """Yield each trace with how it was read."""
        self.skipped.clear()
        self.formats.clear()
        for where, record in rows(self.path):
            try:
                value = msgspec.json.decode(record) if isinstance(record, bytes) else record
                readings = understand(value, self.columns)
            except (ValueError, RecursionError) as error:
                if self.bad == "refuse":
                    raise UserError(str(error), where=where, hint=_hint(str(error))) from None
                self.skipped.append(f"{where}: {error}")
                continue
            for reading in readings:
                self.formats[reading.format] += 1
                yield reading


def _hint(error: str) -> str:
    skip = 'skip such records: --bad skip (in Python bad="skip")'
    if "its columns are" not in error:
        return f"correct it, or {skip}"
    return f"say which columns to read: --column thinking=NAME (docs/traces.md); or {skip}"


def read(
    path: Path, bad: Literal["refuse", "skip"] = "refuse", columns: Mapping[str, str] | None = None
) -> TraceFile:
    """Return the traces of a file.

    A malformed record raises `UserError` with its place, or is skipped and listed. `columns` names
    the columns of fields that have other names: `{"thinking": "cot"}`.
    """
    return TraceFile(path, bad, columns or {})
