"""Runs a study from its check to its end: what `ponder run`, `ponder plan --probe`, `ponder try`
and `Study.run` call.

`open_session` does everything before the first request: it checks the study, opens the store once,
and starts the processes that share the work. `Session.run` makes the attempts and shows a line of
progress.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ponder.core import UserError
from ponder.core.text import count
from ponder.run import progress
from ponder.run.executors import Executor, executing
from ponder.run.interrupt import Stop
from ponder.run.plan import counts, slow_warning
from ponder.run.progress import Tally, summary
from ponder.run.run import run
from ponder.store.store import Store
from ponder.study.cell import StudyCell
from ponder.study.prices import find_prices, price_lines, restore_prices
from ponder.study.study import StudySpec

if TYPE_CHECKING:
    from ponder.run.adaptive import Rounds


@dataclass(frozen=True)
class Session:
    """A run that is ready to start: its study is checked, and its store is open for writing."""

    study: StudySpec
    cells: Sequence[StudyCell]  # to ask
    store: Store
    # other processes that share the work; None: everything happens in this one
    executor: Executor | None
    tally: Tally
    trials: Sequence[Rounds] = ()  # what decides instead of the study's `stop`

    async def run(self, stop: Stop, *, show_progress: bool = True) -> None:
        """Make every attempt that the store lacks, within the study's caps, until `stop` says
        otherwise.
        """
        line: AbstractContextManager[None] = nullcontext()
        if show_progress:
            line = progress.shown(self.tally)
        with line:
            await run(
                self.study, self.store, self.tally, stop, self.cells, self.executor, self.trials
            )

    def write_progress(self) -> None:
        """Write the line of progress now."""
        progress.write(self.tally)


@contextmanager
def open_session(
    study: StudySpec,
    path: Path,
    notify: Callable[[str], object],
    *,
    cells: Sequence[StudyCell] | None = None,
    trials: Sequence[Rounds] = (),
    jobs: int = 1,
    ray: str | None = None,
    release_lost: bool = False,
    warn: bool = True,
) -> Iterator[Session]:
    """Check a study and open what a run of it needs, until the block ends.

    `cells` are asked instead of all cells of the study, and `trials` decide how much instead of its
    `stop`. `notify` prints a message to the user:
    warnings about the study, unless `warn` is false, and what was done if the run ends with a
    `UserError`.
    """
    study.check()
    if warn:
        for warning in study.warnings():
            notify(warning)
    if cells is None:
        cells = study.cells
    with Store(path, lock=True) as store:
        restore_prices(cells, store.found_prices(study.name))
        price_warnings = find_prices(cells)
        if warn:
            for warning in price_warnings:
                notify(warning)
            for line in price_lines(cells):
                notify(f"prices: {line}")
        if warn and ray is None and (warning := slow_warning(study, cells, store)):
            notify(warning)
        if release_lost:
            _release_lost(study, store, notify)
        planned, stored = counts(cells, store)
        tally = Tally(planned=planned, stored_before=stored)
        with executing(cells, ray, jobs) as executor:
            try:
                yield Session(study, cells, store, executor, tally, trials)
            except UserError:
                if done := work_done(tally):
                    notify(done)
                raise


def _release_lost(study: StudySpec, store: Store, notify: Callable[[str], object]) -> None:
    """Count as not spent what was in flight when runs of the study were killed."""
    tokens = store.held_by_runs(study.name)[0] + store.held_by_jobs(study.name)[0]
    in_jobs = 0
    for job in store.jobs():
        if job.study == study.name:
            in_jobs += len(job.requests)
    store.release_held(study.name)
    store.forget_jobs(study.name)
    notify(f"{tokens:,} tokens of calls in flight when runs were killed are counted as not spent")
    if in_jobs:
        notify(f"{count(in_jobs, 'request')} in batch jobs are forgotten, and asked again")


def work_done(tally: Tally) -> str:
    """Return what a run that ended early has done, and what went wrong in it; "" if it has done
    nothing.
    """
    lines = []
    if tally.done:
        line = f"{count(tally.stored, 'attempt')} made and stored"
        if tally.done > tally.stored:
            line += f", {tally.done - tally.stored:,} more were answered and not stored"
        lines.append(line)
    if troubles := summary(tally):
        lines.append(troubles)
    return "\n".join(lines)
