"""Attempts that nobody made: outcomes of cells whose task, model and methods have any names and
settings.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import make_dataclass, replace
from functools import cache
from typing import Any

from ponder.core import (
    Cell,
    Completion,
    Grade,
    Label,
    Method,
    Model,
    Outcome,
    Prepared,
    Prices,
    Problem,
    Progress,
    Request,
    Task,
)
from ponder.figures._variants import by_variant
from ponder.stats.frontier import Variants, variants


class MadeUpTask(Task):
    def problem(self, size: int, seed: int) -> Problem:
        return Problem(f"{size}/{seed}", size, ("?",))

    def solve(self, problem: Problem) -> str:
        return "!"

    def grade(self, problem: Problem, answer: str) -> Grade:
        return Grade(answer == "!", answer)


class MadeUpModel(Model):
    async def complete(self, request: Request) -> Completion:
        raise NotImplementedError


class MadeUpMethod(Prepared, Method):
    def make(self, model: Model) -> Iterator[Progress]:
        yield from ()

    def apply(self, model: Model) -> Model:
        return model

    def training_seed(self) -> int | None:
        return getattr(self, "seed", None)


@cache
def _kind(base: type, name: str, fields: tuple[str, ...], unit: str) -> Any:
    namespace = (
        {"plugin_name": classmethod(lambda cls: name), "unit": unit} if base is MadeUpTask else {}
    )
    namespace["plugin_name"] = classmethod(lambda cls: name)
    return make_dataclass(
        f"MadeUp{name}",
        [(f, Any) for f in fields],
        bases=(base,),
        namespace=namespace,
        kw_only=True,
    )


def _plugin(base: type, name: str, settings: Mapping[str, Any], unit: str = "") -> Any:
    plain = {key: value for key, value in settings.items() if key != "name"}
    return _kind(base, name, tuple(plain), unit)(**plain)


_cells: dict[str, Cell] = {}


def cell(
    task: str = "t",
    model: str = "m",
    size: int = 8,
    methods: Sequence[tuple[str, Mapping[str, Any]]] = (),
    *,
    task_settings: Mapping[str, Any] | None = None,
    model_settings: Mapping[str, Any] | None = None,
    unit: str = "",
) -> Cell:
    """One object for each combination, as the store gives it."""
    asked = repr((task, model, size, methods, task_settings, model_settings, unit))
    if asked not in _cells:
        _cells[asked] = Cell(
            _plugin(MadeUpTask, (task_settings or {}).get("name", task), task_settings or {}, unit),
            size,
            _plugin(MadeUpModel, (model_settings or {}).get("name", model), model_settings or {}),
            tuple(_plugin(MadeUpMethod, name, settings) for name, settings in methods),
        )
    return _cells[asked]


def outcome(
    task: str = "t",
    model: str = "m",
    size: int = 8,
    problem: str = "p0",
    ended: str = "right",
    *,
    methods: Sequence[tuple[str, Mapping[str, Any]]] = (),
    label: Mapping[str, str] | None = None,
    task_settings: Mapping[str, Any] | None = None,
    model_settings: Mapping[str, Any] | None = None,
    unit: str = "",
    **columns: Any,
) -> Outcome:
    """An attempt.

    `model` is the base model; a study's labels are made from the methods' settings unless given.
    """
    asked = cell(
        task,
        model,
        size,
        methods,
        task_settings=task_settings,
        model_settings=model_settings,
        unit=unit,
    )
    texts, seedless = [], []
    for name, settings in methods:
        texts.append(" ".join([name, *(f"{k}={v}" for k, v in settings.items())]))
        seedless.append(" ".join([name, *(f"{k}={v}" for k, v in settings.items() if k != "seed")]))
    names = {
        "task": task,
        "base": model,
        "model": " + ".join([model, *texts]),
        "variant": " + ".join([model, *seedless]),
        "methods": " + ".join(seedless),
    }
    values: dict[str, Any] = {
        "sample": 0,
        "why": "",
        "prompt_tokens": 5,
        "thinking_tokens": 50,
        "answer_tokens": 2,
        "seconds": 0.1,
        "counted_by": "tokenizer",
        "details": {},
    }
    return Outcome(
        cell=asked,
        label=Label(**names | (label or {})),
        problem=problem,
        ended=ended,
        **values | columns,
    )


def variants_of(outcomes: Sequence[Outcome]) -> Variants:
    """The variants of attempts at one task."""
    return variants(by_variant(outcomes))


def changed(
    o: Outcome,
    *,
    task: str = "",
    model: str = "",
    size: int | None = None,
    unit: str | None = None,
    **columns: Any,
) -> Outcome:
    """The same attempt in another cell: at a task or by a model of another name, of another size or
    unit.
    """
    asked, label = o.cell, o.label
    if task or unit is not None:
        settings = {
            key: value
            for key, value in asked.task_settings.items()
            if key not in ("remember", "window")
        }
        name = task or asked.task.plugin_name()
        asked = replace(
            asked,
            task=_plugin(MadeUpTask, name, settings, asked.task.unit if unit is None else unit),
        )
        label = replace(label, task=task or label.task)
    if model:
        asked = replace(asked, model=_plugin(MadeUpModel, model, asked.model_settings))
        label = Label(
            label.task,
            model,
            " + ".join(filter(None, (model, label.methods))),
            model,
            label.methods,
        )
    if size is not None:
        asked = replace(asked, size=size)
    return o._replace(
        cell=_cells.setdefault(f"{asked.key.hex()} {asked.task.unit}", asked),
        label=label,
        **columns,
    )


def priced(outcomes: Sequence[Outcome], prices: Prices | None) -> list[Outcome]:
    """The same attempts by models with these prices."""
    cells: dict[int, Cell] = {}
    found = []
    for o in outcomes:
        if id(o.cell) not in cells:
            cells[id(o.cell)] = replace(o.cell, model=replace(o.cell.model, prices=prices))
        found.append(o._replace(cell=cells[id(o.cell)]))
    return found


def settings_of(o: Outcome, method: str) -> Mapping[str, Any]:
    """The settings of a method; {} if there is none of this name."""
    return next((use.settings for use in o.cell.chain if use.name == method), {})
