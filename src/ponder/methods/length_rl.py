"""Trains by reinforcement learning with a length reward: right answers count, shorter ones more.

The objective is that of Kimi k1.5 (arXiv 2501.12599, sections 2.3.2 to 2.4), unchanged:
log-probabilities of whole replies, the mean reward of a problem's samples as the baseline, no
division by length or standard deviation, no clipping of ratios; plus τ/2 times the squared
log-ratio to the policy that drew the samples. Each iteration draws new samples, resets the
optimizer and takes `inner` steps. The length reward starts abruptly after `free` iterations. After
`easy` iterations only the harder half of the sizes is drawn. Problems are drawn in proportion to 1
− their success rate so far. From iteration `second` on, a reply may have at most `limit` tokens.

A process reward can be blended in, as in ReasonFlux-PRM (arXiv 2506.18896, eq. 12): (1 − `blend`)
times the reward of the answer plus `blend` times that of the steps. Policies learn to exploit such
a reward, so `made.json` records accuracy, length, fraction answered and process reward per
iteration, with a warning if the process reward rose while accuracy fell.

τ, the learning rates, the numbers of samples and steps and the weight of the length reward are not
published; these are ours.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from statistics import fmean, median
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from ponder.core import (
    LengthReward,
    Model,
    Progress,
    Reward,
    Source,
    Spend,
    Task,
    UserError,
    WithWeights,
    require,
    seed_from,
)
from ponder.core.capabilities import kept_open
from ponder.core.scoring import judge_of, scoring_limit
from ponder.core.wrapped import codec_name
from ponder.models._torch_engine import load_light
from ponder.rewards.length.kimi import Kimi
from ponder.traces import steps, trace_of
from ponder.training import trainer_engine
from ponder.training.fit import open_engine, weights_to_train
from ponder.training.loop import Objective, Step, TrainingSettings, Unit
from ponder.training.made_models import Input, MakingRecord, WeightMethod
from ponder.training.rollouts import (
    FreshSampler,
    Rollouts,
    Sample,
    TrainingProblem,
    draw_problems,
    sampling_limit,
)
from ponder.training.weights import convert


@dataclass(frozen=True, kw_only=True)
class LengthRl(TrainingSettings, WeightMethod):
    reward: LengthReward = field(default_factory=Kimi)  # `ponder list length_rewards`
    weight: float = 0.5  # of the length reward; a right answer counts 1
    iterations: int = 24  # rounds of sampling and updating
    problems: int = 16  # per iteration
    n: int = 8  # samples per problem
    pool: int = 400  # problems from which each iteration draws
    temperature: float = 1.0  # of the samples
    tau: float = 0.05  # weight of the squared log-ratio to the policy that drew the samples
    inner: int = 2  # optimizer steps per iteration
    free: int = 0  # iterations without the length reward
    # iterations on all sizes, before those on the harder half; left out: always all sizes
    easy: int | None = None
    prioritised: bool = True  # draw problems more often if they are often answered wrong
    limit: int | None = None  # completion tokens in the second phase
    second: int = 0  # the iteration in which the second phase starts, counted from 0
    # draws the samples, with the weights of each iteration: { name = "vllm", id = "…" }
    sampler: Model | None = None
    rate: float = 1e-6  # learning rate
    process: Reward | None = None  # a process reward: `ponder list rewards`
    blend: float = 0.5  # weight of the process reward, if there is one
    cut: Literal["blank", "sentence", "task"] = "blank"  # where the process reward splits steps
    warm_up: float = 0.0
    decay: bool = False

    example: ClassVar[dict[str, Any]] = {
        "iterations": 1,
        "problems": 2,
        "n": 2,
        "pool": 4,
        "inner": 1,
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        if min(self.iterations, self.problems, self.pool, self.inner) < 1:
            raise UserError("iterations, problems, pool and inner must be at least 1")
        if self.n < 2 or self.temperature <= 0:
            raise UserError("n must be at least 2, and temperature above 0")
        if self.tau < 0 or self.weight < 0 or not 0 <= self.blend <= 1:
            raise UserError("tau and weight can't be negative, and blend is from 0 to 1")
        if self.limit is not None and self.limit < 1:
            raise UserError(
                f"limit is a number of tokens, at least 1, not {self.limit}",
                hint="leave it out for none",
            )

    def check(self, model: Model, task: Task) -> None:
        super().check(model, task)
        if self.sampler:
            # an error for a model whose weights can't be replaced
            require(self.sampler, WithWeights).source(task)

    def check_training(self, source: Source) -> None:
        trainer_engine.check(self, source.device)

    def inputs(self, model: Model) -> Iterator[Input]:
        yield from super().inputs(model)
        models = [self.sampler or model]
        judge = self._judge()
        if judge:
            models.append(judge)
        path = self.folder(model) / "rollouts"
        yield Input(path, tuple(models), partial(self._rollout_limit, model))

    def _judge(self) -> Model | None:
        """Return the model that the process reward asks, if it asks one."""
        if self.process is None:
            return None
        return judge_of(self.process)

    def _rollout_limit(self, model: Model) -> Spend | None:
        """Return the most that the samples of all iterations may take, with their scores; None if
        there is no limit.
        """
        judge = self._judge()
        samples = self.problems * self.n
        total = Spend()
        budgets = Counter(self.limit_at(iteration) for iteration in range(self.iterations))
        for budget, iterations in budgets.items():
            limit = sampling_limit(
                self.sampler or model, self.train_on, self.problems, self.n, self.seed, budget
            )
            if limit is None:
                return None
            if self.process and judge:
                longest = (limit.tokens + limit.reward_tokens) // samples
                scoring = scoring_limit(self.process, longest).as_reward(judge.prices)
                limit = limit.plus(scoring.times(samples))
            total = total.plus(limit.times(iterations))
        return total

    def build(self, model: Model, folder: Path, record: MakingRecord) -> Iterator[Progress]:
        with kept_open(self.sampler or model):
            yield from self._build(model, folder, record)

    def _build(self, model: Model, folder: Path, record: MakingRecord) -> Iterator[Progress]:
        task = self.train_on[0].task
        pool = draw_problems(self.train_on, self.pool, self.seed)
        source = weights_to_train(model, self.train_on)
        tokenizer = load_light(source)
        codec = codec_name(model, task)
        engine = open_engine(source, self, folder, self.temperature)

        def write(target: Path) -> None:
            engine.write(target)
            convert(target, source.dtype)

        state = engine.resume()
        # right and all samples per problem
        rates: list[tuple[int, int]] = state.get("rates") or [(0, 0)] * len(pool)
        history: list[dict[str, float]] = state.get("history", [])
        record.rollout_tokens = state.get("rollout_tokens", 0)
        rollouts_folder = folder / "rollouts"
        write_adapter = engine.write_adapter if self.lora else None
        sampler = FreshSampler(
            self.sampler or model, source.folder, rollouts_folder, write, write_adapter
        )
        yield from sampler.start(task)
        for iteration in range(state.get("iteration", 0), self.iterations):
            indices = self.drawn(pool, rates, iteration)
            rollouts = Rollouts(
                sampler.refreshed(iteration, self.temperature),
                tokenizer,
                [pool[index] for index in indices],
                self.n,
                seed_from("rl", self.seed, iteration),
                rollouts_folder / "samples",
                self.limit_at(iteration),
            )
            (rollouts_folder / "samples").unlink(missing_ok=True)
            for progress in rollouts:
                yield {"iteration": iteration + 1, "iterations": self.iterations, **progress}
            record.rollout_tokens += rollouts.tokens
            units: list[Unit] = []
            process_scores: list[list[float]] = []
            for index, samples in zip(indices, rollouts.samples, strict=True):
                scores, read_tokens = self._process(pool[index], samples, codec)
                record.rollout_tokens += read_tokens
                process_scores.append(scores)
                units += self.units(samples, iteration, scores)
                right, sampled = rates[index]
                right += sum(sample.right for sample in samples)
                rates[index] = (right, sampled + len(samples))
            if units:
                number_of_samples = len(indices) * self.n
                inner_steps = [Step(range(len(units)), number_of_samples)] * self.inner
                objective = Objective(Surrogate(self.tau))
                training = engine.train(units, inner_steps, objective, resumable=False)
                for progress in training:
                    yield {"iteration": iteration + 1, "iterations": self.iterations, **progress}
            history.append(self.summary(rollouts.samples, process_scores))
            engine.save(
                iteration=iteration + 1,
                rates=rates,
                history=history,
                rollout_tokens=record.rollout_tokens,
            )
            yield {"iteration": iteration + 1, "of": self.iterations, **history[-1]}
        write(folder)
        record.add_training(engine.tokens, engine.seconds, engine.notes)
        record.notes |= {"iterations": history, "warning": _reward_hacking(history)}
        if sampler.served:
            record.notes["sampler"] = sampler.served

    def limit_at(self, iteration: int) -> int | None:
        """Return the most tokens of a reply in an iteration; None for the model's budget."""
        if iteration < self.second:
            return None
        return self.limit

    def drawn(
        self, pool: Sequence[TrainingProblem], rates: Sequence[tuple[int, int]], iteration: int
    ) -> list[int]:
        """Return the indices of an iteration's problems.

        `rates` are the right and all samples of each problem so far.
        """
        indices = list(range(len(pool)))
        if self.easy is not None and iteration >= self.easy:
            middle = median(problem.problem.size for problem in pool)
            indices = [index for index in indices if pool[index].problem.size >= middle]
        rng = random.Random(seed_from("drawn", self.seed, iteration))
        if not self.prioritised:
            return sorted(rng.sample(indices, min(self.problems, len(indices))))
        # Weighted sampling without replacement (Efraimidis and Spirakis 2006): the largest
        # u^(1 / weight).
        keys: dict[int, float] = {}
        for index in indices:
            right, samples = rates[index]
            weight = 1.0  # a problem not asked yet may be hard
            if samples:
                # One that is always answered right is still drawn now and then.
                weight = 1 - right / samples + 0.05
            keys[index] = rng.random() ** (1 / weight)
        indices.sort(key=lambda index: keys[index], reverse=True)
        return sorted(indices[: self.problems])

    def _process(
        self, problem: TrainingProblem, samples: Sequence[Sample], codec: str
    ) -> tuple[list[float], int]:
        """Return the process reward of each sample, from 0 to 1, and the tokens it read.

        A sample without a score gets 0. Without a process reward there are no scores.
        """
        if self.process is None:
            return [], 0
        request = problem.request()
        split = []
        for sample in samples:
            trace = trace_of(request, sample.thinking, sample.answer, codec)
            split.append(steps(trace, self.cut))
        rewards = []
        tokens = 0
        for score in self.process.score(split):
            highest = 1.0
            if score.trajectory is not None:
                highest += self.process.alpha
            rewards.append((score.total or 0.0) / highest)
            tokens += score.bill.tokens
        return rewards, tokens

    def rewards(
        self, samples: Sequence[Sample], iteration: int, process: Sequence[float] = ()
    ) -> list[float]:
        """Return each sample's reward: for its answer, or its steps too, and for its length."""
        right = [sample.right for sample in samples]
        tokens = [sample.tokens for sample in samples]
        length_rewards = self.reward.rewards(right, tokens, iteration / self.iterations)
        weight = 0.0
        if iteration >= self.free:
            weight = self.weight
        rewards = []
        for index, length_reward in enumerate(length_rewards):
            reward: float = right[index]
            if process:
                reward = (1 - self.blend) * reward + self.blend * process[index]
            rewards.append(reward + weight * length_reward)
        return rewards

    def advantages(
        self, samples: Sequence[Sample], iteration: int, process: Sequence[float] = ()
    ) -> list[float]:
        """Return each sample's reward minus the mean reward of its problem."""
        rewards = self.rewards(samples, iteration, process)
        return [reward - fmean(rewards) for reward in rewards]

    def units(
        self, samples: Sequence[Sample], iteration: int, process: Sequence[float] = ()
    ) -> list[Unit]:
        """Return one problem's samples to train on, each with its advantage."""
        units = []
        advantages = self.advantages(samples, iteration, process)
        for sample, advantage in zip(samples, advantages, strict=True):
            # With a single step per iteration, a sample without an advantage has no gradient.
            if advantage or self.inner > 1:
                units.append(Unit((sample.text,), advantage))
        return units

    def summary(
        self, samples: Sequence[Sequence[Sample]], process: Sequence[Sequence[float]]
    ) -> dict[str, float]:
        """Return means over an iteration's samples."""
        all_samples = list(chain.from_iterable(samples))
        process_scores = list(chain.from_iterable(process))
        means = {
            "accuracy": fmean(sample.right for sample in all_samples),
            "tokens": fmean(sample.tokens for sample in all_samples),
            "answered": fmean(bool(sample.answer) for sample in all_samples),
        }
        if process_scores:
            means["process"] = fmean(process_scores)
        return {name: round(value, 4) for name, value in means.items()}


class Surrogate:
    """The loss of one iteration: τ/2 · (log-ratio)² − advantage · log-probability, summed.

    The log-ratio is to the policy that drew the samples. Its log-probabilities are those of the
    first step, which trains on all samples.
    """

    def __init__(self, tau: float) -> None:
        self.tau = tau
        self._before: dict[int, Tensor] = {}  # by `id` of the unit

    def __call__(self, scores: Tensor, units: Sequence[Unit]) -> Tensor:
        scores = scores[:, 0]
        for unit, score in zip(units, scores, strict=True):
            self._before.setdefault(id(unit), score.detach())
        before = torch.stack([self._before[id(unit)] for unit in units])
        advantages = torch.tensor([unit.data for unit in units], device=scores.device)
        log_ratio = scores - before
        return (self.tau / 2 * log_ratio**2 - advantages * scores).sum()


def _reward_hacking(history: Sequence[dict[str, float]]) -> str | None:
    """Return a warning if the process reward rose while accuracy fell, by thirds of the run."""
    third = len(history) // 3
    if not third or "process" not in history[0]:
        return None

    def change(name: str) -> float:
        last = fmean(means[name] for means in history[-third:])
        return last - fmean(means[name] for means in history[:third])

    process = change("process")
    accuracy = change("accuracy")
    if not process > 0 > accuracy + 0.05:
        return None
    return f"the process reward rose by {process:.2f} while accuracy fell by {-accuracy:.2f}"
