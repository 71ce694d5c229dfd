"""A reasoning trace: a model's thinking and answer on a question."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from ponder.core import Message, Problem, Request, digest

FIELDS = ("question", "thinking", "answer", "id", "teacher", "topic", "gold", "correct", "tokens")


@dataclass(frozen=True, slots=True)
class Trace:
    """A model's thinking and answer on a question."""

    question: str
    thinking: str
    answer: str
    id: str = ""  # if not given, a hash of the texts, so that copies have the same id
    teacher: str = ""  # the model that wrote it
    topic: str = ""
    gold: Any = None
    correct: bool | None = None
    tokens: int | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)  # all keys that Ponder has no name for

    def __post_init__(self) -> None:
        if not self.id:
            object.__setattr__(self, "id", digest(self.question, self.thinking, self.answer).hex())

    def record(self) -> dict[str, Any]:
        """Return the trace as written to a file: Ponder's names, and all other keys unchanged."""
        record = dict(self.extra)
        for name in FIELDS:
            value = getattr(self, name)
            if value not in (None, ""):
                record[name] = value
        return record


def request_messages(trace: Trace) -> list[dict[str, str]]:
    """Return the messages that the model replied to.

    They include the system message and the history if the trace has its problem.
    """
    try:
        problem = msgspec.convert(trace.extra.get("problem"), Problem)
    except msgspec.ValidationError:
        # There is none, or a file's column of that name is something else.
        return [{"role": "user", "content": trace.question}]
    messages = [*problem.opening(), Message("user", problem.turns[0])]
    return [{"role": message.role, "content": message.content} for message in messages]


def trace_of(request: Request, thinking: str, answer: str, codec: str = "", **fields: Any) -> Trace:
    """Return a reply to a request as a trace, with the facts about the problem that rewards use.

    `codec` names the model plugin whose `codec` can split the thinking into steps and check them.
    """
    question = "\n\n".join(
        message.content for message in request.messages if message.role == "user"
    )
    extra = {"task": request.task.plugin_name(), "problem": request.problem}
    if codec:
        extra["codec"] = codec
    return Trace(question, thinking, answer, extra=extra, **fields)
