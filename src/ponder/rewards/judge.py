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
from ponder.core.json_text import json_values
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
- progress: it brings the answer nearer, or rules something out; repeating or wandering brings it \
no nearer.
1 is a step without fault, 0.5 one that is harmless but useless, 0 one that is wrong. A step that \
builds on a wrong one
is wrong unless it corrects it. Then score the reasoning as a whole: how surely somebody who \
followed its plan would get
the right answer.

Reply with JSON and nothing else, with {count} numbers in "steps", one for each step from {first} \
to {last}:
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
            message = (
                "context is a fraction from 0 to 0.9, and window a number of tokens, at least 8"
            )
            raise UserError(message)
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
        per_request = self._judge.turn_limit(min(tokens, self.window) + len(RUBRIC))
        if per_request is None:
            per_request = Spend(self.window, self.window, 1)
        return per_request.times(requests)

    def ready(self) -> None:
        self._judge.ready()

    def rate(self, traces: Sequence[Steps]) -> list[Scores]:
        scores = dict(self.rate_each(traces))
        return [scores[index] for index in range(len(traces))]

    def rate_each(self, traces: Sequence[Steps]) -> Iterator[tuple[int, Scores]]:
        # The loop runs only while the next reply is awaited, so that each score is there as soon as
        # it is known.
        with asyncio.Runner() as runner, ExitStack() as stack:
            model = runner.run(_open(self._build()))
            stack.callback(lambda: runner.run(model.__aexit__(None, None, None)))
            free = asyncio.Semaphore(model.concurrency)
            loop = runner.get_loop()
            pending = dict[asyncio.Task[Scores], int]()
            for index, trace in enumerate(traces):
                pending[loop.create_task(self._score(trace, model, free))] = index
            stack.callback(lambda: runner.run(_cancel(pending)))
            while pending:
                done = runner.run(_first_done(pending))
                # scores before any error
                for task in sorted(done, key=lambda task: task.exception() is not None):
                    error = task.exception()
                    index = pending.pop(task)
                    if error is None:
                        yield index, task.result()
                    else:
                        yield index, _unscored(error)

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[AsyncScore]:
        # A model of its own for each opening: one that is open belongs to one event loop, and is
        # closed once.
        async with self._build() as model:
            if isinstance(model, Served):
                await model.reach()
            free = asyncio.Semaphore(model.concurrency)

            async def score(traces: Sequence[Steps], request: Request) -> list[Scores]:
                calls = []
                for trace in traces:
                    if trace.part(self.of):
                        calls.append(self._score(trace, model, free, request))
                results = await asyncio.gather(*calls, return_exceptions=True)
                rated = list[Scores]()
                failures = list[ModelFailure]()
                for result in results:
                    if isinstance(result, ModelFailure):
                        failures.append(result)
                    if isinstance(result, BaseException):
                        rated.append(_unscored(result))
                    else:
                        rated.append(result)
                if failures:
                    bill = sum((scores.bill for scores in rated), Bill())
                    raise ModelFailure(f"the judge: {failures[0]}", bill)
                return with_totals(self, traces, rated)

            yield score

    async def _score(
        self, trace: Steps, model: Model, free: asyncio.Semaphore, turn: Request | None = None
    ) -> Scores:
        """Score one trace, window by window; in a run, `turn` is the request that it belongs to."""
        steps = trace.part(self.of)
        bill = Bill()
        scores = list[float]()
        trajectory = 0.0
        room = self.window - len(trace.question) // 4
        if room < self.window / 2:
            return Scores(why=f"its question leaves no room in a window of {self.window} tokens")
        lengths = [1 + len(step) // 4 for step in steps]
        for first, new, end in spans(lengths, room, self.context * self.window):
            request = _request(trace, steps, first, new, end)
            if turn:
                limit = model.turn_limit(request.prompt_limit) or Spend(calls=1)
                limit = limit.as_reward(model.prices)
                request = replace(request, limit=limit, observer=turn.observer)
            try:
                async with free:
                    if turn:
                        # The turn has reserved what scoring may take.
                        reply = await model.complete(request)
                    else:
                        reply = await complete(model, request)
                bill += reply.bill
                new_scores, trajectory = parse(reply.answer, end - new)
            except ValueError as error:
                return Scores(why=f"the judge: {error}", bill=bill)
            except ModelFailure as error:
                raise ModelFailure(str(error), bill + (error.bill or Bill())) from error
            scores += new_scores
        return Scores(tuple(scores), trajectory, bill=bill)


async def _open(model: Model) -> Model:
    return await model.__aenter__()


async def _first_done(tasks: Iterable[asyncio.Task[Scores]]) -> set[asyncio.Task[Scores]]:
    """Wait until a task is done; return all that are."""
    done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    return done


async def _cancel(tasks: Iterable[asyncio.Task[Scores]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _unscored(error: BaseException) -> Scores:
    """Return scores that hold why there are none: the judge failed. Raise any other error."""
    if not isinstance(error, ModelFailure):
        raise error
    return Scores(why=f"the judge: {error}", bill=error.bill or Bill())


def _request(trace: Steps, steps: Sequence[str], first: int, new: int, end: int) -> Request:
    """Return the request that shows the steps from `first` to `end` and scores those from `new`."""
    earlier = ""
    if first < new:
        earlier = EARLIER.format(first=new + 1)
    shown_steps = [f"Step {index + 1}:\n{steps[index]}" for index in range(first, end)]
    text = RUBRIC.format(
        earlier=earlier,
        question=trace.question,
        steps="\n\n".join(shown_steps),
        count=end - new,
        first=new + 1,
        last=end,
    )
    problem = Problem(trace.id, end - new, (text,))
    return Request(_Judging(), problem, (Message("user", text),), seed_from("judge", trace.id, new))


def parse(text: str, steps: int) -> tuple[list[float], float]:
    """Return the step scores and the trajectory's score in a judge's reply.

    The reply may contain other text. Raise `ValueError` if they aren't as requested.
    """
    reply = None
    for value in json_values(text):
        if "steps" in value:
            reply = value
    if reply is None or not isinstance(reply["steps"], list):
        raise ValueError("no scores in the reply")
    scores = list[Any]()
    for step in reply["steps"]:
        if isinstance(step, dict):
            scores.append(step.get("score"))
        else:
            scores.append(step)
    if len(scores) != steps:
        raise ValueError(f"{len(scores)} scores for {steps} steps")
    return [_score(score) for score in scores], _score(reply.get("whole"))


def _score(score: Any) -> float:
    is_number = isinstance(score, int | float) and not isinstance(score, bool)
    if not is_number or not 0 <= score <= 1:  # nan is in no range
        raise ValueError(f"{score!r:.40} is not a score from 0 to 1")
    return float(score)


class _Judging(Task):
    """Judging as a task, so that any model can do it; the oracle model gives every step a 1."""

    def problem(self, size: int, seed: int) -> Problem:
        raise NotImplementedError

    def solve(self, problem: Problem) -> str:
        return json.dumps({"steps": [1.0] * problem.size, "whole": 1.0})

    def grade(self, problem: Problem, answer: str) -> Grade:
        try:
            return Grade(correct=True, parsed=parse(answer, problem.size))
        except ValueError as error:
            return Grade(correct=False, why=str(error))
