"""Writes a study's report: pictures and tables of each figure, and one self-contained HTML page.

The page is the live page's, made once: charts, findings, tables, and transcripts of the attempts
behind the marks of the charts, compressed, as many as fit. It needs no server and no network.

Attempts that a dot or a row stands for alone come first; then, in turns, one more attempt behind
each bar, cell or point that stands for several; then all other attempts. What doesn't fit is left
out evenly, and the page says how many transcripts that are.
"""

from __future__ import annotations

import base64
import errno
import itertools
import json
import os
import platform
import random
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from ponder import __version__
from ponder.core import ANSWERED, ENDINGS, Basis, Cell, Outcome, Records, UserError
from ponder.core.text import count
from ponder.results.charts import Chart, DrawnFigure, Group
from ponder.results.export import csv_text
from ponder.results.html_pages import document, rendered
from ponder.results.results import Coverage, Results, any_answer, by_model, endings
from ponder.results.transcript import Transcript
from ponder.results.tuning import as_last_tuned
from ponder.results.tuning_section import TuningSection, looks_for_cheapest, tuning_section
from ponder.store.store import Store
from ponder.study.cell import StudyCell
from ponder.study.labels import group_label

if TYPE_CHECKING:
    from ponder.run.adaptive import Decision

SCRIPTS = ("vega.js", "theme.js", "figures.js", "lists.js", "report.js", "chart.js")
MEGABYTES = 2.0  # of a report's file that transcripts take by default
BLOCK = 250_000  # characters that are compressed together: more is smaller, but slower to open one
COMPRESSION = 4  # characters of text per byte after compression, about


def report(
    results: Results, folder: Path, transcripts: float = MEGABYTES
) -> tuple[list[Path], Coverage]:
    """Write the report and return its files, the page first, and how much of the study it covers.

    `transcripts` are the megabytes that transcripts may take inside the page.
    """
    results = as_last_tuned(results)
    outcomes = results.outcomes_for(results.figures.values())
    if not any_answer(outcomes):
        raise results.no_answers()
    page = _page_path(folder)
    covered = results.coverage(outcomes)
    figures = [results.draw(name) for name in results.figures]
    # before charts are marked with the attempts behind them
    pictures = [figure.picture for figure in figures]
    attempts = EmbeddedAttempts(results.cells, outcomes)
    has_links = transcripts > 0
    shown_figures = []
    for figure, picture in zip(figures, pictures, strict=True):
        shown_figures.append(_figure_values(figure, picture, attempts, has_links=has_links))
    page_values: dict[str, Any] = {
        "figures": shown_figures,
        "models": _model_rows(outcomes, attempts, has_links=has_links),
        "notes": [*_adaptive_notes(results.decisions), *results.grading_notes],
        "tuning": None,
    }
    if looks_for_cheapest(results):
        page_values["tuning"] = _tuning_values(results, attempts, has_links=has_links)
        page_values["notes"] = results.grading_notes
    with Store(results.store) as store:
        # after everything that links to attempts
        page_values["packed"] = attempts.packed(store, transcripts)
        content = _page(results, store, outcomes, covered, page_values)
    try:
        page.write_text(content, "utf-8")
        files = [page]
        for figure in figures:
            files += _write_figure(figure, folder)
    except OSError as error:
        hint = "free some space, or name another folder: -o"
        raise UserError(
            f"can't write the report to {folder}: {error.strerror}", hint=hint
        ) from None
    return files, covered


def _page_path(folder: Path) -> Path:
    """Return the page's path; raise `UserError` if nothing can be written there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))
    except OSError as error:
        message = f"can't write to {folder}: {error.strerror}"
        raise UserError(message, hint="-o FOLDER says where to write the report") from None
    return folder / "report.html"


def _figure_values(
    figure: DrawnFigure, picture: Chart, attempts: EmbeddedAttempts, *, has_links: bool
) -> dict[str, Any]:
    """Return a figure for its template: marks and rows lead to attempts inside the file."""
    attempts.add_figure(figure)
    figure = figure.first_rows()
    tables = []
    for (name, rows), length in zip((figure.tables or {}).items(), figure.lengths, strict=True):
        links = [""] * len(rows)
        if has_links:
            links = [attempts.link(row) for row in rows]
        tables.append(
            {
                "name": name,
                "rows": rows,
                "links": links,
                "length": length,
                "file": f"{figure.name}-{name}.csv",
                "download": "",
            }
        )
    return {
        "figure": figure,
        "picture": picture,
        "tables": tables,
        "leads": {"study": "", "groups": {}} if has_links else None,
        "downloads": (),
    }


def _tuning_values(
    results: Results, attempts: EmbeddedAttempts, *, has_links: bool
) -> dict[str, Any]:
    """Return the section on the cheapest setting for its template."""
    section = tuning_section(results)
    links = {}
    transcripts = {}
    if has_links:
        attempts.add_section(section)
        for basis in section.groups:
            links[basis] = f"#behind-{basis}"
        for first, second in section.replies():
            transcripts[first, second] = (f"#attempt-{first}", f"#attempt-{second}")
    return {
        "error": "",
        "section": section,
        "attempts": links,
        "transcripts": transcripts,
        "all_problems": [""] * len(section.steps),
    }


def _model_rows(
    outcomes: Sequence[Outcome], attempts: EmbeddedAttempts, *, has_links: bool
) -> Records:
    """Count how the attempts of each model ended, by task if there are several."""
    rows = []
    for names, group in by_model(outcomes).items():
        number = Counter(outcome.ended for outcome in group)
        row: dict[str, Any] = {"task": "", **dict(names), "attempts": len(group)}
        row["ended"] = {ending: number[ending] for ending in ENDINGS[1:]}
        row["tokens"] = int(median(outcome.tokens("output") for outcome in group))
        row["link"] = ""
        row["longest"] = ""
        if has_links:
            row["link"] = attempts.add(Basis((outcome.cell for outcome in group), ()))
            if number["wrong"] or number["unparsed"] or number["truncated"]:
                row["longest"] = row["link"].replace("behind", "wrong")
        rows.append(row)
    return rows


def _adaptive_notes(decisions: Sequence[Decision]) -> list[str]:
    """Return what an adaptive run has decided, as sentences for the head of the page."""
    if not decisions:
        return []
    attempts = sum(decision.attempts for decision in decisions)
    planned = sum(decision.at_most for decision in decisions)
    intervals = "The intervals in these sentences"
    if decisions[0].goal == "critical_size":
        intervals = "Intervals of critical sizes"
    share = f"{attempts:,} of the full plan's {count(planned, 'attempt')}"
    fixed_intervals = "others are those of a run with a fixed number of problems"
    return [
        f"Adaptive run: its results decided what to ask, {share}.",
        *(f"{decision.text}." for decision in decisions),
        f"{intervals} are valid for such a run; {fixed_intervals}.",
    ]


def _page(
    results: Results,
    store: Store,
    outcomes: Sequence[Outcome],
    covered: Coverage,
    shown: dict[str, Any],
) -> str:
    study = results.study
    counted = Counter(outcome.counted_by for outcome in outcomes if outcome.answered)
    rows = endings(outcomes)
    ended = {ending: sum(row[ending] for row in rows) for ending in ENDINGS[1:]}
    tokens = 0
    for row in rows:
        tokens += row["prompt_tokens"] + row["thinking_tokens"] + row["answer_tokens"]
    file = (study.folder or Path()) / f"{study.name}.toml"
    file_text = ""
    if file.is_file():
        file_text = file.read_text("utf-8-sig", "replace")
    _, spent = store.spent_by_runs(study.name)
    held_tokens, held_cost = store.held_by_runs(study.name)
    return document(
        "report.html",
        SCRIPTS,
        title=study.title or study.name,
        study=study,
        progress={
            "state": "complete" if covered.complete else "incomplete",
            "answered": covered.answered,
            "asked": covered.asked,
            "ended": ended,
            "cost": spent - held_cost,
            "held_tokens": held_tokens,
            "currency": results.currency,
            "prices": results.prices,
        },
        tokens=tokens,
        incomplete=covered.text(),
        attempts=rows,
        file=file_text,
        settings=study.resolved(),
        counted=", ".join(f"{number:,} by {source}" for source, number in counted.most_common()),
        versions=_versions(),
        store=store.path.name,
        written=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        **shown,
    )


def _versions() -> dict[str, str]:
    """Return the versions of the programs that make a report."""
    versions = {"Ponder": __version__, "Python": platform.python_version()}
    for name in ("altair", "vl-convert-python", "numpy"):
        versions[name] = version(name)
    return versions


def _write_figure(figure: DrawnFigure, folder: Path) -> list[Path]:
    """Write a figure's pictures and tables, and return their paths."""
    picture = figure.picture
    contents = {
        f"{figure.name}.png": picture.png,
        f"{figure.name}.svg": picture.svg.encode(),
        f"{figure.name}.pdf": picture.pdf,
    }
    for name, records in (figure.tables or {}).items():
        file = f"{figure.name}-{name}.csv"
        if records:
            contents[file] = csv_text(records).encode()
        else:  # of a former report, when the study had other sizes
            (folder / file).unlink(missing_ok=True)
    paths = []
    for file, content in contents.items():
        path = folder / file
        path.write_bytes(content)
        paths.append(path)
    return paths


# The transcripts inside the page.


class EmbeddedAttempts:
    """The attempts behind the marks of a report, and the transcripts that its file holds."""

    def __init__(self, cells: Sequence[StudyCell], outcomes: Sequence[Outcome]) -> None:
        self.cells = cells
        self.outcomes = outcomes
        # the number of each cell; of equal cells the first counts
        self._numbers: dict[Cell, int] = {}
        for number, cell in enumerate(cells):
            self._numbers.setdefault(cell, number)
        self._by_key = {cell.key: number for cell, number in self._numbers.items()}
        self._of_cell: list[list[Outcome]] = [[] for _ in cells]
        for outcome in outcomes:
            self._of_cell[self._numbers[outcome.cell]].append(outcome)
        # what marks and rows were computed from, by their `basis`
        self._groups: dict[str, Group] = {}
        self._linked: set[int] = set()  # ids of attempts that marks or rows lead to directly

    def add(self, basis: Basis) -> str:
        """Add the attempts of some cells, and return the address that opens them."""
        keys = tuple(cell.key for cell in basis.cells)
        self._groups.setdefault(str(basis), Group(keys, basis.ended))
        return f"#behind-{basis}"

    def add_figure(self, figure: DrawnFigure) -> None:
        """Add the attempts that a figure's marks and rows were computed from."""
        self._groups |= figure.groups
        for rows in chart_data(figure.spec):
            for row in rows:
                if "attempt" in row:
                    self._linked.add(row["attempt"])

    def add_section(self, section: TuningSection) -> None:
        """Add the attempts that the section on the cheapest setting leads to."""
        self._groups |= section.groups
        self._linked.update(itertools.chain(*section.replies()))

    def link(self, row: dict[str, Any]) -> str:
        """Return the address that opens the attempts behind a row of a table; "" if none does."""
        if "attempt" in row:
            return f"#attempt-{row['attempt']}"
        basis = row.get("basis", "")
        if basis in self._groups:
            return f"#behind-{basis}"
        return ""

    def packed(self, store: Store, megabytes: float) -> dict[str, Any]:
        """Return the `index` from which the page lists attempts, and their texts in `blocks`."""
        problems: dict[str, int] = {}
        rows: list[tuple[int, ...]] = []
        blocks: list[str] = []
        texts: dict[int, str] = {}  # of the next block
        length = 0  # of these texts
        room = megabytes * 1e6
        for outcome in self._in_order_of_importance():
            if room <= 0:
                break
            cell = self._numbers[outcome.cell]
            text = self._transcript(store, outcome.attempt, self.cells[cell])
            texts[outcome.attempt] = text
            rows.append(
                (
                    outcome.attempt,
                    cell,
                    ENDINGS.index(outcome.ended),
                    outcome.thinking_tokens,
                    outcome.answer_tokens,
                    problems.setdefault(outcome.problem, len(problems)),
                    len(blocks),
                )
            )
            length += len(text)
            if length >= min(BLOCK, COMPRESSION * room):
                blocks.append(_compressed(texts))
                room -= len(blocks[-1])
                texts = {}
                length = 0
        if texts:
            blocks.append(_compressed(texts))
        index = {
            "cells": [(cell.label.model, cell.label.task, cell.size) for cell in self.cells],
            "endings": ENDINGS,
            "rows": sorted(rows),
            "groups": {basis: self._described(group) for basis, group in self._groups.items()},
            "all": len(self.outcomes),
        }
        return {"index": index, "blocks": blocks, "held": len(rows), "all": len(self.outcomes)}

    def _transcript(self, store: Store, attempt: int, cell: StudyCell) -> str:
        stored = store.attempt(attempt)
        assert stored is not None, "its outcome was read from this store"
        transcript = Transcript(cell, stored.attempt, attempt, stored.problem)
        return rendered("packed.html", one=transcript)

    def _in_order_of_importance(self) -> Iterator[Outcome]:
        """Yield every attempt once: linked ones, then in turns those behind marks, then all."""
        linked = [outcome for outcome in self.outcomes if outcome.attempt in self._linked]
        random.Random(0).shuffle(linked)
        behind_marks = _round_robin([self._members(group) for group in self._groups.values()])
        of_cells = _round_robin(self._of_cell)
        yielded = set()
        for outcome in itertools.chain(linked, behind_marks, of_cells):
            if outcome.attempt not in yielded:
                yielded.add(outcome.attempt)
                yield outcome

    def _members(self, group: Group) -> Iterator[Outcome]:
        """Yield the attempts of a group, its cells in turns."""
        for outcome in _round_robin([self._of_cell[n] for n in self._cells_of(group)]):
            if not group.ended or outcome.ended in group.ended:
                yield outcome

    def _cells_of(self, group: Group) -> list[int]:
        return sorted(self._by_key[key] for key in group.cells)

    def _described(self, group: Group) -> dict[str, Any]:
        """Return a group for the page's script, which finds attempts by their cells and endings."""
        cells = self._cells_of(group)
        total = 0
        for number in cells:
            for ending in group.ended or ENDINGS:
                total += self._counts[number][ending]
        named_endings = group.ended
        if group.ended == ANSWERED:
            named_endings = ()
        return {
            "cells": cells,
            "endings": [ENDINGS.index(ending) for ending in group.ended],
            "total": total,
            "title": group_label([self.cells[n] for n in cells], self.cells, named_endings),
        }

    @cached_property
    def _counts(self) -> list[Counter[str]]:
        """How many attempts of each cell ended in which way."""
        return [Counter(outcome.ended for outcome in group) for group in self._of_cell]


def chart_data(spec: Any) -> Iterator[Records]:
    """Yield the rows of every table inside a chart."""
    if isinstance(spec, list):
        for inner in spec:
            yield from chart_data(inner)
    elif isinstance(spec, dict):
        for key, inner in spec.items():
            if key == "datasets":
                yield from inner.values()
            elif key == "values" and all(isinstance(row, dict) for row in inner):
                yield inner
            else:
                yield from chart_data(inner)


def _round_robin(groups: Sequence[Iterable[Outcome]]) -> Iterator[Outcome]:
    """Yield one attempt of each group, then another of each, until all have ended."""
    waiting = [iter(group) for group in groups]
    while waiting:
        unfinished = []
        for group in waiting:
            outcome = next(group, None)
            if outcome is not None:
                yield outcome
                unfinished.append(group)
        waiting = unfinished


def _compressed(texts: dict[int, str]) -> str:
    """Return texts by attempt as JSON that a browser's DecompressionStream("deflate") reads."""
    encoded = json.dumps(texts, ensure_ascii=False).encode()
    return base64.b64encode(zlib.compress(encoded)).decode()
