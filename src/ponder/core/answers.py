"""Extracts answers from a model's text and compares them with the right ones. No other file does either.

A task chooses from these functions instead of parsing text itself, so that the same reply is read in the same way
everywhere.
"""

from __future__ import annotations

import importlib.util
import json
import re
from collections import deque
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from typing import Any

from ponder.core import UserError
from ponder.core.limited import Limited, Stopped, serve

_TAG = re.compile(r"<(/?)think(?:ing)?>")
_ANSWER_TAG = re.compile(r"<\s{0,3}(/?)\s{0,3}(?:final[_ ])?answer\s{0,3}>", re.IGNORECASE)
_PARAGRAPH = re.compile(r"\n[ \t]*\n")
# What a model leaves in a tag that it only quotes: "between <answer> and </answer>", "<answer>...</answer>".
_QUOTED = re.compile(r"[\s.…*_`$]*(?:and)?[\s.…*_`$]*", re.IGNORECASE)
_TAIL = 10_000  # characters at the end of a reply in which an answer without a tag or box is searched
_MARKUP = re.compile(
    r"\*\*|__|`+\w*\n|`+|\$+|\\[()\[\],;!]|\\(?:text|mathrm|mathbf)(?=\{)|\\q?quad|(?m:^[ \t]*(?:#+|>|[*•-])[ \t])"
)
_LEADS = r"(?:\s{1,9}(?:to|of|for)\b[^\n.:=?!]{1,60}?)?\s{0,9}(?:\b(?:is|equals)\b(?:\s{0,9}[:=])?|[:=])\s{0,9}"
_ANSWER_IS = re.compile(rf"\banswer{_LEADS}", re.IGNORECASE)
_NAMED = re.compile(rf"\b(?:answer|result|sum|total)\b(?:\s(?:so far|now|here))?{_LEADS}", re.IGNORECASE)
_SENTENCE = re.compile(r"(?<=[.!?])\s+|[\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029]+")
_NUMBER = re.compile(r"(?<![\w.])(?:(?<![\d)])[+\-−])?\d[\d,]*(?:\.\d+)?(?:/\d+)?|(?<![\w.])\.\d+")
_DETACHED = re.compile(r"((?:[=:(]|\bis)\s{0,9})([-−])\s{1,3}(?=\d)")
_ASIDE = re.compile(r"\([^()\d]{0,60}\)$")  # "9 (nine)"
# Words before a number that ends a sentence, which make it the sentence's result.
_RESULT = re.compile(
    r"(?:[=:≈→]|->|\b(?:is|are|be|equals?|gives?(?: us| you)?|gets?|got|becomes?|makes?|have|to|now|of))\s*$",
    re.IGNORECASE,
)
# A row of a grid: one to four digits per cell, brackets and separators around them.
_ROW = re.compile(r"[\s|\[(*`-]{0,9}((?:\d{1,4}[\s,;|]{1,9}){1,400}\d{1,4})[\s|\])*`,]{0,9}")
_HEDGED = re.compile(
    r"\b(?:or|not|either|is between|about|approximately|roughly|around|maybe|perhaps|if|than|least|most)\b|n't\b|n’t\b|\?",
    re.IGNORECASE,
)


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


def last_grid(text: str) -> list[Any] | None:
    """The last grid in a text, whatever surrounds it; None if there is none.

    A grid is a JSON array of arrays, or two or more lines that are rows of whole numbers: `[0, 1]`, `0 1`, `| 0 | 1 |`.
    """
    grid, end = _last_json_grid(text)
    block: list[list[int]] = []
    for line in reversed(text[max(end, len(text) - _TAIL) :].splitlines()):
        if row := _ROW.fullmatch(line):
            block.insert(0, [int(cell) for cell in re.findall(r"\d+", row[1])])
        elif len(block) > 1:
            break
        elif line.strip(" \t`|-+"):
            block = []
    return block if len(block) > 1 and len(set(map(len, block))) == 1 else grid


def _last_json_grid(text: str) -> tuple[list[Any] | None, int]:
    """The last JSON array of arrays in a text, and where it ends."""
    # At most twenty tries, which together read the text twice, bound the time for 10 MB of nothing but brackets.
    starts = deque((m.start() for m in re.finditer(r"\[\s{0,99}\[", text)), maxlen=20)
    left = 2 * len(text) + 10_000
    while starts and left > 0:
        start = starts.pop()
        try:
            grid, end = json.JSONDecoder().raw_decode(text, start)
            return list(grid), end
        except (ValueError, RecursionError) as error:
            left -= getattr(error, "pos", len(text)) - start
    return None, 0


def final(text: str) -> str | None:
    """The final answer: in the last `<answer>` tag or `\\boxed{}` with content, after "answer is", or the last line."""
    if (inside := tagged(text)) is not None:
        return inside
    if (inside := boxed(text)) is not None:
        return inside
    tail = _plain_tail(text)
    said = [tail[match.end() :].lstrip() for match in _ANSWER_IS.finditer(tail)]
    lines = [line for line in ([said[-1]] if said else [tail])[0].splitlines() if undecorated(line)]
    if not lines:
        return None
    if said:
        return undecorated(lines[0])
    named = list(_NAMED.finditer(lines[-1]))
    return undecorated(lines[-1][named[-1].end() :] if named else lines[-1]) or undecorated(lines[-1])


def readings(text: str, like: str) -> list[str]:
    """Every way to read the final answer: without marks, as it stands, and the end of "The capital is Paris".

    If the right answer (`like`) is a number, the first reading is the number, and without a number
    there is no reading.
    """
    said = final(text)
    if said is None:
        return []
    plain = undecorated(said)
    if number(like) is not None:
        value = final_number(text)
        return [] if value is None else [*dict.fromkeys([_decimal(value), plain, said])]
    return [*dict.fromkeys([plain or said, said, undecorated(re.split(r"\bis\b|:", plain)[-1]) or said])]


def _decimal(value: Fraction) -> str:
    """`1/2` as 0.5, `1/3` as it is."""
    whole, digits = value, 0
    while whole.denominator != 1 and digits < 30:
        whole, digits = whole * 10, digits + 1
    return f"{Decimal(whole.numerator).scaleb(-digits):f}" if whole.denominator == 1 else str(value)


def final_number(text: str) -> Fraction | None:
    """The number that is the final answer, as a person would read it; None if there is none.

    It is looked for in the same places as `final`. `44 + 24 = 68` and "The sum is 68." say 68; "68 or 69" says nothing.
    """
    for inside in (tagged(text), boxed(text)):
        if inside is not None:
            return _number_in(inside)
    tail = _plain_tail(text)
    if said := [_SENTENCE.split(tail[match.end() :], maxsplit=1)[0] for match in _ANSWER_IS.finditer(tail)]:
        return _number_in(said[-1])
    # Closing words may follow the result, but not many, and no doubt.
    for sentence in reversed(
        [sentence for sentence in _SENTENCE.split(tail) if sentence and not sentence.isspace()][-3:]
    ):
        value = _number_in(sentence, alone=False)
        if value is not None or (_HEDGED.search(sentence) and any(map(str.isdigit, sentence))):
            return value
    return None


def _number_in(text: str, *, alone: bool = True) -> Fraction | None:
    """The number that a short text states; if it is `alone` in the text, no word has to say that it is the result."""
    plain = undecorated(_ASIDE.sub("", undecorated(_MARKUP.sub(" ", text[:_TAIL]))))
    if (whole := number(plain)) is not None:
        return whole
    if (whole := number(undecorated(plain[plain.rfind("=") + 1 :]))) is not None:
        return whole
    if len(text) > _TAIL or _HEDGED.search(plain):
        return None
    plain = _DETACHED.sub(r"\1\2", plain)
    numbers = list(_NUMBER.finditer(plain[plain.rfind("=") + 1 :]))
    if len(numbers) == 1 and (alone or "=" in plain):
        return number(numbers[0][0].rstrip(","))
    last = numbers[-1] if numbers else None
    return number(last[0]) if last and last.end() == len(plain) and _RESULT.search(plain[: last.start()]) else None


def undecorated(text: str) -> str:
    """A text without the marks around it: `**9**`, `$9$`, `\\(9\\)`, `\\boxed{9}`, `"9"`, `9.`"""
    before = None
    while text != before and len(text) <= _TAIL:
        before, text = text, text.strip().strip('*_`$"“”').removesuffix(".").strip()
        for opening, closing in (
            ("\\(", "\\)"),
            ("\\[", "\\]"),
            ("\\boxed{", "}"),
            ("\\text{", "}"),
            ("\\mathrm{", "}"),
        ):
            if text.startswith(opening) and text.endswith(closing) and "{" not in (text[len(opening) :]):
                text = text[len(opening) : -len(closing)]
    return text.strip()


def _plain_tail(text: str) -> str:
    """The end of a text, without Markdown and LaTeX marks."""
    return _MARKUP.sub("", _ANSWER_TAG.sub("", text.rstrip()[-_TAIL:]))


def tagged(text: str) -> str | None:
    """The content of the last `<answer>` tag that has any, because a model may correct itself; None if there is none.

    A tag that is never closed ends at the next one, or with its paragraph.
    """
    # Not one regex for a pair of tags: from each of many tags that are never closed, it would search to the end.
    inside, opened = None, -1
    for tag in _ANSWER_TAG.finditer(text):
        if opened >= 0 and not _QUOTED.fullmatch(content := text[opened : tag.start()].strip()):
            inside = content
        opened = -1 if tag[1] else tag.end()
    if opened >= 0:
        rest = text[opened:].strip()
        end = _PARAGRAPH.search(rest)
        content = rest[: end.start()] if end else rest
        inside = inside if _QUOTED.fullmatch(content) else content
    return inside


def boxed(text: str) -> str | None:
    """The content of the last `\\boxed{}` that has any; None if there is none."""
    end = len(text)
    for _ in range(20):  # bounds the time for 10 MB of nothing but empty boxes
        start = text.rfind("\\boxed{", 0, end)
        if start < 0:
            return None
        if inside := _braced(text, start):
            return inside
        end = start
    return None


def _braced(text: str, start: int) -> str | None:
    """What stands between the braces of a command that starts here."""
    depth, at = 0, start
    while (end := text.find("}", at)) >= 0:
        depth += text.count("{", at, end) - 1
        if depth == 0:
            return text[text.index("{", start) + 1 : end].strip()
        at = end + 1
    return None


def choice(text: str, letters: str) -> str | None:
    """The chosen letter of a multiple choice; None if there is none.

    It stands in the last `<answer>` tag or `\\boxed{}`, else after the last "Answer:", "answer is" or "option is", else
    at the start of the first or the last line: `B`, `(B)`, `**B)** helium`.
    """
    alone = rf"(?:\\(?:text|math)\w*+\{{|\W)*+([{letters}])(?![A-Za-z'’])"
    for inside in (tagged(text), boxed(text)):
        if chosen := re.match(alone, inside or ""):
            return chosen[1]
    chosen_last = re.findall(
        rf"(?i:answer|option|choice)(?i:\s{{1,9}}is)?[\W_]{{0,9}}([{letters}])(?![A-Za-z'’])", text
    )
    if chosen_last:
        return str(chosen_last[-1])
    lines = text.strip().splitlines()
    for line in (lines[-1], lines[0]) if lines else ():
        if chosen := re.match(rf"[\W_]*+([{letters}])(?:[\W_]*+$|[.:]\s|[)\]*])", line[:1000]):
            return chosen[1]
    return None


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
