"""Cells: a cell is one model with its methods, asked one task at one size. A study is a list of cells.

The store finds a cell's attempts by its key. Whatever is in the key makes another cell when it changes, with attempts
of its own; whatever is not in the key can change, and the stored attempts still count.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from ponder.core import (
    Memory,
    Method,
    MethodUse,
    Model,
    Plugin,
    Prepared,
    Problem,
    Task,
    TurnLimit,
    UserError,
    WithWeights,
    digest,
    seed_from,
)
from ponder.core.capabilities import training_seed

if TYPE_CHECKING:
    from ponder.stats.designs.max_size import Search


@dataclass(frozen=True)
class Resources:
    """What one process needs on a cluster: the key `ray` of a method. None: what its model needs."""

    gpus: float | None = None
    cpus: float | None = None

    def __post_init__(self) -> None:
        if (self.gpus or 0) < 0 or (self.cpus or 0) < 0:
            raise UserError("gpus and cpus can't be negative")

    def text(self) -> str:
        gpus = f"{self.gpus:g} GPU{'s' * (self.gpus != 1)}, " if self.gpus else ""
        return f"{gpus}{self.cpus or 0:g} CPU{'s' * (self.cpus != 1)}"


@dataclass(frozen=True)
class Hosting(Resources):
    """What each copy of a model needs on a cluster, and how many copies there are: the key `ray` of a [[model]]."""

    replicas: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.replicas < 1:
            raise UserError(f"replicas must be at least 1, not {self.replicas}")

    def needs(self, model: Model, method: Resources | None = None) -> Resources:
        """What asking the model needs, or making it by a method."""
        given = (method or self, self)
        of_model = model.gpus() if isinstance(model, WithWeights) else 0
        gpus = next((r.gpus for r in given if r.gpus is not None), of_model)
        cpus = next((r.cpus for r in given if r.cpus is not None), 1.0)
        return Resources(gpus, cpus)


@dataclass(frozen=True)
class Cell:
    """One combination of task, size, model and methods, and how many attempts it asks for."""

    task: Task
    task_label: str
    size: int
    model: Model
    methods: tuple[Method, ...]
    base_label: str  # the model without its methods
    model_label: str
    variant_label: str  # the model with its methods, without training seeds
    problems: int | None  # None: all that the task has
    samples: int
    seed: int
    memory: Memory
    search: Search | None = None  # if given, it decides how many attempts this size gets
    adaptive: bool = False  # whether the study's `stop` decides how many, up to these
    hosting: Hosting = field(default_factory=Hosting)  # what the model needs on a cluster
    making: tuple[Resources, ...] = ()  # what each method needs there, where it isn't what the model needs
    positions: tuple[int, ...] | None = None  # of the problems it asks, in this order; None: the first `problems`

    @cached_property
    def source(self) -> bytes:
        """Key of the problems: cells with the same source ask the same problems."""
        return digest(self.task.identity(), self.task.version, self.size, self.seed)

    @cached_property
    def key(self) -> bytes:
        """Key of the cell. With a problem's position and a sample's index it identifies an attempt."""
        memory = [asdict(self.memory)] if self.memory != Memory() else []
        return digest(self.source.hex(), self.model.identity(), [m.identity() for m in self.methods], *memory)

    @cached_property
    def methods_used(self) -> tuple[MethodUse, ...]:
        """The chain of methods with every setting, defaults included."""
        return tuple(MethodUse(m.plugin_name(), _of_method(m)) for m in self.methods)

    @cached_property
    def task_settings(self) -> Mapping[str, Any]:
        """The task's name and what the key holds of its settings, with `remember` and `window`."""
        return MappingProxyType(_settings(self.task) | asdict(self.memory))

    @cached_property
    def model_settings(self) -> Mapping[str, Any]:
        """The name of the model's plugin, and what the key holds of its settings."""
        return MappingProxyType(_settings(self.model))

    @cached_property
    def training_seeds(self) -> tuple[int, ...]:
        """One seed per method of the chain that trains."""
        seeds = map(training_seed, self.methods)
        return tuple(seed for seed in seeds if seed is not None)

    @cached_property
    def turn_limit(self) -> TurnLimit:
        """The most that one turn may take, with every call that the methods make."""
        limit: TurnLimit = self.model.turn_limit
        for method in self.methods:
            limit = method.turn_limit(limit)
        return limit

    @cached_property
    def reply_limit(self) -> int | None:
        """The most tokens that a reply has where later turns show it; None if there is no limit."""
        if self.memory.remember != "all":
            return self.model.max_tokens()
        turn = self.turn_limit(0, None)  # with all its thinking, also of a call before the last
        return turn and turn.completion_tokens

    def asks(self) -> list[Model]:
        """The other models that the methods ask, such as a judge."""
        return [model for method in self.methods for model in method.asks()]

    def prepared_by(self) -> list[Model]:
        """Return the models that preparations still have to ask, such as teachers."""
        prepared = [method for method in self.methods if isinstance(method, Prepared)]
        return [model for method in prepared for model in method.samplers(self.model)]

    def spec(self) -> dict[str, Any]:
        """What the key is made of, as JSON."""
        task = {**self.task.identity(), "version": self.task.version, "size": self.size, "seed": self.seed}
        methods = [m.identity() for m in self.methods]
        return {"task": task, "model": self.model.identity(), "methods": methods, "memory": asdict(self.memory)}

    @cached_property
    def count(self) -> int:
        """How many problems it asks for."""
        fixed = self.task.fixed()
        if fixed is None and self.problems:
            return self.problems
        if fixed is not None and self.task.sizes() == (self.size,):  # all of them, which needn't be read to be counted
            return len(fixed) if self.problems is None else min(self.problems, len(fixed))
        return sum(1 for _ in self.asked())

    def asked(self) -> Iterator[Problem]:
        """Return the problems of the cell, in the order in which they are asked."""
        return (problem for _, problem in self.numbered())

    def numbered(self) -> Iterator[tuple[int, Problem]]:
        """Return the problems of the cell with their positions in the task's fixed order, which the store keeps."""
        problems = enumerate(self.task.problems(self.size, self.seed))
        if self.positions is None:
            return itertools.islice(problems, self.problems)
        by_position = dict(problems)
        return ((position, by_position[position]) for position in self.positions)

    @cached_property
    def order(self) -> Sequence[int]:
        """Return the positions of the cell's problems in the order in which an adaptive run asks them.

        The order of a fixed set is random, because a file may be sorted by subject or difficulty, and the first
        problems of it then say little about the others. It depends on the study's seed alone: all models, and all
        tasks that are compared on the same file, are asked the same problems.
        """
        if self.task.fixed() is None:
            return range(self.count)
        return sorted(range(self.count), key=lambda position: seed_from("order", self.seed, position))

    def first(self, problems: int) -> Cell:
        """Return the cell with only the first problems that an adaptive run asks."""
        number = min(problems, self.count)
        positions = None
        if self.task.fixed() is not None:
            positions = tuple(self.order[:number])
        return dataclasses.replace(self, problems=number, positions=positions, adaptive=False)

    def attempt_seed(self, problem: Problem, sample: int, turn: int) -> int:
        """The seed of one request: different for every turn of every attempt."""
        return seed_from(self.key.hex(), problem.id, sample, turn)


def in_key(plugin: Plugin) -> dict[str, Any]:
    """The settings of a plugin that are part of an attempt's key, defaults included."""
    fields = dataclasses.fields(plugin)  # type: ignore[arg-type]
    return {f.name: getattr(plugin, f.name) for f in fields if not f.metadata.get("not_in_key")}


def _of_method(plugin: Plugin) -> dict[str, Any]:
    """Settings in the key. A plugin inside it is shown by its title, and has its own settings as `reward.size`.

    Of several plugins, such as teachers, each is shown by its label if it has one.
    """
    settings: dict[str, Any] = {}
    for name, value in in_key(plugin).items():
        if isinstance(value, tuple):
            settings[name] = tuple(getattr(one, "label", "") or described(one) for one in value)
        else:
            settings[name] = value.title() if isinstance(value, Plugin) else value
        if isinstance(value, Plugin):
            settings |= {f"{name}.{key}": inner for key, inner in _of_method(value).items()}
    return settings


def _settings(plugin: Plugin) -> dict[str, Any]:
    """What the key holds of a task or a model, defaults included, as JSON; a file by its path."""
    fields = dataclasses.fields(plugin)  # type: ignore[arg-type]
    known = {f.metadata.get("was") or f.name for f in fields if not f.metadata.get("not_in_key")}
    # What the key holds besides settings, such as a digest of the weights.
    more = {key: value for key, value in plugin.identity().items() if key not in known}
    return more | {name: _plain(value) for name, value in in_key(plugin).items()}


def _plain(value: Any) -> Any:
    """A setting's value as JSON."""
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(inner) for inner in value]
    value = described(value)
    if isinstance(value, float) and not math.isfinite(value):
        return None  # JSON has no infinity
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def described(value: Any) -> Any:
    """A plugin inside a plugin by its title and the settings that its title doesn't show; other values as they are."""
    if not isinstance(value, Plugin):
        return value
    defaults = {f.name: f.default for f in dataclasses.fields(value)}  # type: ignore[arg-type]
    title = value.title()
    changed = {name: str(_plain(one)) for name, one in in_key(value).items() if one != defaults[name]}
    return " ".join([title, *(f"{k}={text}" for k, text in changed.items() if text not in title and title not in text)])
