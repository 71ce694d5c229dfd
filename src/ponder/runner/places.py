"""Where a run's heavy work is done: preparations, such as training, and models that hold weights.

By default both are done in the run's own process. `--jobs N` makes preparations in N processes of this machine, `--ray`
prepares and asks on a Ray cluster. How it is done is an option of a command, not a key of the study, because the same
study runs on a laptop and on a cluster; what a model needs there, `ray = { gpus = 4 }`, is a key of its [[model]].
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from ponder.core import Method, Model, Progress, UserError

if TYPE_CHECKING:
    from ponder.runner.cells import Cell

Report = Callable[[Progress], None]


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
        gpus = next((r.gpus for r in given if r.gpus is not None), model.gpus())
        cpus = next((r.cpus for r in given if r.cpus is not None), 1.0)
        return Resources(gpus, cpus)


class Place(Protocol):
    """Other processes that do a run's work."""

    jobs: int | None  # preparations made at once; None: as many as there is room for

    async def make(self, method: Method, model: Model, needs: Resources, report: Report) -> None:
        """Make what a method needs for a model. Cancelled, it ends the work."""

    def hosted(self, cells: Sequence[Cell], model: Model) -> Model:
        """The model of these cells as it is asked there; the model itself if it is asked here."""

    def lane(self, cell: Cell) -> str:
        """What a cell's model waits for, as `Model.server`."""


@contextmanager
def place(cells: Sequence[Cell], ray: str | None = None, jobs: int = 1) -> Iterator[Place | None]:
    """Where to work, while the block runs; None: in this process."""
    if jobs < 1:
        raise UserError(f"jobs must be at least 1, not {jobs}")
    if ray is not None:
        if jobs > 1:
            hint = "with --ray, as much is made at once as the cluster has room for"
            raise UserError("give --jobs or --ray, not both", hint=hint)
        from ponder.core.plugins import need

        need("ray", "--ray")
        from ponder.runner.cluster import Cluster

        with Cluster(ray, cells) as cluster:
            yield cluster
    elif jobs > 1:
        from ponder.runner.processes import Processes

        yield Processes(jobs)
    else:
        yield None
