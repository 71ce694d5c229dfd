"""Reads the records of a file of traces: JSONL, a JSON array, Parquet, a folder of these, or a dataset on the hub.

JSONL and Parquet are read a part at a time. Text files may be compressed with gzip.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from ponder.core import UserError
from ponder.core.jsonl import check_values, raw_lines, unpacked
from ponder.core.parquet import parquet_rows

ENDINGS = (".jsonl", ".json", ".jsonl.gz", ".json.gz", ".parquet")
HUB = re.compile(r"([\w.-]+/[\w.-]+?)(?:/([\w.-]+))?(?::([\w.-]+))?(?:@([\w./-]+))?")
_FILE = re.compile(r".*\.[a-z]{2,8}")  # a name with an ending, such as .csv; versions end in digits
UNREADABLE = (OSError, EOFError, zlib.error)  # what a missing or damaged file raises
LINES = "write it as JSON Lines (.jsonl.gz): they are read one record at a time"
NAMED = "FILE.jsonl, .json or .parquet, a folder of these, or org/name[/config][:split] on the hub"


def is_hub(path: Path) -> bool:
    """Whether this names a dataset on the hub rather than a file."""
    if path.exists() or path.parent.exists() or _FILE.fullmatch(path.name):
        return False
    return HUB.fullmatch(str(path)) is not None


def rows(path: Path) -> Iterator[tuple[str, bytes | Any]]:
    """Each record with its place, for errors: bytes that hold JSON, or a decoded value."""
    if is_hub(path):
        yield from _hub(path)
    elif path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.is_file() and file.name.endswith(ENDINGS))
        if not files:
            raise UserError(f"there is no file of traces in {path}", hint=NAMED)
        for file in files:
            yield from rows(file)
    elif path.name.endswith(".parquet"):
        yield from ((f"{path}, row {n}", row) for n, row in enumerate(parquet_rows(path), 1))
    elif path.name.removesuffix(".gz").endswith(".json"):
        yield from _json(path)
    else:
        yield from _jsonl(path)


def _open(path: Path) -> Any:
    return gzip.open(path, "rb") if path.name.endswith(".gz") else path.open("rb")


def _jsonl(path: Path) -> Iterator[tuple[str, bytes]]:
    try:
        # As bytes: only a line feed ends a line of JSONL, but text mode would also split at other separators.
        with _open(path) as file:
            for number, line in enumerate(raw_lines(file, str(path)), 1):
                if line.strip():
                    yield f"{path}:{number}", line.removeprefix(b"\xef\xbb\xbf")
    except UNREADABLE as error:
        what = f"can't read {path}: {getattr(error, 'strerror', None) or error}"
        raise UserError(what, hint="" if path.exists() else NAMED) from None


def _json(path: Path) -> Iterator[tuple[str, Any]]:
    """The objects of an array, a single object, or lines as in JSONL."""
    try:
        with _open(path) as file:
            content = unpacked(file, str(path), LINES) if path.suffix == ".gz" else file.read()
        check_values(content, str(path), LINES)
    except UNREADABLE as error:
        raise UserError(f"can't read {path}: {getattr(error, 'strerror', None) or error}") from None
    try:
        whole = msgspec.json.decode(content.removeprefix(b"\xef\xbb\xbf"))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        yield from _jsonl(path)
        return
    for n, record in enumerate(whole if isinstance(whole, list) else [whole]):
        yield f"{path}[{n}]", record


def _hub(path: Path) -> Iterator[tuple[str, Any]]:
    match = HUB.fullmatch(str(path))
    assert match
    name, config, split, revision = match.groups()
    try:
        import datasets
    except ModuleNotFoundError:
        what = f"there is no file {path}, and reading it from the hub needs a package that isn't installed: datasets"
        raise UserError(what, hint=f"pip install datasets; or {NAMED}") from None
    try:
        loaded = datasets.load_dataset(name, config, split=split, revision=revision, trust_remote_code=False)
    except Exception as error:  # it raises errors of many kinds, most of them its own
        first = str(error).strip().partition("\n")[0] or type(error).__name__
        raise UserError(f"there is no file {path}, and the hub says: {first}", hint=NAMED) from None
    if isinstance(loaded, dict):
        split = "train" if "train" in loaded else next(iter(loaded)) if len(loaded) == 1 else None
        if split is None:
            raise UserError(f"{path} has the splits {', '.join(loaded)}", hint=f"name one: {path}:{next(iter(loaded))}")
        loaded = loaded[split]
    for n, row in enumerate(loaded):
        yield f"{path}{'' if ':' in str(path) else f':{split}'}, row {n + 1}", row
