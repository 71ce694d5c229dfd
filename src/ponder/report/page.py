"""Writes a study's report: picture files and tables of each figure, and one self-contained HTML page.

The page has the live charts, what they show in sentences, the settings, and a sample of transcripts.
"""

from __future__ import annotations

import csv
import errno
import io
import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ponder import __version__
from ponder.core import Attempt, Figure, Outcome, Records, Tables, UserError
from ponder.core.text import count
from ponder.report.charts import Chart, draw
from ponder.report.coverage import Coverage, coverage
from ponder.report.document import columns, document
from ponder.report.spreadsheet import inert
from ponder.report.studied import studied
from ponder.runner.cells import Cell
from ponder.runner.store import Done, Store
from ponder.runner.study import Study

if TYPE_CHECKING:
    from ponder.runner.adaptive import Decision

MAX_FINDINGS = 5  # sentences below a chart; more are folded away
MAX_MODELS = 4  # whose counts and transcripts are shown unfolded
MAX_ROWS = 200  # of a table on the page; longer ones are in the CSV files alone
TRANSCRIPTS_PER_MODEL = 6


class Drawn(NamedTuple):
    """A figure with its estimates."""

    chart: Chart
    findings: list[str]
    tables: Tables


def report(study: Study, store: Store, folder: Path) -> tuple[list[Path], Coverage]:
    """Write the report and return its files, the page first, and how much of the study it covers."""
    cells, outcomes, figures, found = studied(study, store)
    if not any(o.status != "failed" for o in outcomes):
        raise no_answers(study, store)
    page = _place(folder)
    covered = coverage(cells, outcomes)
    covered = replace(covered, searching=covered.searching or not all(decision.ended for decision in found))
    drawn = [draw_figure(name, figure, outcomes) for name, figure in figures]
    page.write_text(_page(study, store, outcomes, drawn, covered, found), "utf-8")
    return [page, *(path for figure in drawn for path in _write(figure, folder))], covered


def _notes(found: Sequence[Decision]) -> list[str]:
    """What an adaptive run has found, for the head of the page."""
    if not found:
        return []
    made, most = (sum(getattr(decision, name) for decision in found) for name in ("attempts", "at_most"))
    valid = "Intervals of critical sizes" if found[0].of == "critical_size" else "The intervals in these sentences"
    return [
        f"Adaptive run: its results decided what to ask, {made:,} of the full plan's {count(most, 'attempt')}.",
        *(f"{decision.text}." for decision in found),
        f"{valid} are valid for such a run; others are those of a run with a fixed number of problems.",
    ]


def _place(folder: Path) -> Path:
    """The page's path, in a folder that can be written to: better known before minutes of drawing."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))
    except OSError as error:
        what = f"can't write to {folder}: {error.strerror}"
        raise UserError(what, hint="-o FOLDER says where to write the report") from None
    return folder / "report.html"


def no_answers(study: Study, store: Store) -> UserError:
    what = f"{store.path} has no answers to {study.name} with these settings"
    return UserError(what, hint="run it first: ponder run STUDY")


def draw_figure(name: str, figure: Figure, outcomes: Sequence[Outcome]) -> Drawn:
    """Estimate, then draw from the estimates alone."""
    tables = figure.estimate(outcomes)
    return Drawn(draw(name, figure.draw(tables).to_dict()), figure.findings(tables), tables)


def _write(figure: Drawn, folder: Path) -> Iterator[Path]:
    chart = figure.chart
    files = {"png": chart.png, "svg": chart.svg.encode(), "pdf": chart.pdf}
    for ending, content in files.items():
        yield _written(folder / f"{chart.name}.{ending}", content)
    for name, records in figure.tables.items():
        path = folder / f"{chart.name}-{name}.csv"
        if records:
            yield _written(path, csv_text(records).encode())
        else:
            path.unlink(missing_ok=True)  # of a former report, when the study had other sizes


def _written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def csv_text(records: Records) -> str:
    text = io.StringIO()
    rows = csv.DictWriter(text, columns(records), lineterminator="\n")
    rows.writeheader()
    rows.writerows(map(inert, records))
    return text.getvalue()


def _page(
    study: Study,
    store: Store,
    outcomes: Sequence[Outcome],
    figures: Sequence[Drawn],
    covered: Coverage,
    found: Sequence[Decision],
) -> str:
    counted = Counter(o.counted_by for o in outcomes if o.status != "failed")
    return document(
        "report.html",
        title=study.title or study.name,
        question=study.question,
        incomplete=covered.text(),
        adaptive=_notes(found),
        figures=figures,
        max_findings=MAX_FINDINGS,
        max_models=MAX_MODELS,
        max_rows=MAX_ROWS,
        attempts=endings(outcomes),
        settings=json.dumps(study.resolved(), indent=1, default=str, ensure_ascii=False),
        transcripts=list(_transcripts(study.cells, store)),
        counted=", ".join(f"{n:,} by {by}" for by, n in counted.most_common()),
        version=__version__,
    )


def endings(outcomes: Sequence[Outcome]) -> Records:
    """How the attempts of each model ended, by task if there are several, and the tokens they took."""
    rows, several = [], len({o.task for o in outcomes}) > 1
    groups: dict[tuple[str, str], list[Outcome]] = {}
    for o in outcomes:
        groups.setdefault((o.model, o.task), []).append(o)
    for (model, task), mine in groups.items():
        number = Counter(ended(o) for o in mine)
        row: dict[str, Any] = {"model": model, **({"task": task} if several else {}), "attempts": len(mine)}
        row |= {end: number[end] for end in ("right", "wrong", "unparsed", "truncated", "failed")}
        row |= {k: sum(getattr(o, k) for o in mine) for k in ("prompt_tokens", "thinking_tokens", "answer_tokens")}
        rows.append(row)
    return rows


def ended(attempt: Attempt | Outcome) -> str:
    return "right" if attempt.correct else "wrong" if attempt.status == "graded" else attempt.status


def _transcripts(cells: Sequence[Cell], store: Store) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """For each model a few attempts of every ending, from small sizes to large."""
    several = len({cell.task_label for cell in cells}) > 1
    for label in dict.fromkeys(cell.model_label for cell in cells):
        mine = [cell for cell in cells if cell.model_label == label]
        shown: Counter[str] = Counter()
        sample = []
        for cell in mine[:: max(1, len(mine) // TRANSCRIPTS_PER_MODEL)]:
            for done in store.attempts(cell, most=3):
                ending = ended(done.attempt)
                if shown[ending] < TRANSCRIPTS_PER_MODEL // 3:
                    shown[ending] += 1
                    sample.append({"task": done.cell.task_label if several else "", **_transcript(done)})
        yield label, sample


def _transcript(done: Done) -> dict[str, Any]:
    attempt, ending = done.attempt, ended(done.attempt)
    return {
        "size": attempt.problem.size,
        "thinking_tokens": attempt.bill.thinking_tokens,
        "answer_tokens": attempt.bill.answer_tokens,
        "kind": "right" if attempt.correct else "wrong",
        "verdict": f"{ending}: {attempt.why}" if attempt.why else ending,
        "messages": list(messages(attempt)),
    }


def messages(attempt: Attempt) -> Iterator[tuple[str, str]]:
    """Every message with the kind that the style sheet knows."""
    if attempt.problem.system:
        yield "system", attempt.problem.system
    for asked, reply in zip(attempt.problem.turns, attempt.completions, strict=False):
        yield "user", asked
        if reply.thinking:
            yield "thinking", reply.thinking
        yield "answer", reply.answer
