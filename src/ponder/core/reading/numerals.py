"""Reads numbers as people and models write them, exactly."""

from __future__ import annotations

import re
from decimal import Decimal
from fractions import Fraction

_THIN = "\u00a0\u2009\u202f"  # spaces between groups of three digits
_MINUS = "−‐‑‒–—﹣－"  # what stands for a minus besides the hyphen
# A number inside a sentence. A minus after a digit or a bracket subtracts.
IN_TEXT = re.compile(
    rf"(?<![\w.])(?<!\d:)(?:(?<![\d)])[+\-{_MINUS}])?(?:\d[\d,.{_THIN}]*\d|\d)(?:/\d+)?(?![\w²³]|:\d)|(?<![\w.])\.\d+|\\[dt]?frac\{{\d+\}}\{{\d+\}}"
)
# Words of languages that write 1.234,5 for 1,234.5. Two of them in a reply settle it.
_COMMA_LANGUAGE = re.compile(
    r"\b(?:ist|und|der|die|das|von|also|también|el|los|las|es|por|una?|para|le|les|des|est|donc|una|il|della|sono|het|een)\b",
    re.IGNORECASE,
)


def number(text: str) -> Fraction | None:
    """A text that is nothing but a number, as an exact fraction: `1,234`, `-0.5`, `3/4`, `\\frac{3}{4}`; else None."""
    if len(plain := text.strip()) > 10_000:  # far more than its digits, below, can take with all separators
        return None
    plain = re.sub(rf"\\[,!]|[{_THIN}_]", "", plain.strip("$").replace("{,}", ","))
    plain = re.sub(rf"^[{_MINUS}]", "-", plain)
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


def signed(text: str) -> str:
    """A text with its signs as a hyphen: "minus 9", `–9`, "is - 9". After a number, a minus subtracts."""
    text = re.sub(r"(?i)(?<![\d)] )\b(?:minus|negative)\s{1,3}(?=[\d$])", "-", text)
    text = re.sub(rf"(?<![\w)])[{_MINUS}](?=\d)", "-", text)
    return re.sub(rf"(^|(?:[=:(]|\bis)\s{{0,9}})[-{_MINUS}]\s{{1,3}}(?=\d)", r"\1-", text)


def decimal(value: Fraction) -> str:
    """1/2 as `0.5`, 1/3 as `1/3`."""
    whole, digits = value, 0
    while whole.denominator != 1 and digits < 30:
        whole, digits = whole * 10, digits + 1
    return f"{Decimal(whole.numerator).scaleb(-digits):f}" if whole.denominator == 1 else str(value)


def english(text: str) -> str:
    """A text with its numbers as in English, if its words are those of a language that writes `1.234,5`."""
    if len(set(map(str.lower, _COMMA_LANGUAGE.findall(text)))) < 2:
        return text
    text = re.sub(r"(?<![\d.,])(\d{1,3}(?:\.\d{3})+)(?![\d.])", lambda found: found[1].replace(".", ""), text)
    return re.sub(r"(?<![\d.,])(\d+),(\d+)(?![\d,])", r"\1.\2", text)
