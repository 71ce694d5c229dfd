"""Measures `ponder view` at 200,000 attempts: the server's CPU seconds per page, its memory, and
the weight of a page.

Figures are estimated in a process of their own, which is measured apart. The first page of a study
includes reading the store's numbers; later ones have them.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from pathlib import Path

from measured import PONDER, table, verdict

SIZES = [4, 6, 8, 12, 16, 24, 32, 48, 64, 96]
STUDY = """
problems = {problems}
samples  = 5
[[task]]
name = "chain_sum"
size = {sizes}
[[model]]
name = "oracle"
critical_size = 24
budget = 4000
[[figure]]
name = "effort"
[[figure]]
name = "accuracy"
"""
PAGES = (  # name, address, most CPU seconds of the server
    ("study, first", "/ponder/study", 1.0),
    ("study, again", "/ponder/study", 0.2),
    ("attempts", "/ponder/study/attempts", 0.05),
    ("attempts, longest wrong", "/ponder/study/attempts?ended=wrong&sort=-tokens", 0.05),
    ("attempts, page 3,000", "/ponder/study/attempts?page=3000", 0.05),
    ("attempt", "/ponder/study/attempt/1000", 0.02),
    ("study with its figures", "/ponder/study", 0.2),
)
TRIES = 10  # of each page but the first: a tick of the CPU clock is 10 ms
SERVER_MB = 150
PAGE_MB = 1.5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--attempts", type=int, default=200_000)
    parser.add_argument(
        "--store",
        type=Path,
        help="an existing folder with ponder.db, whose study is called `study`",
    )
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = given.store or Path(name)
        if not given.store:
            problems = given.attempts // len(SIZES) // 5
            (folder / "study.toml").write_text(STUDY.format(problems=problems, sizes=SIZES))
            subprocess.run(
                [PONDER, "run", "study.toml"], cwd=folder, check=True, stderr=subprocess.DEVNULL
            )
        _measure(folder)


def _measure(folder: Path) -> None:
    words = [PONDER, "view", "--port", "0", "--no-open"]
    with subprocess.Popen(words, cwd=folder, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        try:
            # The first visit turns the token into a cookie.
            urllib.request.install_opener(
                urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
            )
            printed = server.stderr.readline().strip()
            _get(printed)
            address = printed.partition("/?token=")[0]
            rows, told, child = [], [], 0
            for name, path, most in PAGES:
                if name == "study with its figures":
                    # the other one keeps the accounts of shared memory
                    child = max(_children(server.pid), key=peak)
                    before = _cpu(child)
                    _get(f"{address}/ponder/study/figures")
                    rows.append(
                        ("figures, in their own process", f"{_cpu(child) - before:.2f}", "")
                    )
                tries = 1 if name == "study, first" else TRIES
                before = _cpu(server.pid)
                for _ in range(tries):
                    size = len(_get(address + path))
                used = (_cpu(server.pid) - before) / tries
                rows.append((name, f"{used:.3f}", f"{size / 1e3:.0f}"))
                told.append(verdict(name, used, most, " s"))
            weight = sum(len(_get(address + path, gzip=True)) for path in _parts(address)) / 1e6
            peaks = {"server": peak(server.pid), "figures' process": peak(child)}
            rows += [(f"{name}, peak MB", f"{most:.0f}", "") for name, most in peaks.items()]
            print(table(rows, ("page", "CPU s", "kB")) + "\n")
            told += [
                verdict("server", peak(server.pid), SERVER_MB, " MB"),
                verdict("page weight", weight, PAGE_MB, " MB"),
            ]
            print("\n".join(told))
        finally:
            server.send_signal(signal.SIGINT)


def _get(address: str, *, gzip: bool = False) -> bytes:
    request = urllib.request.Request(address, headers={"Accept-Encoding": "gzip"} if gzip else {})
    try:
        with urllib.request.urlopen(request, timeout=600) as answer:
            return bytes(answer.read())
    except urllib.error.HTTPError as error:
        return bytes(error.read())


def _parts(address: str) -> list[str]:
    """The study's page, and whatever it loads."""
    page = _get(f"{address}/ponder/study").decode()
    return ["/ponder/study", *re.findall(r'(?:src|href)="(/-/[^"]+)"', page)]


def _cpu(pid: int) -> float:
    numbers = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(numbers[11]) + int(numbers[12])) / os.sysconf("SC_CLK_TCK")


def peak(pid: int) -> float:
    found = re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) / 1024 if found else 0.0


def _children(pid: int) -> list[int]:
    return [
        int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    ] or [pid]


if __name__ == "__main__":
    if sys.platform != "linux":
        sys.exit("this benchmark reads /proc: run it on Linux")
    main()
