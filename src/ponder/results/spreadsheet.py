"""CSV that is safe to open in a spreadsheet: text that it would run as a formula is quoted with an apostrophe."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

STARTS = ("=", "+", "-", "@", "\t", "\r")


def inert(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of a CSV file whose texts no spreadsheet runs. Numbers stay as they are, also those written as text."""
    return {name: f"'{value}" if _formula(value) else value for name, value in row.items()}


def _formula(value: Any) -> bool:
    if not (isinstance(value, str) and value.startswith(STARTS)):
        return False
    try:
        float(value)
    except ValueError:
        return True
    return False
