"""The two models that `ponder compare` compares: from a study's store, another store, or a baseline.

With `--run`, the model that is compared with a baseline is asked first, in an adaptive run.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ponder.cli.gate import Gate, check_measures
from ponder.cli.options import command, load
from ponder.cli.output import tell
from ponder.core import Bill, UserError
from ponder.core.text import count

if TYPE_CHECKING:
    from ponder.cli.gate import Tasks
    from ponder.core import Outcome
    from ponder.results.baseline import Matched
    from ponder.results.results import Results
    from ponder.results.study import Study
    from ponder.study.cell import StudyCell

ADAPTIVE = (
    "this was an adaptive run: the intervals below assume a fixed number of problems; "
    "`ponder run` prints the valid ones"
)


class ComparedModel(NamedTuple):
    """A model to compare: a variant of a study, or one training seed of it."""

    label: str
    file: Path  # the store or the baseline that has its attempts
    cells: list[StudyCell]  # empty for a baseline
    outcomes: list[Outcome]
    currencies: set[str]  # of what its attempts cost

    @property
    def costs_known(self) -> bool:
        """Whether each of its attempts has a cost, or will have one once it is made."""
        if not self.outcomes:
            # A server may report what it charged.
            call = Bill(prompt_tokens=1, answer_tokens=1)
            return all(cell.model.server() or cell.cost(call) is not None for cell in self.cells)
        return all(outcome.cost is not None for outcome in self.outcomes if outcome.answered)


class Sides(NamedTuple):
    """The two models to compare, A first, with their attempts by task."""

    first: ComparedModel
    second: ComparedModel
    tasks: Tasks
    arguments: list[str]  # of the command line, which name the two
    fraction: float | None = None  # how much of its problems an adaptive run has asked
    asked_text: str = ""  # the fraction in words; "" if the run wasn't adaptive

    @property
    def names(self) -> tuple[str, str]:
        """Their labels, with their files if the labels are the same."""
        a = self.first
        b = self.second
        if a.label != b.label:
            return a.label, b.label
        return f"{a.label} in {a.file}", f"{b.label} in {b.file}"

    @property
    def currencies(self) -> set[str]:
        return self.first.currencies | self.second.currencies


def sides_from_stores(
    study: str,
    settings: tuple[str, ...],
    models: tuple[str, ...],
    stores: tuple[Path, Path | None],
    labels: tuple[str | None, str | None],
    b_study: str | None,
) -> Sides:
    """Return two models whose attempts are in stores."""
    store, b_store = stores
    study_a = load(study, settings, models)
    study_b = load(b_study, (), ()) if b_study else study_a
    store_b = b_store or store
    results_a = study_a.results(store)
    results_b = study_b.results(store_b)
    same_run = b_study is None and b_store in (None, store)
    a, b = _labels(results_a.study, results_b.study, *labels, same_run=same_run)
    run_a = command("run", study, settings, store, models)
    run_b = command("run", study, settings, store_b, models)
    if b_study:
        run_b = command("run", b_study, (), store_b)
    first = stored_model(results_a, a, run_a)
    second = stored_model(results_b, b, run_b)
    arguments = [a, b]
    if b_study:
        arguments += ["--b-study", b_study]
    if b_store:
        arguments += ["--b-store", str(b_store)]
    tasks = _by_task(first, second)
    _tell_unmatched(first, second)
    if study_a.stop or study_b.stop:
        tell(ADAPTIVE)
    return Sides(first, second, tasks, arguments)


def sides_with_baseline(
    study: Study, store: Path, path: Path, label: str | None, gate: Gate, run: str, *, asks: bool
) -> Sides:
    """Return the model of a baseline, and a model of the study, which is asked first if `asks`.

    `run` is the command that would ask all of it.
    """
    from ponder.results.baseline import read_baseline

    baseline = read_baseline(path)
    results = None
    if not asks:
        results = study.results(store)
        study = results.study
    label = label or only_label(study, "ponder compare STUDY B --baseline FILE")
    cells = _called(study.cells, label)
    matched = baseline.matched(cells)
    for note in (*matched.notes, *baseline.notes(cells)):
        tell(note)
    first = ComparedModel(baseline.label, path, [], matched.outcomes, {baseline.content.currency})
    arguments = [label, "--baseline", str(path)]
    if results is None:
        sides = _asked(study, store, first, matched, label, gate)
        return sides._replace(arguments=arguments)
    second = stored_model(results, label, run)
    check_measures(gate.conditions, (first, second))
    _tell_partial(results, second, first)
    return Sides(first, second, _by_task(first, second), arguments)


def _asked(
    study: Study,
    store: Path,
    first: ComparedModel,
    matched: Matched,
    label: str,
    gate: Gate,
) -> Sides:
    """Ask a model until the conditions of a gate are decided, and return both."""
    from ponder.cli.study import run_in_terminal
    from ponder.run.interim import Interim, with_problems
    from ponder.run.progress import summary
    from ponder.stats.designs.sequential import ANALYSES
    from ponder.store.store import Store
    from ponder.study.prices import find_prices

    if study.stop:
        raise UserError(
            "the study has `stop`, and --run ends when the conditions are decided",
            where=study.where,
            hint="remove `stop` from the study",
        )
    cells = _called(study.cells, label)
    limited_cells = []
    for cell in cells:
        if cell.source in matched.problems:
            limited_cells.append(with_problems(cell, matched.problems[cell.source]))
    planned = sum((cell.quota.problems or 0) * cell.quota.samples for cell in limited_cells)

    def second(outcomes: list[Outcome]) -> ComparedModel:
        return ComparedModel(label, store, cells, outcomes, _currencies(cells))

    def answered(outcomes: list[Outcome]) -> bool:
        of_b = second(outcomes)
        check_measures(gate.conditions, (first, of_b))
        tasks = _by_task(_on_problems_of(first, outcomes), of_b)
        return gate.judged(tasks, len(outcomes) / planned).decided

    if gate.needs_costs:
        find_prices(cells)
    check_measures(gate.conditions, (first, second([])))
    interim = Interim(limited_cells, answered)
    tally = run_in_terminal(study, store, cells=limited_cells, trials=[interim])
    troubles = summary(tally)
    if troubles:
        tell(troubles)
    if tally.failed:
        tell(f"{count(tally.failed, 'attempt')} failed and left out; run again to retry")
    with Store(store) as opened:
        last_cells = interim.last(opened)
        outcomes = list(opened.outcomes(last_cells))
    if not outcomes:
        raise UserError(
            "the run ended before its first analysis",
            hint="raise `max_tokens` or `max_cost` if it was a cap, and run again to resume",
        )
    of_a = _on_problems_of(first, outcomes)
    of_b = second(outcomes)
    fraction = len(outcomes) / planned
    asked_text = (
        f"asked {len(outcomes):,} of {count(planned, 'attempt')} ({fraction:.0%}); intervals and "
        f"p-values are valid at each of its {ANALYSES} analyses"
    )
    return Sides(of_a, of_b, _by_task(of_a, of_b), [], fraction, asked_text)


def _on_problems_of(model: ComparedModel, outcomes: Sequence[Outcome]) -> ComparedModel:
    """Return a model with its attempts at the problems of these outcomes alone."""
    problems = {(outcome.cell.source, outcome.problem) for outcome in outcomes}
    common = [o for o in model.outcomes if (o.cell.source, o.problem) in problems]
    return model._replace(outcomes=common)


def _tell_partial(results: Results, model: ComparedModel, baseline: ComparedModel) -> None:
    """Print that a run was adaptive, or that `--run` may have ended early."""
    if results.study.stop:
        tell(ADAPTIVE)
        return
    answered = {(o.cell.source, o.problem) for o in model.outcomes}
    available = {(o.cell.source, o.problem) for o in baseline.outcomes}
    asked = len(answered & available)
    if asked < len(available):
        tell(
            f"{asked:,} of the baseline's {count(len(available), 'problem')} were "
            "asked. If --run ended early, only --run shows intervals that are valid for that; it "
            "asks nothing twice"
        )


def _labels(
    study_a: Study, study_b: Study, a: str | None, b: str | None, *, same_run: bool
) -> tuple[str, str]:
    """Return the labels of A and B: those of the command line, or the study's two models."""
    variants_a = list(dict.fromkeys(cell.label.variant for cell in study_a.cells))
    variants_b = list(dict.fromkeys(cell.label.variant for cell in study_b.cells))
    if a is None and same_run and len(variants_a) == 2:
        a, b = variants_a
    elif a is None and not same_run and len(variants_a) == len(variants_b) == 1:
        a = variants_a[0]
        b = variants_b[0]
    if a is None or b is None:
        missing = "name two models" if a is None else f"name the model to compare `{a}` with"
        variants = dict.fromkeys([*variants_a, *variants_b])
        names = ", ".join(f"`{name}`" for name in variants)
        raise UserError(f"{missing}: ponder compare STUDY A B", hint=f"known: {names}")
    if same_run and a == b:
        raise UserError(
            f"`{a}` can't be compared with itself",
            hint="name another model, or another store: --b-store",
        )
    return a, b


def only_label(study: Study, usage: str) -> str:
    """Return the label of a study's only model; `usage` is how a command names one of several."""
    variants = list(dict.fromkeys(cell.label.variant for cell in study.cells))
    if len(variants) > 1:
        names = ", ".join(f"`{name}`" for name in variants)
        raise UserError(f"name one of the study's models: {usage}", hint=f"known: {names}")
    return variants[0]


def _called(cells: Sequence[StudyCell], label: str) -> list[StudyCell]:
    """Return the cells of a variant or of a model, which is one training seed of it."""
    from ponder.study.labels import cells_called, unknown_name

    for noun in ("variant", "model"):
        called = cells_called(cells, noun, label)
        if called:
            return called
    raise unknown_name(cells, "model", label)


def stored_model(results: Results, label: str, run: str) -> ComparedModel:
    """Return a model's attempts in a store; `run` is the command that would ask it."""
    model_cells = set(_called(results.study.cells, label))
    cells = [cell for cell in results.cells if cell in model_cells]
    outcomes = [outcome for outcome in results.outcomes if outcome.cell in model_cells]
    if not any(outcome.answered for outcome in outcomes):
        raise UserError(f"{results.store} has no answers of `{label}`", hint=f"run it first: {run}")
    return ComparedModel(label, results.store, cells, outcomes, _currencies(cells))


def _currencies(cells: Sequence[StudyCell]) -> set[str]:
    return set[str]().union(*(cell.currencies() for cell in cells))


def _by_task(first: ComparedModel, second: ComparedModel) -> Tasks:
    """Return the outcomes of both by task: the tasks of both, or the only task of each."""
    from ponder.study.labels import task_labels

    names_a = task_labels(first.outcomes)
    names_b = task_labels(second.outcomes)
    common = [task for task in names_a if task in names_b]
    if not common and len(names_a) == len(names_b) == 1:
        (name,) = names_a.values()
        return {name: (first.outcomes, second.outcomes)}
    if not common:
        raise UserError(
            f"`{first.label}` was asked {', '.join(names_a.values())}, "
            f"and `{second.label}` {', '.join(names_b.values())}",
            hint="compare models that were asked the same task",
        )
    tasks = {}
    for task in common:
        of_a = [outcome for outcome in first.outcomes if outcome.cell.task_key == task]
        of_b = [outcome for outcome in second.outcomes if outcome.cell.task_key == task]
        tasks[names_a[task]] = (of_a, of_b)
    return tasks


def _tell_unmatched(first: ComparedModel, second: ComparedModel) -> None:
    """Print which tasks only one of them was asked."""
    from ponder.study.labels import task_labels

    names_a = task_labels(first.outcomes)
    names_b = task_labels(second.outcomes)
    if not names_a.keys() & names_b.keys():  # the only task of each, matched by its problems
        return
    only_first = [name for task, name in names_a.items() if task not in names_b]
    only_second = [name for task, name in names_b.items() if task not in names_a]
    for model, tasks in ((first, only_first), (second, only_second)):
        if tasks:
            tell(f"left out: {', '.join(tasks)}, which only `{model.label}` was asked")
