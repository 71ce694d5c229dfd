"""Reads text files line by line, with the place of each line for error messages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ponder.core.errors import UserError


def lines(path: Path) -> Iterator[tuple[str, str]]:
    """Each line that isn't blank, as (place, line). A place is `path:number`. An empty file is an error."""
    try:
        content = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"can't read {path}: {error}", hint="the path is relative to the study's folder") from None
    filled = [(f"{path}:{n}", line) for n, line in enumerate(content.splitlines(), 1) if line.strip()]
    if not filled:
        raise UserError(f"{path} is empty")
    yield from filled
