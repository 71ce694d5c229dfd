"""Runs a study: asks its models, grades their answers and stores the attempts. One loop serves every kind of model.

A run keeps `concurrency` attempts of a model in progress, grades each answer as it arrives, and stores it. Models that
wait for different servers run at the same time. A run asks only what the store doesn't hold, so running a study again
resumes it. Memory doesn't grow with the number of attempts: problems are generated as they are asked, and texts are
dropped once they are stored.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Coroutine, Hashable, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from ponder.core import (
    Attempt,
    Bill,
    Completion,
    Message,
    Model,
    ModelFailure,
    Problem,
    Request,
    Retry,
    Status,
    Task,
    UserError,
)
from ponder.runner import ledger
from ponder.runner.cells import Cell
from ponder.runner.ledger import Claim, Ledger, Money
from ponder.runner.stop import Stop
from ponder.runner.store import Done, Store
from ponder.runner.study import Study
from ponder.runner.tally import Tally
from ponder.runner.writer import Writer

CHUNK = 256  # jobs generated at once
# A run stops after this many failures in a row plus `concurrency`: the endpoint is then down, not busy.
FAILURES_IN_A_ROW = 25
LONG = 10_000  # characters, which take a millisecond at worst; longer answers are graded in a thread


class Job(NamedTuple):
    """An attempt to make."""

    cell: Cell
    position: int  # of the problem in the cell's fixed order of problems
    problem: Problem
    sample: int
    begun: tuple[Completion, ...] = ()  # turns that an earlier run has finished

    @property
    def kind(self) -> Hashable:
        """Which conversations take about as many tokens; None for a single turn."""
        cell = self.cell
        return (cell.model_label, cell.task_label, cell.size) if len(self.problem.turns) > 1 else None


@dataclass
class Run:
    """What the parts of a run share."""

    store: Store
    writer: Writer
    tally: Tally
    stop: Stop

    @property
    def ledger(self) -> Ledger:
        return self.tally.ledger


def pending(cell: Cell, store: Store) -> Iterator[Job]:
    """The attempts of a cell that the store doesn't hold."""
    done = store.done(cell)
    if cell.problems is not None and len(done) >= cell.problems * cell.samples:
        wanted = itertools.product(range(cell.problems), range(cell.samples))
        if done.issuperset(wanted):
            return  # without generating a problem: a large puzzle takes a second
    begun = store.begun(cell)
    for position, problem in enumerate(cell.asked()):
        for sample in range(cell.samples):
            if (position, sample) not in done:
                yield Job(cell, position, problem, sample, begun.pop((position, sample), ()))


async def run(
    study: Study, store: Store, tally: Tally, stop: Stop | None = None, cells: Sequence[Cell] | None = None
) -> None:
    """Ask whatever the study asks for and the store doesn't hold, within the study's caps; or only these cells."""
    stop, cells = stop or Stop(), study.cells if cells is None else cells
    ledger.check(cells, study.max_tokens, study.max_cost)
    before = store.spent_by_runs(study.name) if study.cap_per == "study" else (0, 0.0)
    tally.stop = stop
    tally.ledger, tally.currency = (
        Ledger(study.max_tokens, study.max_cost, Money(*before)),
        ledger.currency(cells),
    )
    run_id = store.record_study(study)
    async with Writer(store, run_id, tally.ledger.recorded) as writer:
        work = asyncio.create_task(_all_lanes(cells, Run(store, writer, tally, stop)))
        timer = asyncio.create_task(stop.out_of_time())
        try:
            await asyncio.wait({work, timer}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            timer.cancel()
            work.cancel()
            await asyncio.wait({work})
    if stop.error:
        raise stop.error
    if not work.cancelled():
        work.result()


async def _all_lanes(cells: Sequence[Cell], run: Run) -> None:
    """Models that wait for the same server are asked one after another, others at the same time."""
    lanes: dict[str, list[list[Cell]]] = {}
    for _, group in itertools.groupby(cells, key=lambda cell: cell.model_label):
        of_one_model = list(group)
        lanes.setdefault(of_one_model[0].model.server(), []).append(of_one_model)

    async def lane(models: list[list[Cell]]) -> None:
        for of_one_model in models:
            if not run.stop.asked:
                await _one_model(of_one_model, run)

    await _together((lane(models) for models in lanes.values()), run.stop)


async def _one_model(cells: list[Cell], run: Run) -> None:
    """Make, open and ask one model."""
    async with AsyncExitStack() as stack:
        model: Model | None = None
        for asked in _rounds(cells, run):
            jobs = (job for cell in asked for job in pending(cell, run.store))
            if (first := await asyncio.to_thread(next, jobs, None)) is None:
                continue  # nothing to ask, so no weights are loaded and no connections opened
            if model is None:
                model = await stack.enter_async_context(await _made(asked[0], run))
                await model.reach()
            for cell in asked:
                run.store.record_made(cell, model.made(cell.task))
            feed, failures = _Feed(itertools.chain([first], jobs)), _Failures(model.concurrency)
            await _together((_work(model, feed, failures, run) for _ in range(model.concurrency)), run.stop)
            await run.writer.flush()  # a search decides by what is stored


async def _together(work: Iterable[Coroutine[Any, Any, None]], stop: Stop) -> None:
    """Do several things at the same time. After an error nothing new is started, and what is in progress goes on."""

    async def guarded(part: Coroutine[Any, Any, None]) -> None:
        try:
            await part
        except _Stopped:
            pass
        except Exception as error:
            stop.ask(error)

    async with asyncio.TaskGroup() as group:
        for part in work:
            group.create_task(guarded(part))


class _Stopped(Exception):
    """The run was asked to stop while a model was being made."""


async def _made(cell: Cell, run: Run) -> Model:
    """The cell's model, made in a thread. If the run is to stop, making stops at its next progress report."""
    tally, interrupted = run.tally, False

    def make() -> Model:
        making = cell.make_model()
        try:
            while not (interrupted or run.stop.asked):
                progress = next(making)
                tally.making = None if interrupted else progress
        except StopIteration as end:
            model: Model = end.value
            return model
        raise _Stopped

    try:
        return await asyncio.to_thread(make)
    finally:
        interrupted, tally.making = True, None


def _rounds(cells: Sequence[Cell], run: Run) -> Iterator[list[Cell]]:
    """Cells to ask of one model together: first those that are known beforehand, then what each search asks next."""
    yield [cell for cell in cells if cell.search is None]
    for _, group in itertools.groupby((c for c in cells if c.search), key=lambda cell: cell.task_label):
        candidates = {cell.size: cell for cell in group}
        search = next(iter(candidates.values())).search
        assert search is not None
        results: dict[int, tuple[int, int]] | None = None
        # If a round changed nothing, its attempts failed or the cap was reached, and the next would be the same.
        while results != (scores := {s: run.store.score(cell) for s, cell in candidates.items()}):
            if run.ledger.capped or run.stop.asked:
                return
            results = scores
            wanted = search.next(results)
            run.tally.planned += sum(n for _, n in wanted)
            if wanted:
                yield [replace(candidates[size], problems=results[size][1] + n) for size, n in wanted]


class _Failures:
    """Counts failures in a row, of one model."""

    def __init__(self, concurrency: int) -> None:
        self._most, self._count = FAILURES_IN_A_ROW + concurrency, 0

    def count(self, attempt: Attempt, job: Job) -> None:
        self._count = self._count + 1 if attempt.status == "failed" else 0
        if self._count >= self._most:
            what = f"the last {self._count} attempts failed: {attempt.why}"
            hint = "check the endpoint or the model, then run again to resume"
            raise UserError(what, where=job.cell.model_label, hint=hint)


async def _work(model: Model, feed: _Feed, failures: _Failures, run: Run) -> None:
    while not run.stop.asked and not run.ledger.capped and (job := await feed.next()):
        if attempt := await ask(model, job, run):
            run.tally.count(attempt)
            failures.count(attempt, job)


class _Feed:
    """Hands out jobs. They are generated in a thread, so that a slow puzzle delays no answer."""

    def __init__(self, jobs: Iterator[Job]) -> None:
        self._jobs = jobs
        self._ready: list[Job] = []
        self._lock = asyncio.Lock()

    async def next(self) -> Job | None:
        if not self._ready:
            async with self._lock:
                if not self._ready:
                    self._ready = await asyncio.to_thread(lambda: list(itertools.islice(self._jobs, CHUNK))[::-1])
        return self._ready.pop() if self._ready else None


async def ask(model: Model, job: Job, run: Run) -> Attempt | None:
    """Make one attempt: ask every turn, store each as it is answered, and grade the whole.

    None if the run stops between two turns, or if a cap leaves no room: a conversation can be resumed.
    """
    claim = run.ledger.open(model.prices, job.kind)
    attempt: Attempt | None = None
    try:
        attempt = await _ask(model, job, run, claim)
    finally:
        complete = attempt is not None and attempt.status != "failed" and not job.begun
        run.ledger.close(claim, job.kind, complete=complete)
    return attempt


async def _ask(model: Model, job: Job, run: Run, claim: Claim) -> Attempt | None:
    cell, problem = job.cell, job.problem
    replies, past = list[Completion](), list[Message]()
    attempt = Attempt(problem, job.sample, "open", False, "", ())
    for turn, text in enumerate(problem.turns):
        asked = Message("user", text)
        if turn < len(job.begun):
            replies.append(job.begun[turn])
        else:
            messages = (*problem.opening(), *cell.memory.visible(past), asked)
            seed = cell.attempt_seed(problem, job.sample, turn)
            try:
                request = Request(cell.task, problem, messages, seed, job.sample, turn)
                completion = await _call(model, cell, request, run, claim)
            except UserError:
                raise
            except Exception as error:  # a plugin that crashes has not answered either
                why = str(error) if isinstance(error, ModelFailure) else f"{type(error).__name__}: {error}"
                attempt = Attempt(problem, job.sample, "failed", False, why[:500], tuple(replies), problem.facts)
                await run.writer.put(Done(cell, job.position, attempt, stored=len(replies)))
                return attempt
            if completion is None:
                return None
            replies.append(_storable(completion))
            if turn + 1 < len(problem.turns):
                done = Done(cell, job.position, replace(attempt, completions=tuple(replies)), stored=turn)
                await run.writer.put(done)
        past += [asked, cell.memory.reply(cell.task, replies[-1])]
        if turn + 1 < len(problem.turns):
            # It is stored by now. Hundreds of turns of thinking, times the concurrency, would fill the memory.
            replies[-1] = replace(replies[-1], thinking="")
    attempt = replace(attempt, completions=tuple(replies))
    slow = cell.task.slow_grading or sum(len(reply.answer) for reply in replies) > LONG
    attempt = await asyncio.to_thread(graded, cell.task, attempt) if slow else graded(cell.task, attempt)
    await run.writer.put(Done(cell, job.position, attempt, stored=max(len(job.begun), len(replies) - 1)))
    return attempt


async def _call(model: Model, cell: Cell, request: Request, run: Run, claim: Claim) -> Completion | None:
    """One turn, once the caps have room for all that it may take; None if they never will, or the run stops."""
    limit = cell.turn_limit(request.prompt_limit, None)
    if not await run.ledger.reserve(claim, limit):
        return None
    if run.stop.asked:  # while it waited
        run.ledger.settle(claim, None)
        return None

    def on_retry(asked: Request, retry: Retry) -> None:
        run.tally.retried(retry)
        if retry.billed:
            run.ledger.lose(claim, model_limit(asked.prompt_limit, asked.budget))
        if retry.wait:
            run.ledger.check_room()

    model_limit = cell.model.turn_limit
    bill: Bill | None = None
    try:
        completion = await model.complete(replace(request, on_retry=on_retry))
        bill = completion.bill
        return completion
    except asyncio.CancelledError:
        run.ledger.lose(claim, limit)  # it was sent, so it may be billed
        raise
    except Exception as error:
        bill = error.bill if isinstance(error, ModelFailure) else None
        if bill is None and limit and limit.calls > 1:
            run.ledger.lose(claim, limit)  # nobody knows which of the calls were answered
        raise
    finally:
        run.ledger.settle(claim, bill)


def graded(task: Task, attempt: Attempt) -> Attempt:
    """The attempt with its grade. A truncated attempt is wrong: the user paid for it and got nothing."""
    grade = task.grade_turns(attempt.problem, [c.answer for c in attempt.completions])
    truncated = any(c.stop == "length" for c in attempt.completions)
    # A server that says why it gave no answer knows better than the grader, which saw an empty text.
    why = attempt.completions[-1].note if grade.parsed is None else ""
    status: Status = "truncated" if truncated else "unparsed" if grade.parsed is None else "graded"
    correct = grade.correct and status == "graded"
    details = {**grade.details, **_measured(attempt.completions)}
    return replace(attempt, status=status, correct=correct, why=why or grade.why, details=details)


def _measured(turns: Sequence[Completion]) -> dict[str, float]:
    """The model's measurements, averaged over the turns."""
    names = dict.fromkeys(name for turn in turns for name in turn.measures)
    return {name: sum(t.measures.get(name, 0.0) for t in turns) / len(turns) for name in names}


def grade_again(study: Study, store: Store) -> int:
    """Grade the stored answers of a study again with the current graders; returns how many grades changed."""
    changed = 0
    for cell in study.cells:
        changes = [
            done._replace(attempt=new)
            for done in store.attempts(cell)
            if _has_answer(done.attempt) and (new := graded(cell.task, done.attempt)) != done.attempt
        ]
        store.regrade(changes)
        changed += len(changes)
    return changed


def _has_answer(attempt: Attempt) -> bool:
    """Whether there is a text to grade. Of an empty reply the server said why, which a grader can't know."""
    return attempt.status != "failed" and any(c.answer for c in attempt.completions)


def _storable(completion: Completion) -> Completion:
    """The completion with text that UTF-8 can encode: a lone surrogate is replaced."""
    try:
        completion.thinking.encode()
        completion.answer.encode()
    except UnicodeEncodeError:
        thinking, answer = (t.encode("utf-8", "replace").decode() for t in (completion.thinking, completion.answer))
        return replace(completion, thinking=thinking, answer=answer)
    return completion
