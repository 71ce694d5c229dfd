"""A study's report: figure files, their tables, and one self-contained HTML page with a sample of transcripts.

Everything that a model wrote is escaped; the page loads nothing from anywhere and runs nothing.
"""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from ponder import __version__
from ponder.core import Attempt, Figure, Outcome, Records, Tables, UserError
from ponder.runner.cells import Cell
from ponder.runner.store import Done, Store
from ponder.runner.study import Study

HERE = Path(__file__).parent
# Were there a hole in the escaping, still nothing would run.
POLICY = "default-src 'none'; style-src 'unsafe-inline'"
LONGEST_TEXT = 20_000  # characters of a transcript that the page shows
TRANSCRIPTS_A_MODEL = 6


@dataclass(frozen=True)
class Drawn:
    """A figure as it came out."""

    name: str
    tables: Tables
    findings: list[str]
    spec: dict[str, Any]
    svg: str
    png: bytes


def report(study: Study, store: Store, folder: Path) -> list[Path]:
    """Write the report and return its files, the page first, then each figure's picture."""
    outcomes = list(store.outcomes(study.cells))
    if not any(o.status != "failed" for o in outcomes):
        raise UserError(f"{study.name} has no answers yet in {store.path}", hint=f"ponder run {study.name}")
    folder.mkdir(parents=True, exist_ok=True)
    drawn = [draw(name, figure, outcomes) for name, figure in _named(study.figures)]
    files = [folder / "report.html"]
    files[0].write_text(_page(study, store, outcomes, drawn), "utf-8")
    for figure in drawn:
        files += _write(figure, folder)
    return files


def draw(name: str, figure: Figure, outcomes: Sequence[Outcome]) -> Drawn:
    """Estimate, then draw from the estimates alone."""
    tables = figure.estimate(outcomes)
    spec = figure.draw(tables).to_dict()
    return Drawn(name, tables, figure.findings(tables), spec, *_pictures(spec))


def _pictures(spec: dict[str, Any]) -> tuple[str, bytes]:
    """The chart as SVG and as PNG."""
    import vl_convert

    text = json.dumps(spec)
    return vl_convert.vegalite_to_svg(text), bytes(vl_convert.vegalite_to_png(text, scale=2))


def _named(figures: Sequence[Figure]) -> Iterator[tuple[str, Figure]]:
    """Figures with names for their files: a second `effort` is `effort-2`."""
    seen: Counter[str] = Counter()
    for figure in figures:
        name = figure.plugin_name()
        seen[name] += 1
        yield (name if seen[name] == 1 else f"{name}-{seen[name]}"), figure


def _write(figure: Drawn, folder: Path) -> list[Path]:
    png, svg, html = (folder / f"{figure.name}.{ending}" for ending in ("png", "svg", "html"))
    png.write_bytes(figure.png)
    svg.write_text(figure.svg, "utf-8")
    html.write_text(_document(figure.name, _chart(figure)), "utf-8")
    tables = []
    for name, records in figure.tables.items():
        tables.append(folder / f"{figure.name}-{name}.csv")
        tables[-1].write_text(_csv(records), "utf-8")
    return [png, svg, html, *tables]


def _csv(records: Records) -> str:
    text = io.StringIO()
    rows = csv.DictWriter(text, list(dict.fromkeys(k for r in records for k in r)), lineterminator="\n")
    rows.writeheader()
    rows.writerows(records)
    return text.getvalue()


def _document(title: str, body: str) -> str:
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<meta name="viewport" content="width=device-width">
<title>{escape(title)}</title>
<style>{(HERE / "page.css").read_text("utf-8")}</style>
</head>
<body>
{body}
</body>
</html>
"""


def _chart(figure: Drawn) -> str:
    return f'<div class="chart">{figure.svg}</div>'


def _page(study: Study, store: Store, outcomes: Sequence[Outcome], drawn: Sequence[Drawn]) -> str:
    parts = [f"<h1>{escape(study.title or study.name)}</h1>"]
    if study.question:
        parts.append(f'<p class="question">{escape(study.question)}</p>')
    found = dict.fromkeys(sentence for figure in drawn for sentence in figure.findings)
    parts += ["<ul>", *(f"<li>{escape(sentence)}</li>" for sentence in found), "</ul>"]
    for figure in drawn:
        parts += [f"<h2>{escape(figure.name)}</h2>", _chart(figure)]
        for name, records in figure.tables.items():
            if records and name not in ("curves", "attempts"):
                unfolded = " open" if name == "sizes" else ""
                parts.append(f"<details{unfolded}><summary>table: {escape(name)}</summary>{_table(records)}</details>")
    parts += ["<h2>What was asked</h2>", _asked(study, outcomes)]
    parts += ["<h2>A sample of transcripts</h2>", *_transcripts(study.cells, store)]
    counted = Counter(o.counted_by for o in outcomes if o.status != "failed")
    how = ", ".join(f"{n:,} by {by}" for by, n in counted.most_common())
    note = f"Ponder {__version__}; tokens counted: {escape(how)}. Intervals are 95 %, clustered by problem."
    parts.append(f"<footer>{note}</footer>")
    return _document(study.title or study.name, "\n".join(parts))


def _asked(study: Study, outcomes: Sequence[Outcome]) -> str:
    rows = []
    for model in dict.fromkeys(o.model for o in outcomes):
        mine = [o for o in outcomes if o.model == model]
        row = {"model": model, "attempts": len(mine), "right": sum(o.correct for o in mine)}
        row |= {s: sum(o.status == s for o in mine) for s in ("unparsed", "truncated", "failed")}
        row |= {k: sum(getattr(o, k) for o in mine) for k in ("prompt_tokens", "thinking_tokens", "answer_tokens")}
        rows.append(row)
    settings = json.dumps(study.resolved(), indent=1, default=str)
    return f"{_table(rows)}<details><summary>the study</summary><pre>{escape(settings)}</pre></details>"


def _table(records: Records) -> str:
    columns = list(dict.fromkeys(k for r in records for k in r))
    head = "".join(f"<th>{escape(c.replace('_', ' '))}</th>" for c in columns)
    rows = ("".join(f"<td>{escape(_cell(r.get(c)))}</td>" for c in columns) for r in records)
    return f"<table><tr>{head}</tr>{''.join(f'<tr>{row}</tr>' for row in rows)}</table>"


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _transcripts(cells: Sequence[Cell], store: Store) -> Iterator[str]:
    """A few attempts of each model, of every way to end, from small sizes to large."""
    for label in dict.fromkeys(c.model_label for c in cells):
        mine = [c for c in cells if c.model_label == label]
        wanted = dict.fromkeys(("right", "graded", "truncated", "unparsed", "failed"), TRANSCRIPTS_A_MODEL // 3)
        yield f"<h3>{escape(label)}</h3>"
        for cell in mine[:: max(1, len(mine) // TRANSCRIPTS_A_MODEL)]:
            for done in store.attempts(cell, most=3):
                kind = "right" if done.attempt.correct else done.attempt.status
                if wanted[kind]:
                    wanted[kind] -= 1
                    yield _transcript(done)


def _transcript(done: Done) -> str:
    attempt, problem = done.attempt, done.attempt.problem
    ended = "right" if attempt.correct else "wrong" if attempt.status == "graded" else attempt.status
    verdict = f"{ended}: {attempt.why}" if attempt.why else ended
    head = f"size {problem.size}, {attempt.bill.thinking_tokens:,} thinking tokens, "
    kind = "right" if attempt.correct else "wrong"
    summary = f'<summary>{head}<span class="{kind}">{escape(verdict)}</span></summary>'
    return f"<details>{summary}{''.join(_turns(attempt))}</details>"


def _turns(attempt: Attempt) -> Iterator[str]:
    if attempt.problem.system:
        yield f"<pre>{_clipped(attempt.problem.system)}</pre>"
    for asked, said in zip(attempt.problem.turns, attempt.completions, strict=False):
        yield f"<pre>{_clipped(asked)}</pre>"
        if said.thinking:
            yield f'<pre class="thinking">{_clipped(said.thinking)}</pre>'
        yield f"<pre>{_clipped(said.answer)}</pre>"


def _clipped(text: str) -> str:
    left_out = len(text) - LONGEST_TEXT
    return escape(text) if left_out <= 0 else f"{escape(text[:LONGEST_TEXT])}\n… {left_out:,} more characters"
