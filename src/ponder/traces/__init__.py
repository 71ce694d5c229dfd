"""Piles of reasoning traces: read from JSONL whatever the fields are called, cut into steps, steps aligned.

    from ponder.traces import read, steps

    pile = read(Path("traces.jsonl"), bad="skip")
    cut = [steps(trace) for trace in pile]
    pile.skipped  # ["traces.jsonl:7: it has no question", …]

Published piles name their fields in many ways; `NAMES` says which are understood. A text that holds its thinking in
`<think>` tags is split there; a conversation in `messages` is read to its last reply; a list of `steps` is an answer
that somebody has cut already (`by="task"` keeps those cuts). Every other key stays with the trace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import msgspec

from ponder.core import Request, UserError, digest
from ponder.core.answers import split_thinking
from ponder.traces.alignment import align, hashed, similarity
from ponder.traces.segments import steps

__all__ = ["NAMES", "TraceFile", "Trace", "align", "hashed", "read", "similarity", "steps", "trace_of"]

# What each field may be called; the first that is there counts, the others stay with the trace as they are.
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
RIGHT = ("answer", "solution")  # where something else is what was said, these mean what is right
CHATS = ("messages", "conversations", "conversation")


@dataclass(frozen=True, slots=True)
class Trace:
    """What a model thought and answered on a question."""

    question: str
    thinking: str
    answer: str
    id: str = ""  # if not given, a digest of the texts, so that copies share it
    teacher: str = ""
    topic: str = ""
    gold: Any = None
    correct: bool | None = None
    tokens: int | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)  # the keys that Ponder has no name for

    def __post_init__(self) -> None:
        if not self.id:
            object.__setattr__(self, "id", digest(self.question, self.thinking, self.answer).hex())

    def record(self) -> dict[str, Any]:
        """As it is written to a file: Ponder's names, and the other keys beside them."""
        own = {name: getattr(self, name) for name in NAMES}
        return {**self.extra, **{name: value for name, value in own.items() if value not in (None, "")}}


@dataclass
class TraceFile:
    """The traces of a file, read one at a time however many they are; `skipped` says which lines were left out."""

    path: Path
    bad: Literal["refuse", "skip"] = "refuse"
    skipped: list[str] = field(default_factory=list)

    def __iter__(self) -> Iterator[Trace]:
        self.skipped.clear()
        try:
            # Bytes, because only a line feed ends a line of JSONL; text may hold any other separator.
            with self.path.open("rb") as file:
                for number, line in enumerate(file, 1):
                    if line.strip():
                        yield from self._line(number, line.removeprefix(b"\xef\xbb\xbf"))
        except OSError as error:
            raise UserError(f"can't read {self.path}: {error.strerror}") from None

    def _line(self, number: int, line: bytes) -> Iterator[Trace]:
        where = f"{self.path}:{number}"
        try:
            found = parse(msgspec.json.decode(line))
        except (ValueError, RecursionError) as error:
            if self.bad == "refuse":
                hint = 'mend the line, or leave such lines out: bad = "skip"'
                raise UserError(str(error), where=where, hint=hint) from None
            self.skipped.append(f"{where}: {error}")
        else:
            yield found


def read(path: Path, bad: Literal["refuse", "skip"] = "refuse") -> TraceFile:
    """The traces of a JSONL file. A malformed line is refused with its number, or skipped and counted."""
    return TraceFile(path, bad)


def parse(record: Any) -> Trace:
    """One record as a trace; `ValueError` says what is wrong with it."""
    if not isinstance(record, dict):
        raise ValueError(f"a trace is an object, not {type(record).__name__}")
    rest = dict(record)
    found = {name: _take(rest, names) for name, names in NAMES.items()}
    if (chat := _take(rest, CHATS)) is not None:
        asked, said = _chat(chat)
        found["question"] = found["question"] or asked
        found["answer"] = found["answer"] or said
    if found["answer"] is None and isinstance(rest.get("steps"), list):
        found["answer"] = "\n\n".join(_text(step, "a step") for step in rest["steps"])
    if found["gold"] is None:
        found["gold"] = _take(rest, RIGHT)
    question, thinking, answer = (_text(found[key], key) for key in ("question", "thinking", "answer"))
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
        id="" if found["id"] is None else str(found["id"]),
        teacher=_text(found["teacher"], "teacher"),
        topic=_text(found["topic"], "topic"),
        gold=found["gold"],
        correct=_is(bool, found["correct"], "correct"),
        tokens=_is(int, found["tokens"], "tokens"),
        extra=rest,
    )


def trace_of(request: Request, thinking: str, answer: str, codec: str = "", **known: Any) -> Trace:
    """What a model said to a request, with what a reward may want to know of the problem."""
    question = "\n\n".join(m.content for m in request.messages if m.role == "user")
    extra = {"task": request.task.plugin_name(), "problem": request.problem} | ({"codec": codec} if codec else {})
    return Trace(question, thinking, answer, extra=extra, **known)


def _take(rest: dict[str, Any], names: tuple[str, ...]) -> Any:
    """The first of these keys that says something, taken out of the record."""
    name = next((n for n in names if rest.get(n) not in (None, "")), None)
    return None if name is None else rest.pop(name)


def _text(value: Any, name: str) -> str:
    if isinstance(value, list) and all(isinstance(part, str) for part in value):  # s1 keeps its thinking in a list
        return "\n\n".join(value)
    if value is not None and not isinstance(value, str):
        raise ValueError(f"{name} is a text, not {value!r:.40}")
    return value or ""


def _is(kind: Callable[[Any], Any], value: Any, name: str) -> Any:
    if value is not None and type(value) is not kind:
        raise ValueError(f"{name} can't be {value!r:.40}")
    return value


def _chat(messages: Any) -> tuple[str, str]:
    """The last question of a conversation and the reply to it."""
    texts = {"user": "", "assistant": ""}
    roles = {"human": "user", "gpt": "assistant"}
    for message in messages if isinstance(messages, list) else [None]:
        if not isinstance(message, dict):
            raise ValueError("a conversation is a list of messages")
        role = str(message.get("role", message.get("from")))
        texts[roles.get(role, role)] = _text(message.get("content", message.get("value")), "a message")
    return texts["user"], texts["assistant"]
