"""Finds what a reply marks: its thinking by `<think>` tags, its answer by `<answer>` tags or `\\boxed{}`."""

from __future__ import annotations

import re

_THINK_TAG = re.compile(r"<(/?)think(?:ing)?>")
ANSWER_TAG = re.compile(r"(?:<|&lt;)\s{0,3}(/?)\s{0,3}(?:final[_ ])?answer\s{0,3}(?:>|&gt;)", re.IGNORECASE)
_PARAGRAPH = re.compile(r"\n[ \t]*\n")
# What a model leaves in a tag that it only quotes: "between <answer> and </answer>", "<answer>...</answer>".
_QUOTED = re.compile(r"[\s.…*_`$]*(?:and|\\[lc]?dots)?[\s.…*_`$]*", re.IGNORECASE)
_SEVERAL = re.compile(r"\\boxed\{([^{}]{1,100})\}[\s$]{0,5}(,|\bor\b|\band\b|\\text\{ ?(?:or|and) ?\})[\s$]{0,5}$")
EMPTY = re.compile(rf"{ANSWER_TAG.pattern}|\\boxed\{{[\s.…]{{0,9}}(?:\\[lc]?dots)?\s{{0,9}}(?:\}}|$)", re.IGNORECASE)


def split_thinking(text: str) -> tuple[str, str]:
    """Split a reply with `<think>` tags into thinking and answer.

    The answer is what follows the last closing tag. The opening tag may be missing, because some prompts contain it
    already, and thinking may quote the tags. After an opening tag that is never closed, everything is thinking.
    """
    end, tag = max((text.rfind(tag), tag) for tag in ("</think>", "</thinking>"))
    thinking, rest = (text[:end], text[end + len(tag) :]) if end >= 0 else ("", text)
    if reopened := _THINK_TAG.search(rest):
        thinking, rest = thinking + rest[reopened.end() :], rest[: reopened.start()]
    return _THINK_TAG.sub("", thinking).strip(), rest.strip()


def marked(text: str) -> tuple[str, str] | None:
    """The content of the last tag or box, and what follows it."""
    for find in (_tag, _box):
        if (found := find(text)) is not None:
            return found
    return None


def _tag(text: str) -> tuple[str, str] | None:
    """The content of the last `<answer>` tag that has any, because a model may correct itself, and what follows it.

    A tag that is never closed ends at the next one, or with its paragraph.
    """
    # Not one regex for a pair of tags: from each of many tags that are never closed, it would search to the end.
    found, opened, tag = None, -1, None
    for tag in ANSWER_TAG.finditer(text):
        if opened >= 0 and not _QUOTED.fullmatch(content := text[opened : tag.start()].strip()):
            found = content, tag.end()
        opened = tag.end() if not tag[1] or opened < 0 else -1  # `</answer>9</answer>` opens with a closing tag
    if tag and not tag[1]:
        rest = text[opened:]
        start = len(rest) - len(rest.lstrip())
        end = _PARAGRAPH.search(rest, start)
        content = (rest[: end.start()] if end else rest).strip()
        if not _QUOTED.fullmatch(content):
            found = content, opened + (end.start() if end else len(rest))
    return (found[0], text[found[1] :]) if found else None


def _box(text: str) -> tuple[str, str] | None:
    """The content of the last `\\boxed{}`, and what follows it."""
    end = len(text)
    for _ in range(20):  # bounds the time for 10 MB of nothing but empty boxes
        start = text.rfind("\\boxed{", 0, end)
        if start < 0:
            return None
        close = _closing(text, start)
        if close >= 0 and not _QUOTED.fullmatch(inside := text[start + 7 : close].strip()):
            if several := _SEVERAL.search(text, max(0, start - 200), start):
                inside = f"{several[1].strip()}{several[2]}{inside}"
            return inside, text[close + 1 :]
        end = start
    return None


def _closing(text: str, start: int) -> int:
    """Where the braces of a command that starts here are closed; -1 if nowhere."""
    depth, at = 0, start
    while (end := text.find("}", at)) >= 0:
        depth += text.count("{", at, end) - 1
        if depth == 0:
            return end
        at = end + 1
    return -1
