"""Reads the rows of a Parquet file in a subprocess of limited memory.

A small file can unpack to any size, and polars panics or aborts on some damaged ones: neither
reaches this process.
"""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from ponder.core import plugins
from ponder.core.errors import UserError
from ponder.core.jsonl import MOST_UNPACKED

MEMORY = 4 << 30  # bytes that the subprocess may address; polars itself takes 0.9 GB
CHUNK = 256  # rows that are decoded at a time
LENGTH = struct.Struct("<Q")  # precedes each message
DAMAGED = "copy or download it again; a large one can be written again with smaller row groups"


class _Message(msgspec.Struct, array_like=True):
    row: dict[str, Any] | None = None
    error: str = ""  # an empty message without a row is the last


def parquet_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Yield each row with values as JSON has them, dates as text; raise `UserError` if it can't."""
    plugins.need("polars", f"reading {path.name}")
    try:
        path.open("rb").close()
    except OSError as error:
        raise UserError(f"can't read {path}: {error.strerror}") from None
    command = [sys.executable, "-P", "-m", "ponder.core.parquet", str(path.absolute())]
    environment = os.environ | {"POLARS_MAX_THREADS": "1"}  # each reserves memory
    with subprocess.Popen(  # noqa: S603 our own module
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
    ) as process:
        try:
            message = _receive(process)
            while message.row is not None:
                yield message.row
                message = _receive(process)
        finally:
            process.kill()
    if message.error:
        raise UserError(f"can't read it as Parquet: {message.error}", where=str(path), hint=DAMAGED)


def _receive(process: subprocess.Popen[bytes]) -> _Message:
    """Read the subprocess's next message."""
    assert process.stdout is not None
    header = process.stdout.read(LENGTH.size)
    if len(header) < LENGTH.size:
        reason = f"it is damaged, or takes more than {MEMORY >> 30} GB of memory to read"
        return _Message(error=reason)
    (length,) = LENGTH.unpack(header)
    if length > MOST_UNPACKED:
        return _Message(error=f"a row takes more than {MOST_UNPACKED >> 20} MB")
    try:
        return msgspec.msgpack.decode(process.stdout.read(length), type=_Message)
    except (msgspec.MsgspecError, RecursionError) as error:
        return _Message(error=f"a row can't be read: {error}")


def _send_rows(path: Path) -> None:
    """Write a message per row to standard output. This runs in the subprocess."""
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    try:
        import polars

        table = polars.scan_parquet(path, glob=False)
        start = 0
        rows = table.slice(start, CHUNK).collect()
        while len(rows):
            for row in rows.iter_rows(named=True):
                _send(_Message(row))
            start += len(rows)
            rows = table.slice(start, CHUNK).collect()
        _send(_Message())
    except BaseException as error:  # polars panics with one that is not an Exception
        first_line = str(error).partition("\n")[0][:300]
        _send(_Message(error=first_line or type(error).__name__))


def _send(message: _Message) -> None:
    content = msgspec.msgpack.encode(message, enc_hook=str)
    sys.stdout.buffer.write(LENGTH.pack(len(content)) + content)
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    _send_rows(Path(sys.argv[1]))
