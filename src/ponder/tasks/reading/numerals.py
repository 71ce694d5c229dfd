"""Reads numbers as people and models write them, exactly."""

from __future__ import annotations

import re
from decimal import Decimal
from fractions import Fraction
from typing import NamedTuple

_THIN = "\u00a0\u2009\u202f"  # spaces between groups of three digits
_MINUS = "−‐‑‒–—﹣－"  # what stands for a minus besides the hyphen
# Units that may stand at a number without a space: `5km`, `20s`.
_ATTACHED = r"(?:km|cm|mm|kg|mg|ms|min|hrs?|mph|gb|mb|kb|tb|ml|kwh?|[mgslhckw])\b|°"
# A number inside a sentence. A minus after a digit or a bracket subtracts.
IN_TEXT = re.compile(
    rf"(?<![\w.])(?<!\d:)(?:(?<![\d)])[+\-{_MINUS}]\$?)?(?:\d[\d,.{_THIN}]*\d|\d)(?:\s\d+/\d+(?![\w/])|/\d+)?"
    rf"(?:(?={_ATTACHED})|(?![\w²³]|:\d))|(?<![\w.])[-{_MINUS}]?\.\d+|-?\\[dt]?frac\{{\d+\}}\{{\d+\}}",
    re.IGNORECASE,
)
# Words of languages that write 1.234,5 for 1,234.5. Two of them in a reply settle it.
_COMMA_LANGUAGE = re.compile(
    r"\b(?:ist|und|der|die|das|von|also|también|el|los|las|es|por|una?|para|le|les|des|est|donc|una|il|della|sono|het|een)\b",
    re.IGNORECASE,
)
_MULTIPLES = {
    "dozen": 12, "hundred": 100, "thousand": 1000, "million": 10**6, "billion": 10**9, "trillion": 10**12,
}  # fmt: skip
_MULTIPLIED = re.compile(rf"\s?(?:-\s?)?({'|'.join(_MULTIPLES)})s?\b", re.IGNORECASE)
_POWER_OF_TEN = re.compile(
    r"\s{0,3}(?:×|x|\*|·|\\times|\\cdot)\s{0,3}10(?:\^\{?|\*\*)\s?([-−]?\d{1,3})\}?"
)
_SMALL = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
)  # fmt: skip
_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_UNITS = {term: n for n, term in enumerate(_SMALL)} | {
    term: 10 * n for n, term in enumerate(_TENS, 2)
}
_PARTS = {
    "half": 2,
    "halves": 2,
    "third": 3,
    "quarter": 4,
    "fourth": 4,
    "fifth": 5,
    "sixth": 6,
    "seventh": 7,
}
_PARTS |= {"eighth": 8, "ninth": 9, "tenth": 10, "twelfth": 12, "hundredth": 100}
_COUNTED = {"once": 1, "twice": 2, "thrice": 3}
_NUMBER_WORDS = "|".join(sorted((*_UNITS, *_MULTIPLES), key=len, reverse=True))
_PART_WORDS = "|".join(sorted(_PARTS, key=len, reverse=True))
_IN_WORDS = re.compile(
    rf"\b(?:(?:(?:minus|negative)\s)?(?:a\s(?=hundred|thousand|million|billion|dozen))?(?:{_NUMBER_WORDS})"
    rf"(?:(?:\s|-|(?<=hundred)\sand\s|(?<=thousand)\sand\s)(?:{_NUMBER_WORDS})\b){{0,12}}"
    rf"(?:(?:\s|-|\sand\sa\s)(?:{_PART_WORDS})s?)?|a\s(?:{_PART_WORDS})|half|once|twice|thrice)\b",
    re.IGNORECASE,
)
# "the two numbers", "all three", "one of them": words that count what is spoken of, and pronouns.
_SPOKEN_OF = re.compile(
    r"\b(?:the|these|those|all|other|which|last|first|next|every|between|into|no|this|that)\s$",
    re.IGNORECASE,
)
_FRACTION_SIGNS = str.maketrans(
    {"½": "1/2", "¼": "1/4", "¾": "3/4", "⅓": "1/3", "⅔": "2/3", "⅛": "1/8", "⁄": "/"}
)


_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")
_SUPERSCRIPT = re.compile(r"\b10([⁻⁰¹²³⁴⁵⁶⁷⁸⁹]{1,4})")  # "6.022 × 10²³"
_E_NOTATION = re.compile(r"\b(\d{1,30}(?:\.\d{1,30})?)[eE]\+?(-?\d{1,3})\b")  # `6.022e23`


class Numeral(NamedTuple):
    """A number in a text."""

    value: Fraction
    start: int
    end: int
    written: str
    in_words: bool = False

    @property
    def form(self) -> tuple[Fraction, str]:
        """Return what tells it from others: `3/4`, `6/8` and `0.75` are equal, but different
        answers at times.
        """
        fraction = re.search(r"(\d+)/(\d+)|frac\{(\d+)\}\{(\d+)\}", self.written)
        return self.value, "/".join(filter(None, fraction.groups())) if fraction else ""

    def percent(self, text: str) -> bool:
        """Return whether the text writes it as a percentage."""
        return bool(
            re.match(r"\s?(?:\\?%|per\s?cent\b)", text[self.end : self.end + 9], re.IGNORECASE)
        )


def numerals(text: str) -> list[Numeral]:
    """Return the numbers in a text, in order; those in words come from "two" on, as "one" is a
    pronoun too.
    """
    quantities = []
    end_of_last = -1
    for match in IN_TEXT.finditer(text):
        if match.start() < end_of_last:
            continue
        value = number(match[0].rstrip(",."))
        if value is None:
            quantities += _listed(match)
            continue
        end = match.start() + len(match[0].rstrip(",."))
        power = _POWER_OF_TEN.match(text, end)
        multiple = _MULTIPLIED.match(text, end)
        if power:
            value *= Fraction(10) ** int(power[1].replace("−", "-"))
            end = power.end()
        elif multiple:
            value *= _MULTIPLES[multiple[1].lower()]
            end = multiple.end()
        end_of_last = end
        quantities.append(Numeral(value, match.start(), end, text[match.start() : end]))
    for match in _IN_WORDS.finditer(text):
        inside = any(numeral.start <= match.start() < numeral.end for numeral in quantities)
        value = (
            None if inside or _SPOKEN_OF.search(text[: match.start()][-9:]) else in_words(match[0])
        )
        if value is not None and match[0].lower() != "one":
            quantities.append(Numeral(value, match.start(), match.end(), match[0], in_words=True))
    return sorted(quantities, key=lambda numeral: numeral.start)


def _listed(match: re.Match[str]) -> list[Numeral]:
    """Return the numbers of a list that is written without spaces: `3,7,9`."""
    items = list(re.finditer(r"[^,]+", match[0]))
    values = [number(item[0]) for item in items]
    start = match.start()
    return [
        Numeral(value, start + item.start(), start + item.end(), item[0])
        for item, value in zip(items, values, strict=True)
        if value is not None and len(items) > 1
    ]


def in_words(text: str) -> Fraction | None:
    """Return the number that a text names in words, such as "a hundred and five" or "three
    quarters"; else None.
    """
    if not _IN_WORDS.fullmatch(text.strip()):
        return None
    words = re.findall(r"[a-z]+", text.lower())
    negative = words[0] in ("minus", "negative")
    total = group = segment = Fraction(0)
    for before, term in zip(["", *words], words, strict=False):
        if term in _UNITS or term in _COUNTED:
            group += _UNITS.get(term) or _COUNTED.get(term, 0)
        elif term in ("hundred", "dozen"):
            group = max(group, Fraction(1)) * _MULTIPLES[term]
        elif term in _MULTIPLES:
            total += max(group, Fraction(1)) * _MULTIPLES[term]
            group = Fraction(0)
        elif _part(term) and before == "a" and group:  # "two and a half"
            segment = Fraction(1, _part(term))
        elif _part(term):
            group = max(group, Fraction(1)) / _part(term)
    value = total + group + segment
    return -value if negative else value


def denominator_in_words(text: str) -> int:
    """Return 4 for "three quarters"; 0 if a text is no fraction in words."""
    words = re.findall(r"[a-z]+", text.lower())
    return _part(words[-1]) if words else 0


def _part(term: str) -> int:
    return _PARTS.get(term) or _PARTS.get(term.removesuffix("s"), 0)


def number(text: str) -> Fraction | None:
    """Return a text that is nothing but a number as an exact fraction: `1,234`, `-0.5`,
    `\\frac{3}{4}`; else None.
    """
    # far more than its digits, below, can take with all separators
    if len(plain := text.strip()) > 10_000:
        return None
    plain = re.sub(rf"\\[,!]|[{_THIN}_]", "", plain.strip("$").replace("{,}", ","))
    plain = re.sub(rf"^[{_MINUS}]", "-", plain)
    plain = re.sub(r"^([+-])\s?\$?", r"\1", plain)
    plain = re.sub(r"\\[dt]?frac\{(\d+)\}\{(\d+)\}", r"\1/\2", plain)
    if re.fullmatch(r"[+-]?\d{1,3}(,\d{3})+(\.\d+)?", plain):
        plain = plain.replace(",", "")
    # Bounded, because converting a megabyte of digits takes quadratic time.
    mixed = re.fullmatch(r"([+-]?)(\d{1,30})\s(\d{1,30})/(\d{1,30})", plain)
    if mixed and int(mixed[4]):
        value = int(mixed[2]) + Fraction(int(mixed[3]), int(mixed[4]))
        return -value if mixed[1] == "-" else value
    if len(plain) > 1000 or not re.fullmatch(r"[+-]?(\d+(\.\d*)?|\.\d+)(/\d+)?", plain):
        return None
    try:
        return (
            Fraction(plain)
            if "/" not in plain
            else Fraction(plain.split("/")[0]) / Fraction(plain.split("/")[1])
        )
    except (ValueError, ZeroDivisionError):
        return None


def signed(text: str) -> str:
    """Return a text with its signs as a hyphen: "minus 9", `–9`, "is - 9".

    After a number, a minus subtracts.
    """
    text = re.sub(r"(?<=\d)(?=[½¼¾⅓⅔⅛])", " ", text).translate(_FRACTION_SIGNS)
    text = _SUPERSCRIPT.sub(lambda power: f"10^{power[1].translate(_SUPERSCRIPTS)}", text)
    text = _E_NOTATION.sub(r"\1 × 10^\2", text)
    text = re.sub(r"(?i)(?<![\d)] )\b(?:minus|negative)\s{1,3}(?=[\d$])", "-", text)
    text = re.sub(rf"(?<![\w)])[{_MINUS}](?=\d)", "-", text)
    return re.sub(rf"(^|(?:[=:(]|\bis)\s{{0,9}})[-{_MINUS}]\s{{1,3}}(?=\d)", r"\1-", text)


def decimal(value: Fraction) -> str:
    """Return 1/2 as `0.5`, 1/3 as `1/3`."""
    scaled, digits = value, 0
    while scaled.denominator != 1 and digits < 30:
        scaled, digits = scaled * 10, digits + 1
    return (
        f"{Decimal(scaled.numerator).scaleb(-digits):f}" if scaled.denominator == 1 else str(value)
    )


def english(text: str) -> str:
    """Return a text with its numbers as in English, if its words are those of a language that
    writes `1.234,5`.
    """
    if len(set(map(str.lower, _COMMA_LANGUAGE.findall(text)))) < 2:
        return text
    text = re.sub(
        r"(?<![\d.,])(\d{1,3}(?:\.\d{3})+)(?![\d.])",
        lambda quantities: quantities[1].replace(".", ""),
        text,
    )
    return re.sub(r"(?<![\d.,])(\d+),(\d+)(?![\d,])", r"\1.\2", text)
