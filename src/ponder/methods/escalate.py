"""Asks another model, or the same one with other settings, where the first answer shows a sign.

A cascade as in FrugalGPT (Chen et al. 2023), without its trained scorer: the signs are those that
`when` lists. `unparsed`: the task finds no answer in the reply. `truncated`: the reply reached its
budget. `disagree`: n answers of the first model are not all equal. `thinking_tokens >= 2000`: the
first answer took that many. `agreement < 0.6`: fewer of a vote's samples agreed (put `vote` before
`escalate`). `size >= 36` and `prompt_tokens >= 800` are known before anything is asked, so only
the other model is. A model on this machine counts the prompt; a server counts it only when it is
asked, so there it is one token per four characters.

`to` is a table as in [[model]]. Without a name it is the same model with these settings changed:
`to = { effort = "high" }`. A list of such tables is a sweep. The other model is shown the same
messages, not the first answer. Both calls are billed, each at its model's prices; in a conversation
this happens turn by turn. An attempt's details say how often: `escalated` is the fraction of its
turns that the other model answered, `second_calls` the fraction that both were asked.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, ClassVar, NamedTuple, Self

from ponder.core import (
    Batched,
    Bill,
    Completion,
    Measuring,
    Message,
    Method,
    Model,
    ModelFailure,
    Prunable,
    Request,
    Served,
    Spend,
    Task,
    TurnLimit,
    UserError,
    Wrapped,
    plugins,
    seed_from,
)
from ponder.core.wrapped import codec_name, innermost, server_of

ESCALATED = "escalated"
SECOND_CALLS = "second_calls"
AGREEMENT = "agreement"
NAMED_SIGNS = ("unparsed", "truncated", "disagree")
THRESHOLD = re.compile(
    r"(?P<name>size|prompt_tokens|thinking_tokens) *>= *(?P<least>[0-9.]+)"
    r"|(?P<low_name>agreement) *< *(?P<below>[0-9.]+)"
)
CHARACTERS_PER_TOKEN = 4


class Sign(NamedTuple):
    """One entry of `when`."""

    name: str
    threshold: float = 0.0

    @classmethod
    def parse(cls, text: str) -> Sign:
        """Read an entry of `when`; raise `UserError` if it isn't a sign."""
        if text in NAMED_SIGNS:
            return cls(text)
        match = THRESHOLD.fullmatch(text.strip())
        try:
            assert match is not None
            return cls(match["name"] or match["low_name"], float(match["least"] or match["below"]))
        except (AssertionError, ValueError):
            names = ", ".join(f'"{name}"' for name in NAMED_SIGNS)
            raise UserError(
                f"`{text}` is not a sign",
                hint=f'{names}, "size >= 36", "prompt_tokens >= 800", "thinking_tokens >= 2000", '
                '"agreement < 0.6"',
            ) from None


@dataclass(frozen=True)
class Escalate(Method, Measuring):
    to: Model  # as in [[model]]; without a name, the same model with these settings changed
    when: tuple[str, ...] = ("unparsed", "truncated")  # signs, any of which is enough
    n: int = 2  # answers of the first model that `disagree` compares

    example: ClassVar[dict[str, Any]] = {"to": {"name": "oracle"}}

    def __post_init__(self) -> None:
        if not self.when:
            raise UserError("without a sign, `escalate` does nothing", hint='when = ["truncated"]')
        self.signs  # noqa: B018 raises if one of them is unknown
        if self.n < 2:
            raise UserError(f"n is a number of answers, at least 2, not {self.n}", hint="n = 2")

    @property
    def signs(self) -> list[Sign]:
        return [Sign.parse(text) for text in self.when]

    @property
    def samples(self) -> int:
        """How many answers of the first model a turn asks for."""
        return self.n if "disagree" in self.when else 1

    def title(self) -> str:
        return f"escalate to {self.to.label or self.to.title()}"

    def turn_limit(self, inner: TurnLimit) -> TurnLimit:
        def limit(prompt_tokens: int, budget: int | None) -> Spend | None:
            first = inner(prompt_tokens, budget)
            second = self.to.turn_limit(prompt_tokens, budget)
            if first is None or second is None:
                return None
            return first.times(self.samples).plus(second.as_other(self.to.prices))

        return limit

    def asks(self) -> Sequence[Model]:
        return (self.to,)

    def measures(self) -> Collection[str]:
        return (ESCALATED, SECOND_CALLS)

    def ready(self) -> None:
        self.to.ready()

    def check(self, model: Model, task: Task) -> None:  # noqa: ARG002 `Method.check`'s
        if self.to.identity() == model.identity():
            raise UserError(
                "`to` is the model itself, so nothing would change",
                hint='name another model, or a setting to change: to = { effort = "high" }',
            )
        for checked in (model, self.to):
            server = server_of(checked)
            if isinstance(server, Batched) and server.sends_batches():
                message = "the second call can't wait a day for a batch job"
                raise UserError(message, hint="leave out `batch`")

    def apply(self, model: Model) -> Model:
        # A copy for each use: an open model belongs to one event loop, and is closed once.
        return _Escalating(model, replace(self.to), self)


class _Escalating(Wrapped):
    def __init__(self, inner: Model, other: Model, method: Escalate) -> None:
        super().__init__(inner)
        self._other = other
        self._signs = method.signs
        self._samples = method.samples
        self._slots = asyncio.Semaphore(other.concurrency)

    async def complete(self, request: Request) -> Completion:
        if self._escalates_at_once(request):
            second = await self._ask_other(request, Bill())
            return replace(second, measures=_measures(second, escalated=1.0, second_calls=0.0))
        samples = [await self.inner.complete(request)]
        if self._samples > 1:
            samples = await self.samples(request, self._samples)
        paid = Bill()
        for sample in samples:
            paid += sample.bill
        if not await self._shows_sign(request, samples):
            first = replace(samples[0], bill=paid)
            return replace(first, measures=_measures(first, escalated=0.0, second_calls=0.0))
        second = await self._ask_other(request, paid)
        return replace(second, measures=_measures(second, escalated=1.0, second_calls=1.0))

    def _escalates_at_once(self, request: Request) -> bool:
        """Return whether a sign of the request alone sends it to the other model."""
        for name, threshold in self._signs:
            if name == "size" and request.problem.size >= threshold:
                return True
            if name == "prompt_tokens" and self._prompt_tokens(request) >= threshold:
                return True
        return False

    def _prompt_tokens(self, request: Request) -> float:
        """Return the length of the prompt; a server counts it only when it is asked."""
        model = innermost(self.inner)
        tokens = None
        if isinstance(model, Prunable):
            tokens = model.prompt_tokens(request)
        elif name := codec_name(model, request.task):
            codec = plugins.codec(name, request.task.plugin_name())
            if codec is not None:
                tokens = len(codec.prompt_ids(request))
        if tokens is not None:
            return tokens
        characters = sum(len(message.content) for message in request.messages)
        return characters / CHARACTERS_PER_TOKEN

    async def _shows_sign(self, request: Request, samples: Sequence[Completion]) -> bool:
        """Return whether the first model's answers show one of the signs."""
        first = samples[0]
        answers = await self.ballots(request, samples)
        is_truncated = any(sample.stop == "length" for sample in samples)
        for name, threshold in self._signs:
            if name == "truncated" and first.stop == "length":
                return True
            if name == "unparsed" and answers[0] is None and first.stop == "end":
                return True
            if name == "disagree" and (is_truncated or None in answers or len(set(answers)) > 1):
                return True
            if name == "thinking_tokens" and first.bill.thinking_tokens >= threshold:
                return True
            if name == AGREEMENT and _agreement(first) < threshold:
                return True
        return False

    async def _ask_other(self, request: Request, paid: Bill) -> Completion:
        """Ask the other model; the reply's bill, and that of a failure, include `paid`."""
        # Signed blocks of a reply belong to the model that wrote it.
        messages = tuple(Message(message.role, message.content) for message in request.messages)
        prices = self._other.prices
        second_request = replace(
            request, messages=messages, seed=seed_from(request.seed, ESCALATED)
        )
        limit = self._other.turn_limit(second_request.prompt_limit, second_request.budget)
        if limit is None:
            limit = Spend(calls=1)
        second_request = replace(second_request, limit=limit.as_other(prices))
        try:
            async with self._slots:
                second = await self._other.complete(second_request)
        except ModelFailure as error:
            bill = (error.bill or Bill()).as_other(prices)
            raise ModelFailure(f"the second model: {error}", paid + bill) from error
        return replace(second, bill=paid + second.bill.as_other(prices), blocks="")

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self.inner)
            await stack.enter_async_context(self._other)
            if isinstance(self._other, Served):
                await self._other.reach()
            self._opened = stack.pop_all()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._opened.__aexit__(kind, error, trace)


def _measures(reply: Completion, *, escalated: float, second_calls: float) -> dict[str, float]:
    return {**reply.measures, ESCALATED: escalated, SECOND_CALLS: second_calls}


def _agreement(first: Completion) -> float:
    if AGREEMENT not in first.measures:
        raise UserError(
            "`agreement` is what the method `vote` measures",
            hint='put { name = "vote", n = 3 } before `escalate`',
        )
    return first.measures[AGREEMENT]
