"""Measures a command's CPU time and peak memory, as the kernel reports them when it ends, and keeps
what was measured.

CPU time, because wall time on a shared machine depends on what else runs. If the variable
PONDER_BENCH names a file, `record` appends each measurement to it as a line of JSON, from which
`speed_page.py` writes docs/findings/speed.md.
"""

from __future__ import annotations

import json
import math
import os
import platform
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, distributions, version
from pathlib import Path
from typing import Any, NamedTuple

PONDER = str(Path(sys.executable).with_name("ponder"))
LIMIT_SECONDS = 3600  # of wall time: a shared machine may be slow
ROOT = Path(__file__).parent.parent


class Cost(NamedTuple):
    cpu_seconds: float
    peak_mb: float


def cost(
    command: Sequence[str],
    folder: Path,
    started: Callable[[int], None] = lambda _: None,
    **environment: str,
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
        sys.exit(
            f"{' '.join(command)} exited with {process.returncode}:\n{talk.read_text()[-2000:]}"
        )
    # A child inherits its parent's peak, so the scripts that import this file must stay small.
    return Cost(usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


def table(rows: Sequence[Sequence[Any]], heads: Sequence[str]) -> str:
    """A table as text; all columns but the first are right-aligned."""
    texts = [[str(value) for value in row] for row in (heads, *rows)]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    lines = [
        "  ".join(
            c.rjust(w) if i else c.ljust(w)
            for i, (c, w) in enumerate(zip(row, widths, strict=True))
        )
        for row in texts
    ]
    return "\n".join([lines[0], "  ".join("-" * w for w in widths), *lines[1:]])


def verdict(claim: str, value: float, limit: float, unit: str = "") -> str:
    """A target, the measured value, and whether the target is met."""
    return f"{'met   ' if value <= limit else 'MISSED'}  {claim}: {value:.3g}{unit} (at most {limit:g}{unit})"


def record(
    group: str,
    what: str,
    unit: str,
    ours: float,
    peer: str = "",
    theirs: float | None = None,
    *,
    packages: Sequence[str] = (),
) -> None:
    """Keep a measurement, and a peer's beside it.

    `packages` are those whose versions matter: installed here, or as in `.venv-peers/inspect-ai`,
    or `debian/NAME`.
    """
    if not (file := os.environ.get("PONDER_BENCH")):
        return
    row = {
        "group": group, "what": what, "unit": unit, "ours": ours, "peer": peer, "theirs": theirs,
        "machine": machine(), "versions": versions(packages), "command": command(),
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M"),
    }  # fmt: skip
    with Path(file).open("a") as lines:
        lines.write(json.dumps(row, ensure_ascii=False) + "\n")


def exponent(sizes: Sequence[float], costs: Sequence[float]) -> float:
    """The power with which cost grows, between the two largest sizes: 1 is linear."""
    return math.log(costs[-1] / costs[-2]) / math.log(sizes[-1] / sizes[-2])


def machine() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        name = next(
            line.partition(":")[2].strip() for line in lines if line.startswith("model name")
        )
    except (OSError, StopIteration):
        name = platform.processor() or platform.machine()
    return f"{name}, {os.cpu_count()} cores"


def command() -> str:
    """The command that measures this again."""
    return " ".join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *sys.argv[1:]])


def versions(packages: Sequence[str]) -> Mapping[str, str]:
    """The versions of Python, Ponder and these packages; one may be in another venv of the project."""
    named = {"Python": platform.python_version(), "ponder": version("ponder-lab")}
    for package in packages:
        venv, _, name = package.rpartition("/")
        # the same package, in another version
        label = f"{name} ({venv})" if name in named else name
        try:
            named[label] = (
                _debian(name)
                if venv == "debian"
                else _version_in(venv, name)
                if venv
                else version(name)
            )
        except (PackageNotFoundError, OSError, subprocess.CalledProcessError):
            named[label] = "of an unknown version"
    return named


def _debian(name: str) -> str:
    asked = ["dpkg-query", "-W", "-f", "${Version}", name]
    return subprocess.run(asked, capture_output=True, text=True, check=True).stdout


def _version_in(venv: str, name: str) -> str:
    folders = [str(folder) for folder in (ROOT / venv / "lib").glob("python*/site-packages")]
    for found in distributions(name=name, path=folders):
        return str(found.version)
    raise PackageNotFoundError(name)
