"""Runs a study: asks its models, grades their answers and stores the attempts. One loop serves
every kind of model.

A run keeps `concurrency` attempts of a model in progress, grades each answer as it arrives, and
stores it. Models that wait for different servers run at the same time. A run asks only what the
store doesn't hold, so running a study again resumes it. Memory doesn't grow with the number of
attempts: problems are generated as they are asked, and texts are dropped once they are stored.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack
from time import monotonic
from typing import TYPE_CHECKING, Any

from ponder.core import Attempt, Model, Served, UserError
from ponder.core.wrapped import making_cost
from ponder.run import caps
from ponder.run.attempt import Job, Run, ask
from ponder.run.caps import LedgerTill
from ponder.run.executors import Executor
from ponder.run.interrupt import Stop, Stopped
from ponder.run.prepare import Preparations
from ponder.run.progress import Tally
from ponder.store.store import Store
from ponder.store.writer import Writer
from ponder.study.cell import StudyCell
from ponder.study.study import StudySpec

if TYPE_CHECKING:
    from ponder.run.adaptive import Trial

CHUNK = 256  # jobs generated at once,
CHUNK_SECONDS = 0.2  # or fewer, if they take long
# A run stops after this many failures in a row plus `concurrency`: the endpoint is then down, not
# busy.
FAILURES_IN_A_ROW = 25


def pending(cell: StudyCell, store: Store, tally: Tally) -> Iterator[Job]:
    """The attempts of a cell that the store doesn't hold."""
    done = store.done(cell)
    if cell.quota.problems is not None and len(done) >= cell.quota.problems * cell.quota.samples:
        positions = (
            range(cell.quota.problems) if cell.quota.positions is None else cell.quota.positions
        )
        wanted = itertools.product(positions, range(cell.quota.samples))
        if done.issuperset(wanted):
            return  # without generating a problem: a large puzzle takes a second
    begun, position = store.begun(cell), -1
    for position, problem in cell.numbered():
        wanted_samples = [
            sample for sample in range(cell.quota.samples) if (position, sample) not in done
        ]
        if wanted_samples and (name := store.problem_name(cell, position)) not in (
            None,
            problem.id,
        ):
            what = f"problem {position + 1} of size {cell.size} is `{problem.id}`, but the store has `{name}` there"
            hint = "a task that makes other problems needs another `version`, and the same seed the same problem"
            raise UserError(what, where=f"task `{cell.label.task}`", hint=hint)
        for sample in wanted_samples:
            yield Job(cell, position, problem, sample, begun.pop((position, sample), ()))
    if (
        cell.quota.problems is not None
        and position + 1 < cell.quota.problems
        and cell.task.fixed() is None
    ):
        tally.ran_out(
            cell.label.task, cell.size, position + 1, cell.quota.problems, cell.quota.samples
        )


async def run(
    study: StudySpec,
    store: Store,
    tally: Tally,
    stop: Stop | None = None,
    cells: Sequence[StudyCell] | None = None,
    executor: Executor | None = None,
) -> None:
    """Ask whatever the study asks for and the store doesn't hold, within the study's caps; or only
    these cells.
    """
    stop, cells = stop or Stop(), study.cells if cells is None else cells
    caps.check(cells, study.max_tokens, study.max_cost)
    tally.stop, tally.currency = stop, caps.currency(cells)
    tally.ledger = caps.opened_ledger(study, store)
    run_id = store.record_study(study)
    tally.writer = Writer(store, run_id, tally.ledger.recorded)
    async with tally.writer as writer:
        till = LedgerTill(tally.ledger, writer.flush, tally.retried)
        preparations = Preparations(executor, stop, tally.report, till)
        parts = Run(
            store, writer, tally, stop, preparations, executor, _trials(study, cells), study.where
        )
        work = asyncio.create_task(_everything(cells, parts))
        timer = asyncio.create_task(stop.out_of_time())
        try:
            # The writer ends early if nothing more can be stored; then nothing more should be
            # asked.
            await asyncio.wait({work, timer, writer.work}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            timer.cancel()
            work.cancel()
            await asyncio.wait({work})
    if stop.error:
        raise stop.error
    if not work.cancelled():
        work.result()


async def _reach(cells: Sequence[StudyCell], run: Run) -> None:
    """Look once at each server that something is still to be asked of, before anything is asked."""
    servers: dict[str, StudyCell] = {}
    for cell in cells:
        if (
            (server := cell.model.server())
            and server not in servers
            and _unfinished(cell, run.store)
        ):
            servers[server] = cell
    for cell in servers.values():
        model = cell.model
        if isinstance(model, Served):
            with run.at(cell):
                async with model:
                    await model.reach()


def _unfinished(cell: StudyCell, store: Store) -> bool:
    problems = sum(1 for _ in cell.asked()) if cell.quota.problems is None else cell.quota.problems
    return cell.quota.adaptive or len(store.done(cell)) < problems * cell.quota.samples


def _trials(study: StudySpec, cells: Sequence[StudyCell]) -> list[Trial]:
    if not any(cell.quota.adaptive for cell in cells):
        return []
    from ponder.run.adaptive import trials  # imports NumPy, which other runs don't need

    return trials(study)


async def _everything(cells: Sequence[StudyCell], run: Run) -> None:
    """Ask what is known beforehand and what each model's trials decide, then trials across models."""
    await _reach(cells, run)
    across = [trial for trial in run.trials if trial.across_models]
    await _all_lanes([cell for cell in cells if not (across and cell.quota.adaptive)], run)
    for trial in across:
        for asked in _decided(trial, run):
            await _all_lanes(asked, run)


def _decided(trial: Trial, run: Run) -> Iterator[list[StudyCell]]:
    """The rounds of a trial, counted as they are planned, until it ends or the run stops."""
    for cells, attempts in trial.rounds(run.store):
        if run.ledger.capped or run.stop.asked:
            return
        run.tally.planned += attempts
        yield cells


async def _all_lanes(cells: Sequence[StudyCell], run: Run) -> None:
    """Models that wait for the same server are asked one after another, others at the same time."""
    lanes: dict[str, list[list[StudyCell]]] = {}
    prepared: list[StudyCell] = []  # while other models are asked
    for _, group in itertools.groupby(cells, key=lambda cell: cell.model_key):
        of_one_model = list(group)
        lane = (
            run.executor.lane(of_one_model[0]) if run.executor else of_one_model[0].model.server()
        )
        lanes.setdefault(lane, []).append(of_one_model)
        prepared += next(
            ([c] for c in of_one_model if run.executor and c.methods and _unfinished(c, run.store)),
            [],
        )

    async def ask_in_turn(models: list[list[StudyCell]]) -> None:
        for of_one_model in models:
            if not run.stop.asked:
                with run.at(of_one_model[0]):
                    await _one_model(of_one_model, run)

    async def prepare(cell: StudyCell) -> None:
        with run.at(cell):
            await run.preparations.model(cell)

    await _together((*map(prepare, prepared), *map(ask_in_turn, lanes.values())), run.stop)


async def _one_model(cells: list[StudyCell], run: Run) -> None:
    """Make, open and ask one model."""
    async with AsyncExitStack() as stack:
        model: Model | None = None
        for asked in _rounds(cells, run):
            jobs = (job for cell in asked for job in pending(cell, run.store, run.tally))
            if (first := await asyncio.to_thread(next, jobs, None)) is None:
                continue  # nothing to ask, so no weights are loaded and no connections opened
            if model is None:
                model = await _opened(cells, run, stack)
            for cell in asked:
                run.store.record_made(cell, making_cost(model, cell.task))
            feed, failures = (
                _Feed(itertools.chain([first], jobs), run.stop),
                _Failures(model.concurrency),
            )
            await _together(
                (_work(model, feed, failures, run) for _ in range(model.concurrency)), run.stop
            )
            await run.writer.flush()  # a trial decides by what is stored


async def _opened(cells: Sequence[StudyCell], run: Run, stack: AsyncExitStack) -> Model:
    """The model of these cells, made and ready to be asked, here or elsewhere."""
    label, model = cells[0].label.model, await run.preparations.model(cells[0])
    if run.executor is None or (hosted := run.executor.hosted(cells, model)) is model:
        await run.preparations.start(cells[0], model)
        return await stack.enter_async_context(model)
    run.tally.report(
        label, {"model": label, "waits_for": cells[0].hosting.needs(cells[0].model).text()}
    )
    try:
        return await run.stop.unless_asked(stack.enter_async_context(hosted))
    finally:
        run.tally.report(label, None)


async def _together(work: Iterable[Coroutine[Any, Any, None]], stop: Stop) -> None:
    """Do several things at the same time.

    After an error nothing new is started, and what is in progress goes on.
    """

    async def guarded(part: Coroutine[Any, Any, None]) -> None:
        try:
            await part
        except Stopped:
            pass
        except Exception as error:
            stop.ask(error)

    async with asyncio.TaskGroup() as group:
        for part in work:
            group.create_task(guarded(part))


def _rounds(cells: Sequence[StudyCell], run: Run) -> Iterator[list[StudyCell]]:
    """Yield cells to ask of one model together: those known beforehand, then rounds of its trials."""
    yield [cell for cell in cells if not cell.quota.adaptive]
    for trial in run.trials:
        if not trial.across_models and trial.arms[0][0].model_key == cells[0].model_key:
            yield from _decided(trial, run)


class _Failures:
    """Counts failures in a row, of one model."""

    def __init__(self, concurrency: int) -> None:
        self._most, self._count = FAILURES_IN_A_ROW + concurrency, 0

    def count(self, attempt: Attempt) -> None:
        self._count = self._count + 1 if attempt.ended == "failed" else 0
        if self._count >= self._most:
            what = f"the last {self._count} attempts failed: {attempt.why}"
            hint = "check the endpoint or the model, then run again to resume"
            raise UserError(what, hint=hint)


async def _work(model: Model, feed: _Feed, failures: _Failures, run: Run) -> None:
    while not run.stop.asked and not run.ledger.capped and (job := await feed.next()):
        with run.at(job.cell):
            if attempt := await ask(model, job, run):
                run.tally.count(attempt)
                failures.count(attempt)


class _Feed:
    """Hands out jobs. They are generated in a thread, so that a slow puzzle delays no answer."""

    def __init__(self, jobs: Iterator[Job], stop: Stop) -> None:
        self._jobs, self._stop = jobs, stop
        self._ready: list[Job] = []
        self._lock = asyncio.Lock()

    async def next(self) -> Job | None:
        if not self._ready:
            async with self._lock:
                if not self._ready:
                    self._ready = await asyncio.to_thread(self._generate)
        return self._ready.pop() if self._ready else None

    def _generate(self) -> list[Job]:
        jobs, started = list[Job](), monotonic()
        for job in itertools.islice(self._jobs, CHUNK):
            jobs.append(job)
            if self._stop.asked or monotonic() - started > CHUNK_SECONDS:
                break
        return jobs[::-1]
