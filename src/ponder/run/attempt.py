"""Makes an attempt: asks every turn under the caps, stores the replies and grades them."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from ponder.core import (
    Attempt,
    Batched,
    Bill,
    Completion,
    Ended,
    Message,
    Model,
    ModelFailure,
    Problem,
    Request,
    Retry,
    Spend,
    Task,
    UserError,
    error_at,
    token_limit,
)
from ponder.core.capabilities import FromLog, Served, grade_turns, grades_slowly, history_message
from ponder.core.text import encodable
from ponder.core.wrapped import server_of
from ponder.run.caps import NOTHING, Ledger, Money, Reservation, priced_at_most, tolerated
from ponder.run.executors import Executor
from ponder.run.interrupt import Stop, Stopped
from ponder.run.jobs import JobObserver, OpenRequests
from ponder.run.prepare import Preparations
from ponder.run.progress import LONGEST_REASON, Tally
from ponder.store.store import Done, Store, billed_part
from ponder.store.writer import Writer
from ponder.study.cell import StudyCell
from ponder.study.study import StudySpec

if TYPE_CHECKING:
    from ponder.run.adaptive import Rounds


class PendingAttempt(NamedTuple):
    """An attempt that the store doesn't hold, or only the first turns of it."""

    cell: StudyCell
    position: int  # of the problem in the cell's fixed order of problems
    problem: Problem
    sample: int
    begun: tuple[Completion, ...] = ()  # turns that an earlier run has finished

    @property
    def kind(self) -> Hashable:
        """Which conversations take about as many tokens; None for a single turn."""
        if len(self.problem.turns) == 1:
            return None
        return self.cell.key

    @property
    def name(self) -> str:
        """Which attempt it is, as the requests in batch jobs name it."""
        return f"{self.cell.key.hex()} {self.position} {self.sample}"


@dataclass
class Run:
    """What the parts of a run share."""

    store: Store
    writer: Writer
    tally: Tally
    stop: Stop
    preparations: Preparations
    earlier: OpenRequests  # in batch jobs
    executor: Executor | None = None  # other processes that do the heavy work
    trials: Sequence[Rounds] = ()  # of a study with `stop`, or of a gate
    where: str = "study"  # the study's file, in errors
    study: str = ""  # its name in the store

    @property
    def ledger(self) -> Ledger:
        return self.tally.ledger

    def at(self, cell: StudyCell) -> AbstractContextManager[None]:
        """Add the study and the model to errors that don't say where they are."""
        return error_at(f"{self.where}: model `{cell.label.model}`")


async def ask(model: Model, pending: PendingAttempt, run: Run) -> Attempt | None:
    """Make one attempt.

    Return None if the run stops between two turns, or if a cap leaves no room: a conversation can
    be resumed.
    """
    server = pending.cell.model.server()
    if sends_batches(model):
        # A bill that is known a day later can't hold back all other calls.
        server = ""
    reservation = run.ledger.open(
        model.prices,
        pending.kind,
        server=server,
        turns=len(pending.problem.turns),
        resumed=bool(pending.begun),
    )
    attempt: Attempt | None = None
    try:
        attempt = await _ask_turns(model, pending, run, reservation)
    finally:
        complete = attempt is not None and attempt.ended != "failed" and not pending.begun
        run.ledger.close(reservation, pending.kind, complete=complete)
    return attempt


def sends_batches(model: Model) -> bool:
    """Return whether the requests of a model are sent in batch jobs."""
    server = server_of(model)
    return isinstance(server, Batched) and server.sends_batches()


async def _ask_turns(
    model: Model, pending: PendingAttempt, run: Run, reservation: Reservation
) -> Attempt | None:
    cell = pending.cell
    problem = pending.problem
    attempt = Attempt(problem, pending.sample, "open", "", ())
    replies: list[Completion] = []
    answered: set[str] = set()  # requests in batch jobs whose answers are not stored yet
    history: list[Message] = []
    tokens: dict[Message, int] = {}  # of replies in the history
    for turn, text in enumerate(problem.turns):
        question = Message("user", text)
        is_last = turn + 1 == len(problem.turns)
        if turn < len(pending.begun):
            replies.append(pending.begun[turn])
        else:
            messages = (*problem.opening(), *cell.memory.visible(history), question)
            seed = cell.attempt_seed(problem, pending.sample, turn)
            request = Request(cell.task, problem, messages, seed, pending.sample, turn)
            prompt_tokens = token_limit(messages, tokens)
            try:
                turn_call = _Turn(pending, request, prompt_tokens, answered)
                reply = await _call(model, turn_call, run, reservation)
            except UserError:
                raise
            except Exception as error:  # a plugin that crashes has not answered either
                failed = _failed(pending, replies, error)
                done = Done(cell, pending.position, failed, len(replies), tuple(answered))
                await run.writer.put(done)
                return failed
            if reply is None:
                return None
            replies.append(reply)
            if not is_last or grades_slowly(cell.task, (reply.answer for reply in replies)):
                partial = replace(attempt, completions=tuple(replies))
                done = Done(cell, pending.position, partial, turn, tuple(answered))
                answered.clear()
                await run.writer.put(done)
        in_history = history_message(cell.task, cell.memory, replies[-1])
        history += [question, in_history]
        tokens[in_history] = _completion_tokens(replies[-1], cell)
        if not is_last:
            # It is stored by now. Hundreds of turns of thinking, times the concurrency, would fill
            # the memory.
            replies[-1] = replace(replies[-1], thinking="")
    complete = replace(attempt, completions=tuple(replies))
    return await _grade(pending, complete, run, tuple(answered))


def _completion_tokens(reply: Completion, cell: StudyCell) -> int:
    billed = reply.bill.thinking_tokens + reply.bill.answer_tokens
    if cell.reply_limit is None:
        return billed
    return min(billed, cell.reply_limit)


def _failed(pending: PendingAttempt, replies: Sequence[Completion], error: Exception) -> Attempt:
    why = str(error)
    if not isinstance(error, ModelFailure):
        why = f"{type(error).__name__}: {error}"
    why = encodable(why[:LONGEST_REASON])
    problem = pending.problem
    return Attempt(problem, pending.sample, "failed", why, tuple(replies), problem.facts)


async def _grade(
    pending: PendingAttempt, attempt: Attempt, run: Run, answered: tuple[str, ...]
) -> Attempt:
    """Grade the attempt and store the grade.

    A grader that raises ends the run; the replies are kept, to be graded.
    """
    task = pending.cell.task
    stored = max(len(pending.begun), len(attempt.completions) - 1)
    try:
        if grades_slowly(task, (reply.answer for reply in attempt.completions)):
            done = await asyncio.to_thread(graded, task, attempt)
        else:
            done = graded(task, attempt)
    except Exception as error:
        ungraded = Done(pending.cell, pending.position, attempt, stored, answered)
        await run.writer.put(ungraded)
        grader = f"the grader of task `{pending.cell.label.task}`"
        raise UserError(
            f"{grader} raised {type(error).__name__}: {error}",
            where=run.where,
            hint="the answer is stored: correct the task and run again to grade it",
        ) from error
    await run.writer.put(Done(pending.cell, pending.position, done, stored, answered))
    return done


class _Turn(NamedTuple):
    """A turn to ask."""

    pending: PendingAttempt
    request: Request
    prompt_tokens: int
    answered: set[str]  # its requests in batch jobs that have an answer are added


async def _call(model: Model, turn: _Turn, run: Run, reservation: Reservation) -> Completion | None:
    """Ask one turn once the caps have room for it; None if they never will, or the run stops."""
    cell = turn.pending.cell
    limit = cell.turn_limit(turn.prompt_tokens, None)
    sent = _Sent(run, reservation, turn)
    granted = False
    bill: Bill | None = None
    try:
        granted = await run.ledger.reserve(reservation, limit)
        if not granted:
            return None
        if reservation.first:
            sent.alone = asyncio.Lock()
        if run.ledger.limited:
            # What it may take is stored before it is sent, should the process be killed.
            await run.writer.flush()
        if run.stop.asked:
            return None
        answering = model.complete(replace(turn.request, observer=sent))
        if sends_batches(model):
            # Its job stays open for the next run: nobody waits for it after Ctrl-C.
            answering = run.stop.unless_asked(answering)
        completion = _storable(await answering)
        bill = completion.bill
        return completion
    except Stopped:
        return None
    except UserError:
        raise
    except BaseException as error:
        if isinstance(error, ModelFailure):
            bill = error.bill
        if bill is None:
            sent.lose(limit)
        raise
    finally:
        if granted:
            run.ledger.settle(reservation, bill)
        sent.leave_jobs(granted=granted)


class _Sent(JobObserver):
    """The calls of one turn that were sent and are not settled: what may have been billed of it.

    Requests in batch jobs are not among them: the store counts them with their jobs.
    """

    def __init__(self, run: Run, reservation: Reservation, turn: _Turn) -> None:
        self._run = run
        self._reservation = reservation
        self._model = turn.pending.cell.model
        self._open = Spend()
        self.attempt = turn.pending.name
        self._answered = turn.answered
        self._in_jobs: dict[str, Money] = {}
        if sends_batches(self._model):  # else nobody will wait for them, and both are billed
            self._in_jobs = run.earlier.take(self.attempt)
        reservation.resumed = _total(self._in_jobs.values())

    def in_job(self, request_id: str, request: Request) -> Money:
        limit = self._limit(request)
        self._open = self._open.minus(limit)
        held = priced_at_most(tolerated(limit), self._reservation.prices)
        self._in_jobs[request_id] = held
        self._answered.discard(request_id)  # its job before had only an error for it
        self._run.ledger.put_in_jobs(self._reservation, _total(self._in_jobs.values()))
        return held

    def out_of_job(self, request_id: str, request: Request) -> None:
        self._open = self._open.plus(self._limit(request))
        self._answered.add(request_id)

    def leave_jobs(self, *, granted: bool) -> None:
        """Leave requests without an answer to later calls, or to the next run."""
        self._reservation.resumed = NOTHING
        unanswered = {}
        for request_id, held in self._in_jobs.items():
            if request_id not in self._answered:
                unanswered[request_id] = held
        self._run.earlier.give_back(self.attempt, unanswered, counted=not granted)

    def sent(self, request: Request) -> None:
        if self._run.stop.asked and not self._open.calls and request.limit is None:
            raise Stopped  # but replies that are there are still scored
        if self._run.ledger.overbilled:
            raise ModelFailure(f"not sent: {self._run.ledger.overbilled}")
        self._open = self._open.plus(self._limit(request))

    def billed(self, request: Request, bill: Bill) -> None:
        limit = request.limit or self._model.turn_limit(request.prompt_limit, request.budget)
        if request.limit and request.limit.reward_tokens:
            bill = bill.as_reward(None)
        if request.limit and not request.limit.tokens and not request.limit.reward_tokens:
            limit = None  # another model, whose reply has none
        self._run.ledger.check_bill(bill, limit)

    def retried(self, request: Request, retry: Retry) -> None:
        limit = self._limit(request)
        self._open = self._open.minus(limit)
        self._run.tally.retried(retry)
        if retry.billed:
            self._run.ledger.lose(self._reservation, limit)
        if retry.wait:
            self._run.ledger.check_room()

    def warned(self, text: str) -> None:
        self._run.tally.warn(text)

    def _limit(self, request: Request) -> Spend:
        limit = request.limit or self._model.turn_limit(request.prompt_limit, request.budget)
        return limit or Spend(calls=1)

    def lose(self, limit: Spend | None) -> None:
        """Count a turn that ended without a bill: what was sent of it may have been billed."""
        # These models report each call; on this machine, only a judge's calls can be open.
        reports_calls = isinstance(self._model, Served) or not self._model.server()
        lost = limit or Spend(calls=1)
        if reports_calls:
            lost = self._open
        if lost.calls:
            self._run.ledger.lose(self._reservation, lost)


def _total(amounts: Iterable[Money]) -> Money:
    total = NOTHING
    for amount in amounts:
        total = total.plus(amount)
    return total


def _storable(completion: Completion) -> Completion:
    """Return the completion with text that UTF-8 can encode: a lone surrogate is replaced."""
    thinking = encodable(completion.thinking)
    answer = encodable(completion.answer)
    if thinking is completion.thinking and answer is completion.answer:
        return completion
    return replace(completion, thinking=thinking, answer=answer)


NOTES = ("empty reply", "content filter", "refusal")  # as models write them into `Completion.note`
IMPORT_AGAIN = "`ponder import LOG --scorer NAME` takes another scorer of the log"


def graded(task: Task, attempt: Attempt) -> Attempt:
    """Return the attempt with its grade.

    A truncated attempt is wrong: the user paid for it and got nothing.
    """
    grade = grade_turns(task, attempt.problem, [c.answer for c in attempt.completions])
    ended: Ended = "right" if grade.correct else "wrong"
    if any(completion.stop == "length" for completion in attempt.completions):
        ended = "truncated"
    elif grade.parsed is None:
        ended = "unparsed"
    why = grade.why
    if grade.parsed is None:
        # A server that says why it gave no answer knows better than the grader. The note of a
        # stored attempt is in its reason.
        stored_note = attempt.why if attempt.why in NOTES else ""
        why = attempt.completions[-1].note or stored_note or grade.why
    measures = _mean_measures(attempt.completions)
    details = {**grade.details, **measures, **billed_part(attempt.bill)}
    return replace(attempt, ended=ended, why=why, details=details)


def _mean_measures(turns: Sequence[Completion]) -> dict[str, float]:
    """Return the model's measurements, each averaged over the turns that have it."""
    values: dict[str, list[float]] = {}
    for turn in turns:
        for name, value in turn.measures.items():
            values.setdefault(name, []).append(value)
    return {name: sum(measured) / len(measured) for name, measured in values.items()}


def grade_again(study: StudySpec, store: Store) -> int:
    """Grade a study's stored answers again with the current graders; return how many changed."""
    cells = [cell for cell in study.cells if not isinstance(cell.task, FromLog)]
    if not cells:
        message = "these attempts were graded by the program whose log they come from"
        raise UserError(message, hint=IMPORT_AGAIN)
    changed = 0
    for cell in cells:
        changes = []
        for done in store.attempts(cell):
            if done.attempt.ended != "failed":
                attempt = graded(cell.task, done.attempt)
                if attempt != done.attempt:
                    changes.append(done._replace(attempt=attempt))
        store.regrade(changes)
        changed += len(changes)
    return changed
