"""Reasoning traces: read from JSONL files with any of the common field names, and split into steps.

    from ponder.traces import read, steps

    traces = read(Path("traces.jsonl"), bad="skip")
    split = [steps(trace) for trace in traces]
    traces.skipped  # ["traces.jsonl:7: it has no question", …]

Published datasets name their fields in many ways; `NAMES` lists the names that are understood. An answer with its
thinking in `<think>` tags is split there. Of a conversation in `messages`, the last question and reply are read. A list
of `steps` is an answer that is already split (`by="task"` keeps that split). All other keys stay with the trace.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import msgspec

from ponder.core import Request, UserError, digest
from ponder.core.answers import split_thinking
from ponder.traces.alignment import align, hashed, similarity
from ponder.traces.segments import steps

__all__ = ["NAMES", "Trace", "TraceFile", "align", "hashed", "read", "similarity", "steps", "trace_of"]

# The names that each field may have; the first that is present counts, the others stay with the trace.
NAMES: dict[str, tuple[str, ...]] = {
    "question": ("question", "problem", "prompt", "instruction"),
    "thinking": ("thinking", "reasoning", "reasoning_content", "thinking_trajectories", "deepseek_reasoning"),
    "answer": ("response", "completion", "output", "attempt", "deepseek_solution", "answer", "solution"),
    "id": ("id", "idx", "uuid"),
    "teacher": ("teacher", "model", "generator"),
    "topic": ("topic", "subject", "domain"),
    "gold": ("gold", "gold_answer", "ground_truth", "ground_truth_solution", "reference"),
    "correct": ("correct", "is_correct", "final_answer_correct"),
    "tokens": ("tokens",),
}
REFERENCE = ("answer", "solution")  # if the answer has another name, these hold the reference answer
CHATS = ("messages", "conversations", "conversation")


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
        """The trace as it is written to a file: with Ponder's names, and all other keys as they were."""
        own = {name: getattr(self, name) for name in NAMES}
        return {**self.extra, **{name: value for name, value in own.items() if value not in (None, "")}}


@dataclass
class TraceFile:
    """The traces of a JSONL file, read one at a time on each iteration; `skipped` lists the lines that were skipped."""

    path: Path
    bad: Literal["refuse", "skip"] = "refuse"
    skipped: list[str] = field(default_factory=list)

    def __iter__(self) -> Iterator[Trace]:
        self.skipped.clear()
        try:
            # As bytes: only a line feed ends a line of JSONL, but text mode would also split at other separators.
            with self.path.open("rb") as file:
                for number, line in enumerate(file, 1):
                    if line.strip():
                        yield from self._line(number, line.removeprefix(b"\xef\xbb\xbf"))
        except OSError as error:
            raise UserError(f"can't read {self.path}: {error.strerror}") from None

    def _line(self, number: int, line: bytes) -> Iterator[Trace]:
        where = f"{self.path}:{number}"
        try:
            trace = parse(msgspec.json.decode(line))
        except (ValueError, RecursionError) as error:
            if self.bad == "refuse":
                hint = 'correct the line, or skip such lines: --bad skip (in Python bad="skip")'
                raise UserError(str(error), where=where, hint=hint) from None
            self.skipped.append(f"{where}: {error}")
        else:
            yield trace


def read(path: Path, bad: Literal["refuse", "skip"] = "refuse") -> TraceFile:
    """The traces of a JSONL file. A malformed line raises `UserError` with its number, or is skipped and listed."""
    return TraceFile(path, bad)


def parse(record: Any) -> Trace:
    """A record as a trace; raises `ValueError` if it isn't one."""
    if not isinstance(record, dict):
        raise ValueError(f"a trace is a JSON object, not {type(record).__name__}")
    rest = dict(record)
    fields = {name: _take(rest, names) for name, names in NAMES.items()}
    if (chat := _take(rest, CHATS)) is not None:
        question, reply = _chat(chat)
        fields["question"] = fields["question"] or question
        fields["answer"] = fields["answer"] or reply
    if fields["answer"] is None and isinstance(rest.get("steps"), list):
        fields["answer"] = "\n\n".join(_text(step, "a step") for step in rest["steps"])
    if fields["gold"] is None:
        fields["gold"] = _take(rest, REFERENCE)
    question, thinking, answer = (_text(fields[key], key) for key in ("question", "thinking", "answer"))
    if not thinking:
        thinking, answer = split_thinking(answer)
    if not question.strip():
        raise ValueError("it has no question")
    if not (thinking.strip() or answer.strip()):
        raise ValueError("it has neither thinking nor an answer")
    return Trace(
        question,
        thinking,
        answer,
        id="" if fields["id"] is None else str(fields["id"]),
        teacher=_text(fields["teacher"], "teacher"),
        topic=_text(fields["topic"], "topic"),
        gold=fields["gold"],
        correct=_is(bool, fields["correct"], "correct"),
        tokens=_is(int, fields["tokens"], "tokens"),
        extra=rest,
    )


def trace_of(request: Request, thinking: str, answer: str, codec: str = "", **known: Any) -> Trace:
    """A reply to a request as a trace, with the facts about the problem that rewards use.

    `codec` names the model plugin whose `codec` can split the thinking into steps and check them.
    """
    question = "\n\n".join(m.content for m in request.messages if m.role == "user")
    extra = {"task": request.task.plugin_name(), "problem": request.problem} | ({"codec": codec} if codec else {})
    return Trace(question, thinking, answer, extra=extra, **known)


def _take(rest: dict[str, Any], names: tuple[str, ...]) -> Any:
    """Remove and return the value of the first of these keys that isn't empty."""
    name = next((n for n in names if rest.get(n) not in (None, "", [])), None)
    return None if name is None else rest.pop(name)


def _text(value: Any, name: str) -> str:
    if isinstance(value, list) and all(isinstance(part, str) for part in value):  # s1 stores thinking as a list
        return "\n\n".join(value)
    if value is not None and not isinstance(value, str):
        raise ValueError(f"{name} must be a string, not {value!r:.40}")
    return value or ""


def _is(kind: type[Any], value: Any, name: str) -> Any:
    if value is not None and type(value) is not kind:
        raise ValueError(f"{name} must be a {kind.__name__}, not {value!r:.40}")
    return value


def _chat(messages: Any) -> tuple[str, str]:
    """The last question and the last reply of a conversation."""
    texts = {"user": "", "assistant": ""}
    roles = {"human": "user", "gpt": "assistant"}
    for message in messages if isinstance(messages, list) else [None]:
        if not isinstance(message, dict):
            raise ValueError("a conversation must be a list of messages")
        role = str(message.get("role", message.get("from")))
        texts[roles.get(role, role)] = _text(message.get("content", message.get("value")), "a message")
    return texts["user"], texts["assistant"]
