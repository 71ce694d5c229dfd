"""The interfaces of plugins that score: eviction policies (tokens), rewards (steps), length rewards
(lengths).
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

# Scores the traces of one turn. The turn's request is told of each call.
AsyncScore: TypeAlias = Callable[[Sequence[Steps], Request], Awaitable[list[Scores]]]


CHOICES = {
    "granularity": ("model", "layer", "head"),
    "ratio_of": ("evictable", "all"),
    "allocation": ("even", "pyramid", "adakv"),
}
ALLOCATED = {"pyramid": ("layer", "head"), "adakv": ("head",)}  # what must decide for itself


@dataclass(frozen=True)
class CacheBudget:
    """How many tokens a KV cache holds, and which of them are never evicted."""

    budget: int  # tokens; a cache that reaches it is pruned
    window: int  # the most recent tokens, never evicted
    # fraction of the evictable tokens that is kept; None: prune to the budget at every step
    ratio: float | None = None
    sinks: int = 4  # the first tokens, never evicted
    question: bool = True  # never evict the prompt
    answer: bool = True  # never evict what follows the end of thinking
    # which heads share one decision: all, a layer's, none
    granularity: Literal["model", "layer", "head"] = "model"
    # What the ratio is a fraction of: the tokens before the window that may be evicted, or all of
    # them, as in DynTS's published code, where a long prompt uses up what may be kept.
    ratio_of: Literal["evictable", "all"] = "evictable"
    # How many tokens each layer and head keeps: equally many; fewer in later layers; by score
    # within a layer.
    allocation: Literal["even", "pyramid", "adakv"] = "even"

    def __post_init__(self) -> None:
        for name, known in CHOICES.items():
            if (value := getattr(self, name)) not in known:
                raise UserError(f"{name} `{value}` is unknown", hint=f"known: {', '.join(known)}")
        if not 0 < self.window < self.budget:
            what = f"the window must be at least 1 and smaller than the budget, not {self.window} of {self.budget}"
            raise UserError(what, hint=f"window = {max(1, self.budget // 4)}")
        if self.ratio is not None and not 0 < self.ratio <= 1:
            raise UserError(
                f"ratio is a fraction above 0 and at most 1, not {self.ratio}", hint="ratio = 0.3"
            )
        if self.sinks < 0:
            raise UserError(f"sinks is a number of tokens, not {self.sinks}")
        if self.allocation != "even" and self.granularity not in ALLOCATED[self.allocation]:
            units = " or ".join(f'granularity = "{unit}"' for unit in ALLOCATED[self.allocation])
            raise UserError(
                f'allocation = "{self.allocation}" needs decisions of their own', hint=units
            )

    def check_prompt(self, tokens: int) -> None:
        """Raise `UserError` if a prompt of so many tokens leaves none that could be evicted."""
        # after a short prompt, a reply's first tokens are sinks too
        long = self.question and tokens > self.sinks
        protected, which = (tokens, "tokens of the prompt") if long else (self.sinks, "sinks")
        if protected + self.window >= self.budget:
            what = (
                f"{protected} {which} are protected and the window holds {self.window}: "
                f"with a budget of {self.budget} no token could be evicted"
            )
            fewer = "question = false" if long else "fewer sinks"
            raise UserError(what, hint=f"budget = {2 * (protected + self.window)}, or {fewer}")

    def kept(self, length: int, protected: int) -> int | None:
        """How many of a cache's `length` tokens are kept beside the window, if it is to be pruned
        now; else None.

        `protected` of the tokens before the window are never evicted.
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
    """An eviction policy: scores the tokens in a KV cache; the lowest scores are evicted first."""

    queries: int = 0  # how many of the most recent queries it needs
    # What else it needs: "attention", that each token has received so far; "rope", the model's
    # rotary frequencies.
    needs: ClassVar[Collection[str]] = ()
    per_layer: ClassVar[bool] = True  # whether scores may differ between layers
    # whether a score depends on neighbouring columns, so that they must stay in order
    by_order: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.queries < min(1, type(self).queries):
            raise UserError(
                f"`{self.plugin_name()}` needs at least one recent query, not {self.queries}"
            )

    @abstractmethod
    def score(self, view: Any) -> Tensor:
        """Score every token in a `ponder.kvcache.CacheView`, R × (H or 1) × n; the lowest are
        evicted first.
        """


class KeepsAll:
    """A policy that evicts no token, whatever the budget."""


class Fitted(ABC):
    """A policy that is fitted to a model: to its vocabulary, or by training on its own correct
    traces.
    """

    @abstractmethod
    def fitted(self, folder: Path, tokenizer: Any) -> Policy:
        """Return the policy for one model, with what it needs from the folder of weights and the
        vocabulary.
        """

    def token_features(self, hidden: Tensor, ids: Tensor) -> Tensor | None:  # noqa: ARG002 for subclasses
        """Return a number to store with each new token (rows × tokens), computed from its last
        hidden state.
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
        """Train it on a network's own correct traces, and write the result where `fitted_path`
        says.
        """

    def fitted_path(self, folder: Path) -> Path:
        """Return what `fit` writes for the weights in a folder."""
        return folder / type(self).__module__.rsplit(".", 1)[-1]


class TrainedPerStudy(Trainable):
    """A policy that is trained on each study's own problems, of which an attempt's key holds a
    digest.
    """

    @abstractmethod
    def with_training(self, on: str, made: Path) -> Policy:
        """Return the same policy for problems with this digest; "": what ships with the weights.

        What was trained on other problems is kept separately, for example in the folder of made
        models.
        """


def fitted_to(policy: Policy, folder: Path, tokenizer: Any) -> Policy:
    """Return a policy for one model, given the folder of its weights and its tokenizer."""
    return policy.fitted(folder, tokenizer) if isinstance(policy, Fitted) else policy


class LengthReward(Plugin, ABC):
    """A term of the training reward that depends on a reply's length, compared with other samples
    of its problem.
    """

    @abstractmethod
    def rewards(self, right: Sequence[bool], tokens: Sequence[int], progress: float) -> list[float]:
        """One number per sample, given which are correct and how many tokens each has.

        `progress` is the fraction of the training that is done.
        """


@dataclass(frozen=True, kw_only=True)
class Reward(Plugin, ABC):
    """A process reward: scores each step of a reasoning trace, and optionally the trajectory, the
    trace as a whole.

    The total is the aggregate of the step scores plus `alpha` times the score of the trajectory:
    with the mean, that of ReasonFlux-PRM (arXiv 2506.18896, eq. 11).
    """

    of: Part = "all"  # what is scored: thinking and answer, or one of them
    # how step scores become one number
    aggregate: Literal["mean", "min", "last", "product"] = "mean"
    alpha: float = 1.0  # weight of the trajectory's score, if the reward gives one

    # question, thinking, answer and facts of a trace that it must score
    tried_on: ClassVar[Mapping[str, Any]] = {}

    @abstractmethod
    def rate(self, traces: Sequence[Steps]) -> Sequence[Scores]:
        """Return step and trajectory scores of each trace, or why there are none.

        `score` computes the total.
        """

    def score(self, traces: Sequence[Steps]) -> list[Scores]:
        """Return scores with their totals, in the order of the traces.

        It blocks; `opened` doesn't.
        """
        scorable = [trace for trace in traces if trace.part(self.of)]
        return with_totals(self, traces, self.rate(scorable) if scorable else ())

    def ready(self) -> None:
        """Raise `UserError` for what is missing on this machine, as `Model.ready` does."""


class RatesEach(ABC):
    """A reward that gives the scores of each trace as soon as they are known."""

    @abstractmethod
    def rate_each(self, traces: Sequence[Steps]) -> Iterator[tuple[int, Scores]]:
        """Yield the index and the scores of each trace, in any order."""


class Asking(ABC):
    """A reward that asks a model, such as a judge."""

    @abstractmethod
    def asks(self) -> Model:
        """Return the model that it asks, whose prices its bills have."""

    @abstractmethod
    def limit(self, tokens: int) -> Spend:
        """Return the most that scoring a trace of so many tokens may take, as its scores' bills
        count it.
        """

    @abstractmethod
    def opened(self) -> AbstractAsyncContextManager[AsyncScore]:
        """Open the model, to be asked in the running event loop.

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
    """Return the most that scoring a trace of so many tokens may take, as its scores' bills count
    it.
    """
    return reward.limit(tokens) if isinstance(reward, Asking) else Spend(tokens)


@asynccontextmanager
async def opened(reward: Reward) -> AsyncIterator[AsyncScore]:
    """Open a reward for a running event loop: one that asks a model asks it there, another scores
    in a thread.
    """
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
    """Yield the index and the scores of each trace with its total, as soon as they are known, in
    any order.
    """
    scorable = []
    for index, trace in enumerate(traces):
        if trace.part(reward.of):
            scorable.append(index)
        else:
            yield index, NOTHING
    if not scorable:
        return
    asked = [traces[index] for index in scorable]
    each = (
        reward.rate_each(asked) if isinstance(reward, RatesEach) else enumerate(reward.rate(asked))
    )
    for position, rated in each:
        index = scorable[position]
        yield index, _total(reward, traces[index], rated)


def with_totals(reward: Reward, traces: Sequence[Steps], rated: Sequence[Scores]) -> list[Scores]:
    """Return the scores of all traces with their totals, from what `rate` returned for those that
    have steps.
    """
    each = iter(rated)
    return [
        _total(reward, trace, next(each)) if trace.part(reward.of) else NOTHING for trace in traces
    ]


NOTHING = Scores(why="nothing to score")


def _total(reward: Reward, trace: Steps, rated: Scores) -> Scores:
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
    """What is wrong with a reward's scores; "" if nothing is."""
    for score in (*rated.steps, *([] if rated.trajectory is None else [rated.trajectory])):
        if math.isnan(score):
            return "the reward returned NaN"
        if not 0 <= score <= 1:
            return f"the reward returned {score:g}, which is not from 0 to 1"
    return (
        ""
        if len(rated.steps) == steps
        else f"the reward returned {len(rated.steps)} scores for {steps} steps"
    )
