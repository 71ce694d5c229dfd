"""A report is drawn by Vega as PNG, SVG and PDF, and its page shows what a model wrote as text."""

from __future__ import annotations

import base64
import csv
import hashlib
import json
import re
import subprocess
import sys
import tomllib
import zlib
from html.parser import HTMLParser
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import altair as alt
import pytest
import vl_convert
from altair.vegalite.v6.display import ENTRY_POINT_GROUP
from everyday import CHARTS, STUDY, write_reports

import ponder as package
from ponder.results.charts import draw
from ponder.results.notebook import renderer


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reports")
    write_reports(folder)
    return folder


class Elements(HTMLParser):
    """What a page would run or load."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.scripts: list[dict[str, str | None]] = []
        self.handlers: list[str] = []
        self.loads: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag, attrs) -> None:
        if tag == "script":
            self.scripts.append(dict(attrs))
        for name, value in attrs:
            if name.startswith("on") or name == "style":
                self.handlers.append(name)
            if name in ("src", "href") and not (value or "").startswith(
                ("data:image/svg+xml;base64,", "#")
            ):
                self.loads.append(value or "")


def test_the_files_of_a_report(reports) -> None:
    files = [reports / name for name in json.loads((reports / "s.json").read_text())["files"]]
    assert files[0].name == "report.html"
    assert all(f.stat().st_size > 100 for f in files)
    assert {f.name for f in files if f.stem == "effort"} == {
        "effort.png",
        "effort.svg",
        "effort.pdf",
    }
    assert sorted(f.name for f in files) == sorted(f.name for f in files[0].parent.iterdir())
    assert (reports / "reports/s/effort.png").read_bytes()[:4] == b"\x89PNG"
    with (reports / "reports/s/accuracy-sizes.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [r["series"] for r in rows] == ["one <i>model</i>"] * 5 + ["another"] * 5
    assert all(
        float(r["accuracy_low"]) <= float(r["accuracy"]) <= float(r["accuracy_high"]) for r in rows
    )


def transcripts(page: str) -> dict[int, str]:
    """The transcripts that a report holds, by attempt."""
    blocks = re.findall(r'<script type="text/plain" class="texts">([^<]*)</script>', page)
    texts = [json.loads(zlib.decompress(base64.b64decode(block))) for block in blocks]
    return {int(attempt): text for part in texts for attempt, text in part.items()}


def index(page: str) -> dict[str, Any]:
    """What a report's script knows of its attempts."""
    found = re.search(
        r'<script type="application/json" id="attempts">(.*?)</script>', page, re.DOTALL
    )
    assert found
    data: dict[str, Any] = json.loads(found[1])
    return data


def test_the_page_says_what_the_study_found(reports) -> None:
    page = (reports / "reports/s/report.html").read_text()
    assert "<h1>Does &lt;b&gt;it&lt;/b&gt; break?</h1>" in page
    assert '<p class="question">Q</p>' in page
    places = page.partition('<nav class="places"')[2].partition("</nav>")[0]
    names = re.findall(r'<a href="#(\w+)">(\w+)</a>', places)
    assert names == [
        ("effort", "Effort"),
        ("accuracy", "Accuracy"),
        ("models", "Models"),
        ("study", "Study"),
    ]
    assert all(re.search(rf'<section[^>]* id="{name}"', page) for name, _ in names)
    assert "Tokens counted: 60 by estimate" in page
    assert f"Ponder {package.__version__}, Python" in page
    assert "critical_size = 8" in page  # the study file
    rows = re.findall(r"<tr>(<td>[^<]*</td>)(.*)</tr>", page.partition("Counts and tokens")[2])
    for label, cells in rows[:2]:
        attempts, right, wrong, unparsed, truncated, failed, *_ = map(
            int, re.findall(r"<td>([\d,]+)<", cells)[:6]
        )
        assert (attempts, failed) == (30, 0)
        assert right + wrong + unparsed + truncated == 30
        assert (truncated > 0) == ("one" in label)


def test_a_chart_is_described_in_words(reports) -> None:
    page = (reports / "reports/s/report.html").read_text()
    effort, accuracy = re.findall(r'<img [^>]* alt="([^"]*)"', page)
    assert effort.startswith("Chart effort: thinking tokens against problem size (terms). ")
    assert "one &lt;i&gt;model&lt;/i&gt;: accuracy falls below 50 %" in effort
    assert "accuracy against problem size" in accuracy
    assert accuracy.count("another: accuracy 17% [2%, 70%] at 2 terms") == 1


def test_every_mark_leads_to_transcripts_inside_the_file(reports) -> None:
    page = (reports / "reports/s/report.html").read_text()
    texts, data = transcripts(page), index(page)
    assert set(texts) == {row[0] for row in data["rows"]} == set(range(1, 61))
    assert "This file holds the transcripts of all 60 attempts." in page
    assert all("parsed answer" in text and "right answer" in text for text in texts.values())
    specs = [
        json.loads(text)
        for text in re.findall(r'<script type="application/json">(.*?)</script>', page)
    ]
    dots = {int(n) for n in re.findall(r'"attempt": (\d+)', json.dumps(specs[0]))}
    assert dots == set(texts)
    tables = specs[1]["datasets"].values()
    marks = [row for rows in tables for row in rows if "basis" in row and "attempts" in row]
    assert len(marks) >= 10
    for mark in marks:  # what a point of `accuracy` was estimated from is what its group finds
        group = data["groups"][mark["basis"]]
        found = [row for row in data["rows"] if row[1] in group["cells"]]
        assert len(found) == group["total"] == mark["attempts"]
        assert {tuple(data["cells"][row[1]]) for row in found} == {
            (mark["series"], "chain_sum", mark["size"])
        }
    right = data["endings"].index("right")
    for attempt, _, ended, thinking, *_ in data["rows"]:
        assert ("The answer is right." in texts[attempt]) == (ended == right)
        assert f"<td>{thinking:,}</td>" in texts[attempt]
    links = set(re.findall(r'href="#(?:behind|wrong)-([0-9a-f]+)"', page))
    assert links
    assert links <= data["groups"].keys()


def test_transcripts_take_no_more_room_than_they_may(reports, ponder, monkeypatch) -> None:
    monkeypatch.chdir(reports)
    text = STUDY.replace('name = "effort"', 'name = "accuracy"')
    (reports / "few.toml").write_text(text)  # its attempts are in the store
    ponder("report", "few.toml", "-o", "few", "--transcripts", "0.002")
    page = Path("few/report.html").read_text()
    held = transcripts(page)
    assert 5 < len(held) < 60
    # the last part may go beyond it
    assert sum(map(len, re.findall(r'class="texts">([^<]*)<', page))) < 4_000
    assert f"This file holds the transcripts of {len(held)} of 60 attempts" in page
    assert len({row[1] for row in index(page)["rows"]}) > 5  # an even choice: not of one cell alone
    ponder("report", "few.toml", "-o", "none", "--transcripts", "0")
    page = Path("none/report.html").read_text()
    assert not transcripts(page)
    assert "This file holds no transcripts" in page
    assert "data-leads data-study" not in page
    assert 'href="#behind' not in page


def test_long_things_are_folded_away(reports, write, ponder) -> None:
    page = (reports / "reports/everyday/report.html").read_text()
    heads = re.findall(r"<thead>(.*?)</thead>", page)
    assert re.findall("<button[^>]*>([^<]*)<", heads[0]) == ["kind", "attempts", "more"]
    assert "<td>&lt;b&gt;only here&lt;/b&gt;</td><td>–</td><td>–</td>" in page
    first = page.partition('<section class="figure"')[2].partition("</section>")[0]
    shown, folded = first.split("<summary>2 more findings</summary>")
    assert re.findall(r"<li>finding &lt;b&gt;(\d)&lt;/b&gt;</li>", shown) == [
        "0",
        "1",
        "2",
        "3",
        "4",
    ]
    assert re.findall(r"<li>finding &lt;b&gt;(\d)&lt;/b&gt;</li>", folded) == ["5", "6"]
    write("s.toml", STUDY)
    ponder("run", "s.toml", "--set", "problems=30")
    ponder("report", "s.toml", "--set", "problems=30")
    page = Path("reports/s/report.html").read_text()
    assert "the first 200 rows are shown; all are in effort-attempts.csv, beside the report" in page
    table = page.partition(">attempts <span")[2].partition("</details>")[0]
    assert table.count("<tr>") == 201


def test_a_pdf_is_text_and_vectors_in_an_embedded_font(reports) -> None:
    for name in ("effort", "accuracy"):
        pdf = (reports / f"reports/s/{name}.pdf").read_bytes()
        assert pdf[:5] == b"%PDF-"
        assert re.search(rb"/BaseFont /\w+\+LiberationSans\b", pdf)
        assert b"/FontFile" in pdf
        assert b"/Subtype /Image" not in pdf
    streams = [_inflated(s) for s in re.findall(rb"stream\r?\n(.*?)\r?\nendstream", pdf, re.DOTALL)]
    assert sum(s.count(b" Tj") + s.count(b" TJ") for s in streams) > 10  # text is shown as text


def _inflated(stream: bytes) -> bytes:
    try:
        return zlib.decompress(stream)
    except zlib.error:
        return stream


def test_a_font_that_is_not_there_loses_no_text() -> None:
    chart = (
        alt.Chart(alt.InlineData(values=[{"a": 1}]))
        .mark_point()
        .encode(x="a:Q")
        .configure(font="No Such Font")
    )
    assert b"LiberationSans" in draw("x", chart.to_dict()).pdf


@pytest.mark.parametrize("number", range(1, len(CHARTS) + 1), ids=list(CHARTS))
def test_everyday_charts_are_drawn(reports, number) -> None:
    name = "everyday" if number == 1 else f"everyday-{number}"
    svg, png, pdf = (
        (reports / f"reports/everyday/{name}.{ending}").read_bytes()
        for ending in ("svg", "png", "pdf")
    )
    assert f">{list(CHARTS)[number - 1]}<".encode() in svg
    assert svg.count(b"role-mark") >= 1
    assert len(png) > 3000
    assert pdf[:5] == b"%PDF-"


def test_what_a_model_wrote_stays_text(reports) -> None:
    page = (reports / "reports/evil/report.html").read_text()
    texts = transcripts(page)
    assert len(texts) == 2
    for text in (page, *texts.values()):
        elements = Elements(text)
        assert (elements.handlers, elements.loads) == ([], [])
        assert "&lt;/script&gt;&lt;script&gt;document.title" in text
    kinds = [script.get("type") for script in Elements(page).scripts]
    assert kinds == ["application/json", "application/json", "text/plain", None]
    assert not any(Elements(text).scripts for text in texts.values())
    first, second = sorted(texts)
    assert "100,000 more characters" in texts[second]
    shown = [
        re.findall(r'<(?:div|details) class="message (\w+)"', texts[attempt])
        for attempt in (first, second)
    ]
    assert shown == [["user", "thinking", "answer"], ["user", "answer"]]


def test_a_report_says_what_was_left_out(write, ponder) -> None:
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
    assert "1 attempt at 1 problem, 1 truncated, 1 failed and left out" in svg


def test_endings_on_the_page(write, ponder) -> None:
    """A right and a wrong answer look different, and an attempt that failed counts as no answer."""
    write("answers.jsonl", "\n".join(json.dumps({"problem": n, "answer": n}) for n in "12"))
    write(
        "problems.jsonl",
        "\n".join(json.dumps({"id": n, "prompt": "p", "answer": "1", "size": 1}) for n in "123"),
    )
    write(
        "e.toml",
        '[[task]]\nname = "jsonl"\nfile = "problems.jsonl"\n[[model]]\nname = "replay"\nfile = "answers.jsonl"\n[[figure]]\nname = "accuracy"\n',
    )
    ponder("run", "e.toml")
    ponder("report", "e.toml")
    page = Path("reports/e/report.html").read_text()
    assert "Tokens counted: 2 by estimate." in page
    texts = transcripts(page)
    assert [re.findall(r'<span class="badge (\w+)">(\w+)', texts[n])[0] for n in (1, 2, 3)] == [
        ("right", "right"), ("wrong", "wrong"), ("failed", "failed")
    ]  # fmt: skip
    assert "No answer came" in texts[3]
    # right, wrong, …, failed
    assert "<td>3</td><td>1</td><td>1</td><td>0</td><td>0</td><td>1</td>" in page


def test_a_conversation_is_shown_with_its_instructions(write, ponder) -> None:
    study = 'problems = 1\n[[task]]\nname = "execution"\nsize = 2\n[[model]]\nname = "oracle"\n[[figure]]\nname = "accuracy"\n'
    write("e.toml", study)
    ponder("run", "e.toml")
    ponder("report", "e.toml")
    (text,) = transcripts(Path("reports/e/report.html").read_text()).values()
    shown = re.findall(r'<(?:div|details) class="message (\w+)"', text)
    assert [kind for kind in shown if kind != "thinking"] == [
        "system",
        "user",
        "answer",
        "user",
        "answer",
    ]
    assert "true sum" in text  # the task's own table of turns


def test_a_report_needs_an_answer(write, ponder) -> None:
    write("s.toml", STUDY)
    write("answers.jsonl", "")
    write("others.jsonl", "\n")
    study = STUDY.replace('name = "oracle"', 'name = "replay"\nfile = "answers.jsonl"', 1)
    study = study.replace('name = "oracle"', 'name = "replay"\nfile = "others.jsonl"')
    write(
        "e.toml", study.replace("critical_size = 8\nbudget = 2500", "").replace("error = 0.5", "")
    )
    ponder("run", "e.toml")
    done = ponder("report", "e.toml")
    assert done.exit_code == 2
    assert "ponder.db has no answers to e with these settings" in done.stderr
    assert not Path("reports").exists()
    assert ponder("export", "s.toml").exit_code == 2  # never run
    assert not Path("s.csv").exists()


def test_altair_knows_the_renderer() -> None:
    project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())[
        "project"
    ]
    point = project["entry-points"][ENTRY_POINT_GROUP]["ponder"]
    assert EntryPoint("ponder", point, ENTRY_POINT_GROUP).load() is renderer


def test_the_javascript_is_npms_and_of_the_renderers_versions() -> None:
    folder = Path(package.__file__).parent / "results" / "vega"
    table = re.findall(
        r"\| (\S+\.js) \| npm `([\w-]+)` ([\d.]+), .* \| (\w{64}) \|",
        (folder / "README.md").read_text(),
    )
    assert {name: digest for name, _, _, digest in table} == {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.glob("*.js")
    }
    versions = {package: version for _, package, version, _ in table}
    assert versions["vega"] == vl_convert.get_vega_version()
    assert versions["vega-embed"] == vl_convert.get_vega_embed_version()
    assert versions["vega-lite"] == alt.VEGALITE_VERSION
    assert versions["vega-lite"].rpartition(".")[0] in vl_convert.get_vegalite_versions()[-1]


def test_control_characters_in_a_notebooks_chart_are_drawn_as_symbols() -> None:
    """In a subprocess, which they would abort."""
    code = """
import altair, ponder.results.notebook
odd = "".join(map(chr, [*range(32), 127, 0x85, 0x202E, 0xD800, 0xFFFE]))
chart = altair.Chart(altair.Data(values=[{"x": 1, odd: odd}]), title=odd).mark_point().encode(x="x:Q", y=f"{odd[:1]}:N")
assert ponder.results.notebook.show(chart)._repr_mimebundle_()["image/png"]
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


def full(words: tuple[str, ...], folder: Path) -> str:
    """What a command says if it can't write: files of more than 100 kB, or to standard output."""
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))"
    command = [sys.executable, "-c", f"{limit}; from ponder.cli import main; main()", *words]
    with Path("/dev/full").open("wb") as out:
        done = subprocess.run(
            command, cwd=folder, stdout=out, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
    return done.stderr


def test_a_full_disk_is_a_users_error(reports, tmp_path) -> None:
    told = full(("report", "s.toml", "-o", str(tmp_path / "new")), reports)
    assert (
        f"can't write the report to {tmp_path / 'new'}: File too large\nhint: free some space"
        in told
    )
    assert "can't write -: No space left on device\nhint:" in full(
        ("export", "s.toml", "-o", "-"), reports
    )
    assert "can't write the output: No space left on device\nhint:" in full(("list",), reports)
