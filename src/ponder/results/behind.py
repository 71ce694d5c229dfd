"""Which attempts a row of a figure's table, or a mark of its chart, was estimated from.

A row names them by its columns: labels such as `series` or `panel`, a `size`, settings such as `window`, an `outcome`.
Each column that says something about attempts chooses cells; the row rests on the cells that all of them choose.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

from ponder.core import Attempt, Outcome
from ponder.study.cell import StudyCell

# How an attempt ended, in the words of the pages. A wrong answer is `graded` in the store, as a right one is.
ENDINGS = ("open", "right", "wrong", "unparsed", "truncated", "failed")
OUTCOMES = {"solved": "right", "wrong": "wrong", "unparsed": "unparsed", "truncated": "truncated"}  # as figures say it
LABELS = ("model", "task", "series", "panel", "variant", "base", "size")  # columns that name attempts
EXACT: dict[str, Callable[[StudyCell], Iterable[str]]] = {  # filters of a page, whose values are compared whole
    "model": lambda cell: (cell.label.model,),
    "method": lambda cell: [use.name for use in cell.chain] or ["none"],
    "task": lambda cell: (cell.label.task,),
    "size": lambda cell: (str(cell.size),),
}
OF_ATTEMPTS = ("ended", "problem", "id")  # filters that choose among the attempts of a cell
Choices: TypeAlias = tuple[tuple[str, str], ...]  # filters as names and values; a name given twice means either


class HasCells(Protocol):
    """A study, with room to remember what was worked out about it."""

    @property
    def cells(self) -> Sequence[StudyCell]: ...

    @property
    def memo(self) -> dict[str, Any]: ...


def ended(attempt: Attempt | Outcome) -> str:
    """How an attempt ended, as the pages say it."""
    return "right" if attempt.correct else "wrong" if attempt.status == "graded" else attempt.status


def behind(study: HasCells, row: Mapping[str, Any]) -> Choices | None:
    """The filters that choose the attempts which a row rests on; None if unknown, as for published numbers."""
    chosen: list[tuple[str, str]] = []
    named: list[bool] = []  # for each name of a series, whether attempts have it: those of published numbers don't
    for name, value in row.items():
        if name == "outcome" and value in OUTCOMES:
            chosen.append(("ended", OUTCOMES[value]))
        elif value not in (None, "") and (name in LABELS or any(name in own for own in settings_of(study))):
            found = matching(study, name, text(value))
            named += [bool(found)] if name in LABELS and name != "size" else []
            if found and len(found) < len(study.cells):
                chosen.append((name, text(value)))
    return tuple(dict.fromkeys(chosen)) if any(named) or (chosen and not named) else None


def chosen_cells(study: HasCells, chosen: Choices) -> tuple[set[int], tuple[str, ...]]:
    """The numbers of the cells that every filter admits, and the filters that none of them matches.

    What is no filter of the study (`not_filters`) chooses nothing.
    """
    admitted, unknown = set(range(len(study.cells))), []
    left_out = {*OF_ATTEMPTS, *not_filters(study, chosen)}
    for name in dict.fromkeys(name for name, _ in chosen if name not in left_out):
        values = [value for key, value in chosen if key == name]
        found = {value: matching(study, name, value) for value in values}
        unknown += [f"{name}={value}" for value in values if not found[value]]
        admitted &= set().union(*(cells for cells in found.values() if cells))
    return admitted, tuple(unknown)


def not_filters(study: HasCells, chosen: Choices) -> tuple[str, ...]:
    """The names that an address chooses by, though no attempt of the study has such a thing."""
    known = {*EXACT, *LABELS, *OF_ATTEMPTS}.union(*settings_of(study))
    return tuple(dict.fromkeys(name for name, _ in chosen if name not in known))


def matching(study: HasCells, name: str, value: str) -> set[int] | None:
    """The numbers of the cells that a column's value is about; None if it is about none, such as an estimate."""
    known: dict[tuple[str, str], set[int] | None] = study.memo.setdefault("matching", {})
    if (name, value) not in known:
        known[name, value] = _matching(study, name, value)
    return known[name, value]


def _matching(study: HasCells, name: str, value: str) -> set[int] | None:
    if name in EXACT:
        value = value.removesuffix(".0") if name == "size" else value
        return {n for n, cell in enumerate(study.cells) if value in EXACT[name](cell)}
    settings = settings_of(study)
    if any(name in of_cell for of_cell in settings):
        # Figures call a model without an eviction policy `full`.
        wanted = None if value == "full" and all(own.get(name) != "full" for own in settings) else value
        return {n for n, of_cell in enumerate(settings) if of_cell.get(name) == wanted} or None
    if name not in LABELS:
        return None
    parts = set(value.split(" | "))  # as figures join the names of a panel
    return {
        n for n, (cell, own) in enumerate(zip(study.cells, settings, strict=True)) if parts <= _names(cell, own)
    } or None


def settings_of(study: HasCells) -> list[dict[str, str]]:
    """The settings of each cell's task, model and methods, as text; of a method also as `compress.window`."""
    if "settings" not in study.memo:
        study.memo["settings"] = [dict(_settings(cell)) for cell in study.cells]
    settings: list[dict[str, str]] = study.memo["settings"]
    return settings


def _settings(cell: StudyCell) -> Iterator[tuple[str, str]]:
    for owner, settings in (("task", cell.task_settings), ("model", cell.model_settings), *cell.chain):
        for name, value in settings.items():
            if name != "name" and isinstance(value, str | int | float):
                yield name, text(value)
                yield f"{owner}.{name}", text(value)


def _names(cell: StudyCell, settings: Mapping[str, str]) -> set[str]:
    """What figures may call the attempts of a cell."""
    task, models = cell.label.task, (cell.label.model, cell.label.base, cell.label.variant)
    named = {*models, task, f"{task} {cell.size}", cell.task.plugin_name(), *(f"{model}, {task}" for model in models)}
    return named | {*settings.values()} | {f"{name}={value}" for name, value in settings.items()}


def text(value: Any) -> str:
    """A setting or a table's value as an address holds it."""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)
