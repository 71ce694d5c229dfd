"""Reads conversations: OpenAI's messages, ShareGPT's `from` and `value`, content parts, and marked thinking.

Of a conversation, the last question and what the assistant said after it are read; earlier turns are left out. Thinking
is what a message has under `reasoning_content` or a similar name, parts of type `thinking` or `reasoning`, messages of
the channel `analysis`, or text between `<think>` or `<|begin_of_thought|>` tags.
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
    **dict.fromkeys(("tool", "function", "function_call", "function_response", "observation", "ipython"), "tool"),
}
TEXTS = ("text", "input_text", "output_text", "summary_text", "reasoning_text")
SILENT = ("redacted_thinking", "tool_use", "tool_call", "tool_result", "refusal")
OPEN, CLOSE = "<|begin_of_thought|>", "<|end_of_thought|>"
SOLUTION, SOLVED = "<|begin_of_solution|>", "<|end_of_solution|>"


@dataclass(frozen=True)
class Reply:
    """What an assistant said: thinking and answer, and where each stood."""

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
    """Read a list of messages; `name` is the column that holds it. Raises `ValueError` if it can't be read."""
    if not isinstance(messages, list) or not messages or not all(isinstance(m, dict) for m in messages):
        raise ValueError(f"`{name}` must be a list of messages")
    roles = [_role(message) for message in messages]
    if "user" not in roles:
        raise ValueError(f"`{name}` has no message of the user, only of {', '.join(sorted(set(roles)))}")
    last = len(roles) - 1 - roles[::-1].index("user")
    first = last
    while first and roles[first - 1] == "user":
        first -= 1
    question = "\n\n".join(content(_said(messages[n]), f"{name}[{n}]")[1] for n in range(first, last + 1))
    replies = [n for n in range(last + 1, len(roles)) if roles[n] == "assistant"]
    before = [n for n in range(first) if roles[n] != "system"]
    left_out = [f"{name}: {len(before)} earlier messages"] if before else []
    left_out += [f"{name}: the system message"] if "system" in roles else []
    left_out += [f"{name}: messages of tools"] if "tool" in roles[last:] else []
    joined = _joined([message_reply(messages[n], f"{name}[{n}]") for n in replies]) if replies else None
    return Conversation(question, joined, f"{name}[{last}]", tuple(left_out))


def _role(message: dict[str, Any]) -> str:
    role = str(message.get("role", message.get("from")))
    if role not in ROLES:
        raise ValueError(f"a message has the role `{role}`, which is none of {', '.join(ROLES)}")
    return ROLES[role]


def _said(message: dict[str, Any]) -> Any:
    return next((message[key] for key in ("content", "value", "text") if message.get(key) is not None), None)


def message_reply(message: dict[str, Any], where: str) -> Reply:
    """An assistant's message as thinking and answer."""
    thought, text = content(_said(message), where)
    key = next((key for key in REASONING if message.get(key)), None)
    if key:
        thought = "\n\n".join(part for part in (_thoughts(message[key], f"{where}.{key}"), thought) if part)
    if message.get("channel") in ("analysis", "commentary"):
        thought, text = text, ""
    inside = f"{where}.{'value' if 'value' in message else 'content'}"
    return split_reply(thought, text, f"{where}.{key}" if key else inside, inside)


def split_reply(thinking: str, text: str, thinking_in: str, answer_in: str) -> Reply:
    """A reply whose text may hold thinking in tags, besides what is given apart."""
    marked, answer, tags = _split(text)
    if not marked and not tags:
        return Reply(thinking, text, thinking_in if thinking else "", answer_in)
    if thinking and marked.strip() not in ("", thinking.strip()):
        return Reply(f"{thinking}\n\n{marked}", answer, f"{thinking_in} and {answer_in}, in {tags}", answer_in)
    here = f"{answer_in}, in {tags}" if marked and not thinking else thinking_in if thinking else ""
    return Reply(thinking or marked, answer, here, f"{answer_in}, after {tags}" if answer else "")


def _split(text: str) -> tuple[str, str, str]:
    """Thinking and answer of a text, and the tags that divide it; no tags if it has none."""
    if OPEN in text or CLOSE in text:
        before, _, rest = text.rpartition(CLOSE) if CLOSE in text else (text, "", "")
        return before.replace(OPEN, "").strip(), _solution(rest), f"{OPEN}…{CLOSE}"
    if "<think" in text or "</think" in text:
        return *split_thinking(text), "<think>"
    if SOLUTION in text:
        return "", _solution(text), SOLUTION
    return "", text, ""


def _solution(text: str) -> str:
    return text.replace(SOLUTION, "").replace(SOLVED, "").strip()


def content(value: Any, where: str) -> tuple[str, str]:
    """The thinking and the text of a message's content: a string, or a list of parts."""
    if value is None or isinstance(value, str):
        return "", value or ""
    thoughts, texts = list[str](), list[str]()
    for kind, text in _parts(value, where):
        (thoughts if kind == "thinking" else texts).append(text)
    return "\n\n".join(thoughts), "\n\n".join(texts)


def _parts(value: Any, where: str) -> Iterator[tuple[str, str]]:
    for part in value if isinstance(value, list) else [value]:
        kind = part.get("type", "text") if isinstance(part, dict) else "text"
        if isinstance(part, str):
            yield "text", part
        elif not isinstance(part, dict):
            raise ValueError(f"{where}: the content must be a string or a list of parts, not {value!r:.40}")
        elif str(kind).partition(".")[0] in ("thinking", "reasoning", "thought"):  # OpenRouter: `reasoning.text`
            inside = next((part[key] for key in (kind, "text", "content", "summary") if part.get(key)), "")
            yield "thinking", _thoughts(inside, where)
        elif kind in TEXTS and isinstance(part.get("text"), str):
            yield "text", part["text"]
        elif kind not in SILENT:
            raise ValueError(f"{where} has a content part of type `{kind}`, which is not text")


def _thoughts(value: Any, where: str) -> str:
    """Thinking given as a string or as a list of parts."""
    return value if isinstance(value, str) else "\n\n".join(text for _, text in _parts(value, where) if text)


def _joined(replies: list[Reply]) -> Reply:
    """Several messages of the assistant as one reply."""
    if len(replies) == 1:
        return replies[0]
    parts = {name: [getattr(r, name) for r in replies if getattr(r, name)] for name in Reply.__annotations__}
    text = {name: "\n\n".join(parts[name]) for name in ("thinking", "answer")}
    return Reply(**text, thinking_in=" and ".join(parts["thinking_in"]), answer_in=" and ".join(parts["answer_in"]))
