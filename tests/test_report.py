"""A report is drawn from its run, shows what a model wrote as text, and runs nothing."""

from __future__ import annotations

import csv
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest

EVIL = "</pre></script><script>document.title='broken'</script><img src=x onerror=alert(1)>\"'&lt;"

STUDY = """
title = "Does <b>it</b> break?"
question = "Q"
problems = 6
[[task]]
name = "chain_sum"
size = [2, 4, 8, 16, 32]
[[model]]
name = "oracle"
label = "one <i>model</i>"
critical_size = 8
budget = 2500
[[model]]
name = "oracle"
label = "another"
error = 0.5
[[figure]]
name = "effort"
unit = "term"
[[figure]]
name = "accuracy"
unit = "term"
"""


class Scripts(HTMLParser):
    """Counts what would run or load."""

    def __init__(self) -> None:
        super().__init__()
        self.scripts = 0
        self.handlers: list[str] = []
        self.loads: list[str] = []

    def handle_starttag(self, tag, attrs) -> None:
        self.scripts += tag == "script"
        for name, value in attrs:
            if name.startswith("on"):
                self.handlers.append(name)
            if name in ("src", "href") and not (value or "").startswith("data:"):
                self.loads.append(value or "")


def test_report_files(write, ponder) -> None:
    write("s.toml", STUDY)
    ponder("run", "s.toml")
    result = ponder("report", "s.toml", "--json")
    assert result.exit_code == 0
    files = [Path(f) for f in json.loads(result.stdout)]
    assert files[0].name == "report.html"
    assert all(f.stat().st_size > 100 for f in files)
    assert {f.suffix for f in files} == {".html", ".png", ".svg", ".csv"}
    assert Path("reports/s/effort.png").read_bytes()[:4] == b"\x89PNG"
    page = files[0].read_text()
    assert "Does &lt;b&gt;it&lt;/b&gt; break?" in page
    with Path("reports/s/accuracy-sizes.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [r["series"] for r in rows] == ["one <i>model</i>"] * 5 + ["another"] * 5
    assert all(float(r["accuracy_low"]) <= float(r["accuracy"]) <= float(r["accuracy_high"]) for r in rows)
    again = ponder("report", "s.toml", "-o", "again")
    assert again.exit_code == 0
    assert Path("again/accuracy-sizes.csv").read_bytes() == Path("reports/s/accuracy-sizes.csv").read_bytes()


def evil_report(write, ponder) -> Path:
    lines = [{"problem": "x", "thinking": EVIL, "answer": EVIL}, {"problem": "y", "answer": "z" * 100_000}]
    write("answers.jsonl", "\n".join(json.dumps(line) for line in lines))
    problems = [
        {"id": "x", "prompt": EVIL, "answer": "1", "size": 1},
        {"id": "y", "prompt": "p", "answer": "2", "size": 2},
    ]
    write("problems.jsonl", "\n".join(json.dumps(p) for p in problems))
    write(
        "e.toml",
        'title = "t"\n[[task]]\nname = "jsonl"\nfile = "problems.jsonl"\n[[model]]\nname = "replay"\nfile = "answers.jsonl"\n[[figure]]\nname = "accuracy"\n',
    )
    assert ponder("run", "e.toml").exit_code == 0
    assert ponder("report", "e.toml").exit_code == 0
    return Path("reports/e/report.html").resolve()


def test_what_a_model_wrote_stays_text(write, ponder) -> None:
    page = evil_report(write, ponder).read_text()
    found = Scripts()
    found.feed(page)
    assert (found.scripts, found.handlers, found.loads) == (0, [], [])
    assert "&lt;/script&gt;&lt;script&gt;document.title" in page
    assert "80,000 more characters" in page


@pytest.mark.skipif(not shutil.which("chromium"), reason="Chromium is not installed: scripts/system-packages")
def test_the_page_shows_its_figure_and_runs_nothing(write, ponder, tmp_path) -> None:
    page = evil_report(write, ponder)
    flags = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking --disable-component-update --disable-sync --virtual-time-budget=8000"
    command = ["chromium", *flags.split(), f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", page.as_uri()]
    dom = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    assert "<title>t</title>" in dom  # the script in the transcript did not run
    [figure] = re.findall(r"<svg.*?</svg>", dom, re.DOTALL)
    assert "Accuracy by problem size" in figure
    assert 'class="marks point"' in figure


def test_a_report_says_what_was_left_out(serve, write, ponder) -> None:
    write("answers.jsonl", json.dumps({"problem": "x", "answer": "1", "stop": "length"}))
    problems = [{"id": n, "prompt": "p", "answer": "1", "size": 1} for n in ("x", "y")]
    write("problems.jsonl", "\n".join(json.dumps(p) for p in problems))
    write(
        "e.toml",
        '[[task]]\nname = "jsonl"\nfile = "problems.jsonl"\n[[model]]\nname = "replay"\nfile = "answers.jsonl"\n[[figure]]\nname = "effort"\n',
    )
    assert ponder("run", "e.toml").exit_code == 1
    ponder("report", "e.toml")
    svg = Path("reports/e/effort.svg").read_text()
    assert "1 attempts at 1 problems, 1 truncated, 1 failed and left out" in svg
