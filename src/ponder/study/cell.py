"""A study's cells: a `Cell` with its `Quota`, its label, and its resources on a cluster."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from ponder.core import Cell, Label, Model, Problem, UserError, WithWeights, seed_from


@dataclass(frozen=True)
class Resources:
    """What one process needs on a cluster: the key `ray` of a method.

    None: what its model needs.
    """

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
    """What each copy of a model needs on a cluster, and the number of copies.

    The key `ray` of a [[model]].
    """

    replicas: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.replicas < 1:
            raise UserError(f"replicas must be at least 1, not {self.replicas}")

    def needs(self, model: Model, method: Resources | None = None) -> Resources:
        """Return what asking the model needs, or making it by a method."""
        gpus: float = 0
        if isinstance(model, WithWeights):
            gpus = model.gpus()
        cpus = 1.0
        for resources in (self, method):
            if resources is not None and resources.gpus is not None:
                gpus = resources.gpus
            if resources is not None and resources.cpus is not None:
                cpus = resources.cpus
        return Resources(gpus, cpus)


@dataclass(frozen=True)
class Quota:
    """How often a cell is asked."""

    problems: int | None = None  # None: all that the task has
    samples: int = 1  # attempts per problem
    adaptive: bool = False  # whether the study's `stop` decides how many, up to these
    # of the problems, in this order; None: the first `problems`
    positions: tuple[int, ...] | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class StudyCell(Cell):
    """A cell as a study asks it."""

    label: Label
    quota: Quota = field(default_factory=Quota)
    hosting: Hosting = field(default_factory=Hosting)  # what the model needs on a cluster
    # what each method needs there, where it isn't what the model needs
    making: tuple[Resources, ...] = ()

    @cached_property
    def count(self) -> int:
        """How many problems it asks for."""
        problems = self.quota.problems
        fixed = self.task.fixed()
        if fixed is None and problems:
            return problems
        # all of them, which needn't be read to be counted
        if fixed is not None and self.task.sizes() == (self.size,):
            return len(fixed) if problems is None else min(problems, len(fixed))
        return sum(1 for _ in self.asked())

    def asked(self) -> Iterator[Problem]:
        """Return the problems of the cell, in the order in which they are asked."""
        return (problem for _, problem in self.numbered())

    def numbered(self) -> Iterator[tuple[int, Problem]]:
        """Return the problems of the cell with their positions in the task's fixed order."""
        problems = enumerate(self.task.problems(self.size, self.seed))
        if self.quota.positions is None:
            return itertools.islice(problems, self.quota.problems)
        by_position = dict(problems)
        return ((position, by_position[position]) for position in self.quota.positions)

    @cached_property
    def order(self) -> Sequence[int]:
        """Return the positions of the problems in the order in which an adaptive run asks them.

        The order of a fixed set is random, because a file may be sorted by subject or difficulty,
        and the first problems of it then say little about the others. It depends on the study's
        seed alone: all models, and all tasks that are compared on the same file, are asked the same
        problems.
        """
        if self.task.fixed() is None:
            return range(self.count)
        return sorted(
            range(self.count), key=lambda position: seed_from("order", self.seed, position)
        )

    def first(self, problems: int) -> StudyCell:
        """Return the cell with only the first problems that an adaptive run asks."""
        number = min(problems, self.count)
        positions = None
        if self.task.fixed() is not None:
            positions = tuple(self.order[:number])
        return self.with_quota(problems=number, positions=positions, adaptive=False)

    def with_quota(self, **changes: Any) -> StudyCell:
        """Return the cell with another quota."""
        return dataclasses.replace(self, quota=dataclasses.replace(self.quota, **changes))
