"""Measures a command's CPU time and peak memory, as the kernel reports them when it ends.

CPU time, because wall time on a shared machine depends on what else runs.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

PONDER = str(Path(sys.executable).with_name("ponder"))
LIMIT_SECONDS = 900


class Cost(NamedTuple):
    cpu_seconds: float
    peak_mb: float


def cost(
    command: Sequence[str], folder: Path, started: Callable[[int], None] = lambda _: None, **environment: str
) -> Cost:
    """Run a command in a folder to its end. Its output is shown only if it fails."""
    talk = folder / "talk.txt"
    with talk.open("w") as file:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
        )
        stop = threading.Timer(LIMIT_SECONDS, process.kill)
        stop.start()
        try:
            started(process.pid)
            _, status, usage = os.wait4(process.pid, 0)
        finally:
            stop.cancel()
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"{' '.join(command)} exited with {process.returncode}:\n{talk.read_text()[-2000:]}")
    # A child inherits its parent's peak, so the scripts that import this file must stay small.
    return Cost(usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


def table(rows: Sequence[Sequence[Any]], heads: Sequence[str]) -> str:
    """A table as text; all columns but the first are right-aligned."""
    texts = [[str(value) for value in row] for row in (heads, *rows)]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    lines = [
        "  ".join(c.rjust(w) if i else c.ljust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True)))
        for row in texts
    ]
    return "\n".join([lines[0], "  ".join("-" * w for w in widths), *lines[1:]])


def verdict(claim: str, value: float, limit: float, unit: str = "") -> str:
    """A target, the measured value, and whether the target is met."""
    return f"{'met   ' if value <= limit else 'MISSED'}  {claim}: {value:.3g}{unit} (at most {limit:g}{unit})"
