"""Recognises sentences that state a result: "The sum is 9", `4 + 5 = 9`, "which has 3 ones"; not "9 or 10"."""

from __future__ import annotations

import re
from fractions import Fraction

from ponder.core.reading.markup import ASIDE, TAIL, plain, undecorated
from ponder.core.reading.numerals import IN_TEXT, number, signed

ANSWER = r"\b(?:answer|antwort|réponse|respuesta|risposta|resposta|endergebnis)\b|答案|答え"
IS = r"\b(?:is|are|equals|ist|lautet|est|es|son|è)\b|是|为"
LEADS = rf"(?:\s{{1,9}}(?:to|of|for)\b[^\n.:=?!]{{1,60}}?)?\s{{0,9}}(?:(?:{IS})(?:\s{{0,9}}[:=])?|[:=：])\s{{0,9}}"
NAMED = re.compile(
    r"(?<!first )(?<!second )(?<!third )\b(?:result|sum|total|number|value|resultado|ergebnis|résultat|summe)\b"
    rf"(?:\s(?:so far|now|here))?{LEADS}(?:now\s)?",
    re.IGNORECASE,
)
# Words before a number that ends a sentence, which make it the sentence's result.
_RESULT = re.compile(
    r"(?:[=:≈→⇒]|->|\b(?:be|it['’]s|equal|gives?(?: us| you)?|gets?|got|becomes?|makes?|leaves?|have|to|now|of)"
    rf"|{IS})\s*$",
    re.IGNORECASE,
)
# What stands before and after a number that a sentence states as its result.
_STATING = (
    (_RESULT, re.compile(r"$")),
    (re.compile(r"\b(?:contains?|has|have|are)\s$"), re.compile(r" \w{1,20}$")),  # "which has 3 ones"
    (re.compile(rf"(?:{IS})\s*$", re.IGNORECASE), re.compile("[,;]")),
)
HEDGED = re.compile(
    r"\b(?:or|not|either|is between|about|approximately|roughly|around|maybe|perhaps|if|than|at least|at most)\b"
    r"|n['’]t\b|\?",
    re.IGNORECASE,
)
# What makes a number another one, or only a bound.
_INEXACT = re.compile(
    r"\b(?:nearly|almost)\b|(?:[~≥≤±<]|(?<![-=])>)\s{0,3}\d|\\(?:geq?|leq?|pm|sim|sqrt)\b|√"
    r"|\d\s?(?:hundred|thousand|million|billion|dozen)\b",
    re.IGNORECASE,
)
_OF_WORK = re.compile(r"[ -](?:steps?|parts?|digits?|decimals?)\b", re.IGNORECASE)  # "in 3 steps", "a 2-digit number"
_INSTRUCTS = re.compile(r"\b(?:add|subtract|multiply|divide|start)(?:s|ing)?\b", re.IGNORECASE)  # "Next, add 54"
_REASONED = re.compile(rf"({IN_TEXT.pattern})[,;]?\s(?:because|since|as|which)\b")
_UNKNOWNS = re.compile(r"\b[a-z]\s?=[^=,;]{1,30}(?:[,;]|\band\b)\s{0,3}[a-z]\s?=", re.IGNORECASE)  # "x = 9, y = 10"
_BEFORE = 40  # characters before a number that are read
# Not "one", which is a pronoun as well.
_WORDS = {"once": 1, "twice": 2} | {
    word: n
    for n, word in enumerate(
        ("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"), 2
    )
}
_ROUNDED = re.compile(r"\s{0,9}(?:≈|\\approx)\s{0,9}[\d.,]{1,30}\W{0,5}$")  # "1/6 ≈ 0.167" says 1/6
_GREATER = re.compile(r"([-+−]?\d[\d.,/]{0,30}) is (?:larger|greater|bigger|smaller|less|more|the \w{1,20}est)\b")
SHORT = 8  # words of a sentence in which a number needs no word before it: "A hexagon has 6 sides."
OPEN = re.compile(r"[=+*×÷/−-]\s*$")


def stated_number(text: str, *, alone: bool) -> Fraction | None:
    """The number that a short text states; None if there is none.

    A text that is nothing but an answer (`alone`) may hold the number anywhere; in a sentence, words around it have to
    say that it is the result.
    """
    if alone and _INEXACT.match(text.strip()):  # first, because `> 9` looks like a quote
        return None
    said = plain(signed(text[:TAIL]) if alone else text[:TAIL])
    said = undecorated(ASIDE.sub("", undecorated(_ROUNDED.sub("", signed(said))))).removesuffix("%").strip()
    if alone and (reasoned := _REASONED.match(said)):
        return number(reasoned[1])
    if alone and _UNKNOWNS.search(said):
        return None
    result = said[said.rfind("=") + 1 :]
    for part in (said, undecorated(result)):
        if (whole := number(part)) is not None:
            return whole
    if greater := _GREATER.match(said):
        return number(greater[1])
    if len(text) > TAIL or HEDGED.search(said) or _INEXACT.search(said):
        return None
    short = alone or (len(said.split()) <= SHORT and not _INSTRUCTS.search(said))
    if not any(map(str.isdigit, said)):
        return _in_words(said.lower(), short)
    return _in_digits(said, short)


def _in_words(said: str, short: bool) -> Fraction | None:
    counted = re.findall(r"[a-z]+" if short else r"[a-z]+(?= times\b)|\b(?:once|twice)\b", said)
    values = [_WORDS[word] for word in counted if word in _WORDS]
    return Fraction(values[0]) if len(values) == 1 else None


def _in_digits(said: str, short: bool) -> Fraction | None:
    if named := list(NAMED.finditer(said)):
        first = IN_TEXT.match(said, named[-1].end())
        if first and (value := _value(first)) is not None:
            return value if "=" not in said[first.end() :] else None
    result = said[said.rfind("=") + 1 :]
    numbers = [n for n in IN_TEXT.finditer(result) if not _OF_WORK.match(result, n.end())]
    if len(numbers) == 1 and (short or "=" in said):
        return _value(numbers[0])
    for before, after in _STATING:
        stated = [
            n
            for n in numbers
            if after.match(result, n.end()) and before.search(result[max(0, n.start() - _BEFORE) : n.start()])
        ]
        if len(stated) == 1:
            return _value(stated[0])
    return None


def _value(found: re.Match[str]) -> Fraction | None:
    return number(found[0].rstrip(",."))


def doubtful(sentence: str) -> bool:
    """Whether a sentence with numbers wavers or breaks off, so that no sentence before it is the answer."""
    return any(map(str.isdigit, sentence)) and bool(HEDGED.search(sentence) or OPEN.search(sentence))
