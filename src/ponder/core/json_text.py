"""Finds JSON in a model's reply, which may wrap it in prose or in a code fence."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

OBJECT = re.compile(r'\{\s*["}]')
LIST = re.compile(r"\[")


def json_values(text: str, opening: re.Pattern[str] = OBJECT) -> Iterator[Any]:
    """Yield the outermost JSON values in a text that begin with `opening`, in their order."""
    end = 0
    characters_left = 2 * len(text) + 2_000_000
    for bracket in opening.finditer(text):
        if bracket.start() < end:
            continue
        try:
            value, end = json.JSONDecoder().raw_decode(text, bracket.start())
        except json.JSONDecodeError as error:
            # Limited, because each of a million braces could otherwise be read to the end. From the
            # text's beginning, because the error counts the lines up to its place.
            characters_left -= error.pos
            if characters_left < 0:
                return
            continue
        except (ValueError, RecursionError):  # a number of 5,000 digits, or a thousand brackets
            return
        yield value
