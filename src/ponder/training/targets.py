"""Computes the targets that a process reward is trained on.

After ReasonFlux-PRM (Zou et al. 2025, arXiv 2506.18896), as far as it is published:

- alignment: the cosine similarity of a thinking step and the step of the answer that it is aligned
  with;
- quality: a judge's score; here the true labels where the trace or its task has them, or any
  reward;
- coherence: how much more similar a step is to the one before it (the first: to the question) than
  steps of other traces are, as a log-ratio at a temperature;
- the target of a step is the mean of the three, weighted with their softmax.

As published, the three enter the softmax unscaled. Then r = Σ w·r has the slope w(1 + r_k - r) in
component k, which is negative where r_k is more than 1 below the mean: with alignment 0.7 and
quality 0.8, a coherence of -2 gives 0.667 and one of -0.5 gives 0.596, so the less coherent step
gets the higher target. Scaled to [0, 1] first, as here by default, the slope is never negative;
`published` keeps the published form. A component that is unknown for a step (no answer to align
with, no label) is left out of its mean. The target of the trajectory is the fraction of right
answers that a policy gives when it follows the trace's template, if the trace has it
(`template_accuracy`, or `template_answers` and a gold answer); else whether its own answer is
right.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ponder.core import Part, Reward, Scores, Steps, UserError, seed_from
from ponder.tasks.reading import final, same
from ponder.traces import align, hashed, similarity
from ponder.traces.alignment import Encoder, Floats

POOL = 4096  # steps from which those of other traces are drawn, at most


@dataclass(frozen=True)
class Target:
    """The targets of a trace's steps and of its trajectory; NaN where unknown."""

    steps: Floats
    trajectory: float = math.nan


@dataclass(frozen=True, kw_only=True)
class Targets:
    """How targets are computed."""

    # all three components; or quality alone, where labels are exact
    targets: Literal["mixed", "labels"] = "mixed"
    # combine the components unscaled, as published, not scaled to [0, 1] first
    published: bool = False
    # steps aligned in order, or each with its most similar step
    alignment: Literal["monotone", "best"] = "monotone"
    tau: float = 0.1  # temperature of coherence
    others: int = 16  # steps of other traces that each step is compared with
    seed: int = 1  # of the choice of those steps

    def __post_init__(self) -> None:
        if self.tau <= 0 or self.others < 1:
            raise UserError("tau must be above 0, and others at least 1")

    def of(
        self, traces: Sequence[Steps], quality: Reward, encoder: Encoder = hashed
    ) -> list[Target]:
        """Return the targets of each trace: of the steps `quality` scores, and the trajectory."""
        rated = quality.score(traces)
        self._check(traces, rated)
        pool = [] if self.targets == "labels" else self._pool(traces, quality.of)
        targets = []
        for trace, scores in zip(traces, rated, strict=True):
            step_targets = self._steps(trace, scores, quality.of, pool, encoder)
            targets.append(Target(step_targets, trajectory(trace, scores)))
        return targets

    def _check(self, traces: Sequence[Steps], rated: Sequence[Scores]) -> None:
        """Raise `UserError` if nothing says which trace or step is right.

        Similarity alone can't teach that.
        """
        if any(scores.steps for scores in rated):
            return
        if any(math.isfinite(trajectory(trace)) for trace in traces):
            return
        message = "no trace has a label to train on"
        reasons = Counter(scores.why for scores in rated if scores.why)
        if reasons:
            commonest, _ = reasons.most_common(1)[0]
            message += f": {commonest}"
        hint = (
            "give the traces `labels` or `correct`, or name a reward that judges their steps: "
            "--quality judge"
        )
        raise UserError(message, hint=hint)

    def _pool(self, traces: Sequence[Steps], of: Part) -> list[tuple[str, str]]:
        """Return steps to compare with, each with the id of its trace."""
        steps: list[tuple[str, str]] = []
        for trace in traces:
            steps += [(trace.id, step) for step in trace.part(of)]
        rng = random.Random(seed_from("others", self.seed))
        return rng.sample(steps, min(POOL, len(steps)))

    def _steps(
        self,
        trace: Steps,
        scores: Scores,
        of: Part,
        pool: Sequence[tuple[str, str]],
        encoder: Encoder,
    ) -> Floats:
        """Return the target of each step."""
        quality = np.full(len(trace.part(of)), math.nan)
        if scores.steps:
            quality = np.array(scores.steps, np.float64)
        if self.targets == "labels":
            return quality
        rng = random.Random(seed_from("others", self.seed, trace.id))
        candidates = [step for trace_id, step in pool if trace_id != trace.id]
        other_steps = rng.sample(candidates, min(self.others, len(candidates)))
        aligned = aligned_steps(trace, of, self.alignment, encoder)
        coherent = coherence(trace, of, other_steps, self.tau, encoder)
        if not self.published:
            aligned = aligned.clip(0.0, 1.0)
            coherent = _logistic(coherent, len(other_steps))
        return mixed(np.stack([aligned, quality, coherent]))


def aligned_steps(
    trace: Steps, of: Part, how: Literal["monotone", "best"] = "monotone", encoder: Encoder = hashed
) -> Floats:
    """Return each thinking step's similarity to its answer step; NaN for steps of the answer."""
    thinking = trace.thinking if of != "answer" else ()
    aligned = np.full(len(trace.part(of)), math.nan)
    if thinking and trace.answer:
        cosines = similarity(thinking, trace.answer, encoder)
        aligned[: len(thinking)] = cosines[np.arange(len(thinking)), align(cosines, how)]
    return aligned


def coherence(
    trace: Steps, of: Part, other_steps: Sequence[str], tau: float, encoder: Encoder = hashed
) -> Floats:
    """Return log(exp(s/τ) / Σ exp(o/τ)) of each step.

    s is the step's similarity to the one before it, and o that of each step of other traces.
    """
    steps = trace.part(of)
    if not other_steps or not steps:
        return np.full(len(steps), math.nan)
    previous = [trace.question, *steps[:-1]]
    cosines = similarity(previous, [*steps, *other_steps], encoder) / tau
    to_step = cosines.diagonal()
    to_others = cosines[:, len(steps) :]
    largest = to_others.max(axis=1)
    sums = np.exp(to_others - largest[:, None]).sum(axis=1)  # without overflow
    ratio: Floats = to_step - largest - np.log(sums)
    return ratio


def _logistic(ratio: Floats, number: int) -> Floats:
    """Return log-ratios to `number` other steps, scaled to [0, 1].

    It is 0.5 where those are as similar on average.
    """
    shifted = ratio + math.log(max(1, number))
    scaled: Floats = 0.5 + 0.5 * np.tanh(shifted / 2)  # without overflow
    return scaled


def mixed(components: Floats) -> Floats:
    """Return the mean of each step's known components, weighted with their softmax.

    `components` has one column per step, and NaN where one is unknown.
    """
    finite = np.isfinite(components)
    values = np.where(finite, components, 0.0)
    weights = np.where(finite, np.exp(values), 0.0)
    total = weights.sum(axis=0)
    sums = (weights * values).sum(axis=0)
    unknown = np.full(components.shape[1], math.nan)
    mean: Floats = np.divide(sums, total, out=unknown, where=total > 0)
    return mean


def trajectory(trace: Steps, scores: Scores | None = None) -> float:
    """Return the target of the trace as a whole, NaN if unknown."""
    facts = trace.facts
    if facts.get("template_accuracy") is not None:
        return _accuracy(trace, facts["template_accuracy"])
    answers = facts.get("template_answers")
    if answers and facts.get("gold") is not None:
        gold = str(facts["gold"])
        right = [same(final(str(answer)) or "", gold) for answer in answers]
        return sum(right) / len(right)
    if facts.get("correct") is not None:
        return float(facts["correct"])
    if scores is None or scores.trajectory is None:
        return math.nan
    return scores.trajectory


def _accuracy(trace: Steps, accuracy: Any) -> float:
    """Return a trace's `template_accuracy`, or raise `UserError` if it is not a fraction."""
    is_number = isinstance(accuracy, int | float) and not isinstance(accuracy, bool)
    if not is_number or not 0 <= accuracy <= 1:
        raise UserError(
            f"trace {trace.id}: template_accuracy is a fraction from 0 to 1, not {accuracy!r:.40}"
        )
    return float(accuracy)
