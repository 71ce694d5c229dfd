"""Keeps a run's spending under the study's caps.

A cap is a reservation. A call in progress is counted at the most that it may take, its prompt and
its whole budget, until its bill arrives. Before a call starts, this must fit under the cap together
with everything spent and everything in progress. So a run never spends more than the cap, at any
concurrency. A try that gave no answer, but that the server may have billed (a timeout, a lost
connection), counts as spent, at the most that it may have taken.

This holds only if servers keep to the budget they are sent. A bill above it stops the run, and
until the first bill of a server is seen, only one call to it is in progress.

Conversations are reserved turn by turn. So that a cap doesn't leave a hundred of them half
finished, a new one starts only if there is room for the rest of those in progress too, at what
finished ones took on average.

Preparations, such as training on a teacher's samples, pay from the same ledger, through a till.
In the run's own process each call of theirs is reserved like the turn of an attempt. Another
process (`--jobs`, `--ray`) can't see the ledger: it gets an allowance, all of which counts as in
progress, and keeps a ledger of its own under it. At its end the run counts what was spent.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from ponder.core import Bill, ModelFailure, Prices, Retry, Spend, UserError
from ponder.store.store import Recorded, Store
from ponder.study.cell import StudyCell
from ponder.study.study import StudySpec

T = TypeVar("T")


class Money(NamedTuple):
    """Tokens, and their price."""

    tokens: int = 0
    cost: float = 0.0

    def plus(self, other: Money) -> Money:
        return Money(self.tokens + other.tokens, self.cost + other.cost)

    def minus(self, other: Money) -> Money:
        return Money(self.tokens - other.tokens, self.cost - other.cost)

    def at_least(self, other: Money) -> Money:
        return Money(max(self.tokens, other.tokens), max(self.cost, other.cost))

    def at_most(self, other: Money) -> Money:
        return Money(min(self.tokens, other.tokens), min(self.cost, other.cost))


NOTHING = Money()
# How much longer a prompt may be than its bound before the bill is wrong: chat templates differ,
# and some servers add a system message. A reply has no such tolerance.
PROMPT_TOLERANCE = 1.25
MOST = 2**62  # tokens, where only money has a cap


def priced(bill: Bill, prices: Prices | None) -> Money:
    """What a bill comes to, the reward's part of it included."""
    return Money(bill.total_tokens, (prices.cost(bill) if prices else 0.0) + bill.reward_cost)


def priced_at_most(spend: Spend | None, prices: Prices | None) -> Money:
    """The most that a call may take.

    A call without a limit counts as nothing: `check` refuses a cap on those.
    """
    if spend is None:
        return NOTHING
    return Money(
        spend.tokens + spend.reward_tokens,
        (prices.cost_at_most(spend) if prices else 0.0) + spend.reward_cost,
    )


def tolerated(limit: Spend | None) -> Spend | None:
    """Return the most that a call may be billed before the run stops, which is what it reserves."""
    if limit is None:
        return None
    return limit._replace(
        prompt_tokens=math.ceil(PROMPT_TOLERANCE * limit.prompt_tokens),
        reward_tokens=math.ceil(PROMPT_TOLERANCE * limit.reward_tokens),
        reward_cost=PROMPT_TOLERANCE * limit.reward_cost,
    )


def overbilled(bill: Bill, limit: Spend | None) -> str:
    """Return which part of a bill exceeds its call's limit, as a sentence; "" if none does."""
    most = tolerated(limit)
    if limit is None or most is None:
        return ""
    completion = bill.thinking_tokens + bill.answer_tokens + bill.slack.completion_tokens
    if completion > most.completion_tokens:
        allowed = f"its budget allows {limit.completion_tokens:,}"
        return f"a reply was billed {completion:,} tokens, where {allowed}"
    if bill.prompt_tokens > most.prompt_tokens:
        allowed = f"it has at most {limit.prompt_tokens:,}"
        return f"a prompt was billed {bill.prompt_tokens:,} tokens, where {allowed}"
    reward = bill.reward_prompt_tokens + bill.reward_completion_tokens
    if reward > most.reward_tokens or bill.reward_cost > most.reward_cost:
        return f"a reward was billed {reward:,} tokens, where it may take {limit.reward_tokens:,}"
    return ""


@dataclass(eq=False)
class Claim:
    """The part of the cap that one attempt holds."""

    prices: Prices | None
    server: str = ""  # which bills the calls; "" for a model on this machine
    limit: Spend | None = None  # the most that the call in progress may take
    first: bool = False  # whether it is the server's first call, during which others wait
    # what the attempt will take in all; None: none of its kind has ended yet
    forecast: Money | None = NOTHING
    turns: int = 1
    # whether the forecast is only that all turns may take as much as the first
    guessed: bool = False
    spent: Money = NOTHING
    held: Money = NOTHING  # the call in progress, at most
    preparing: bool = False  # whether it is a call of a preparation, such as a teacher's sample
    begun: bool = False  # whether it is a conversation in progress, which goes before new attempts
    calling: bool = False
    counted: Money = NOTHING  # what the ledger counts as outstanding

    def outstanding(self, held: Money) -> Money:
        return held.at_least((self.forecast or NOTHING).minus(self.spent))


@dataclass
class Ledger:
    """What has been spent and what is in progress, under the caps."""

    max_tokens: int | None = None
    max_cost: float | None = None
    before: Money = NOTHING  # what earlier runs of the study spent, if they count
    before_held: Money = NOTHING  # of that, what was in progress when such a run was killed
    spent: Money = NOTHING  # by this run, `lost` included
    lost: Money = NOTHING  # by tries without an answer that may have been billed, at most
    lost_calls: int = 0
    estimated_calls: int = 0  # for which the server reported no usage
    prepared: Money = NOTHING  # of what was spent, by preparations
    held: Money = NOTHING  # the calls in progress, at most
    refused: Money | None = None  # the first call for which there was no room
    overbilled: str = ""  # what the first bill above its limit was, and the limit
    _outstanding: Money = NOTHING  # the calls in progress, and the rest of the conversations
    calls: int = 0  # in progress
    _waiting: deque[tuple[Claim, Money, asyncio.Future[bool]]] = field(default_factory=deque)
    # conversations: how many, and their sum
    _ended: dict[Hashable, tuple[int, Money]] = field(default_factory=dict)
    _billed: set[str] = field(default_factory=set)  # servers of which a bill has been seen
    # by server: who waits for it
    _first_calls: dict[str, list[asyncio.Future[None]]] = field(default_factory=dict)

    @property
    def limited(self) -> bool:
        return self.max_tokens is not None or self.max_cost is not None

    @property
    def capped(self) -> bool:
        """Whether the run has stopped at a cap."""
        return self.refused is not None or bool(self.overbilled)

    def recorded(self) -> Recorded:
        """Return what the store should say of this run now.

        Under a cap, calls in progress are held: if the process is killed, nobody will know whether
        they were billed.
        """
        held = self.held if self.limited else NOTHING
        answered = self.spent.tokens - self.lost.tokens
        return Recorded(
            answered, self.spent.cost, self.lost.tokens, held.tokens, max(0.0, held.cost)
        )

    def open(
        self,
        prices: Prices | None,
        kind: Hashable = None,
        *,
        server: str = "",
        turns: int = 1,
        resumed: bool = False,
        preparing: bool = False,
    ) -> Claim:
        """A claim for one attempt.

        `kind` says which conversations take about the same; None: a single turn.
        """
        ended, total = self._ended.get(kind, (0, NOTHING))
        mean = Money(total.tokens // ended, total.cost / ended) if ended else None
        forecast = NOTHING if kind is None else mean
        return Claim(
            prices, server, forecast=forecast, turns=turns, begun=resumed, preparing=preparing
        )

    def left(self) -> Money | None:
        """Return what the caps leave beside everything spent and in progress; None if there is no
        cap.
        """
        if not self.limited:
            return None
        used = self.before.plus(self.spent).plus(self._outstanding)
        tokens = MOST if self.max_tokens is None else max(0, self.max_tokens - used.tokens)
        return Money(
            tokens, math.inf if self.max_cost is None else max(0.0, self.max_cost - used.cost)
        )

    def hold(self, claim: Claim, amount: Money) -> None:
        """Hold an amount that fits under the caps, for calls that another process pays."""
        self._grant(claim, amount)

    def pay(self, claim: Claim, spent: Money, lost: Money, lost_calls: int) -> None:
        """Count what another process has paid of what it was given, and release the rest."""
        self.spent, self.prepared = self.spent.plus(spent), self.prepared.plus(spent)
        self.lost, self.lost_calls = self.lost.plus(lost), self.lost_calls + lost_calls
        self.close(claim)

    async def reserve(self, claim: Claim, call: Spend | None) -> bool:
        """Wait until the most that a call may take fits under the caps; False if there is no room
        for it.
        """
        claim.limit = call
        await self._after_first_call(claim)
        granted = False
        try:
            granted = await self._reserve(claim, call)
        finally:
            if not granted:
                self._end_first_call(claim)
        return granted

    async def _after_first_call(self, claim: Claim) -> None:
        """Wait while a server's first call is in progress: until its bill is seen, nobody knows how
        it bills.
        """
        if not self.limited or not claim.server:
            return
        while claim.server in self._first_calls:
            ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._first_calls[claim.server].append(ended)
            await ended
        if claim.server not in self._billed:
            self._first_calls[claim.server] = []
            claim.first = True

    def _end_first_call(self, claim: Claim) -> None:
        if not claim.first:
            return
        claim.first = False
        for waiting in self._first_calls.pop(claim.server):
            if not waiting.done():
                waiting.set_result(None)

    async def _reserve(self, claim: Claim, call: Spend | None) -> bool:
        wanted = priced_at_most(tolerated(call), claim.prices)
        if self.overbilled:
            return False
        if claim.forecast is None:
            claim.forecast, claim.guessed = (
                Money(wanted.tokens * claim.turns, wanted.cost * claim.turns),
                True,
            )
        if (not self._waiting or claim.begun) and self._fits(claim, wanted):
            self._grant(claim, wanted)
            return True
        if self.capped or not self.calls:
            self.refused = self.refused or wanted
            return False
        granted: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        # A conversation in progress goes before a new attempt.
        (self._waiting.appendleft if claim.begun else self._waiting.append)(
            (claim, wanted, granted)
        )
        return await granted

    def _grant(self, claim: Claim, wanted: Money) -> None:
        claim.calling, self.calls = True, self.calls + 1
        self._hold(claim, wanted)

    def _hold(self, claim: Claim, held: Money, *, closed: bool = False) -> None:
        outstanding = NOTHING if closed else claim.outstanding(held)
        self._outstanding = self._outstanding.plus(outstanding).minus(claim.counted)
        self.held = self.held.plus(held).minus(claim.held)
        claim.held, claim.counted = held, outstanding

    def _fits(self, claim: Claim, wanted: Money) -> bool:
        if not self.limited:
            return True
        if not self.calls and (claim.begun or claim.guessed):
            # Nothing is in progress: what others may still take must not stop a conversation that
            # has room for a turn, nor a guess the first one, which will tell what one takes.
            return self._under(wanted)
        others = self._outstanding.minus(claim.counted)
        return self._under(others.plus(claim.outstanding(wanted)))

    def _under(self, more: Money) -> bool:
        total = self.before.plus(self.spent).plus(more)
        over_tokens = self.max_tokens is not None and total.tokens > self.max_tokens
        # Sums of floats that should be equal differ in the last digits.
        over_cost = self.max_cost is not None and total.cost > self.max_cost * (1 + 1e-9)
        return not (over_tokens or over_cost)

    def settle(self, claim: Claim, bill: Bill | None) -> None:
        """A call has ended, with a bill or without."""
        paid = NOTHING
        if bill:
            paid = priced(bill, claim.prices)
            if self.limited and bill.slack != Spend():
                self.estimated_calls += 1
                paid = paid.plus(priced_at_most(bill.slack, claim.prices)).at_most(claim.held)
            claim.begun = True
            self._billed.add(claim.server)
            self.check_bill(bill, claim.limit)
        self._count(claim, paid)
        self._end_call(claim)
        self._hold(claim, NOTHING)
        self._serve()

    def check_bill(self, bill: Bill, limit: Spend | None) -> None:
        """Stop the run if a bill is above its call's limit under a cap: others may be too."""
        if self.limited and not self.overbilled:
            self.overbilled = overbilled(bill, limit)

    def _count(self, claim: Claim, paid: Money) -> None:
        self.spent, claim.spent = self.spent.plus(paid), claim.spent.plus(paid)
        if claim.preparing:
            self.prepared = self.prepared.plus(paid)

    def _end_call(self, claim: Claim) -> None:
        self.calls -= claim.calling
        claim.calling = False
        self._end_first_call(claim)

    def lose(self, claim: Claim, call: Spend | None) -> None:
        """Calls gave no answer and may have been billed."""
        gone = priced_at_most(tolerated(call), claim.prices)
        self.spent, self.lost = self.spent.plus(gone), self.lost.plus(gone)
        if claim.preparing:
            self.prepared = self.prepared.plus(gone)
        self.lost_calls += call.calls if call else 1

    def has_room(self) -> bool:
        """Return whether what is in progress still fits, after tries were lost."""
        if not self.limited or self._under(self.held):
            return True
        self.refused = self.refused or self.held
        return False

    def check_room(self) -> None:
        """Raise `ModelFailure` if what is in progress no longer fits, because tries were lost."""
        if not self.has_room():
            raise ModelFailure("no answer, and the study's cap leaves no room for another try")

    def close(self, claim: Claim, kind: Hashable = None, *, complete: bool = False) -> None:
        """The attempt has ended; if it is complete, it tells what others of its kind will take."""
        if complete and kind is not None:
            ended, total = self._ended.get(kind, (0, NOTHING))
            self._ended[kind] = ended + 1, total.plus(claim.spent)
        self._end_call(claim)
        self._hold(claim, NOTHING, closed=True)
        self._serve()

    def _serve(self) -> None:
        """Grant what fits now to those that wait, in their order.

        If nothing is in progress, nothing more will fit.
        """
        while self._waiting:
            claim, wanted, granted = self._waiting[0]
            if not granted.done() and not self.overbilled and self._fits(claim, wanted):
                self._grant(claim, wanted)
                granted.set_result(True)
            elif not granted.done() and self.calls and not self.overbilled:
                return
            elif not granted.done():
                self.refused = self.refused or wanted
                granted.set_result(False)
            self._waiting.popleft()


def check(cells: Iterable[StudyCell], max_tokens: int | None, max_cost: float | None) -> None:
    """Raise `UserError` if a cap could not be kept, or if costs can't be added up.

    A cap needs a limit of each reply and, if it is on money, a price of each model.
    """
    cells = list(cells)
    if max_tokens is not None or max_cost is not None:
        _check_caps(cells, "max_tokens" if max_cost is None else "max_cost")
    names = currencies(cells)
    if len(names) > 1:
        what = f"the models' prices are in different currencies: {', '.join(sorted(names))}"
        raise UserError(what, hint="give all `prices` in one currency")


def _check_caps(cells: Iterable[StudyCell], key: str) -> None:
    """Raise `UserError` if the cap of this key could not be kept."""
    for cell in {cell.model_key: cell for cell in cells}.values():
        if cell.turn_limit(0, None) is None:
            what = f"{key} can't be kept: a reply of `{cell.label.model}` has no limit"
            hint, in_python = (
                "give its [[model]] a `budget`, in completion tokens",
                'model={…, "budget": 4096}',
            )
            raise UserError(what, hint=hint, in_python=in_python)
        others = [*cell.asks(), *cell.prepared_by()]
        for other in others:
            if other.turn_limit(0) is None:
                what = f"{key} can't be kept: a reply of `{other.title()}`, which `{cell.label.model}` asks, has no limit"
                raise UserError(
                    what,
                    hint="give it a `budget`, in completion tokens: model = { …, budget = 4096 }",
                )
        for model, name in (
            (cell.model, cell.label.model),
            *((other, other.title()) for other in others),
        ):
            if key == "max_cost" and model.prices is None and model.server():
                what = f"max_cost can't be kept: `{name}` has no prices"
                hint = (
                    "prices = { input = 0.5, output = 2.0 }, per million tokens, in its [[model]]"
                )
                in_python = 'model={…, "prices": {"input": 0.5, "output": 2.0}}, per million tokens'
                raise UserError(what, hint=hint, in_python=in_python)


def currency(cells: Iterable[StudyCell]) -> str:
    """Return the currency of the models' prices; "" if none has any, or if they differ."""
    names = currencies(cells)
    return names.pop() if len(names) == 1 else ""


def currencies(cells: Iterable[StudyCell]) -> set[str]:
    """Return the currencies of all prices, also of models that methods ask."""
    names = set()
    for cell in cells:
        for model in (cell.model, *cell.asks(), *cell.prepared_by()):
            if model.prices:
                names.add(model.prices.currency)
    return names


def opened_ledger(study: StudySpec, store: Store) -> Ledger:
    """Return a ledger under the study's caps, with what earlier runs of it have spent if they
    count.
    """
    if study.cap_per == "run":
        return Ledger(study.max_tokens, study.max_cost)
    before, held = Money(*store.spent_by_runs(study.name)), Money(*store.held_by_runs(study.name))
    return Ledger(study.max_tokens, study.max_cost, before, held)


class Account(NamedTuple):
    """What another process has spent of its allowance."""

    spent: Money = NOTHING  # `lost` included
    lost: Money = NOTHING
    lost_calls: int = 0
    refused: Money | None = None  # the first call for which there was no room
    overbilled: str = ""


async def _unrecorded() -> None:
    pass


def _unheard(retry: Retry) -> None:
    pass


@dataclass
class LedgerTill:
    """Pays from a ledger in the same event loop."""

    ledger: Ledger
    # puts on record what is held, before a call is sent
    record: Callable[[], Awaitable[None]] = _unrecorded
    on_retry: Callable[[Retry], None] = _unheard
    _claims: dict[int, Claim] = field(default_factory=dict)

    async def reserve(
        self, call: int, model: str, limit: Spend | None, prices: Prices | None, server: str = ""
    ) -> bool:
        self._check(model, limit)
        claim = self.ledger.open(prices, server=server, preparing=True)
        try:
            granted = not self.ledger.capped and await self.ledger.reserve(claim, limit)
            if granted and self.ledger.limited:
                await self.record()
        except BaseException:
            self.ledger.close(claim)
            raise
        if granted:
            self._claims[call] = claim
        return granted

    def _check(self, model: str, limit: Spend | None) -> None:
        """Raise `UserError` for a call that no cap can hold: before it is sent."""
        if self.ledger.limited and limit is None:
            key = "max_cost" if self.ledger.max_tokens is None else "max_tokens"
            what = f"{key} can't be kept: a reply of `{model}`, which a method asks, has no limit"
            raise UserError(what, hint="give it a `budget`, in completion tokens")

    def settle(self, call: int, bill: Bill | None) -> None:
        claim = self._claims.pop(call)
        self.ledger.settle(claim, bill)
        self.ledger.close(claim)

    def lose(self, call: int, spend: Spend) -> None:
        self.ledger.lose(self._claims[call], spend)

    def retried(self, retry: Retry) -> None:
        self.on_retry(retry)

    def has_room(self) -> bool:
        return self.ledger.has_room()

    def account(self) -> Account:
        ledger = self.ledger
        return Account(
            ledger.spent, ledger.lost, ledger.lost_calls, ledger.refused, ledger.overbilled
        )


@dataclass
class LoopTill:
    """Pays from the ledger of another thread's event loop."""

    till: LedgerTill
    loop: asyncio.AbstractEventLoop

    async def reserve(
        self, call: int, model: str, limit: Spend | None, prices: Prices | None, server: str = ""
    ) -> bool:
        reserved = asyncio.run_coroutine_threadsafe(
            self.till.reserve(call, model, limit, prices, server), self.loop
        )
        return await asyncio.wrap_future(reserved)

    def _there(self, work: Callable[..., T], *arguments: Any) -> T:
        async def done() -> T:
            return work(*arguments)

        return asyncio.run_coroutine_threadsafe(done(), self.loop).result()

    def settle(self, call: int, bill: Bill | None) -> None:
        self._there(self.till.settle, call, bill)

    def lose(self, call: int, spend: Spend) -> None:
        self._there(self.till.lose, call, spend)

    def retried(self, retry: Retry) -> None:
        self._there(self.till.retried, retry)

    def has_room(self) -> bool:
        return self._there(self.till.has_room)
