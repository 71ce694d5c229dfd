"""Where a run's heavy work is done: preparations, such as training, and models that hold weights.

By default both are done in the run's own process. `--jobs N` makes preparations in N processes of
this machine, `--ray` prepares and asks on a Ray cluster. How it is done is an option of a command,
not a key of the study, because the same study runs on a laptop and on a cluster; what a model needs
there, `ray = { gpus = 4 }`, is a key of its [[model]].
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from ponder.core import Method, Model, Progress, UserError

if TYPE_CHECKING:
    from ponder.run.caps import Account, Money
    from ponder.study.cell import Resources, StudyCell

Report = Callable[["Progress | Account"], None]


class Executor(Protocol):
    """Other processes that do a run's work: those of `--jobs`, or a Ray cluster."""

    jobs: int | None  # preparations made at once; None: as many as there is room for

    async def make(
        self,
        method: Method,
        model: Model,
        needs: Resources,
        report: Report,
        allowance: Money | None = None,
    ) -> None:
        """Make what a method needs for a model, within an allowance; None: without a cap.

        If cancelled, it ends the work. `report` is called with its progress, and at the end with
        what was spent.
        """

    def hosted(self, cells: Sequence[StudyCell], model: Model) -> Model:
        """Return a model that sends its requests to other processes, or `model` to call it in this one."""

    def queue(self, cell: StudyCell) -> str:
        """Return the queue of a cell's model: models with the same one are called one after another.

        Without an executor, this is `Model.server`.
        """


@contextmanager
def executing(
    cells: Sequence[StudyCell], ray: str | None = None, jobs: int = 1
) -> Iterator[Executor | None]:
    """Yield the executor that options name, open while the block runs; None: everything happens in
    this process.
    """
    if jobs < 1:
        raise UserError(f"jobs must be at least 1, not {jobs}")
    if ray is not None:
        if jobs > 1:
            hint = "with --ray, as much is made at once as the cluster has room for"
            raise UserError("give --jobs or --ray, not both", hint=hint)
        from ponder.core.plugins import need

        need("ray", "--ray")
        from ponder.run.ray_cluster import Cluster

        with Cluster(ray, cells) as cluster:
            yield cluster
    elif jobs > 1:
        from ponder.run.processes import Processes

        yield Processes(jobs)
    else:
        yield None
