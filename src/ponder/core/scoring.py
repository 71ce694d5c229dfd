"""The interfaces of plugins that score: eviction policies score tokens, rewards score steps.

A length reward scores whole replies by their length while a model is trained. Each is one class in
one file, as in `contracts.py`; the smaller classes here are capabilities that some of them inherit
besides.
"""

from __future__ import annotations

import asyncio
import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias

from ponder.core.contracts import Model, Plugin
from ponder.core.errors import UserError
from ponder.core.nouns import Part, Progress, Request, Scores, Spend, Steps, TokenTrace

if TYPE_CHECKING:
    from torch import Tensor

# Scores the traces of one turn; the request's observer is notified of each call.
AsyncScore: TypeAlias = Callable[[Sequence[Steps], Request], Awaitable[list[Scores]]]

CHOICES = {
    "granularity": ("model", "layer", "head"),
    "ratio_of": ("evictable", "all"),
    "allocation": ("even", "pyramid", "adakv"),
}
# The granularities that an uneven allocation needs.
ALLOCATED = {"pyramid": ("layer", "head"), "adakv": ("head",)}
NOTHING = Scores(why="nothing to score")


@dataclass(frozen=True)
class CacheBudget:
    """How many tokens a KV cache holds, and which of them are never evicted."""

    budget: int  # tokens; a cache that reaches it is pruned
    window: int  # the most recent tokens, never evicted
    # Fraction of the evictable tokens that is kept; None: prune to the budget at every step.
    ratio: float | None = None
    sinks: int = 4  # the first tokens, never evicted
    question: bool = True  # never evict the prompt
    answer: bool = True  # never evict what follows the end of thinking
    # Which heads share one decision: all, a layer's, none.
    granularity: Literal["model", "layer", "head"] = "model"
    # What the ratio is a fraction of: the tokens before the window that may be evicted, or all of
    # them, as in DynTS's published code, where a long prompt uses up what may be kept.
    ratio_of: Literal["evictable", "all"] = "evictable"
    # How many tokens each layer and head keeps: equally many, fewer in later layers, or by score
    # within a layer.
    allocation: Literal["even", "pyramid", "adakv"] = "even"

    def __post_init__(self) -> None:
        for name, known in CHOICES.items():
            value = getattr(self, name)
            if value not in known:
                raise UserError(f"{name} `{value}` is unknown", hint=f"known: {', '.join(known)}")
        if not 0 < self.window < self.budget:
            raise UserError(
                "the window must be at least 1 and smaller than the budget, "
                f"not {self.window} of {self.budget}",
                hint=f"window = {max(1, self.budget // 4)}",
            )
        if self.ratio is not None and not 0 < self.ratio <= 1:
            raise UserError(
                f"ratio is a fraction above 0 and at most 1, not {self.ratio}", hint="ratio = 0.3"
            )
        if self.sinks < 0:
            raise UserError(f"sinks is a number of tokens, not {self.sinks}")
        if self.allocation != "even":
            allowed = ALLOCATED[self.allocation]
            if self.granularity not in allowed:
                raise UserError(
                    f'allocation = "{self.allocation}" can\'t be used with '
                    f'granularity = "{self.granularity}"',
                    hint=" or ".join(f'granularity = "{unit}"' for unit in allowed),
                )

    def check_prompt(self, tokens: int) -> None:
        """Raise `UserError` if a prompt of this many tokens leaves no token to evict."""
        protected = self.sinks  # after a short prompt, a reply's first tokens are sinks too
        noun = "sinks"
        remedy = "fewer sinks"
        if self.question and tokens > self.sinks:
            protected = tokens
            noun = "tokens of the prompt"
            remedy = "question = false"
        if protected + self.window >= self.budget:
            raise UserError(
                f"{protected} {noun} are protected and the window holds {self.window}: "
                f"with a budget of {self.budget} no token could be evicted",
                hint=f"budget = {2 * (protected + self.window)}, or {remedy}",
            )

    def kept(self, length: int, protected: int) -> int | None:
        """Return how many of a cache's tokens before the window to keep; None: don't prune now.

        The cache holds `length` tokens, and `protected` of those before the window are never
        evicted.
        """
        if length < self.budget or (self.ratio is None and length == self.budget):
            return None
        before = length - self.window
        if self.ratio is None:
            return max(self.budget - self.window, protected)
        if self.ratio_of == "all":
            return max(int(self.ratio * before), protected)
        return protected + int(self.ratio * (before - protected))


class Policy(Plugin, ABC):
    """An eviction policy: scores the tokens in a KV cache; the lowest scores are evicted first.

        @dataclass(frozen=True)
        class ValueNorm(Policy):
            def score(self, view):
                return view.values.norm(dim=-1)  # rows × heads × tokens

    The method `compress` puts it into a model's KV cache, which calls `score` whenever the cache
    reaches its budget (`ponder.kvcache`).
    """

    queries: int = 0  # how many of the most recent queries it needs
    # What else it needs in the view: "attention", the attention that each token has received so
    # far; "rope", the model's rotary frequencies.
    needs: ClassVar[Collection[str]] = ()
    # Whether scores may differ between layers.
    per_layer: ClassVar[bool] = True
    # Whether a score depends on neighbouring columns, so that they must stay in order.
    by_order: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.queries < min(1, type(self).queries):
            raise UserError(
                f"`{self.plugin_name()}` needs at least one recent query, not {self.queries}"
            )

    @abstractmethod
    def score(self, view: Any) -> Tensor:
        """Return a score for every token in a `ponder.kvcache.CacheView`.

        The shape is rows × (heads or 1) × tokens. The cache evicts the lowest scores first, except
        for the window and other protected tokens.
        """


class KeepsAll:
    """A policy that evicts no token, whatever the budget."""


class Fitted(ABC):
    """A policy that is fitted to a model: to its vocabulary, or by training on its own traces."""

    @abstractmethod
    def fitted(self, folder: Path, tokenizer: Any) -> Policy:
        """Return the policy for one model, given its folder of weights and its tokenizer."""

    def token_features(self, hidden: Tensor, ids: Tensor) -> Tensor | None:  # noqa: ARG002 for subclasses
        """Return a number to store with each new token, rows × tokens; None for none.

        `hidden` are the tokens' last hidden states, rows × tokens × width; `ids` are rows × tokens.
        """
        return None


class Trainable(Fitted):
    """A policy that must be trained for a model before it can score.

    `ponder prepare STUDY` trains it.
    """

    @abstractmethod
    def needs_fit(self, folder: Path) -> bool:
        """Return whether it must be trained for the weights in a folder before it can score."""

    @abstractmethod
    def fit(
        self, network: Any, traces: Sequence[TokenTrace], folder: Path, facts: Mapping[str, Any]
    ) -> Iterator[Progress]:
        """Train it on a network's correct traces, write to `fitted_path`, and yield progress."""

    def fitted_path(self, folder: Path) -> Path:
        """Return the folder that `fit` writes for the weights in a folder."""
        return folder / type(self).__module__.rsplit(".", 1)[-1]


class TrainedPerStudy(Trainable):
    """A policy that is trained on each study's problems; attempts' keys hold a digest of them."""

    @abstractmethod
    def with_training(self, on: str, made: Path) -> Policy:
        """Return the same policy trained on the problems with this digest.

        "" stands for the training that ships with the weights. `made` is the folder of trained
        models, where it may keep what it learned from other problems.
        """


def fitted_to(policy: Policy, folder: Path, tokenizer: Any) -> Policy:
    """Return a policy for one model, given the folder of its weights and its tokenizer."""
    return policy.fitted(folder, tokenizer) if isinstance(policy, Fitted) else policy


class LengthReward(Plugin, ABC):
    """A term of the training reward that depends on a reply's length.

        @dataclass(frozen=True)
        class Shorter(LengthReward):
            def rewards(self, right, tokens, progress):
                longest = max(tokens)
                return [1 - n / longest if ok else 0.0 for ok, n in zip(right, tokens)]

    The method `length_rl` adds it to the reward for a correct answer.
    """

    @abstractmethod
    def rewards(self, right: Sequence[bool], tokens: Sequence[int], progress: float) -> list[float]:
        """Return one number per sample of a problem, never above 0 for a wrong one.

        `right` and `tokens` say which samples are correct and how long they are; `progress` is the
        fraction of the training that is done.
        """


@dataclass(frozen=True, kw_only=True)
class Reward(Plugin, ABC):
    """A process reward: scores each step of a reasoning trace, and optionally the trajectory.

        @dataclass(frozen=True, kw_only=True)
        class Short(Reward):
            def rate(self, traces):
                return [self._scores(trace.part(self.of)) for trace in traces]

            def _scores(self, steps):
                return Scores(tuple(1 / len(step) for step in steps))

    The total is the aggregate of the step scores plus `alpha` times the score of the trajectory,
    the trace as a whole: with the mean, that of ReasonFlux-PRM (arXiv 2506.18896, eq. 11).
    """

    of: Part = "all"  # what is scored: thinking and answer, or one of them
    # how step scores become one number
    aggregate: Literal["mean", "min", "last", "product"] = "mean"
    alpha: float = 1.0  # weight of the trajectory's score, if the reward gives one

    # Question, thinking, answer and facts of a trace that it must score, for `ponder check`.
    tried_on: ClassVar[Mapping[str, Any]] = {}

    @abstractmethod
    def rate(self, traces: Sequence[Steps]) -> Sequence[Scores]:
        """Return the scores of each trace, one per step of `trace.part(self.of)`, from 0 to 1.

        `Scores(why=…)` stands for a trace that can't be scored. `score` calls it with traces that
        have at least one step, and computes the totals.
        """

    def score(self, traces: Sequence[Steps]) -> list[Scores]:
        """Return scores with their totals, in the order of the traces.

        It blocks; in an event loop, use `opened`.
        """
        scorable = [trace for trace in traces if trace.part(self.of)]
        rated = self.rate(scorable) if scorable else ()
        return with_totals(self, traces, rated)

    def ready(self) -> None:
        """Raise `UserError` if something is missing on this machine, as `Model.ready` does."""


class RatesEach(ABC):
    """A reward that returns the scores of each trace as soon as they are known."""

    @abstractmethod
    def rate_each(self, traces: Sequence[Steps]) -> Iterator[tuple[int, Scores]]:
        """Yield the index and the scores of each trace, in any order."""


class Asking(ABC):
    """A reward that asks a model, such as a judge."""

    @abstractmethod
    def asks(self) -> Model:
        """Return the model that it asks; its prices apply to the bills of the scores."""

    @abstractmethod
    def limit(self, tokens: int) -> Spend:
        """Return an upper bound on what scoring a trace of this many tokens may spend."""

    @abstractmethod
    def opened(self) -> AbstractAsyncContextManager[AsyncScore]:
        """Open the model in the running event loop, and return the function that scores.

        If the model gives no answer, scoring raises `ModelFailure` with the reward's own bill.
        """


class InMemory(ABC):
    """A reward with weights in the memory of this process."""

    @abstractmethod
    def parameters(self) -> int:
        """Return the number of its weights."""

    @abstractmethod
    def release(self) -> None:
        """Free the memory that its weights take, until it is used again."""


def judge_of(reward: Reward) -> Model | None:
    """Return the model that a reward asks; None if it asks none."""
    return reward.asks() if isinstance(reward, Asking) else None


def scoring_limit(reward: Reward, tokens: int) -> Spend:
    """Return an upper bound on what scoring a trace of this many tokens may spend."""
    return reward.limit(tokens) if isinstance(reward, Asking) else Spend(tokens)


@asynccontextmanager
async def opened(reward: Reward) -> AsyncIterator[AsyncScore]:
    """Open a reward in a running event loop: it asks its model there, or scores in a thread."""
    if isinstance(reward, Asking):
        async with reward.opened() as score:
            yield score
        return

    async def score_in_thread(traces: Sequence[Steps], request: Request) -> list[Scores]:  # noqa: ARG001 `AsyncScore`'s
        return await asyncio.to_thread(reward.score, traces)

    yield score_in_thread


def scored(reward: Reward, traces: Iterable[Steps], batch: int = 1024) -> Iterator[Scores]:
    """Yield the scores of a stream of traces, in constant memory."""
    traces = iter(traces)
    while chunk := list(islice(traces, batch)):
        yield from reward.score(chunk)


def scores_by_index(reward: Reward, traces: Sequence[Steps]) -> Iterator[tuple[int, Scores]]:
    """Yield the index and the scores of each trace as soon as they are known, in any order."""
    scorable = []
    for index, trace in enumerate(traces):
        if trace.part(reward.of):
            scorable.append(index)
        else:
            yield index, NOTHING
    if not scorable:
        return
    to_rate = [traces[index] for index in scorable]
    if isinstance(reward, RatesEach):
        rated_traces = reward.rate_each(to_rate)
    else:
        rated_traces = enumerate(reward.rate(to_rate))
    for position, rated in rated_traces:
        index = scorable[position]
        yield index, _total(reward, traces[index], rated)


def with_totals(reward: Reward, traces: Sequence[Steps], rated: Sequence[Scores]) -> list[Scores]:
    """Return the scores of all traces with their totals.

    `rated` is what `rate` returned for the traces that have steps.
    """
    remaining = iter(rated)
    totals = []
    for trace in traces:
        if trace.part(reward.of):
            totals.append(_total(reward, trace, next(remaining)))
        else:
            totals.append(NOTHING)
    return totals


def _total(reward: Reward, trace: Steps, rated: Scores) -> Scores:
    """Return a trace's scores with their total, or the reason why they are invalid."""
    why = rated.why or _invalid(rated, len(trace.part(reward.of)))
    if why:
        return Scores(why=why, bill=rated.bill)
    steps = rated.steps
    aggregates = {
        "min": min(steps),
        "last": steps[-1],
        "product": math.prod(steps),
        "mean": math.fsum(steps) / len(steps),
    }
    total = aggregates[reward.aggregate] + reward.alpha * (rated.trajectory or 0.0)
    return dataclasses.replace(rated, total=total)


def _invalid(rated: Scores, steps: int) -> str:
    """Describe what is wrong with a reward's scores; "" if nothing is."""
    scores = list(rated.steps)
    if rated.trajectory is not None:
        scores.append(rated.trajectory)
    for score in scores:
        if math.isnan(score):
            return "the reward returned NaN"
        if not 0 <= score <= 1:
            return f"the reward returned {score:g}, which is not from 0 to 1"
    if len(rated.steps) != steps:
        return f"the reward returned {len(rated.steps)} scores for {steps} steps"
    return ""
