"""`ponder.Results`: a study's attempts as tables, estimates, charts and transcripts."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any, Literal

from ponder.core import Attempt, Figure, Outcome, Problem, Records, Tables, UserError, plugins
from ponder.core.settings import build
from ponder.results import export, page
from ponder.results.document import columns, shown_value
from ponder.results.notebook import renderer
from ponder.results.studied import Studied, studied
from ponder.store.store import Store
from ponder.study.study import Study

FRAMES = ("pandas", "polars")


@dataclass(frozen=True)
class Results:
    """What a store holds of a study. Everything is read when it is first asked for."""

    study: Study
    store: Path

    @cached_property
    def _read(self) -> Studied:
        with Store(self.store) as store:
            return studied(self.study, store, voting=False)

    @cached_property
    def _voting(self) -> list[Outcome]:
        with Store(self.store) as store:
            return studied(self.study, store, voting=True).outcomes

    @property
    def outcomes(self) -> list[Outcome]:
        """Every attempt without its texts, as figures take them."""
        return self._read.outcomes

    def summary(self) -> Records:
        """How the attempts of each model ended, and the tokens they took."""
        return page.endings(self.outcomes)

    def frame(self, library: Literal["", "pandas", "polars"] = "") -> Any:
        """One row per attempt, with the columns of `ponder export`: a pandas data frame, or one of polars."""
        if library and library not in FRAMES:
            raise UserError(f"a data frame is one of pandas or polars, not `{library}`", hint='results.frame("pandas")')
        name: str = library or next((name for name in FRAMES if importlib.util.find_spec(name)), "")
        if not name or not importlib.util.find_spec(name):
            what = f"a data frame needs the package {library or 'pandas or polars'}"
            raise UserError(what, hint=f"pip install {library or 'pandas'}")
        with Store(self.store) as store:
            rows = list(export.rows(self.study, store, export.setting_columns(self.study.cells)))
        return importlib.import_module(name).DataFrame(rows)

    def estimates(self, figure: str = "") -> Tables:
        """The numbers that a figure is drawn from, with their intervals: tables by name, each a list of records."""
        return self._estimate(self._figure(figure))

    def _estimate(self, figure: Figure) -> Tables:
        return figure.estimate(self._voting if figure.counts_votes else self.outcomes)

    def findings(self, figure: str = "") -> list[str]:
        """What a figure shows, in sentences."""
        return self._figure(figure).findings(self.estimates(figure))

    def chart(self, figure: str = "") -> Any:
        """A figure as an Altair chart. In a notebook it is displayed offline, with tooltips and zoom."""
        self._need_answers()
        _show_charts_offline()
        return self._figure(figure).draw(self.estimates(figure))

    def _need_answers(self) -> None:
        if not any(outcome.answered for outcome in self.outcomes):
            raise UserError(f"{self.store} has no answers to this study", hint="study.run() asks for them")

    def _figure(self, name: str) -> Figure:
        """The study's figure of this name, or its first; any other figure with its default settings."""
        own = [figure for named, figure in self._read.figures if name in ("", named)]
        if own:
            return own[0]
        if not name:
            raise UserError("this study names no figure", hint=f"name one: {', '.join(plugins.names('figures'))}")
        return self._read.suited(build("figures", {"name": name}, f"figure `{name}`", self.study.folder))

    def attempts(self, *, model: str = "", task: str = "", problem: Problem | str = "") -> Iterator[Transcript]:
        """Attempts with their texts, in the order of the study. Models and tasks are named by their labels."""
        for what, wanted in (("model_label", model), ("task_label", task)):
            known = {getattr(cell, what) for cell in self.study.cells}
            if wanted and wanted not in known:
                noun = what.removesuffix("_label")
                raise UserError(f"this study has no {noun} `{wanted}`", hint=plugins.nearest(wanted, known))
        wanted_id = problem.id if isinstance(problem, Problem) else problem
        with Store(self.store) as store:
            for cell in self._read.cells:
                if model in ("", cell.label.model) and task in ("", cell.label.task):
                    for done in store.attempts(cell):
                        if wanted_id in ("", done.attempt.problem.id):
                            yield Transcript(cell.label.task, cell.label.model, done.attempt)

    def attempt(
        self, problem: Problem | str = "", *, model: str = "", task: str = "", sample: int | None = None
    ) -> Transcript:
        """The first attempt at a problem (itself or its id), by a model, with its texts."""
        for one in self.attempts(model=model, task=task, problem=problem):
            if sample in (None, one.attempt.sample):
                return one
        hint = "results.outcomes lists them; the ids of problems are in their column `problem`"
        raise UserError("there is no such attempt", hint=hint)

    def report(self, folder: str | Path) -> Path:
        """Write figures, tables and one HTML page into a folder, as `ponder report` does; returns the page's path."""
        self._need_answers()
        with Store(self.store) as store:
            files, _ = page.report(self.study, store, Path(folder))
        return files[0]

    def __repr__(self) -> str:
        rows = self.summary()
        if not rows:
            return f"{self.study.name}: no attempts in {self.store}"
        table = [columns(rows), *([shown_value(row.get(c)) for c in columns(rows)] for row in rows)]
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines = ("  ".join(value.ljust(width) for value, width in zip(row, widths, strict=True)) for row in table)
        return "\n".join(line.rstrip() for line in lines)

    def _repr_html_(self) -> str:
        """The table, and each figure with its findings."""
        if not (rows := self.summary()):
            return f"<p>{escape(repr(self))}</p>"
        parts = [f"<p><b>{escape(self.study.title or self.study.name)}</b></p>", _html_table(rows)]
        for _, figure in self._read.figures if any(o.answered for o in self.outcomes) else ():
            tables = self._estimate(figure)
            parts.append(renderer(figure.draw(tables).to_dict())["text/html"])
            parts.append("<ul>" + "".join(f"<li>{escape(s)}</li>" for s in figure.findings(tables)) + "</ul>")
        return "\n".join(parts)


@dataclass(frozen=True)
class Transcript:
    """One attempt with its texts."""

    task: str  # label
    model: str  # label
    attempt: Attempt

    @property
    def heading(self) -> str:
        attempt, bill = self.attempt, self.attempt.bill
        ended = attempt.ended + (f": {attempt.why}" if attempt.why else "")
        tokens = f"{bill.thinking_tokens:,} thinking + {bill.answer_tokens:,} answer tokens"
        return f"{self.model} on {self.task}, size {attempt.problem.size}: {ended}; {tokens}"

    def show(self) -> None:
        """Print it."""
        sys.stdout.write(f"{self}\n")

    def __str__(self) -> str:
        return "\n".join([self.heading, *(f"\n[{role}]\n{text}" for role, text in page.messages(self.attempt))])

    def __repr__(self) -> str:
        return f"<Transcript: {self.heading}>"

    def _repr_html_(self) -> str:
        parts = (
            f"<details{'' if role == 'thinking' else ' open'}><summary>{role}</summary>"
            f"<pre style='white-space:pre-wrap'>{escape(text)}</pre></details>"
            for role, text in page.messages(self.attempt)
        )
        return f"<b>{escape(self.heading)}</b>{''.join(parts)}"


def _html_table(rows: Records) -> str:
    head = "".join(f"<th>{escape(column.replace('_', ' '))}</th>" for column in columns(rows))
    body = ("".join(f"<td>{escape(shown_value(row.get(c)))}</td>" for c in columns(rows)) for row in rows)
    return f"<table><tr>{head}</tr>{''.join(f'<tr>{row}</tr>' for row in body)}</table>"


def _show_charts_offline() -> None:
    """Let a notebook display charts without a network, unless its user has chosen a renderer."""
    if "ipykernel" in sys.modules:
        import altair

        if altair.renderers.active == "default":
            altair.renderers.enable("ponder")
