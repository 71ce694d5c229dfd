"""What a process reward learns of each step: alignment, quality and coherence, weighted against each other.

After ReasonFlux-PRM (Zou et al. 2025, arXiv 2506.18896), as far as it is public:

- alignment: the cosine of a step of the thinking and the step of the answer that it belongs to;
- quality: what a judge says of it; here, true labels where the trace or its task knows them, or any reward;
- coherence: how much more it is like the step before it (the first: like the question) than steps of other traces are,
  as the logarithm of a ratio, at a temperature;
- the target is their mean with the softmax of the three as weights.

Published, the three go into the softmax as they are. Then r = Σ w·r has the slope w(1 + r_k - r) in a component, which
is below 0 where that lies more than 1 under the mean: with alignment .7 and quality .8, a coherence of -2 gives .667
and one of -0.5 gives .596, so that the less coherent step is worth more. Brought to [0, 1] first, the slope is never
negative; `published` keeps the published form. Where a component isn't known of a step (no answer to align it with, no
label), the others are weighted alone. The trajectory is worth the share of right answers that a policy gives when it
follows the trace's template, where the trace says so (`template_accuracy`, or `template_answers` and a gold answer);
else whether its own answer is right.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ponder.core import Part, Reward, Scores, Steps, UserError, seed_from
from ponder.core.answers import final, same
from ponder.traces import align, hashed, similarity
from ponder.traces.alignment import Encoder, Floats

DRAWS = 4096  # steps that those of other traces are drawn from, at most


@dataclass(frozen=True)
class Target:
    """What a trace's steps and its trajectory are worth; NaN where that isn't known."""

    steps: Floats
    trajectory: float = math.nan


@dataclass(frozen=True, kw_only=True)
class Targets:
    """How the targets of traces are made."""

    targets: Literal["mixed", "labels"] = "mixed"  # the three, weighted; or the quality alone, where labels are exact
    published: bool = False  # whether the three are weighted as they are, not brought to [0, 1] first
    alignment: Literal["monotone", "best"] = "monotone"
    tau: float = 0.1  # the temperature of coherence
    others: int = 16  # steps of other traces that a step is compared with
    seed: int = 1

    def __post_init__(self) -> None:
        if self.tau <= 0 or self.others < 1:
            raise UserError("tau must be above 0, and others at least 1")

    def of(self, traces: Sequence[Steps], quality: Reward, encoder: Encoder = hashed) -> list[Target]:
        """The targets of the steps that `quality` scores, and of the trajectories."""
        rated = quality.score(traces)
        pool = [] if self.targets == "labels" else self._pool(traces, quality.of)
        return [
            Target(self._steps(trace, scores, quality.of, pool, encoder), trajectory(trace, scores))
            for trace, scores in zip(traces, rated, strict=True)
        ]

    def _pool(self, traces: Sequence[Steps], of: Part) -> list[tuple[str, str]]:
        """Steps to compare with, each with the trace that it is of."""
        found = [(trace.id, step) for trace in traces for step in trace.part(of)]
        return random.Random(seed_from("others", self.seed)).sample(found, min(DRAWS, len(found)))

    def _steps(
        self, trace: Steps, scores: Scores, of: Part, pool: Sequence[tuple[str, str]], encoder: Encoder
    ) -> Floats:
        count = len(trace.part(of))
        quality = np.array(scores.steps, np.float64) if scores.steps else np.full(count, math.nan)
        if self.targets == "labels":
            return quality
        rng = random.Random(seed_from("others", self.seed, trace.id))
        apart = [step for owner, step in pool if owner != trace.id]
        others = rng.sample(apart, min(self.others, len(apart)))
        aligned = aligned_steps(trace, of, self.alignment, encoder)
        coherent = coherence(trace, of, others, self.tau, encoder)
        if not self.published:
            aligned, coherent = aligned.clip(0.0, 1.0), _share(coherent, len(others))
        return mixed(np.stack([aligned, quality, coherent]))


def aligned_steps(
    trace: Steps, of: Part, how: Literal["monotone", "best"] = "monotone", encoder: Encoder = hashed
) -> Floats:
    """How like the step of the answer that it belongs to each step of the thinking is; NaN for the answer's own."""
    thinking = trace.thinking if of != "answer" else ()
    found = np.full(len(trace.part(of)), math.nan)
    if thinking and trace.answer:
        cosines = similarity(thinking, trace.answer, encoder)
        found[: len(thinking)] = cosines[np.arange(len(thinking)), align(cosines, how)]
    return found


def coherence(trace: Steps, of: Part, others: Sequence[str], tau: float, encoder: Encoder = hashed) -> Floats:
    """The log-ratio of each step's likeness to the one before it against that of other traces' steps."""
    steps = trace.part(of)
    if not others or not steps:
        return np.full(len(steps), math.nan)
    cosines = similarity([trace.question, *steps[:-1]], [*steps, *others], encoder) / tau
    own, theirs = cosines.diagonal(), cosines[:, len(steps) :]
    most = theirs.max(axis=1)
    ratio: Floats = own - most - np.log(np.exp(theirs - most[:, None]).sum(axis=1))
    return ratio


def _share(ratio: Floats, others: int) -> Floats:
    """From 0 to 1, a half where a step is as like the one before it as the others are on average."""
    shares: Floats = 0.5 + 0.5 * np.tanh((ratio + math.log(max(1, others))) / 2)  # the logistic, without overflow
    return shares


def mixed(components: Floats) -> Floats:
    """The mean of the components of each step (columns) that are known, weighted with their softmax."""
    known = np.isfinite(components)
    # Of a step of which nothing is known, the mean is NaN.
    raised = np.where(known, np.exp(np.where(known, components, 0.0)), 0.0)
    total = raised.sum(axis=0)
    sums = (raised * np.where(known, components, 0.0)).sum(axis=0)
    mean: Floats = np.divide(sums, total, out=np.full(components.shape[1], math.nan), where=total > 0)
    return mean


def trajectory(trace: Steps, scores: Scores | None = None) -> float:
    """What the trace as a whole is worth; NaN where nothing says so."""
    facts = trace.facts
    if facts.get("template_accuracy") is not None:
        return _accuracy(trace, facts["template_accuracy"])
    if (answers := facts.get("template_answers")) and facts.get("gold") is not None:
        return sum(same(final(str(answer)) or "", str(facts["gold"])) for answer in answers) / len(answers)
    if facts.get("correct") is not None:
        return float(facts["correct"])
    return math.nan if scores is None or scores.trajectory is None else scores.trajectory


def _accuracy(trace: Steps, given: Any) -> float:
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0 <= given <= 1:
        raise UserError(f"trace {trace.id}: template_accuracy is a share from 0 to 1, not {given!r:.40}")
    return float(given)
