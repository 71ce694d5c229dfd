"""Cells to attempts: the one loop, the same for every model.

It asks as many attempts at once as the model likes to have in flight, grades each as it arrives, and hands them to the
store in batches. Only what the store doesn't hold yet is asked, so a run resumes where the last one stopped. Memory
doesn't grow with the number of attempts: problems are made as they are asked, and texts leave with each batch.
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
CHUNK = 256  # jobs made at once
FAILURES_IN_A_ROW = 25  # beyond those in flight: the endpoint is down, not busy


class Job(NamedTuple):
    """An attempt to make."""

    cell: Cell
    position: int
    problem: Problem
    sample: int
    begun: tuple[Completion, ...] = ()  # the turns that an earlier run finished


@dataclass
class Tally:
    """What a run has done so far, and what it may still spend."""

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
    making: Progress | None = None  # how a training stands, while one goes on

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

    def may_start(self, concurrency: int) -> bool:
        """Whether one more attempt fits under the cap, if those in flight cost what the others did."""
        share = (self.done + concurrency + 1) / max(1, self.done)
        over_tokens = self.max_tokens is not None and self.tokens * share > self.max_tokens
        over_cost = self.max_cost is not None and self.cost * share > self.max_cost
        # Before the first answer nothing is known of the price: start with a handful, not with all.
        blind = self.done == 0 and concurrency >= 4 and (self.max_tokens is not None or self.max_cost is not None)
        self.capped = self.done > 0 and (over_tokens or over_cost)
        return not (self.capped or blind)


def pending(cell: Cell, store: Store) -> Iterator[Job]:
    """The attempts of a cell that the store doesn't hold."""
    done = store.done(cell)
    if cell.problems is not None and len(done) >= cell.problems * cell.samples:
        wanted = itertools.product(range(cell.problems), range(cell.samples))
        if done.issuperset(wanted):
            return  # without making a single problem: a large puzzle takes a second
    begun = store.begun(cell)
    for position, problem in enumerate(cell.asked()):
        for sample in range(cell.samples):
            if (position, sample) not in done:
                yield Job(cell, position, problem, sample, begun.pop((position, sample), ()))


async def run(study: Study, store: Store, tally: Tally) -> None:
    """Make every attempt of the study that the store doesn't hold, within the study's cap."""
    tally.max_tokens, tally.max_cost = study.max_tokens, study.max_cost
    store.record_study(study)
    for _, cells in itertools.groupby(study.cells, key=lambda cell: cell.model_label):
        async with AsyncExitStack() as stack:
            model: Model | None = None
            for asked in _rounds(list(cells), store, tally):
                jobs = (job for cell in asked for job in pending(cell, store))
                if (first := next(jobs, None)) is None:
                    continue  # nothing to ask: don't load weights or open connections
                if model is None:
                    model = await stack.enter_async_context(await _made(asked[0], tally))
                for cell in asked:
                    store.record_made(cell, model.made(cell.task))
                await _round(model, _Feed(itertools.chain([first], jobs), tally), store, tally)


async def _made(cell: Cell, tally: Tally) -> Model:
    """The cell's model, made in a thread, which an interrupted run would wait for: it stops at its next report."""
    stopped = False

    def tell(report: Progress) -> None:
        if stopped:
            raise InterruptedError
        tally.making = report

    try:
        return await asyncio.to_thread(cell.method_model, tell)
    finally:
        stopped, tally.making = True, None


def _rounds(cells: Sequence[Cell], store: Store, tally: Tally) -> Iterator[list[Cell]]:
    """What to ask of one model together: first all that is known beforehand, then what each search wants next."""
    yield [cell for cell in cells if cell.search is None]
    for _, group in itertools.groupby((c for c in cells if c.search), key=lambda cell: cell.task_label):
        candidates = {cell.size: cell for cell in group}
        search = next(iter(candidates.values())).search
        assert search is not None
        results: dict[int, tuple[int, int]] | None = None
        # A round after which nothing has changed was capped, or failed: more of the same would not end.
        while results != (found := {size: store.score(cell) for size, cell in candidates.items()}) and not tally.capped:
            results = found
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
            raise UserError(what, where=job.cell.model_label, hint="put the model right and run again: it resumes")


class _Feed:
    """Hands out jobs, made in a thread so that a slow puzzle holds up no answer, for as long as the cap allows."""

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
    """Gathers finished attempts and stores them a batch at a time, in a thread, and the rest however the run ends."""

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
            await self._clock  # raises what stopped it: a full disk
        if len(self._batch) >= FLUSH_ATTEMPTS:
            await self._flush()

    async def _tick(self) -> None:
        while not self._ended.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(self._ended.wait(), FLUSH_SECONDS)
            await self._flush()
        await self._flush()  # what came in while the last batch was being written

    async def _flush(self) -> None:
        # One batch at a time: a model that answers faster than the disk writes has to wait for it.
        async with self._writing:
            batch, self._batch = self._batch, []
            if batch:
                await asyncio.to_thread(self._store.add, batch)


async def ask(model: Model, job: Job, writer: _Writer) -> Attempt:
    """One attempt: every turn asked, and stored as it is answered; then the whole graded."""
    cell, problem = job.cell, job.problem
    said, past = list[Completion](), list[Message]()
    attempt = Attempt(problem, job.sample, "open", False, "", ())
    for turn, text in enumerate(problem.turns):
        asked = Message("user", text)
        if turn < len(job.begun):
            said.append(job.begun[turn])
        else:
            messages = (*problem.opening(), *cell.memory.visible(past), asked)
            seed = cell.attempt_seed(problem, job.sample, turn)
            try:
                completion = await model.complete(Request(cell.task, problem, messages, seed, job.sample, turn))
            except UserError:
                raise
            except Exception as error:  # a crash is no answer either
                why = str(error) if isinstance(error, ModelFailure) else f"{type(error).__name__}: {error}"
                attempt = Attempt(problem, job.sample, "failed", False, why[:500], tuple(said), problem.facts)
                await writer.put(Done(cell, job.position, attempt, stored=len(said)))
                return attempt
            said.append(_clean(completion))
            if turn + 1 < len(problem.turns):
                await writer.put(Done(cell, job.position, replace(attempt, completions=tuple(said)), stored=turn))
        past += [asked, cell.memory.reply(cell.task, said[-1])]
        if turn + 1 < len(problem.turns):
            # It is stored; hundreds of turns of thinking, times those in flight, would fill the memory.
            said[-1] = replace(said[-1], thinking="")
    attempt = graded(cell.task, replace(attempt, completions=tuple(said)))
    await writer.put(Done(cell, job.position, attempt, stored=max(len(job.begun), len(said) - 1)))
    return attempt


def graded(task: Task, attempt: Attempt) -> Attempt:
    """The attempt with the grade that its text deserves. A truncated attempt is wrong: it was paid for in vain."""
    grade = task.grade_turns(attempt.problem, [c.answer for c in attempt.completions])
    truncated = any(c.stop == "length" for c in attempt.completions)
    status: Status = "truncated" if truncated else "unparsed" if grade.parsed is None else "graded"
    correct = grade.correct and status == "graded"
    details = {**grade.details, **_measured(attempt.completions)}
    return replace(attempt, status=status, correct=correct, why=grade.why, details=details)


def _measured(turns: Sequence[Completion]) -> dict[str, float]:
    """What the model measured on the way, averaged over its turns."""
    names = dict.fromkeys(name for turn in turns for name in turn.measures)
    return {name: sum(t.measures.get(name, 0.0) for t in turns) / len(turns) for name in names}


def grade_again(study: Study, store: Store) -> int:
    """Grade the stored text of a study with today's graders; returns how many grades changed."""
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


def _clean(completion: Completion) -> Completion:
    """The completion with text that can be stored and shown: half a surrogate pair can't be."""
    try:
        completion.thinking.encode()
        completion.answer.encode()
    except UnicodeEncodeError:
        thinking, answer = (t.encode("utf-8", "replace").decode() for t in (completion.thinking, completion.answer))
        return replace(completion, thinking=thinking, answer=answer)
    return completion


def _leaf(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first real error of a task group."""
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
