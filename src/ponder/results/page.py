"""Writes a study's report: picture files and tables of each figure, and one self-contained HTML page.

The page is the live page's, made once: charts, what they show in sentences, tables, and the transcripts behind the
marks of the charts, as many as fit. It needs no server and no network.
"""

from __future__ import annotations

import csv
import errno
import io
import os
import platform
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from ponder import __version__
from ponder.core import ENDINGS, Attempt, Basis, Figure, Outcome, Records, Tables, UserError
from ponder.core.text import count
from ponder.results.charts import Chart, draw
from ponder.results.coverage import Coverage, coverage
from ponder.results.document import columns, document
from ponder.results.embedded_transcripts import MEGABYTES, Attempts
from ponder.results.estimated import Estimated, estimate
from ponder.results.spreadsheet import inert
from ponder.results.studied import currency, studied
from ponder.store.store import Store
from ponder.study.labels import model_labels, task_labels
from ponder.study.study import Study

if TYPE_CHECKING:
    from ponder.run.adaptive import Decision

SCRIPTS = ("vega.js", "theme.js", "figures.js", "lists.js", "report.js", "chart.js")


class Drawn(NamedTuple):
    """A figure with its picture and its whole tables."""

    figure: Estimated
    chart: Chart
    tables: Tables


def report(study: Study, store: Store, folder: Path, transcripts: float = MEGABYTES) -> tuple[list[Path], Coverage]:
    """Write the report and return its files, the page first, and how much of the study it covers.

    `transcripts`: the megabytes that they may take inside the page.
    """
    cells, outcomes, figures, found = studied(study, store)
    if not any(o.answered for o in outcomes):
        raise no_answers(study, store)
    page = _place(folder)
    covered = coverage(cells, outcomes)
    covered = replace(covered, searching=covered.searching or not all(decision.ended for decision in found))
    drawn = [draw_figure(name, figure, outcomes) for name, figure in figures]
    attempts = Attempts(cells, outcomes)
    shown = {
        "figures": [_shown(one, attempts, leads=transcripts > 0) for one in drawn],
        "models": _models(outcomes, attempts, leads=transcripts > 0),
        "packed": attempts.packed(store, transcripts),  # after those that say what they lead to
        "adaptive": _notes(found),
    }
    content = _page(study, store, outcomes, covered, shown)
    try:
        page.write_text(content, "utf-8")
        return [page, *(path for figure in drawn for path in _write(figure, folder))], covered
    except OSError as error:
        hint = "free some space, or name another folder: -o"
        raise UserError(f"can't write the report to {folder}: {error.strerror}", hint=hint) from None


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
    estimated, tables = estimate(name, figure, outcomes)
    return Drawn(estimated, draw(name, estimated.spec), tables)


def _shown(drawn: Drawn, attempts: Attempts, *, leads: bool) -> dict[str, Any]:
    """A figure for the template: marks and rows lead to the attempts behind them, inside the file."""
    figure = drawn.figure
    attempts.add_figure(figure)
    tables = []
    for (name, rows), length in zip((figure.tables or {}).items(), figure.lengths, strict=True):
        file = f"{figure.name}-{name}.csv"
        links = [attempts.link(row) if leads else "" for row in rows]
        tables.append({"name": name, "rows": rows, "links": links, "length": length, "file": file, "download": ""})
    to = {"study": "", "groups": {}} if leads else None
    return {"figure": figure, "picture": drawn.chart, "tables": tables, "leads": to, "downloads": ()}


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
    rows = csv.DictWriter(text, columns(records), extrasaction="ignore", lineterminator="\n")
    rows.writeheader()
    rows.writerows(map(inert, records))
    return text.getvalue()


def _page(study: Study, store: Store, outcomes: Sequence[Outcome], covered: Coverage, shown: dict[str, Any]) -> str:
    counted = Counter(o.counted_by for o in outcomes if o.answered)
    rows = endings(outcomes)
    file = (study.folder or Path()) / f"{study.name}.toml"
    return document(
        "report.html",
        SCRIPTS,
        title=study.title or study.name,
        study=study,
        progress={
            "state": "complete" if covered.complete else "incomplete",
            "answered": covered.answered,
            "asked": covered.asked,
            "ended": {ending: sum(row[ending] for row in rows) for ending in ENDINGS[1:]},
            "cost": store.spent_by_runs(study.name)[1] - store.held_by_runs(study.name)[1],
            "held_tokens": store.held_by_runs(study.name)[0],
            "currency": currency(study.cells),
        },
        tokens=sum(row[f"{kind}_tokens"] for row in rows for kind in ("prompt", "thinking", "answer")),
        incomplete=covered.text(),
        attempts=rows,
        file=file.read_text("utf-8-sig", "replace") if file.is_file() else "",
        settings=study.resolved(),
        counted=", ".join(f"{n:,} by {by}" for by, n in counted.most_common()),
        versions=_versions(),
        store=store.path.name,
        written=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        **shown,
    )


def _versions() -> dict[str, str]:
    """What this report was made with."""
    names = ("altair", "vl-convert-python", "numpy")
    return {"Ponder": __version__, "Python": platform.python_version(), **{name: version(name) for name in names}}


def _models(outcomes: Sequence[Outcome], attempts: Attempts, *, leads: bool) -> Records:
    """How the attempts of each model ended, by task if there are several, and their median tokens."""
    rows = []
    for named, mine in _by_model(outcomes).items():
        number = Counter(o.ended for o in mine)
        link = attempts.add(Basis((o.cell for o in mine), ())) if leads else ""
        wrong = any(number[ending] for ending in ("wrong", "unparsed", "truncated"))
        row = {
            "task": "",
            **dict(named),
            "attempts": len(mine),
            "ended": {ending: number[ending] for ending in ENDINGS[1:]},
        }
        row |= {"tokens": int(median(o.tokens("output") for o in mine)), "link": link}
        rows.append(row | {"longest": link.replace("behind", "wrong") if wrong else ""})
    return rows


def _by_model(outcomes: Sequence[Outcome]) -> dict[tuple[tuple[str, str], ...], list[Outcome]]:
    """The attempts of each model, by task if there are several: settings of a task are never pooled in silence."""
    models, tasks = model_labels(outcomes), task_labels(outcomes)
    groups: dict[tuple[tuple[str, str], ...], list[Outcome]] = {}
    for o in outcomes:
        task = (("task", tasks[o.cell.task_key]),) if len(tasks) > 1 else ()
        groups.setdefault((("model", models[o.cell.model_key]), *task), []).append(o)
    return groups


def endings(outcomes: Sequence[Outcome]) -> Records:
    """How the attempts of each model ended, by task if there are several, and the tokens they took."""
    rows = []
    for named, mine in _by_model(outcomes).items():
        number = Counter(o.ended for o in mine)
        row: dict[str, Any] = {**dict(named), "attempts": len(mine)}
        row |= {end: number[end] for end in ENDINGS[1:]}
        row |= {k: sum(getattr(o, k) for o in mine) for k in ("prompt_tokens", "thinking_tokens", "answer_tokens")}
        rows.append(row)
    return rows


def messages(attempt: Attempt) -> Iterator[tuple[str, str]]:
    """Every message with the kind that the style sheet knows."""
    if attempt.problem.system:
        yield "system", attempt.problem.system
    for asked, reply in zip(attempt.problem.turns, attempt.completions, strict=False):
        yield "user", asked
        if reply.thinking:
            yield "thinking", reply.thinking
        yield "answer", reply.answer
