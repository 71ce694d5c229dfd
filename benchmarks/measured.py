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
    """Return a table as text; all columns but the first are right-aligned."""
    texts = []
    for row in (heads, *rows):
        texts.append([str(value) for value in row])
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    lines = []
    for row in texts:
        cells = [row[0].ljust(widths[0])]
        for text, width in zip(row[1:], widths[1:], strict=True):
            cells.append(text.rjust(width))
        lines.append("  ".join(cells))
    ruler = "  ".join("-" * width for width in widths)
    return "\n".join([lines[0], ruler, *lines[1:]])


def verdict(claim: str, value: float, limit: float, unit: str = "") -> str:
    """Return a target, the measured value, and whether the target is met."""
    met = "met   " if value <= limit else "MISSED"
    return f"{met}  {claim}: {value:.3g}{unit} (at most {limit:g}{unit})"


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
    """Append a measurement, and a peer's next to it, to the file that `PONDER_BENCH` names.

    `packages` are those whose versions matter: installed here, or as in `.venv-peers/inspect-ai`,
    or `debian/NAME`.
    """
    if not (file := os.environ.get("PONDER_BENCH")):
        return
    row = {
        "group": group,
        "what": what,
        "unit": unit,
        "ours": ours,
        "peer": peer,
        "theirs": theirs,
        "machine": machine(),
        "versions": versions(packages),
        "command": command(),
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M"),
    }
    with Path(file).open("a") as lines:
        lines.write(json.dumps(row, ensure_ascii=False) + "\n")


def exponent(sizes: Sequence[float], costs: Sequence[float]) -> float:
    """Return the power with which cost grows, between the two largest sizes: 1 is linear."""
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
    """Return the command that measures this again."""
    return " ".join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *sys.argv[1:]])


def versions(packages: Sequence[str]) -> Mapping[str, str]:
    """Return the versions of Python, Ponder and these packages, here or in another venv."""
    by_label = {"Python": platform.python_version(), "ponder": version("ponder-lab")}
    for package in packages:
        venv, _, name = package.rpartition("/")
        # The same package may be listed twice, in two versions.
        label = f"{name} ({venv})" if name in by_label else name
        try:
            by_label[label] = _version(venv, name)
        except (PackageNotFoundError, OSError, subprocess.CalledProcessError):
            by_label[label] = "of an unknown version"
    return by_label


def _version(venv: str, name: str) -> str:
    if venv == "debian":
        return _debian(name)
    if venv:
        return _version_in(venv, name)
    return version(name)


def _debian(name: str) -> str:
    query = ["dpkg-query", "-W", "-f", "${Version}", name]
    return subprocess.run(query, capture_output=True, text=True, check=True).stdout


def _version_in(venv: str, name: str) -> str:
    folders = [str(folder) for folder in (ROOT / venv / "lib").glob("python*/site-packages")]
    for distribution in distributions(name=name, path=folders):
        return str(distribution.version)
    raise PackageNotFoundError(name)
