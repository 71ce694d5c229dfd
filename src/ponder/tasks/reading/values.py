"""Reads numbers, dates, times and lists as people write them, and tells equal answers."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction
from typing import NamedTuple

from ponder.tasks.reading.markup import joined_initials, plain, undecorated

TOO_LONG = 1000  # characters; the longest answer in MATH-500 has 53
_MAX_DECIMALS = 30

# Numbers

_THIN = "\u00a0\u2009\u202f"  # spaces between groups of three digits
_MINUS = "−‐‑‒–—﹣－"  # what stands for a minus besides the hyphen
# Units that may stand at a number without a space: `5km`, `20s`.
_ATTACHED = r"(?:km|cm|mm|kg|mg|ms|min|hrs?|mph|gb|mb|kb|tb|ml|kwh?|[mgslhckw])\b|°"
# A number inside a sentence: `-1,234.5`, `2 1/2`, `3/4`, `5km`, `.5`, `\frac{3}{4}`. A minus after
# a digit or a bracket subtracts.
_IN_TEXT = re.compile(
    rf"(?<![\w.])(?<!\d:)(?:(?<![\d)])[+\-{_MINUS}]\$?)?(?:\d[\d,.{_THIN}]*\d|\d)"
    rf"(?:\s\d+/\d+(?![\w/])|/\d+)?(?:(?={_ATTACHED})|(?![\w²³]|:\d))"
    rf"|(?<![\w.])[-{_MINUS}]?\.\d+|-?\\[dt]?frac\{{\d+\}}\{{\d+\}}",
    re.IGNORECASE,
)
_MULTIPLES = {
    "dozen": 12, "hundred": 100, "thousand": 1000, "million": 10**6, "billion": 10**9,
    "trillion": 10**12,
}  # fmt: skip
_MULTIPLIED = re.compile(rf"\s?(?:-\s?)?({'|'.join(_MULTIPLES)})s?\b", re.IGNORECASE)
_POWER_OF_TEN = re.compile(
    r"\s{0,3}(?:×|x|\*|·|\\times|\\cdot)\s{0,3}10(?:\^\{?|\*\*)\s?([-−]?\d{1,3})\}?"
)
_SMALL = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten",
    "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen",
    "nineteen",
)  # fmt: skip
_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_UNITS = {word: n for n, word in enumerate(_SMALL)}
_UNITS |= {word: 10 * n for n, word in enumerate(_TENS, 2)}
_UNITS |= {"once": 1, "twice": 2, "thrice": 3}
_PARTS = {
    "half": 2, "halve": 2, "third": 3, "quarter": 4, "fourth": 4, "fifth": 5, "sixth": 6,
    "seventh": 7, "eighth": 8, "ninth": 9, "tenth": 10, "twelfth": 12, "hundredth": 100,
}  # fmt: skip
_NUMBER_WORD = "|".join(sorted((*_SMALL, *_TENS, *_MULTIPLES), key=len, reverse=True))
_PART_WORD = "|".join(sorted(_PARTS, key=len, reverse=True))
# "minus forty-two", "a hundred and five", "two and a half", "three quarters", "half", "twice"
_IN_WORDS = re.compile(
    rf"\b(?:(?:(?:minus|negative)\s)?(?:a\s(?=hundred|thousand|million|billion|dozen))?"
    rf"(?:{_NUMBER_WORD})(?:(?:\s|-|(?<=hundred)\sand\s|(?<=thousand)\sand\s)(?:{_NUMBER_WORD})\b)"
    rf"{{0,12}}(?:(?:\s|-|\sand\sa\s)(?:{_PART_WORD})s?)?|a\s(?:{_PART_WORD})|half|once|twice"
    r"|thrice)\b",
    re.IGNORECASE,
)
# "the two numbers", "all three", "one of them": words that count what is spoken of, and pronouns.
_SPOKEN_OF = re.compile(
    r"\b(?:the|these|those|all|other|which|last|first|next|every|between|into|no|this|that)\s$",
    re.IGNORECASE,
)
_FRACTION = re.compile(r"(\d+)/(\d+)|frac\{(\d+)\}\{(\d+)\}")
_FRACTION_SIGNS = str.maketrans(
    {"½": "1/2", "¼": "1/4", "¾": "3/4", "⅓": "1/3", "⅔": "2/3", "⅛": "1/8", "⁄": "/"}
)
_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")
_SUPERSCRIPT = re.compile(r"\b10([⁻⁰¹²³⁴⁵⁶⁷⁸⁹]{1,4})")  # "6.022 × 10²³"
_E_NOTATION = re.compile(r"\b(\d{1,30}(?:\.\d{1,30})?)[eE]\+?(-?\d{1,3})\b")  # `6.022e23`
# Words of languages that write 1.234,5 for 1,234.5. Two of them in a reply settle it.
_COMMA_LANGUAGE = re.compile(
    r"\b(?:ist|und|der|die|das|von|also|también|el|los|las|es|por|una?|para|le|les|des|est|donc|una"
    r"|il|della|sono|het|een)\b",
    re.IGNORECASE,
)


class Numeral(NamedTuple):
    """A number in a text."""

    value: Fraction
    start: int
    end: int
    written: str
    in_words: bool = False

    @property
    def form(self) -> tuple[Fraction, str]:
        """Return its value and how a fraction is written: `3/4` and `6/8` may differ as answers."""
        fraction = _FRACTION.search(self.written)
        if fraction is None:
            return self.value, ""
        return self.value, "/".join(filter(None, fraction.groups()))

    def percent(self, text: str) -> bool:
        """Return whether the text writes it as a percentage."""
        following = text[self.end : self.end + 9]
        return bool(re.match(r"\s?(?:\\?%|per\s?cent\b)", following, re.IGNORECASE))


def numerals(text: str) -> list[Numeral]:
    """Return the numbers in a text, in order; "one" alone is a pronoun."""
    quantities: list[Numeral] = []
    end = -1
    for match in _IN_TEXT.finditer(text):
        if match.start() < end:
            continue
        digits = match[0].rstrip(",.")
        value = number(digits)
        if value is None:
            quantities += _comma_separated(match)
            continue
        end = match.start() + len(digits)
        power = _POWER_OF_TEN.match(text, end)
        multiple = _MULTIPLIED.match(text, end)
        if power:
            value *= Fraction(10) ** int(power[1].replace("−", "-"))
            end = power.end()
        elif multiple:
            value *= _MULTIPLES[multiple[1].lower()]
            end = multiple.end()
        quantities.append(Numeral(value, match.start(), end, text[match.start() : end]))
    for match in _IN_WORDS.finditer(text):
        inside = any(numeral.start <= match.start() < numeral.end for numeral in quantities)
        counts_others = _SPOKEN_OF.search(text[: match.start()][-9:])
        if inside or counts_others or match[0].lower() == "one":
            continue
        value = in_words(match[0])
        if value is not None:
            quantities.append(Numeral(value, match.start(), match.end(), match[0], in_words=True))
    return sorted(quantities, key=lambda numeral: numeral.start)


def _comma_separated(match: re.Match[str]) -> list[Numeral]:
    """Return the numbers of a list that is written without spaces: `3,7,9`."""
    quantities = []
    for item in re.finditer(r"[^,]+", match[0]):
        value = number(item[0])
        if value is not None and item[0] != match[0]:
            start = match.start() + item.start()
            quantities.append(Numeral(value, start, start + len(item[0]), item[0]))
    return quantities


def in_words(text: str) -> Fraction | None:
    """Return the number that a text names in words ("a hundred and five"), else None."""
    if not _IN_WORDS.fullmatch(text.strip()):
        return None
    words = re.findall(r"[a-z]+", text.lower())
    total = Fraction(0)  # of the groups before: millions, thousands
    group = Fraction(0)
    added_part = Fraction(0)
    before = ""
    for word in words:
        part = _PARTS.get(word) or _PARTS.get(word.removesuffix("s"), 0)
        if word in _UNITS:
            group += _UNITS[word]
        elif word in ("hundred", "dozen"):
            group = max(group, Fraction(1)) * _MULTIPLES[word]
        elif word in _MULTIPLES:
            total += max(group, Fraction(1)) * _MULTIPLES[word]
            group = Fraction(0)
        elif part and before == "a" and group:  # "two and a half"
            added_part = Fraction(1, part)
        elif part:
            group = max(group, Fraction(1)) / part
        before = word
    value = total + group + added_part
    if words[0] in ("minus", "negative"):
        return -value
    return value


def denominator_in_words(text: str) -> int:
    """Return 4 for "three quarters"; 0 if a text is not a fraction in words."""
    words = re.findall(r"[a-z]+", text.lower())
    if not words:
        return 0
    return _PARTS.get(words[-1]) or _PARTS.get(words[-1].removesuffix("s"), 0)


def number(text: str) -> Fraction | None:
    """Return a text that is nothing but a number as a fraction: `1,234`, `-0.5`, `\\frac{3}{4}`."""
    digits = text.strip()
    # far more than its digits, below, can take with all separators
    if len(digits) > 10_000:
        return None
    digits = re.sub(rf"\\[,!]|[{_THIN}_]", "", digits.strip("$").replace("{,}", ","))
    digits = re.sub(rf"^[{_MINUS}]", "-", digits)
    digits = re.sub(r"^([+-])\s?\$?", r"\1", digits)
    digits = re.sub(r"\\[dt]?frac\{(\d+)\}\{(\d+)\}", r"\1/\2", digits)
    if re.fullmatch(r"[+-]?\d{1,3}(,\d{3})+(\.\d+)?", digits):
        digits = digits.replace(",", "")
    # Bounded, because converting a megabyte of digits takes quadratic time.
    mixed = re.fullmatch(r"([+-]?)(\d{1,30})\s(\d{1,30})/(\d{1,30})", digits)
    if mixed and int(mixed[4]):
        value = int(mixed[2]) + Fraction(int(mixed[3]), int(mixed[4]))
        return -value if mixed[1] == "-" else value
    if len(digits) > 1000 or not re.fullmatch(r"[+-]?(\d+(\.\d*)?|\.\d+)(/\d+)?", digits):
        return None
    numerator, slash, denominator = digits.partition("/")
    try:
        if slash:
            return Fraction(numerator) / Fraction(denominator)
        return Fraction(numerator)
    except (ValueError, ZeroDivisionError):
        return None


def with_signs(text: str) -> str:
    """Return a text with "minus 9", `–9` and "is - 9" as `-9`, `½` as `1/2`, `6e23` as a product.

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
    scaled = value
    digits = 0
    while scaled.denominator != 1 and digits < _MAX_DECIMALS:
        scaled *= 10
        digits += 1
    if scaled.denominator != 1:
        return str(value)
    return f"{Decimal(scaled.numerator).scaleb(-digits):f}"


def with_english_numbers(text: str) -> str:
    """Return a text with `1.234,5` as `1234.5`, if its language writes numbers so."""
    if len(set(map(str.lower, _COMMA_LANGUAGE.findall(text)))) < 2:
        return text
    grouped = r"(?<![\d.,])(\d{1,3}(?:\.\d{3})+)(?![\d.])"
    text = re.sub(grouped, lambda digits: digits[1].replace(".", ""), text)
    return re.sub(r"(?<![\d.,])(\d+),(\d+)(?![\d,])", r"\1.\2", text)


# Dates and times of day

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_MONTH = (
    r"(jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sept?(?:ember)?"
    r"|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?)\.?"
)
_DAY = r"(\d{1,2})(?:st|nd|rd|th)?"
_YEAR = r"(?:,?\s{1,3}(\d{4})\b)?"
_MONTH_FIRST = re.compile(rf"\b{_MONTH}\s{{1,3}}(?:the\s)?{_DAY}\b{_YEAR}", re.IGNORECASE)
_DAY_FIRST = re.compile(rf"\b{_DAY}\.?\s{{1,3}}(?:of\s)?{_MONTH}\b{_YEAR}", re.IGNORECASE)
_NUMERIC = re.compile(r"\b(\d{4})-(\d{2})-(\d{2})\b")
_CLOCK = re.compile(  # "10:05 p.m.", "10.05 pm", "22:05"
    r"\b(\d{1,2})[:.](\d{2})(?::\d{2})?\s?([ap])\.?\s?m\b\.?|\b(\d{1,2}):(\d{2})\b(?!:)",
    re.IGNORECASE,
)
_HOUR = re.compile(r"(?<![:.\d])(\d{1,2})\s?([ap])\.?\s?m\b\.?", re.IGNORECASE)
_NOON = 12


class Moment(NamedTuple):
    """A date, whose year may be missing (0), or a time of day, whose half may be unknown."""

    first: int  # month, or hour from 0 to 23
    second: int  # day, or minute
    third: int  # year, or 1 if the half of the day is known
    is_time: bool

    def matches(self, right: Moment) -> bool:
        """Return whether this is the right moment, as far as both say it."""
        if self.is_time != right.is_time or self.second != right.second:
            return False
        both_complete = bool(self.third and right.third)
        if self.is_time and not both_complete:  # "7:45" may be "7:45 PM"
            return abs(self.first - right.first) in (0, _NOON)
        if self.first != right.first:
            return False
        return self.is_time or not both_complete or self.third == right.third

    def __str__(self) -> str:
        if self.is_time:
            return f"{self.first}:{self.second:02}"
        day = f"{_MONTHS[self.first - 1].title()} {self.second}"
        return f"{day}, {self.third}" if self.third else day


def moments(text: str) -> list[Moment]:
    """Return the dates and times in a text, in order."""
    text = text[:20_000]
    by_start: dict[int, Moment] = {}
    for match in _MONTH_FIRST.finditer(text):
        by_start[match.start()] = _date(match[1], match[2], match[3])
    for match in _DAY_FIRST.finditer(text):
        by_start[match.start()] = _date(match[2], match[1], match[3])
    for match in _NUMERIC.finditer(text):
        by_start[match.start()] = Moment(int(match[2]), int(match[3]), int(match[1]), is_time=False)
    for match in _HOUR.finditer(text):
        by_start[match.start()] = _time(match[1], "0", match[2])
    for match in _CLOCK.finditer(text):
        by_start[match.start()] = _time(match[1] or match[4], match[2] or match[5], match[3])
    return [by_start[start] for start in sorted(by_start) if _exists(by_start[start])]


def moment(text: str) -> Moment | None:
    """Return the date or time that a right answer is; None if it is something else."""
    if len(text) > 40:
        return None
    stated = moments(text)
    if len(stated) != 1:
        return None
    for form in (_MONTH_FIRST, _DAY_FIRST, _NUMERIC, _CLOCK, _HOUR):
        text = form.sub("", text, count=1)
    if re.search(r"\w", re.sub(r"\b(?:on|at|the|in)\b", "", text, flags=re.IGNORECASE)):
        return None
    return stated[0]


def _date(month: str, day: str, year: str | None) -> Moment:
    return Moment(_MONTHS.index(month[:3].lower()) + 1, int(day), int(year or 0), is_time=False)


def _time(hour: str, minute: str, half: str | None) -> Moment:
    if half is None:
        return Moment(int(hour), int(minute), int(int(hour) > _NOON), is_time=True)
    afternoon = _NOON if half.lower() == "p" else 0
    return Moment(int(hour) % _NOON + afternoon, int(minute), 1, is_time=True)


def _exists(value: Moment) -> bool:
    if value.is_time:
        return value.first <= 24 and value.second < 60
    return 1 <= value.first <= 12 and 1 <= value.second <= 31


# Texts and lists

ARTICLE = re.compile(
    r"^(?:the|an?|le|la|les|un|une|der|die|das|ein|eine|el|los|las)\s", re.IGNORECASE
)
_POWER = re.compile(r"(?<=[a-z)])\^\{?(\d{1,3})\}?")  # `x^2`, as `x²` is compared
_FUNCTION = re.compile(r"\\(log|ln|exp|sin|cos|tan)\b")
_ROOT_SIGN = re.compile(r"\\?sqrt\{([^{}()]{1,50})\}|\\?sqrt\(([^{}()]{1,50})\)")
_TITLES = {"mt": "mount", "st": "saint", "dr": "doctor"}
_TITLE = re.compile(r"\b(mt|st|dr)\.?(?=\s)")
_SPLIT_ITEMS = re.compile(
    r"\s{0,9}(?:[,;\n、，]|→|->|[<>])\s{0,9}(?:and\s|then\s)?|\s(?:and|&)\s", re.IGNORECASE
)
_BRACKETS = (("[", "]"), ("(", ")"), ("{", "}"))


def simplified(text: str) -> str:
    """Return a text as it is compared: without case, marks, articles and spaces around signs."""
    text = unicodedata.normalize("NFKC", joined_initials(undecorated(text))).casefold()
    text = _POWER.sub(r"\1", _FUNCTION.sub(r"\1", text))
    text = text.replace("\\pi", "π").replace("\\cdot", "·")
    text = _ROOT_SIGN.sub(lambda root: f"√{root[1] or root[2]}", text)
    text = _TITLE.sub(lambda title: _TITLES[title[1]], text)
    text = " ".join(text.replace("’", "'").split())
    text = re.sub(r"\s?([^\w\s'])\s?", r"\1", text)
    return ARTICLE.sub("", text).strip(" .!\"'")


def same_text(parsed: str, gold: str) -> bool:
    """Return whether two answers are equal as numbers or texts, or as lists in the same order."""
    # also because `normalize` takes quadratic time on many marks in a row
    if len(parsed) > TOO_LONG > len(gold):
        return False
    if _same_item(parsed, gold):
        return True
    gold_items = items(gold)
    return len(gold_items) > 1 and same_items(items(parsed), gold_items)


def _same_item(first: str, second: str) -> bool:
    first_number = number(first)
    second_number = number(second)
    if first_number is None or second_number is None:
        return simplified(first) == simplified(second) != "" or first == second
    return first_number == second_number


def items(text: str) -> list[str]:
    """Return the items of a list: `[3, 7, 9]`, `3,7,9`, "3, 7 and 9", or one per line."""
    text = undecorated(text)
    while len(text) > 1 and (text[0], text[-1]) in _BRACKETS:
        text = text[1:-1].strip()
    split_items = [undecorated(plain(item)) for item in _SPLIT_ITEMS.split(text)]
    return [item for item in split_items if item]


def same_items(first: Sequence[str], second: Sequence[str], *, any_order: bool = False) -> bool:
    """Return whether two lists have equal items, in the same order or in any."""
    if len(first) != len(second):
        return False
    if all(map(_same_item, first, second)):
        return True
    if not any_order or len(first) > 100:
        return False
    unmatched = list(second)
    for item in first:
        equal = next((candidate for candidate in unmatched if _same_item(item, candidate)), None)
        if equal is None:
            return False
        unmatched.remove(equal)
    return True
