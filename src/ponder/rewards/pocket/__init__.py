"""Scores the pocket model's steps on the task `execution` with small Llamas trained to find errors.

It reads traces with `task = "execution"` and their `problem`, split with `by = "task"`, in the
pocket model's own tokens. Three sizes ship; their cards say how they were trained and how accurate
they are. `ponder prepare pocket_reward -o DIR` trains them again, from correct traces and from
traces with injected errors, whose labels are exact. A step's score is computed from the backbone's
hidden state at its last token and from the token log-probabilities of its pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal

import msgspec

from ponder.core import ModelFailure, Problem, Request, Steps, plugins
from ponder.models import read_card
from ponder.models.pocket import CODECS
from ponder.models.pocket.codec import AGAIN, ANSWER, EOS, THINK, PocketCodec
from ponder.rewards._weights import Reading, SafeTokenizer, Weighted
from ponder.tasks.execution import Execution

WEIGHTS = Path(__file__).parent / "weights"
TASK = Execution()  # its settings don't matter: the problem holds all facts
_SUM = Execution(per_turn=1, dictionary=2).problem(1, seed=1)


@dataclass(frozen=True, kw_only=True)
class Pocket(Weighted):
    size: Literal["small", "medium", "large"] = "large"  # 37, 100 or 582 thousand weights
    id: str = ""  # a folder with weights; if not given, those that ship with Ponder

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

    @cached_property
    def codec(self) -> PocketCodec:
        """Return the codec of the task that the card of the weights names."""
        card = read_card(Path(self.id))
        return CODECS[card.get("task", "execution")]

    def states(self, model: Any) -> Any:
        from ponder.rewards.pocket.log_probs import WithLogProbs

        begins = [word for word in (THINK, AGAIN) if word in self.codec.index]
        return WithLogProbs(model, self.codec.encode(begins))

    def read(self, tokenizer: SafeTokenizer, traces: Sequence[Steps]) -> list[Reading | str]:  # noqa: ARG002 the codec encodes
        return [self._read(trace) for trace in traces]

    def _read(self, trace: Steps) -> Reading | str:
        codec = self.codec
        facts = trace.facts
        if facts.get("task") != codec.task or "problem" not in facts:
            keys = f"`task`, which must be {codec.task}, and `problem`"
            return f"the pocket reward needs the keys {keys}"
        try:
            problem = facts["problem"]
            if not isinstance(problem, Problem):
                problem = msgspec.convert(problem, Problem)
            request = Request.first_turn(plugins.load("tasks", codec.task)(), problem)
            head = codec.encode(codec.prompt(request))
            steps = list[list[int]]()
            if self.of != "answer":
                steps += [codec.encode(step.split()) for step in trace.thinking]
            if self.of != "thinking":
                for step in trace.answer:
                    answer = codec.answer_words(request, step)
                    steps.append(codec.encode([ANSWER, *answer, EOS]))
        except (ModelFailure, msgspec.ValidationError) as error:
            return str(error)
        except KeyError as error:
            return f"the pocket model has no token for {error}"
        return Reading(head, steps)
