"""Writes a study's report: picture files and tables of each figure, and one self-contained HTML
page.

The page is the live page's, made once: charts, what they show in sentences, tables, and the
transcripts behind the marks of the charts, as many as fit. It needs no server and no network.
"""

from __future__ import annotations

import errno
import os
import platform
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from ponder import __version__
from ponder.core import ENDINGS, Basis, Outcome, Records, UserError
from ponder.core.text import count
from ponder.results.charts import Chart, DrawnFigure, draw_figure
from ponder.results.document import document
from ponder.results.embedded_transcripts import MEGABYTES, Attempts
from ponder.results.export import csv_text
from ponder.results.results import Coverage, Results, any_answer, by_model, endings
from ponder.store.store import Store

if TYPE_CHECKING:
    from ponder.run.adaptive import Decision

SCRIPTS = ("vega.js", "theme.js", "figures.js", "lists.js", "report.js", "chart.js")


def report(
    results: Results, folder: Path, transcripts: float = MEGABYTES
) -> tuple[list[Path], Coverage]:
    """Write the report and return its files, the page first, and how much of the study it covers.

    `transcripts`: the megabytes that they may take inside the page.
    """
    outcomes = results.outcomes_for(results.figures.values())
    if not any_answer(outcomes):
        raise results.no_answers()
    page = _place(folder)
    covered = results.coverage(outcomes)
    drawn = [draw_figure(name, figure, outcomes) for name, figure in results.figures.items()]
    # before charts are marked with the attempts behind them
    pictures = [figure.picture for figure in drawn]
    attempts = Attempts(results.cells, outcomes)
    links = transcripts > 0
    shown = {
        "figures": [
            _shown(*pair, attempts, leads=links) for pair in zip(drawn, pictures, strict=True)
        ],
        "models": _models(outcomes, attempts, leads=links),
        "adaptive": _notes(results.decisions),
    }
    with Store(results.store) as store:
        # after those that say what they lead to
        shown["packed"] = attempts.packed(store, transcripts)
        content = _page(results, store, outcomes, covered, shown)
    try:
        page.write_text(content, "utf-8")
        files = [page]
        for figure in drawn:
            files += _write(figure, folder)
    except OSError as error:
        hint = "free some space, or name another folder: -o"
        raise UserError(
            f"can't write the report to {folder}: {error.strerror}", hint=hint
        ) from None
    return files, covered


def _notes(found: Sequence[Decision]) -> list[str]:
    """What an adaptive run has found, for the head of the page."""
    if not found:
        return []
    made, most = (
        sum(getattr(decision, name) for decision in found) for name in ("attempts", "at_most")
    )
    valid = "The intervals in these sentences"
    if found[0].goal == "critical_size":
        valid = "Intervals of critical sizes"
    limit = "the full plan's"
    if found[0].goal == "max_size":
        limit = "at most"
    return [
        f"Adaptive run: its results decided what to ask, {made:,} of {limit} {count(most, 'attempt')}.",
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


def _shown(
    figure: DrawnFigure, picture: Chart, attempts: Attempts, *, leads: bool
) -> dict[str, Any]:
    """Return a figure for the template: marks and rows lead to the attempts behind them, inside the
    file.
    """
    attempts.add_figure(figure)
    figure = figure.first_rows()
    tables = []
    for (name, rows), length in zip((figure.tables or {}).items(), figure.lengths, strict=True):
        file = f"{figure.name}-{name}.csv"
        links = [attempts.link(row) if leads else "" for row in rows]
        tables.append(
            {
                "name": name,
                "rows": rows,
                "links": links,
                "length": length,
                "file": file,
                "download": "",
            }
        )
    to = {"study": "", "groups": {}} if leads else None
    return {"figure": figure, "picture": picture, "tables": tables, "leads": to, "downloads": ()}


def _write(figure: DrawnFigure, folder: Path) -> Iterator[Path]:
    """Write a figure's pictures and tables, and yield their paths."""
    picture = figure.picture
    files = {"png": picture.png, "svg": picture.svg.encode(), "pdf": picture.pdf}
    for ending, content in files.items():
        yield _written(folder / f"{figure.name}.{ending}", content)
    for name, records in (figure.tables or {}).items():
        path = folder / f"{figure.name}-{name}.csv"
        if records:
            yield _written(path, csv_text(records).encode())
        else:
            path.unlink(missing_ok=True)  # of a former report, when the study had other sizes


def _written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def _page(
    results: Results,
    store: Store,
    outcomes: Sequence[Outcome],
    covered: Coverage,
    shown: dict[str, Any],
) -> str:
    study = results.study
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
            "currency": results.currency,
        },
        tokens=sum(
            row[f"{kind}_tokens"] for row in rows for kind in ("prompt", "thinking", "answer")
        ),
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
    return {
        "Ponder": __version__,
        "Python": platform.python_version(),
        **{name: version(name) for name in names},
    }


def _models(outcomes: Sequence[Outcome], attempts: Attempts, *, leads: bool) -> Records:
    """How the attempts of each model ended, by task if there are several, and their median tokens."""
    rows = []
    for named, mine in by_model(outcomes).items():
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
