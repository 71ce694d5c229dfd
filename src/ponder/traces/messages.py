"""Reads conversations: messages of OpenAI and ShareGPT, content parts, and thinking in tags.

The last question of a conversation and the assistant's reply to it are read; earlier turns are left
out. Thinking is what a message has under `reasoning_content` or a similar name, parts of type
`thinking` or `reasoning`, messages of the channel `analysis`, or text between `<think>` or
`<|begin_of_thought|>` tags.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ponder.tasks.reading import split_thinking

REASONING = ("reasoning_content", "reasoning", "thinking", "thought", "reasoning_details")
ROLES = {
    **dict.fromkeys(("user", "human", "prompter"), "user"),
    **dict.fromkeys(("assistant", "gpt", "model", "bot", "chatgpt"), "assistant"),
    **dict.fromkeys(("system", "developer"), "system"),
    **dict.fromkeys(
        ("tool", "function", "function_call", "function_response", "observation", "ipython"), "tool"
    ),
}
TEXTS = ("text", "input_text", "output_text", "summary_text", "reasoning_text")
SILENT = ("redacted_thinking", "tool_use", "tool_call", "tool_result", "refusal")
OPEN = "<|begin_of_thought|>"
CLOSE = "<|end_of_thought|>"
SOLUTION = "<|begin_of_solution|>"
SOLVED = "<|end_of_solution|>"


@dataclass(frozen=True)
class Reply:
    """An assistant's thinking and answer, and where each was read."""

    thinking: str
    answer: str
    thinking_in: str = ""
    answer_in: str = ""


@dataclass(frozen=True)
class Conversation:
    """The last question of a conversation and the reply to it, if there is one."""

    question: str
    reply: Reply | None
    question_in: str
    left_out: tuple[str, ...] = ()  # what else the conversation holds


def conversation(messages: Any, name: str) -> Conversation:
    """Read a list of messages; raise `ValueError` if it can't be read.

    `name` is the column that holds the list.
    """
    if (
        not isinstance(messages, list)
        or not messages
        or not all(isinstance(m, dict) for m in messages)
    ):
        raise ValueError(f"`{name}` must be a list of messages")
    roles = [_role(message) for message in messages]
    if "user" not in roles:
        present = ", ".join(sorted(set(roles)))
        raise ValueError(f"`{name}` has no message of the user, only of {present}")
    last = len(roles) - 1 - roles[::-1].index("user")
    first = last
    while first and roles[first - 1] == "user":
        first -= 1

    questions = []
    for n in range(first, last + 1):
        _, text = content(_content(messages[n]), f"{name}[{n}]")
        questions.append(text)

    left_out = []
    earlier = [role for role in roles[:first] if role != "system"]
    if earlier:
        left_out.append(f"{name}: {len(earlier)} earlier messages")
    if "system" in roles:
        left_out.append(f"{name}: the system message")
    if "tool" in roles[last:]:
        left_out.append(f"{name}: messages of tools")

    replies = [n for n in range(last + 1, len(roles)) if roles[n] == "assistant"]
    reply = _joined([message_reply(messages[n], f"{name}[{n}]") for n in replies])
    return Conversation("\n\n".join(questions), reply, f"{name}[{last}]", tuple(left_out))


def _role(message: dict[str, Any]) -> str:
    role = str(message.get("role", message.get("from")))
    if role not in ROLES:
        raise ValueError(f"a message has the role `{role}`, which is none of {', '.join(ROLES)}")
    return ROLES[role]


def _content(message: dict[str, Any]) -> Any:
    for key in ("content", "value", "text"):
        if message.get(key) is not None:
            return message[key]
    return None


def _joined(replies: list[Reply]) -> Reply | None:
    """Return an assistant's messages as one reply; None if there are none."""
    if not replies:
        return None
    if len(replies) == 1:
        return replies[0]
    return Reply(
        thinking=_join("\n\n", [reply.thinking for reply in replies]),
        answer=_join("\n\n", [reply.answer for reply in replies]),
        thinking_in=_join(" and ", [reply.thinking_in for reply in replies]),
        answer_in=_join(" and ", [reply.answer_in for reply in replies]),
    )


def _join(separator: str, texts: list[str]) -> str:
    """Join the texts that aren't empty."""
    return separator.join(filter(None, texts))


def message_reply(message: dict[str, Any], where: str) -> Reply:
    """Return an assistant's message as thinking and answer."""
    thinking, text = content(_content(message), where)
    answer_in = f"{where}.content"
    if "value" in message:
        answer_in = f"{where}.value"
    thinking_in = answer_in
    reasoning_keys = [key for key in REASONING if message.get(key)]
    if reasoning_keys:
        key = reasoning_keys[0]
        thinking_in = f"{where}.{key}"
        thoughts = [_thoughts(message[key], thinking_in), thinking]
        thinking = "\n\n".join(thought for thought in thoughts if thought)
    if message.get("channel") in ("analysis", "commentary"):
        thinking = text
        text = ""
    return split_reply(thinking, text, thinking_in, answer_in)


def split_reply(thinking: str, text: str, thinking_in: str, answer_in: str) -> Reply:
    """Return a reply whose text may hold further thinking, in tags."""
    tagged, answer, tags = _split(text)
    if not thinking:
        thinking_in = ""
    if not tagged and not tags:
        return Reply(thinking, text, thinking_in, answer_in)
    tagged_in = f"{answer_in}, in {tags}"
    if thinking and tagged.strip() not in ("", thinking.strip()):
        return Reply(f"{thinking}\n\n{tagged}", answer, f"{thinking_in} and {tagged_in}", answer_in)
    if tagged and not thinking:
        thinking_in = tagged_in
    answer_place = ""
    if answer:
        answer_place = f"{answer_in}, after {tags}"
    return Reply(thinking or tagged, answer, thinking_in, answer_place)


def _split(text: str) -> tuple[str, str, str]:
    """Return thinking and answer of a text, and the tags that divide it; "" if it has none."""
    if CLOSE in text:
        thinking, _, answer = text.rpartition(CLOSE)
        return thinking.replace(OPEN, "").strip(), _solution(answer), f"{OPEN}…{CLOSE}"
    if OPEN in text:
        return text.replace(OPEN, "").strip(), "", f"{OPEN}…{CLOSE}"
    if "<think" in text or "</think" in text:
        thinking, answer = split_thinking(text)
        return thinking, answer, "<think>"
    if SOLUTION in text:
        return "", _solution(text), SOLUTION
    return "", text, ""


def _solution(text: str) -> str:
    return text.replace(SOLUTION, "").replace(SOLVED, "").strip()


def content(value: Any, where: str) -> tuple[str, str]:
    """Return the thinking and the text of a message's content: a string, or a list of parts."""
    if value is None:
        return "", ""
    if isinstance(value, str):
        return "", value
    thoughts = list[str]()
    texts = list[str]()
    for kind, text in _content_parts(value, where):
        if kind == "thinking":
            thoughts.append(text)
        else:
            texts.append(text)
    return "\n\n".join(thoughts), "\n\n".join(texts)


def _content_parts(value: Any, where: str) -> Iterator[tuple[str, str]]:
    """Yield each content part as its kind, "thinking" or "text", and its text."""
    content_parts = value if isinstance(value, list) else [value]
    for entry in content_parts:
        if isinstance(entry, str):
            yield "text", entry
            continue
        if not isinstance(entry, dict):
            raise ValueError(
                f"{where}: the content must be a string or a list of parts, not {value!r:.40}"
            )
        kind = entry.get("type", "text")
        general_kind = str(kind).partition(".")[0]  # OpenRouter: `reasoning.text`
        if general_kind in ("thinking", "reasoning", "thought"):
            values = [entry[key] for key in (kind, "text", "content", "summary") if entry.get(key)]
            yield "thinking", _thoughts(values[0], where) if values else ""
        elif kind in TEXTS and isinstance(entry.get("text"), str):
            yield "text", entry["text"]
        elif kind not in SILENT:
            raise ValueError(f"{where} has a content part of type `{kind}`, which is not text")


def _thoughts(value: Any, where: str) -> str:
    """Return thinking that is a string or a list of parts."""
    if isinstance(value, str):
        return value
    return "\n\n".join(text for _, text in _content_parts(value, where) if text)
