"""Keeps a run's spending under the study's caps.

A cap is a reservation. A call in progress is counted at the most that it may take, its prompt and
its whole budget, until its bill arrives. Before a call starts, this must fit under the cap together
with everything spent and everything in progress. So a run never spends more than the cap, at any
concurrency. A try that gave no answer, but that the server may have billed (a timeout, a lost
connection), counts as spent, at the most that it may have taken.

A request in a batch job is counted in the store with its job, not with its run: if the process is
killed, the next run takes over both the job and what it holds.

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
from ponder.core.nouns import cost_of
from ponder.store.store import Recorded, Store
from ponder.study.cell import StudyCell
from ponder.study.prices import HINT
from ponder.study.study import StudySpec

T = TypeVar("T")


class Money(NamedTuple):
    """Tokens, and their price."""

    tokens: int = 0
    cost: float = 0.0

    def plus(self, amount: Money) -> Money:
        return Money(self.tokens + amount.tokens, self.cost + amount.cost)

    def minus(self, amount: Money) -> Money:
        return Money(self.tokens - amount.tokens, self.cost - amount.cost)

    def at_least(self, amount: Money) -> Money:
        return Money(max(self.tokens, amount.tokens), max(self.cost, amount.cost))

    def at_most(self, amount: Money) -> Money:
        return Money(min(self.tokens, amount.tokens), min(self.cost, amount.cost))


NOTHING = Money()
# How much longer a prompt may be than its bound before the bill is wrong: chat templates differ,
# and some servers add a system message. A reply has no such tolerance.
PROMPT_TOLERANCE = 1.25
MOST = 2**62  # tokens, where only money has a cap


def priced(bill: Bill, prices: Prices | None) -> Money:
    """Return the tokens of a bill and their price, the reward's part included."""
    cost = cost_of(bill, prices)
    if cost is None:
        cost = bill.reward_cost
    return Money(bill.total_tokens, cost)


def priced_at_most(spend: Spend | None, prices: Prices | None) -> Money:
    """Return the most that a call may take, in tokens and money.

    A call without a limit counts as nothing: `check` refuses a cap on those.
    """
    if spend is None:
        return NOTHING
    cost = spend.other_cost
    if prices:
        cost = prices.cost_at_most(spend)
    return Money(spend.tokens + spend.reward_tokens, cost + spend.reward_cost)


def tolerated(limit: Spend | None) -> Spend | None:
    """Return the most that a call may be billed before the run stops, which is what it reserves."""
    if limit is None:
        return None
    return limit._replace(
        prompt_tokens=math.ceil(PROMPT_TOLERANCE * limit.prompt_tokens),
        reward_tokens=math.ceil(PROMPT_TOLERANCE * limit.reward_tokens),
        reward_cost=PROMPT_TOLERANCE * limit.reward_cost,
        other_prompt_tokens=math.ceil(PROMPT_TOLERANCE * limit.other_prompt_tokens),
        other_cost=PROMPT_TOLERANCE * limit.other_cost,
    )


def overbilled(bill: Bill, limit: Spend | None) -> str:
    """Return which part of a bill exceeds its call's limit, as a sentence; "" if none does."""
    tolerance = tolerated(limit)
    if limit is None or tolerance is None:
        return ""
    completion = bill.thinking_tokens + bill.answer_tokens + bill.slack.completion_tokens
    if completion > tolerance.completion_tokens:
        allowed = f"its budget allows {limit.completion_tokens:,}"
        if bill.slack.completion_tokens > 0:
            return f"a reply may have taken {completion:,} tokens by its text, where {allowed}"
        return f"a reply was billed {completion:,} tokens, where {allowed}"
    if bill.prompt_tokens > tolerance.prompt_tokens:
        allowed = f"it has at most {limit.prompt_tokens:,}"
        return f"a prompt was billed {bill.prompt_tokens:,} tokens, where {allowed}"
    reward = bill.reward_prompt_tokens + bill.reward_completion_tokens
    if reward > tolerance.reward_tokens or bill.reward_cost > tolerance.reward_cost:
        return f"a reward was billed {reward:,} tokens, where it may take {limit.reward_tokens:,}"
    return ""


@dataclass(eq=False)
class Reservation:
    """The part of the cap that one attempt holds, or one call of a preparation."""

    prices: Prices | None
    server: str = ""  # which bills the calls; "" for a model on this machine
    turns: int = 1
    preparing: bool = False  # whether it is a call of a preparation, such as a teacher's sample
    # whether it is a conversation in progress, which goes before new attempts
    begun: bool = False
    # what the attempt will take in all; None: no conversation of its kind has ended yet
    forecast: Money | None = NOTHING
    # whether the forecast is only a guess: that every turn may take as much as the first
    guessed: bool = False
    spent: Money = NOTHING

    # The call in progress.
    calling: bool = False
    limit: Spend | None = None  # the most that the call may take
    first: bool = False  # whether it is the server's first call, during which others wait
    held: Money = NOTHING  # the call at its limit
    outstanding: Money = NOTHING  # the call, or the rest of the conversation if that is more
    # what requests of the call hold in open jobs of the store, which an earlier run has sent
    resumed: Money = NOTHING
    in_jobs: Money = NOTHING  # of `held`, what the store counts as requests in jobs

    def outstanding_with(self, held: Money) -> Money:
        """Return what the attempt may still take if a call holds this amount."""
        rest_of_forecast = (self.forecast or NOTHING).minus(self.spent)
        return held.at_least(rest_of_forecast)


class _Waiting(NamedTuple):
    """A call that waits until others have ended."""

    reservation: Reservation
    amount: Money
    granted: asyncio.Future[bool]


@dataclass
class Ledger:
    """What was spent and what is in progress, under the caps.

    Why a cap holds: whatever may be billed is in `spent`, or in `held` while its call is in
    progress, each time at the most that it can come to. Only `_grant` holds more, and only where
    `_fits` has found room for it beside all the rest. When a call ends, `settle` moves its bill
    from `held` to `spent`; a bill above what was held stops the run (`check_bill`). A try that was
    lost is spent (`lose`), and its call goes on only if both still fit (`check_room`).
    """

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
    in_jobs: Money = NOTHING  # of `held`, what the store counts as requests in jobs
    jobs: Money = NOTHING  # requests in jobs of earlier runs that no call of this run waits for
    calls: int = 0  # in progress
    refused: Money | None = None  # the first call for which there was no room
    overbilled: str = (
        ""  # the first bill above its limit, as a sentence; under a cap it ends the run
    )
    above_budget: str = ""  # the same, of a run without a cap
    _outstanding: Money = NOTHING  # the calls in progress, and the rest of the conversations
    _waiting: deque[_Waiting] = field(default_factory=deque)
    # finished conversations of each kind: how many, and their sum
    _ended: dict[Hashable, tuple[int, Money]] = field(default_factory=dict)
    _billed: set[str] = field(default_factory=set)  # servers of which a bill has been seen
    # by server: the calls that wait until its first bill is seen
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
        held = NOTHING
        if self.limited:
            held = self.held.minus(self.in_jobs)  # which the store counts with their jobs
        return Recorded(
            self.spent.tokens - self.lost.tokens,
            self.spent.cost,
            self.lost.tokens,
            max(0, held.tokens),
            max(0.0, held.cost),
        )

    # An attempt: `open`, then `reserve` and `settle` for each turn, then `close`.

    def open(
        self,
        prices: Prices | None,
        kind: Hashable = None,
        *,
        server: str = "",
        turns: int = 1,
        resumed: bool = False,
        preparing: bool = False,
    ) -> Reservation:
        """Return a reservation for one attempt, which holds nothing yet.

        `kind` says which conversations take about the same; None: a single turn.
        """
        forecast: Money | None = NOTHING
        if kind is not None:
            forecast = self._mean_of_ended(kind)
        return Reservation(
            prices, server, turns, preparing=preparing, begun=resumed, forecast=forecast
        )

    def _mean_of_ended(self, kind: Hashable) -> Money | None:
        if kind not in self._ended:
            return None
        ended, total = self._ended[kind]
        return Money(total.tokens // ended, total.cost / ended)

    async def reserve(self, reservation: Reservation, call: Spend | None) -> bool:
        """Wait until the most that a call may take fits under the caps.

        Return False if there is no room for it, and there will be none.
        """
        reservation.limit = call
        await self._wait_for_first_call(reservation)
        granted = False
        try:
            granted = await self._reserve(reservation, call)
        finally:
            if not granted:
                self._end_first_call(reservation)
        return granted

    async def _wait_for_first_call(self, reservation: Reservation) -> None:
        """Wait while a server's first call is in progress: its bill shows how the server bills."""
        server = reservation.server
        if not self.limited or not server:
            return
        while server in self._first_calls:
            ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._first_calls[server].append(ended)
            await ended
        if server not in self._billed:
            self._first_calls[server] = []
            reservation.first = True

    def _end_first_call(self, reservation: Reservation) -> None:
        if not reservation.first:
            return
        reservation.first = False
        for waiting in self._first_calls.pop(reservation.server):
            if not waiting.done():
                waiting.set_result(None)

    async def _reserve(self, reservation: Reservation, call: Spend | None) -> bool:
        amount = priced_at_most(tolerated(call), reservation.prices)
        if self.overbilled:
            return False
        if reservation.forecast is None:
            turns = reservation.turns
            reservation.forecast = Money(amount.tokens * turns, amount.cost * turns)
            reservation.guessed = True
        is_next = not self._waiting or reservation.begun or reservation.resumed != NOTHING
        if is_next and self._fits(reservation, amount):
            self._grant(reservation, amount)
            return True
        if self.capped or not self.calls:  # nothing in progress will make room
            self.refused = self.refused or amount
            return False
        waiting = _Waiting(reservation, amount, asyncio.get_running_loop().create_future())
        if reservation.begun:  # a conversation in progress goes before a new attempt
            self._waiting.appendleft(waiting)
        else:
            self._waiting.append(waiting)
        return await waiting.granted

    def _fits(self, reservation: Reservation, amount: Money) -> bool:
        """Tell whether a call fits under the caps beside everything spent and in progress."""
        if not self.limited:
            return True
        if not self.calls and (reservation.begun or reservation.guessed):
            # Nothing is in progress: what other conversations may still take must not stop one that
            # has room for a turn, nor a guess the first one, which will show what one takes.
            return self._under_caps(amount.minus(reservation.resumed))
        elsewhere = self._outstanding.minus(reservation.outstanding).minus(reservation.resumed)
        return self._under_caps(elsewhere.plus(reservation.outstanding_with(amount)))

    def _under_caps(self, amount: Money) -> bool:
        """Tell whether this amount, with everything spent, is under the caps."""
        total = self.before.plus(self.jobs).plus(self.spent).plus(amount)
        if self.max_tokens is not None and total.tokens > self.max_tokens:
            return False
        # Sums of floats that should be equal differ in the last digits.
        return self.max_cost is None or total.cost <= self.max_cost * (1 + 1e-9)

    def _grant(self, reservation: Reservation, amount: Money) -> None:
        reservation.calling = True
        self.calls += 1
        # From here on the call holds what its requests in jobs have held.
        self.jobs = self.jobs.minus(reservation.resumed)
        self.put_in_jobs(reservation, reservation.resumed)
        reservation.resumed = NOTHING
        self._hold(reservation, amount, reservation.outstanding_with(amount))

    def _hold(self, reservation: Reservation, held: Money, outstanding: Money) -> None:
        """Replace what a reservation holds, and what may still be outstanding of it."""
        self.held = self.held.plus(held).minus(reservation.held)
        self._outstanding = self._outstanding.plus(outstanding).minus(reservation.outstanding)
        reservation.held = held
        reservation.outstanding = outstanding

    def put_in_jobs(self, reservation: Reservation, amount: Money) -> None:
        """Note how much of what a call holds the store counts as requests in jobs."""
        self.in_jobs = self.in_jobs.plus(amount).minus(reservation.in_jobs)
        reservation.in_jobs = amount

    def settle(self, reservation: Reservation, bill: Bill | None) -> None:
        """Count the bill of a call that has ended, and release what it held.

        Without a bill it has spent nothing; `lose` counts what it may have been billed.
        """
        if bill:
            paid = priced(bill, reservation.prices)
            if self.limited and bill.slack != Spend():
                self.estimated_calls += 1
                slack = priced_at_most(bill.slack, reservation.prices)
                paid = paid.plus(slack)
                if not overbilled(bill, reservation.limit):
                    paid = paid.at_most(reservation.held)
            reservation.begun = True
            reservation.spent = reservation.spent.plus(paid)
            self._spend(reservation, paid)
            self._billed.add(reservation.server)
            self.check_bill(bill, reservation.limit)
            self._check_cost(bill, reservation)
        self._end_call(reservation)
        self.put_in_jobs(reservation, NOTHING)
        self._hold(reservation, NOTHING, reservation.outstanding_with(NOTHING))
        self._grant_waiting()

    def check_bill(self, bill: Bill, limit: Spend | None) -> None:
        """Stop the run if a bill is above its call's limit under a cap: others may be too."""
        if self.limited:
            self.overbilled = self.overbilled or overbilled(bill, limit)
        else:
            self.above_budget = self.above_budget or overbilled(bill, limit)

    def _check_cost(self, bill: Bill, reservation: Reservation) -> None:
        """Stop the run if a server charged more than was reserved: its price is higher."""
        if self.max_cost is None or self.overbilled or bill.cost is None:
            return
        charged = priced(bill, reservation.prices).cost
        if charged > reservation.held.cost * (1 + 1e-9):
            reserved = f"its tokens cost at most {reservation.held.cost:.3g} by the model's prices"
            self.overbilled = f"a reply was charged {charged:.3g} USD, where {reserved}"

    def lose(self, reservation: Reservation, call: Spend | None) -> None:
        """Count calls that gave no answer and may have been billed, at the most they may take."""
        lost = priced_at_most(tolerated(call), reservation.prices)
        self._spend(reservation, lost)
        self.lost = self.lost.plus(lost)
        self.lost_calls += call.calls if call else 1

    def _spend(self, reservation: Reservation, amount: Money) -> None:
        self.spent = self.spent.plus(amount)
        if reservation.preparing:
            self.prepared = self.prepared.plus(amount)

    def _end_call(self, reservation: Reservation) -> None:
        if reservation.calling:
            reservation.calling = False
            self.calls -= 1
        self._end_first_call(reservation)

    def close(
        self, reservation: Reservation, kind: Hashable = None, *, complete: bool = False
    ) -> None:
        """End an attempt; a complete one shows what others of its kind will take."""
        if complete and kind is not None:
            ended, total = self._ended.get(kind, (0, NOTHING))
            self._ended[kind] = (ended + 1, total.plus(reservation.spent))
        self._end_call(reservation)
        self._hold(reservation, NOTHING, outstanding=NOTHING)
        self._grant_waiting()

    def _grant_waiting(self) -> None:
        """Grant what fits now to the calls that wait, in their order.

        If nothing is in progress, nothing more will fit, and they are refused.
        """
        while self._waiting:
            reservation, amount, granted = self._waiting[0]
            if granted.done():  # cancelled
                self._waiting.popleft()
                continue
            if not self.overbilled and self._fits(reservation, amount):
                self._grant(reservation, amount)
                granted.set_result(True)
            elif self.calls and not self.overbilled:
                return
            else:
                self.refused = self.refused or amount
                granted.set_result(False)
            self._waiting.popleft()

    # Tries that were lost take room from the calls in progress.

    def has_room(self) -> bool:
        """Tell whether what is in progress still fits, after tries were lost."""
        if not self.limited or self._under_caps(self.held):
            return True
        self.refused = self.refused or self.held
        return False

    def check_room(self) -> None:
        """Raise `ModelFailure` if what is in progress no longer fits, because tries were lost."""
        if not self.has_room():
            raise ModelFailure("no answer, and the study's cap leaves no room for another try")

    # Other processes, which can't reserve call by call.

    def remaining(self) -> Money | None:
        """Return what is left of the caps, minus calls in progress; None without a cap."""
        if not self.limited:
            return None
        taken_up = self.before.plus(self.jobs).plus(self.spent).plus(self._outstanding)
        tokens = MOST
        if self.max_tokens is not None:
            tokens = max(0, self.max_tokens - taken_up.tokens)
        cost = math.inf
        if self.max_cost is not None:
            cost = max(0.0, self.max_cost - taken_up.cost)
        return Money(tokens, cost)

    def hold(self, reservation: Reservation, amount: Money) -> None:
        """Hold an amount that fits under the caps, for calls that another process pays."""
        self._grant(reservation, amount)

    def pay(self, reservation: Reservation, spent: Money, lost: Money, lost_calls: int) -> None:
        """Count what another process has paid of what it was given, and release the rest."""
        self._spend(reservation, spent)
        self.lost = self.lost.plus(lost)
        self.lost_calls += lost_calls
        self.close(reservation)


def check(cells: Iterable[StudyCell], max_tokens: int | None, max_cost: float | None) -> None:
    """Raise `UserError` if a cap could not be kept, or if costs can't be added up.

    A cap needs a limit of each reply and, if it is on money, a price of each model.
    """
    cells = list(cells)
    if max_tokens is not None or max_cost is not None:
        _check_caps(cells, "max_tokens" if max_cost is None else "max_cost")
    names = currencies(cells)
    if len(names) > 1:
        message = f"the models' prices are in different currencies: {', '.join(sorted(names))}"
        raise UserError(message, hint="give all `prices` in one currency")


def _check_caps(cells: Iterable[StudyCell], key: str) -> None:
    """Raise `UserError` if the cap of this key could not be kept."""
    for cell in {cell.model_key: cell for cell in cells}.values():
        name = cell.label.model
        models = [(name, cell.model)]
        for helper in cell.other_models():
            models.append((helper.title(), helper))
            if helper.turn_limit(0) is None:
                reply = f"a reply of `{helper.title()}`, which `{name}` asks, has no limit"
                raise UserError(
                    f"{key} can't be kept: {reply}",
                    hint="give it a `budget`, in completion tokens: model = { …, budget = 4096 }",
                )
        if cell.turn_limit(0, None) is None:
            raise UserError(
                f"{key} can't be kept: a reply of `{name}` has no limit",
                hint="give its [[model]] a `budget`, in completion tokens",
                in_python='model={…, "budget": 4096}',
            )
        for name, model in models:
            if key == "max_cost" and model.prices is None and model.server():
                raise UserError(
                    f"max_cost can't be kept: `{name}` has no prices",
                    hint=HINT,
                    in_python='model={…, "prices": {"input": 0.5, "output": 2.0}}, '
                    "per million tokens",
                )


def currency(cells: Iterable[StudyCell]) -> str:
    """Return the currency of the models' prices; "" if none has any, or if they differ."""
    names = currencies(cells)
    return names.pop() if len(names) == 1 else ""


def currencies(cells: Iterable[StudyCell]) -> set[str]:
    """Return the currencies of all prices, also of models that methods ask."""
    names = set()
    for cell in cells:
        for model in (cell.model, *cell.other_models()):
            if model.prices:
                names.add(model.prices.currency)
    return names


def opened_ledger(study: StudySpec, store: Store) -> Ledger:
    """Return a ledger under the study's caps; earlier runs count unless the caps are per run."""
    if study.cap_per == "run":
        return Ledger(study.max_tokens, study.max_cost)
    before = Money(*store.spent_by_runs(study.name))
    held = Money(*store.held_by_runs(study.name))
    jobs = Money(*store.held_by_jobs(study.name))
    return Ledger(study.max_tokens, study.max_cost, before, held, jobs=jobs)


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
    # stores what is held, before a call is sent
    record: Callable[[], Awaitable[None]] = _unrecorded
    on_retry: Callable[[Retry], None] = _unheard
    _reservations: dict[int, Reservation] = field(default_factory=dict)

    async def reserve(
        self, call: int, model: str, limit: Spend | None, prices: Prices | None, server: str = ""
    ) -> bool:
        self._check(model, limit)
        reservation = self.ledger.open(prices, server=server, preparing=True)
        try:
            granted = not self.ledger.capped and await self.ledger.reserve(reservation, limit)
            if granted and self.ledger.limited:
                await self.record()
        except BaseException:
            self.ledger.close(reservation)
            raise
        if granted:
            self._reservations[call] = reservation
        return granted

    def _check(self, model: str, limit: Spend | None) -> None:
        """Raise `UserError` for a call that no cap can hold: before it is sent."""
        if self.ledger.limited and limit is None:
            key = "max_cost" if self.ledger.max_tokens is None else "max_tokens"
            message = (
                f"{key} can't be kept: a reply of `{model}`, which a method asks, has no limit"
            )
            raise UserError(message, hint="give it a `budget`, in completion tokens")

    def settle(self, call: int, bill: Bill | None) -> None:
        reservation = self._reservations.pop(call)
        self.ledger.settle(reservation, bill)
        self.ledger.close(reservation)

    def lose(self, call: int, spend: Spend) -> None:
        self.ledger.lose(self._reservations[call], spend)

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

    def _call(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call a function in the ledger's thread, and return its result."""

        async def call() -> T:
            return function(*arguments)

        return asyncio.run_coroutine_threadsafe(call(), self.loop).result()

    def settle(self, call: int, bill: Bill | None) -> None:
        self._call(self.till.settle, call, bill)

    def lose(self, call: int, spend: Spend) -> None:
        self._call(self.till.lose, call, spend)

    def retried(self, retry: Retry) -> None:
        self._call(self.till.retried, retry)

    def has_room(self) -> bool:
        return self._call(self.till.has_room)
