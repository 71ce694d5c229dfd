"""Extracts answers from a model's text and compares them with the right ones. No other file does either.

A task chooses from these functions instead of parsing text itself, so that the same reply is read in the same way
everywhere.
"""

from __future__ import annotations

import importlib.util
import json
import re
from collections import deque
from fractions import Fraction
from functools import lru_cache
from typing import Any

from ponder.core import UserError
from ponder.core.limited import Limited, Stopped, serve

_TAG = re.compile(r"<(/?)think(?:ing)?>")
_BREAKS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"  # where `splitlines` splits
_KEYWORD = re.compile(r"\b(?:answer|result|total|sum)(?:\s+is)?\s*[:=]?\s*", re.IGNORECASE)


def split_thinking(text: str) -> tuple[str, str]:
    """Split a reply with `<think>` tags into thinking and answer.

    The answer is what follows the last closing tag. The opening tag may be missing, because some prompts contain it
    already, and thinking may quote the tags. After an opening tag that is never closed, everything is thinking.
    """
    end, tag = max((text.rfind(tag), tag) for tag in ("</think>", "</thinking>"))
    thinking, rest = (text[:end], text[end + len(tag) :]) if end >= 0 else ("", text)
    if reopened := _TAG.search(rest):
        thinking, rest = thinking + rest[reopened.end() :], rest[: reopened.start()]
    return _TAG.sub("", thinking).strip(), rest.strip()


def last_json_grid(text: str) -> list[Any] | None:
    """The last JSON array of arrays in a text, whatever surrounds it; None if there is none."""
    # At most twenty tries, which together read the text twice, bound the time for 10 MB of nothing but brackets.
    starts = deque((m.start() for m in re.finditer(r"\[\s{0,99}\[", text)), maxlen=20)
    left = 2 * len(text) + 10_000
    while starts and left > 0:
        start = starts.pop()
        try:
            return list(json.JSONDecoder().raw_decode(text, start)[0])
        except (ValueError, RecursionError) as error:
            left -= getattr(error, "pos", len(text)) - start
    return None


def final(text: str) -> str | None:
    """The final answer: in the last `<answer>` tag, else in the last `\\boxed{}`, else the last line with content."""
    if (inside := tagged(text)) is not None:
        return inside
    if (boxed := _last_boxed(text)) is not None:
        return boxed
    text = text.rstrip(_BREAKS + " \t*`#.")
    last = text[max(map(text.rfind, _BREAKS)) + 1 :].strip(" \t*`#.")
    if not last:
        return None
    keyword = _KEYWORD.search(last, 0, 10_000)
    said = last[keyword.end() :] if keyword else last
    return said.strip(" *`$.") or last


def tagged(text: str) -> str | None:
    """The content of the last `<answer>` tag, because a model may correct itself; None if there is none."""
    # Not a regex: from each of many tags that are never closed, it would search to the end.
    inside, end = None, 0
    while (start := text.find("<answer>", end)) >= 0 and (end := text.find("</answer>", start)) >= 0:
        inside = text[start + 8 : end]
    return None if inside is None else inside.strip()


def _last_boxed(text: str) -> str | None:
    start = text.rfind("\\boxed{")
    if start < 0:
        return None
    depth, at = 0, start
    while (end := text.find("}", at)) >= 0:
        depth += text.count("{", at, end) - 1
        if depth == 0:
            return text[start + 7 : end].strip()
        at = end + 1
    return None


def choice(text: str, letters: str) -> str | None:
    """The chosen letter of a multiple choice: in the last `\\boxed{}`, else after the last "Answer:" or "answer is"."""
    if boxed := re.match(rf"(?:\\(?:text|math)\w*+\{{|\W)*+([{letters}])(?![A-Za-z])", _last_boxed(text) or ""):
        return boxed[1]
    chosen = re.findall(rf"(?i:answer)(?i:\s{{1,9}}is)?[\W_]{{0,9}}([{letters}])(?![A-Za-z])", text)
    return str(chosen[-1]) if chosen else None


def number(text: str) -> Fraction | None:
    """A text that is nothing but a number, as an exact fraction: `1,234`, `-0.5`, `3/4`, `\\frac{3}{4}`; else None."""
    if len(plain := text.strip()) > 10_000:  # far more than its digits, below, can take with all separators
        return None
    plain = re.sub(r"\\[,!]|[\u202f_]", "", plain.strip("$").replace("−", "-").replace("{,}", ","))
    plain = re.sub(r"\\[dt]?frac\{(\d+)\}\{(\d+)\}", r"\1/\2", plain)
    if re.fullmatch(r"[+-]?\d{1,3}(,\d{3})+(\.\d+)?", plain):
        plain = plain.replace(",", "")
    # Bounded, because converting a megabyte of digits takes quadratic time.
    if len(plain) > 1000 or not re.fullmatch(r"[+-]?(\d+(\.\d*)?|\.\d+)(/\d+)?", plain):
        return None
    try:
        return Fraction(plain) if "/" not in plain else Fraction(plain.split("/")[0]) / Fraction(plain.split("/")[1])
    except (ValueError, ZeroDivisionError):
        return None


def same(said: str, gold: str) -> bool:
    """Whether two final answers are equal: as numbers if both are, else as text, ignoring case and spacing."""
    left, right = number(said), number(gold)
    if left is not None and right is not None:
        return left == right
    return " ".join(said.split()).casefold() == " ".join(gold.split()).casefold()


TOO_LONG = 1000  # characters; the longest answer in MATH-500 has 53


def differs(said: str, gold: str) -> str:
    """Why two final answers are not mathematically equal; "" if they are."""
    left, right = number(said), number(gold)
    if left is not None and right is not None:  # fast, and exact: math-verify rounds to six decimals
        return "" if left == right else "wrong answer"
    if " ".join(said.split()) == " ".join(gold.split()):
        return ""
    return "wrong answer" if len(said) > TOO_LONG else _differs(said, gold)


@lru_cache(4096)  # a hundred attempts at a problem give only a few different answers
def _differs(said: str, gold: str) -> str:
    need_maths()
    return _mathematician.differs(said, gold)


def need_maths() -> None:
    """Raise `UserError` if math-verify isn't installed."""
    if importlib.util.find_spec("math_verify") is None:
        what = "comparing mathematical answers needs a package that isn't installed: math-verify"
        raise UserError(what, hint="pip install 'ponder[maths]'")


class Mathematician(Limited):
    """Runs math-verify in a subprocess. Its own timeouts use alarms."""

    def __init__(self, cpu_seconds: float = 3.0) -> None:
        super().__init__("ponder.core.answers", cpu_seconds)

    def differs(self, said: str, gold: str) -> str:
        try:
            return "" if self.call(said, gold) else "wrong answer"
        except Stopped as stopped:
            return "took too long" if str(stopped) == "took too long" else "can't be compared"


_mathematician = Mathematician()


def _serve() -> None:
    import logging

    from math_verify import parse, verify

    logging.disable()  # it warns that its own timeouts are off

    def same(said: str, gold: str) -> bool:
        try:
            left, right = (parse(f"\\boxed{{{text}}}", parsing_timeout=None) for text in (gold, said))
            return bool(verify(left, right, timeout_seconds=None))
        except Exception:  # text that math-verify can't handle is not a right answer
            return False

    same("\\frac12", "0.5")  # the first parse is slow, and its time doesn't count
    serve(same)


if __name__ == "__main__":
    _serve()
