"""The true labels of the steps, where a task or the trace itself knows them.

In this order: what `tells` says, a function given in Python; the trace's `labels`, true or false or a share for each
step; its `label`, the first wrong step counted from 0, or -1, as in ProcessBench; and for pocket traces with their
`task` and `problem`, what the pocket language finds, exactly: steps are right up to the first word that is false or
doesn't follow, and wrong from there on, until a new pass begins. The trajectory is whether the answer is `correct`, if
the trace says so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from ponder import plugins
from ponder.core import Part, Problem, Request, Reward, Scores, Steps
from ponder.models.pocket import LANGUAGES
from ponder.models.pocket.execution import AGAIN
from ponder.models.pocket.language import EOS, Style, first_turn


@dataclass(frozen=True, kw_only=True)
class Oracle(Reward):
    tells: Callable[[Steps], Sequence[float] | None] | None = field(default=None, compare=False)  # only from Python

    def rate(self, traces: Sequence[Steps]) -> list[Scores]:
        return [self._one(trace) for trace in traces]

    def _one(self, trace: Steps) -> Scores:
        labels = (self.tells and self.tells(trace)) or given(trace, self.of)
        if labels is None:
            return Scores(why="nothing is known of its steps")
        try:
            steps = tuple(float(label) for label in labels)
        except (TypeError, ValueError):
            return Scores(why=f"its labels are no numbers: {labels!r:.40}")
        correct = trace.facts.get("correct")
        return Scores(steps, None if correct is None else float(correct))


def given(trace: Steps, of: Part = "all") -> Sequence[Any] | None:
    """The labels that come with a trace, or that its task's language finds."""
    facts, count = trace.facts, len(trace.part(of))
    if isinstance(labels := facts.get("labels"), list | tuple):
        return labels
    if isinstance(label := facts.get("label"), int) and label >= -1:
        return [n < label or label == -1 for n in range(count)]
    if facts.get("task") not in LANGUAGES or "problem" not in facts:
        return None
    task = plugins.load("tasks", facts["task"])()
    problem = msgspec.convert(facts["problem"], Problem)
    sound = sound_steps(first_turn(task, problem), trace.thinking, facts.get("style", "plain"))
    answer = [task.grade(problem, "\n\n".join(trace.answer)).correct] * len(trace.answer)
    return {"all": sound + answer, "thinking": sound, "answer": answer}[of]


def sound_steps(request: Request, thinking: Sequence[str], style: Style = "plain") -> list[bool]:
    """Whether each step of pocket thinking, cut as its language cuts it, stands before the first fault of its pass."""
    spoken = LANGUAGES[request.task.plugin_name()]
    found: list[bool] = []
    words: list[str] = []
    right, ended = True, False
    for step in thinking:
        if step.startswith(AGAIN):
            words, right, ended = [], True, False
        words += [word for word in step.split() if word != AGAIN]
        if right:
            verdict = spoken.unsound(request, words, "short" if style == "short" else "plain")
            # The end of the text is what unfinished thinking lacks; after thinking that was complete, it is a fault.
            right = verdict is None or (verdict == EOS and not ended)
            ended = verdict is None
        found.append(right)
    return found
