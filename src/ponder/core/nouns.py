"""The nouns: frozen dataclasses that pass from one stage of the pipeline to the next.

A task makes a `Problem`. A model answers a `Request` with a `Completion`, which carries its `Bill`.
The task's `Grade` turns completions into an `Attempt`, which the store keeps. Statistics read
attempts as `Outcome` rows, without text, and return `Estimate`: a value with its interval.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from ponder.core.errors import UserError

if TYPE_CHECKING:
    from asyncio import Lock

    from ponder.core.cell import Cell
    from ponder.core.contracts import Task

Role: TypeAlias = Literal["system", "user", "assistant"]
CountedBy: TypeAlias = Literal["server", "tokenizer", "estimate"]
# How an attempt ended. `open` is a conversation in progress; the others are final.
Ended: TypeAlias = Literal["open", "right", "wrong", "unparsed", "truncated", "failed"]
Remember: TypeAlias = Literal["answers", "visible", "all"]
Part: TypeAlias = Literal["all", "thinking", "answer"]  # which part of a trace
TokenKind: TypeAlias = Literal["output", "thinking", "answer"]  # output: thinking and answer
Records: TypeAlias = list[dict[str, Any]]
Tables: TypeAlias = dict[str, Records]  # what a figure is drawn from: named tables of plain values
# one report of a long job, such as {"step": 50, "of": 400, "loss": 0.7}
Progress: TypeAlias = dict[str, Any]
# The most that one turn may take, from its prompt tokens and the budget of its reply; None if there
# is no limit.
TurnLimit: TypeAlias = "Callable[[int, int | None], Spend | None]"


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a chat."""

    role: Role
    content: str


def token_limit(messages: Iterable[Message], known: Mapping[Message, int] | None = None) -> int:
    """The most tokens that messages can have: a tokenizer makes at most one per byte, and a chat
    template adds some.

    `known` has the tokens of messages that a model wrote, as their bills say; read again, a text
    may have some more.
    """
    known = known or {}
    sizes = (
        (len(m.content.encode("utf-8", "replace")), 1.25 * known.get(m, math.inf)) for m in messages
    )
    return 64 + sum(int(min(size)) + 16 for size in sizes)


@dataclass(frozen=True, slots=True)
class Problem:
    """One instance of a task. Equal content has an equal id, in every study."""

    id: str
    size: int
    turns: tuple[str, ...]  # one user message per turn
    gold: Any = None  # JSON: what the grader needs to know
    system: str = ""
    # messages given before the first turn, as if they had been exchanged
    history: tuple[Message, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)  # JSON: what an analyst may want to know

    def opening(self) -> tuple[Message, ...]:
        """Everything before the first turn: the system message and the given history."""
        system = (Message("system", self.system),) if self.system else ()
        return (*system, *self.history)


class Spend(NamedTuple):
    """Tokens that have been spent or may be, without texts: an upper limit, a forecast, or a sum of
    bills.
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0  # thinking and answer
    calls: int = 0
    reward_tokens: int = 0  # of a reward, apart: it has prices of its own
    reward_cost: float = 0.0

    def plus(self, other: Spend) -> Spend:
        return Spend._make(a + b for a, b in zip(self, other, strict=True))

    def minus(self, other: Spend) -> Spend:
        return Spend._make(a - b for a, b in zip(self, other, strict=True))

    def times(self, n: int) -> Spend:
        return Spend._make(a * n for a in self)

    @property
    def tokens(self) -> int:
        """The model's own, without the reward's."""
        return self.prompt_tokens + self.completion_tokens

    def as_reward(self, prices: Prices | None) -> Spend:
        """What a reward may take, as it stands in the limit of the model whose replies it scores."""
        return Spend(0, 0, self.calls, self.tokens, prices.cost_at_most(self) if prices else 0.0)


@dataclass(frozen=True, slots=True)
class Bill:
    """What a completion cost in tokens and seconds, and who counted the tokens."""

    prompt_tokens: int = 0
    thinking_tokens: int = 0
    answer_tokens: int = 0
    seconds: float = 0.0
    counted_by: CountedBy = "server"
    cached_tokens: int = 0  # of the prompt tokens, those that the server read from its prompt cache
    # What a reward read and wrote to pick this reply, apart: it is another model, with prices of
    # its own.
    reward_prompt_tokens: int = 0
    reward_completion_tokens: int = 0
    reward_cost: float = 0.0
    slack: Spend = field(
        default_factory=Spend
    )  # to add for an upper bound, where the server reports no usage; never stored

    def __add__(self, other: Bill) -> Bill:
        # A sum is only as reliable as its least reliable part.
        weakest = max(
            self.counted_by, other.counted_by, key=("server", "tokenizer", "estimate").index
        )
        return Bill(
            self.prompt_tokens + other.prompt_tokens,
            self.thinking_tokens + other.thinking_tokens,
            self.answer_tokens + other.answer_tokens,
            self.seconds + other.seconds,
            weakest,
            self.cached_tokens + other.cached_tokens,
            self.reward_prompt_tokens + other.reward_prompt_tokens,
            self.reward_completion_tokens + other.reward_completion_tokens,
            self.reward_cost + other.reward_cost,
            self.slack.plus(other.slack),
        )

    @property
    def tokens(self) -> int:
        """The model's own, without the reward's."""
        return self.prompt_tokens + self.thinking_tokens + self.answer_tokens

    @property
    def total_tokens(self) -> int:
        return self.tokens + self.reward_prompt_tokens + self.reward_completion_tokens

    def as_reward(self, prices: Prices | None) -> Bill:
        """A reward's own bill, as it stands in that of the model whose reply it has scored."""
        completion = self.thinking_tokens + self.answer_tokens
        return Bill(
            reward_prompt_tokens=self.prompt_tokens,
            reward_completion_tokens=completion,
            reward_cost=prices.cost(self) if prices else 0.0,
            slack=self.slack.as_reward(prices),
        )


@dataclass(frozen=True)
class Prices:
    """Money per million tokens."""

    input: float
    output: float
    cached_input: float | None = None  # prompt tokens from the server's cache; default: as `input`
    currency: str = "USD"

    def __post_init__(self) -> None:
        for name in ("input", "output", "cached_input"):
            if (price := getattr(self, name)) is not None and not 0 <= price < math.inf:
                raise UserError(f"the price `{name}` must be 0 or more, not {price}")

    def cost(self, bill: Bill) -> float:
        cached = min(bill.cached_tokens, bill.prompt_tokens) if self.cached_input is not None else 0
        completion = bill.thinking_tokens + bill.answer_tokens
        prompt = (bill.prompt_tokens - cached) * self.input + cached * (self.cached_input or 0.0)
        return (prompt + completion * self.output) / 1e6

    def cost_at_most(self, spend: Spend) -> float:
        """The cost of these tokens if none of them is cached."""
        return (spend.prompt_tokens * self.input + spend.completion_tokens * self.output) / 1e6


@dataclass(frozen=True, slots=True)
class Completion:
    """A model's reply in one turn."""

    thinking: str
    answer: str
    stop: Literal["end", "length"]
    bill: Bill
    # other measurements, such as the cache's bytes
    measures: Mapping[str, float] = field(default_factory=dict)
    tokens: Sequence[int] = ()  # the reply's token ids, if the model gives them; never stored
    prompt: Sequence[int] = ()  # the prompt's, if a server made them; never stored
    # why there is no answer, if the server says so: `empty reply`, `content filter`, `refusal`
    note: str = ""
    # Where each step of the thinking ends, and how a process reward scored it, from 0 to 1; empty
    # if none did.
    step_scores: Sequence[tuple[int, float]] = ()


class Retry(NamedTuple):
    """A try that gave no answer."""

    kind: Literal["rate limit", "timeout", "error"]
    why: str  # as the user may see it: no secrets
    billed: bool  # whether the server may have billed it: a timeout or a cut reply, not a refusal
    wait: float = 0.0  # seconds until the next try; 0 if there is none


class Observer:
    """Hears of every try of a request, so that a run knows what may have been billed.

    This one ignores it all.
    """

    # Held during each call to a server, where only one may be in progress: nobody knows yet how it
    # bills.
    alone: Lock | None = None

    def sent(self, request: Request) -> None:
        """Called right before each try is sent; may raise, so that it isn't."""

    def retried(self, request: Request, retry: Retry) -> None:
        """Called after each try without an answer, the last included, before the next; may raise to
        prevent that.
        """

    def billed(self, request: Request, bill: Bill) -> None:
        """Called with the bill of each reply, also where a method asks several times."""

    def warned(self, text: str) -> None:
        """Called with what the user should know."""


IGNORE = Observer()


@dataclass(frozen=True, slots=True)
class Request:
    """One call of a model: the messages, and the problem behind them for models that render their
    own prompt.
    """

    task: Task
    problem: Problem
    messages: tuple[Message, ...]
    seed: int
    sample: int = 0
    turn: int = 0
    budget: int | None = None  # completion tokens, if a method allows fewer than the model does
    # the most that it may take, if it asks another model than the study's: a judge
    limit: Spend | None = None
    # a model that asks a server reports each try
    observer: Observer = field(default=IGNORE, compare=False, repr=False)

    @property
    def prompt_limit(self) -> int:
        """The most tokens that its messages can have."""
        return token_limit(self.messages)

    @classmethod
    def first_turn(
        cls, task: Task, problem: Problem, seed: int = 0, budget: int | None = None
    ) -> Request:
        """The request that opens a problem."""
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
        """The part of the past that the next turn is shown."""
        return past if self.window is None else past[-2 * self.window :]


@dataclass(frozen=True, slots=True)
class Grade:
    """A task's judgement of an answer."""

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
        first, *rest = self.completions or (Completion("", "", "end", Bill()),)
        return sum((c.bill for c in rest), first.bill)


@dataclass(frozen=True, slots=True)
class Label:
    """What people call a cell: for legends and tables. Nothing groups by it or takes it apart."""

    task: str  # the task, and the settings that tell it from others of the study
    base: str  # the model without its methods
    # the base model, its methods, and the settings that tell it from others of the study
    model: str
    variant: str  # the model without training seeds: equal for all seeds of one recipe
    methods: str = ""  # the variant without its base model; "": it has no methods


class Outcome(NamedTuple):
    """An attempt as statistics see it: its cell, and facts in columns, no text."""

    cell: Cell  # one object for all attempts of a cell
    label: Label  # the same
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
    # what making its weights cost, and what was measured meanwhile
    made: Mapping[str, float] = MappingProxyType({})
    cached_tokens: int = 0  # of the prompt tokens, those that the server read from its prompt cache

    @property
    def size(self) -> int:
        return self.cell.size

    @property
    def correct(self) -> bool:
        return self.ended == "right"

    @property
    def answered(self) -> bool:
        """Whether there is an answer, or a truncated one; a failed call is none."""
        return self.ended not in ("failed", "open")

    def tokens(self, kind: TokenKind) -> int:
        if kind == "thinking":
            return self.thinking_tokens
        if kind == "answer":
            return self.answer_tokens
        return self.thinking_tokens + self.answer_tokens


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
    # the model plugin whose `codec` renders and reads for these weights; "": the chat template
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
    # what else is known of the trace, such as `correct`
    facts: Mapping[str, Any] = field(default_factory=dict)

    def part(self, of: Part) -> tuple[str, ...]:
        return {
            "all": self.thinking + self.answer,
            "thinking": self.thinking,
            "answer": self.answer,
        }[of]


@dataclass(frozen=True, slots=True)
class Scores:
    """A reward's scores for a trace.

    A trace that can't be scored has no total, and `why` says the reason.
    """

    steps: tuple[float, ...] = ()  # from 0 to 1
    # from 0 to 1, for the trace as a whole; None: the reward gives no such score
    trajectory: float | None = None
    total: float | None = None
    why: str = ""
    bill: Bill = field(default_factory=Bill)  # tokens that the reward read and wrote
