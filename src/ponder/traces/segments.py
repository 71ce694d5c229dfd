"""Cutting a trace into steps: at blank lines, at the ends of sentences, or as its task marks them.

Thinking and answer are cut apart from each other. Published process rewards cut at blank lines, which is the default;
there a step is a paragraph.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from ponder.core import Steps, UserError, plugins

if TYPE_CHECKING:
    from ponder.traces import Trace

By: TypeAlias = Literal["blank", "sentence", "task"]
Cut: TypeAlias = Callable[[str], Sequence[str]]

_BLANK = re.compile(r"\n[^\S\n]*\n\s*")
# A mark that ends a sentence, with the quotes and brackets that it closes. Chinese and Japanese put no space after it.
_END = re.compile(r"[。！？｡]+[”’」』）】]*\s*|[.!?।؟۔…]+[\"'”’)\]]*\s+")
_ABBREVIATED = re.compile(
    # An initial, the number of an item in a list, or a word that is mostly cut short.
    r"(?:^|[\s(\[])(?:[A-Z]|e\.g|i\.e|a\.k\.a|w\.l\.o\.g|w\.r\.t|s\.t|cf|ca|vs|resp|approx|Mr|Mrs|Ms|Dr|Prof|St"
    r"|Figs?|Eqs?|Eqn|Secs?|Thm|Lem|Prop|Def|Cor|Nos?|pp|vol)\.$|(?:^|\n)\s*\(?\d{1,3}\.$"
)


def steps(trace: Trace, by: By = "blank", marks: Cut | None = None) -> Steps:
    """A trace cut into steps. `marks` cuts thinking the way a task marks it, where Ponder doesn't know the task."""
    cut = {"blank": paragraphs, "sentence": sentences, "task": paragraphs}[by]
    thinking, answer = cut(trace.thinking), cut(trace.answer)
    if by == "task":
        given = trace.extra.get("steps")
        if isinstance(given, list):
            answer = tuple(str(step).strip() for step in given)
        elif trace.thinking:
            thinking = tuple((marks or _marks(trace))(trace.thinking))
    known = {name: getattr(trace, name) for name in ("teacher", "topic", "gold", "correct", "tokens")}
    facts: dict[str, Any] = {**trace.extra, **{k: v for k, v in known.items() if v not in (None, "")}}
    return Steps(trace.id, trace.question.strip(), thinking, answer, facts)


def paragraphs(text: str) -> tuple[str, ...]:
    return tuple(part for part in _BLANK.split(_lines(text)) if part)


def sentences(text: str) -> tuple[str, ...]:
    """Sentences of each paragraph. A point within a number, after an initial or an abbreviation ends none."""
    found = []
    for paragraph in paragraphs(text):
        start = 0
        for end in _END.finditer(paragraph):
            if _ends(paragraph, start, end):
                found.append(paragraph[start : end.end()].strip())
                start = end.end()
        found.append(paragraph[start:].strip())
    return tuple(part for part in found if part)


def _ends(text: str, start: int, end: re.Match[str]) -> bool:
    if end[0][0] not in ".…":
        return True
    after = text[end.end() : end.end() + 1]
    if after.islower():  # it goes on: "approx. five", "well... maybe"
        return False
    return not (end[0].strip() == "." and _ABBREVIATED.search(text[max(start, end.start() - 20) : end.start() + 1]))


def _lines(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n").strip()


def _marks(trace: Trace) -> Cut:
    """How the model that wrote a trace marks its steps."""
    codec = plugins.codec(str(trace.extra.get("codec")), str(trace.extra.get("task")))
    if codec is None:
        what = f"trace {trace.id}: nothing says how its steps are marked"
        hint = 'by = "blank" or "sentence"; or give the trace a list of `steps`, or its `task` and `codec`'
        raise UserError(what, hint=hint)
    return codec.split
