"""Reinforcement learning with a length reward: right answers are rewarded, and short ones more.

The surrogate of Kimi k1.5 (arXiv 2501.12599, sections 2.3.2 to 2.4), as it stands there: log-probabilities of whole
texts, the mean reward of a problem's samples as baseline, no division by length or deviation, no clipping; and half τ
times the squared log-ratio to the policy that wrote the samples. Each iteration samples anew, forgets the optimiser's
state and takes `inner` steps. The length reward comes in at once after `free` iterations, not slowly. After `easy`
iterations only the harder half of the sizes is drawn, and problems in proportion to 1 − their success rate so far. From
iteration `second` on, a text may have at most `limit` tokens.

A process reward may be blended in, as in ReasonFlux-PRM (arXiv 2506.18896, eq. 12): (1 − `blend`) times what the answer
earns and `blend` times what the steps do. Policies learn to please such a reward, so `made.json` says how accuracy,
length, endings and the process reward went from iteration to iteration, and whether the last rose while accuracy fell.

τ, the rates, the numbers of samples and steps and the weight of the length reward are not published: all are ours.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from ponder.core import LengthReward, Model, Progress, Reward, UserError, seed_from
from ponder.models._torch_engine import load
from ponder.rewards.length.kimi import Kimi
from ponder.traces import steps, trace_of
from ponder.training.loop import Training, Unit
from ponder.training.making import Record, TrainingMethod, hand_card
from ponder.training.rollouts import Asked, Rollouts, Sample, chosen


@dataclass(frozen=True, kw_only=True)
class LengthRl(TrainingMethod):
    reward: LengthReward = field(default_factory=Kimi)  # `ponder list lengths`
    weight: float = 0.5  # of the length reward, beside 1 for a right answer
    iterations: int = 24
    problems: int = 16  # of each iteration
    n: int = 8  # samples of each
    pool: int = 400  # problems in all
    temperature: float = 1.0
    tau: float = 0.05
    inner: int = 2  # steps of each iteration
    free: int = 0  # iterations without the length reward
    easy: int | None = None  # iterations on all sizes, before those on the harder half only; None: always all
    prioritised: bool = True  # draw problems that it often fails more often
    limit: int | None = None  # completion tokens in the second phase
    second: int = 0  # the iteration with which the second phase begins
    rate: float = 1e-6
    process: Reward | None = None  # `ponder list rewards`
    blend: float = 0.5  # of the process reward, where there is one
    cut: Literal["blank", "sentence", "task"] = "blank"  # where a step begins, for it
    warm_up: float = 0.0
    decay: bool = False

    example: ClassVar[dict[str, Any]] = {"iterations": 1, "problems": 2, "n": 2, "pool": 4, "inner": 1}

    def __post_init__(self) -> None:
        super().__post_init__()
        if min(self.iterations, self.problems, self.pool, self.inner) < 1 or self.n < 2 or self.temperature <= 0:
            what = "iterations, problems, pool and inner must be at least 1, n at least 2, temperature above 0"
            raise UserError(what)
        if self.tau < 0 or self.weight < 0 or not 0 <= self.blend <= 1:
            raise UserError("tau and weight can't be negative, and blend is from 0 to 1")
        if self.limit is not None and self.limit < 1:
            raise UserError(f"limit is a number of tokens, at least 1, not {self.limit}", hint="leave it out for none")

    def build(self, model: Model, folder: Path, record: Record) -> Iterator[Progress]:
        loaded = self.open(model)
        pool = chosen(self.train_on, self.pool, self.seed)
        training = self.training(loaded, folder, self.temperature)
        kept = training.resume()
        rates: list[tuple[int, int]] = kept.get("rates") or [(0, 0)] * len(pool)  # of each problem: right, asked
        record.rollout_tokens, history = kept.get("rollout_tokens", 0), kept.get("history", [])
        source = model.source(self.train_on[0].task).folder
        codec = model.codec_name(self.train_on[0].task)
        for iteration in range(kept.get("iteration", 0), self.iterations):
            now = folder / "rollouts"
            training.write(now)
            hand_card(source, now)
            load.cache_clear()  # others lay in the same place
            places = self._drawn(pool, rates, iteration)
            limit = self.limit if iteration >= self.second else None
            sampler = model.with_weights(now).at_temperature(self.temperature)
            seed = seed_from("rl", self.seed, iteration)
            (now / "samples").unlink(missing_ok=True)
            rollouts = Rollouts(sampler, loaded, [pool[p] for p in places], self.n, seed, now / "samples", limit)
            for report in rollouts:
                yield {"iteration": iteration + 1, "iterations": self.iterations, **report}
            praise = [
                self._praised(pool[p], some, record, codec) for p, some in zip(places, rollouts.samples, strict=True)
            ]
            groups = zip(rollouts.samples, praise, strict=True)
            units = [unit for some, praised in groups for unit in self._units(some, iteration, praised)]
            self._learn(training, units, sum(map(len, rollouts.samples)))
            for place, some in zip(places, rollouts.samples, strict=True):
                right, asked = rates[place]
                rates[place] = right + sum(s.right for s in some), asked + len(some)
            record.rollout_tokens += rollouts.tokens
            history.append(_monitored(rollouts.samples, praise))
            at = {"iteration": iteration + 1, "rates": rates, "history": history}
            training.save(**at, rollout_tokens=record.rollout_tokens)
            yield {"iteration": iteration + 1, "of": self.iterations, **history[-1]}
        training.write(folder)
        record.training_tokens = training.tokens
        record.notes |= {"iterations": history, "warning": _hacked(history)}

    def _drawn(self, pool: Sequence[Asked], rates: Sequence[tuple[int, int]], iteration: int) -> list[int]:
        """The problems of an iteration."""
        places = list(range(len(pool)))
        if self.easy is not None and iteration >= self.easy:
            middle = median(asked.problem.size for asked in pool)
            places = [p for p in places if pool[p].problem.size >= middle]
        rng = random.Random(seed_from("drawn", self.seed, iteration))
        if not self.prioritised:
            return sorted(rng.sample(places, min(self.problems, len(places))))
        # A problem that was never asked may be a hard one; one that never fails is still drawn now and then.
        failed = {p: 1 - rates[p][0] / rates[p][1] + 0.05 if rates[p][1] else 1.0 for p in places}
        keys = {p: rng.random() ** (1 / failed[p]) for p in places}  # Efraimidis and Spirakis 2006
        return sorted(sorted(places, key=lambda p: keys[p], reverse=True)[: self.problems])

    def _praised(self, asked: Asked, samples: Sequence[Sample], record: Record, codec: str) -> list[float]:
        """What the process reward thinks of each sample, from 0 to 1; 0 where it can't say. Nothing without one."""
        if self.process is None:
            return []
        request = asked.request()
        scores = self.process.score([steps(trace_of(request, s.thinking, s.answer, codec), self.cut) for s in samples])
        record.rollout_tokens += sum(score.bill.tokens for score in scores)  # read, not written
        most = [1 + self.process.alpha if score.trajectory is not None else 1.0 for score in scores]
        return [(score.total or 0.0) / high for score, high in zip(scores, most, strict=True)]

    def advantages(self, samples: Sequence[Sample], iteration: int, praised: Sequence[float] = ()) -> list[float]:
        """Each sample's reward, less the mean of its problem."""
        right, tokens = [s.right for s in samples], [s.tokens for s in samples]
        short = self.reward.rewards(right, tokens, iteration / self.iterations)
        weight = self.weight if iteration >= self.free else 0.0
        worth = (
            [(1 - self.blend) * ok + self.blend * p for ok, p in zip(right, praised, strict=True)] if praised else right
        )
        earned = [ok + weight * more for ok, more in zip(worth, short, strict=True)]
        return [reward - fmean(earned) for reward in earned]

    def _units(self, samples: Sequence[Sample], iteration: int, praised: Sequence[float] = ()) -> list[Unit]:
        found = zip(samples, self.advantages(samples, iteration, praised), strict=True)
        # In a single step, a sample without an advantage changes nothing.
        return [Unit((sample.text,), advantage) for sample, advantage in found if advantage or self.inner > 1]

    def _learn(self, training: Training, units: Sequence[Unit], samples: int) -> None:
        if not units:
            return
        before: dict[int, Tensor] = {}  # log-probabilities under the policy that wrote the samples: the first step's

        def surrogate(scores: Tensor, units: Sequence[Unit]) -> Tensor:
            for unit, score in zip(units, scores, strict=True):
                before.setdefault(id(unit), score[0].detach())
            advantages = torch.tensor([unit.data for unit in units], device=scores.device)
            ratio = scores[:, 0] - torch.stack([before[id(unit)] for unit in units])
            return (self.tau / 2 * ratio**2 - advantages * scores[:, 0]).sum()

        training.forget()
        for _ in range(self.inner):
            training.learn(units, surrogate, samples)


def _monitored(samples: Sequence[Sequence[Sample]], praise: Sequence[Sequence[float]]) -> dict[str, float]:
    """How an iteration's samples did."""
    every = [sample for some in samples for sample in some]
    found = {
        "accuracy": fmean(s.right for s in every),
        "tokens": fmean(s.tokens for s in every),
        "answered": fmean(bool(s.answer) for s in every),
    }
    given = [praised for some in praise for praised in some]
    return {name: round(value, 4) for name, value in (found | ({"process": fmean(given)} if given else {})).items()}


def _hacked(history: Sequence[dict[str, float]]) -> str | None:
    """Whether the process reward rose while accuracy fell, between the first and the last third."""
    third = len(history) // 3
    if not third or "process" not in history[0]:
        return None
    rose, fell = (
        fmean(h[k] for h in history[-third:]) - fmean(h[k] for h in history[:third]) for k in ("process", "accuracy")
    )
    return (
        f"the process reward rose by {rose:.2f} while accuracy fell by {-fell:.2f}" if rose > 0 > fell + 0.05 else None
    )
