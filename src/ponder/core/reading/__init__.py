"""Finds the final answer in a model's reply, where a person would: lenient about form, strict about content.

An answer stands in the last `<answer>` tag or `\\boxed{}` that has content, unless the reply takes it back afterwards;
else after the last "answer is"; else it is what the reply puts in bold; else what its last sentences state. A reply
that wavers ("9 or 10", "about 9", "not 9") states nothing. `tests/data/replies.jsonl` has hundreds of replies, of real
models and in the manner of others, labelled by reading them; a test holds these rules to the labels.
"""

from __future__ import annotations

import itertools
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
# One step of several: `31 - 7 = **24**. Then 24 + 54 = 78.`
_BOLD_STEP = re.compile(r"=\s{0,3}\*\*[^*\n]{1,200}\*\*(?:[.\n]|,? then\b)[^*]{0,500}=\s{0,3}-?\d", re.IGNORECASE)
_CHECKED = re.compile(r"(?im)^\W{0,5}(?:let(?:'s| me| us) )?(?:double-?check|check|verify|verification|proof|probe)\b")
_TAKEN_BACK = re.compile(
    r"\b(?:correction|mistake|error|incorrect|wrong|disregard|ignore|on reflection|on second thought|not right|sorry"
    r"|wait|edit|actually|oops|hold on|should be)\b",
    re.IGNORECASE,
)
_DROPPED = re.compile(r"\b(?:disregard|ignore)\b", re.IGNORECASE)
_UNDECIDED = re.compile(r"\b(?:either|can(?:'t|’t|not)|unable|sorry)\b|\?\s*$", re.IGNORECASE)
_LINKED = re.compile(rf"(?:(?:{IS})(?:\s{{0,3}}:)?|[:→]|->)\s*", re.IGNORECASE)
_EQUATION = re.compile(r"[ \t]*[-+−(]?[\d=][^\n]*=[^\n]*|[ \t]*=[^\n]*")
# After an opening such as "Yes, the graph has one", these words say that the answer comes only later.
_TURNS = re.compile(r"\b(?:but|however|reconsider|therefore|thus|hence|instead|conclu\w*)\b", re.IGNORECASE)
_EXPLAINED = re.compile(
    r"[,;]\s(?=(?:an?|also|as|because|from|he|it|meaning|named|she|since|that|the|there|they|this|we|which|who|you)\b)"
)
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
        return _later(rest) or [*_sentences(rest), Place("" if _DROPPED.search(rest) else inside, marked=True)]
    tail = EMPTY.sub("", text.rstrip()[-TAIL:]).rstrip()
    if check := _CHECKED.search(tail):
        tail = tail[: check.start()] if tail[: check.start()].strip() else tail
    if said := _after_answer_is(tail):
        return said
    fenced = _FENCED.search(tail)
    return [*([Place(fenced[1], marked=True)] if fenced else _bold(tail)), *_sentences(tail)]


def _sentences(text: str) -> list[Place]:
    """The last sentences, the last first."""
    sentences = [Place(s, marked=False) for s in SENTENCE.split(plain(text)) if s and not s.isspace()]
    return sentences[:-4:-1]


def _later(text: str) -> list[Place]:
    """What a text that takes an answer back puts in its place."""
    return _after_answer_is(text) or _corrected(text)


def _after_answer_is(text: str) -> list[Place]:
    text = _BOLD_HEADING.sub(r"\1", text)
    said = [match.end() for match in _ANSWER_IS.finditer(text)]
    rest = text[said[-1] :].lstrip("*_: \t\n") if said else ""
    if not rest:
        return []
    line, *more = rest.splitlines()
    if _TAKEN_BACK.search("\n".join(more)):
        return [*(_corrected(more_text := "\n".join(more)) or _sentences(more_text)), Place(opening(line), marked=True)]
    if _EQUATION.fullmatch(line) or (more and more[0].lstrip().startswith("=")):
        steps = itertools.takewhile(_EQUATION.fullmatch, filter(str.strip, more))
        return [Place(plain([line, *steps][-1]), marked=True)]
    bold = [Place(one, marked=True) for one in bold_spans(line)]
    return bold if len(bold) == 1 else [Place(opening(rest), marked=True)]


def _corrected(text: str) -> list[Place]:
    """What "the correct number is 75" puts in place of an earlier answer."""
    named = [plain(text)[match.end() :] for match in NAMED.finditer(plain(text))]
    return [Place(opening(named[-1]), marked=True)] if named else []


def _bold(text: str) -> list[Place]:
    """What stands in bold, if only one thing does, or if it is in the last sentence."""
    spans = list(dict.fromkeys(bold_spans(text)))
    if len(spans) == 1 and _BOLD_STEP.search(text):
        return []
    last = [s for s in SENTENCE.split(text.rstrip()) if s and not s.isspace()][-1:]
    in_last = bold_spans(last[0]) if last else []
    return [Place(one, marked=True) for one in (spans if len(spans) == 1 else in_last[-1:])]


def final(text: str) -> str | None:
    """The final answer as text; None if there is none."""
    for place in sorted(places(text), key=lambda place: not place.marked):
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
    if not ASIDE.sub("", ways[0]).isascii():
        ways += [aside[0].strip(" ()（）") for aside in ASIDE.finditer(ways[0])]  # 渥太华 (Ottawa)
    if marked(text) is None:
        ways += [
            ", ".join(plain(line) for line in items[0].strip().splitlines()) for items in _LISTED.finditer(text[-TAIL:])
        ]
        # A reply without steps opens with its answer: "The symbol is Au, from aurum. It is a metal."
        if len(text) <= TAIL and not (_after_answer_is(text) or _TURNS.search(text) or _TAKEN_BACK.search(text)):
            first = _LINKED.split(opening(text), maxsplit=1)[-1]
            ways += [first, _EXPLAINED.split(first)[0]]
    return [
        *dict.fromkeys(way for way in map(undecorated, ways) if way),
        *([said] if said != undecorated(said) else []),
    ]


def expressions(said: str) -> list[str]:
    """Every way to read a mathematical answer: as it stands, without marks, and the end of "the length is 2√3"."""
    plain = undecorated(said)
    start, *end = re.split(rf"(?:{IS}|\bhas (?:length|area|value)|:)\s", plain)
    named = end if len(end) == 1 and not any(map(str.isdigit, start)) else []  # not the ratio 9: 10
    return [*dict.fromkeys(one for one in (said, plain, *map(undecorated, named)) if one)]


def final_number(text: str) -> Fraction | None:
    """The number that is the final answer; None if there is none.

    `44 + 24 = 68`, "**68**" and "The sum is 68." say 68; "68 or 69" says nothing.
    """
    for place in places(english(text) if len(text) <= TAIL else text):
        value = stated_number(place.text, alone=place.marked)
        if value is not None or (not place.marked and doubtful(place.text)):
            return value
    return None
