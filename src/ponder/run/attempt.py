"""Makes an attempt: asks every turn under the caps, stores the replies and grades them."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from ponder.core import (
    Attempt,
    Batched,
    Bill,
    Completion,
    Ended,
    Grade,
    Judged,
    Judgement,
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
    seed_from,
    token_limit,
)
from ponder.core.capabilities import (
    LABEL,
    FromLog,
    Served,
    grade_turns,
    grades_slowly,
    history_message,
    judge_limit,
    judge_of_task,
)
from ponder.core.text import count, encodable
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
        """Which attempts of several calls take about as many tokens; None for a single call."""
        if self.calls == 1:
            return None
        return self.cell.key

    @property
    def calls(self) -> int:
        """How many calls it makes, one after the other: its turns, and its judge's."""
        judged = judge_of_task(self.cell.task) is not None
        return len(self.problem.turns) + judged

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
    # Open judges, by the `id` of the model in the task, each with its free connections.
    judges: dict[int, tuple[Model, asyncio.Semaphore]] = field(default_factory=dict)
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
        turns=pending.calls,
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
            limit = cell.turn_limit(token_limit(messages, tokens), None)
            try:
                call = _Call(pending, cell.model, request, limit, answered)
                reply = await _call(model, call, run, reservation)
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
            if not is_last or _grades_later(cell.task, replies):
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
    if needs_judge(cell.task, replies):
        try:
            failure = await _judge(pending, replies, run, reservation)
        except Stopped:
            return None
        if failure:
            failed = _failed(pending, replies, failure)
            done = Done(cell, pending.position, failed, len(replies) - 1, tuple(answered))
            await run.writer.put(done)
            return failed
    complete = replace(attempt, completions=tuple(replies))
    return await _grade(pending, complete, run, tuple(answered))


def _grades_later(task: Task, replies: Sequence[Completion]) -> bool:
    """Return whether replies are stored before they are graded, because that takes a while."""
    return needs_judge(task, replies) or grades_slowly(task, (reply.answer for reply in replies))


async def _judge(
    pending: PendingAttempt, replies: list[Completion], run: Run, reservation: Reservation
) -> ModelFailure | None:
    """Ask the task's judge about the last reply, and put its judgement there.

    Return why there is no verdict, if there is none. Raise `Stopped` if the run stops, or if a cap
    leaves no room.
    """
    cell = pending.cell
    task = cell.task
    reply = replies[-1]
    assert isinstance(task, Judged)
    judge, free = run.judges[id(task.asks())]
    judgement = reply.judgement or Judgement()
    # Another seed after a reply without a verdict, which would come again. Only its bill is known.
    seed = seed_from(
        cell.key.hex(), pending.problem.id, pending.sample, judgement.completion_tokens
    )
    request = task.judge_request(pending.problem, reply.answer, seed)
    limit = judge_limit(judge, request)
    call = _Call(pending, judge, replace(request, limit=limit), limit, set())
    reservation.server = judge.server()
    bill: Bill | None = None
    failure: ModelFailure | None = None
    try:
        async with free:
            answer = await _call(judge, call, run, reservation)
        if answer is None:
            raise Stopped
        bill = answer.bill
        right = task.verdict(answer)
        text = answer.answer[-LONGEST_JUDGEMENT:]
        judgement = judgement._replace(judge=task.judge_id(), right=right, text=text)
    except (UserError, Stopped):
        raise
    except (ModelFailure, ValueError) as error:
        if isinstance(error, ModelFailure):
            bill = error.bill
        failure = ModelFailure(f"the judge: {error}")
    except Exception as error:  # a judge that crashes has not judged either
        failure = ModelFailure(f"the judge: {type(error).__name__}: {error}")
    if bill:
        judgement = judgement.billed(bill.as_reward(judge.prices))
    replies[-1] = replace(reply, judgement=judgement)
    return failure


def needs_judge(task: Task, replies: Sequence[Completion]) -> bool:
    """Return whether a judge still has to be asked about an attempt."""
    last = replies[-1]
    if judge_of_task(task) is None or not _is_complete(replies):
        return False
    assert isinstance(task, Judged)
    return last.judgement is None or last.judgement.judge != task.judge_id()


def _is_complete(replies: Sequence[Completion]) -> bool:
    """Return whether an attempt has an answer. Without one it is wrong, and no judge is asked."""
    truncated = any(reply.stop == "length" for reply in replies)
    return not truncated and bool(replies[-1].answer.strip())


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
    if attempt.completions[-1].judgement:
        stored = len(attempt.completions) - 1  # the last turn again, with its judgement
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


class _Call(NamedTuple):
    """A turn to ask, or a judge's verdict on the last one."""

    pending: PendingAttempt
    model: Model  # without its methods
    request: Request
    limit: Spend | None  # the most that it may take
    answered: set[str]  # its requests in batch jobs that have an answer are added

    def bill(self, bill: Bill | None) -> Bill | None:
        """Return a bill as part of the attempt's: a judge's is billed apart."""
        if bill is None or self.request.limit is None:
            return bill
        return bill.as_reward(self.model.prices)


async def _call(model: Model, call: _Call, run: Run, reservation: Reservation) -> Completion | None:
    """Make one call once the caps have room for it; None if they never will, or the run stops."""
    limit = call.limit
    sent = _Sent(run, reservation, call)
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
        answering = model.complete(replace(call.request, observer=sent))
        if sends_batches(model):
            # Its job stays open for the next run: nobody waits for it after Ctrl-C.
            answering = run.stop.unless_asked(answering)
        completion = _storable(await answering)
        bill = call.bill(completion.bill)
        return completion
    except Stopped:
        return None
    except UserError:
        raise
    except BaseException as error:
        if isinstance(error, ModelFailure):
            bill = call.bill(error.bill)
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

    def __init__(self, run: Run, reservation: Reservation, call: _Call) -> None:
        self._run = run
        self._reservation = reservation
        self._model = call.model
        self._open = Spend()
        self.attempt = call.pending.name
        self._answered = call.answered
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
# Of an attempt whose verdict is that of another judge or rubric; a run asks the judge again.
NOT_JUDGED = "not judged with this rubric yet"
LONGEST_JUDGEMENT = 4000  # characters of a judge's reply that are stored, the last ones
IMPORT_AGAIN = "`ponder import LOG --scorer NAME` takes another scorer of the log"


def graded(task: Task, attempt: Attempt) -> Attempt:
    """Return the attempt with its grade.

    A truncated attempt is wrong: the user paid for it and got nothing.
    """
    grade = _grade_of(task, attempt)
    if grade is None:
        facts = attempt.problem.facts
        return replace(attempt, ended="failed", why=NOT_JUDGED, details=facts)
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
    judgement = attempt.completions[-1].judgement
    if judgement:
        details |= judgement.bill()
    return replace(attempt, ended=ended, why=why, details=details)


def _grade_of(task: Task, attempt: Attempt) -> Grade | None:
    """Return an attempt's grade; None if its judge has not judged it."""
    replies = attempt.completions
    answers = [reply.answer for reply in replies]
    if not isinstance(task, Judged) or task.asks() is None:
        return grade_turns(task, attempt.problem, answers)
    if not answers[-1].strip():
        return Grade(correct=False, why="no answer")
    if not _is_complete(replies):
        return Grade(correct=False, parsed=answers[-1])
    judgement = replies[-1].judgement
    if judgement is None or needs_judge(task, replies):
        return None
    return task.grade_judged(attempt.problem, answers[-1], right=judgement.right)


def _mean_measures(turns: Sequence[Completion]) -> dict[str, float]:
    """Return the model's measurements, each averaged over the turns that have it."""
    values: dict[str, list[float]] = {}
    for turn in turns:
        for name, value in turn.measures.items():
            values.setdefault(name, []).append(value)
    return {name: sum(measured) / len(measured) for name, measured in values.items()}


class Regraded(NamedTuple):
    """What grading again has changed."""

    changed: int
    unjudged: int  # of these, replies that their judge has not judged by this rubric


def grade_again(study: StudySpec, store: Store) -> Regraded:
    """Grade a study's stored answers again with the current graders."""
    cells = [cell for cell in study.cells if not isinstance(cell.task, FromLog)]
    if not cells:
        message = "these attempts were graded by the program whose log they come from"
        raise UserError(message, hint=IMPORT_AGAIN)
    changed = 0
    unjudged = 0
    labelled: dict[int, int] = {}  # replies with a label, by the `id` of their task
    for cell in cells:
        changes = []
        labelled.setdefault(id(cell.task), 0)
        for done in store.attempts(cell):
            if done.attempt.ended == "failed":
                continue
            attempt = graded(cell.task, done.attempt)
            unjudged += attempt.why == NOT_JUDGED
            labelled[id(cell.task)] += LABEL in attempt.details
            if attempt != done.attempt:
                changes.append(done._replace(attempt=attempt))
        store.regrade(changes)
        changed += len(changes)
    for cell in cells:
        task = cell.task
        if isinstance(task, Judged) and task.label_count() and not labelled[id(task)]:
            raise UserError(
                f"none of its {count(task.label_count(), 'label')} is about a stored reply",
                where=f"{study.where}: task `{cell.label.task}`",
                hint="`problem` and `answer` of a label are those of a line of "
                "`ponder export STUDY --format jsonl`",
            )
    return Regraded(changed, unjudged)
