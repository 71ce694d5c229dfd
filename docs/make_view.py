"""Makes the pictures of docs/view.md: runs `effort` into a store of its own, opens its pages, and
takes screenshots.

    python docs/make_view.py [STORE]

STORE may hold the study already. Needs Chromium and Playwright, as the tests do.
"""

# ruff: noqa: S603, S607 our own command

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

HERE = Path(__file__).parent

PICTURES = {  # name: address, width, height, dark
    "view": ("/{store}/effort", 1280, 860, False),
    "view-attempt": ("/{store}/effort/attempts?ended=wrong&sort=-tokens", 1280, 760, True),
}


def main(store: Path) -> None:
    if not store.is_file():
        subprocess.run(["ponder", "run", "effort", "--store", str(store)], check=True)
    words = ["ponder", "view", "--store", str(store), "--port", "0", "--no-open"]
    with (
        subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as server,
        sync_playwright() as playwright,
    ):
        assert server.stderr is not None
        address = server.stderr.readline().strip().rstrip("/")
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        try:
            for name, (path, width, height, dark) in PICTURES.items():
                scheme = "dark" if dark else "light"
                page = browser.new_page(
                    viewport={"width": width, "height": height}, color_scheme=scheme
                )
                page.set_default_timeout(180_000)
                page.goto(address + path.format(store=store.stem))
                if name == "view-attempt":
                    page.locator("tr[data-href] a", has_text="wrong").first.click()
                    page.locator(".drawings").wait_for()
                else:
                    page.locator("figure.chart svg").first.wait_for()
                page.screenshot(path=HERE / f"{name}.png")
        finally:
            browser.close()
            server.terminate()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(folder) / "ponder.db")
