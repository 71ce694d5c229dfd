"""A process reward in the pocket model's own words: small Llamas that tell right steps of an execution from wrong ones.

It reads traces with `task = "execution"` and their `problem`, cut with `by = "task"`, as the pocket model would have
written them. Three sizes ship, with cards that say how they were made and how good they are; `ponder train-reward
pocket -o DIR` makes them anew, from right lessons and from lessons with faults, whose labels are exact. A step's score
comes from the backbone's state at its last word and from how surprising the words of its pass were to the backbone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import msgspec

from ponder.core import ModelFailure, Problem, Request, Steps
from ponder.models.pocket import CODECS
from ponder.models.pocket.codec import AGAIN, ANSWER, EOS, THINK
from ponder.models.pocket.execution import digits
from ponder.rewards._weights import Reading, Words
from ponder.rewards.trained import Trained
from ponder.tasks.execution import Execution

WEIGHTS = Path(__file__).parent / "weights"
TASK = Execution()  # whatever its settings: the problem says it all
_SUM = Execution(per_turn=1, dictionary=2).problem(1, seed=1)


@dataclass(frozen=True, kw_only=True)
class Pocket(Trained):
    size: Literal["small", "medium", "large"] = "large"
    id: str = ""  # a folder with weights; if not given, those that ship

    example: ClassVar[dict[str, Any]] = {}
    tried_on: ClassVar[dict[str, Any]] = {
        "question": _SUM.turns[0],
        "thinking": ("u0 t0 h0 k0",),
        "answer": ("<answer>0</answer>",),
        "facts": {"task": "execution", "problem": _SUM},
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.id:
            object.__setattr__(self, "id", str(WEIGHTS / self.size))

    def title(self) -> str:
        return f"pocket {self.size}"

    def states(self, model: Any) -> Any:
        from ponder.rewards.pocket.surprise import Surprised

        return Surprised(model, CODECS["execution"].encode([THINK, AGAIN]))

    def read(self, words: Words, traces: Sequence[Steps]) -> list[Reading | str]:  # noqa: ARG002 it has its own
        return [self._one(trace) for trace in traces]

    def _one(self, trace: Steps) -> Reading | str:
        spoken, facts = CODECS["execution"], trace.facts
        if facts.get("task") != "execution" or "problem" not in facts:
            return "the pocket reward reads traces with `task` execution and their `problem`"
        try:
            problem = facts["problem"]
            problem = problem if isinstance(problem, Problem) else msgspec.convert(problem, Problem)
            head = spoken.encode(spoken.prompt(Request.first_turn(TASK, problem)))
            thinking = [step.split() for step in trace.thinking] if self.of != "answer" else []
            steps = [spoken.encode(step) for step in thinking]
            if self.of != "thinking":
                said = [_words(TASK.parse(problem, step), step) for step in trace.answer]
                steps += [spoken.encode([ANSWER, *step, EOS]) for step in said]
        except (ModelFailure, msgspec.ValidationError) as error:
            return str(error)
        except KeyError as error:
            return f"the pocket model has no word for {error}"
        return Reading(head, steps)


def _words(number: int | None, text: str) -> list[str]:
    """An answer as the pocket model says it, or the words that stand in its place."""
    return text.split() if number is None else digits(number)
