"""Checks a study before anything is spent, for whatever its run or its report would fail on later.

Figures are parsed, not imported: Altair and NumPy take 0.3 s and 40 MB, which a run doesn't need
otherwise. A figure's source has what is checked: the types of its fields, and in `needs` the
settings and details that it draws.
"""

from __future__ import annotations

import ast
import contextlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_type_hints

from ponder.core import Batched, Method, Model, Problem, Request, UserError, error_at, plugins
from ponder.core.capabilities import (
    GRADER,
    JUDGED,
    LABEL,
    ChecksPrompts,
    Measuring,
    WithWarning,
    grade_turns,
    judge_of_task,
    solve_turns,
)
from ponder.core.errors import Location
from ponder.core.settings import Table, base, build, check_keys, check_name, convert, variants
from ponder.methods.prompt import prompted
from ponder.study.cell import StudyCell

if TYPE_CHECKING:
    from ponder.study.study import StudySpec

HOTTEST = 2  # the highest temperature that OpenAI's API and most others accept
SECONDS = 20.0  # limit on generating one problem; the slowest built-in one takes 2
SOME_PROBLEMS = 10  # generated problems of a size whose prompts are checked, at most
SOME_SECONDS = 0.1  # limit on generating these


def check(study: StudySpec) -> None:
    """Raise `UserError` if a model, a method, a problem or a figure of the study can't work."""
    _check_models(study)
    _check_identities(study)
    if study.stop_rule:
        with error_at(Location(study.where, "stop")):
            study.stop_rule.goal_of(study)
    if study.train:
        study.training_problems  # noqa: B018 builds the tasks of every [[train]]
    for cells in _by_task(study.cells):
        with error_at(study.where):
            _check_judge(cells[0])
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
        if not cell.model.server():
            continue
        temperature = getattr(cell.model, "temperature", None)
        if temperature is not None and temperature > HOTTEST:
            lines.append(
                f"model `{cell.label.base}` samples at temperature {temperature:g}; "
                f"most servers refuse more than {HOTTEST}"
            )
    lines += dict.fromkeys(_judges_itself(cell) for cell in study.cells)
    return [f"warning: {study.where}: {line}" for line in lines if line]


def _too_few(study: StudySpec, cells: Sequence[StudyCell]) -> str:
    """Return a warning if the study asks for more problems than a fixed set has."""
    cell = cells[0]
    if study.problems is None or cell.task.fixed() is None:
        return ""
    smallest = min(cells, key=lambda cell: cell.count)
    if smallest.count >= study.problems:
        return ""
    available = f"{smallest.count} problems"
    if len(cell.task.sizes()) > 1:
        available += f" of size {smallest.size}"
    return (
        f"problems = {study.problems}, but task `{cell.label.task}` has {available}; "
        "all of them are asked"
    )


def _check_identities(study: StudySpec) -> None:
    """Raise `UserError` if two cells have the same key: they would share their attempts."""
    cells: dict[bytes, StudyCell] = {}
    for cell in study.cells:
        earlier = cells.setdefault(cell.key, cell)
        if earlier is cell:
            continue
        if earlier.label.model != cell.label.model:
            names = f"models `{earlier.label.model}` and `{cell.label.model}`"
        else:
            names = f"tasks `{earlier.label.task}` and `{cell.label.task}`"
        raise UserError(
            f"{names} have the same settings, so they would share their attempts",
            where=study.where,
            hint="remove one of them, or change a setting that can change an answer",
        )


def _check_models(study: StudySpec) -> None:
    """Check that models and methods are ready, and that the first method suits its model."""
    checked = set[int]()  # by `id`: a plugin is shared by many cells
    for cell in study.cells:
        location = f"{study.where}: model `{cell.label.model}`"
        with error_at(location):
            if cell.model.concurrency < 1:
                raise UserError(f"concurrency must be at least 1, not {cell.model.concurrency}")
            if cell.methods:
                cell.methods[0].check(cell.model, cell.task)
            for plugin in _model_and_methods(cell):
                if id(plugin) not in checked:
                    checked.add(id(plugin))
                    plugin.ready()
        if not study.chooses_sizes:  # such a run may never get to this size
            with error_at(f"{location}, task `{cell.label.task}`, size {cell.size}"):
                _check_prompts(cell)


def _check_judge(cell: StudyCell) -> None:
    """Check that a task's judge is ready."""
    judge = judge_of_task(cell.task)
    if judge is None:
        return
    with error_at(f"judge of task `{cell.label.task}`"):
        judge.ready()
        if isinstance(judge, Batched) and judge.sends_batches():
            raise UserError(
                "a judge answers while the run waits, so it can't be asked in batch jobs",
                hint="remove `batch` from its table",
            )


def _judges_itself(cell: StudyCell) -> str:
    """Return a warning if a model judges its own replies."""
    judge = judge_of_task(cell.task)
    if judge is None or (judge.server(), judge.title()) != (
        cell.model.server(),
        cell.model.title(),
    ):
        return ""
    return (
        f"model `{cell.label.base}` judges its own replies in task `{cell.label.task}`, "
        "and models favour their own; name another `judge`, or check it with `labels`"
    )


def _model_and_methods(cell: StudyCell) -> list[Model | Method]:
    return [cell.model, *cell.methods]


def _check_prompts(cell: StudyCell) -> None:
    """Raise `UserError` if a method has no room for the first prompt of a problem."""
    for method in cell.methods:
        if isinstance(method, ChecksPrompts):
            for problem in some_problems(cell):
                request = prompted(cell.methods, Request.first_turn(cell.task, problem))
                method.check_prompt(cell.model, request)


def some_problems(cell: StudyCell) -> Iterator[Problem]:
    """Yield every problem of a fixed set, or as many as are generated in a fraction of a second."""
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
    """Generate the first problem, in a thread that is abandoned if it takes too long."""
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
        message = f"making one problem of size {cell.size:,} takes more than {SECONDS:g} s"
        raise UserError(message, hint="choose smaller sizes")
    if errors:
        raise errors[0]


@dataclass
class _Declaration:
    """The settings of a figure and what it needs, as its source has them."""

    hints: dict[str, Any] = field(default_factory=dict)
    defaults: dict[str, Any] = field(default_factory=dict)
    required: list[str] = field(default_factory=list)
    needs: Mapping[str, str] = field(default_factory=dict)


def _check_figure(study: StudySpec, table: Table, location: Location) -> None:
    check_name("figures", table, location)
    name = table["name"]
    figure = _declaration(name, study, location)
    if figure is None:  # not a plain subclass of Figure in a file
        build("figures", table, location, study.folder, elsewhere=study.place)
        return
    settings = {key: value for key, value in table.items() if key != "name"}
    for variant, _ in variants(settings, location, figure.hints):
        owner = f"figure `{name}`"
        check_keys(variant, figure.hints, figure.required, owner, location, elsewhere=study.place)
        for key, value in variant.items():
            convert(value, figure.hints[key], location / key, study.folder)
        _check_needs(study.cells, {**figure.defaults, **variant}, figure, owner, location)


def _declaration(name: str, study: StudySpec, location: Location) -> _Declaration | None:
    """Return what a figure's source declares, or None if it has no plain subclass of `Figure`."""
    with error_at(location / "name"):
        source = plugins.source("figures", name, base(name, study.folder))
        if source is None:
            return None
        statements = _parsed(source)
    classes = []
    for node in statements:
        if isinstance(node, ast.ClassDef):
            bases = [ast.unparse(base_class) for base_class in node.bases]
            if bases == ["Figure"]:
                classes.append(node)
    if len(classes) != 1:
        return None

    labels = dict.fromkeys(cell.label.variant for cell in study.cells)
    figure = _Declaration()
    for node in classes[0].body:
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            continue
        key = node.target.id
        annotation = ast.unparse(node.annotation)
        if key == "needs" and node.value:
            figure.needs = ast.literal_eval(node.value)
        elif not annotation.startswith("ClassVar"):
            figure.hints[key] = _type(annotation, ModelLabel=Literal["", *labels])
            if node.value is None:
                figure.required.append(key)
            else:
                # A default may be no literal, such as a call of `renamed`.
                with contextlib.suppress(ValueError):
                    figure.defaults[key] = ast.literal_eval(node.value)
    return figure


def _parsed(source: Path) -> list[ast.stmt]:
    try:
        return ast.parse(source.read_text("utf-8")).body
    except (SyntaxError, UnicodeDecodeError, ValueError) as error:
        line = str(source)
        if isinstance(error, SyntaxError):
            line = f"{source}:{error.lineno}"
        raise UserError(
            f"it can't be imported: {type(error).__name__}: {error}", where=line
        ) from None


def _type(annotation: str, **names: Any) -> Any:
    """Return the type that an annotation means, if it is one that a study can hold."""
    namespace = {"Any": Any, "ClassVar": ClassVar, "Literal": Literal, **names}
    holder = type("_", (), {"__annotations__": {"field": annotation}})
    try:
        return get_type_hints(holder, namespace)["field"]
    except NameError:
        return Any


def _check_needs(
    cells: Sequence[StudyCell],
    settings: Table,
    figure: _Declaration,
    owner: str,
    location: Location,
) -> None:
    """Raise `UserError` unless some cell records everything that the figure draws.

    A need that is the name of a key stands for the key's value.
    """
    needs = {str(settings.get(need, need)): hint for need, hint in figure.needs.items()}
    if not needs:
        return
    fewest_missing = list(needs)
    all_recorded = set[str]()
    for task_cells in _by_task(cells):
        for cell in {cell.model_key: cell for cell in reversed(task_cells)}.values():
            recorded = _recorded(cell)
            if recorded is None:
                return
            missing = [name for name in needs if name not in recorded]
            if not missing:
                return
            if len(missing) < len(fewest_missing):
                fewest_missing = missing
            all_recorded |= recorded
    name = fewest_missing[0]
    hint = needs[name]
    written_by_user = name not in figure.needs and name not in map(str, figure.defaults.values())
    if all_recorded and written_by_user:
        hint = plugins.nearest(name, all_recorded)
    raise UserError(
        f"{owner} draws `{name}`, which no attempt of this study records", where=location, hint=hint
    )


def _recorded(cell: StudyCell) -> set[str] | None:
    """Return the settings and details that a cell's outcomes have.

    None if that is unknown, because a plugin from a file of the user may record more.
    """
    names = set[str]()
    for plugin in _model_and_methods(cell):
        if not type(plugin).__module__.startswith("ponder."):
            return None
        if isinstance(plugin, Measuring):
            names.update(plugin.measures())
    for use in cell.chain:
        for key, value in use.settings.items():
            if value is not None:
                names.add(key)
                names.add(f"{use.name}.{key}")
    if judge_of_task(cell.task):
        return names | {GRADER, JUDGED, LABEL}
    problem = next(cell.asked(), None)
    if problem is not None:
        # the details that the task's grader records of a right answer
        grade = grade_turns(cell.task, problem, solve_turns(cell.task, problem))
        names.update(grade.details)
    return names
