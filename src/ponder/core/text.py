"""Text for people: without control characters, with counts and types in plain words."""

from __future__ import annotations

import json
import re
from typing import Any

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
    """Text from a model, a server, a file or a plugin, safe to print: what would drive a terminal
    is shown escaped.
    """
    return _UNSAFE.sub(
        lambda found: found[0].encode("unicode_escape", "surrogatepass").decode(), text
    )


def visible(text: str) -> str:
    """The same for a page: a control character is shown as its symbol, such as ␛, a mark without
    one as ⟨U+202E⟩.
    """
    return _UNSAFE.sub(lambda found: _symbol(ord(found[0])), text)


def _symbol(code: int) -> str:
    return chr(0x2400 + code) if code < 0x20 else "␡" if code == 0x7F else f"⟨U+{code:04X}⟩"


def encodable(text: str) -> str:
    """The text without lone surrogates.

    Two halves of a pair, which a stream may part, become one character again.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def as_json(data: Any, indent: int | None = None) -> str:
    """JSON that is readable and safe to print."""
    text = json.dumps(data, indent=indent, ensure_ascii=False, default=str)
    return _UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def count(number: int, noun: str) -> str:
    """A number of things: `1 attempt`, `2,000 attempts`."""
    return f"{number:,} {noun if number == 1 else plural(noun)}"


def number(value: float) -> str:
    """A number with three significant digits, and no exponent for thousands: `41.3`, `1,190`."""
    return f"{value:,.0f}" if abs(value) >= 999.5 else f"{value:.3g}"


def plural(noun: str) -> str:
    # policies, days
    return f"{noun[:-1]}ies" if noun.endswith("y") and noun[-2:-1] not in "aeou" else f"{noun}s"


def plain(error: Exception, table: str = "a table") -> str:
    """What msgspec says about a value, in plain words.

    `table` is what the file's format calls one.
    """
    message, _, place = str(error).partition(" - at `")
    place = place.removesuffix("`").removeprefix("$").removeprefix(".")
    words = {**_WORDS, "object": table}
    if found := re.fullmatch(r"Expected `(.+?)`, got `(\w+)`", message):
        wanted = [kind for kind in found[1].split(" | ") if kind != "null"] or ["null"]
        named = [
            words.get(kind, kind) for kind in wanted if not (kind == "int" and "float" in wanted)
        ]
        got = "a decimal number" if found[2] == "float" else words.get(found[2], found[2])
        message = f"expected {' or '.join(named)}, not {got}"
    elif found := re.fullmatch(r"Object missing required field (.+)", message):
        message = f"the field {found[1]} is missing"
    elif found := re.fullmatch(r"Object contains unknown field (.+)", message):
        message = f"there is no field {found[1]}"
    elif message.startswith("Invalid enum value "):
        message = f"there is no choice {message.removeprefix('Invalid enum value ')}"
    return f"{place}: {message}" if place else message
