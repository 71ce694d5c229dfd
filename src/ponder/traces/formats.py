"""Reads the traces in a record of any common format, and says how it was understood.

    from ponder.traces.formats import understand

    record = {"question": "1 + 1?", "r1_thinking_trajectory": "…", "r1_attempt": "2"}
    for reading in understand(record):
        reading.trace, reading.format, reading.columns, reading.ignored

A record may hold several traces: one per teacher (s1K-1.1), or one per sample (OpenR1's
`generations`, the `choices` of a chat completion). The formats and their columns are listed in
docs/traces.md. What fits none of them raises `ValueError` with the columns that were found.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ponder.traces.messages import (
    REASONING,
    Reply,
    content,
    conversation,
    message_reply,
    split_reply,
)
from ponder.traces.trace import Trace

# The names that each field may have; the first that is present counts, the others stay with the
# trace.
NAMES: dict[str, tuple[str, ...]] = {
    "question": ("question", "problem", "prompt", "instruction", "query"),
    "thinking": (
        "thinking",
        "reasoning",
        "reasoning_content",
        "thinking_trajectories",
        "thoughts",
        "chain_of_thought",
    ),
    "answer": (
        "response",
        "completion",
        "output",
        "attempt",
        "generation",
        "generated_solution",
        "model_output",
        "answer",
        "solution",
        "final_answer",
        "content",
    ),
    "id": ("id", "idx", "uuid", "custom_id"),
    "teacher": ("teacher", "model", "generator", "generation_model", "teacher_model"),
    "topic": ("topic", "subject", "domain", "problem_type", "cot_type"),
    "gold": (
        "gold",
        "gold_answer",
        "ground_truth",
        "ground_truth_solution",
        "reference",
        "expected_answer",
        "reference_answer",
    ),
    "correct": ("correct", "is_correct", "final_answer_correct"),
    "tokens": ("tokens",),
}
# If the answer has another name, these hold the reference answer.
REFERENCE = ("answer", "final_answer", "solution")
REPLIES = NAMES["answer"][:7]  # names that never hold the reference answer
CHATS = ("messages", "conversations", "conversation")
SAMPLES = ("generations", "responses", "completions", "samples")  # a list of replies
# Lists with an entry per sample.
OF_SAMPLE = ("finish_reasons", "is_reasoning_complete", "generation_token_length")
# The same.
VERDICTS = ("correctness_math_verify", "correctness_llama", "correctness", "correct", "is_correct")
EMPTY: tuple[Any, ...] = (None, "", [])  # values that count as absent
_TEACHER = re.compile(
    r"(\w+?)_(thinking_trajectory|thinking_trajectories|reasoning|reasoning_content)"
)
TRAJECTORIES = ("thinking_trajectory", "thinking_trajectories")
_NUMBERED = re.compile(r"(\w+?)_(?:solution|response|generation|attempt|completion)_(\d+)")


@dataclass(frozen=True)
class Understood:
    """A trace, and how it was read from its record."""

    trace: Trace
    format: str
    columns: Mapping[str, str]  # for each field of the trace, where it was read
    # Columns and messages that were not read; columns stay with the trace unless they hold others.
    ignored: tuple[str, ...]


@dataclass
class _Row:
    """A record while it is read: its unread columns, and where each field was read."""

    unread: dict[str, Any]
    user_columns: Mapping[str, str] = field(default_factory=dict)  # columns that the user named
    columns: dict[str, str] = field(default_factory=dict)
    ignored: list[str] = field(default_factory=list)

    def take(self, field: str, names: Sequence[str] = ()) -> Any:
        """Remove and return the value of the first of these columns that isn't empty."""
        if field in self.user_columns:
            names = [self.user_columns[field]]
        for name in names or NAMES[field]:
            value = self.unread.get(name)
            if value in EMPTY:
                continue
            # Nemotron's column `reasoning` says only whether there is any.
            if field == "thinking" and value in (True, False, "on", "off"):
                continue
            self.columns[field] = name
            return self.unread.pop(name)
        return None

    def has(self, names: Sequence[str]) -> bool:
        """Return whether one of these columns isn't empty."""
        return any(self.unread.get(name) not in EMPTY for name in names)

    def drop(self, names: Sequence[str]) -> None:
        """Remove columns that hold other traces, or a copy of this one."""
        for name in names:
            value = self.unread.pop(name, None)
            if value not in EMPTY:
                self.ignored.append(f"`{name}`")


@dataclass(frozen=True)
class _Sample:
    """A reply in a record, and the facts that hold for it alone."""

    reply: Reply
    name: str = ""  # distinguishes it from the other replies of its record
    fields: Mapping[str, Any] = field(default_factory=dict)  # fields of the trace
    columns: Mapping[str, str] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)


def understand(record: Any, columns: Mapping[str, str] | None = None) -> list[Understood]:
    """Return the traces of a record; raise `ValueError` with its columns if it holds none.

    `columns` names the columns of fields that have other names: `{"thinking": "cot"}`.
    """
    if not isinstance(record, dict):
        raise ValueError(f"a trace is a JSON object, not {type(record).__name__}")
    row = _Row(dict(record), columns or {})
    for column in row.user_columns.values():
        if column not in record:
            raise ValueError(f"it has no column `{column}`; {_columns_of(record)}")
    formats = FORMATS
    if "thinking" in row.user_columns or "answer" in row.user_columns:
        formats = {"named columns": _columns}
    try:
        for format_name, reader in formats.items():
            samples = reader(row)
            if samples:
                return _understood(format_name, row, samples)
    except ValueError as error:
        raise ValueError(f"{error}; {_columns_of(record)}") from None
    raise ValueError(f"it has neither thinking nor an answer; {_columns_of(record)}")


def _columns_of(record: Mapping[str, Any]) -> str:
    """Return a record's columns, for an error."""
    if not record:
        return "it is empty"
    names = [f"`{name!s:.40}`" for name in list(record)[:20]]
    if len(record) > 20:
        names.append("…")
    return f"its columns are {', '.join(names)}"


def _understood(format_name: str, row: _Row, samples: Sequence[_Sample]) -> list[Understood]:
    """Return a trace for each reply that isn't blank."""
    question = _question(row)
    samples = [sample for sample in samples if not _is_blank(sample.reply)]
    if not samples:
        raise ValueError("it has neither thinking nor an answer")
    if not question.strip():
        raise ValueError("it has no question")
    fields = {}
    for name in ("id", "teacher", "topic", "gold", "correct", "tokens"):
        fields[name] = row.take(name)
    if fields["gold"] is None:
        fields["gold"] = row.take("gold", REFERENCE)
    return [_trace(format_name, row, question, fields, sample) for sample in samples]


def _is_blank(reply: Reply) -> bool:
    return not reply.thinking.strip() and not reply.answer.strip()


def _trace(
    format_name: str, row: _Row, question: str, row_fields: Mapping[str, Any], sample: _Sample
) -> Understood:
    """Return the trace of a reply. Its own fields take precedence over those of the row."""
    sample_fields = {name: value for name, value in sample.fields.items() if value is not None}
    fields = {**row_fields, **sample_fields}
    trace_id = ""
    if fields["id"] is not None:
        trace_id = str(fields["id"])
    if trace_id and sample.name:
        trace_id = f"{trace_id}/{sample.name}"
    trace = Trace(
        question,
        sample.reply.thinking,
        sample.reply.answer,
        id=trace_id,
        teacher=_text(fields["teacher"], "teacher"),
        topic=_text(fields["topic"], "topic"),
        gold=fields["gold"],
        correct=_is(bool, fields["correct"], "correct"),
        tokens=_is(int, fields["tokens"], "tokens"),
        extra={**row.unread, **sample.extra},
    )
    columns = dict(row.columns)
    if sample.reply.thinking_in:
        columns["thinking"] = sample.reply.thinking_in
    if sample.reply.answer_in:
        columns["answer"] = sample.reply.answer_in
    columns.update(sample.columns)
    unread = [f"`{name}`" for name in row.unread if name not in sample.extra]
    return Understood(trace, format_name, columns, (*row.ignored, *unread))


def _question(row: _Row) -> str:
    """Take the question of a record; "" if it has none."""
    value = row.take("question")
    # TRL's prompt is a list of messages.
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return _last_question(row, value, row.columns["question"])
    question = _text(value, "question")
    alpaca_input = row.unread.get("input")  # the second half of the question
    if question and row.columns["question"] == "instruction" and isinstance(alpaca_input, str):
        del row.unread["input"]
        if alpaca_input:
            row.columns["question"] += " and input"
        if alpaca_input.strip():
            question = f"{question}\n\n{alpaca_input}"
    if question:
        return question

    prompt = row.unread.get("input")
    if isinstance(prompt, list | str) and prompt:
        row.columns["question"] = "input"
        del row.unread["input"]
        if isinstance(prompt, str):
            return prompt
        return _last_question(row, prompt, "input")
    chat = row.take("question", CHATS)
    if chat is not None:
        return _last_question(row, chat, row.columns["question"])
    request = row.unread.get("request")
    if isinstance(request, dict):
        body = request.get("body", request)
        if isinstance(body, dict) and "messages" in body:
            del row.unread["request"]
            return _last_question(row, body["messages"], "request.messages")
    return ""


def _last_question(row: _Row, messages: Any, name: str) -> str:
    """Return the last question of a conversation."""
    chat = conversation(messages, name)
    row.columns["question"] = chat.question_in
    row.ignored += chat.left_out
    return chat.question


def _ponder(row: _Row) -> list[_Sample]:
    """Read what `ponder score` and `ponder select` write: their other columns are the source's."""
    if "scored_by" not in row.unread:
        return []
    thinking = _text(row.take("thinking", ("thinking",)), "thinking")
    answer = _text(row.take("answer", ("answer",)), "answer")
    return [_Sample(Reply(thinking, answer))]


def _samples(row: _Row) -> list[_Sample]:
    """Read several replies to one question, in a list."""
    name = _samples_column(row)
    if name is None:
        return []
    replies = row.unread.pop(name)
    lists = {}  # columns with an entry per reply
    for column in (*OF_SAMPLE, *VERDICTS):
        values = row.unread.get(column)
        if isinstance(values, list) and len(values) == len(replies):
            lists[column] = row.unread.pop(column)
    row.drop(CHATS)  # OpenR1's holds one of the generations again

    samples = list[_Sample]()
    for n, reply in enumerate(replies):
        if reply in (None, "", {}):
            row.ignored.append(f"{name}[{n}], which is empty")
            continue
        extra = {column: values[n] for column, values in lists.items()}
        verdicts = {}
        for column in VERDICTS:
            if extra.get(column) is not None:
                verdicts[column] = extra.pop(column)
        fields: dict[str, Any] = {}
        columns = {}
        if verdicts:
            fields["correct"] = any(
                _is(bool, verdict, column) for column, verdict in verdicts.items()
            )
            columns["correct"] = " or ".join(verdicts)
        if isinstance(reply, dict):
            fields["teacher"] = reply.get("response_model", reply.get("model"))
        parsed = _sampled(reply, f"{name}[{n}]")
        samples.append(_Sample(parsed, str(n), fields, columns, extra | verdicts))
    return samples


def _samples_column(row: _Row) -> str | None:
    """Return the column that holds a list of replies."""
    for name in SAMPLES:
        if isinstance(row.unread.get(name), list) and row.unread[name]:
            return name
    return None


def _sampled(reply: Any, where: str) -> Reply:
    """Read an entry of a list of replies.

    It is a text, content parts, a message, or an object that holds one of these.
    """
    if isinstance(reply, list):
        return split_reply(*content(reply, where), where, where)
    if not isinstance(reply, dict):
        return split_reply("", _text(reply, where), where, where)
    for key in ("message", "response", "text", "output"):
        inner = reply.get(key)
        if isinstance(inner, dict):
            return message_reply(inner, f"{where}.{key}")
        if isinstance(inner, str) and "content" not in reply:
            texts = [reply[name] for name in REASONING if isinstance(reply.get(name), str)]
            thinking = next(iter(texts), "")
            return split_reply(thinking, inner, where, f"{where}.{key}")
    return message_reply(reply, where)


def _teachers(row: _Row) -> list[_Sample]:
    """Read several teachers, each with its columns: s1K-1.1, the metadata of OpenThoughts-114k."""
    samples = list[_Sample]()
    for name in list(row.unread):
        match = _TEACHER.fullmatch(name)
        if not match or not isinstance(row.unread[name], str | list) or not row.unread[name]:
            continue
        teacher, kind = match.groups()
        answer_in = _teacher_answer(row, teacher, kind)
        if not answer_in and kind not in TRAJECTORIES:
            continue
        grade = row.unread.pop(f"{teacher}_grade", None)
        thinking = _text(row.unread.pop(name), name)
        answer = _text(row.unread.pop(answer_in, None), answer_in)
        reason = row.unread.pop(f"{teacher}_grade_reason", None)
        fields = {"teacher": teacher, "correct": {"Yes": True, "No": False}.get(str(grade))}
        columns = {"teacher": "its columns' names"}
        extra = {}
        if grade is not None:
            columns["correct"] = f"{teacher}_grade"
            extra = {"grade": grade, "grade_reason": reason}
        reply = split_reply(thinking, answer, name, answer_in)
        samples.append(_Sample(reply, teacher, fields, columns, extra))
    if samples:
        row.drop([*CHATS, "text"])  # made from one of the teachers' columns
    return samples


def _teacher_answer(row: _Row, teacher: str, kind: str) -> str:
    """Return the column of a teacher's answer; "" if there is none."""
    endings = ["solution", "response", "answer"]
    if kind in TRAJECTORIES:
        endings = ["attempt"]
    for ending in endings:
        if row.unread.get(f"{teacher}_{ending}"):
            return f"{teacher}_{ending}"
    return ""


def _numbered(row: _Row) -> list[_Sample]:
    """Read several replies in numbered columns: DeepMath's `r1_solution_1`, `r1_solution_2`, …"""
    samples = list[_Sample]()
    for name in list(row.unread):
        match = _NUMBERED.fullmatch(name)
        if not match or not isinstance(row.unread[name], str):
            continue
        teacher, number = match.groups()
        reply = split_reply("", row.unread.pop(name), name, name)
        samples.append(
            _Sample(reply, number, {"teacher": teacher}, {"teacher": "its columns' names"})
        )
    return samples


def _choices(row: _Row) -> list[_Sample]:
    """Read the choices of a chat completion, or of a text completion."""
    body = row.unread
    prefix = ""
    # A line of a batch's output, or of a log of requests and responses.
    for key in ("response", "body"):
        if "choices" not in body and isinstance(body.get(key), dict):
            body = body[key]
            prefix = f"{prefix}{key}."
    choices = body.get("choices")
    if not isinstance(choices, list) or not choices:
        return []
    if not all(isinstance(choice, dict) for choice in choices):
        return []
    if prefix:
        del row.unread["response"]
        usage = body.get("usage")
    else:
        del row.unread["choices"]
        usage = row.unread.pop("usage", None)
    fields: dict[str, Any] = {"teacher": body.get("model")}
    columns = {}
    if isinstance(usage, dict) and len(choices) == 1:
        fields["tokens"] = usage.get("completion_tokens")
        if fields["tokens"] is not None:
            columns["tokens"] = f"{prefix}usage.completion_tokens"
    samples = []
    for n, choice in enumerate(choices):
        name = ""
        if len(choices) > 1:
            name = str(n)
        samples.append(_Sample(_sampled(choice, f"{prefix}choices[{n}]"), name, fields, columns))
    return samples


def _chat(row: _Row) -> list[_Sample]:
    """Read a conversation that ends with a reply."""
    columns = [name for name in CHATS if row.unread.get(name)]
    if not columns:
        return []
    name = columns[0]
    chat = conversation(row.unread[name], name)
    reply = chat.reply
    if reply is None:
        if not row.has((*NAMES["thinking"], *NAMES["answer"])):
            raise ValueError(f"`{name}` ends without a reply")
        return []
    del row.unread[name]
    row.ignored += chat.left_out
    reply_columns = [column for column in REPLIES if row.unread.get(column)]
    if reply_columns:
        column_text = " ".join(str(row.unread[reply_columns[0]]).split())
        chat_text = " ".join(reply.answer.split())
        if not column_text.endswith(chat_text):
            raise ValueError(f"`{name}` and `{reply_columns[0]}` hold different replies")
    thinking = _parts_text(row.take("thinking"), "thinking")
    if thinking:
        if reply.thinking.strip() not in ("", thinking.strip()):
            raise ValueError(f"`{name}` and `{row.columns['thinking']}` hold different thinking")
        reply = replace(reply, thinking=thinking, thinking_in=row.columns["thinking"])
    if row.has(NAMES["question"]):
        return [_Sample(reply)]
    row.unread["question"] = chat.question
    return [_Sample(reply, columns={"question": chat.question_in})]


def _columns(row: _Row) -> list[_Sample]:
    """Read one reply, in columns with any of the common names."""
    thinking = _parts_text(row.take("thinking"), "thinking")
    if isinstance(row.unread.get("steps"), list) and not row.has(NAMES["answer"]):
        answer = "\n\n".join([_text(step, "a step") for step in row.unread["steps"]])
        return [_Sample(split_reply(thinking, answer, row.columns.get("thinking", ""), "steps"))]
    value = row.take("answer", _answers(row, bool(thinking)))
    if isinstance(value, list) and value and isinstance(value[-1], dict) and "role" in value[-1]:
        # TRL's completion is a list of messages.
        return [_Sample(message_reply(value[-1], f"{row.columns['answer']}[{len(value) - 1}]"))]
    thinking_in = row.columns.pop("thinking", "")
    answer_in = row.columns.pop("answer", "")
    reply = split_reply(thinking, _parts_text(value, "answer"), thinking_in, answer_in)
    if _is_blank(reply):
        return []
    return [_Sample(reply)]


def _answers(row: _Row, has_thinking: bool) -> Sequence[str]:
    """Return the columns that may hold the answer, by the column that holds the thinking."""
    thinking_in = row.columns.get("thinking")
    if thinking_in == "thinking_trajectories":
        return ("attempt",)  # s1K's `solution` is the reference
    if thinking_in == "reasoning_content":
        return ("content", *NAMES["answer"])
    if not has_thinking and row.has(("answer",)) and row.has(("solution",)):
        # LIMO, NuminaMath: the solution is the trace.
        return tuple(name for name in NAMES["answer"] if name != "answer")
    return NAMES["answer"]


def _parts_text(value: Any, name: str) -> str:
    """Return a text, or content parts as text."""
    if isinstance(value, list) and any(isinstance(entry, dict) for entry in value):
        return "\n\n".join(text for text in content(value, name) if text)
    return _text(value, name)


def _text(value: Any, name: str) -> str:
    """Return a text or a list of texts as one; raise `ValueError` for anything else."""
    if isinstance(value, list) and all(isinstance(entry, str) for entry in value):
        return "\n\n".join(value)  # s1 stores thinking as a list
    if value is not None and not isinstance(value, str):
        raise ValueError(f"{name} must be a string, not {value!r:.40}")
    return value or ""


def _is(kind: type[Any], value: Any, name: str) -> Any:
    """Return a value that is None or of a type; raise `ValueError` for anything else."""
    if value is not None and type(value) is not kind:
        raise ValueError(f"{name} must be a {kind.__name__}, not {value!r:.40}")
    return value


FORMATS: dict[str, Callable[[_Row], list[_Sample]]] = {
    "Ponder's own names": _ponder,
    "several samples per row": _samples,
    "a pair of columns per teacher": _teachers,
    "numbered columns": _numbered,
    "choices of a completion": _choices,
    "a conversation": _chat,
    "named columns": _columns,
}
