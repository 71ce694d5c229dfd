"""Reads text and JSONL files of users line by line. Every error names its location, `path:line`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import IO, TypeVar

import msgspec

from ponder.core.errors import UserError
from ponder.core.text import plain

T = TypeVar("T")
# Bytes that a record, or whatever else is in memory at once, may take after unpacking.
MOST_UNPACKED = 128 << 20
# Values in one record: in memory, lists and objects take up to fifty times their bytes.
MOST_VALUES = 5_000_000
MOST_BLANK = 1_000_000  # blank lines in a row
ONE_RECORD = "a line holds one record, such as a trace"
NESTED = "lists or objects are nested too deeply"
RELATIVE = (
    "a path in a study file is relative to its folder; "
    "one after --set or in Python, to the current folder"
)


def check_ends(path: Path) -> None:
    """Raise `UserError` for a pipe or a device: a stranger's study may name one without an end."""
    if path.exists() and not path.is_file() and not path.is_dir():
        raise UserError(f"{path} is a pipe or a device, not a file", hint=RELATIVE)


def lines(path: Path) -> Iterator[tuple[str, str]]:
    """Yield (location, line) for each line that isn't blank; the location is `path:number`.

    An empty file is an error.
    """
    empty = True
    try:
        check_ends(path)
        with path.open("rb") as file:
            for number, raw in enumerate(raw_lines(file, str(path)), 1):
                line = raw.decode("utf-8").removesuffix("\n").removesuffix("\r")
                if line.strip():
                    empty = False
                    yield f"{path}:{number}", line
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"can't read {path}: {error}", hint=RELATIVE) from None
    if empty:
        raise UserError(f"{path} is empty")


def decode(line: str | bytes, kind: type[T], where: str, example: str) -> T:
    """Decode one line of JSON as a type. `example` is a valid line, for the hint."""
    try:
        return msgspec.json.decode(line, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise UserError(plain(error, "an object"), where=where, hint=example) from None
    except RecursionError:
        raise UserError(NESTED, where=where, hint=example) from None


def records(path: Path, kind: type[T], example: str) -> Iterator[tuple[str, T]]:
    """Yield (location, record) for each line of a JSONL file, decoded as a type."""
    for where, line in lines(path):
        yield where, decode(line, kind, where, example)


def unpacked(file: IO[bytes], where: str, hint: str) -> bytes:
    """Read all of a compressed file; raise `UserError` if it is too large once unpacked."""
    content = file.read(MOST_UNPACKED + 1)
    if len(content) > MOST_UNPACKED:
        raise UserError(f"it unpacks to more than {MOST_UNPACKED >> 20} MB", where=where, hint=hint)
    check_values(content, where, hint)
    return content


def check_values(content: bytes, where: str, hint: str) -> None:
    """Raise `UserError` for JSON with too many values to decode."""
    if len(content) <= MOST_VALUES:
        return
    values = content.count(b",") + content.count(b"[") + content.count(b"{")
    if values > MOST_VALUES:
        raise UserError(f"it has more than {MOST_VALUES:,} values", where=where, hint=hint)


def raw_lines(file: IO[bytes], where: str) -> Iterator[bytes]:
    """Yield the lines of a file; raise `UserError` for one that is too long to be a record."""
    number = 0
    blank = 0
    while line := file.readline(MOST_UNPACKED + 1):
        number += 1
        if len(line) > MOST_UNPACKED:
            what = f"this line has more than {MOST_UNPACKED >> 20} MB"
            raise UserError(what, where=f"{where}:{number}", hint=ONE_RECORD)
        check_values(line, f"{where}:{number}", ONE_RECORD)
        blank = 0 if line.strip() else blank + 1
        if blank > MOST_BLANK:
            raise UserError(
                f"more than {MOST_BLANK:,} blank lines in a row", where=f"{where}:{number}"
            )
        yield line
