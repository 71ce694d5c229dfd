"""Runs a study: asks its models, grades their answers and stores the attempts. One loop serves every kind of model.

A run keeps `concurrency` requests in progress, grades each answer as it arrives, and stores attempts in batches. It
asks only what the store doesn't hold, so running a study again resumes it. Memory doesn't grow with the number of
attempts: problems are generated as they are asked, and texts are dropped once they are stored.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import NamedTuple, Self

from ponder.core import (
    Attempt,
    Completion,
    Message,
    Model,
    ModelFailure,
    Problem,
    Progress,
    Request,
    Status,
    Task,
    UserError,
)
from ponder.runner.cells import Cell
from ponder.runner.store import Done, Store
from ponder.runner.study import Study

FLUSH_SECONDS = 0.25
FLUSH_ATTEMPTS = 512
CHUNK = 256  # jobs generated at once
# A run stops after this many failures in a row plus `concurrency`: the endpoint is then down, not busy.
FAILURES_IN_A_ROW = 25


class Job(NamedTuple):
    """An attempt to make."""

    cell: Cell
    position: int  # of the problem in the cell's fixed order of problems
    problem: Problem
    sample: int
    begun: tuple[Completion, ...] = ()  # turns that an earlier run has finished


@dataclass
class Tally:
    """What a run has done so far, and the most that it may spend."""

    planned: int = 0
    stored_before: int = 0
    right: int = 0
    wrong: int = 0
    unparsed: int = 0
    truncated: int = 0
    failed: int = 0
    tokens: int = 0
    cost: float = 0.0
    capped: bool = False
    max_tokens: int | None = None
    max_cost: float | None = None
    started: float = field(default_factory=monotonic)
    failures_in_a_row: int = 0
    making: Progress | None = None  # the last report of a training in progress

    @property
    def done(self) -> int:
        return self.right + self.wrong + self.unparsed + self.truncated + self.failed

    def count(self, attempt: Attempt, model: Model) -> None:
        kind = "right" if attempt.correct else "wrong" if attempt.status == "graded" else attempt.status
        setattr(self, kind, getattr(self, kind) + 1)
        bill = attempt.bill
        self.tokens += bill.tokens
        self.cost += model.prices.cost(bill) if model.prices else 0.0
        self.failures_in_a_row = self.failures_in_a_row + 1 if attempt.status == "failed" else 0

    def may_start(self, in_flight: int) -> bool:
        """Whether one more attempt fits under the cap if it and those in flight cost as much as the finished ones."""
        growth = (self.done + in_flight + 1) / max(1, self.done)
        over_tokens = self.max_tokens is not None and self.tokens * growth > self.max_tokens
        over_cost = self.max_cost is not None and self.cost * growth > self.max_cost
        # The first four attempts tell what one costs; until one of them has ended, no more are started.
        blind = self.done == 0 and in_flight >= 4 and (self.max_tokens is not None or self.max_cost is not None)
        self.capped = self.done > 0 and (over_tokens or over_cost)
        return not (self.capped or blind)


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


async def run(study: Study, store: Store, tally: Tally) -> None:
    """Ask whatever the study asks for and the store doesn't hold, within the study's cap."""
    tally.max_tokens, tally.max_cost = study.max_tokens, study.max_cost
    store.record_study(study)
    for _, cells in itertools.groupby(study.cells, key=lambda cell: cell.model_label):
        async with AsyncExitStack() as stack:
            model: Model | None = None
            for asked in _rounds(list(cells), store, tally):
                jobs = (job for cell in asked for job in pending(cell, store))
                if (first := next(jobs, None)) is None:
                    continue  # nothing to ask, so no weights are loaded and no connections opened
                if model is None:
                    model = await stack.enter_async_context(await _made(asked[0], tally))
                for cell in asked:
                    store.record_made(cell, model.made(cell.task))
                await _round(model, _Feed(itertools.chain([first], jobs), tally), store, tally)


async def _made(cell: Cell, tally: Tally) -> Model:
    """The cell's model, made in a thread. If the run is interrupted, making stops at its next progress report."""
    interrupted = False

    def make() -> Model:
        making = cell.make_model()
        try:
            while not interrupted:
                progress = next(making)
                tally.making = None if interrupted else progress
        except StopIteration as end:
            model: Model = end.value
            return model
        raise InterruptedError

    try:
        return await asyncio.to_thread(make)
    finally:
        interrupted, tally.making = True, None


def _rounds(cells: Sequence[Cell], store: Store, tally: Tally) -> Iterator[list[Cell]]:
    """Cells to ask of one model together: first those that are known beforehand, then what each search asks next."""
    yield [cell for cell in cells if cell.search is None]
    for _, group in itertools.groupby((c for c in cells if c.search), key=lambda cell: cell.task_label):
        candidates = {cell.size: cell for cell in group}
        search = next(iter(candidates.values())).search
        assert search is not None
        results: dict[int, tuple[int, int]] | None = None
        # If a round changed nothing, its attempts failed or the cap was reached, and the next would be the same.
        while results != (scores := {s: store.score(cell) for s, cell in candidates.items()}) and not tally.capped:
            results = scores
            wanted = search.next(results)
            tally.planned += sum(n for _, n in wanted)
            if wanted:
                yield [replace(candidates[size], problems=results[size][1] + n) for size, n in wanted]


async def _round(model: Model, feed: _Feed, store: Store, tally: Tally) -> None:
    try:
        async with _Writer(store) as writer, asyncio.TaskGroup() as group:
            for _ in range(model.concurrency):
                group.create_task(_work(model, feed, writer, tally))
    except BaseExceptionGroup as errors:
        raise _leaf(errors) from None


async def _work(model: Model, feed: _Feed, writer: _Writer, tally: Tally) -> None:
    while job := await feed.next():
        attempt = await ask(model, job, writer)
        feed.answered()
        tally.count(attempt, model)
        if tally.failures_in_a_row >= FAILURES_IN_A_ROW + model.concurrency:
            what = f"the last {tally.failures_in_a_row} attempts failed: {attempt.why}"
            raise UserError(
                what, where=job.cell.model_label, hint="check the endpoint or the model, then run again to resume"
            )


class _Feed:
    """Hands out jobs while the cap allows. They are generated in a thread, so that a slow puzzle delays no answer."""

    def __init__(self, jobs: Iterator[Job], tally: Tally) -> None:
        self._jobs, self._tally = jobs, tally
        self._ready: list[Job] = []
        self._lock = asyncio.Lock()
        self._in_flight = 0
        self._answered = asyncio.Event()

    async def next(self) -> Job | None:
        async with self._lock:
            while not self._tally.may_start(self._in_flight):
                if self._tally.capped:
                    return None
                self._answered.clear()
                await self._answered.wait()
            if not self._ready:
                self._ready = await asyncio.to_thread(lambda: list(itertools.islice(self._jobs, CHUNK))[::-1])
            if not self._ready:
                return None
            self._in_flight += 1
            return self._ready.pop()

    def answered(self) -> None:
        self._in_flight -= 1
        self._answered.set()


class _Writer:
    """Stores attempts in batches, in a thread. However the run ends, nothing that was answered is lost."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._batch: list[Done] = []
        self._ended = asyncio.Event()
        self._writing = asyncio.Lock()

    async def __aenter__(self) -> Self:
        self._clock = asyncio.create_task(self._tick())
        return self

    async def __aexit__(self, *error: object) -> None:
        self._ended.set()
        await self._clock

    async def put(self, done: Done) -> None:
        self._batch.append(done)
        if self._clock.done():
            await self._clock  # raises the error that ended it, such as a full disk
        if len(self._batch) >= FLUSH_ATTEMPTS:
            await self._flush()

    async def _tick(self) -> None:
        while not self._ended.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(self._ended.wait(), FLUSH_SECONDS)
            await self._flush()
        await self._flush()  # what arrived while the last batch was written

    async def _flush(self) -> None:
        # One batch at a time, so that a model which answers faster than the disk can write has to wait.
        async with self._writing:
            batch, self._batch = self._batch, []
            if batch:
                await asyncio.to_thread(self._store.add, batch)


async def ask(model: Model, job: Job, writer: _Writer) -> Attempt:
    """Make one attempt: ask every turn, store each as it is answered, and grade the whole."""
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
                completion = await model.complete(Request(cell.task, problem, messages, seed, job.sample, turn))
            except UserError:
                raise
            except Exception as error:  # a plugin that crashes has not answered either
                why = str(error) if isinstance(error, ModelFailure) else f"{type(error).__name__}: {error}"
                attempt = Attempt(problem, job.sample, "failed", False, why[:500], tuple(replies), problem.facts)
                await writer.put(Done(cell, job.position, attempt, stored=len(replies)))
                return attempt
            replies.append(_storable(completion))
            if turn + 1 < len(problem.turns):
                await writer.put(Done(cell, job.position, replace(attempt, completions=tuple(replies)), stored=turn))
        past += [asked, cell.memory.reply(cell.task, replies[-1])]
        if turn + 1 < len(problem.turns):
            # It is stored by now. Hundreds of turns of thinking, times the concurrency, would fill the memory.
            replies[-1] = replace(replies[-1], thinking="")
    attempt = graded(cell.task, replace(attempt, completions=tuple(replies)))
    await writer.put(Done(cell, job.position, attempt, stored=max(len(job.begun), len(replies) - 1)))
    return attempt


def graded(task: Task, attempt: Attempt) -> Attempt:
    """The attempt with its grade. A truncated attempt is wrong: the user paid for it and got nothing."""
    grade = task.grade_turns(attempt.problem, [c.answer for c in attempt.completions])
    truncated = any(c.stop == "length" for c in attempt.completions)
    status: Status = "truncated" if truncated else "unparsed" if grade.parsed is None else "graded"
    correct = grade.correct and status == "graded"
    details = {**grade.details, **_measured(attempt.completions)}
    return replace(attempt, status=status, correct=correct, why=grade.why, details=details)


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
            if done.attempt.status != "failed" and (new := graded(cell.task, done.attempt)) != done.attempt
        ]
        store.regrade(changes)
        changed += len(changes)
    return changed


def _storable(completion: Completion) -> Completion:
    """The completion with text that UTF-8 can encode: a lone surrogate is replaced."""
    try:
        completion.thinking.encode()
        completion.answer.encode()
    except UnicodeEncodeError:
        thinking, answer = (t.encode("utf-8", "replace").decode() for t in (completion.thinking, completion.answer))
        return replace(completion, thinking=thinking, answer=answer)
    return completion


def _leaf(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first error inside a group of errors."""
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
