"""Refuses, before anything is spent, what a run or its report would fail on later.

Figures are read, not imported: Altair and NumPy take 0.3 s and 40 MB, which a run doesn't need
otherwise. What a figure accepts stands in its source: the types of its fields, and in `needs` what
it draws.
"""

from __future__ import annotations

import ast
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_type_hints

from ponder.core import Method, Model, Problem, Request, UserError, error_at, plugins
from ponder.core.capabilities import ChecksPrompts, Measuring, WithWarning, grade_turns, solve_turns
from ponder.core.errors import Location
from ponder.core.settings import Table, base, build, check_keys, check_name, convert, variants
from ponder.study.cell import StudyCell

if TYPE_CHECKING:
    from ponder.study.study import StudySpec

HOTTEST = 2  # temperature: what OpenAI's API and most others accept
SECONDS = 20.0  # that making one problem may take; the slowest built-in one takes 2
SOME_PROBLEMS = 10  # generated problems of a size, to see how long prompts are
SOME_SECONDS = 0.1  # to generate them in


def check(study: StudySpec) -> None:
    """Raise `UserError` for what is missing here, for problems that can't be made and figures that
    can't be drawn.
    """
    _check_models(study)
    _check_identities(study)
    if study.stop_rule:
        with error_at(Location(study.where, "stop")):
            study.stop_rule.goal_of(study)
    if study.train:
        study.training_problems  # noqa: B018 builds the tasks of every [[train]]
    for cells in _by_task(study.cells):
        if not study.chooses_sizes:  # such a run begins with small sizes
            with error_at(f"{study.where}: task `{cells[0].label.task}`"):
                _check_problem(max(cells, key=lambda cell: cell.size))
    for i, table in enumerate(study.figure):
        _check_figure(study, table, Location(study.where, "figure", i))


def warnings(study: StudySpec) -> list[str]:
    """Return a line about each setting of a study that is allowed but looks like a mistake."""
    lines = []
    for cells in _by_task(study.cells):
        task = cells[0].task
        if isinstance(task, WithWarning):
            lines.append(task.warning())
        lines.append(_too_few(study, cells))
    for cell in {cell.base_key: cell for cell in study.cells}.values():
        model = cell.model
        temperature = getattr(model, "temperature", None) if model.server() else None
        if temperature is not None and temperature > HOTTEST:
            sampled = f"model `{cell.label.base}` samples at temperature {temperature:g}"
            lines.append(f"{sampled}; most servers refuse more than {HOTTEST}")
    return [f"warning: {study.where}: {line}" for line in lines if line]


def _too_few(study: StudySpec, cells: Sequence[StudyCell]) -> str:
    """Return a warning if the study asks for more problems than a fixed set has."""
    cell = cells[0]
    if study.problems is None or cell.task.fixed() is None:
        return ""
    smallest = min(cells, key=lambda cell: cell.count)
    if smallest.count >= study.problems:
        return ""
    of_size = f" of size {smallest.size}" if len(cell.task.sizes()) > 1 else ""
    has = f"task `{cell.label.task}` has {smallest.count} problems{of_size}"
    return f"problems = {study.problems}, but {has}; all of them are asked"


def _check_identities(study: StudySpec) -> None:
    """Raise `UserError` if a cell is another one under a second name: both would have the same
    attempts.
    """
    cells: dict[bytes, StudyCell] = {}
    for cell in study.cells:
        other = cells.setdefault(cell.key, cell)
        if other is cell:
            continue
        noun, names = "models", (other.label.model, cell.label.model)
        if names[0] == names[1]:
            noun, names = "tasks", (other.label.task, cell.label.task)
        what = f"{noun} `{names[0]}` and `{names[1]}` have the same settings, so they would share their attempts"
        hint = "remove one of them, or change a setting that can change an answer"
        raise UserError(what, where=study.where, hint=hint)


def _check_models(study: StudySpec) -> None:
    """Ask each model and each method once whether it is ready, and the first method whether it
    suits the model.
    """
    seen = set[int]()
    for cell in study.cells:
        with error_at(f"{study.where}: model `{cell.label.model}`"):
            if cell.model.concurrency < 1:
                raise UserError(f"concurrency must be at least 1, not {cell.model.concurrency}")
            if cell.methods:
                cell.methods[0].check(cell.model, cell.task)
        asked: list[Model | Method] = [cell.model, *cell.methods]
        for plugin in asked:
            if id(plugin) not in seen:
                seen.add(id(plugin))
                with error_at(f"{study.where}: model `{cell.label.model}`"):
                    plugin.ready()
        if not study.chooses_sizes:  # such a run may never get to this size
            with error_at(
                f"{study.where}: model `{cell.label.model}`, task `{cell.label.task}`, size {cell.size}"
            ):
                _check_prompts(cell)


def _check_prompts(cell: StudyCell) -> None:
    """Whether the methods have room for the first prompt of each problem; of problems that are
    generated, for some.
    """
    for method in cell.methods:
        if isinstance(method, ChecksPrompts):
            for problem in some_problems(cell):
                method.check_prompt(cell.model, Request.first_turn(cell.task, problem))


def some_problems(cell: StudyCell) -> Iterator[Problem]:
    """Yield every problem of a fixed set, or as many generated ones as a fraction of a second
    allows.
    """
    started = monotonic()
    for n, problem in enumerate(cell.asked()):
        if cell.task.fixed() is None and n:
            out_of_time = monotonic() - started > SOME_SECONDS
            if n >= SOME_PROBLEMS or out_of_time:
                return
        yield problem


def _by_task(cells: Sequence[StudyCell]) -> list[list[StudyCell]]:
    tasks: dict[bytes, list[StudyCell]] = {}
    for cell in cells:
        tasks.setdefault(cell.task_key, []).append(cell)
    return list(tasks.values())


def _check_problem(cell: StudyCell) -> None:
    """Make the first problem, in a thread that is left behind if it takes too long."""
    errors = []

    def make() -> None:
        try:
            next(cell.asked(), None)
        except BaseException as error:  # raised again below
            errors.append(error)

    thread = threading.Thread(target=make, daemon=True)
    thread.start()
    thread.join(SECONDS)
    if thread.is_alive():
        what = f"making one problem of size {cell.size:,} takes more than {SECONDS:g} s"
        raise UserError(what, hint="choose smaller sizes")
    if errors:
        raise errors[0]


@dataclass
class _Declared:
    """What a figure's source says about it."""

    hints: dict[str, Any] = field(default_factory=dict)
    defaults: dict[str, Any] = field(default_factory=dict)
    required: list[str] = field(default_factory=list)
    needs: Mapping[str, str] = field(default_factory=dict)


def _check_figure(study: StudySpec, table: Table, where: Location) -> None:
    check_name("figures", table, where)
    name = table["name"]
    declared = _declared(name, study, where)
    if declared is None:  # not a plain subclass of Figure in a file
        build("figures", table, where, study.folder, elsewhere=study.place)
        return
    settings = {key: value for key, value in table.items() if key != "name"}
    for variant, _ in variants(settings, where, declared.hints):
        owner = f"figure `{name}`"
        check_keys(variant, declared.hints, declared.required, owner, where, elsewhere=study.place)
        for key, value in variant.items():
            convert(value, declared.hints[key], where / key, study.folder)
        _check_needs(study.cells, {**declared.defaults, **variant}, declared, owner, where)


def _declared(name: str, study: StudySpec, where: Location) -> _Declared | None:
    """A figure's keys with their types and defaults, and its `needs`; None if its source doesn't
    show them.
    """
    with error_at(where / "name"):
        source = plugins.source("figures", name, base(name, study.folder))
    if source is None:
        return None
    with error_at(where / "name"):
        classes = [node for node in _parsed(source) if isinstance(node, ast.ClassDef)]
    figures = [cls for cls in classes if [ast.unparse(base) for base in cls.bases] == ["Figure"]]
    if len(figures) != 1:
        return None
    labels = dict.fromkeys(cell.label.variant for cell in study.cells)
    declared = _Declared()
    for node in figures[0].body:
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            continue
        key, annotation = node.target.id, ast.unparse(node.annotation)
        if key == "needs" and node.value:
            declared.needs = ast.literal_eval(node.value)
        elif not annotation.startswith("ClassVar"):
            declared.hints[key] = _type(annotation, ModelLabel=Literal["", *labels])
            declared.defaults |= _default(key, node.value)
            declared.required += [] if node.value else [key]
    return declared


def _parsed(source: Path) -> list[ast.stmt]:
    try:
        return ast.parse(source.read_text("utf-8")).body
    except (SyntaxError, UnicodeDecodeError, ValueError) as error:
        place = f"{source}:{error.lineno}" if isinstance(error, SyntaxError) else str(source)
        raise UserError(
            f"it can't be imported: {type(error).__name__}: {error}", where=place
        ) from None


def _type(annotation: str, **names: Any) -> Any:
    """Return the type that an annotation means, if it is one that a study can hold."""
    try:
        known = {"Any": Any, "ClassVar": ClassVar, "Literal": Literal, **names}
        return get_type_hints(type("_", (), {"__annotations__": {"it": annotation}}), known)["it"]
    except NameError:
        return Any


def _default(key: str, value: ast.expr | None) -> dict[str, Any]:
    try:
        return {} if value is None else {key: ast.literal_eval(value)}
    except ValueError:  # not a literal, such as a call of `renamed`
        return {}


def _check_needs(
    cells: Sequence[StudyCell], settings: Table, declared: _Declared, owner: str, where: Location
) -> None:
    """Whether some cell has all that the figure draws.

    A need that is the name of a key stands for the key's value.
    """
    named = {str(settings.get(need, need)): hint for need, hint in declared.needs.items()}
    if not named:
        return
    missing = dict(named)
    recorded = set[str]()
    for part in _by_task(cells):
        for cell in {cell.model_key: cell for cell in reversed(part)}.values():
            there = _recorded(cell)
            if there is None or not (
                lacks := {name: hint for name, hint in named.items() if name not in there}
            ):
                return
            missing = min(missing, lacks, key=len)
            recorded |= there
    name, hint = next(iter(missing.items()))
    # the user's word for it
    if recorded and name not in {*declared.needs, *map(str, declared.defaults.values())}:
        hint = plugins.nearest(name, recorded)
    raise UserError(
        f"{owner} draws `{name}`, which no attempt of this study records", where=where, hint=hint
    )


def _recorded(cell: StudyCell) -> set[str] | None:
    """The settings and details that a cell's outcomes have; None if a plugin from elsewhere may add
    some.
    """
    asked: list[Model | Method] = [cell.model, *cell.methods]
    if not all(type(plugin).__module__.startswith("ponder.") for plugin in asked):
        return None
    names = {
        name for plugin in asked if isinstance(plugin, Measuring) for name in plugin.measures()
    }
    for use in cell.chain:
        given = [key for key, value in use.settings.items() if value is not None]
        names |= {*given, *(f"{use.name}.{key}" for key in given)}
    return names | set(_details(cell))


def _details(cell: StudyCell) -> Iterator[str]:
    """Yield the details that the task's grader records of a right answer to the first problem."""
    for problem in cell.asked():
        yield from grade_turns(cell.task, problem, solve_turns(cell.task, problem)).details
        return
