"""Samples n answers and returns the one that a process reward scores highest (best-of-n).

After Lightman et al. 2023 and ReasonFlux-PRM (arXiv 2506.18896, use c). `pick = "vote"` instead
sums the rewards of samples with the same answer, as in Math-Shepherd (Wang et al. 2023); `pick =
"odds"` sums p / (1 - p), where p is the score of the trajectory: the weight that a vote gives to
samples that are right with probability p. The reward `trained`, without an `id`, is first trained
on the model's own samples of training problems.

All n samples are billed. What the reward reads and writes is billed apart, at its own prices
(`reward_prompt_tokens`, `reward_completion_tokens`, `reward_cost`), and counts towards the study's
caps. A truncated sample, or one without a score, is returned only if there is no other. If a judge
gives no answer, the attempt is `failed`. For the figure `best_of`, each attempt records its
samples' scores, which of them are right, how many different thinkings they have, and what every
rule, the majority too, would have picked from the same samples.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, TypeAlias

from ponder.core import (
    Bill,
    Completion,
    Limit,
    Method,
    Model,
    ModelFailure,
    Prepared,
    Prices,
    Progress,
    Request,
    Reward,
    Scores,
    Spend,
    Task,
    TrainingProblems,
    TurnLimit,
    UserError,
    Wrapped,
    not_in_key,
)
from ponder.core.capabilities import grade_turns, grades_slowly
from ponder.core.scoring import judge_of, opened, scoring_limit
from ponder.core.wrapped import codec_name
from ponder.rewards.trained import Trained
from ponder.traces import steps, trace_of

if TYPE_CHECKING:
    from ponder.training.own_samples import OwnSamples

Rule: TypeAlias = Literal["best", "vote", "odds", "majority"]
# odds are those of a probability this far from 0 and 1: a thousand samples can't tell more
SURE = 1e-3


@dataclass(frozen=True, kw_only=True)
class BestOf(Method, Prepared):
    reward: Reward  # `ponder list rewards`: { name = "qwen", id = "Qwen/Qwen2.5-Math-PRM-7B" }
    n: int = 8  # samples per turn
    # the best sample, or the answer with most reward or most odds
    pick: Literal["best", "vote", "odds"] = "best"
    # where to split steps: blank line, sentence, as the task does
    cut: Literal["blank", "sentence", "task"] = "blank"
    seed: int = 1  # of the training of a reward that is trained on the model's own samples
    train_on: tuple[TrainingProblems, ...] = not_in_key(())  # set from the study's [[train]]

    example: ClassVar[dict[str, Any]] = {"reward": {"name": "oracle"}, "n": 3, "cut": "task"}
    tried_on: ClassVar[Any] = (
        {"name": "pocket", "temperature": 1.0},
        {"name": "execution", "dictionary": 6},
        2,
    )

    def __post_init__(self) -> None:
        if self.n < 1:
            raise UserError(f"n is a number of samples, at least 1, not {self.n}")

    def title(self) -> str:
        return f"{self.pick} of n by {self.reward.title()}"

    def identity(self) -> dict[str, Any]:
        if (reward := self._untrained()) is None:
            return super().identity()
        return {
            **super().identity(),
            "trained": reward.trained_on(self.train_on, self.cut, self.seed),
        }

    def _untrained(self) -> Trained | None:
        """Its reward, if that is to be trained on the model's own samples."""
        return self.reward if isinstance(self.reward, Trained) and not self.reward.id else None

    def _training(self) -> OwnSamples | None:
        if (reward := self._untrained()) is None:
            return None
        from ponder.training.own_samples import OwnSamples  # imports torch

        return OwnSamples(reward, self.train_on, self.cut, self.seed)

    def with_training(self, train_on: tuple[TrainingProblems, ...]) -> Self:
        return replace(self, train_on=train_on)

    def training_seed(self) -> int | None:
        return self.seed if self._untrained() else None

    def check(self, model: Model, task: Task) -> None:
        if own := self._training():
            own.check(model, task)

    def make(self, model: Model) -> Iterator[Progress]:
        if own := self._training():
            yield from own.make(model)

    def missing_outputs(self, model: Model) -> tuple[Path, ...]:
        return own.missing_outputs(model) if (own := self._training()) else ()

    def turn_limit(self, inner: TurnLimit) -> TurnLimit:
        def limit(prompt_tokens: int, budget: int | None) -> Spend | None:
            if (one := inner(prompt_tokens, budget)) is None:
                return None
            return one.plus(
                scoring_limit(self.reward, one.tokens).as_reward(self.reward_prices)
            ).times(self.n)

        return limit

    def asks(self) -> tuple[Model, ...]:
        return (judge,) if (judge := judge_of(self.reward)) else ()

    @property
    def reward_prices(self) -> Prices | None:
        return judge.prices if (judge := judge_of(self.reward)) else None

    def ready(self) -> None:
        self.reward.ready()

    def folder(self, model: Model) -> Path | None:
        return own.folder(model) if (own := self._training()) else None

    def sampling_limits(self, model: Model) -> Mapping[Path, Limit]:
        return own.sampling_limits(model) if (own := self._training()) else {}

    def samplers(self, model: Model) -> tuple[Model, ...]:
        return own.samplers(model) if (own := self._training()) else ()

    def apply(self, model: Model) -> Model:
        for _ in self.make(model):
            pass
        own = self._training()
        return (
            _Picking(model, replace(self, reward=own.made(model)), own.cost(model))
            if own
            else _Picking(model, self)
        )


class _Picking(Wrapped):
    def __init__(
        self, inner: Model, method: BestOf, cost: Mapping[str, float] | None = None
    ) -> None:
        super().__init__(inner)
        self._method, self._cost = method, cost or {}

    def made(self, task: Task) -> Mapping[str, float]:
        """What making the model and its reward cost together."""
        inner = super().made(task)
        return {
            name: inner.get(name, 0.0) + self._cost.get(name, 0.0) for name in (*inner, *self._cost)
        }

    async def complete(self, request: Request) -> Completion:
        method = self._method
        samples = await self.samples(request, method.n)
        codec = codec_name(self.inner, request.task)
        traces = [
            trace_of(request, completion.thinking, completion.answer, codec)
            for completion in samples
        ]
        asked = sum((c.bill for c in samples[1:]), samples[0].bill)
        try:
            cut = [steps(trace, method.cut) for trace in traces]
            scores = await self._score(cut, request)
        except ModelFailure as error:
            raise ModelFailure(
                str(error), asked + (error.bill or Bill()).as_reward(method.reward_prices)
            ) from error
        ballots = await self.ballots(request, samples)
        picked = pick(method.pick, samples, scores, ballots)
        best = samples[picked]
        read = sum((s.bill for s in scores), Bill())
        slow = grades_slowly(request.task, (sample.answer for sample in samples))
        told = (request, samples, scores, ballots)
        separated = await asyncio.to_thread(measured, *told) if slow else measured(*told)
        measures = {**best.measures, **separated}
        scored = step_scores(
            best.thinking, cut[picked].part(method.reward.of), scores[picked].steps
        )
        bill = asked + read.as_reward(method.reward_prices)
        return replace(best, bill=bill, measures=measures, step_scores=scored)

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self.inner)
            self._score = await stack.enter_async_context(opened(self._method.reward))
            self._opened = stack.pop_all()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._opened.__aexit__(kind, error, trace)


def pick(
    rule: Rule,
    samples: Sequence[Completion],
    scores: Sequence[Scores],
    ballots: Sequence[int | None],
) -> int:
    """The index of the sample to return; `ballots` are their parsed answers."""
    ended = [i for i, sample in enumerate(samples) if sample.stop == "end"]
    scored = ended if rule == "majority" else [i for i in ended if scores[i].total is not None]
    if not scored:
        return 0
    weights = {index: WEIGHTS[rule](scores[index]) for index in scored}
    if rule == "best":
        return max(weights, key=lambda index: weights[index])
    votes: defaultdict[int | None, float] = defaultdict(float)
    for index, weight in weights.items():
        votes[ballots[index]] += weight if ballots[index] is not None else 0.0
    most = max(votes.values())
    return next(index for index in scored if votes[ballots[index]] == most)


def step_scores(
    thinking: str, parts: Sequence[str], scores: Sequence[float]
) -> tuple[tuple[int, float], ...]:
    """Where each step of the thinking ends, with its score; () if the steps are not those of the
    thinking.
    """
    places, end = [], 0
    for part, score in zip(parts, scores, strict=False):
        start = thinking.find(part, end)
        if start < 0:
            break  # the rest are steps of the answer
        end = start + len(part)
        places.append((end, round(score, 3)))
    return tuple(places) if len(parts) == len(scores) else ()


def total(scores: Scores) -> float:
    return scores.total or 0.0


def probability(scores: Scores) -> float:
    """That the answer is right: the score of the trajectory, or of the worst step if the reward
    doesn't give one.
    """
    return min(scores.steps) if scores.trajectory is None else scores.trajectory


def odds(scores: Scores) -> float:
    p = min(max(probability(scores), SURE), 1 - SURE)
    return p / (1 - p)


WEIGHTS: Mapping[Rule, Callable[[Scores], float]] = {
    "best": total,
    "vote": total,
    "odds": odds,
    "majority": lambda _: 1.0,
}


def measured(
    request: Request,
    samples: Sequence[Completion],
    scores: Sequence[Scores],
    ballots: Sequence[int | None],
) -> dict[str, float]:
    """What the figure needs to tell how well the reward separates the samples of this problem.

    Every rule to pick is tried on the same samples, so that they can be compared without the noise
    of sampling.
    """
    task, problem = request.task, request.problem
    if len(problem.turns) > 1 or len(samples) < 2:
        return {}
    right = [s.stop == "end" and grade_turns(task, problem, [s.answer]).correct for s in samples]
    known = {"distinct_thinkings": float(len({s.thinking for s in samples}))}
    by_thinking = {s.thinking for s, correct in zip(samples, right, strict=True) if correct}
    known["wrong_samples"] = float(len(samples) - sum(right))
    # Wrong samples whose thinking is, word for word, that of a right one: only the answers differ.
    known["wrong_in_answer"] = float(
        sum(
            s.thinking in by_thinking
            for s, correct in zip(samples, right, strict=True)
            if not correct
        )
    )
    known |= {
        f"right_by_{rule}": float(right[pick(rule, samples, scores, ballots)]) for rule in WEIGHTS
    }
    for n, (score, correct) in enumerate(zip(scores, right, strict=True)):
        if score.total is not None:
            known |= {
                f"total_{n}": score.total,
                f"probability_{n}": probability(score),
                f"right_{n}": float(correct),
            }
    return known
