"""Scores steps with their true labels, if the trace has them or its codec can check them.

The first of these that applies: `tells`, a function given in Python; the trace's `labels`, one
truth value or number from 0 to 1 per step; its `label`, the index of the first wrong step, or -1,
as in ProcessBench; for a trace with `codec`, `task` and `problem`, the exact verdicts of that
model's codec; and for other texts that state sums, on a problem of a task that checks them
(`chain_sum`, `execution`), the task's verdicts. The trajectory's score is `correct`, if the trace
has it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from ponder.core import CheckedSteps, Part, Problem, Request, Reward, Scores, Steps, plugins


@dataclass(frozen=True, kw_only=True)
class Oracle(Reward):
    # a function from a trace to one score per step, or None; only from Python
    tells: Callable[[Steps], Sequence[float] | None] | None = field(default=None, compare=False)

    def rate(self, traces: Sequence[Steps]) -> list[Scores]:
        return [self._rate(trace) for trace in traces]

    def _rate(self, trace: Steps) -> Scores:
        labels: Sequence[Any] | None = None
        if self.tells:
            labels = self.tells(trace)
        labels = labels or true_labels(trace, self.of)
        if labels is None:
            if "problem" in trace.facts and "codec" not in trace.facts:
                return Scores(why="no labels, and no key `codec` to check it with")
            return Scores(why="it has no labels")
        try:
            steps = tuple(float(label) for label in labels)
        except (TypeError, ValueError):
            return Scores(why=f"its labels aren't numbers: {labels!r:.40}")
        trajectory = trace.facts.get("correct")
        if trajectory is not None:
            trajectory = float(trajectory)
        return Scores(steps, trajectory)


def true_labels(trace: Steps, of: Part = "all") -> Sequence[Any] | None:
    """Return the labels in a trace, or those of its codec or task; None if there are none."""
    facts = trace.facts
    labels = facts.get("labels")
    if isinstance(labels, list | tuple):
        return labels
    first_wrong = facts.get("label")
    if isinstance(first_wrong, int) and first_wrong >= -1:
        count = len(trace.part(of))
        return [index < first_wrong or first_wrong == -1 for index in range(count)]
    if "problem" not in facts or facts.get("task") not in plugins.names("tasks"):
        return None
    task = plugins.load("tasks", facts["task"])
    problem = msgspec.convert(facts["problem"], Problem)
    codec = plugins.codec(str(facts.get("codec")), facts["task"])
    thinking: Sequence[Any]
    answer: Sequence[Any] = ()
    if codec is not None:
        request = Request.first_turn(task(), problem)
        thinking = codec.sound(request, trace.thinking, str(facts.get("style", "")))
    elif issubclass(task, CheckedSteps):
        sound = task.sound_steps(problem, [*trace.thinking, *trace.answer])
        if sound is None:
            return None
        thinking = sound[: len(trace.thinking)]
        answer = sound[len(trace.thinking) :]
    else:
        return None
    correct = task().grade(problem, "\n\n".join(trace.answer)).correct
    if answer:
        answer = [*answer[:-1], correct]
    else:
        answer = [correct] * len(trace.answer)
    if of == "thinking":
        return thinking
    if of == "answer":
        return answer
    return [*thinking, *answer]
