"""`ponder.Results`: what a store holds of a study, as tables, estimates, charts, transcripts, a
report and exports.

The notebook, the report, the live page, `ponder compare` and the exports all read a study through
it.
"""

from __future__ import annotations

import importlib.util
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ponder.core import (
    ENDINGS,
    Cell,
    Figure,
    FromLog,
    Label,
    Outcome,
    Problem,
    Records,
    Tables,
    UserError,
    plugins,
)
from ponder.core.capabilities import RecordsGrader
from ponder.core.settings import build
from ponder.core.text import count
from ponder.results import export
from ponder.results.charts import DrawnFigure, draw_figure
from ponder.results.dial_effects import DialEffect, dial_effects, dial_pairs, drawn
from ponder.results.grading_notes import grading_notes
from ponder.results.html_pages import columns, shown_value
from ponder.results.notebook import renderer
from ponder.results.study import Study
from ponder.results.transcript import Transcript
from ponder.run.caps import currency
from ponder.store.outcomes import with_ballots
from ponder.store.store import Store
from ponder.study.cell import StudyCell
from ponder.study.labels import cells_called, model_labels, task_labels, unknown_name
from ponder.study.prices import price_lines

if TYPE_CHECKING:
    from ponder.results.tuning import Tuning
    from ponder.run.adaptive import Decision, Replayed

FRAMES = ("pandas", "polars")


@dataclass(frozen=True)
class Coverage:
    """Attempts that the study asks for, and how many have an answer."""

    asked: int
    answered: int
    failed: int
    undecided: bool = False  # whether an adaptive run has not ended

    @property
    def complete(self) -> bool:
        return not self.failed and not self.undecided and self.answered >= self.asked

    def text(self) -> str:
        """Say what is missing, in one sentence; "" if nothing is."""
        if self.complete:
            return ""
        reasons = [f"{self.answered:,} of {count(self.asked, 'attempt')} answered"]
        if self.failed:
            reasons.append(f"{count(self.failed, 'attempt')} failed")
        if self.undecided:
            reasons.append("the adaptive run has not ended")
        return f"incomplete: {'; '.join(reasons)}"


@dataclass(frozen=True)
class Results:
    """What a store holds of a study. Everything is read when it is first asked for."""

    study: Study
    store: Path

    @cached_property
    def cells(self) -> Sequence[StudyCell]:
        """The study's cells, with the problems that were asked of them, which an adaptive run
        decides.
        """
        if self.study.stop is None:
            return self.study.cells
        return [cell for state in self.replayed for cell in state.cells()]

    @cached_property
    def decisions(self) -> Sequence[Decision]:
        """What an adaptive run has found; nothing if the study has no `stop`."""
        return [state.decision() for state in self.replayed]

    @cached_property
    def replayed(self) -> Sequence[Replayed]:
        """What the designs of an adaptive run have asked; nothing if the study has no `stop`."""
        if self.study.stop is None:
            return ()
        from ponder.run.adaptive import replayed  # imports NumPy

        with Store(self.store) as store:
            return replayed(self.study, store)

    @cached_property
    def tuning(self) -> Tuning:
        """The cheapest setting that is good enough, of a study with the goal `cheapest`."""
        from ponder.results.tuning import tuning

        return tuning(self)

    @cached_property
    def outcomes(self) -> list[Outcome]:
        """Every attempt without its texts, as figures take them."""
        with Store(self.store) as store:
            return list(store.outcomes(self.cells))

    @cached_property
    def voting_outcomes(self) -> list[Outcome]:
        """The outcomes with a number for each answer, equal for equal ones.

        Slow: every answer is parsed.
        """
        with Store(self.store) as store:
            return with_ballots(store, self.cells)

    def outcomes_for(self, figures: Iterable[Figure]) -> list[Outcome]:
        """Return the outcomes that these figures are estimated from."""
        if any(figure.counts_votes for figure in figures):
            return self.voting_outcomes
        return self.outcomes

    @cached_property
    def dial_effects(self) -> Sequence[DialEffect]:
        """What was found about models that differ in one dial, such as `effort`, alone."""
        cells: dict[Cell, Label] = {cell: cell.label for cell in self.cells}
        pairs = dial_pairs(cells)
        if not pairs:
            return ()
        return dial_effects(self.outcomes, pairs)

    @property
    def dial_notes(self) -> list[str]:
        """Sentences about dials that have no effect, or whose effect is not seen yet."""
        return [found.text for found in self.dial_effects if found.text]

    @cached_property
    def grading_notes(self) -> Sequence[str]:
        """Sentences about judges, their errors and their bills, and about outdated grades."""
        if not any(isinstance(cell.task, RecordsGrader) for cell in self.cells):
            return ()
        notes = []
        for names, group in by_model(self.outcomes).items():
            notes += grading_notes([name for _, name in names], group, self.currency)
        return notes

    @property
    def notes(self) -> list[str]:
        """What a reader of any number must know."""
        return [*self.dial_notes, *self.grading_notes]

    def _drawn(self, figure: Figure, outcomes: Sequence[Outcome]) -> Sequence[Outcome]:
        """Return the outcomes without settings that have no effect.

        A figure gets all that compares two models, or names one of these.
        """
        if figure.compares_two:
            return outcomes
        settings = [getattr(figure, field.name) for field in fields(figure)]  # type: ignore[arg-type]
        for found in self.dial_effects:
            label = found.pair.labels[1]
            if found.shown == "none" and (label.model in settings or label.variant in settings):
                return outcomes
        return drawn(outcomes, self.dial_effects)

    def no_answers(self) -> UserError:
        """Return the error for a study without answers."""
        message = f"{self.store} has no answers to {self.study.name} with these settings"
        return UserError(
            message, hint="run it first: ponder run STUDY", in_python="study.run() asks for them"
        )

    def coverage(self, outcomes: Sequence[Outcome] | None = None) -> Coverage:
        """Count the study's attempts that have an answer.

        `outcomes` are the study's, if they are read already.
        """
        covered = coverage(self.cells, self.outcomes if outcomes is None else outcomes)
        if all(decision.ended for decision in self.decisions):
            return covered
        return replace(covered, undecided=True)

    @property
    def currency(self) -> str:
        """The currency of the models' prices; "" if there is none, or more than one."""
        return currency(self.study.cells)

    @property
    def prices(self) -> list[str]:
        """The prices of each model behind a server, with their source and date."""
        return price_lines(self.study.cells)

    def summary(self) -> Records:
        """How the attempts of each model ended, by task if there are several, and the tokens they
        took.
        """
        return endings(self.outcomes)

    def frame(self, library: Literal["", "pandas", "polars"] = "") -> Any:
        """Return one row per attempt as a data frame, with the columns of `ponder export`."""
        if library and library not in FRAMES:
            message = f"a data frame is one of pandas or polars, not `{library}`"
            raise UserError(message, hint='results.frame("pandas")')
        libraries = (library,) if library else FRAMES
        installed = [name for name in libraries if importlib.util.find_spec(name)]
        if not installed:
            message = f"a data frame needs the package {library or 'pandas or polars'}"
            raise UserError(message, hint=f"pip install {library or 'pandas'}")
        with Store(self.store) as store:
            rows = list(export.rows(self.study, store, export.setting_columns(self.study.cells)))
        return importlib.import_module(installed[0]).DataFrame(rows)

    @cached_property
    def figures(self) -> dict[str, Figure]:
        """The study's figures by name; a second `effort` is `effort-2`."""
        figures: dict[str, Figure] = {}
        occurrences: Counter[str] = Counter()
        for figure in self.study.figures:
            name = figure.plugin_name()
            occurrences[name] += 1
            if occurrences[name] > 1:
                name = f"{name}-{occurrences[name]}"
            figures[name] = self._suited(figure)
        return figures

    def figure(self, name: str = "") -> Figure:
        """Return the study's figure of this name, or its first; any other figure with its default
        settings.
        """
        if name in self.figures:
            return self.figures[name]
        if name:
            return self._suited(
                build("figures", {"name": name}, f"figure `{name}`", self.study.folder)
            )
        if not self.figures:
            raise UserError(
                "this study names no figure",
                hint=f"name one: {', '.join(plugins.names('figures'))}",
            )
        return next(iter(self.figures.values()))

    def _suited(self, figure: Figure) -> Figure:
        """Return a figure with intervals that are valid for an adaptive run, if it was one and the
        figure has them.
        """
        adaptive_sizes = any(decision.goal == "critical_size" for decision in self.decisions)
        has_intervals = any(field.name == "adaptive" for field in fields(figure))  # type: ignore[arg-type]
        if adaptive_sizes and has_intervals:
            return replace(figure, adaptive=True)  # type: ignore[type-var]
        return figure

    def estimates(self, figure: str = "") -> Tables:
        """Return the numbers that a figure is drawn from, with their intervals.

        They are tables by name, each a list of records.
        """
        return self._estimate(self.figure(figure))

    def _estimate(self, figure: Figure) -> Tables:
        return figure.estimate(self._drawn(figure, self.outcomes_for([figure])))

    def draw(self, name: str, cells: Collection[bytes] | None = None) -> DrawnFigure:
        """Estimate a figure of the study, from all cells or those with these keys, and draw it."""
        outcomes = self.outcomes_for(self.figures.values())
        if cells is not None:
            outcomes = [outcome for outcome in outcomes if outcome.cell.key in cells]
        figure = self.figures[name]
        picture = draw_figure(name, figure, self._drawn(figure, outcomes))
        return replace(picture, findings=[*self._dial_sentences(), *picture.findings])

    def findings(self, figure: str = "") -> list[str]:
        """Return what a figure shows, in sentences."""
        return self._findings(self.figure(figure), self.estimates(figure))

    def _findings(self, figure: Figure, tables: Tables) -> list[str]:
        return [*self._dial_sentences(), *figure.findings(tables)]

    def _dial_sentences(self) -> list[str]:
        return [f"{note[0].upper()}{note[1:]}." for note in self.dial_notes]

    def chart(self, figure: str = "") -> Any:
        """Draw a figure as an Altair chart.

        In a notebook it is displayed offline, with tooltips and zoom.
        """
        if not any_answer(self.outcomes):
            raise self.no_answers()
        _show_charts_offline()
        return self.figure(figure).draw(self.estimates(figure))

    def attempts(
        self, *, model: str = "", task: str = "", problem: Problem | str = ""
    ) -> Iterator[Transcript]:
        """Yield attempts with their texts, in the order of the study.

        Models and tasks are named by their labels.
        """
        if model and not cells_called(self.study.cells, "model", model):
            raise unknown_name(self.study.cells, "model", model)
        if task and not cells_called(self.study.cells, "task", task):
            raise unknown_name(self.study.cells, "task", task)
        cells = self.cells
        if model:
            cells = cells_called(cells, "model", model)
        if task:
            cells = cells_called(cells, "task", task)
        problem_id = problem.id if isinstance(problem, Problem) else problem
        with Store(self.store) as store:
            for cell in cells:
                for done in store.attempts(cell):
                    if not problem_id or done.attempt.problem.id == problem_id:
                        yield Transcript(cell, done.attempt)

    def attempt(
        self,
        problem: Problem | str = "",
        *,
        model: str = "",
        task: str = "",
        sample: int | None = None,
    ) -> Transcript:
        """Return the first attempt at a problem, named by itself or its id, with its texts."""
        for transcript in self.attempts(model=model, task=task, problem=problem):
            if sample in (None, transcript.attempt.sample):
                return transcript
        hint = "results.outcomes lists them; the ids of problems are in their column `problem`"
        raise UserError("there is no such attempt", hint=hint)

    def report(self, folder: str | Path) -> Path:
        """Write figures, tables and a page into a folder, as `ponder report`; return the page."""
        from ponder.results.report import report

        files, _ = report(self, Path(folder))
        return files[0]

    def __repr__(self) -> str:
        rows = self.summary()
        if not rows:
            return f"{self.study.name}: no attempts in {self.store}"
        names = columns(rows)
        table = [names]
        for row in rows:
            table.append([shown_value(row.get(name)) for name in names])
        widths = [max(len(text) for text in column) for column in zip(*table, strict=True)]
        lines = []
        for texts in table:
            padded = [text.ljust(width) for text, width in zip(texts, widths, strict=True)]
            lines.append("  ".join(padded).rstrip())
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """Return the table, and each figure with its findings."""
        rows = self.summary()
        if not rows:
            return f"<p>{escape(repr(self))}</p>"
        html = [f"<p><b>{escape(self.study.title or self.study.name)}</b></p>", _html_table(rows)]
        if any_answer(self.outcomes):
            for figure in self.figures.values():
                tables = self._estimate(figure)
                html.append(renderer(figure.draw(tables).to_dict())["text/html"])
                html.append(_html_list(self._findings(figure, tables)))
        return "\n".join(html)


def any_answer(outcomes: Iterable[Outcome]) -> bool:
    """Return whether any attempt has an answer."""
    return any(outcome.answered for outcome in outcomes)


def endings(outcomes: Sequence[Outcome]) -> Records:
    """Count how each model's attempts ended, and their tokens, by task if there are several."""
    rows = []
    for names, group in by_model(outcomes).items():
        number = Counter(outcome.ended for outcome in group)
        row: dict[str, Any] = {**dict(names), "attempts": len(group)}
        for ending in ENDINGS[1:]:
            row[ending] = number[ending]
        for kind in ("prompt_tokens", "thinking_tokens", "answer_tokens"):
            row[kind] = sum(getattr(outcome, kind) for outcome in group)
        rows.append(row)
    return rows


def by_model(outcomes: Sequence[Outcome]) -> dict[tuple[tuple[str, str], ...], list[Outcome]]:
    """Return the attempts of each model, and of each task if there are several.

    A group is called `(("model", "pocket"), ("task", "tents"))`.
    """
    models = model_labels(outcomes)
    tasks = task_labels(outcomes)
    groups: dict[tuple[tuple[str, str], ...], list[Outcome]] = {}
    for outcome in outcomes:
        names = [("model", models[outcome.cell.model_key])]
        if len(tasks) > 1:
            names.append(("task", tasks[outcome.cell.task_key]))
        groups.setdefault(tuple(names), []).append(outcome)
    return groups


def coverage(cells: Sequence[StudyCell], outcomes: Sequence[Outcome]) -> Coverage:
    """Compare what a study asks for with what it got."""
    answered: Counter[Cell] = Counter()
    failed: Counter[Cell] = Counter()
    for outcome in outcomes:
        counter = answered if outcome.answered else failed
        counter[outcome.cell] += 1
    wanted_attempts = sum(
        _asked(cell, answered[cell] + failed[cell]) for cell in dict.fromkeys(cells)
    )
    return Coverage(wanted_attempts, answered.total(), failed.total())


def _asked(cell: StudyCell, tried: int) -> int:
    """Count the attempts that a cell asks for.

    A small task may have fewer problems than the study wants, so they are counted, unless all were
    tried: to make 20,000 problems of `execution` again takes 6 s.
    """
    if isinstance(cell.model, FromLog):
        return tried  # nothing more was asked
    if cell.quota.problems is not None and tried >= cell.quota.samples * cell.quota.problems:
        return tried
    if cell.task.fixed() is not None:
        return cell.quota.samples * cell.count
    return cell.quota.samples * sum(1 for _ in cell.asked())


@dataclass(frozen=True)
class Comparison:
    """What two models' answers to the same problems say.

    Differences are b less a, ratios b over a.
    """

    findings: list[str]  # the verdict of each task, then the numbers behind it
    tables: Tables  # every number with its interval and p-value, by table
    chart: Any  # Altair

    @property
    def rows(self) -> Records:
        """Accuracy, tokens, critical size and cost of a right answer, compared."""
        return self.tables["rows"]

    def __repr__(self) -> str:
        return "\n".join(self.findings)

    def _repr_html_(self) -> str:
        return renderer(self.chart.to_dict())["text/html"] + _html_list(self.findings)


def compare(results: Results, a: str = "", b: str = "", *, margin: float = 0.03) -> Comparison:
    """Compare model b with model a, the reference, on the problems that both answered.

    They are named by the labels of `results.summary()`, training seeds left out; a study of two
    models needs no names. The verdict is better, worse, not worse by more than `margin`, or how
    many more problems would tell. The command `ponder compare` does the same, also for two stores.
    """
    if not isinstance(results, Results):
        raise UserError(
            f"results are compared, not {results!r:.60}",
            hint="ponder.compare(study.results(), a, b)",
        )
    settings = {"name": "compare", "a": a, "b": b, "margin": margin}
    figure = build("figures", settings, "compare", results.study.folder)
    tables = figure.estimate(results.outcomes)
    return Comparison(figure.findings(tables), tables, figure.draw(tables))


def _html_table(rows: Records) -> str:
    names = columns(rows)
    html = "<table><tr>"
    for name in names:
        html += f"<th>{escape(name.replace('_', ' '))}</th>"
    html += "</tr>"
    for row in rows:
        html += "<tr>"
        for name in names:
            html += f"<td>{escape(shown_value(row.get(name)))}</td>"
        html += "</tr>"
    return f"{html}</table>"


def _html_list(sentences: Sequence[str]) -> str:
    items = "".join(f"<li>{escape(sentence)}</li>" for sentence in sentences)
    return f"<ul>{items}</ul>"


def _show_charts_offline() -> None:
    """Let a notebook display charts without a network, unless its user has chosen a renderer."""
    if "ipykernel" in sys.modules:
        import altair

        if altair.renderers.active == "default":
            altair.renderers.enable("ponder")
