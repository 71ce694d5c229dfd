"""Reading answers out of a model's text: the only place that extracts or compares one.

A prompt and the way to read its reply belong together, so a task chooses from these few and adds none of its own.
"""

from __future__ import annotations

import json
import re
from fractions import Fraction
from typing import Any

_TAG = re.compile(r"<(/?)think(?:ing)?>")
_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


def split_thinking(text: str) -> tuple[str, str]:
    """Thinking and answer of a reply that carries its thinking in `<think>` tags.

    The answer is what follows the last closing tag: prompts that open the tag themselves leave a reply with none to
    open it, and thinking may quote the tags. An opening tag that is never closed means that thinking never ended.
    """
    tags = list(_TAG.finditer(text))
    last = next((t for t in reversed(tags) if t[1]), None)
    thinking, rest = (text[: last.start()], text[last.end() :]) if last else ("", text)
    if reopened := _TAG.search(rest):
        thinking, rest = thinking + rest[reopened.end() :], rest[: reopened.start()]
    return _TAG.sub("", thinking).strip(), rest.strip()


def last_json_grid(text: str) -> list[Any] | None:
    """The last JSON array of arrays in the text, whatever stands around it."""
    # Twenty tries bound the cost of a 10 MB reply that is nothing but brackets.
    for start in [m.start() for m in re.finditer(r"\[\s{0,99}\[", text)][:-21:-1]:
        try:
            grid, _ = json.JSONDecoder().raw_decode(text, start)
        except (ValueError, RecursionError):
            continue
        return list(grid)
    return None


def final(text: str) -> str | None:
    """The final answer: the last `<answer>` tag or `\\boxed{}`, else the last line that says something."""
    if (inside := tagged(text)) is not None:
        return inside
    if (boxed := _last_boxed(text)) is not None:
        return boxed
    lines = [line.strip(" \t*`#.") for line in text.splitlines()]
    last = next((line for line in reversed(lines) if line), None)
    if last is None:
        return None
    return (
        re.sub(r"^.*?\b(?:answer|result|total|sum)(?:\s+is)?\s*[:=]?\s*", "", last, flags=re.IGNORECASE).strip(" *`$.")
        or last
    )


def tagged(text: str) -> str | None:
    """What the last `<answer>` tag holds: a model that corrects itself means its last word."""
    found = _ANSWER.findall(text)
    return str(found[-1]).strip() if found else None


def _last_boxed(text: str) -> str | None:
    start = text.rfind("\\boxed{")
    if start < 0:
        return None
    depth = 0
    for at in range(start + 6, len(text)):
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        if depth == 0:
            return text[start + 7 : at].strip()
    return None


def number(text: str) -> Fraction | None:
    """A whole text as one exact number: `1,234`, `-0.5`, `3/4`; None for anything else."""
    plain = text.strip().strip("$").replace("−", "-").replace("\u202f", "").replace("_", "")
    if re.fullmatch(r"[+-]?\d{1,3}(,\d{3})+(\.\d+)?", plain):
        plain = plain.replace(",", "")
    # The bound on length keeps a megabyte of digits from costing a quadratic conversion.
    if len(plain) > 1000 or not re.fullmatch(r"[+-]?(\d+(\.\d*)?|\.\d+)(/\d+)?", plain):
        return None
    try:
        return Fraction(plain) if "/" not in plain else Fraction(plain.split("/")[0]) / Fraction(plain.split("/")[1])
    except (ValueError, ZeroDivisionError):
        return None


def same(said: str, gold: str) -> bool:
    """Whether two final answers mean the same: as numbers if both are, else as text without case and spacing."""
    left, right = number(said), number(gold)
    if left is not None and right is not None:
        return left == right
    return " ".join(said.split()).casefold() == " ".join(gold.split()).casefold()
