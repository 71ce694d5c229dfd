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
from ponder.core.capabilities import grade_turns, grades_slowly, judge_of_task
from ponder.core.scoring import judge_of, opened, scoring_limit
from ponder.core.wrapped import codec_name
from ponder.rewards.trained import Trained
from ponder.traces import steps, trace_of

if TYPE_CHECKING:
    from ponder.training.reward import OwnSamples

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
        identity = super().identity()
        reward = self._untrained()
        if reward:
            identity["trained"] = reward.trained_on(self.train_on, self.cut, self.seed)
        return identity

    def _untrained(self) -> Trained | None:
        """Return its reward, if that is to be trained on the model's own samples."""
        if isinstance(self.reward, Trained) and not self.reward.id:
            return self.reward
        return None

    def _training(self) -> OwnSamples | None:
        reward = self._untrained()
        if reward is None:
            return None
        from ponder.training.reward import OwnSamples  # imports torch

        return OwnSamples(reward, self.train_on, self.cut, self.seed)

    def with_training(self, train_on: tuple[TrainingProblems, ...]) -> Self:
        return replace(self, train_on=train_on)

    def training_seed(self) -> int | None:
        if self._untrained():
            return self.seed
        return None

    def check(self, model: Model, task: Task) -> None:
        training = self._training()
        if training:
            training.check(model, task)

    def make(self, model: Model) -> Iterator[Progress]:
        training = self._training()
        if training:
            yield from training.make(model)

    def missing_outputs(self, model: Model) -> Sequence[Path]:
        training = self._training()
        if training is None:
            return ()
        return training.missing_outputs(model)

    def turn_limit(self, inner: TurnLimit) -> TurnLimit:
        def limit(prompt_tokens: int, budget: int | None) -> Spend | None:
            sample = inner(prompt_tokens, budget)
            if sample is None:
                return None
            scoring = scoring_limit(self.reward, sample.tokens).as_reward(self.reward_prices)
            return sample.plus(scoring).times(self.n)

        return limit

    def asks(self) -> tuple[Model, ...]:
        judge = judge_of(self.reward)
        if judge is None:
            return ()
        return (judge,)

    @property
    def reward_prices(self) -> Prices | None:
        judge = judge_of(self.reward)
        if judge is None:
            return None
        return judge.prices

    def ready(self) -> None:
        self.reward.ready()

    def folder(self, model: Model) -> Path | None:
        training = self._training()
        if training is None:
            return None
        return training.folder(model)

    def sampling_limits(self, model: Model) -> Mapping[Path, Limit]:
        training = self._training()
        if training is None:
            return {}
        return training.sampling_limits(model)

    def samplers(self, model: Model) -> Sequence[Model]:
        training = self._training()
        if training is None:
            return ()
        return training.samplers(model)

    def apply(self, model: Model) -> Model:
        for _ in self.make(model):
            pass
        training = self._training()
        if training is None:
            return _Picking(model, self)
        method = replace(self, reward=training.made(model))
        return _Picking(model, method, training.cost(model))


class _Picking(Wrapped):
    def __init__(
        self, inner: Model, method: BestOf, cost: Mapping[str, float] | None = None
    ) -> None:
        super().__init__(inner)
        self._method = method
        self._cost = cost or {}

    def made(self, task: Task) -> Mapping[str, float]:
        """Return what making the model and its reward cost together."""
        total = dict(super().made(task))
        for name, amount in self._cost.items():
            total[name] = total.get(name, 0.0) + amount
        return total

    async def complete(self, request: Request) -> Completion:
        method = self._method
        samples = await self.samples(request, method.n)
        codec = codec_name(self.inner, request.task)
        sampling_bill = samples[0].bill
        for sample in samples[1:]:
            sampling_bill += sample.bill
        try:
            split = []
            for sample in samples:
                trace = trace_of(request, sample.thinking, sample.answer, codec)
                split.append(steps(trace, method.cut))
            scores = await self._score(split, request)
        except ModelFailure as error:
            failed_bill = (error.bill or Bill()).as_reward(method.reward_prices)
            raise ModelFailure(str(error), sampling_bill + failed_bill) from error
        answers = await self.ballots(request, samples)
        index = pick(method.pick, samples, scores, answers)
        best = samples[index]
        if grades_slowly(request.task, (sample.answer for sample in samples)):
            separation = await asyncio.to_thread(measured, request, samples, scores, answers)
        else:
            separation = measured(request, samples, scores, answers)
        scoring_bill = sum((score.bill for score in scores), Bill())
        return replace(
            best,
            bill=sampling_bill + scoring_bill.as_reward(method.reward_prices),
            measures={**best.measures, **separation},
            step_scores=step_scores(
                best.thinking, split[index].part(method.reward.of), scores[index].steps
            ),
        )

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
    answers: Sequence[int | None],
) -> int:
    """Return the index of the sample to answer with; equal `answers` have the same number."""
    candidates = []
    for index, sample in enumerate(samples):
        scored = rule == "majority" or scores[index].total is not None
        if sample.stop == "end" and scored:
            candidates.append(index)
    if not candidates:
        return 0
    weights = {index: WEIGHTS[rule](scores[index]) for index in candidates}
    if rule == "best":
        return max(weights, key=lambda index: weights[index])
    votes: defaultdict[int | None, float] = defaultdict(float)
    for index, weight in weights.items():
        # An answer that wasn't parsed has no votes.
        votes[answers[index]] += weight if answers[index] is not None else 0.0
    highest = max(votes.values())
    return next(index for index in candidates if votes[answers[index]] == highest)


def step_scores(
    thinking: str, step_texts: Sequence[str], scores: Sequence[float]
) -> tuple[tuple[int, float], ...]:
    """Return where each step of the thinking ends, with its score.

    Return () if the reward split the reply into other steps.
    """
    if len(step_texts) != len(scores):
        return ()
    ends: list[tuple[int, float]] = []
    end = 0
    for step, score in zip(step_texts, scores, strict=True):
        start = thinking.find(step, end)
        if start < 0:
            break  # the steps after it are those of the answer
        end = start + len(step)
        ends.append((end, round(score, 3)))
    return tuple(ends)


def total(scores: Scores) -> float:
    return scores.total or 0.0


def probability(scores: Scores) -> float:
    """Return the score of the trajectory, or of the worst step if the reward gives none."""
    if scores.trajectory is None:
        return min(scores.steps)
    return scores.trajectory


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
    answers: Sequence[int | None],
) -> dict[str, float]:
    """Return how well the reward separates this problem's samples, for the figure `best_of`.

    Every rule is tried on the same samples, so that rules can be compared without the noise of
    sampling.
    """
    problem = request.problem
    if len(problem.turns) > 1 or len(samples) < 2 or judge_of_task(request.task):
        return {}
    right: list[bool] = []
    for sample in samples:
        correct = (
            sample.stop == "end" and grade_turns(request.task, problem, [sample.answer]).correct
        )
        right.append(correct)
    right_thinkings = set()
    for sample, correct in zip(samples, right, strict=True):
        if correct:
            right_thinkings.add(sample.thinking)
    # Wrong samples whose thinking is, word for word, that of a right one: only the answers differ.
    wrong_in_answer = 0
    for sample, correct in zip(samples, right, strict=True):
        if not correct and sample.thinking in right_thinkings:
            wrong_in_answer += 1
    measures = {
        "distinct_thinkings": float(len({sample.thinking for sample in samples})),
        "wrong_samples": float(len(samples) - sum(right)),
        "wrong_in_answer": float(wrong_in_answer),
    }
    for rule in WEIGHTS:
        measures[f"right_by_{rule}"] = float(right[pick(rule, samples, scores, answers)])
    for index, score in enumerate(scores):
        if score.total is not None:
            measures[f"total_{index}"] = score.total
            measures[f"probability_{index}"] = probability(score)
            measures[f"right_{index}"] = float(right[index])
    return measures
