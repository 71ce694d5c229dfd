"""Text for people: safe to print, with counts, numbers and types in plain words."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ponder.core.nouns import Estimate

# Control characters but newline and tab (C0, DEL, C1), line separators, marks that reorder text,
# and lone surrogates.
_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
_WORDS = {
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "bool": "true or false",
    "array": "a list",
    "null": "nothing",
    "date": "a date",
    "datetime": "a date",
    "time": "a time",
}


def printable(text: str) -> str:
    """Return text from a model, a server or a file with control characters escaped.

    Printed as it is, such text could drive the terminal.
    """
    return _UNSAFE.sub(_escaped, text)


def _escaped(character: re.Match[str]) -> str:
    return character[0].encode("unicode_escape", "surrogatepass").decode()


def visible(text: str) -> str:
    """Return text for a page, with control characters as symbols such as ␛ or ⟨U+202E⟩."""
    return _UNSAFE.sub(_symbol, text)


def _symbol(character: re.Match[str]) -> str:
    code = ord(character[0])
    if code < 0x20:
        return chr(0x2400 + code)
    if code == 0x7F:
        return "␡"
    return f"⟨U+{code:04X}⟩"


def encodable(text: str) -> str:
    """Return the text without lone surrogates.

    Two halves of a pair, which a stream may separate, become one character again.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def as_json(data: Any, indent: int | None = None) -> str:
    """Return JSON that is readable and safe to print."""
    text = json.dumps(data, indent=indent, ensure_ascii=False, default=str)
    return _UNSAFE.sub(lambda character: f"\\u{ord(character[0]):04x}", text)


def count(number: int, noun: str) -> str:
    """Return a number of things: `1 attempt`, `2,000 attempts`."""
    if number == 1:
        return f"1 {noun}"
    return f"{number:,} {plural(noun)}"


def number(value: float) -> str:
    """Return a number with three significant digits and no exponent: `41.3`, `1,190`, `0.0000123`."""
    if abs(value) >= 999.5:
        return f"{value:,.0f}"
    text = f"{value:.3g}"
    if "e" in text:
        decimals = 2 - math.floor(math.log10(abs(value)))
        text = f"{value:.{decimals}f}".rstrip("0")
    return text


def rounded_up(n: float) -> int:
    """Round a forecast up to two digits: 1234 to 1300."""
    step = int(10 ** max(0, math.floor(math.log10(n)) - 1))
    return math.ceil(n / step) * step


def interval(
    value: float | None,
    low: float | None,
    high: float | None,
    *,
    scale: float = 1.0,
    signed: bool = False,
) -> tuple[str, str, str]:
    """Return a value and the ends of its interval with the digits that the interval supports.

    The last digit is at most a quarter of the interval's width: 86 [82, 90], 85.2 [84.9, 85.5].
    There are at most four significant digits, for narrow intervals. An unknown value and an open
    end are `?`. `scale` multiplies all three, such as 100 for percentages; `signed` writes a plus
    before positive numbers.
    """
    numbers = [math.nan if number is None else scale * number for number in (value, low, high)]
    finite = [abs(number) for number in numbers if math.isfinite(number)]
    largest = max(finite, default=0.0)
    width = numbers[2] - numbers[1]
    decimals = 0
    if largest > 0:
        decimals = 3 - math.floor(math.log10(largest))
        if math.isfinite(width) and width > 0:
            decimals = min(decimals, -math.floor(math.log10(width / 4)))
        elif not math.isfinite(width):
            decimals -= 1  # an open interval: three significant digits
    decimals = max(0, decimals)
    texts = []
    for number in numbers:
        if not math.isfinite(number):
            texts.append("?")
            continue
        rounded = round(number, decimals) + 0.0  # not -0.0
        text = f"{rounded:,.{decimals}f}".replace("-", "−")
        if signed and rounded > 0:
            text = f"+{text}"
        texts.append(text)
    return texts[0], texts[1], texts[2]


def estimate_text(estimate: Estimate, *, scale: float = 1.0, signed: bool = False) -> str:
    """Return an estimate with its interval, rounded as by `interval`: `86 [82, 90]`."""
    value, low, high = interval(
        estimate.value, estimate.low, estimate.high, scale=scale, signed=signed
    )
    return f"{value} [{low}, {high}]"


def percent_text(estimate: Estimate) -> str:
    """Return a fraction as a percentage with its interval: `86 % [82, 90]`."""
    value, low, high = interval(estimate.value, estimate.low, estimate.high, scale=100)
    return f"{value} % [{low}, {high}]"


def points(fraction: float) -> str:
    """Return a difference of two fractions to a tenth of a percentage point: `−4.0`, `+1.1`.

    All differences have the same digits, so that they can be compared with a margin by eye.
    """
    if math.isinf(fraction):
        return "?"
    return f"{round(100 * fraction, 1) + 0.0:+.1f}".replace("-", "−")


def plural(noun: str) -> str:
    if noun.endswith("y") and noun[-2:-1] not in "aeou":  # policies, but days
        return f"{noun[:-1]}ies"
    return f"{noun}s"


def plain(error: Exception, table: str = "a table") -> str:
    """Return msgspec's message about a value in plain words.

    `table` is what the file's format calls one: TOML's is a table, JSON's an object.
    """
    message, _, path = str(error).partition(" - at `")
    path = path.removesuffix("`").removeprefix("$").removeprefix(".")
    mismatch = re.fullmatch(r"Expected `(.+?)`, got `(\w+)`", message)
    missing = re.fullmatch(r"Object missing required field (.+)", message)
    unknown = re.fullmatch(r"Object contains unknown field (.+)", message)
    choice = re.fullmatch(r"Invalid enum value (.+)", message, re.DOTALL)
    if mismatch:
        message = _mismatch(mismatch[1], mismatch[2], {**_WORDS, "object": table})
    elif missing:
        message = f"the field {missing[1]} is missing"
    elif unknown:
        message = f"there is no field {unknown[1]}"
    elif choice:
        message = f"there is no choice {choice[1]}"
    if path:
        return f"{path}: {message}"
    return message


def _mismatch(expected: str, got: str, words: Mapping[str, str]) -> str:
    """Return a type error in plain words; `expected` lists types as msgspec does: `int | null`."""
    types = [kind for kind in expected.split(" | ") if kind != "null"] or ["null"]
    if "float" in types and "int" in types:
        types.remove("int")
    names = [words.get(kind, kind) for kind in types]
    actual = words.get(got, got)
    if got == "float":
        actual = "a decimal number"
    return f"expected {' or '.join(names)}, not {actual}"
