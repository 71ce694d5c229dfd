"""Splits a trace into steps: at blank lines, at the ends of sentences, or as the model that wrote it marks them.

Thinking and answer are split separately. The default, blank lines, is what published process rewards use: a step is a
paragraph.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from ponder.core import Steps, UserError, plugins

if TYPE_CHECKING:
    from ponder.traces import Trace

By: TypeAlias = Literal["blank", "sentence", "task"]
Split: TypeAlias = Callable[[str], Sequence[str]]

_BLANK = re.compile(r"\n[^\S\n]*\n\s*")
# Punctuation that ends a sentence, with closing quotes and brackets. Chinese and Japanese put no space after it.
# The look-behind and the `+` after `+` keep the time linear: without them, each of many dots is a start of its own.
_END = re.compile(r"[。！？｡]+[”’」』）】]*\s*|(?<![.!?।؟۔…])[.!?।؟۔…]++[\"'”’)\]]*+\s+")
_ABBREVIATED = re.compile(
    # An initial, the number of a list item, or a common abbreviation.
    r"(?:^|[\s(\[])(?:[A-Z]|e\.g|i\.e|a\.k\.a|w\.l\.o\.g|w\.r\.t|s\.t|cf|ca|vs|resp|approx|Mr|Mrs|Ms|Dr|Prof|St"
    r"|Figs?|Eqs?|Eqn|Secs?|Thm|Lem|Prop|Def|Cor|Nos?|pp|vol)\.$|(?:^|\n)\s*\(?\d{1,3}\.$"
)


def steps(trace: Trace, by: By = "blank", split: Split | None = None) -> Steps:
    """A trace, split into steps.

    `by="task"` takes the trace's own list of `steps` for the answer, or splits the thinking with `split`, by default
    the codec that the trace names.
    """
    plain = sentences if by == "sentence" else paragraphs
    thinking, answer = plain(trace.thinking), plain(trace.answer)
    if by == "task":
        given = trace.extra.get("steps")
        if isinstance(given, list):
            answer = tuple(str(step).strip() for step in given)
        elif trace.thinking:
            thinking = tuple((split or _codec_split(trace))(trace.thinking))
    known = {name: getattr(trace, name) for name in ("teacher", "topic", "gold", "correct", "tokens")}
    facts: dict[str, Any] = {**trace.extra, **{k: v for k, v in known.items() if v not in (None, "")}}
    return Steps(trace.id, trace.question.strip(), thinking, answer, facts)


def paragraphs(text: str) -> tuple[str, ...]:
    return tuple(part for part in _BLANK.split(_lines(text)) if part)


def sentences(text: str) -> tuple[str, ...]:
    """The sentences of each paragraph. A point in a number or after an initial or abbreviation doesn't end one."""
    parts = []
    for paragraph in paragraphs(text):
        start = 0
        for end in _END.finditer(paragraph):
            if _ends(paragraph, start, end):
                parts.append(paragraph[start : end.end()].strip())
                start = end.end()
        parts.append(paragraph[start:].strip())
    return tuple(part for part in parts if part)


def _ends(text: str, start: int, end: re.Match[str]) -> bool:
    if end[0][0] not in ".…":
        return True
    after = text[end.end() : end.end() + 1]
    if after.islower():  # the sentence continues: "approx. five", "well... maybe"
        return False
    return not (end[0].strip() == "." and _ABBREVIATED.search(text[max(start, end.start() - 20) : end.start() + 1]))


def _lines(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n").strip()


def _codec_split(trace: Trace) -> Split:
    """How the model that wrote a trace marks its steps."""
    name, task = (str(trace.extra.get(key, "")) for key in ("codec", "task"))
    if not name:
        what = f'trace {trace.id} has no key `codec`, which by = "task" needs to split its thinking'
        hint = (
            'add "codec", the model plugin that wrote it; or use by = "blank" or "sentence"; or give a list of `steps`'
        )
        raise UserError(what, hint=hint)
    codec = plugins.codec(name, task)
    if codec is None:
        what = f"trace {trace.id}: model `{name}` has no codec for the task `{task}`"
        raise UserError(what, hint='by = "blank" or "sentence"; or give the trace a list of `steps`')
    return codec.split
