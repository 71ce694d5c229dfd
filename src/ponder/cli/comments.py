"""Comments in source code, by line: the comment beside a setting is its documentation."""

from __future__ import annotations

import io
import tokenize


def comments(source: str) -> dict[int, str]:
    """The comment on each line, without those that are for tools; a `#` inside a string is none."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    found = {
        token.start[0]: token.string.lstrip("# ").strip()
        for token in tokens
        if token.type == tokenize.COMMENT
    }
    return {line: text for line, text in found.items() if not text.startswith(("noqa", "type:"))}
