"""Compares `ponder view` with `inspect view` on the same attempts: time to the first view, memory,
clicks.

The attempts are exported as an Inspect log and converted to Inspect's own compact format. Both are
opened in the same browser, one after the other, several times; the medians count. Wall time on a
busy machine varies: ratios are printed. Needs `scripts/bench-peers`, Chromium and Playwright.
"""

from __future__ import annotations

import argparse
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from measured import PONDER, table
from playwright.sync_api import Page, sync_playwright
from view import SIZES, STUDY, peak

INSPECT = Path(__file__).parent.parent / ".venv-peers" / "bin" / "inspect"
TRIES = 5
# seconds to the list, to a transcript from there, and clicks
Walk = Callable[[Page, str], tuple[float, float, int]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--attempts", type=int, default=20_000)
    attempts = parser.parse_args().attempts
    if not INSPECT.is_file():
        sys.exit("run scripts/bench-peers first: it installs inspect-ai")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        problems = max(1, attempts // len(SIZES) // 5)
        (folder / "study.toml").write_text(STUDY.format(problems=problems, sizes=SIZES))
        for verb in ("run", "export --format inspect"):
            subprocess.run(
                [PONDER, *verb.split()[:1], "study.toml", *verb.split()[1:]],
                cwd=folder,
                check=True,
                capture_output=True,
            )
        convert = [
            str(INSPECT),
            "log",
            "convert",
            "--to",
            "eval",
            "--output-dir",
            "logs",
            "study.json",
        ]
        subprocess.run(convert, cwd=folder, check=True, capture_output=True)
        ponder = _measured(folder, [PONDER, "view", "--no-open", "--port"], _walk_ponder)
        peer = _measured(
            folder, [str(INSPECT), "view", "start", "--log-dir", "logs", "--port"], _walk_inspect
        )
    _print(problems * len(SIZES) * 5, ponder, peer)


def _print(attempts: int, ponder: list[float], peer: list[float]) -> None:
    names = ("list of attempts, s", "from there to a transcript, s", "server's peak memory, MB")
    rows = [
        (name, f"{own:.2f}", f"{other:.2f}", f"{own / other:.2f}")
        for name, own, other in zip(names, ponder, peer, strict=False)
    ]
    rows.append(("clicks from a figure to a transcript", f"{ponder[3]:.0f}", "has no figure", ""))
    print(f"\n{attempts:,} attempts\n\n{table(rows, ('', 'ponder', 'inspect', 'ratio'))}")


def _measured(folder: Path, command: list[str], walk: Walk) -> list[float]:
    """Medians of both times, the server's peak memory, and the clicks."""
    with _served(folder, command) as (address, pid), sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        walks = []
        for _ in range(TRIES):
            page = browser.new_context(viewport={"width": 1280, "height": 900}).new_page()
            page.set_default_timeout(120_000)
            walks.append(walk(page, address))
            page.context.close()
        browser.close()
        first, then, clicks = zip(*walks, strict=True)
        return [median(first), median(then), peak(pid), median(clicks)]


@contextmanager
def _served(folder: Path, command: list[str]) -> Iterator[tuple[str, int]]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = folder / "server.log"
    with (
        log.open("wb") as output,
        subprocess.Popen([*command, str(port)], cwd=folder, stdout=output, stderr=output) as server,
    ):
        try:
            while not _answers(f"http://127.0.0.1:{port}"):
                time.sleep(0.2)
            # Ponder prints an address with a token; Inspect has none.
            printed = re.search(rf"http://127\.0\.0\.1:{port}/\?token=\S+", log.read_text())
            yield printed[0] if printed else f"http://127.0.0.1:{port}", server.pid
        finally:
            server.send_signal(signal.SIGINT)


def _answers(address: str) -> bool:
    try:
        urllib.request.urlopen(address, timeout=10).close()
    except urllib.error.HTTPError:
        return True  # it demands a token
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False
    return True


def _walk_ponder(page: Page, address: str) -> tuple[float, float, int]:
    page.goto(address)  # turns the token into a cookie
    address = address.partition("/?token=")[0]
    began = time.perf_counter()
    page.goto(f"{address}/ponder/study/attempts")
    page.locator("tr[data-href]").first.wait_for()
    first = time.perf_counter() - began
    began = time.perf_counter()
    page.locator("tr[data-href] a").first.click()
    page.locator(".verdict").wait_for()
    then = time.perf_counter() - began
    page.goto(f"{address}/ponder/study")
    page.locator("figcaption", has_text="Click a mark").first.wait_for()
    clicks = 1
    page.locator("figure.chart").first.locator(".mark-symbol.role-mark path").last.click(force=True)
    page.locator(".verdict, table.attempts").first.wait_for()
    if not page.locator(".verdict").count():  # dots lie on each other: a list
        clicks = 2
    return first, then, clicks


def _walk_inspect(page: Page, address: str) -> tuple[float, float, int]:
    began = time.perf_counter()
    page.goto(address)  # one log: it opens at the list of its samples
    page.locator("[role=row]").nth(2).wait_for()
    first = time.perf_counter() - began
    began = time.perf_counter()
    page.locator("[role=row]").nth(2).click()
    page.get_by_text("(Epoch", exact=False).first.wait_for()
    return first, time.perf_counter() - began, 0


if __name__ == "__main__":
    main()
