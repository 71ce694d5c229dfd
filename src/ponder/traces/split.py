"""Splits a trace into steps: at blank lines, at the ends of sentences, or as its model marks them.

Thinking and answer are split separately. The default, blank lines, is what published process
rewards use: a step is a paragraph.
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
# Punctuation that ends a sentence, with closing quotes and brackets. Chinese and Japanese put no
# space after it. The look-behind and the `+` after `+` keep the time linear: without them, each of
# many dots is a start of its own.
_END = re.compile(r"[。！？｡]+[”’」』）】]*\s*|(?<![.!?।؟۔…])[.!?।؟۔…]++[\"'”’)\]]*+\s+")
_ABBREVIATED = re.compile(
    # An initial, the number of a list item, or a common abbreviation.
    r"(?:^|[\s(\[])(?:[A-Z]|e\.g|i\.e|a\.k\.a|w\.l\.o\.g|w\.r\.t|s\.t|cf|ca|vs|resp|approx|Mr|Mrs|Ms|Dr|Prof|St"
    r"|Figs?|Eqs?|Eqn|Secs?|Thm|Lem|Prop|Def|Cor|Nos?|pp|vol)\.$|(?:^|\n)\s*\(?\d{1,3}\.$"
)


def steps(trace: Trace, by: By = "blank", split: Split | None = None) -> Steps:
    """Return a trace, split into steps.

    `by="task"` takes the trace's list of `steps` for the answer, or splits the thinking with
    `split`, by default the codec that the trace names.
    """
    split_text = sentences if by == "sentence" else paragraphs
    thinking = split_text(trace.thinking)
    answer = split_text(trace.answer)
    if by == "task":
        answer_steps = trace.extra.get("steps")
        if isinstance(answer_steps, list):
            answer = tuple(str(step).strip() for step in answer_steps)
        elif trace.thinking:
            split = split or _codec_split(trace)
            thinking = tuple(split(trace.thinking))
    facts: dict[str, Any] = dict(trace.extra)
    for name in ("teacher", "topic", "gold", "correct", "tokens"):
        value = getattr(trace, name)
        if value not in (None, ""):
            facts[name] = value
    return Steps(trace.id, trace.question.strip(), thinking, answer, facts)


def paragraphs(text: str) -> tuple[str, ...]:
    """Return the texts between blank lines."""
    text = text.replace("\r\n", "\n").replace("\r", "\n").strip()
    return tuple(paragraph for paragraph in _BLANK.split(text) if paragraph)


def sentences(text: str) -> tuple[str, ...]:
    """Return the sentences of each paragraph.

    A point in a number or after an initial or abbreviation doesn't end a sentence.
    """
    pieces = []
    for paragraph in paragraphs(text):
        start = 0
        for end in _END.finditer(paragraph):
            if _ends(paragraph, start, end):
                pieces.append(paragraph[start : end.end()].strip())
                start = end.end()
        pieces.append(paragraph[start:].strip())
    return tuple(piece for piece in pieces if piece)


def _ends(text: str, start: int, end: re.Match[str]) -> bool:
    """Return whether this punctuation ends the sentence that begins at `start`."""
    if end[0][0] not in ".…":
        return True
    after = text[end.end() : end.end() + 1]
    if after.islower():  # the sentence continues: "approx. five", "well... maybe"
        return False
    if end[0].strip() != ".":
        return True
    last_characters = text[max(start, end.start() - 20) : end.start() + 1]
    return _ABBREVIATED.search(last_characters) is None


def _codec_split(trace: Trace) -> Split:
    """Return the function that splits thinking as the model that wrote it marks its steps."""
    name = str(trace.extra.get("codec", ""))
    task = str(trace.extra.get("task", ""))
    if not name:
        message = (
            f'trace {trace.id} has no key `codec`, which by = "task" needs to split its thinking'
        )
        hint = (
            'add "codec", the model plugin that wrote it; or use by = "blank" or "sentence"; or'
            " give a list of `steps`"
        )
        raise UserError(message, hint=hint)
    codec = plugins.codec(name, task)
    if codec is None:
        message = f"trace {trace.id}: model `{name}` has no codec for the task `{task}`"
        raise UserError(
            message, hint='by = "blank" or "sentence"; or give the trace a list of `steps`'
        )
    return codec.split
