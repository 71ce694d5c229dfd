"""Scores steps by asking any model of Ponder to judge them.

The rubric has the criteria of ReasonFlux-PRM's judge (soundness, consistency, progress); the
paper's prompt isn't published, this one is ours. If a reply lacks a score from 0 to 1 for any step,
the trace has no score, and the reason is counted.

    [reward]
    name  = "judge"
    model = { name = "endpoint", id = "gpt-4o", url = "https://…/v1", key = "$KEY" }
"""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from ponder.core import (
    Asking,
    AsyncScore,
    Bill,
    Grade,
    Message,
    Model,
    ModelFailure,
    Problem,
    RatesEach,
    Request,
    Reward,
    Scores,
    Served,
    Spend,
    Steps,
    Task,
    UserError,
    seed_from,
    settings,
)
from ponder.core.metering import complete
from ponder.core.scoring import with_totals
from ponder.rewards._windows import spans

RUBRIC = """\
You judge the reasoning of a model on a question. The reasoning is cut into numbered steps.{earlier}

Question:
{question}

{steps}

Score each step from 0 to 1, by what is known at that point:
- soundness: what it claims is true and follows from the question and the steps before it;
- consistency: it doesn't contradict the question, an earlier step or itself;
- progress: it brings the answer nearer, or rules something out; repeating or wandering brings it no nearer.
1 is a step without fault, 0.5 one that is harmless but useless, 0 one that is wrong. A step that builds on a wrong one
is wrong unless it corrects it. Then score the reasoning as a whole: how surely somebody who followed its plan would get
the right answer.

Reply with JSON and nothing else, with {count} numbers in "steps", one for each step from {first} to {last}:
{{"steps": [...], "whole": ...}}"""
EARLIER = " Those before step {first} are shown for context; don't score them."


@dataclass(frozen=True, kw_only=True)
class Judge(Reward, RatesEach, Asking):
    model: dict[str, Any]  # as in [[model]]: its name and settings
    window: int = 16_384  # tokens of question and steps per request, at four characters each
    # fraction of the window that repeats earlier steps, if a trace is longer than it
    context: float = 0.25

    example: ClassVar[dict[str, Any]] = {"model": {"name": "oracle"}}

    def __post_init__(self) -> None:
        if not 0 <= self.context <= 0.9 or self.window < 8:
            raise UserError(
                "context is a fraction from 0 to 0.9, and window a number of tokens, at least 8"
            )
        self._judge  # noqa: B018 raises if its settings are wrong

    @cached_property
    def _judge(self) -> Model:
        return self._build()

    def _build(self) -> Model:
        settings.check_name("models", self.model, "model")
        model: Model = settings.build("models", self.model, "model", Path())
        return model

    def asks(self) -> Model:
        return self._judge

    def title(self) -> str:
        return f"{self._judge.title()} as judge"

    def limit(self, tokens: int) -> Spend:
        # Each request repeats the rubric and, after the first, a part of the steps before.
        requests = 1 + int(tokens / (self.window * (1 - self.context)))
        one = self._judge.turn_limit(min(tokens, self.window) + len(RUBRIC)) or Spend(
            self.window, self.window, 1
        )
        return one.times(requests)

    def ready(self) -> None:
        self._judge.ready()

    def rate(self, traces: Sequence[Steps]) -> list[Scores]:
        rated = dict(self.rate_each(traces))
        return [rated[n] for n in range(len(traces))]

    def rate_each(self, traces: Sequence[Steps]) -> Iterator[tuple[int, Scores]]:
        # The loop runs only while the next reply is awaited, so that each score is there as soon as
        # it is known.
        with asyncio.Runner() as runner, ExitStack() as stack:
            model = runner.run(_entered(self._build()))
            stack.callback(lambda: runner.run(model.__aexit__(None, None, None)))
            free = asyncio.Semaphore(model.concurrency)
            loop = runner.get_loop()
            asked = {
                loop.create_task(self._one(trace, model, free)): n for n, trace in enumerate(traces)
            }
            stack.callback(lambda: runner.run(_cancelled(asked)))
            while asked:
                done = runner.run(_some(asked))
                # scores before any error
                for task in sorted(done, key=lambda task: task.exception() is not None):
                    error = task.exception()
                    yield asked.pop(task), task.result() if error is None else _why(error)

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[AsyncScore]:
        # A model of its own for each opening: one that is open belongs to one event loop, and is
        # closed once.
        async with self._build() as model:
            if isinstance(model, Served):
                await model.reach()
            free = asyncio.Semaphore(model.concurrency)

            async def score(traces: Sequence[Steps], request: Request) -> list[Scores]:
                asked = (
                    self._one(trace, model, free, request)
                    for trace in traces
                    if trace.part(self.of)
                )
                replies = await asyncio.gather(*asked, return_exceptions=True)
                rated = [
                    _why(reply) if isinstance(reply, BaseException) else reply for reply in replies
                ]
                if failure := next(
                    (reply for reply in replies if isinstance(reply, ModelFailure)), None
                ):
                    raise ModelFailure(
                        f"the judge: {failure}", sum((scores.bill for scores in rated), Bill())
                    )
                return with_totals(self, traces, rated)

            yield score

    async def _one(
        self, trace: Steps, model: Model, free: asyncio.Semaphore, turn: Request | None = None
    ) -> Scores:
        steps, bill = trace.part(self.of), Bill()
        scores, whole = list[float](), 0.0
        room = self.window - len(trace.question) // 4
        if room < self.window / 2:
            return Scores(why=f"its question leaves no room in a window of {self.window} tokens")
        lengths = [1 + len(step) // 4 for step in steps]
        for first, new, last in spans(lengths, room, self.context * self.window):
            request = _request(trace, steps, first, new, last)
            if turn:
                limit = (model.turn_limit(request.prompt_limit) or Spend(calls=1)).as_reward(
                    model.prices
                )
                request = replace(request, limit=limit, observer=turn.observer)
            try:
                async with free:
                    # In a run, the turn that it scores for has reserved what it may take.
                    reply = await (model.complete(request) if turn else complete(model, request))
                bill += reply.bill
                new_scores, whole = parse(reply.answer, last - new)
            except ValueError as error:
                return Scores(why=f"the judge: {error}", bill=bill)
            except ModelFailure as error:
                raise ModelFailure(str(error), bill + (error.bill or Bill())) from error
            scores += new_scores
        return Scores(tuple(scores), whole, bill=bill)


async def _entered(model: Model) -> Model:
    return await model.__aenter__()


async def _some(tasks: Iterable[asyncio.Task[Scores]]) -> set[asyncio.Task[Scores]]:
    """The tasks that are done, at least one."""
    done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    return done


async def _cancelled(tasks: Iterable[asyncio.Task[Scores]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _why(error: BaseException) -> Scores:
    """Why a trace has no scores: the judge gave no answer. Other errors are raised."""
    if not isinstance(error, ModelFailure):
        raise error
    return Scores(why=f"the judge: {error}", bill=error.bill or Bill())


def _request(trace: Steps, steps: Sequence[str], first: int, new: int, last: int) -> Request:
    text = RUBRIC.format(
        earlier=EARLIER.format(first=new + 1) if first < new else "",
        question=trace.question,
        steps="\n\n".join(f"Step {n + 1}:\n{steps[n]}" for n in range(first, last)),
        count=last - new,
        first=new + 1,
        last=last,
    )
    problem = Problem(trace.id, last - new, (text,))
    return Request(_Judging(), problem, (Message("user", text),), seed_from("judge", trace.id, new))


def parse(text: str, steps: int) -> tuple[list[float], float]:
    """The step scores and the score of the whole in a judge's reply, which may contain other text.

    Raises `ValueError` if they aren't as asked.
    """
    reply, end, left = None, 0, 2 * len(text) + 2_000_000
    for brace in re.finditer(r'\{\s*"', text):
        if brace.start() < end:
            continue
        try:
            value, end = json.JSONDecoder().raw_decode(text, brace.start())
        except json.JSONDecodeError as error:
            # Limited, because each of a million braces could otherwise be read to the end. From the
            # text's beginning, because the error counts the lines up to its place.
            left -= error.pos
            if left < 0:
                break
            continue
        except (ValueError, RecursionError):  # a number of 5,000 digits, or a thousand brackets
            break
        if "steps" in value:
            reply = value
    if reply is None or not isinstance(reply["steps"], list):
        raise ValueError("no scores in the reply")
    scores = [step.get("score") if isinstance(step, dict) else step for step in reply["steps"]]
    if len(scores) != steps:
        raise ValueError(f"{len(scores)} scores for {steps} steps")
    return [_score(score) for score in scores], _score(reply.get("whole"))


def _score(score: Any) -> float:
    if (
        isinstance(score, bool)
        or not isinstance(score, int | float)
        or math.isnan(score)
        or not 0 <= score <= 1
    ):
        raise ValueError(f"{score!r:.40} is not a score from 0 to 1")
    return float(score)


class _Judging(Task):
    """Judging as a task, so that any model can do it; the oracle model gives full marks."""

    def problem(self, size: int, seed: int) -> Problem:
        raise NotImplementedError

    def solve(self, problem: Problem) -> str:
        return json.dumps({"steps": [1.0] * problem.size, "whole": 1.0})

    def grade(self, problem: Problem, answer: str) -> Grade:
        try:
            return Grade(correct=True, parsed=parse(answer, problem.size))
        except ValueError as error:
            return Grade(correct=False, why=str(error))
