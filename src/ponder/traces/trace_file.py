"""Reads traces from a file, a folder of files, or a dataset on the hub.

Files are JSONL, a JSON array or Parquet. JSONL and Parquet are streamed. Text files may be
compressed with gzip. `formats` turns their records into traces.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import msgspec

from ponder.core import UserError
from ponder.core.jsonl import check_values, raw_lines, unpacked
from ponder.core.parquet import parquet_rows
from ponder.traces.formats import NAMES, Understood, understand
from ponder.traces.trace import Trace

ENDINGS = (".jsonl", ".json", ".jsonl.gz", ".json.gz", ".parquet")
HUB = re.compile(r"([\w.-]+/[\w.-]+?)(?:/([\w.-]+))?(?::([\w.-]+))?(?:@([\w./-]+))?")
_FILE = re.compile(r".*\.[a-z]{2,8}")  # a name with an ending, such as .csv; versions end in digits
UNREADABLE = (OSError, EOFError, zlib.error)  # what a missing or damaged file raises
LINES = "write it as JSON Lines (.jsonl.gz): they are read one record at a time"
NAMED = "FILE.jsonl, .json or .parquet, a folder of these, or org/name[/config][:split] on the hub"


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


def is_hub(path: Path) -> bool:
    """Return whether this names a dataset on the hub rather than a file."""
    if path.exists() or path.parent.exists() or _FILE.fullmatch(path.name):
        return False
    return HUB.fullmatch(str(path)) is not None


def rows(path: Path) -> Iterator[tuple[str, bytes | Any]]:
    """Yield each record, as JSON bytes or a decoded value, with its place for errors."""
    if is_hub(path):
        yield from _hub(path)
    elif path.is_dir():
        names = sorted(path.rglob("*"))
        files = [file for file in names if file.is_file() and file.name.endswith(ENDINGS)]
        if not files:
            raise UserError(f"there is no file of traces in {path}", hint=NAMED)
        for file in files:
            yield from rows(file)
    elif path.name.endswith(".parquet"):
        for number, row in enumerate(parquet_rows(path), 1):
            yield f"{path}, row {number}", row
    elif path.name.removesuffix(".gz").endswith(".json"):
        yield from _json(path)
    else:
        yield from _jsonl(path)


def _open(path: Path) -> Any:
    if path.name.endswith(".gz"):
        return gzip.open(path, "rb")
    return path.open("rb")


def _cause(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)


def _jsonl(path: Path) -> Iterator[tuple[str, bytes]]:
    try:
        # As bytes: only a line feed ends a line of JSONL, but text mode would also split at other
        # separators.
        with _open(path) as file:
            for number, line in enumerate(raw_lines(file, str(path)), 1):
                if line.strip():
                    yield f"{path}:{number}", line.removeprefix(b"\xef\xbb\xbf")
    except UNREADABLE as error:
        hint = "" if path.exists() else NAMED
        raise UserError(f"can't read {path}: {_cause(error)}", hint=hint) from None


def _json(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield the objects of an array, a single object, or lines as in JSONL."""
    try:
        with _open(path) as file:
            content = unpacked(file, str(path), LINES) if path.suffix == ".gz" else file.read()
        check_values(content, str(path), LINES)
    except UNREADABLE as error:
        raise UserError(f"can't read {path}: {_cause(error)}") from None
    try:
        value = msgspec.json.decode(content.removeprefix(b"\xef\xbb\xbf"))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        yield from _jsonl(path)
        return
    records = value if isinstance(value, list) else [value]
    for index, record in enumerate(records):
        yield f"{path}[{index}]", record


def _hub(path: Path) -> Iterator[tuple[str, Any]]:
    match = HUB.fullmatch(str(path))
    assert match
    name, config, split, revision = match.groups()
    try:
        import datasets
    except ModuleNotFoundError:
        needs = "reading it from the hub needs a package that isn't installed: datasets"
        message = f"there is no file {path}, and {needs}"
        raise UserError(message, hint=f"pip install datasets; or {NAMED}") from None
    try:
        loaded = datasets.load_dataset(
            name, config, split=split, revision=revision, trust_remote_code=False
        )
    except Exception as error:  # it raises errors of many kinds, most of them its own
        first_line = str(error).strip().partition("\n")[0] or type(error).__name__
        message = f"there is no file {path}, and the hub says: {first_line}"
        raise UserError(message, hint=NAMED) from None
    if isinstance(loaded, dict):
        splits = list(loaded)
        if "train" in splits:
            split = "train"
        elif len(splits) == 1:
            split = splits[0]
        else:
            message = f"{path} has the splits {', '.join(splits)}"
            raise UserError(message, hint=f"name one: {path}:{splits[0]}")
        loaded = loaded[split]
    dataset = str(path)
    if ":" not in dataset:
        dataset = f"{dataset}:{split}"
    for number, row in enumerate(loaded, 1):
        yield f"{dataset}, row {number}", row
