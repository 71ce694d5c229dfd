"""The interfaces of plugins that score: eviction policies (tokens), rewards (steps), length rewards (lengths)."""

from __future__ import annotations

import asyncio
import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
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
    ratio: float | None = None  # fraction of the evictable tokens that is kept; None: prune to the budget at every step
    sinks: int = 4  # the first tokens, never evicted
    question: bool = True  # never evict the prompt
    answer: bool = True  # never evict what follows the end of thinking
    granularity: Literal["model", "layer", "head"] = "model"  # which heads share one decision: all, a layer's, none
    # What the ratio is a fraction of: the tokens before the window that may be evicted, or all of them, as in DynTS's
    # published code, where a long prompt uses up what may be kept.
    ratio_of: Literal["evictable", "all"] = "evictable"
    # How many tokens each layer and head keeps: equally many; fewer in later layers; by score within a layer.
    allocation: Literal["even", "pyramid", "adakv"] = "even"

    def __post_init__(self) -> None:
        for name, known in CHOICES.items():
            if (value := getattr(self, name)) not in known:
                raise UserError(f"{name} `{value}` is unknown", hint=f"known: {', '.join(known)}")
        if not 0 < self.window < self.budget:
            what = f"the window must be at least 1 and smaller than the budget, not {self.window} of {self.budget}"
            raise UserError(what, hint=f"window = {max(1, self.budget // 4)}")
        if self.ratio is not None and not 0 < self.ratio <= 1:
            raise UserError(f"ratio is a fraction above 0 and at most 1, not {self.ratio}", hint="ratio = 0.3")
        if self.sinks < 0:
            raise UserError(f"sinks is a number of tokens, not {self.sinks}")
        if self.allocation != "even" and self.granularity not in ALLOCATED[self.allocation]:
            units = " or ".join(f'granularity = "{unit}"' for unit in ALLOCATED[self.allocation])
            raise UserError(f'allocation = "{self.allocation}" needs decisions of their own', hint=units)

    def check_prompt(self, tokens: int) -> None:
        """Raise `UserError` if a prompt of so many tokens leaves none that could be evicted."""
        long = self.question and tokens > self.sinks  # after a short prompt, a reply's first tokens are sinks too
        protected, which = (tokens, "tokens of the prompt") if long else (self.sinks, "sinks")
        if protected + self.window >= self.budget:
            what = (
                f"{protected} {which} are protected and the window holds {self.window}: "
                f"with a budget of {self.budget} no token could be evicted"
            )
            fewer = "question = false" if long else "fewer sinks"
            raise UserError(what, hint=f"budget = {2 * (protected + self.window)}, or {fewer}")

    def kept(self, length: int, protected: int) -> int | None:
        """How many of a cache's `length` tokens are kept beside the window, if it is to be pruned now; else None.

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
    accumulates: ClassVar[bool] = False  # whether it needs the attention that each token has received so far
    per_layer: ClassVar[bool] = True  # whether scores may differ between layers
    needs_rope: ClassVar[bool] = False  # whether it needs the model's rotary frequencies
    evicts: ClassVar[bool] = True  # False: it keeps every token, whatever the budget
    by_order: ClassVar[bool] = True  # whether a score depends on neighbouring columns, so that they must stay in order

    def __post_init__(self) -> None:
        if self.queries < min(1, type(self).queries):
            raise UserError(f"`{self.plugin_name()}` needs at least one recent query, not {self.queries}")

    def fitted(self, folder: Path, tokenizer: Any) -> Policy:  # noqa: ARG002 for subclasses
        """The policy for one model, with what it needs from the folder of weights and the vocabulary."""
        return self

    def with_training(self, on: str, made: Path) -> Policy:  # noqa: ARG002 for subclasses
        """The same policy, to be fitted on a study's own problems, of which `on` is a digest; "": it uses what ships.

        A policy that defines it has the digest in an attempt's key, and keeps apart what was fitted on other problems,
        for example in the folder of made models.
        """
        return self

    def fitted_path(self, folder: Path) -> Path:
        """What `fit` writes for the weights in a folder."""
        return folder / self.plugin_name()

    def needs_fit(self, folder: Path) -> bool:  # noqa: ARG002 for subclasses
        """Whether it must be trained for the weights in a folder before it can score."""
        return False

    def fit(
        self,
        network: Any,  # noqa: ARG002 for subclasses
        traces: Sequence[TokenTrace],  # noqa: ARG002
        folder: Path,  # noqa: ARG002
        facts: Mapping[str, Any],  # noqa: ARG002
    ) -> Iterator[Progress]:
        """Train it on a network's own correct traces, and write the result beside the weights in a folder."""
        yield from ()

    def token_features(self, hidden: Tensor, ids: Tensor) -> Tensor | None:  # noqa: ARG002 for subclasses
        """A number to store with each new token (rows × tokens), computed from its last hidden state."""
        return None

    @abstractmethod
    def score(self, view: Any) -> Tensor:
        """A score for every token in a `ponder.kvcache.CacheView`, R × (H or 1) × n; the lowest are evicted first."""


class LengthReward(Plugin, ABC):
    """A term of the training reward that depends on a reply's length, compared with other samples of its problem."""

    @abstractmethod
    def rewards(self, right: Sequence[bool], tokens: Sequence[int], progress: float) -> list[float]:
        """One number per sample, given which are correct and how many tokens each has.

        `progress` is the fraction of the training that is done.
        """


@dataclass(frozen=True, kw_only=True)
class Reward(Plugin, ABC):
    """A process reward: scores each step of a reasoning trace, and optionally the trajectory, the trace as a whole.

    The total is the aggregate of the step scores plus `alpha` times the score of the trajectory: with the mean, that of
    ReasonFlux-PRM (arXiv 2506.18896, eq. 11).
    """

    of: Part = "all"  # what is scored: thinking and answer, or one of them
    aggregate: Literal["mean", "min", "last", "product"] = "mean"  # how step scores become one number
    alpha: float = 1.0  # weight of the trajectory's score, if the reward gives one

    tried_on: ClassVar[Mapping[str, Any]] = {}  # question, thinking, answer and facts of a trace that it must score

    @abstractmethod
    def rate(self, traces: Sequence[Steps]) -> Sequence[Scores]:
        """Step and trajectory scores of each trace, or why there are none. `score` computes the total."""

    def score(self, traces: Sequence[Steps]) -> list[Scores]:
        """Scores, in the order of the traces. It blocks; `opened` doesn't."""
        scorable = self.scorable(traces)
        return self.totals(traces, self.rate(scorable) if scorable else ())

    def scorable(self, traces: Sequence[Steps]) -> list[Steps]:
        """The traces that have something to score."""
        return [trace for trace in traces if trace.part(self.of)]

    def totals(self, traces: Sequence[Steps], rated: Sequence[Scores]) -> list[Scores]:
        """The scores of all traces with their totals, from what `rate` returned for the scorable ones."""
        each = iter(rated)
        return [self._total(t, next(each)) if t.part(self.of) else Scores(why="nothing to score") for t in traces]

    def rate_each(self, traces: Sequence[Steps]) -> Iterator[tuple[int, Scores]]:
        """The index and the scores of each trace, as soon as they are known: by default all of them at the end."""
        yield from enumerate(self.rate(traces))

    def stream(self, traces: Sequence[Steps]) -> Iterator[tuple[int, Scores]]:
        """The index and the scores of each trace with its total, as soon as they are known, in any order."""
        scorable = [n for n, trace in enumerate(traces) if trace.part(self.of)]
        yield from ((n, Scores(why="nothing to score")) for n, t in enumerate(traces) if not t.part(self.of))
        for k, rated in self.rate_each([traces[n] for n in scorable]) if scorable else ():
            yield scorable[k], self._total(traces[scorable[k]], rated)

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[AsyncScore]:
        """`score` for a running event loop: by default in a thread.

        A reward that asks a model overrides it: the model stays open meanwhile, and is asked in the same loop. If the
        model gives no answer, scoring raises `ModelFailure` with the reward's own bill.
        """

        async def score(traces: Sequence[Steps], request: Request) -> list[Scores]:  # noqa: ARG001 the interface's
            return await asyncio.to_thread(self.score, traces)

        yield score

    def scored(self, traces: Iterable[Steps], batch: int = 1024) -> Iterator[Scores]:
        """The same for a stream of traces, in constant memory."""
        traces = iter(traces)
        while chunk := list(islice(traces, batch)):
            yield from self.score(chunk)

    def _total(self, trace: Steps, rated: Scores) -> Scores:
        if why := rated.why or _invalid(rated, len(trace.part(self.of))):
            return Scores(why=why, bill=rated.bill)
        steps = rated.steps
        one = {"min": min(steps), "last": steps[-1], "product": math.prod(steps), "mean": math.fsum(steps) / len(steps)}
        total = one[self.aggregate] + self.alpha * (rated.trajectory or 0.0)
        return dataclasses.replace(rated, total=total)

    def limit(self, tokens: int) -> Spend:
        """The most that scoring a trace of so many tokens may take, as its scores' bills count it."""
        return Spend(tokens)

    def asks(self) -> Model | None:
        """The model that it asks, whose prices its bills have; None if it asks none."""
        return None

    def ready(self) -> None:
        """Raise `UserError` for what is missing on this machine, as `Model.ready` does."""

    def parameters(self) -> int | None:
        """The number of its weights; None if it has none or they aren't local."""
        return None

    def release(self) -> None:
        """Free the memory that it holds, such as that of weights, until it is used again."""


def _invalid(rated: Scores, steps: int) -> str:
    """What is wrong with a reward's scores; "" if nothing is."""
    for score in (*rated.steps, *([] if rated.trajectory is None else [rated.trajectory])):
        if math.isnan(score):
            return "the reward returned NaN"
        if not 0 <= score <= 1:
            return f"the reward returned {score:g}, which is not from 0 to 1"
    return "" if len(rated.steps) == steps else f"the reward returned {len(rated.steps)} scores for {steps} steps"
