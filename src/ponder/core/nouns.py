"""The nouns: frozen dataclasses that pass from one stage of the pipeline to the next.

A task makes a `Problem`. A model answers a `Request` with a `Completion`, which carries its `Bill`.
The task's `Grade` turns completions into an `Attempt`, which the store keeps. Statistics read
attempts as `Outcome` rows, without text, and return `Estimate`: a value with its interval.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from ponder.core.errors import UserError

if TYPE_CHECKING:
    from asyncio import Lock

    from ponder.core.cell import Cell
    from ponder.core.contracts import Task

Role: TypeAlias = Literal["system", "user", "assistant"]
# Who counted the tokens of a bill, the most reliable first.
CountedBy: TypeAlias = Literal["server", "tokenizer", "estimate"]
# How an attempt ended. `open` is a conversation in progress; the others are final.
Ended: TypeAlias = Literal["open", "right", "wrong", "unparsed", "truncated", "failed"]
# What of a reply later turns show: its parsed answer, the text a user would see, or all of it.
Remember: TypeAlias = Literal["answers", "visible", "all"]
# Which part of a trace.
Part: TypeAlias = Literal["all", "thinking", "answer"]
# Which tokens of a reply; output is thinking and answer together.
TokenKind: TypeAlias = Literal["output", "thinking", "answer"]
# What an attempt took, as figures measure it: tokens of a kind, money, or seconds.
Resource: TypeAlias = Literal["output", "thinking", "answer", "cost", "seconds"]
# The same where the kind of tokens is another setting, or is always output.
Measure: TypeAlias = Literal["tokens", "cost", "seconds"]
# The rows of a table, and the named tables that a figure is drawn from: plain JSON values.
Records: TypeAlias = list[dict[str, Any]]
Tables: TypeAlias = dict[str, Records]
# One progress report of a long job, such as {"step": 50, "of": 400, "loss": 0.7}.
Progress: TypeAlias = dict[str, Any]
# Computes an upper bound on what one turn may spend from its prompt tokens and the budget of its
# reply; None if there is no limit.
TurnLimit: TypeAlias = "Callable[[int, int | None], Spend | None]"

# The detail of an attempt that holds `Bill.cost`.
BILLED_COST = "billed_cost"
# The fields of a bill with a reward's part, and the details of an attempt that hold them.
REWARD = ("reward_prompt_tokens", "reward_completion_tokens", "reward_cost")
# The same of another model.
OTHER_MODEL = ("other_prompt_tokens", "other_completion_tokens", "other_cost")


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a chat."""

    role: Role
    content: str


@dataclass(frozen=True, slots=True)
class SignedMessage(Message):
    """A reply in a chat as its server must get it back: thinking blocks with their signatures."""

    blocks: str  # JSON, as the protocol wrote it


def token_limit(messages: Iterable[Message], known: Mapping[Message, int] | None = None) -> int:
    """Return an upper bound on the tokens of messages, without a tokenizer.

    A tokenizer makes at most one token per byte, and a chat template adds some. `known` has the
    billed tokens of messages that a model wrote; encoded again, a text may take a quarter more.
    """
    total = 64
    for message in messages:
        text = message.content
        if isinstance(message, SignedMessage):
            text = message.blocks
        limit: float = len(text.encode("utf-8", "replace"))
        if known and message in known:
            limit = min(limit, 1.25 * known[message])
        total += int(limit) + 16
    return total


@dataclass(frozen=True, slots=True)
class Problem:
    """One instance of a task. Equal content has an equal id, in every study."""

    id: str
    size: int
    turns: tuple[str, ...]  # one user message per turn
    gold: Any = None  # JSON: what the grader needs to know
    system: str = ""
    # Messages that the model is shown before the first turn, as if they had been exchanged.
    history: tuple[Message, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)  # JSON: what an analyst may want to know

    def opening(self) -> tuple[Message, ...]:
        """Return everything before the first turn: the system message and the history."""
        if not self.system:
            return self.history
        return (Message("system", self.system), *self.history)


class Spend(NamedTuple):
    """A number of tokens and calls: an upper bound, a forecast, or a sum of bills."""

    prompt_tokens: int = 0
    completion_tokens: int = 0  # thinking and answer
    calls: int = 0
    # Of a reward, counted separately: it is another model, with its own prices.
    reward_tokens: int = 0
    reward_cost: float = 0.0
    # Of the prompt and completion tokens, those of another model with its own prices, and their
    # cost.
    other_prompt_tokens: int = 0
    other_completion_tokens: int = 0
    other_cost: float = 0.0

    def plus(self, other: Spend) -> Spend:
        return Spend._make(a + b for a, b in zip(self, other, strict=True))

    def minus(self, other: Spend) -> Spend:
        return Spend._make(a - b for a, b in zip(self, other, strict=True))

    def times(self, n: int) -> Spend:
        return Spend._make(a * n for a in self)

    @property
    def tokens(self) -> int:
        """Tokens of the model itself, without those of the reward."""
        return self.prompt_tokens + self.completion_tokens

    def as_reward(self, prices: Prices | None) -> Spend:
        """Return a reward's spend as part of the spend of the model whose replies it scores."""
        cost = prices.cost_at_most(self) if prices else 0.0
        return Spend(calls=self.calls, reward_tokens=self.tokens, reward_cost=cost)

    def as_other(self, prices: Prices | None) -> Spend:
        """Return the spend of another model, as part of that of the model that was asked first."""
        cost = prices.cost_at_most(self) if prices else 0.0
        return self._replace(
            other_prompt_tokens=self.prompt_tokens,
            other_completion_tokens=self.completion_tokens,
            other_cost=cost,
        )


@dataclass(frozen=True, slots=True)
class Bill:
    """What a completion cost in tokens and seconds, and who counted the tokens."""

    prompt_tokens: int = 0
    thinking_tokens: int = 0
    answer_tokens: int = 0
    seconds: float = 0.0
    counted_by: CountedBy = "server"
    # How many of the prompt tokens the server read from its prompt cache.
    cached_tokens: int = 0
    # What a reward read and wrote to pick this reply: it is another model, with its own prices.
    reward_prompt_tokens: int = 0
    reward_completion_tokens: int = 0
    reward_cost: float = 0.0
    # What to add for an upper bound where the server reports no usage; never stored.
    slack: Spend = field(default_factory=Spend)
    # What the server charged in US dollars, without the reward's part; None if it doesn't report it
    # for every call. Without the part of another model, too.
    cost: float | None = None
    # Of the tokens, those of another model that a method asked at its own prices, and their cost.
    other_prompt_tokens: int = 0
    other_completion_tokens: int = 0
    other_cost: float = 0.0

    def __add__(self, other: Bill) -> Bill:
        # A sum is only as reliable as its least reliable part.
        reliability = ("server", "tokenizer", "estimate")
        return Bill(
            self.prompt_tokens + other.prompt_tokens,
            self.thinking_tokens + other.thinking_tokens,
            self.answer_tokens + other.answer_tokens,
            self.seconds + other.seconds,
            max(self.counted_by, other.counted_by, key=reliability.index),
            self.cached_tokens + other.cached_tokens,
            self.reward_prompt_tokens + other.reward_prompt_tokens,
            self.reward_completion_tokens + other.reward_completion_tokens,
            self.reward_cost + other.reward_cost,
            self.slack.plus(other.slack),
            self._summed_cost(other),
            self.other_prompt_tokens + other.other_prompt_tokens,
            self.other_completion_tokens + other.other_completion_tokens,
            self.other_cost + other.other_cost,
        )

    def _summed_cost(self, other: Bill) -> float | None:
        # A bill without tokens is no call, so that a sum may start from `Bill()`.
        if not self.tokens and self.cost is None:
            return other.cost
        if not other.tokens and other.cost is None:
            return self.cost
        if self.cost is None or other.cost is None:
            return None
        return self.cost + other.cost

    @property
    def tokens(self) -> int:
        """Tokens of the model itself, without those of the reward."""
        return self.prompt_tokens + self.thinking_tokens + self.answer_tokens

    @property
    def total_tokens(self) -> int:
        return self.tokens + self.reward_prompt_tokens + self.reward_completion_tokens

    def as_reward(self, prices: Prices | None) -> Bill:
        """Return a reward's bill as part of the bill of the model whose reply it has scored."""
        return Bill(
            reward_prompt_tokens=self.prompt_tokens,
            reward_completion_tokens=self.thinking_tokens + self.answer_tokens,
            reward_cost=cost_of(self, prices) or 0.0,
            slack=self.slack.as_reward(prices),
        )

    def as_other(self, prices: Prices | None) -> Bill:
        """Return another model's bill as part of the bill of the model that was asked first."""
        cost = cost_of(self, prices)
        return replace(
            self,
            cached_tokens=0,  # their price is in the cost
            slack=self.slack.as_other(prices),
            cost=None if cost is None else 0.0,
            other_prompt_tokens=self.prompt_tokens,
            other_completion_tokens=self.thinking_tokens + self.answer_tokens,
            other_cost=0.0 if cost is None else cost - self.reward_cost,
        )


@dataclass(frozen=True)
class Prices:
    """Money per million tokens."""

    input: float
    output: float
    cached_input: float | None = None  # prompt tokens from the server's cache; default: as `input`
    currency: str = "USD"
    discount: float = 0.0  # fraction off all prices; `batch = true` sets 0.5

    def __post_init__(self) -> None:
        for name in ("input", "output", "cached_input"):
            price = getattr(self, name)
            if price is not None and not 0 <= price < math.inf:
                raise UserError(f"the price `{name}` must be 0 or more, not {price}")
        if not 0 <= self.discount <= 1:
            raise UserError(f"the `discount` must be from 0 to 1, not {self.discount}")

    def cost(self, bill: Bill) -> float:
        """Return the cost of a completion: what the server charged, else its tokens' price."""
        if bill.cost is not None and self.currency == "USD":
            return bill.cost + bill.other_cost
        prompt_tokens = bill.prompt_tokens - bill.other_prompt_tokens
        cached = 0
        cached_price = 0.0
        if self.cached_input is not None:
            cached = min(bill.cached_tokens, prompt_tokens)
            cached_price = self.cached_input
        prompt = (prompt_tokens - cached) * self.input + cached * cached_price
        completion = bill.thinking_tokens + bill.answer_tokens - bill.other_completion_tokens
        cost = (prompt + completion * self.output) * (1 - self.discount) / 1e6
        return cost + bill.other_cost

    def cost_at_most(self, spend: Spend) -> float:
        """Return the cost of these tokens if none of them is cached."""
        prompt = spend.prompt_tokens - spend.other_prompt_tokens
        completion = spend.completion_tokens - spend.other_completion_tokens
        cost = prompt * self.input + completion * self.output
        return cost * (1 - self.discount) / 1e6 + spend.other_cost


def cost_of(bill: Bill, prices: Prices | None) -> float | None:
    """Return what a model's calls cost, the reward's part included; None if unknown."""
    if prices is not None:
        return prices.cost(bill) + bill.reward_cost
    if bill.cost is None and not bill.other_cost:
        return None
    return (bill.cost or 0.0) + bill.other_cost + bill.reward_cost


class Judgement(NamedTuple):
    """What a judge said of a reply, and its bill, which is no part of the reply's own."""

    judge: str = ""  # `Judged.judge_id`; "" if no judge has given a verdict
    right: bool = False
    text: str = ""  # the judge's own words
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float = 0.0

    def billed(self, bill: Bill) -> Judgement:
        """Return the same judgement with a bill of the judge added, as `Bill.as_reward` has it."""
        return self._replace(
            prompt_tokens=self.prompt_tokens + bill.reward_prompt_tokens,
            completion_tokens=self.completion_tokens + bill.reward_completion_tokens,
            cost=self.cost + bill.reward_cost,
        )

    def bill(self) -> dict[str, float]:
        """Return its bill as details of an attempt."""
        return {
            "judge_prompt_tokens": self.prompt_tokens,
            "judge_completion_tokens": self.completion_tokens,
            "judge_cost": self.cost,
        }


@dataclass(frozen=True, slots=True)
class Completion:
    """A model's reply in one turn."""

    thinking: str
    answer: str
    stop: Literal["end", "length"]
    bill: Bill
    # Other measurements, such as the bytes of the KV cache.
    measures: Mapping[str, float] = field(default_factory=dict)
    tokens: Sequence[int] = ()  # token ids of the reply, if the model returns them; never stored
    prompt: Sequence[int] = ()  # token ids of the prompt, if a server made them; never stored
    # Why there is no answer, if the server reports it: `empty reply`, `content filter`, `refusal`.
    note: str = ""
    # The reply as its server must get it back in later turns, as JSON; "" if the texts are enough.
    blocks: str = ""
    # For each step of the thinking the position of its end and its score from a process reward,
    # from 0 to 1; empty if there is none.
    step_scores: Sequence[tuple[int, float]] = ()
    # If another model judges the attempt: its verdict and its bill, with the last turn.
    judgement: Judgement | None = None


class Retry(NamedTuple):
    """A try of a request that brought no answer."""

    kind: Literal["rate limit", "timeout", "error"]
    why: str  # as the user may see it: no secrets
    billed: bool  # whether the server may have billed it: a timeout or a cut reply, not a refusal
    wait: float = 0.0  # seconds until the next try; 0 if there is none


class Observer:
    """Is notified of every try of a request, so that a run knows what may have been billed.

    A model that asks a server calls these methods on `request.observer`; a method that asks several
    times passes the observer on. This base class ignores every call.
    """

    # Held during each call to a server whose billing isn't known yet, so that only one is open.
    alone: Lock | None = None

    def sent(self, request: Request) -> None:
        """Handle a try that is about to be sent; raise to prevent it."""

    def retried(self, request: Request, retry: Retry) -> None:
        """Handle a try without an answer, the last one included; raise to prevent the next."""

    def billed(self, request: Request, bill: Bill) -> None:
        """Handle the bill of a reply. A method may cause several per turn."""

    def warned(self, text: str) -> None:
        """Handle a warning for the user."""


IGNORE = Observer()


@dataclass(frozen=True, slots=True)
class Request:
    """One call of a model: the messages, and the problem for models that render the prompt."""

    task: Task
    problem: Problem
    messages: tuple[Message, ...]
    seed: int
    sample: int = 0
    turn: int = 0
    budget: int | None = None  # completion tokens, if a method allows fewer than the model does
    # An upper bound on the call's spend, if it goes to another model than the study's: a judge.
    limit: Spend | None = None
    observer: Observer = field(default=IGNORE, compare=False, repr=False)

    @property
    def prompt_limit(self) -> int:
        """An upper bound on the tokens of the messages."""
        return token_limit(self.messages)

    @classmethod
    def first_turn(
        cls, task: Task, problem: Problem, seed: int = 0, budget: int | None = None
    ) -> Request:
        """Return the request of a problem's first turn."""
        messages = (*problem.opening(), Message("user", problem.turns[0]))
        return cls(task, problem, messages, seed, budget=budget)


@dataclass(frozen=True, slots=True)
class Memory:
    """What a model is shown of its own conversation in later turns."""

    # the parsed answers only, what a user would see, or the thinking too
    remember: Remember = "visible"
    window: int | None = None  # only this many of the last turns

    def __post_init__(self) -> None:
        if self.window is not None and self.window < 1:
            raise UserError(
                f"window is a number of turns, at least 1, not {self.window}",
                hint="leave it out to keep all",
            )

    def visible(self, past: list[Message]) -> list[Message]:
        """Return the messages of earlier turns that the next turn is shown."""
        if self.window is None:
            return past
        return past[-2 * self.window :]


@dataclass(frozen=True, slots=True)
class Grade:
    """A task's verdict on an answer."""

    correct: bool
    parsed: Any = None  # the answer as the task read it, as JSON; None if no answer was found
    why: str = ""  # why it is wrong, as a short phrase that can be counted
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try at one problem: every turn, and how it ended."""

    problem: Problem
    sample: int
    ended: Ended
    why: str
    completions: tuple[Completion, ...]
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def correct(self) -> bool:
        return self.ended == "right"

    @property
    def bill(self) -> Bill:
        """The sum of the bills of all turns."""
        if not self.completions:
            return Bill()
        total = self.completions[0].bill
        for completion in self.completions[1:]:
            total += completion.bill
        return total


@dataclass(frozen=True, slots=True)
class Label:
    """What people call a cell, in legends and tables. Code never groups by it or parses it."""

    task: str  # the task, and the settings that distinguish it in the study
    base: str  # the model without its methods
    # The base model, its methods, and the settings that distinguish it in the study.
    model: str
    variant: str  # the model without training seeds: equal for all seeds of one recipe
    methods: str = ""  # the variant without its base model; "" if it has no methods


class Outcome(NamedTuple):
    """An attempt as statistics see it: its cell, and facts in columns, no text."""

    cell: Cell  # one object for all attempts of a cell
    label: Label  # one object for all attempts of a cell
    problem: str
    sample: int
    ended: Ended
    why: str
    prompt_tokens: int
    thinking_tokens: int
    answer_tokens: int
    seconds: float
    counted_by: CountedBy
    details: Mapping[str, Any]  # what the task's grader recorded, and what the model measured
    attempt: int = 0  # the attempt's id in the store
    # What training its weights cost, and what was measured meanwhile.
    made: Mapping[str, float] = MappingProxyType({})
    # How many of the prompt tokens the server read from its prompt cache.
    cached_tokens: int = 0

    @property
    def size(self) -> int:
        return self.cell.size

    @property
    def correct(self) -> bool:
        return self.ended == "right"

    @property
    def answered(self) -> bool:
        """Whether the model replied, be it with a truncated reply; False for a failed call."""
        return self.ended not in ("failed", "open")

    @property
    def bill(self) -> Bill:
        """The summed bill of all turns, the reward's part included."""
        details = self.details
        return Bill(
            self.prompt_tokens,
            self.thinking_tokens,
            self.answer_tokens,
            self.seconds,
            self.counted_by,
            self.cached_tokens,
            cost=details.get(BILLED_COST),
            **{name: details[name] for name in (*REWARD, *OTHER_MODEL) if name in details},
        )

    @property
    def cost(self) -> float | None:
        """What the attempt cost, with what its methods paid other models; None if unknown."""
        return self.cell.cost(self.bill)

    def tokens(self, kind: TokenKind) -> int:
        if kind == "thinking":
            return self.thinking_tokens
        if kind == "answer":
            return self.answer_tokens
        return self.thinking_tokens + self.answer_tokens

    def used(self, resource: Resource) -> float:
        """Return how much of a resource the attempt took; nan for a cost that is unknown."""
        if resource == "seconds":
            return self.seconds
        if resource == "cost":
            cost = self.cost
            return math.nan if cost is None else cost
        return self.tokens(resource)


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number with its interval and its sample size.

    An open end is infinite; an unknown value is nan.
    """

    value: float
    low: float
    high: float
    attempts: int
    problems: int


class Source(NamedTuple):
    """Where a model's weights are, and how to load them."""

    folder: Path  # or a .gguf file, or `org/name` on the hub
    revision: str = ""
    dtype: str = "float32"
    device: str = "cpu"
    threads: int = 1
    # The model plugin whose `codec` renders and reads for these weights; "": the chat template.
    codec: str = ""
    attn: str = "auto"  # attention implementation, by its name in transformers


class TokenTrace(NamedTuple):
    """A prompt and its reply as token ids, and where in them the thinking starts and ends."""

    ids: list[int]
    question: int  # length of the prompt: where the thinking starts
    answer: int  # where the answer starts


@dataclass(frozen=True, slots=True)
class Steps:
    """A reasoning trace, split into steps."""

    id: str
    question: str
    thinking: tuple[str, ...]
    answer: tuple[str, ...]
    # What else is known of the trace, such as `correct`.
    facts: Mapping[str, Any] = field(default_factory=dict)

    def part(self, of: Part) -> tuple[str, ...]:
        """Return the steps of the thinking, of the answer, or of both."""
        if of == "thinking":
            return self.thinking
        if of == "answer":
            return self.answer
        return self.thinking + self.answer


@dataclass(frozen=True, slots=True)
class Scores:
    """A reward's scores for a trace.

    A trace that can't be scored has no total, and `why` holds the reason.
    """

    steps: tuple[float, ...] = ()  # from 0 to 1
    # From 0 to 1, for the trace as a whole; None if the reward gives no such score.
    trajectory: float | None = None
    total: float | None = None
    why: str = ""
    bill: Bill = field(default_factory=Bill)  # tokens that the reward read and wrote


# How a page shows a cell of a drawing. `given`: part of the problem; `right`, `wrong`: part of the
# answer; `note`: a remark.
MarkKind: TypeAlias = Literal["", "given", "right", "wrong", "note"]


class Mark(NamedTuple):
    """One cell of a drawing."""

    text: str
    kind: MarkKind = ""
    why: str = ""  # what is wrong with it, or what it means, for a tooltip and for screen readers


@dataclass(frozen=True)
class Drawing:
    """A table of marks in which a task shows a problem and an answer to it, without HTML."""

    name: str  # what it shows: "answer", "solution"
    rows: tuple[tuple[Mark, ...], ...]
    columns: tuple[str, ...] = ()  # headings of the columns
    caption: str = ""
    square: bool = False  # draw it as a grid of equal cells
