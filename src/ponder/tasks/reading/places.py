"""Finds the final answer in a model's reply, where a person would: lenient about form, strict about content.

The rules, in order. An answer stands

1. in the last `<answer>` tag or `\\boxed{}` that has content, unless the reply takes it back afterwards;
2. else after the last "answer is" or "Answer:";
3. else in what the reply puts in bold, if only one thing is, or in a code block that ends it;
4. else in the first sentence, if that is nothing but an answer or repeats the question: explanations follow it;
5. else in the last sentence that states something, which `statements` (numbers), `texts` and `choices` read.

What the question itself states is not an answer if the reply states something new. A reply that
wavers ("9 or 10", "about 9", "not 9") states nothing. `replies.jsonl` and `prose.jsonl` in
`tests/data` have hundreds of replies, of real models and in the manner of others, labelled by
reading them; tests hold these rules to the labels.
"""

from __future__ import annotations

import itertools
import re
from fractions import Fraction
from typing import Literal, NamedTuple

from ponder.tasks.reading.clauses import ANSWER, IS, any_of, pattern
from ponder.tasks.reading.marks import EMPTY, marked
from ponder.tasks.reading.markup import ASIDE, SENTENCE, TAIL, bold_spans, opening, plain, undecorated
from ponder.tasks.reading.numerals import decimal, english, number, numerals
from ponder.tasks.reading.question import Question, question_of, stems
from ponder.tasks.reading.statements import LEADS, NAMED, Statement, stated_number

_FENCED = re.compile(r"```\w*\n([^\n`]{1,500})\n```\s{0,9}$")
_ANSWER_IS = re.compile(rf"(?:{ANSWER})(?:{LEADS}|[ \t]{{0,9}}\n\s{{0,9}})", re.IGNORECASE)
_BOLD_HEADING = re.compile(rf"\*\*([^*\n]{{0,60}}(?:{ANSWER})[^*\n]{{0,30}}?[:：]?)\*\*", re.IGNORECASE)
# One step of several: `31 - 7 = **24**. Then 24 + 54 = 78.`
_BOLD_STEP = re.compile(r"=\s{0,3}\*\*[^*\n]{1,200}\*\*(?:[.\n]|,? then\b)[^*]{0,500}=\s{0,3}-?\d", re.IGNORECASE)
_CHECKED = re.compile(r"(?im)^\W{0,5}(?:let(?:'s| me| us) )?(?:double-?check|check|verify|verification|proof|probe)\b")
# Sentences that state no answer: checks, offers, and answers that the reply only reports or rejects
_VERIFIES = pattern(
    any_of(r"check|double-?check|verif\w+|confirm\w*|substituting back|plugging (?:it |this |that )?back|sanity")
)
_OFFERS = pattern(
    any_of(
        r"let me know|feel free|would you like|happy to|hope (?:this|that|it)|do you want|anything else|good luck",
        r"(?:need|want) (?:any|me|more|further) |if you (?:have|need|want|would|'d|like)",
    )
)
_REJECTS = pattern(
    any_of(
        r"(?:some|many|most|other|few|several) (?:people|students|others|sources|readers|would|might|say|think|count)",
        r"(?:one|you|people|others) (?:might|may|could|often|sometimes|would)|common (?:mistake|error|misconception)",
        r"too (?:small|large|big|low|high|much|many|few|far|short|long)|mistakenly|tempting|at first",
    )
)
_GREETS = pattern(
    r"^\W*(?:(?:that's|what|this is) )?(?:an? )?",
    any_of(
        "great|good|excellent|nice|interesting|sure|certainly|of course|thanks?|hello|hi|okay|ok|alright|absolutely"
    ),
    r"(?:\W{0,3}(?:question|thing|one|you|point|geography|maths?|there|problem|i'd be happy to help))*\W*$",
)
_ASIDES = pattern(
    r"^\W*\([^()]*\)\W*$|^\W*",
    any_of(
        r"(?:this|it|that)(?:'s| is) like|think of|imagine|for (?:example|instance|comparison)",
        r"by (?:comparison|contrast)|fun fact|note that|remember that|by the way|incidentally|similarly",
    ),
)
_REFUSES = pattern(
    any_of(
        r"I(?:['’]m| am) (?:not (?:sure|certain|able)|unable|unsure|afraid)",
        r"I (?:can(?:['’]t|not| not)|could(?: not|n['’]t)|do(?: not|n['’]t) (?:know|have)|have no (?:idea|way))",
        r"I(?:['’]d| would)? need (?:more|to know)|(?:impossible|not possible) to (?:say|tell|know|determine)",
        r"(?:cannot|can['’]t) be determined|not enough information|need more information|no idea",
    )
)
_TAKEN_BACK = re.compile(
    r"\b(?:correction|mistake|error|incorrect|wrong|disregard|ignore|on reflection|on second thought|not right|sorry"
    r"|wait|edit|actually|oops|hold on|should be|scratch that|let me (?:redo|recount|recheck|correct))\b",
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


# Abbreviations whose full stop ends no sentence, written out.
_WORDS = {"i.e": "that is,", "e.g": "for example", "vs": "versus", "approx": "approximately", "dr": "Dr", "mr": "Mr"}
_WORDS |= {"mrs": "Mrs", "st": "St", "cf": "see", "prof": "Professor"}
_ABBREVIATED = re.compile(rf"\b({'|'.join(map(re.escape, _WORDS))})\.,?(?=\s)", re.IGNORECASE)
_NUMBERED = re.compile(r"^[ \t]{0,9}(\d{1,3}[.)])[ \t]", re.MULTILINE)


class Place(NamedTuple):
    """A piece of a reply that may state its answer."""

    text: str
    kind: Literal["mark", "bold", "opening", "sentence"]

    @property
    def marked(self) -> bool:
        """Whether it is nothing but the answer: in a tag or box, in bold, or after "answer is"."""
        return self.kind in ("mark", "bold")


def places(text: str, question: Question = Question()) -> list[Place]:  # noqa: B008 it is never changed
    """Where the final answer may stand, the likeliest place first."""
    if (found := marked(text)) is not None:
        inside, rest = found
        if not _TAKEN_BACK.search(rest := rest[:TAIL]):
            return [Place(inside, "mark")]
        return _later(rest) or [*_sentences(rest), Place("" if _DROPPED.search(rest) else inside, "mark")]
    tail = EMPTY.sub("", text.rstrip()[-TAIL:]).rstrip()
    tail = _ABBREVIATED.sub(lambda short: _WORDS[short[1].lower()], tail)
    if check := _CHECKED.search(tail):
        tail = tail[: check.start()] if tail[: check.start()].strip() else tail
    if said := _after_answer_is(tail):
        return said
    fenced = _FENCED.search(tail)
    bold = [Place(fenced[1], "mark")] if fenced else _bold(tail, question)
    if not bold and _REFUSES.search(tail):
        return []
    return [*bold, *_opening(tail, question), *_sentences(tail)]


def sentences_of(text: str) -> list[str]:
    """The sentences of a text that may state something: no greetings, offers and checks."""
    if len(_NUMBERED.findall(text)) == 1:
        text = _NUMBERED.sub(r"\1\n", text)  # "55. This is the sum" is no item of a list
    sentences = [s for s in SENTENCE.split(plain(text)) if s and not s.isspace()]
    kept = [s for s in sentences if not _OFFERS.search(s) and not _GREETS.match(s)]
    kept = [s for s in kept if not _ASIDES.match(s)] or kept
    without_checks = [s for n, s in enumerate(kept) if n == 0 or not _VERIFIES.search(s)]
    claims = [s for s in without_checks if not _REJECTS.search(s)]
    return claims or without_checks or sentences


def _sentences(text: str) -> list[Place]:
    """The last sentences, the last first."""
    return [Place(sentence, "sentence") for sentence in sentences_of(text)[:-7:-1]]


def _opening(text: str, question: Question) -> list[Place]:
    """The first sentence, if it is nothing but an answer or repeats the question, and no later one concludes."""
    first, *later = sentences_of(text) or [""]
    if not (first and later and question) or len(later) > 20:
        return []
    following = " ".join(later)
    if _RECONSIDERS.search(following) or _THEREFORE.search(following) or first.rstrip().endswith(("?", ":")):
        return []
    stated = {numeral.form for numeral in numerals(first.partition("=")[0])}
    calculated = "=" in first and question.numbers <= stated and not _CALCULATES.search(following)
    if calculated or _CUE.match(first) or (len(stems(first)) <= 2 and len(first.split()) <= _BARE):
        return [Place(first, "opening")]
    overlap = question.overlap(first)
    least = _REPEATS if _CALCULATES.search(following) else _TOUCHES
    if overlap < least or overlap <= max(map(question.overlap, later)) or _TURNS.search(following):
        return []
    return [Place(first, "opening")]


_THEREFORE = pattern(any_of(r"so|therefore|thus|hence|conclu\w*"), r"(?! (?:on|far|many|much|that|called))")
_CUE = pattern(
    r"\W*(?:it|that|this|there)(?:['’]s| is| are| was| were| would be) (?:exactly |only )?[$€£]?[-−]?\d",
)
_BARE = 4  # words of an opening that is nothing but an answer
_REPEATS = 0.75  # of the words that the question asks with, in an opening that sentences follow which calculate
_TOUCHES = 0.4  # the same, if no sentence that follows calculates
_CALCULATES = pattern(
    r"[=+×÷]|",
    any_of(
        r"so|then|total|altogether|finally|next|first|second|step|left|leav\w+|remain\w*|makes?|gives?|get|we|now",
        r"add\w*|subtract\w*|multipl\w+|divid\w+",
    ),
)
_RECONSIDERS = pattern(
    any_of(
        r"correction|on reflection|on second thought|sorry|wait|actually|oops|hold on|should be|scratch that",
        r"(?:that|this|which) (?:is|was) (?:wrong|incorrect|a mistake|not right)|I made",
        r"let me (?:redo|recount|recheck|correct)",
    )
)


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
        return [*(_corrected(more_text := "\n".join(more)) or _sentences(more_text)), Place(opening(line), "mark")]
    if _EQUATION.fullmatch(line) or (more and more[0].lstrip().startswith("=")):
        steps = itertools.takewhile(_EQUATION.fullmatch, filter(str.strip, more))
        return [Place(plain([line, *steps][-1]), "mark")]
    bold = [Place(one, "mark") for one in bold_spans(line)]
    return bold if len(bold) == 1 else [Place(opening(rest), "mark")]


def _corrected(text: str) -> list[Place]:
    """What "the correct number is 75" puts in place of an earlier answer."""
    named = [plain(text)[match.end() :] for match in NAMED.finditer(plain(text))]
    return [Place(opening(named[-1]), "mark")] if named else []


def _bold(text: str, question: Question) -> list[Place]:
    """What stands in bold, if only one thing does, or if it is in the last sentence; not words of the question."""
    spans = list(dict.fromkeys(bold_spans(text)))
    spans = [span for span in spans if not (stems(span) and question.words.issuperset(stems(span)))]
    if len(spans) == 1 and _BOLD_STEP.search(text):
        return []
    last = [s for s in SENTENCE.split(text.rstrip()) if s and not s.isspace()][-1:]
    in_last = [span for span in bold_spans(last[0]) if span in spans] if last else []
    return [Place(one, "bold") for one in (spans if len(spans) == 1 else in_last[-1:])]


def final(text: str) -> str | None:
    """The final answer as text; None if there is none."""
    if marked(text) is None and text.rstrip().endswith("?"):
        return None
    for place in sorted(places(text), key=lambda place: not place.marked):
        if place.marked and (said := place.text.strip()):
            return said
        if not place.marked and (plain := undecorated(_after_named(place.text))):
            return None if _UNDECIDED.search(place.text) else plain
    return None


def _after_named(sentence: str) -> str:
    named = list(NAMED.finditer(sentence))
    return sentence[named[-1].end() :] or sentence if named else sentence


def readings(text: str, like: str, question: str = "") -> list[str]:
    """Every way to read the final answer: without marks, as it stands, and the end of "The capital is Paris".

    If the right answer (`like`) is a number, the first reading is the number, and without a number there is no reading.
    """
    said = final(text)
    if said is None:
        return []
    ways = [undecorated(said), said]
    if number(like) is not None:
        value = final_number(text, question)
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


def final_number(text: str, question: str = "") -> Fraction | None:
    """The number that is the final answer; None if there is none.

    `44 + 24 = 68`, "**68**" and "The sum is 68." say 68; "68 or 69" says nothing. With the question it is clear that
    "36 is 15% of 240" says 36.
    """
    numeral = number_statement(text, question_of(question)).numeral
    return numeral.value if numeral else None


def number_statement(text: str, question: Question) -> Statement:
    """The number that is the final answer, with the words around it."""
    repeated = Statement()
    for place in places(english(text) if len(text) <= TAIL else text, question):
        statement = stated_number(place.text, question, alone=place.marked)
        if statement.numeral is not None:
            stated_before = question.states(statement.numeral)
            if place.kind == "bold" and stated_before:  # "**2.5 hours** is 150 minutes"
                repeated = statement
            elif place.kind == "opening" and stated_before and len(place.text.split()) > _BARE:
                continue  # "She starts with 12 apples."
            else:
                return statement
        elif statement.doubtful and not place.marked:
            return repeated if repeated.numeral else statement
    return repeated
