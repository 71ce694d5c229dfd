"""Finds where a reply states its final answer, as a person would: lenient about form, strict about
content.

`passages` ranks the pieces of a reply that may state its answer:

1. *marked*: the last `<answer>` tag or `\\boxed{}` that has content; else what follows the last
"answer is" or
   "Answer:"; else a line of code that ends the reply; else what stands in bold in the sentence that
   answers;
2. the *opening*, if it is nothing but an answer or repeats the question, and nothing later
concludes;
3. the *conclusion*: a sentence with "so" or "therefore", "in total", "the result is";
4. the other *claims*, from the last to the first;
5. *asides*: sentences with a condition that the question doesn't have, with "would", in brackets,
checks, and what
   others are reported to say. They are read only if nothing else states an answer.

A reader for the kind of answer (`statements` for numbers, `moments`, `texts`, `choices`) takes the
first passage that states something. Two sentences that are equally close to the question and state
different numbers give no answer. What the question itself states is not an answer if the reply
states something new. `replies.jsonl`, `prose.jsonl` and the blind sets in `tests/data` hold
labelled replies; tests hold these rules to the labels.
"""

from __future__ import annotations

import itertools
import re
from fractions import Fraction
from typing import Literal, NamedTuple

from ponder.tasks.reading.clauses import ANSWER, IS, any_of, pattern
from ponder.tasks.reading.markup import (
    ASIDE,
    EMPTY,
    LONG,
    SENTENCE,
    TAIL,
    bold_spans,
    joined_initials,
    marked,
    opening,
    plain,
    undecorated,
)
from ponder.tasks.reading.numerals import Numeral, decimal, english, number, numerals
from ponder.tasks.reading.question import Question, question_of, stem, stems
from ponder.tasks.reading.statements import LEADS, NAMED, Statement, stated_number

_FENCED = re.compile(r"```\w*\n([^\n`]{1,500})\n```\s{0,9}$")
_ANSWER_IS = re.compile(
    rf"(?<!long )(?<!longer )(?<!wrong )(?<!incorrect )(?:{ANSWER})(?:{LEADS}|[ \t]{{0,9}}\n\s{{0,9}})",
    re.IGNORECASE,
)
_BOLD_HEADING = re.compile(
    rf"\*\*([^*\n]{{0,60}}(?:{ANSWER})[^*\n]{{0,30}}?[:：]?)\*\*", re.IGNORECASE
)
# One step of several: `31 - 7 = **24**. Then 24 + 54 = 78.`
_BOLD_STEP = re.compile(
    r"=\s{0,3}\*\*[^*\n]{1,200}\*\*(?:[.\n]|,? then\b)[^*]{0,500}=\s{0,3}-?\d", re.IGNORECASE
)
_CHECKED = re.compile(
    r"(?im)^\W{0,5}(?:let(?:'s| me| us) )?(?:double-?check|check|verify|verification|proof|probe)\b"
)
# Sentences that state no answer: checks, offers, and answers that the reply only reports or rejects
_VERIFIES = pattern(
    any_of(
        r"check|double-?check|verif\w+|confirm\w*|substituting back|plugging (?:it |this |that )?back|sanity",
        r"the same (?:thing|result|answer|number|value)",
    )
)
_OFFERS = pattern(
    any_of(
        r"let me know|feel free|would you like|happy to|hope (?:this|that|it)|do you want|anything else|good luck",
        r"(?:need|want) (?:any|me|more|further) |if you (?:have|need|want|would|'d|like)",
    )
)
_REPORTS = pattern(
    any_of(
        r"(?:some|many|most|other|few|several) (?:people|students|others|sources|readers|would|might|say|think|count)",
        r"(?:some|many|most|other|few|several) \w+ (?:say|quote|claim|give|think|believe|count|call|list)",
        r"(?:some|many|most|other|few|several) \w+ (?:stop|have|include|add|treat)",
        r"(?:often|sometimes|commonly|widely|generally) (?:claimed|thought|said|believed|assumed|cited)",
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
# After an opening such as "Yes, the graph has one", these words say that the answer comes only
# later.
_TURNS = re.compile(
    r"\b(?:but|however|reconsider|therefore|thus|hence|instead|conclu\w*)\b", re.IGNORECASE
)
_EXPLAINED = re.compile(
    r"[,;]\s(?=(?:an?|also|as|because|from|he|it|meaning|named|she|since|that|the|there|they|this|we|which|who|you)\b)"
)
_BULLET = re.compile(r"[ \t]{0,9}(?:\d{1,3}[.)]|[*•-])[ \t]+(?=\S)")
_EXPLAINS_ITEM = re.compile(r"\s[–—-]\s|:\s|\s\(|;\s|,\s")
_LISTED = re.compile(r"(?:(?:^|\n)[ \t]{0,9}(?:\d{1,3}[.)]|[*•-])[ \t][^\n]{1,200}){2,100}\s{0,9}$")


# Abbreviations whose full stop ends no sentence, written out.
_WORDS = {
    "i.e": "that is,",
    "e.g": "for example",
    "vs": "versus",
    "approx": "approximately",
    "dr": "Dr",
    "mr": "Mr",
}
_WORDS |= {
    "mrs": "Mrs",
    "st": "St",
    "mt": "Mount",
    "cf": "see",
    "prof": "Professor",
    "a.m": "AM",
    "p.m": "PM",
}
_ABBREVIATED = re.compile(rf"\b({'|'.join(map(re.escape, _WORDS))})\.,?(?=\s|$)", re.IGNORECASE)
_MARKER = re.compile(r"^[ \t]{0,9}(?:#+|>|[*•-]|\d{1,3}[.)])[ \t]+(?=\S)", re.MULTILINE)
_CODE_BLOCK = re.compile(r"```[^`]{0,5000}```")
_NUMBERED = re.compile(r"^[ \t]{0,9}(\d{1,3}[.)])[ \t]", re.MULTILINE)


# "So …", "In total, …", "The result is …": a sentence that concludes
_CONCLUDES = pattern(
    r"\W*(?:→|⇒|->|=>|",
    any_of(
        r"so(?! far| that| many| much| called| do| does| is| are\b)|therefore|thus|hence|consequently|accordingly",
        r"in (?:conclusion|short|summary|total|all)|overall|altogether|all in all|as a result|to sum up|finally",
        r"this (?:means|gives|leaves|makes)|that (?:means|gives|leaves|makes)|the (?:answer|result|correct)",
    ),
    ")",
)
# Inside a sentence: "Each costs 3, so 7 of them cost 21"
_CONCLUDES_WITHIN = pattern(
    r"[,;:]\s(?:and )?(?:so|therefore|thus|hence)\s(?!far|that|many|much|called|on\b)"
)
# "If you bought ten, you would pay 30": a condition, and words that no condition is new by
_IF = pattern(r"\b(?:if|had|were|unless|suppose|assuming|imagine)\s([^,;]{1,200})")
_SUPPOSED = frozenset(
    map(stem, ("buy", "take", "get", "start", "let", "denote", "call", "know", "look", "think"))
)
_WOULD = pattern(r"\bwould(?! say)\b|\b(?:you|it|they|we|he|she|that)['’]d\b")
# "Then she buys 5 more": what a calculation goes on with
_STEP = pattern(
    any_of(
        r"then|next|finally|now|after that|total|altogether|giving|leav\w+|left|add\w*|subtract\w*"
    ),
    "|=",
)
_ENDS_BOLD = re.compile(r"\*\*([^*\n]{1,200})\*\*\W{0,3}$")  # "So it refers to **the trophy**."
_STOP_IN_BOLD = re.compile(r"([.!?])(\*\*|__)(?=\s|$)")
_LAST = 6  # sentences from the end that are read
# "…, so she has 9 left"
_THEREFORE = pattern(
    any_of(r"so|therefore|thus|hence|conclu\w*"), r"(?! (?:on|far|many|much|that|called))"
)
# "It is 9", "They're red, yellow and blue", "That comes to $9"
_CUE = pattern(
    r"\W*(?:there(?:['’]s| is| are| was| were) (?:exactly |only )?[$€£]?[-−]?\d",
    r"|(?:it|that|this|they|these|those)(?:['’]s|['’]re|\s(?:is|are|was|were|would be|comes? to|costs?|takes?|equals?",
    r"|makes?|amounts? to|works? out (?:to|at)))\s)",
)
_BARE = 4  # words of an opening that is nothing but an answer
# of the words that the question asks with, in an opening that sentences follow which calculate
_REPEATS = 0.75
_TOUCHES = 0.4  # the same, if no sentence that follows calculates
# "First add 5", `4 + 5 = 9`: steps of a calculation
_CALCULATES = pattern(
    r"[=+×÷]|",
    any_of(
        r"so|then|total|altogether|finally|next|first|second|step|left|leav\w+|remain\w*|makes?|gives?|get|we|now",
        r"add\w*|subtract\w*|multipl\w+|divid\w+",
    ),
)
# "Wait, that is wrong."
_RECONSIDERS = pattern(
    any_of(
        r"correction|on reflection|on second thought|sorry|wait|actually|oops|hold on|should be|scratch that",
        r"(?:that|this|which) (?:is|was) (?:wrong|incorrect|a mistake|not right)|I made",
        r"let me (?:redo|recount|recheck|correct)",
    )
)
# "It is either 9 or 10."
_EITHER = pattern(r"\beither\b.{1,60}\bor\b|\b(?:could|may|might) be\b.{1,60}\bor\b")


class Passage(NamedTuple):
    """A piece of a reply that may state its answer."""

    text: str
    kind: Literal["mark", "bold", "opening", "conclusion", "claim", "aside"]

    @property
    def marked(self) -> bool:
        """Return whether it is nothing but the answer: in a tag or box, in bold, or after "answer
        is".
        """
        return self.kind in ("mark", "bold")


def passages(text: str, question: Question = Question()) -> list[Passage]:  # noqa: B008 it is never changed
    """Return where the final answer may stand, the likeliest place first."""
    mark = marked(text)
    if mark is not None:
        inside, following = mark
        following = following[:TAIL]
        if not _TAKEN_BACK.search(following):
            return [Passage(inside, "mark")]
        withdrawn = Passage("" if _DROPPED.search(following) else inside, "mark")
        return _later(following, question) or [
            *_ranked(claims(following, question), question),
            withdrawn,
        ]
    tail = answer_part(text)
    labelled = _after_answer_is(tail, question)
    if labelled:
        return labelled
    code = _FENCED.search(tail)
    if code:
        return [Passage(code[1], "mark"), *_ranked(claims(tail, question), question)]
    statements = claims(tail, question)
    bold = _bold(tail, statements, question)
    if not bold and _REFUSES.search(tail):
        return []
    return [*bold, *_ranked(statements, question)]


def answer_part(text: str) -> str:
    """Return the end of a reply, without empty tags, dots of abbreviations, and a check of the
    answer.
    """
    tail = EMPTY.sub("", text.rstrip()[-TAIL:]).rstrip()
    tail = _ABBREVIATED.sub(lambda short: _WORDS[short[1].lower()], tail)
    check = _CHECKED.search(tail)
    if check and tail[: check.start()].strip():
        return tail[: check.start()]
    return tail


def sentences_of(text: str) -> list[str]:
    """Return the sentences of a text, with their marks."""
    if len(_NUMBERED.findall(text)) == 1:
        text = _NUMBERED.sub(r"\1\n", text)  # "55. This is the sum" is not an item of a list
    text = _ABBREVIATED.sub(lambda short: _WORDS[short[1].lower()], text)
    without_code = _CODE_BLOCK.sub(
        lambda block: "\n" if block[0].count("\n") > 2 else block[0], text
    )
    if without_code.strip():
        text = without_code
    text = _MARKER.sub("", text)
    text = joined_initials(text)
    text = _STOP_IN_BOLD.sub(r"\2\1", text)
    return [sentence for sentence in SENTENCE.split(text) if plain(sentence).strip()]


def claims(text: str, question: Question) -> list[Passage]:
    """Return the sentences of a text that may state its answer, in order, without greetings and
    offers.
    """
    statements: list[Passage] = []
    for marked_sentence in sentences_of(text):
        sentence = plain(marked_sentence)
        if _OFFERS.search(sentence) or _GREETS.match(sentence):
            continue
        first = not statements
        if _CONCLUDES.match(sentence) or (question and _CONCLUDES_WITHIN.search(sentence)):
            kind: Literal["conclusion", "claim", "aside"] = "conclusion"
        elif _is_aside(sentence, question, first=first):
            kind = "aside"
        else:
            kind = "claim"
        statements.append(Passage(sentence, kind))
    return statements


def _is_aside(sentence: str, question: Question, *, first: bool) -> bool:
    """Return whether a sentence speaks of something else than what is asked, so that it never
    overrules an answer.
    """
    if _ASIDES.match(sentence) or _REPORTS.search(sentence):
        return True
    if _is_hypothetical(sentence, question, first=first):
        return True
    return not first and bool(_VERIFIES.search(sentence))


def _is_hypothetical(sentence: str, question: Question, *, first: bool) -> bool:
    """Return whether a sentence depends on something that the question doesn't say: "If you bought
    ten, …".
    """
    if not question:
        return False
    if _THEREFORE.search(sentence):
        return False
    condition = _IF.search(sentence)
    if condition and _WOULD.search(sentence) and not first:
        return True
    if condition:
        words = [
            term
            for term in stems(condition[1])
            if term not in question.words and term not in _SUPPOSED
        ]
        return bool(words)
    if first or _CUE.match(sentence):
        return False
    return bool(_WOULD.search(sentence)) and question.overlap(sentence) < _TOUCHES


def _ranked(statements: list[Passage], question: Question) -> list[Passage]:
    """Return sentences by how likely they state the answer: the opening, the conclusion, then the
    others from the end.

    What follows the conclusion comes after it, unless it calculates further. Asides come last.
    """
    asides = [passage for passage in statements if passage.kind == "aside"]
    firm = [passage for passage in statements if passage.kind != "aside"]
    first = _opening(firm, question)
    ordered = firm[::-1]
    conclusions = [n for n, passage in enumerate(ordered) if passage.kind == "conclusion"]
    if conclusions:
        n = conclusions[0]
        later = [
            passage
            for passage in ordered[:n]
            if not _continues(passage.text, ordered[n].text, question)
        ]
        ordered = (
            [passage for passage in ordered[: n + 1] if passage not in later]
            + later
            + ordered[n + 1 :]
        )
    return [*first, *ordered[:_LAST], *asides[: -_LAST - 1 : -1]]


def _continues(sentence: str, earlier: str, question: Question) -> bool:
    """Return whether a sentence after a conclusion goes on with the calculation or corrects it."""
    if _RECONSIDERS.search(sentence) or _STEP.search(sentence):
        return True
    return question.overlap(sentence) > question.overlap(earlier)


def _opening(firm: list[Passage], question: Question) -> list[Passage]:
    """Return the first sentence, if it is nothing but an answer or repeats the question, and no
    later one concludes.
    """
    if len(firm) < 2 or not question or len(firm) > 20:
        return []
    first = firm[0].text
    later = [passage.text for passage in firm[1:]]
    following = " ".join(later)
    if (
        _RECONSIDERS.search(following)
        or _THEREFORE.search(following)
        or first.rstrip().endswith(("?", ":"))
    ):
        return []
    if any(passage.kind == "conclusion" for passage in firm[1:]):
        return []
    stated = {numeral.form for numeral in numerals(first.partition("=")[0])}
    calculated = "=" in first and question.numbers <= stated and not _CALCULATES.search(following)
    if calculated or _CUE.match(first) or _is_bare(first):
        return [Passage(first, "opening")]
    overlap = question.overlap(first)
    least = _REPEATS if _CALCULATES.search(following) else _TOUCHES
    if overlap < least or overlap <= max(map(question.overlap, later)) or _TURNS.search(following):
        return []
    return [Passage(first, "opening")]


def _is_short(sentence: str) -> bool:
    """Return whether a sentence can only be meant as an answer: "9.", "There are 9."."""
    return _is_bare(sentence) or (bool(_CUE.match(sentence)) and len(sentence.split()) <= _BARE)


def _is_bare(sentence: str) -> bool:
    """Return whether a sentence is nothing but an answer: "90 degrees.", "Blue, yellow and red."."""
    if len(stems(sentence)) <= 2 and len(sentence.split()) <= _BARE:
        return True
    enumerates = "," in sentence and len(sentence.split()) <= 2 * _BARE
    return enumerates and not re.search(rf"\d|{IS}", sentence)


def _later(text: str, question: Question) -> list[Passage]:
    """Return what a text that takes an answer back puts in its place."""
    return _after_answer_is(text, question) or _corrected(text)


def _after_answer_is(text: str, question: Question) -> list[Passage]:
    """Return what follows the last "answer is" or "Answer:"."""
    text = _BOLD_HEADING.sub(r"\1", text)
    ends = [
        match.end() for match in _ANSWER_IS.finditer(text) if not _supposes(text, match, question)
    ]
    following = text[ends[-1] :].lstrip("*_: \t\n") if ends else ""
    if not following:
        return []
    line, *later_lines = following.splitlines()
    if _TAKEN_BACK.search("\n".join(later_lines)):
        correction = "\n".join(later_lines)
        corrected = _corrected(correction) or _ranked(claims(correction, Question()), Question())
        return [*corrected, Passage(opening(line), "mark")]
    if _EQUATION.fullmatch(SENTENCE.split(line)[0]) or (
        later_lines and later_lines[0].lstrip().startswith("=")
    ):
        steps = itertools.takewhile(_EQUATION.fullmatch, filter(str.strip, later_lines))
        return [Passage(plain([SENTENCE.split(line)[0], *steps][-1]), "mark")]
    bold = [Passage(span, "mark") for span in bold_spans(line)]
    return bold if len(bold) == 1 else [Passage(opening(following), "mark")]


def _supposes(text: str, match: re.Match[str], question: Question) -> bool:
    """Return whether "answer is" is said of another question: "If you meant tin, the answer would
    be …".
    """
    before = SENTENCE.split(text[max(0, match.start() - LONG) : match.start()])
    sentence = before[-1] + match[0]
    first = not plain("".join(before[:-1])).strip()
    return not first and _is_hypothetical(sentence, question, first=False)


def _corrected(text: str) -> list[Passage]:
    """Return what "the correct number is 75" puts in place of an earlier answer."""
    labelled = [plain(text)[match.end() :] for match in NAMED.finditer(plain(text))]
    return [Passage(opening(labelled[-1]), "mark")] if labelled else []


def _bold(text: str, statements: list[Passage], question: Question) -> list[Passage]:
    """Return what stands in bold: the only such words, else those of the sentence that answers the
    question.
    """
    if _BOLD_STEP.search(text):
        return []
    firm = {passage.text for passage in statements if passage.kind != "aside"}
    sentences = [sentence for sentence in sentences_of(text) if plain(sentence) in firm]
    spans = [_answers_in_bold(sentence, question) for sentence in sentences]
    distinct = list(dict.fromkeys(span for sentence_spans in spans for span in sentence_spans))
    if len(distinct) == 1:
        return [Passage(distinct[0], "bold")]
    if not sentences:
        return []
    if not question:
        return [Passage(span, "bold") for span in spans[-1][-1:]]
    answering = _answering_sentence(sentences, question)
    in_answer = spans[answering] or _ENDS_BOLD.findall(sentences[answering])
    if len(set(in_answer)) == 1:
        return [Passage(in_answer[0], "bold")]
    return []


def _answering_sentence(sentences: list[str], question: Question) -> int:
    """Return the index of the last conclusion, else of the sentence that repeats most of the
    question.
    """
    concluding = [n for n, sentence in enumerate(sentences) if _CONCLUDES.match(plain(sentence))]
    if concluding:
        return concluding[-1]
    overlaps = [question.overlap(sentence) for sentence in sentences]
    return overlaps.index(max(overlaps)) if max(overlaps) >= _TOUCHES else len(sentences) - 1


def _answers_in_bold(sentence: str, question: Question) -> list[str]:
    """Return what a sentence puts in bold, without words of the question."""
    spans = bold_spans(sentence)
    return [span for span in spans if not (stems(span) and question.words.issuperset(stems(span)))]


def bullets(text: str) -> list[str]:
    """Return the items of the only bulleted or numbered list of a reply, without their
    explanations.
    """
    blocks: list[list[str]] = []
    inside = False
    for line in text[-TAIL:].splitlines():
        item = _BULLET.match(line)
        if item and not inside:
            blocks.append([])
        if item:
            blocks[-1].append(_item_head(line[item.end() :]))
        if line.strip():
            inside = bool(item)
    blocks = [block for block in blocks if len(block) > 1]
    return blocks[0] if len(blocks) == 1 else []


def _item_head(line: str) -> str:
    """Return what an item of a list names, without its explanation: "Judicial – interprets the
    laws".
    """
    bold = re.match(r"\s*\*\*([^*\n]{1,100})\*\*", line)
    head = bold[1] if bold else _EXPLAINS_ITEM.split(line, maxsplit=1)[0]
    return undecorated(plain(head)).rstrip(":, ")


def final(text: str) -> str | None:
    """Return the final answer as text; None if there is none."""
    if marked(text) is None and text.rstrip().endswith("?"):
        return None
    for passage in sorted(passages(text), key=lambda passage: not passage.marked):
        if passage.marked and (answer := passage.text.strip()):
            return answer
        if not passage.marked and (plain := undecorated(_after_named(passage.text))):
            return None if _UNDECIDED.search(passage.text) else plain
    return None


def _after_named(sentence: str) -> str:
    labelled = list(NAMED.finditer(sentence))
    return sentence[labelled[-1].end() :] or sentence if labelled else sentence


def readings(text: str, like: str, question: str = "") -> list[str]:
    """Return every way to read the final answer: without marks, as it stands, and the end of "The
    capital is Paris".

    If the right answer (`like`) is a number, the first reading is the number, and without a number
    there is no reading.
    """
    answer = final(text)
    if answer is None:
        return []
    if number(like) is not None:
        value = final_number(text, question)
        return (
            [] if value is None else [*dict.fromkeys([decimal(value), undecorated(answer), answer])]
        )
    ways = ways_to_read(answer)
    if marked(text) is None:
        ways += [
            ", ".join(plain(line) for line in items[0].strip().splitlines())
            for items in _LISTED.finditer(text[-TAIL:])
        ]
        # A reply without steps opens with its answer: "The symbol is Au, from aurum. It is a
        # metal."
        if len(text) <= TAIL and not (
            _after_answer_is(text, question_of(question))
            or _TURNS.search(text)
            or _TAKEN_BACK.search(text)
        ):
            first = _LINKED.split(opening(text), maxsplit=1)[-1]
            ways += [first, _EXPLAINED.split(first)[0]]
    return [
        *dict.fromkeys(way for way in map(undecorated, ways) if way),
        *([answer] if answer != undecorated(answer) else []),
    ]


def ways_to_read(answer: str) -> list[str]:
    """Return the ways to read an answer that stands alone: without marks or brackets, the end of
    "The name is X".
    """
    bare = undecorated(answer)
    without_aside = ASIDE.sub("", bare)
    ways = [bare, answer, without_aside, _LINKED.split(bare)[-1]]
    if not without_aside.isascii():
        ways += [aside[0].strip(" ()（）") for aside in ASIDE.finditer(bare)]  # 渥太华 (Ottawa)
    return ways


def expressions(answer: str) -> list[str]:
    """Return every way to read a mathematical answer: as it stands, without marks, the end of "the
    length is 2√3".
    """
    plain = undecorated(answer)
    start, *end = re.split(rf"(?:{IS}|\bhas (?:length|area|value)|:)\s", plain)
    # not the ratio 9: 10
    labelled = end if len(end) == 1 and not any(map(str.isdigit, start)) else []
    return [*dict.fromkeys(span for span in (answer, plain, *map(undecorated, labelled)) if span)]


def final_number(text: str, question: str = "") -> Fraction | None:
    """Return the number that is the final answer; None if there is none.

    `44 + 24 = 68`, "**68**" and "The sum is 68." say 68; "68 or 69" says nothing. With the question
    it is clear that "36 is 15% of 240" says 36.
    """
    numeral = number_statement(text, question_of(question)).numeral
    return numeral.value if numeral else None


def number_statement(text: str, question: Question) -> Statement:
    """Return the number that is the final answer, with the words around it; none if the reply
    contradicts it.
    """
    text = english(text) if len(text) <= TAIL else text
    repeated = Statement()
    for passage in passages(text, question):
        statement = stated_number(passage.text, question, alone=passage.marked)
        if statement.numeral is not None:
            stated_before = question.states(statement.numeral)
            if passage.kind == "bold" and stated_before:  # "**2.5 hours** is 150 minutes"
                repeated = statement
            elif passage.kind == "opening" and stated_before and len(passage.text.split()) > _BARE:
                continue  # "She starts with 12 apples."
            elif passage.kind != "mark" and _contradicted(
                statement.numeral, passage, text, question
            ):
                return Statement(doubtful=True)
            else:
                return statement
        elif statement.doubtful and not passage.marked:
            return repeated if repeated.numeral else statement
    return repeated


def _contradicted(numeral: Numeral, passage: Passage, text: str, question: Question) -> bool:
    """Return whether a sentence that is as close to the question states another number, or wavers
    about this one.
    """
    if not question:
        return False
    statements = [claim for claim in claims(answer_part(text), question) if claim.kind != "aside"]
    homes = [n for n, claim in enumerate(statements) if plain(passage.text).strip() in claim.text]
    if not homes:
        return False
    home = homes[0] if passage.kind in ("opening", "bold") else homes[-1]
    answer = statements[home]
    bare = passage.kind == "opening" and _is_bare(passage.text)
    calculated = _is_bare(answer.text) or bool(
        _CALCULATES.search(answer.text) or NAMED.search(answer.text)
    )
    closeness = max(question.overlap(answer.text), _TOUCHES)
    for n, claim in enumerate(statements):
        values = {other.value for other in numerals(claim.text)}
        if _EITHER.search(claim.text) and numeral.value in values:
            return True
        other = stated_number(claim.text, question, alone=False).numeral
        differs = other is not None and other.value != numeral.value and not question.states(other)
        if (
            n == 0
            and n != home
            and differs
            and _is_short(claim.text)
            and not _RECONSIDERS.search(text)
        ):
            return True
        if (
            n == home
            or not differs
            or answer.kind == "conclusion"
            or _WOULD.search(claim.text)
            or claim.text.rstrip().endswith(":")
        ):
            continue
        if n < home and (n > 0 or calculated or _CALCULATES.search(claim.text)):
            continue
        refers = bool(_CUE.match(claim.text)) and len(values) == 1
        names = bare and bool(NAMED.search(claim.text))
        if not refers and not names and (bare or question.overlap(claim.text) < closeness):
            continue
        return True
    return False
