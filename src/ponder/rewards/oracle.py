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
    # only from Python
    tells: Callable[[Steps], Sequence[float] | None] | None = field(default=None, compare=False)

    def rate(self, traces: Sequence[Steps]) -> list[Scores]:
        return [self._one(trace) for trace in traces]

    def _one(self, trace: Steps) -> Scores:
        labels = (self.tells and self.tells(trace)) or given(trace, self.of)
        if labels is None:
            checkable = "problem" in trace.facts and "codec" not in trace.facts
            return Scores(
                why="no labels, and no key `codec` to check it with"
                if checkable
                else "it has no labels"
            )
        try:
            steps = tuple(float(label) for label in labels)
        except (TypeError, ValueError):
            return Scores(why=f"its labels aren't numbers: {labels!r:.40}")
        correct = trace.facts.get("correct")
        return Scores(steps, None if correct is None else float(correct))


def given(trace: Steps, of: Part = "all") -> Sequence[Any] | None:
    """The labels in a trace, or those that its codec finds; None if there are none."""
    facts, count = trace.facts, len(trace.part(of))
    if isinstance(labels := facts.get("labels"), list | tuple):
        return labels
    if isinstance(label := facts.get("label"), int) and label >= -1:
        return [n < label or label == -1 for n in range(count)]
    if "problem" not in facts or facts.get("task") not in plugins.names("tasks"):
        return None
    kind, problem = plugins.load("tasks", facts["task"]), msgspec.convert(facts["problem"], Problem)
    if (codec := plugins.codec(str(facts.get("codec")), facts["task"])) is None:
        if not issubclass(kind, CheckedSteps):
            return None
        checked = kind.sound_steps(problem, [*trace.thinking, *trace.answer])
        if checked is None:
            return None
        sound, stated = checked[: len(trace.thinking)], checked[len(trace.thinking) :]
    else:
        style = str(facts.get("style", ""))
        sound, stated = codec.sound(Request.first_turn(kind(), problem), trace.thinking, style), []
    correct = kind().grade(problem, "\n\n".join(trace.answer)).correct
    answer = [*stated[:-1], correct] if stated else [correct] * len(trace.answer)
    parts: dict[Part, Sequence[Any]] = {
        "all": [*sound, *answer],
        "thinking": sound,
        "answer": answer,
    }
    return parts[of]
