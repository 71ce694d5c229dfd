"""Cells: one model, under its methods, asked one task at one size. A study is a list of cells.

A cell's key identifies its attempts in the store, so what is in the key decides what is never asked twice.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ponder.core import Memory, Method, MethodUse, Model, Plugin, Problem, Progress, Task, digest, seed_from

if TYPE_CHECKING:
    from ponder.runner.search import Search


@dataclass(frozen=True)
class Cell:
    """One combination of task, size, model and methods, and how many attempts it has."""

    task: Task
    task_label: str
    size: int
    model: Model
    methods: tuple[Method, ...]
    base_label: str  # of the model without its methods
    model_label: str
    variant_label: str  # like `model_label`, without training seeds
    problems: int | None  # None: all that the task has
    samples: int
    seed: int
    memory: Memory
    search: Search | None = None  # decides whether this size is asked at all

    @cached_property
    def source(self) -> bytes:
        """Key of the problems: cells with the same source ask the same ones."""
        return digest(self.task.identity(), self.task.version, self.size, self.seed)

    @cached_property
    def key(self) -> bytes:
        """Key of the attempts, together with a problem's position and a sample's index."""
        memory = [asdict(self.memory)] if self.memory != Memory() else []
        return digest(self.source.hex(), self.model.identity(), [m.identity() for m in self.methods], *memory)

    @cached_property
    def methods_used(self) -> tuple[MethodUse, ...]:
        """The chain of methods with every setting, defaults included."""
        return tuple(MethodUse(m.plugin_name(), _settings(m)) for m in self.methods)

    @cached_property
    def training_seeds(self) -> tuple[int, ...]:
        seeds = (m.training_seed() for m in self.methods)
        return tuple(seed for seed in seeds if seed is not None)

    def spec(self) -> dict[str, Any]:
        """The cell as JSON, for the store."""
        task = {**self.task.identity(), "version": self.task.version, "size": self.size, "seed": self.seed}
        methods = [m.identity() for m in self.methods]
        return {"task": task, "model": self.model.identity(), "methods": methods, "memory": asdict(self.memory)}

    def asked(self) -> Iterator[Problem]:
        return itertools.islice(self.task.problems(self.size, self.seed), self.problems)

    def attempt_seed(self, problem: Problem, sample: int, turn: int) -> int:
        return seed_from(self.key.hex(), problem.id, sample, turn)

    def method_model(self, tell: Callable[[Progress], object] = bool) -> Model:
        """The model with its methods applied in the study's order; methods that train do so first."""
        model = self.model
        for method in self.methods:
            for progress in method.make(model):
                tell(progress)
            model = method.apply(model)
        return model


def _settings(method: Method) -> dict[str, Any]:
    fields = [f for f in dataclasses.fields(method) if not f.metadata.get("not_in_key")]  # type: ignore[arg-type]
    return {f.name: _plain(getattr(method, f.name)) for f in fields}


def _plain(value: Any) -> Any:
    return value.title() if isinstance(value, Plugin) else value
