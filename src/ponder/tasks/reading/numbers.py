"""Reads the number that a reply states: "The sum is 9", `4 + 5 = 9`, "it takes 9 s"; not "9 or 10".

In the clause that concludes a sentence it is what stands after the last equals sign; else the only
number that the question doesn't have; else the one with the noun that is asked for; else the one
that a verb of result stands before. A sentence that wavers or denies states nothing, and neither do
the sentences before it.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import NamedTuple

from ponder.tasks.reading.candidates import (
    DENIES,
    HEDGED,
    IS,
    RECONSIDERS,
    Passage,
    answer_part,
    any_of,
    conclusion,
    firm_claims,
    passages,
    pattern,
    refers,
)
from ponder.tasks.reading.markup import ASIDE, LONG, TAIL, plain, undecorated
from ponder.tasks.reading.question import Question, question_of
from ponder.tasks.reading.values import (
    Numeral,
    number,
    numerals,
    with_english_numbers,
    with_signs,
)

_SHORT = (
    8  # words of a sentence in which a number needs no word before it: "A hexagon has 6 sides."
)
_BARE = 4  # words of an opening that is nothing but an answer
_TOUCHES = 0.4  # of the question's words, in a sentence that is about what is asked
_BEFORE = 60  # characters before a number that are read

# What makes a number another one, or only a bound
_INEXACT_BEFORE = pattern(
    r"(?:\b(?:nearly|almost|about|approximately|roughly|around|over|under|above|below|close to",
    r"|(?:more|less|fewer|greater|larger|smaller|bigger) than)\s(?:the\s)?",
    r"|[~≥≤±<≈]\s{0,3}|(?<![-=])>\s{0,3}|\\(?:geq?|leq?|pm|sim)\s{0,3})\$?$",
)
_ROUNDING = pattern(r"(?:\b(?:about|approximately|roughly|around)\s|[~≈]\s{0,3})\$?$")
_ROUNDED = pattern(r"\s{0,9}(?:≈|\\approx)\s{0,9}[\d.,]{1,30}\W{0,5}$")
_ROOT = pattern(r"(?:\\sqrt\{?|√)\s?$")
_UNKNOWNS = pattern(r"\b[a-z]\s?=[^=,;]{1,30}(?:[,;]|\band\b)\s{0,3}[a-z]\s?=")  # "x = 9, y = 10"
_CONDITIONAL = pattern(any_of("if (?:so|not)|otherwise|depending on"))
_BREAKS_OFF = pattern(r"(?:[=+*×÷/−,-]|\b(?:and|or|the|of|to|an?|by|with|then|so|is))\s*$")
_EITHER = pattern(r"\b(?:either|(?:could|may|might) be)\b.{1,60}\bor\b")
# "First, add 5": a step to be taken, not its result
_INSTRUCTS = pattern(
    r"^\W*(?:first|next|now|then|finally|let's|let us|just|simply|,|\s",
    r"|(?:you|we) (?:need to|must))*",
    r"(?:add|subtract|multiply|divide|start|compute|calculate|convert|take|try|use)(?:s|ing)?\b",
)

# Numbers that are not results: "in 3 steps", "4 years older than", "15 % of 240", operands
_OPERATOR = r"times|plus|minus|divided by|multiplied by"
_MONTH = r"(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]{0,6}\.?"
_NOT_A_RESULT_AFTER = pattern(
    rf"(?:st|nd|rd|th)?\.?\s{_MONTH}\s\d|,\s\d{{4}}\b|",
    r"[ -](?:steps?|parts?|digits?|decimals?|ways|sentences)\b|\s(?:\w+\s)?(?:older|younger|more",
    r"|less|fewer|longer|shorter|taller|higher|lower|larger|greater) than\b",
    rf"|\s?(?:[+*×÷^·]|(?<=\s)[-−/]|{_OPERATOR})\s?[\d(]",
)
_NOT_A_RESULT_BEFORE = pattern(
    rf"(?:\b(?:step|part|line|case)\s|[\d)%]\s?(?:[+*×÷^·−/-]|{_OPERATOR})\s?\$?)$"
)

# Words that stand before a result
_COPULA = pattern(
    r"(?:[=→⇒]|->|\b(?:be|equals?|equal to|gives?|get|yields?|makes?|leaves?|resulting in|to get",
    rf"|it['’]s|x)|{IS})\s*[$€£]?$",
)
_RESULT_VERB = any_of(
    r"be|equals?|equal to|gives?|giving|gets?|got|yields?|yielding|makes?|making|takes?|costs?",
    r"pays?|owes?|saves?|needs?|requires?|has|have|had|holds?|contains?|leaves?|leaving|becomes?|totals?",
    r"(?:comes?(?: out)?|amounts?|adds? up|sums?|works? out|evaluates?|simplifies|leads?) to",
    r"equates? to",
    r"results? in|resulting in|down to|up to|rises to|falls? to|drops? to|to get|to|of|finds?",
    r"found",
    r"obtains?|counts?|appears?|remains?|ends? (?:up )?(?:at|with)|reach(?:es)?|with|now",
    r"it['’]s|that['’]s|there['’]s",
)
_RESULT = pattern(
    rf"(?:[=:≈→⇒]|->|=>|{_RESULT_VERB}|['’]re|{IS})",
    r"(?:\s(?:us|you|me|her|him|them|only|exactly|just|now|then|precisely|still|a total of|thus",
    r"|therefore|indeed|actually|simply|currently))*\s*[$€£(\"“'*]{0,3}$",
)
# Without the question, only a number that ends its clause is its result: "The sum is 9".
_ENDS = pattern(r"(?:\s?(?:%|[^\W\d]{1,20}))?\s?(?:$|[,;!])")
_ARROW = pattern(r"\s?(?:→|⇒|->|=>)\s?")
_SEGMENT = pattern(
    r";\s|,\s(?:and\s|then\s)?|:\s|\s(?:and|then)\s",
    r"(?=(?:[\w'’]+\s){0,4}?(?:is|are|was|were|gives?|makes?|has|have|pays?|\w+ed)\b)",
)


class Statement(NamedTuple):
    """What a sentence states: a number, nothing, or that its writer doesn't know (`doubtful`)."""

    numeral: Numeral | None = None
    clause: str = ""  # the text in which the number stands
    doubtful: bool = False


_NOTHING = Statement()
_DOUBT = Statement(doubtful=True)


def final_number(text: str, question: str = "") -> Fraction | None:
    """Return the number that is the final answer; None if there is none.

    `44 + 24 = 68`, "**68**" and "The sum is 68." say 68; "68 or 69" says nothing. With the question
    it is clear that "36 is 15% of 240" says 36.
    """
    numeral = number_statement(text, question_of(question)).numeral
    return numeral.value if numeral else None


def number_statement(text: str, question: Question) -> Statement:
    """Return the final number, with its clause; none if the reply contradicts it."""
    if len(text) <= TAIL:
        text = with_english_numbers(text)
    repeated = _NOTHING
    for passage in passages(text, question):
        statement = stated_number(passage.text, question, alone=passage.marked)
        if statement.numeral is None:
            if statement.doubtful and not passage.marked:
                return repeated if repeated.numeral else statement
            continue
        repeats = question.states(statement.numeral)
        if passage.kind == "bold" and repeats:  # "**2.5 hours** is 150 minutes"
            repeated = statement
            continue
        if passage.kind == "opening" and repeats and len(passage.text.split()) > _BARE:
            continue  # "She starts with 12 apples."
        if passage.kind != "mark" and _contradicted(statement.numeral, passage, text, question):
            return _DOUBT
        return statement
    return repeated


def _contradicted(numeral: Numeral, passage: Passage, text: str, question: Question) -> bool:
    """Return whether a sentence wavers about a number, or a first or later one states another."""
    if not question or RECONSIDERS.search(text):
        return False
    statements = firm_claims(answer_part(text), question)
    homes = [n for n, claim in enumerate(statements) if plain(passage.text).strip() in claim.text]
    if not homes:
        return False
    home = homes[0] if passage.kind in ("opening", "bold") else homes[-1]
    closeness = max(question.overlap(statements[home].text), _TOUCHES)
    for n, claim in enumerate(statements):
        values = {quantity.value for quantity in numerals(claim.text)}
        if _EITHER.search(claim.text) and numeral.value in values:
            return True
        if n == home or (0 < n < home) or claim.text.rstrip().endswith(":"):
            continue
        later_claim = n > home and statements[home].kind != "conclusion"
        answers = later_claim and question.overlap(claim.text) >= closeness
        if not answers and not refers(claim.text):
            continue
        stated = stated_number(claim.text, question, alone=False).numeral
        if stated and stated.value != numeral.value and not question.states(stated):
            return True
    return False


def stated_number(sentence: str, question: Question, *, alone: bool) -> Statement:
    """Return the number that a sentence states.

    A text that is nothing but an answer (`alone`) may hold the number anywhere; in a sentence,
    words around it, or that the question doesn't have it, have to say that it is the result.
    """
    if alone and len(sentence) <= TAIL:
        bare = undecorated(sentence)
        value = number(bare)
        if value is not None:
            return Statement(Numeral(value, 0, len(bare), bare), bare)
    if len(sentence) > LONG:
        return _NOTHING
    # first, as `> 9` looks like a quote
    if alone and _INEXACT_BEFORE.fullmatch(sentence.strip()[:2].strip()):
        return _DOUBT
    text = _prepared(sentence, question, alone=alone)
    if not numerals(text):
        return _NOTHING
    if (alone and _UNKNOWNS.search(text)) or _CONDITIONAL.search(text) or _BREAKS_OFF.search(text):
        return _DOUBT
    if alone:
        leading = _leading(undecorated(ASIDE.sub("", text)))
        if leading.numeral or leading.doubtful:
            return leading
    adds = any(not question.states(numeral) for numeral in numerals(text))

    def holds(segment: str) -> bool:
        """Return whether a number may be the result: a new one, if the sentence has any."""
        for numeral in _candidates(segment):
            if not (adds and question.states(numeral)) or _follows(_COPULA, numeral, segment):
                return True
        return False

    clause = conclusion(text, holds, question)
    before_colon, colon, after_colon = clause.partition(": ")
    if colon and holds(before_colon) and not _INSTRUCTS.search(before_colon):
        clause = before_colon
    elif colon:
        clause = after_colon
    if DENIES.search(clause):
        return _DOUBT
    in_clause = numerals(clause)
    if not in_clause:
        return _NOTHING
    last = in_clause[-1]
    if _INSTRUCTS.search(clause) and not (
        _follows(_RESULT, last, clause) or question.names(last, clause)
    ):
        return _NOTHING
    if _wavers(clause):
        return _DOUBT
    return _result(clause, question, short=alone or len(text.split()) <= _SHORT)


def _prepared(sentence: str, question: Question, *, alone: bool) -> str:
    """Return a sentence without marks and without an approximation of its result."""
    sentence = sentence.replace("{,}", ",")
    if alone:
        sentence = with_signs(sentence)
    text = with_signs(plain(sentence))
    rounded = _ROUNDED.search(text)
    if rounded:
        exact = numerals(text[: rounded.start()])[-1:]
        if any(question.states(numeral) for numeral in exact):  # asked to round: "3.14159 ≈ 3.14"
            text = text.replace("≈", "=").replace("\\approx", "=")
        else:  # "1/6 ≈ 0.167" says 1/6
            text = text[: rounded.start()]
    return question.with_counts(undecorated(text))


def _follows(words: re.Pattern[str], numeral: Numeral, text: str) -> bool:
    """Return whether such words stand right before a number."""
    return bool(words.search(text[max(0, numeral.start - _BEFORE) : numeral.start]))


_OPENS = pattern(r"(?:\W|exactly|just|only|indeed|simply|therefore|x|=|RM|USD|EUR)*")
_CALCULATES = pattern(r"[=+*×÷/(]|(?<!\$)[-−](?=\s)")
_UNIT_AFTER = pattern(r"^\s?(?:\\?%|per\s?cent\b|°)?\s?[A-Za-z°/²³$€£]{0,12}")
_EXPLAINS = pattern(
    r"\s{0,3}(?:$|[.;!(]|[,:–—]\s(?!\s{0,3}\$?\d)(?!or\b)",
    r"|(?:because|since|as|which|when|for|in|per|after|of them|of the|left)\b)",
)
_GOES_ON = pattern(
    r"\s?(?:or|and|to|plus|minus|times|divided|x|mod)\b|\s{0,3}[,;]?\s{0,3}(?:or|and|to)\s\S{0,3}\d"
)


def _leading(text: str) -> Statement:
    """Return the number that a marked answer opens with: "55, the sum of 1 to 10"."""
    first = next(iter(numerals(text)), None)
    if first is None:
        return _NOTHING
    before = text[: first.start]
    after = text[first.end :]
    if not _OPENS.fullmatch(before) or _INEXACT_BEFORE.search(before):
        return _NOTHING
    if _CALCULATES.search(before.replace("x =", "").lstrip("= ")):
        return _NOTHING
    if _ROOT.search(before):
        return _DOUBT
    if _GOES_ON.match(after) or not _EXPLAINS.match(_UNIT_AFTER.sub("", after, count=1)):
        return _NOTHING
    return Statement(first, text)


def _wavers(clause: str) -> bool:
    """Return whether a clause only guesses. "3/4 or 0.75" says one thing twice."""
    hedges = {hedge[0].lower() for hedge in HEDGED.finditer(clause)}
    if hedges == {"or"}:
        return len({numeral.value for numeral in numerals(clause)}) > 1
    return bool(hedges)


def _candidates(clause: str) -> list[Numeral]:
    """Return the numbers of a clause that could be a result."""
    candidates = []
    for numeral in numerals(clause):
        if _NOT_A_RESULT_AFTER.match(clause, numeral.end):
            continue
        if _follows(_NOT_A_RESULT_BEFORE, numeral, clause) or _follows(_ROOT, numeral, clause):
            continue
        candidates.append(numeral)
    return candidates


def _result(clause: str, question: Question, *, short: bool) -> Statement:
    """Return the number that a clause states which neither wavers nor denies."""
    clause = _ARROW.sub(" = ", clause)
    if "=" in clause:
        return _equated(clause, question)
    candidates = _candidates(clause)
    added = [numeral for numeral in candidates if not question.states(numeral)]
    added = [numeral for numeral in added if not numeral.in_words] or added
    if not added:
        return _repeated(clause, candidates, question)
    if _agree(added):
        if short or question or _is_result(added[0], clause, question):
            return _exact(added[0], clause, question)
        return _NOTHING
    return _one_of_several(clause, added, question)


def _agree(quantities: list[Numeral]) -> bool:
    """Return whether there are numbers, and all have the same value."""
    return len({numeral.value for numeral in quantities}) == 1


def _is_result(numeral: Numeral, clause: str, question: Question) -> bool:
    if not _follows(_RESULT, numeral, clause):
        return False
    return bool(question) or bool(_ENDS.match(clause, numeral.end))


def _equated(clause: str, question: Question) -> Statement:
    """Return the number after the last equals sign."""
    result = clause[clause.rfind("=") + 1 :]
    quantities = numerals(result)
    if not quantities:
        return _NOTHING
    first = quantities[0]
    before = result[: first.start].strip(" $€£*~")
    is_operand = re.match(r"\s?(?:[-+*×÷/^]\s?[\d(]|\()", result[first.end :])
    if _agree(quantities) or (not before and not is_operand):
        return _exact(first, result, question)
    return _one_of_several(result, quantities, question)


def _one_of_several(clause: str, added: list[Numeral], question: Question) -> Statement:
    """Return which of several new numbers is the result: with the noun that is asked for, or as
    the only one after a verb of result in the part that is closest to the question.
    """
    with_noun = [numeral for numeral in added if question.names(numeral, clause)]
    if _agree(with_noun):
        return _exact(with_noun[0], clause, question)
    starts = [0, *(match.end() for match in _SEGMENT.finditer(clause))]
    ends = [*starts[1:], len(clause)]
    closest: list[Numeral] = []
    highest = -1.0
    for start, end in zip(starts, ends, strict=True):
        inside = [numeral for numeral in added if start <= numeral.start < end]
        overlap = question.overlap(clause[start:end])
        if inside and overlap > highest:
            closest = inside
            highest = overlap
        elif overlap == highest:
            closest = closest + inside
    results = [numeral for numeral in closest if _is_result(numeral, clause, question)]
    if _agree(closest) and question:
        return _exact(closest[0], clause, question)
    if _agree(results):
        return _exact(results[0], clause, question)
    return _DOUBT


def _repeated(clause: str, quantities: list[Numeral], question: Question) -> Statement:
    """Return the result of a clause that has no other numbers than the question."""
    with_noun = [numeral for numeral in quantities if question.names(numeral, clause)]
    if _agree(with_noun) and (
        with_noun[0].start == 0 or _is_result(with_noun[0], clause, question)
    ):
        return _exact(with_noun[0], clause, question)
    quantities = [numeral for numeral in quantities if not numeral.in_words] or quantities
    results = [numeral for numeral in quantities if _follows(_COPULA, numeral, clause)]
    if _agree(results):
        return _exact(results[0], clause, question)
    if len(quantities) == 1 and len(clause.split()) <= 3:
        return _exact(quantities[0], clause, question)
    return _NOTHING


def _exact(numeral: Numeral, clause: str, question: Question) -> Statement:
    """Return a number unless it is only a bound or a guess.

    One with decimals may be rounded, and any number if the question asks for that: "about 3.14".
    """
    may_be_rounded = numeral.value.denominator > 1 or question.rounds or "10^" in numeral.written
    rounded = may_be_rounded and _follows(_ROUNDING, numeral, clause)
    if _follows(_ROOT, numeral, clause):
        return _DOUBT
    if _follows(_INEXACT_BEFORE, numeral, clause) and not rounded:
        return _DOUBT
    return Statement(numeral, clause)
