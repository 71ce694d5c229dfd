"""Reads the traces in a record of any common format, and says how it was understood.

    from ponder.traces.formats import understand

    for reading in understand({"question": "1 + 1?", "deepseek_thinking_trajectory": "…", "deepseek_attempt": "2"}):
        reading.trace, reading.format, reading.columns, reading.ignored

A record may hold several traces: one per teacher (s1K-1.1), or one per sample (OpenR1's `generations`, the `choices` of
a chat completion). The formats and their columns are listed in docs/traces.md. What fits none of them raises
`ValueError` with the columns that were found.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ponder.traces.messages import REASONING, Reply, content, conversation, message_reply, split_reply
from ponder.traces.trace import Trace

# The names that each field may have; the first that is present counts, the others stay with the trace.
NAMES: dict[str, tuple[str, ...]] = {
    "question": ("question", "problem", "prompt", "instruction", "query"),
    "thinking": ("thinking", "reasoning", "reasoning_content", "thinking_trajectories", "thoughts", "chain_of_thought"),
    "answer": (
        "response", "completion", "output", "attempt", "generation", "generated_solution", "model_output",
        "answer", "solution", "final_answer", "content",
    ),
    "id": ("id", "idx", "uuid", "custom_id"),
    "teacher": ("teacher", "model", "generator", "generation_model", "teacher_model"),
    "topic": ("topic", "subject", "domain", "problem_type", "cot_type"),
    "gold": (
        "gold", "gold_answer", "ground_truth", "ground_truth_solution", "reference", "expected_answer",
        "reference_answer",
    ),
    "correct": ("correct", "is_correct", "final_answer_correct"),
    "tokens": ("tokens",),
}  # fmt: skip
REFERENCE = ("answer", "final_answer", "solution")  # if the answer has another name, these hold the reference answer
REPLIES = NAMES["answer"][:7]  # names that never hold the reference answer
CHATS = ("messages", "conversations", "conversation")
SAMPLES = ("generations", "responses", "completions", "samples")  # a list of replies
OF_SAMPLE = ("finish_reasons", "is_reasoning_complete", "generation_token_length")  # lists with an entry per sample
VERDICTS = ("correctness_math_verify", "correctness_llama", "correctness", "correct", "is_correct")  # the same
_TEACHER = re.compile(r"(\w+?)_(thinking_trajectory|thinking_trajectories|reasoning|reasoning_content)")
TRAJECTORIES = ("thinking_trajectory", "thinking_trajectories")
_NUMBERED = re.compile(r"(\w+?)_(?:solution|response|generation|attempt|completion)_(\d+)")


@dataclass(frozen=True)
class Understood:
    """A trace, and how it was read from its record."""

    trace: Trace
    format: str
    columns: Mapping[str, str]  # for each field of the trace, where it was read
    ignored: tuple[
        str, ...
    ]  # columns and parts that were not read; columns stay with the trace unless they hold others


@dataclass
class _Row:
    """A record while it is read: what is left of it, and where each field was found."""

    rest: dict[str, Any]
    given: Mapping[str, str] = field(default_factory=dict)  # columns that the user named
    columns: dict[str, str] = field(default_factory=dict)
    ignored: list[str] = field(default_factory=list)

    def take(self, field: str, names: Sequence[str] = ()) -> Any:
        """Remove and return the value of the first of these columns that isn't empty."""
        for name in [self.given[field]] if field in self.given else names or NAMES[field]:
            value = self.rest.get(name)
            if value in (None, "", []) or (field == "thinking" and value in (True, False, "on", "off")):
                continue  # Nemotron's column `reasoning` says only whether there is any
            self.columns[field] = name
            return self.rest.pop(name)
        return None

    def has(self, names: Sequence[str]) -> bool:
        return any(self.rest.get(name) not in (None, "", []) for name in names)

    def drop(self, names: Sequence[str]) -> None:
        """Remove columns that hold other traces, or a copy of this one."""
        gone = [name for name in names if self.rest.pop(name, None) not in (None, "", [])]
        self.ignored += [f"`{name}`" for name in gone]


@dataclass(frozen=True)
class _Sample:
    """One of the replies in a record, and what is known about it alone."""

    reply: Reply
    name: str = ""  # apart from the others of its record
    known: Mapping[str, Any] = field(default_factory=dict)  # fields of the trace
    columns: Mapping[str, str] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)


def understand(record: Any, columns: Mapping[str, str] | None = None) -> list[Understood]:
    """The traces of a record; raises `ValueError` with what was found if it holds none.

    `columns` names the columns of fields that have names of their own: `{"thinking": "cot"}`.
    """
    if not isinstance(record, dict):
        raise ValueError(f"a trace is a JSON object, not {type(record).__name__}")
    row = _Row(dict(record), columns or {})
    if missing := [column for column in row.given.values() if column not in record]:
        raise ValueError(f"it has no column `{missing[0]}`; {_found(record)}")
    named = bool({"thinking", "answer"} & set(row.given))
    try:
        for kind, reader in {"named columns": _columns}.items() if named else FORMATS.items():
            if samples := reader(row):
                return _understood(kind, row, samples)
    except ValueError as error:
        raise ValueError(f"{error}; {_found(record)}") from None
    raise ValueError(f"it has neither thinking nor an answer; {_found(record)}")


def _found(record: Mapping[str, Any]) -> str:
    names = ", ".join(f"`{name!s:.40}`" for name in list(record)[:20])
    return f"its columns are {names}{', …' if len(record) > 20 else ''}" if names else "it is empty"


def _understood(kind: str, row: _Row, samples: Sequence[_Sample]) -> list[Understood]:
    question = _question(row)
    samples = [sample for sample in samples if sample.reply.thinking.strip() or sample.reply.answer.strip()]
    if not samples:
        raise ValueError("it has neither thinking nor an answer")
    if not question.strip():
        raise ValueError("it has no question")
    fields = {name: row.take(name) for name in ("id", "teacher", "topic", "gold", "correct", "tokens")}
    if fields["gold"] is None:
        fields["gold"] = row.take("gold", REFERENCE)
    id_ = "" if fields["id"] is None else str(fields["id"])
    readings = []
    for sample in samples:
        where = {"thinking": sample.reply.thinking_in, "answer": sample.reply.answer_in}
        read = {**row.columns, **{name: place for name, place in where.items() if place}, **sample.columns}
        known = {**fields, **{name: value for name, value in sample.known.items() if value is not None}}
        trace = Trace(
            question,
            sample.reply.thinking,
            sample.reply.answer,
            id=f"{id_}/{sample.name}" if id_ and sample.name else id_,
            teacher=_text(known["teacher"], "teacher"),
            topic=_text(known["topic"], "topic"),
            gold=known["gold"],
            correct=_is(bool, known["correct"], "correct"),
            tokens=_is(int, known["tokens"], "tokens"),
            extra={**row.rest, **sample.extra},
        )
        left = [f"`{name}`" for name in row.rest if name not in sample.extra]
        readings.append(Understood(trace, kind, read, (*row.ignored, *left)))
    return readings


def _question(row: _Row) -> str:
    value = row.take("question")
    if isinstance(value, list) and value and isinstance(value[0], dict):  # TRL's prompt is a list of messages
        return _asked(row, value, row.columns["question"])
    question = _text(value, "question")
    if question and row.columns["question"] == "instruction" and isinstance(row.rest.get("input"), str):
        more = row.rest.pop("input")  # Alpaca's `input` is the rest of the question
        row.columns["question"] += " and input" if more else ""
        question = f"{question}\n\n{more}" if more.strip() else question
    if not question and isinstance(turns := row.rest.get("input"), list | str) and turns:
        row.columns["question"] = "input"
        del row.rest["input"]
        return turns if isinstance(turns, str) else _asked(row, turns, "input")
    if not question and (chat := row.take("question", CHATS)) is not None:
        return _asked(row, chat, row.columns["question"])
    if not question and isinstance(request := row.rest.get("request"), dict):
        body = request.get("body", request)
        if isinstance(body, dict) and "messages" in body:
            del row.rest["request"]
            return _asked(row, body["messages"], "request.messages")
    return question


def _asked(row: _Row, messages: Any, name: str) -> str:
    chat = conversation(messages, name)
    row.columns["question"] = chat.question_in
    row.ignored += chat.left_out
    return chat.question


def _own(row: _Row) -> list[_Sample]:
    """What `ponder score` and `ponder select` write: their other columns are the source's."""
    if "scored_by" not in row.rest:
        return []
    thinking, answer = (_text(row.take(name, (name,)), name) for name in ("thinking", "answer"))
    return [_Sample(Reply(thinking, answer))]


def _samples(row: _Row) -> list[_Sample]:
    """Several replies to one question, in a list."""
    name = next((name for name in SAMPLES if isinstance(row.rest.get(name), list) and row.rest[name]), None)
    if name is None:
        return []
    replies, samples = row.rest.pop(name), list[_Sample]()
    lists = {k: row.rest.pop(k) for k in (*OF_SAMPLE, *VERDICTS) if _is_list(row.rest.get(k), len(replies))}
    row.drop(CHATS)  # OpenR1's holds one of the generations again
    for n, reply in enumerate(replies):
        if reply in (None, "", {}):
            row.ignored.append(f"{name}[{n}], which is empty")
            continue
        own = {k: values[n] for k, values in lists.items()}
        verdicts = {k: own.pop(k) for k in VERDICTS if own.get(k) is not None}
        known: dict[str, Any] = {"correct": any(_is(bool, v, k) for k, v in verdicts.items()) if verdicts else None}
        where = {"correct": " or ".join(verdicts)} if verdicts else {}
        if isinstance(reply, dict):
            known["teacher"] = reply.get("response_model", reply.get("model"))
        samples.append(_Sample(_sampled(reply, f"{name}[{n}]"), str(n), known, where, {**own, **verdicts}))
    return samples


def _is_list(value: Any, length: int) -> bool:
    return isinstance(value, list) and len(value) == length


def _sampled(reply: Any, where: str) -> Reply:
    if isinstance(reply, dict):
        for key in ("message", "response", "text", "output"):
            if isinstance(reply.get(key), dict):
                return message_reply(reply[key], f"{where}.{key}")
            if isinstance(reply.get(key), str) and "content" not in reply:
                thinking = next((reply[name] for name in REASONING if isinstance(reply.get(name), str)), "")
                return split_reply(thinking, reply[key], where, f"{where}.{key}")
        return message_reply(reply, where)
    if isinstance(reply, list):
        return split_reply(*content(reply, where), where, where)
    return split_reply("", _text(reply, where), where, where)


def _teachers(row: _Row) -> list[_Sample]:
    """Several teachers, each with columns of its own: s1K-1.1, and the metadata of OpenThoughts-114k."""
    samples = list[_Sample]()
    for name in list(row.rest):
        match = _TEACHER.fullmatch(name)
        if not match or not isinstance(row.rest[name], str | list) or not row.rest[name]:
            continue
        teacher, kind = match.groups()
        names = ["attempt"] if kind in TRAJECTORIES else ["solution", "response", "answer"]
        answer_in = next((f"{teacher}_{a}" for a in names if row.rest.get(f"{teacher}_{a}")), "")
        if not answer_in and kind not in TRAJECTORIES:
            continue
        grade = row.rest.pop(f"{teacher}_grade", None)
        thinking, answer = _text(row.rest.pop(name), name), _text(row.rest.pop(answer_in, None), answer_in)
        known = {"teacher": teacher, "correct": {"Yes": True, "No": False}.get(str(grade))}
        where = {"teacher": "its columns' names"} | ({"correct": f"{teacher}_grade"} if grade is not None else {})
        reason = row.rest.pop(f"{teacher}_grade_reason", None)
        extra = {"grade": grade, "grade_reason": reason} if grade is not None else {}
        samples.append(_Sample(split_reply(thinking, answer, name, answer_in), teacher, known, where, extra))
    if samples:
        row.drop([*CHATS, "text"])  # made from one of the teachers' columns
    return samples


def _numbered(row: _Row) -> list[_Sample]:
    """Several replies in columns of their own: DeepMath's `r1_solution_1`, `r1_solution_2`, …"""
    samples = list[_Sample]()
    for name in [name for name in row.rest if _NUMBERED.fullmatch(name) and isinstance(row.rest[name], str)]:
        match = _NUMBERED.fullmatch(name)
        assert match
        reply = split_reply("", row.rest.pop(name), name, name)
        samples.append(_Sample(reply, match[2], {"teacher": match[1]}, {"teacher": "its columns' names"}))
    return samples


def _choices(row: _Row) -> list[_Sample]:
    """The choices of a chat completion, or of a text completion."""
    body, within = row.rest, ""
    for key in ("response", "body"):  # a line of a batch's output, or of a log of requests and responses
        if "choices" not in body and isinstance(body.get(key), dict):
            body, within = body[key], f"{within}{key}."
    choices = body.get("choices")
    if not isinstance(choices, list) or not choices or not all(isinstance(choice, dict) for choice in choices):
        return []
    if within:
        del row.rest["response"]
    else:
        del row.rest["choices"]
    known: dict[str, Any] = {"teacher": body.get("model")}
    usage = row.rest.pop("usage", None) if not within else body.get("usage")
    if isinstance(usage, dict) and len(choices) == 1:
        known["tokens"] = usage.get("completion_tokens")
    where = {"tokens": f"{within}usage.completion_tokens"} if known.get("tokens") is not None else {}
    return [
        _Sample(_sampled(choice, f"{within}choices[{n}]"), str(n) if len(choices) > 1 else "", known, where)
        for n, choice in enumerate(choices)
    ]


def _chat(row: _Row) -> list[_Sample]:
    """A conversation that ends with a reply."""
    name = next((name for name in CHATS if row.rest.get(name)), None)
    if name is None:
        return []
    chat = conversation(row.rest[name], name)
    if chat.reply is None:
        if not row.has((*NAMES["thinking"], *NAMES["answer"])):
            raise ValueError(f"`{name}` ends without a reply")
        return []
    del row.rest[name]
    row.ignored += chat.left_out
    if (other := next((n for n in REPLIES if row.rest.get(n)), None)) is not None:
        texts = [" ".join(str(text).split()) for text in (row.rest[other], chat.reply.answer)]
        if not texts[0].endswith(texts[1]):
            raise ValueError(f"`{name}` and `{other}` hold different replies")
    reply = chat.reply
    thinking = _parts_text(row.take("thinking"), "thinking")
    if thinking and reply.thinking.strip() not in ("", thinking.strip()):
        raise ValueError(f"`{name}` and `{row.columns['thinking']}` hold different thinking")
    if thinking:
        reply = replace(reply, thinking=thinking, thinking_in=row.columns["thinking"])
    if not row.has(NAMES["question"]):
        row.rest["question"] = chat.question
        return [_Sample(reply, columns={"question": chat.question_in})]
    return [_Sample(reply)]


def _columns(row: _Row) -> list[_Sample]:
    """One reply, in columns with any of the common names."""
    thinking = _parts_text(row.take("thinking"), "thinking")
    if isinstance(row.rest.get("steps"), list) and not row.has(NAMES["answer"]):
        parts = [_text(step, "a step") for step in row.rest["steps"]]
        return [_Sample(split_reply(thinking, "\n\n".join(parts), row.columns.get("thinking", ""), "steps"))]
    value = row.take("answer", _answers(row, bool(thinking)))
    if isinstance(value, list) and value and isinstance(value[-1], dict) and "role" in value[-1]:  # TRL's completion
        return [_Sample(message_reply(value[-1], f"{row.columns['answer']}[{len(value) - 1}]"))]
    where = (row.columns.pop(name, "") for name in ("thinking", "answer"))
    reply = split_reply(thinking, _parts_text(value, "answer"), *where)
    return [_Sample(reply)] if reply.thinking.strip() or reply.answer.strip() else []


def _answers(row: _Row, thinks: bool) -> Sequence[str]:
    """The columns that may hold the answer, beside the column that holds the thinking."""
    if row.columns.get("thinking") == "thinking_trajectories":
        return ("attempt",)  # s1K's `solution` is the reference
    if row.columns.get("thinking") == "reasoning_content":
        return ("content", *NAMES["answer"])
    if not thinks and row.has(("answer",)) and row.has(("solution",)):
        return tuple(
            name for name in NAMES["answer"] if name != "answer"
        )  # LIMO, NuminaMath: the solution is the trace
    return NAMES["answer"]


def _parts_text(value: Any, name: str) -> str:
    """A text, or content parts as text."""
    if isinstance(value, list) and any(isinstance(part, dict) for part in value):
        return "\n\n".join(text for text in content(value, name) if text)
    return _text(value, name)


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


FORMATS: dict[str, Callable[[_Row], list[_Sample]]] = {
    "Ponder's own names": _own,
    "several samples per row": _samples,
    "a pair of columns per teacher": _teachers,
    "numbered columns": _numbered,
    "choices of a completion": _choices,
    "a conversation": _chat,
    "named columns": _columns,
}
