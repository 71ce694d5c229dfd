"""Makes one attempt: asks every turn under the study's caps, stores each reply as it arrives, and
grades the whole.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from ponder.core import (
    Attempt,
    Bill,
    Completion,
    Ended,
    Message,
    Model,
    ModelFailure,
    Observer,
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
from ponder.run.caps import Claim, Ledger
from ponder.run.executors import Executor
from ponder.run.interrupt import Stop, Stopped
from ponder.run.prepare import Preparations
from ponder.run.progress import LONGEST_REASON, Tally
from ponder.store.store import Done, Store, reward_part
from ponder.store.writer import Writer
from ponder.study.cell import StudyCell
from ponder.study.study import StudySpec

if TYPE_CHECKING:
    from ponder.run.adaptive import Trial


class Job(NamedTuple):
    """An attempt to make."""

    cell: StudyCell
    position: int  # of the problem in the cell's fixed order of problems
    problem: Problem
    sample: int
    begun: tuple[Completion, ...] = ()  # turns that an earlier run has finished

    @property
    def kind(self) -> Hashable:
        """Which conversations take about as many tokens; None for a single turn."""
        cell = self.cell
        return cell.key if len(self.problem.turns) > 1 else None


@dataclass
class Run:
    """What the parts of a run share."""

    store: Store
    writer: Writer
    tally: Tally
    stop: Stop
    preparations: Preparations
    executor: Executor | None = None  # other processes that do the heavy work
    trials: Sequence[Trial] = ()  # of a study with `stop`
    where: str = "study"  # the study's file, in errors

    @property
    def ledger(self) -> Ledger:
        return self.tally.ledger

    def at(self, cell: StudyCell) -> AbstractContextManager[None]:
        """Adds the study and the model to errors that don't say where they are."""
        return error_at(f"{self.where}: model `{cell.label.model}`")


async def ask(model: Model, job: Job, run: Run) -> Attempt | None:
    """Make one attempt.

    None if the run stops between two turns, or if a cap leaves no room: a conversation can be
    resumed.
    """
    turns = len(job.problem.turns)
    server = job.cell.model.server()
    claim = run.ledger.open(
        model.prices, job.kind, server=server, turns=turns, resumed=bool(job.begun)
    )
    attempt: Attempt | None = None
    try:
        attempt = await _ask(model, job, run, claim)
    finally:
        complete = attempt is not None and attempt.ended != "failed" and not job.begun
        run.ledger.close(claim, job.kind, complete=complete)
    return attempt


async def _ask(model: Model, job: Job, run: Run, claim: Claim) -> Attempt | None:
    cell, problem = job.cell, job.problem
    replies, past, tokens = list[Completion](), list[Message](), dict[Message, int]()
    attempt = Attempt(problem, job.sample, "open", "", ())
    for turn, text in enumerate(problem.turns):
        asked, last = Message("user", text), turn + 1 == len(problem.turns)
        if turn < len(job.begun):
            replies.append(job.begun[turn])
        else:
            messages = (*problem.opening(), *cell.memory.visible(past), asked)
            request = Request(
                cell.task,
                problem,
                messages,
                cell.attempt_seed(problem, job.sample, turn),
                job.sample,
                turn,
            )
            try:
                completion = await _call(
                    model, cell, request, token_limit(messages, tokens), run, claim
                )
            except UserError:
                raise
            except Exception as error:  # a plugin that crashes has not answered either
                why = (
                    str(error)
                    if isinstance(error, ModelFailure)
                    else f"{type(error).__name__}: {error}"
                )
                failed = Attempt(
                    problem,
                    job.sample,
                    "failed",
                    encodable(why[:LONGEST_REASON]),
                    tuple(replies),
                    problem.facts,
                )
                await run.writer.put(Done(cell, job.position, failed, stored=len(replies)))
                return failed
            if completion is None:
                return None
            replies.append(completion)
            if not last or grades_slowly(cell.task, (reply.answer for reply in replies)):
                done = replace(attempt, completions=tuple(replies))
                await run.writer.put(Done(cell, job.position, done, stored=turn))
        reply = history_message(cell.task, cell.memory, replies[-1])
        past += [asked, reply]
        billed = replies[-1].bill.thinking_tokens + replies[-1].bill.answer_tokens
        tokens[reply] = billed if cell.reply_limit is None else min(billed, cell.reply_limit)
        if not last:
            # It is stored by now. Hundreds of turns of thinking, times the concurrency, would fill
            # the memory.
            replies[-1] = replace(replies[-1], thinking="")
    return await _grade(job, replace(attempt, completions=tuple(replies)), run)


async def _grade(job: Job, attempt: Attempt, run: Run) -> Attempt:
    """Grade the attempt and store the grade.

    A grader that raises ends the run; the replies are kept, to be graded.
    """
    task, stored = job.cell.task, max(len(job.begun), len(attempt.completions) - 1)
    try:
        slow = grades_slowly(task, (reply.answer for reply in attempt.completions))
        done = await asyncio.to_thread(graded, task, attempt) if slow else graded(task, attempt)
    except Exception as error:
        await run.writer.put(Done(job.cell, job.position, attempt, stored=stored))
        what = f"the grader of task `{job.cell.label.task}` raised {type(error).__name__}: {error}"
        hint = "the answer is stored: correct the task and run again to grade it"
        raise UserError(what, where=run.where, hint=hint) from error
    await run.writer.put(Done(job.cell, job.position, done, stored=stored))
    return done


async def _call(
    model: Model, cell: StudyCell, request: Request, prompt_tokens: int, run: Run, claim: Claim
) -> Completion | None:
    """One turn, once the caps have room for all that it may take; None if they never will, or the
    run stops.
    """
    limit = cell.turn_limit(prompt_tokens, None)
    if not await run.ledger.reserve(claim, limit):
        return None
    sent = _Sent(run, claim, cell.model)
    bill: Bill | None = None
    try:
        if run.ledger.limited:
            # what it may take is on record before it is sent, should the process be killed
            await run.writer.flush()
        if run.stop.asked:
            return None
        watched = replace(request, observer=sent)
        completion = _storable(await model.complete(watched))
        bill = completion.bill
        return completion
    except Stopped:
        return None
    except UserError:
        raise
    except BaseException as error:
        bill = error.bill if isinstance(error, ModelFailure) else None
        if bill is None:
            sent.lose(limit)
        raise
    finally:
        run.ledger.settle(claim, bill)


class _Sent(Observer):
    """The calls of one turn that were sent and are not settled: what the server may have billed of
    it, at most.
    """

    def __init__(self, run: Run, claim: Claim, model: Model) -> None:
        self._run, self._claim, self._model = run, claim, model
        self._open = Spend()
        if claim.first:
            self.alone = asyncio.Lock()

    def sent(self, request: Request) -> None:
        if self._run.stop.asked and not self._open.calls and request.limit is None:
            raise Stopped  # but replies that are there are still scored
        if self._run.ledger.overbilled:
            raise ModelFailure(f"not sent: {self._run.ledger.overbilled}")
        self._open = self._open.plus(self._limit(request))

    def billed(self, request: Request, bill: Bill) -> None:
        if request.limit:
            bill = bill.as_reward(None)
        self._run.ledger.check_bill(bill, self._limit(request))

    def retried(self, request: Request, retry: Retry) -> None:
        limit = self._limit(request)
        self._open = self._open.minus(limit)
        self._run.tally.retried(retry)
        if retry.billed:
            self._run.ledger.lose(self._claim, limit)
        if retry.wait:
            self._run.ledger.check_room()

    def warned(self, text: str) -> None:
        self._run.tally.warn(text)

    def _limit(self, request: Request) -> Spend:
        return (
            request.limit
            or self._model.turn_limit(request.prompt_limit, request.budget)
            or Spend(calls=1)
        )

    def lose(self, limit: Spend | None) -> None:
        """The turn ended without a bill.

        What was sent may have been billed; on this machine nothing is.
        """
        # then only a judge's calls are open
        reported = isinstance(self._model, Served) or not self._model.server()
        gone = self._open if reported else limit or Spend(calls=1)
        if gone.calls:
            self._run.ledger.lose(self._claim, gone)


def _storable(completion: Completion) -> Completion:
    """The completion with text that UTF-8 can encode: a lone surrogate is replaced."""
    thinking, answer = encodable(completion.thinking), encodable(completion.answer)
    if thinking is completion.thinking and answer is completion.answer:
        return completion
    return replace(completion, thinking=thinking, answer=answer)


NOTES = ("empty reply", "content filter", "refusal")  # as models write them into `Completion.note`
IMPORT_AGAIN = "`ponder import LOG --scorer NAME` takes another scorer of the log"


def graded(task: Task, attempt: Attempt) -> Attempt:
    """The attempt with its grade.

    A truncated attempt is wrong: the user paid for it and got nothing.
    """
    grade = grade_turns(task, attempt.problem, [c.answer for c in attempt.completions])
    truncated = any(c.stop == "length" for c in attempt.completions)
    # A server that says why it gave no answer knows better than the grader. Of a stored attempt,
    # its reason tells.
    noted = attempt.completions[-1].note or (attempt.why if attempt.why in NOTES else "")
    why = noted if grade.parsed is None else ""
    ended: Ended = "right" if grade.correct else "wrong"
    if truncated:
        ended = "truncated"
    elif grade.parsed is None:
        ended = "unparsed"
    details = {**grade.details, **_measured(attempt.completions), **reward_part(attempt.bill)}
    return replace(attempt, ended=ended, why=why or grade.why, details=details)


def _measured(turns: Sequence[Completion]) -> dict[str, float]:
    """The model's measurements, averaged over the turns."""
    names = dict.fromkeys(name for turn in turns for name in turn.measures)
    return {name: sum(t.measures.get(name, 0.0) for t in turns) / len(turns) for name in names}


def grade_again(study: StudySpec, store: Store) -> int:
    """Grade the stored answers of a study again with the current graders; returns how many grades
    changed.
    """
    changed = 0
    cells = [cell for cell in study.cells if not isinstance(cell.task, FromLog)]
    if not cells:
        raise UserError(
            "these attempts were graded by the program whose log they come from", hint=IMPORT_AGAIN
        )
    for cell in cells:
        changes = [
            done._replace(attempt=new)
            for done in store.attempts(cell)
            if done.attempt.ended != "failed"
            and (new := graded(cell.task, done.attempt)) != done.attempt
        ]
        store.regrade(changes)
        changed += len(changes)
    return changed
