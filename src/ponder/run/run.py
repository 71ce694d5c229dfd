"""Runs a study: asks its models, grades their answers and stores the attempts.

One loop serves every kind of model. A run keeps `concurrency` attempts of a model in progress,
grades each answer as it arrives, and stores it. Models that wait for different servers run at the
same time. A run asks only what the store doesn't hold, so running a study again resumes it. Memory
doesn't grow with the number of attempts: problems are generated as they are asked, and texts are
dropped once they are stored.
"""

from __future__ import annotations

import asyncio
import copy
import itertools
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack
from time import monotonic
from typing import TYPE_CHECKING, Any

from ponder.core import Attempt, Batched, Model, Problem, Served, UserError, error_at
from ponder.core.capabilities import judge_of_task
from ponder.core.wrapped import making_cost, server_of
from ponder.run import caps
from ponder.run.attempt import PendingAttempt, Run, ask
from ponder.run.caps import LedgerTill
from ponder.run.executors import Executor
from ponder.run.interrupt import Stop, Stopped
from ponder.run.jobs import OpenRequests, StoredJobs
from ponder.run.prepare import Preparations
from ponder.run.progress import Tally
from ponder.store.store import Store
from ponder.store.writer import Writer
from ponder.study.cell import StudyCell
from ponder.study.study import StudySpec

if TYPE_CHECKING:
    from ponder.run.adaptive import Rounds

CHUNK = 256  # attempts generated at once,
CHUNK_SECONDS = 0.2  # or fewer, if they take long
# A run stops after this many failures in a row plus `concurrency`: then the endpoint is down, not
# busy.
FAILURES_IN_A_ROW = 25


async def run(
    study: StudySpec,
    store: Store,
    tally: Tally,
    stop: Stop | None = None,
    cells: Sequence[StudyCell] | None = None,
    executor: Executor | None = None,
    trials: Sequence[Rounds] = (),
) -> None:
    """Make the attempts of the study, or of `cells`, that the store lacks, under its caps.

    `trials` decide what is asked of adaptive cells, instead of the study's `stop`.
    """
    if stop is None:
        stop = Stop()
    if cells is None:
        cells = study.cells
    caps.check(cells, study.max_tokens, study.max_cost)
    tally.stop = stop
    tally.currency = caps.currency(cells)
    tally.ledger = caps.opened_ledger(study, store)
    run_id = store.record_study(study)
    tally.writer = Writer(store, run_id, tally.ledger.recorded)
    async with tally.writer as writer:
        till = LedgerTill(tally.ledger, writer.flush, tally.retried)
        preparations = Preparations(executor, stop, tally.report, till)
        if not trials:
            trials = _trials(study, cells)
        earlier = OpenRequests(store, tally.ledger, study.name)
        shared = Run(
            store,
            writer,
            tally,
            stop,
            preparations,
            earlier,
            executor,
            trials,
            where=study.where,
            study=study.name,
        )
        work = asyncio.create_task(_ask_everything(cells, shared))
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


def _trials(study: StudySpec, cells: Sequence[StudyCell]) -> Sequence[Rounds]:
    if not any(cell.quota.adaptive for cell in cells):
        return []
    from ponder.run.adaptive import trials  # imports NumPy, which other runs don't need

    return trials(study)


async def _ask_everything(cells: Sequence[StudyCell], run: Run) -> None:
    """Ask the study's models and judges."""
    await _check_servers(cells, run)
    async with AsyncExitStack() as stack:
        await _open_judges(cells, run, stack)
        await _ask_rounds(cells, run)


async def _open_judges(cells: Sequence[StudyCell], run: Run, stack: AsyncExitStack) -> None:
    """Open the judge of each task that the run still needs, once, and check that it answers."""
    for cell in cells:
        judge = judge_of_task(cell.task)
        if judge is None or id(judge) in run.judges or not _is_unfinished(cell, run.store):
            continue
        with error_at(f"{run.where}: judge of task `{cell.label.task}`"):
            # A copy, because tasks are sent to other processes, and an open model can't be.
            opened = await stack.enter_async_context(copy.copy(judge))
            if isinstance(opened, Served):
                await opened.reach()
        run.judges[id(judge)] = (opened, asyncio.Semaphore(judge.concurrency))


async def _ask_rounds(cells: Sequence[StudyCell], run: Run) -> None:
    """Ask fixed cells and what each model's trials decide, then trials across models."""
    across_models = [trial for trial in run.trials if trial.across_models]
    first = [cell for cell in cells if not (across_models and cell.quota.adaptive)]
    await _ask_models(first, run)
    for trial in across_models:
        for round_cells in _rounds_of(trial, run):
            await _ask_models(round_cells, run)


async def _check_servers(cells: Sequence[StudyCell], run: Run) -> None:
    """Check that every server the run still needs is reachable."""
    first_cells: dict[str, StudyCell] = {}
    for cell in cells:
        server = cell.model.server()
        if server and server not in first_cells and _is_unfinished(cell, run.store):
            first_cells[server] = cell
    for cell in first_cells.values():
        model = cell.model
        if isinstance(model, Served):
            with run.at(cell):
                async with model:
                    await model.reach()


def _is_unfinished(cell: StudyCell, store: Store) -> bool:
    quota = cell.quota
    if quota.adaptive:
        return True
    problems = quota.problems
    if problems is None:
        problems = sum(1 for _ in cell.asked())
    return not _is_done(cell, problems, store.done(cell))


def _is_done(cell: StudyCell, problems: int, done: set[tuple[int, int]]) -> bool:
    """Return whether all of so many problems are done, or those at the quota's positions."""
    samples = cell.quota.samples
    if len(done) < problems * samples:
        return False
    positions: Sequence[int] = range(problems)
    if cell.quota.positions is not None:
        positions = cell.quota.positions
    return done.issuperset(itertools.product(positions, range(samples)))


def _rounds_of(trial: Rounds, run: Run) -> Iterator[list[StudyCell]]:
    """Yield the cells of each round of a trial until it ends or the run stops."""
    for cells, attempts in trial.rounds(run.store):
        if run.ledger.capped or run.stop.asked:
            return
        run.tally.planned += attempts
        yield cells


async def _ask_models(cells: Sequence[StudyCell], run: Run) -> None:
    """Ask models that wait for the same server one after another, others at the same time."""
    queues: dict[str, list[list[StudyCell]]] = {}
    to_prepare: list[StudyCell] = []  # while other models are asked
    for _, group in itertools.groupby(cells, key=lambda cell: cell.model_key):
        model_cells = list(group)
        cell = model_cells[0]
        queue = run.executor.queue(cell) if run.executor else cell.model.server()
        queues.setdefault(queue, []).append(model_cells)
        if run.executor and cell.methods:
            unfinished = [cell for cell in model_cells if _is_unfinished(cell, run.store)]
            to_prepare += unfinished[:1]

    async def ask_queue(models: list[list[StudyCell]]) -> None:
        for model_cells in models:
            if not run.stop.asked:
                with run.at(model_cells[0]):
                    await _ask_model(model_cells, run)

    async def prepare(cell: StudyCell) -> None:
        with run.at(cell):
            await run.preparations.model(cell)

    work = [prepare(cell) for cell in to_prepare]
    work += [ask_queue(models) for models in queues.values()]
    await _together(work, run.stop)


async def _ask_model(cells: list[StudyCell], run: Run) -> None:
    """Prepare, open and ask one model."""
    async with AsyncExitStack() as stack:
        model: Model | None = None
        for round_cells in _rounds(cells, run):
            attempts = _pending_attempts(round_cells, run)
            first = await asyncio.to_thread(next, attempts, None)
            if first is None:
                continue  # nothing to ask, so no weights are loaded and no connections opened
            if model is None:
                model = await _opened(cells, run, stack)
            for cell in round_cells:
                run.store.record_made(cell, making_cost(model, cell.task))
            feed = _Feed(itertools.chain([first], attempts), run.stop)
            failures = _Failures(model.concurrency)
            workers = [_work(model, feed, failures, run) for _ in range(model.concurrency)]
            await _together(workers, run.stop)
            await run.writer.flush()  # a trial decides by what is stored


def _rounds(cells: Sequence[StudyCell], run: Run) -> Iterator[list[StudyCell]]:
    """Yield cells to ask of one model together: the fixed ones, then rounds of its trials."""
    yield [cell for cell in cells if not cell.quota.adaptive]
    for trial in run.trials:
        if not trial.across_models and trial.arms[0][0].model_key == cells[0].model_key:
            yield from _rounds_of(trial, run)


async def _opened(cells: Sequence[StudyCell], run: Run, stack: AsyncExitStack) -> Model:
    """Return the model of these cells, prepared and open, in this process or in others."""
    cell = cells[0]
    model = await run.preparations.model(cell)
    hosted = run.executor.hosted(cells, model) if run.executor else model
    if hosted is model:
        await run.preparations.start(cell, model)
        _keep_jobs(model, cell, run)
        return await stack.enter_async_context(model)
    label = cell.label.model
    needs = cell.hosting.needs(cell.model)
    run.tally.report(label, {"model": label, "waits_for": needs.text()})
    try:
        return await run.stop.unless_asked(stack.enter_async_context(hosted))
    finally:
        run.tally.report(label, None)


def _keep_jobs(model: Model, cell: StudyCell, run: Run) -> None:
    """Have the batch jobs of a model remembered in the store."""
    server = server_of(model)
    if isinstance(server, Batched):
        study = run.study
        server.jobs = StoredJobs(run.earlier, run.writer, run.tally, study, cell.label.model)


async def _together(work: Iterable[Coroutine[Any, Any, None]], stop: Stop) -> None:
    """Do several things at the same time.

    After an error nothing new is started, and what is in progress goes on.
    """

    async def guarded(coroutine: Coroutine[Any, Any, None]) -> None:
        try:
            await coroutine
        except Stopped:
            pass
        except Exception as error:
            stop.ask(error)

    async with asyncio.TaskGroup() as group:
        for coroutine in work:
            group.create_task(guarded(coroutine))


async def _work(model: Model, feed: _Feed, failures: _Failures, run: Run) -> None:
    """Make one attempt after another until there are no more, or the run stops."""
    while not run.stop.asked and not run.ledger.capped:
        pending = await feed.next()
        if pending is None:
            return
        with run.at(pending.cell):
            attempt = await ask(model, pending, run)
            if attempt:
                run.tally.count(attempt)
                failures.count(attempt)


class _Failures:
    """Counts failures in a row, of one model."""

    def __init__(self, concurrency: int) -> None:
        self._most = FAILURES_IN_A_ROW + concurrency
        self._count = 0

    def count(self, attempt: Attempt) -> None:
        """Raise `UserError` if too many attempts in a row have failed."""
        if attempt.ended != "failed":
            self._count = 0
            return
        self._count += 1
        if self._count >= self._most:
            message = f"the last {self._count} attempts failed: {attempt.why}"
            hint = "check the endpoint or the model, then run again to resume"
            raise UserError(message, hint=hint)


def _pending_attempts(cells: Sequence[StudyCell], run: Run) -> Iterator[PendingAttempt]:
    for cell in cells:
        yield from pending(cell, run.store, run.tally)


def pending(cell: StudyCell, store: Store, tally: Tally) -> Iterator[PendingAttempt]:
    """Yield the attempts of a cell that the store doesn't hold."""
    quota = cell.quota
    done = store.done(cell)
    if quota.problems is not None and _is_done(cell, quota.problems, done):
        return  # without generating a problem: a large puzzle takes a second
    partial_turns = store.begun(cell)
    problems = 0
    for position, problem in cell.numbered():
        problems = position + 1
        missing = [sample for sample in range(quota.samples) if (position, sample) not in done]
        if missing:
            _check_problem_name(cell, position, problem, store)
        for sample in missing:
            turns = partial_turns.pop((position, sample), ())
            yield PendingAttempt(cell, position, problem, sample, turns)
    if quota.problems is not None and problems < quota.problems and cell.task.fixed() is None:
        tally.ran_out(cell.label.task, cell.size, problems, quota.problems, quota.samples)


def _check_problem_name(cell: StudyCell, position: int, problem: Problem, store: Store) -> None:
    """Raise `UserError` if the store has another problem at this position."""
    name = store.problem_name(cell, position)
    if name is None or name == problem.id:
        return
    generated = f"problem {position + 1} of size {cell.size} is `{problem.id}`"
    raise UserError(
        f"{generated}, but the store has `{name}` there",
        where=f"task `{cell.label.task}`",
        hint="a task that makes other problems needs another `version`, "
        "and the same seed the same problem",
    )


class _Feed:
    """Hands out attempts. Problems are generated in a thread: a slow one delays no answer."""

    def __init__(self, attempts: Iterator[PendingAttempt], stop: Stop) -> None:
        self._attempts = attempts
        self._stop = stop
        self._ready: list[PendingAttempt] = []
        self._lock = asyncio.Lock()

    async def next(self) -> PendingAttempt | None:
        """Return the next attempt to make; None if there are no more."""
        if not self._ready:
            async with self._lock:
                if not self._ready:
                    self._ready = await asyncio.to_thread(self._generate)
        return self._ready.pop() if self._ready else None

    def _generate(self) -> list[PendingAttempt]:
        """Return some attempts, the first one last."""
        attempts = []
        started = monotonic()
        for attempt in itertools.islice(self._attempts, CHUNK):
            attempts.append(attempt)
            if self._stop.asked or monotonic() - started > CHUNK_SECONDS:
                break
        attempts.reverse()
        return attempts
