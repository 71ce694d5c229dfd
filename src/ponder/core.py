"""The nouns that pass from one stage of the pipeline to the next, and the contracts of its plugins.

Nothing here imports from the package, so every other file may import from here.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
import random
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Self, TypeAlias

if TYPE_CHECKING:
    import altair
    from torch import Tensor

Role: TypeAlias = Literal["system", "user", "assistant"]
CountedBy: TypeAlias = Literal["server", "tokenizer", "estimate"]
# `open` is a conversation that has begun; the other four are ways to end.
Status: TypeAlias = Literal["open", "graded", "unparsed", "truncated", "failed"]
Remember: TypeAlias = Literal["answers", "visible", "all"]
Part: TypeAlias = Literal["all", "thinking", "answer"]  # of a trace
Records: TypeAlias = list[dict[str, Any]]
Report: TypeAlias = dict[str, Any]  # how something that takes long stands
Tables: TypeAlias = dict[str, Records]  # what statistics hand to a figure: named tables of plain values


class UserError(Exception):
    """A mistake that the user can put right: what is wrong, where, and what to do about it."""

    def __init__(self, what: str, *, where: str = "", hint: str = "") -> None:
        super().__init__(what)
        self.what, self.where, self.hint = what, where, hint

    def __str__(self) -> str:
        first = f"{self.where}: {self.what}" if self.where else self.what
        return f"{first}\nhint: {self.hint}" if self.hint else first


class Variable(str):
    """The name of an environment variable that holds a secret: `$NAME`. The secret itself is refused."""

    __slots__ = ()

    def __new__(cls, text: Any) -> Self:
        if not (isinstance(text, str) and text[:1] == "$" and text[1:].isidentifier()):
            # The text isn't repeated: it may be a secret, and error messages end up in logs.
            raise UserError("a key is never written into a study", hint='key = "$NAME", and export NAME=… in the shell')
        return super().__new__(cls, text)

    def read(self) -> str:
        if not (value := os.environ.get(self[1:])):
            raise UserError(f"the environment variable {self[1:]} is not set", hint=f"export {self[1:]}=…")
        return value


class ModelFailure(Exception):
    """A model gave no answer (endpoint down, connection lost): the attempt is `failed`, never wrong."""


@dataclass(frozen=True, slots=True)
class Message:
    role: Role
    content: str


@dataclass(frozen=True, slots=True)
class Problem:
    """One instance. Equal content has an equal id, whatever study it stands in."""

    id: str
    size: int
    turns: tuple[str, ...]  # one user message a turn
    gold: Any = None  # JSON: what the grader needs to know
    system: str = ""
    history: tuple[Message, ...] = ()  # given before the first turn, not asked of the model
    facts: Mapping[str, Any] = field(default_factory=dict)  # JSON: what an analyst may want to know


@dataclass(frozen=True, slots=True)
class Bill:
    """What a completion cost, and how far to trust the count."""

    prompt_tokens: int = 0
    thinking_tokens: int = 0
    answer_tokens: int = 0
    seconds: float = 0.0
    counted_by: CountedBy = "server"

    def __add__(self, other: Bill) -> Bill:
        # A sum is only as good as its weakest part.
        weakest = max(self.counted_by, other.counted_by, key=("server", "tokenizer", "estimate").index)
        return Bill(
            self.prompt_tokens + other.prompt_tokens,
            self.thinking_tokens + other.thinking_tokens,
            self.answer_tokens + other.answer_tokens,
            self.seconds + other.seconds,
            weakest,
        )

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.thinking_tokens + self.answer_tokens


@dataclass(frozen=True, slots=True)
class Completion:
    """What a model said in one turn."""

    thinking: str
    answer: str
    stop: Literal["end", "length"]
    bill: Bill
    measures: Mapping[str, float] = field(default_factory=dict)  # what else was measured, such as the cache's bytes
    tokens: Sequence[int] = ()  # as written, where the model runs here; never stored


@dataclass(frozen=True, slots=True)
class Request:
    """What a model is asked: the messages, and the problem behind them for models that render their own prompt."""

    task: Task
    problem: Problem
    messages: tuple[Message, ...]
    seed: int
    sample: int = 0
    turn: int = 0
    budget: int | None = None  # a method may allow fewer completion tokens than the model's own `budget`


@dataclass(frozen=True, slots=True)
class Memory:
    """What a model is shown again of its own conversation."""

    remember: Remember = "visible"  # of each reply: its gist, what a user would see, or its thinking too
    window: int | None = None  # of the turns: only the last so many

    def __post_init__(self) -> None:
        if self.window is not None and self.window < 1:
            raise UserError(
                f"window is a number of turns, at least 1, not {self.window}", hint="leave it out to keep all"
            )

    def of_reply(self, task: Task, said: Completion) -> Message:
        if self.remember == "answers":
            return Message("assistant", task.gist(said.answer))
        if self.remember == "all" and said.thinking:
            return Message("assistant", f"<think>{said.thinking}</think>\n{said.answer}")
        return Message("assistant", said.answer)

    def of_past(self, past: list[Message]) -> list[Message]:
        return past if self.window is None else past[-2 * self.window :]


@dataclass(frozen=True, slots=True)
class Grade:
    """A task's judgement of an answer."""

    correct: bool
    said: Any = None  # the answer as understood; None when nothing could be understood
    why: str = ""  # why it is wrong, as a short phrase that can be counted
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try at one problem."""

    problem: Problem
    sample: int
    status: Status
    correct: bool
    why: str
    completions: tuple[Completion, ...]
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def bill(self) -> Bill:
        first, *rest = self.completions or (Completion("", "", "end", Bill()),)
        return sum((c.bill for c in rest), first.bill)


class Outcome(NamedTuple):
    """What statistics see of an attempt: no text."""

    task: str
    model: str
    size: int
    problem: str
    sample: int
    status: Status
    correct: bool
    why: str
    prompt_tokens: int
    thinking_tokens: int
    answer_tokens: int
    seconds: float
    counted_by: CountedBy
    details: Mapping[str, Any]
    settings: Mapping[str, Any] = MappingProxyType({})  # of the methods that the model was under


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number with its interval and what it rests on. An open end is infinite; an unknown value is nan."""

    value: float
    low: float
    high: float
    attempts: int
    problems: int


def digest(*parts: Any) -> bytes:
    """16 bytes that depend on every part, the same on every machine."""
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def seed_from(*parts: Any) -> int:
    """A 63-bit seed hashed from its parts, so that neighbouring indices share nothing."""
    return int.from_bytes(digest(*parts)[:8], "big") >> 1


def fingerprint(path: Path) -> str:
    """What a user's file says, in 32 letters."""
    try:
        state = path.stat()
        return _fingerprint(path, state.st_mtime_ns, state.st_size)
    except OSError as error:
        hint = "the path is relative to the study's folder"
        raise UserError(f"can't read {path}: {error.strerror}", hint=hint) from None


@lru_cache
def _fingerprint(path: Path, *state: int) -> str:  # noqa: ARG001 a changed file is read again
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def lines(path: Path) -> Iterator[tuple[str, str]]:
    """Each line of a user's file that says something, with its place for an error message."""
    try:
        content = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"can't read {path}: {error}", hint="the path is relative to the study's folder") from None
    found = [(f"{path}:{n}", line) for n, line in enumerate(content.splitlines(), 1) if line.strip()]
    if not found:
        raise UserError(f"{path} is empty")
    yield from found


def plumbing(default: Any) -> Any:
    """A plugin's setting that can't change an answer, and so is no part of an attempt's key."""
    return field(default=default, metadata={"plumbing": True})


class Plugin:
    """A file in one of the plugin folders, named as the file is. Its dataclass fields are its keys in a study."""

    example: ClassVar[dict[str, Any]] = {}  # settings to try it with, where it can't do without any

    @classmethod
    def plugin_name(cls) -> str:
        return cls.__module__.rsplit(".", 1)[-1]

    def identity(self) -> dict[str, Any]:
        """What makes this plugin's results its own: its name and each setting that isn't the default.

        Defaults are left out, so that a new setting with a default doesn't orphan stored attempts.
        """
        changed = {}
        for f in dataclasses.fields(self):  # type: ignore[arg-type]
            default = f.default if f.default_factory is dataclasses.MISSING else f.default_factory()
            value = getattr(self, f.name)
            if not f.metadata.get("plumbing") and value != default:
                # A file is known by what it says, not by where it lies.
                known = fingerprint(value) if isinstance(value, Path) else value
                changed[f.name] = value.identity() if isinstance(value, Plugin) else known
        return {"name": self.plugin_name(), **changed}


class Task(Plugin, ABC):
    """Makes problems of a size and grades answers to them."""

    version: ClassVar[int] = 1  # raise it when the same seed gives another problem or another prompt
    default_sizes: ClassVar[tuple[int, ...]] = ()  # asked when a study names none

    @abstractmethod
    def problem(self, size: int, seed: int) -> Problem:
        """One problem; the same size and seed always give the same one."""

    @abstractmethod
    def solve(self, problem: Problem) -> str:
        """A right answer, written as a model should write it."""

    @abstractmethod
    def grade(self, problem: Problem, answer: str) -> Grade:
        """Judge the text of an answer, whatever it holds, without raising."""

    def solve_turn(self, problem: Problem, turn: int) -> str:  # noqa: ARG002 for those who override it
        """A right answer to one turn of a conversation."""
        return self.solve(problem)

    def grade_turns(self, problem: Problem, answers: Sequence[str]) -> Grade:
        """Judge a whole conversation; unless a task says otherwise, its last answer counts."""
        return self.grade(problem, answers[-1])

    def said(self, problem: Problem, answer: str) -> Any:
        """What one turn's answer says, as JSON, whether or not it is right; None if nothing."""
        return self.grade(problem, answer).said

    def gist(self, answer: str) -> str:
        """What is left of a reply in the conversation where only answers are remembered."""
        return answer

    def fixed(self) -> Sequence[Problem] | None:
        """Every problem, for a task that holds a fixed set; None for one that makes its own."""
        return None

    def sizes(self) -> tuple[int, ...]:
        """The sizes asked when a study names none."""
        fixed = self.fixed()
        return self.default_sizes if fixed is None else tuple(sorted({p.size for p in fixed}))

    def check_size(self, size: int) -> None:
        """Raise `UserError` for a size that can't be made."""
        if self.fixed() is not None and size not in self.sizes():
            raise UserError(f"there is no problem of size {size}", hint=f"there are {list(self.sizes())}")

    def problems(self, size: int, seed: int) -> Iterator[Problem]:
        """Distinct problems of one size, in an order that never changes; endless unless the set is fixed or used up."""
        if (fixed := self.fixed()) is not None:
            yield from (p for p in fixed if p.size == size)
            return
        seen: set[bytes] = set()
        key = digest(self.identity(), self.version, size, seed).hex()
        index = repeats = 0
        while repeats < 200:  # of 240 puzzles the last ones are found, and ten are not searched for hours
            problem = self.problem(size, seed_from(key, index))
            index += 1
            mark = digest(problem.id)[:8]
            repeats = repeats + 1 if mark in seen else 0
            if not repeats:
                seen.add(mark)
                yield problem


@dataclass(frozen=True)
class Prices:
    """Money for a million tokens."""

    input: float
    output: float

    def cost(self, bill: Bill) -> float:
        completion = bill.thinking_tokens + bill.answer_tokens
        return (bill.prompt_tokens * self.input + completion * self.output) / 1e6


class Source(NamedTuple):
    """Weights, and how to load them."""

    folder: Path  # or a .gguf file, or `org/name` on the hub
    revision: str = ""
    dtype: str = "float32"
    device: str = "cpu"
    threads: int = 1


@dataclass(frozen=True)
class Practice:
    """Problems that methods may train on: of one task and size, and none that the study asks."""

    task: Task
    size: int
    seed: int  # of the study
    asked: int | None = 0  # problems of this task and size that the study asks; None: all that there are

    def identity(self) -> dict[str, Any]:
        # Not how many are asked, so that a study that asks more trains nothing again; but a fixed set has no others.
        asked = {} if self.task.fixed() is None else {"asked": self.asked}
        return {**self.task.identity(), "version": self.task.version, "size": self.size, "seed": self.seed, **asked}

    def problems(self, seed: int) -> Iterator[Problem]:
        """In an order of their own for each seed; endless where the task makes its own."""
        asked = {problem.id for problem in islice(self.task.problems(self.size, self.seed), self.asked)}
        if self.task.fixed() is None:
            found: Iterable[Problem] = self.task.problems(self.size, seed_from("practice", self.seed, seed))
        else:
            found = list(self.task.problems(self.size, 0))
            random.Random(seed).shuffle(found)
        return (problem for problem in found if problem.id not in asked)


@dataclass(kw_only=True)
class Model(Plugin, ABC):
    """Answers requests. It may hold connections or weights between `async with` and its end."""

    label: str = plumbing("")  # its name in legends
    in_flight: int = plumbing(1)  # requests that it likes to work on at once
    prices: Prices | None = plumbing(None)  # { input = …, output = … } for a million tokens

    @abstractmethod
    async def complete(self, request: Request) -> Completion:
        """Answer one request, or raise `ModelFailure`."""

    def check(self, task: Task, size: int) -> None:
        """Raise `UserError` for what it can't be asked, before a run starts."""

    @classmethod
    def make(cls, folder: Path, seed: int, task: str, style: str) -> Iterator[dict[str, Any]]:  # noqa: ARG003 for those who override it
        """Make weights from nothing in a folder, for one task or style or all, and say now and then how it stands."""
        raise UserError(f"{cls.plugin_name()} is not made by Ponder", hint="ponder make pocket -o DIR")

    def source(self, task: Task) -> Source:  # noqa: ARG002 for those who override it
        """Where its weights for a task lie."""
        what = f"a model of the kind `{self.plugin_name()}` has no weights here that could be changed"
        raise UserError(what, hint='name = "pocket", or name = "transformers" with an id')

    def with_weights(self, folder: Path) -> Model:
        """The same model, asked alike, with the weights in a folder."""
        raise NotImplementedError

    def title(self) -> str:
        """The name in legends, where a study gives no `label`."""
        return self.plugin_name()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None


class Wrapped(Model):
    """A model around another, which it opens, closes and asks: what a method that changes the asking returns."""

    def __init__(self, inner: Model) -> None:
        super().__init__(label=inner.label, in_flight=inner.in_flight, prices=inner.prices)
        self.inner = inner

    def title(self) -> str:
        return self.inner.title()

    async def __aenter__(self) -> Self:
        await self.inner.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.inner.__aexit__(kind, error, trace)


class Method(Plugin, ABC):
    """Makes a model cheaper: a function from model to model."""

    # A model and a task to try it on, as in a study, and a size.
    tried_on: ClassVar[tuple[dict[str, Any], dict[str, Any], int]] = (
        {"name": "oracle", "tokens_at_zero": 1000},
        {"name": "chain_sum"},
        4,
    )

    @abstractmethod
    def apply(self, model: Model) -> Model: ...

    def make(self, model: Model) -> Iterator[Report]:  # noqa: ARG002 for those who override it
        """What takes long before it can be applied, such as training; says now and then how it stands."""
        yield from ()

    def title(self) -> str:
        return self.plugin_name()


@dataclass(frozen=True)
class Keep:
    """How much stays, and what always does."""

    budget: int  # tokens; a cache that reaches it is cut
    window: int  # the last so many always stay
    ratio: float | None = None  # share of what may leave that stays; None: cut back to the budget at every step
    sinks: int = 4  # the first so many always stay
    question: bool = True  # so does the prompt
    answer: bool = True  # and what comes after the end of thinking
    share: Literal["model", "layer", "head"] = "model"  # who chooses together: all layers, a layer's heads, each head

    def __post_init__(self) -> None:
        if not 0 < self.window < self.budget:
            what = f"the window must be at least 1 and smaller than the budget, not {self.window} of {self.budget}"
            raise UserError(what, hint=f"window = {max(1, self.budget // 4)}")
        if self.ratio is not None and not 0 < self.ratio <= 1:
            raise UserError(f"ratio is a share above 0 and at most 1, not {self.ratio}", hint="ratio = 0.3")
        if self.sinks < 0:
            raise UserError(f"sinks is a number of tokens, not {self.sinks}")

    def kept(self, length: int, protected: int) -> int | None:
        """How many of the columns before the window stay, once a cut is due."""
        due = length >= self.budget if self.ratio is not None else length > self.budget
        if not due:
            return None
        rest = length - self.window
        if self.ratio is None:
            return max(self.budget - self.window, protected)
        return protected + int(self.ratio * (rest - protected))


class Policy(Plugin, ABC):
    """Says how much each token in a KV cache matters; the cache lets go of those that matter least."""

    queries: int = 0  # how many of the last queries it wants to see
    accumulates: ClassVar[bool] = False  # whether it wants the attention that each token has received so far
    per_layer: ClassVar[bool] = True  # whether layers may differ in what they say

    def fitted(self, folder: Path, tokenizer: Any) -> Policy:  # noqa: ARG002 for those who override it
        """The policy for one model, from what lies beside its weights and from its vocabulary."""
        return self

    def birth(self, hidden: Tensor, ids: Tensor) -> Tensor | None:  # noqa: ARG002 for those who override it
        """Something to remember of new tokens (rows × tokens), from the last hidden state; it comes back as `born`."""
        return None

    @abstractmethod
    def score(self, seen: Any) -> Tensor:
        """A score for every column of a `ponder.caches.Seen`, R × (H or 1) × n; the lowest leave first."""


class LengthReward(Plugin, ABC):
    """Says what the length of an answer adds to its reward, among the samples of one problem."""

    @abstractmethod
    def rewards(self, right: Sequence[bool], tokens: Sequence[int], progress: float) -> list[float]:
        """For each sample, at a share of the training between 0 and 1."""


@dataclass(frozen=True, slots=True)
class Steps:
    """A trace, cut into steps."""

    id: str
    question: str
    thinking: tuple[str, ...]
    answer: tuple[str, ...]
    facts: Mapping[str, Any] = field(default_factory=dict)  # what else is known of the trace, such as `correct`

    def part(self, of: Part) -> tuple[str, ...]:
        return {"all": self.thinking + self.answer, "thinking": self.thinking, "answer": self.answer}[of]


@dataclass(frozen=True, slots=True)
class Scores:
    """What a reward says of a trace. One that could not be scored has no total, and says why."""

    steps: tuple[float, ...] = ()  # from 0 to 1
    trajectory: float | None = None  # from 0 to 1, of the trace as a whole; None: the reward gives no such score
    total: float | None = None
    why: str = ""
    bill: Bill = field(default_factory=Bill)  # what the scoring read and wrote


@dataclass(frozen=True, kw_only=True)
class Reward(Plugin, ABC):
    """Scores the steps of a trace, and the trace.

    The total is that of ReasonFlux-PRM (arXiv 2506.18896, eq. 11): the mean of the steps and `alpha` times the score
    of the trajectory.
    """

    of: Part = "all"  # what is scored: thinking and answer, or one of them
    aggregate: Literal["mean", "min", "last", "product"] = "mean"  # how the steps become one number
    alpha: float = 1.0  # weight of the trajectory's score, where the reward gives one

    tried_on: ClassVar[Mapping[str, Any]] = {}  # question, thinking, answer and facts of a trace that it must score

    @abstractmethod
    def rate(self, traces: Sequence[Steps]) -> Sequence[Scores]:
        """Steps and trajectory of each trace, or why not; the total is not its affair."""

    def score(self, traces: Sequence[Steps]) -> list[Scores]:
        """Scores in the order of the traces. It blocks: from a running loop, call it in a thread."""
        some = [trace for trace in traces if trace.part(self.of)]
        rated = iter(self.rate(some) if some else ())
        return [self._total(t, next(rated)) if t.part(self.of) else Scores(why="nothing to score") for t in traces]

    def scored(self, traces: Iterable[Steps], at_once: int = 1024) -> Iterator[Scores]:
        """The same for any number of traces, so many at a time, in memory that doesn't grow with them."""
        traces = iter(traces)
        while some := list(islice(traces, at_once)):
            yield from self.score(some)

    def _total(self, trace: Steps, rated: Scores) -> Scores:
        if why := rated.why or _broken(rated, len(trace.part(self.of))):
            return Scores(why=why, bill=rated.bill)
        steps = rated.steps
        one = {"min": min(steps), "last": steps[-1], "product": math.prod(steps), "mean": math.fsum(steps) / len(steps)}
        total = one[self.aggregate] + self.alpha * (rated.trajectory or 0.0)
        return dataclasses.replace(rated, total=total)

    def parameters(self) -> int | None:
        """How many weights it has, where that is known."""
        return None

    def title(self) -> str:
        return self.plugin_name()


def _broken(rated: Scores, steps: int) -> str:
    """What is wrong with a reward's answer; nothing if it is as it should be."""
    for score in (*rated.steps, *([] if rated.trajectory is None else [rated.trajectory])):
        if math.isnan(score):
            return "the reward answered NaN"
        if not 0 <= score <= 1:
            return f"the reward answered {score:g}, which is not from 0 to 1"
    return "" if len(rated.steps) == steps else f"the reward gave {len(rated.steps)} scores for {steps} steps"


class Figure(Plugin, ABC):
    """Turns outcomes into tables of estimates, and those tables, and nothing else, into a picture."""

    @abstractmethod
    def estimate(self, outcomes: Sequence[Outcome]) -> Tables:
        """Every number that the figure, its table and the report show."""

    @abstractmethod
    def draw(self, tables: Tables) -> altair.TopLevelMixin: ...

    def findings(self, tables: Tables) -> list[str]:  # noqa: ARG002 for those who override it
        """What the figure shows, in sentences."""
        return []
