"""Finds the final answer in a model's reply, where a person would: lenient about form, strict about content.

An answer stands in the last `<answer>` tag or `\\boxed{}` that has content, unless the reply takes it back afterwards;
else after the last "answer is"; else it is what the reply puts in bold; else what its last sentences state. A reply
that wavers ("9 or 10", "about 9", "not 9") states nothing. `tests/data/replies.jsonl` has hundreds of replies, of real
models and in the manner of others, labelled by reading them; a test holds these rules to the labels.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import NamedTuple

from ponder.core.reading.marks import EMPTY, marked
from ponder.core.reading.markup import ASIDE, SENTENCE, TAIL, bold_spans, opening, plain, undecorated
from ponder.core.reading.numerals import decimal, english, number
from ponder.core.reading.statements import ANSWER, IS, LEADS, NAMED, doubtful, stated_number

_FENCED = re.compile(r"```\w*\n([^\n`]{1,500})\n```\s{0,9}$")
_ANSWER_IS = re.compile(rf"(?:{ANSWER})(?:{LEADS}|[ \t]{{0,9}}\n\s{{0,9}})", re.IGNORECASE)
_BOLD_HEADING = re.compile(rf"\*\*([^*\n]{{0,60}}(?:{ANSWER})[^*\n]{{0,30}}?[:：]?)\*\*", re.IGNORECASE)
_CHECKED = re.compile(r"(?im)^\W{0,5}(?:let(?:'s| me| us) )?(?:double-?check|check|verify|verification|proof|probe)\b")
_TAKEN_BACK = re.compile(
    r"\b(?:correction|mistake|incorrect|disregard|ignore|on reflection|not right|sorry|wait|edit)\b", re.IGNORECASE
)
_DROPPED = re.compile(r"\b(?:disregard|ignore)\b", re.IGNORECASE)
_UNDECIDED = re.compile(r"\b(?:either|can(?:'t|’t|not)|unable|sorry)\b|\?\s*$", re.IGNORECASE)
_LINKED = re.compile(rf"(?:{IS}|[:→]|->)\s*", re.IGNORECASE)
_LISTED = re.compile(r"(?:(?:^|\n)[ \t]{0,9}(?:\d{1,3}[.)]|[*•-])[ \t][^\n]{1,200}){2,100}\s{0,9}$")


class Place(NamedTuple):
    """A piece of a reply that may state its answer."""

    text: str
    marked: bool  # whether it is nothing but the answer: in a tag or box, in bold, or after "answer is"


def places(text: str) -> list[Place]:
    """Where the final answer may stand, the likeliest place first."""
    if (found := marked(text)) is not None:
        inside, rest = found
        if not _TAKEN_BACK.search(rest := rest[:TAIL]):
            return [Place(inside, marked=True)]
        later = _after_answer_is(rest) or _corrected(rest)
        return later or [Place("" if _DROPPED.search(rest) else inside, marked=True)]
    tail = EMPTY.sub("", text.rstrip()[-TAIL:]).rstrip()
    if check := _CHECKED.search(tail):
        tail = tail[: check.start()] if tail[: check.start()].strip() else tail
    if said := _after_answer_is(tail):
        return said
    sentences = [Place(s, marked=False) for s in SENTENCE.split(plain(tail)) if s and not s.isspace()]
    fenced = _FENCED.search(tail)
    return [*([Place(fenced[1], marked=True)] if fenced else _bold(tail)), *reversed(sentences[-3:])]


def _after_answer_is(text: str) -> list[Place]:
    text = _BOLD_HEADING.sub(r"\1", text)
    said = [match.end() for match in _ANSWER_IS.finditer(text)]
    rest = text[said[-1] :].lstrip("*_: \t\n") if said else ""
    if not rest:
        return []
    line = rest.splitlines()[0]
    bold = [Place(one, marked=True) for one in bold_spans(line)]
    return bold if len(bold) == 1 else [Place(opening(rest), marked=True)]


def _corrected(text: str) -> list[Place]:
    """What "the correct number is 75" puts in place of an earlier answer."""
    named = [plain(text)[match.end() :] for match in NAMED.finditer(plain(text))]
    return [Place(opening(named[-1]), marked=True)] if named else []


def _bold(text: str) -> list[Place]:
    """What stands in bold, if only one thing does, or if it is in the last sentence."""
    spans = list(dict.fromkeys(bold_spans(text)))
    last = [s for s in SENTENCE.split(text.rstrip()) if s and not s.isspace()][-1:]
    in_last = bold_spans(last[0]) if last else []
    return [Place(one, marked=True) for one in (spans if len(spans) == 1 else in_last[-1:])]


def final(text: str) -> str | None:
    """The final answer as text; None if there is none."""
    for place in places(text):
        if place.marked and (said := place.text.strip()):
            return said
        if not place.marked and (plain := undecorated(_after_named(place.text))):
            return None if _UNDECIDED.search(place.text) else plain
    return None


def _after_named(sentence: str) -> str:
    named = list(NAMED.finditer(sentence))
    return sentence[named[-1].end() :] or sentence if named else sentence


def readings(text: str, like: str) -> list[str]:
    """Every way to read the final answer: without marks, as it stands, and the end of "The capital is Paris".

    If the right answer (`like`) is a number, the first reading is the number, and without a number there is no reading.
    """
    said = final(text)
    if said is None:
        return []
    ways = [undecorated(said), said]
    if number(like) is not None:
        value = final_number(text)
        return [] if value is None else [*dict.fromkeys([decimal(value), *ways])]
    ways += [ASIDE.sub("", ways[0]), _LINKED.split(ways[0])[-1]]
    ways += [aside[0].strip(" ()（）") for aside in ASIDE.finditer(ways[0])]  # 渥太华 (Ottawa)
    if marked(text) is None:
        ways += [
            ", ".join(plain(line) for line in items[0].strip().splitlines()) for items in _LISTED.finditer(text[-TAIL:])
        ]
        # A reply without steps opens with its answer: "The symbol is Au, from aurum. It is a metal."
        first = _LINKED.split(opening(text[:TAIL]), maxsplit=1)[-1]
        ways += [first, re.split("[,;]", first)[0]]
    return [
        *dict.fromkeys(way for way in map(undecorated, ways) if way),
        *([said] if said != undecorated(said) else []),
    ]


def expressions(said: str) -> list[str]:
    """Every way to read a mathematical answer: as it stands, without marks, and the end of "the length is 2√3"."""
    plain = undecorated(said)
    ends = re.split(rf"(?:{IS}|\bhas (?:length|area|value)|:)\s", plain)[-1]
    return [*dict.fromkeys(one for one in (said, plain, undecorated(ends)) if one)]


def final_number(text: str) -> Fraction | None:
    """The number that is the final answer; None if there is none.

    `44 + 24 = 68`, "**68**" and "The sum is 68." say 68; "68 or 69" says nothing.
    """
    in_english = english(text[-TAIL:])
    for place in places(in_english if len(text) <= TAIL else text):
        value = stated_number(place.text, alone=place.marked)
        if value is not None or (not place.marked and doubtful(place.text)):
            return value
    return None
