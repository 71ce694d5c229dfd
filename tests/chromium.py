"""Pages in Chromium, for tests that wait for what they look at, however long a busy machine takes."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, expect, sync_playwright

CHROMIUM = shutil.which("chromium") or ("chromium" if os.environ.get("CI") else None)
PATIENCE = 120_000  # milliseconds
expect.set_options(timeout=PATIENCE)

needs_chromium = pytest.mark.skipif(
    not CHROMIUM, reason="Chromium is not installed: scripts/system-packages"
)


@contextmanager
def launched() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox"], timeout=PATIENCE
        )
        yield browser
        browser.close()


class Tab:
    """A page in the browser, with everything that it complained of or asked for."""

    def __init__(self, browser: Browser, address: str, init: str = "", **context: Any) -> None:
        self.page: Page = browser.new_context(
            **{"viewport": {"width": 1280, "height": 1000}, **context}
        ).new_page()
        self.page.set_default_timeout(PATIENCE)
        self.page.add_init_script(init)
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", self._hear)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(address)

    def _hear(self, said: ConsoleMessage) -> None:
        # Vega warns of oddities in a chart as its author wrote it; `chart:` is a chart that had to
        # fall back.
        if said.type == "error" or said.text.startswith("chart:"):
            self.complaints.append(said.text)

    def until(self, happened: Callable[[], bool]) -> None:
        """Wait for what no element shows."""
        end = time.monotonic() + PATIENCE / 1000
        while not happened():
            assert time.monotonic() < end, "it did not happen"
            self.page.wait_for_timeout(50)

    def settle(self) -> None:
        """Wait until the page has drawn twice: what it had to do by now is done."""
        self.page.evaluate(
            "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
        )
