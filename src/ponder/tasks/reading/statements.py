"""Reads the number that a sentence states: "The sum is 9", `4 + 5 = 9`, "so it takes 9 seconds";
not "9 or 10".

In the clause that concludes the sentence it is, in this order: what a comparison answers the
question with; what "sum is" or an equals sign stands before; the only number that the question
doesn't have; the one with the noun that is asked for; the one that a verb of result stands before;
of several such clauses, the one that is closest to the question, else the last. A sentence that
wavers or denies states nothing, and neither do the sentences before it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from ponder.tasks.reading.clauses import (
    CONDITIONAL,
    DENIES,
    HEDGED,
    INSTRUCTS,
    IS,
    any_of,
    conclusion,
    pattern,
)
from ponder.tasks.reading.markup import ASIDE, LONG, TAIL, plain, undecorated
from ponder.tasks.reading.numerals import Numeral, number, numerals, signed
from ponder.tasks.reading.question import Question

LEADS = (
    r"(?:\s{1,9}(?:to|of|for)\b[^\n.:=?!]{1,60}?)?\s{0,9}"
    rf"(?:(?:{IS})(?:\s{{0,9}}[:=])?|[:=：])\s{{0,9}}"
)
NAMED = pattern(
    r"(?<!first )(?<!second )(?<!third )",
    any_of(
        "result", "sum", "total", "number", "value", "resultado", "ergebnis", "résultat", "summe"
    ),
    rf"(?:\s(?:so far|now|here))?{LEADS}(?:now\s)?",
)
SHORT = 8  # words of a sentence in which a number needs no word before it: "A hexagon has 6 sides."
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
_BREAKS_OFF = pattern(r"(?:[=+*×÷/−,-]|\b(?:and|or|the|of|to|an?|by|with|then|so|is))\s*$")

# Numbers that are no results: "in 3 steps", "Step 3", "4 years older than", the day of a date,
# operands
_OF_WORK = pattern(r"[ -](?:steps?|parts?|digits?|decimals?|ways|sentences)\b")
_NAME_BEFORE = pattern(
    any_of(
        "step",
        "part",
        "section",
        "chapter",
        "line",
        "figure",
        "table",
        "question",
        "grade",
        "rule",
        "case",
    ),
    r"\s$",
)
_DIFFERENCE = pattern(
    r"\s(?:\w+\s)?",
    any_of("older|younger|more|less|fewer|longer|shorter|taller|higher|lower|larger|greater"),
    r" than\b",
)
_MONTH = r"(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]{0,6}\.?"
_DATE = pattern(
    rf"\b({_MONTH}\s)\d{{1,2}}(?:st|nd|rd|th)?,?\s(?=\d{{4}}\b)|\b\d{{1,2}}\.?\s({_MONTH}\s)(?=\d{{4}}\b)"
)
_PERCENT_OF = pattern(r"\d[\d.,]{0,20}\s?(?:%|percent|per cent) of \S{0,3}\d[\d.,]{0,20}")
_OPERATOR = r"times|plus|minus|divided by|multiplied by"
_OPERATOR_AFTER = pattern(rf"\s?(?:[+*×÷^·]|(?<=\s)[-−/]|{_OPERATOR})\s?[\d(]")
_OPERATOR_BEFORE = pattern(rf"[\d)%]\s?(?:[+*×÷^·−/-]|{_OPERATOR})\s?\$?$")
_COMPOSITE = pattern(r"\b(?:hours?|days?|weeks?|years?|feet|pounds?|dollars?)(?:,| and)? $")

# Words that stand before a result
_COPULA = pattern(
    r"(?:[=→⇒]|->|\b(?:be|equals?|equal to|gives?|get|yields?|makes?|leaves?|resulting in|to get|it['’]s|x)",
    rf"|{IS})\s*[$€£]?$",
)
_APPOSED = pattern(r"\b(?:is|was)\s[^,\d]{1,40},\s$")  # "the median is the third one, 7"
_VERB = any_of(
    r"be|equals?|equal to|equates? to|gives?|giving|gets?|got|yields?|yielding|makes?|making|takes?|costs?|pays?",
    r"owes?|saves?|needs?|requires?|has|have|had|holds?|contains?|leaves?|leaving|becomes?|becoming|totals?|totall?ing",
    r"comes? (?:out )?to|amounts? to|adds? up to|sums? to|works? out (?:to|as)|evaluates? to|simplifies to|leads? to",
    r"results? in|resulting in|down to|up to|rises to|falls? to|drops? to|to get|to|of",
    r"brings? (?:us|it|you|the \w+) to",
    r"finds?|found|obtains?|counts?|appears?|remains?|ends? (?:up )?(?:at|with)|reach(?:es)?|with|now",
    r"it['’]s|that['’]s|there['’]s",
)
_RESULT = pattern(
    rf"(?:[=:≈→⇒]|->|=>|{_VERB}|['’]re|{IS})",
    r"(?:\s(?:us|you|me|her|him|them|only|exactly|just|now|then|precisely|still|a total of|thus|therefore|indeed",
    r"|actually|simply|currently))*\s*[$€£(\"“'*]{0,3}$",
)
# Without the question, only a number that ends its clause is its result: "The sum is 9", "which has
# 3 ones".
_ENDS = pattern(r"(?:\s?(?:%|[^\W\d]{1,20}))?\s?(?:$|[,;!])")
_SEGMENT = pattern(
    r";\s|,\s(?:and\s|then\s)?|:\s|\s(?:and|then)\s",
    r"(?=(?:[\w'’]+\s){0,4}?(?:is|are|was|were|gives?|makes?|has|have|pays?|\w+ed)\b)",
)
_WITHIN = pattern(r"\bin\s$")
_ARROW = pattern(r"\s?(?:→|⇒|->|=>)\s?")

_COMPARATIVE = (
    r"(?:\b(?:larger|greater|bigger|higher|more|longer|heavier|taller|older|smaller|less|lower|fewer|shorter|lighter"
    r"|younger|largest|greatest|biggest|highest|smallest|lowest|least)(?=\W|$)(\sthan\b)?|[<>])"
)
_COMPARED = pattern(_COMPARATIVE)
_ASKS_TO_COMPARE = pattern(_COMPARATIVE, r"(?!\s(?:terms|form|common|prime))")
_MORE = ("larg", "great", "bigg", "high", "more", "long", "heav", "tall", "old", ">")
_COMPARES = pattern(
    r"\bthan\b|[<>]|est\b|\bof the two\b",
    r"|\b(?:is|are)\s(?:the\s)?\w+(?:\s(?:number|one|fraction|value))?$",
)
# Words in quotation marks are spoken of, so that `"Not Found" is 404` denies nothing. A quoted
# number stays.
_QUOTED = pattern(r"[\"“](?=[^\"“”]*[^\W\d_])[^\"“”\n]{1,80}[\"”]")


class Statement(NamedTuple):
    """What a sentence states: a number, nothing, or that its writer doesn't know (`doubtful`)."""

    numeral: Numeral | None = None
    clause: str = ""  # the text in which the number stands
    doubtful: bool = False


_DOUBT = Statement(doubtful=True)


def stated_number(sentence: str, question: Question, *, alone: bool) -> Statement:
    """Return the number that a sentence states.

    A text that is nothing but an answer (`alone`) may hold the number anywhere; in a sentence,
    words around it, or that the question doesn't have it, have to say that it is the result.
    """
    bare_number = _whole(sentence) if alone and len(sentence) <= TAIL else Statement()
    if bare_number.numeral or len(sentence) > LONG:
        return bare_number
    # first, as `> 9` looks like a quote
    if alone and _INEXACT_BEFORE.fullmatch(sentence.strip()[:2].strip()):
        return _DOUBT
    text = _prepared(sentence, question, alone=alone)
    if not numerals(text):
        return Statement()
    if (alone and _UNKNOWNS.search(text)) or CONDITIONAL.search(text) or _BREAKS_OFF.search(text):
        return _DOUBT
    if alone:
        leading = _leading(undecorated(ASIDE.sub("", text)))
        if leading.numeral or leading.doubtful:
            return leading
    text = _restated(text, question)
    adds = any(not question.states(numeral) for numeral in numerals(text))

    def holds(segment: str) -> bool:
        """Return whether a number of the part may be the result: a new one, if the sentence has
        any.
        """
        quantities = _candidates(segment)
        if any(
            _follows(_COPULA, numeral, segment) or question.names(numeral, segment)
            for numeral in quantities
        ):
            return True
        return any(not (adds and question.states(numeral)) for numeral in quantities)

    clause = conclusion(
        text, holds, lambda segment: bool(numerals(segment)), question=question, numeric=True
    )
    if DENIES.search(clause):
        return _DOUBT
    compared = _compared(clause, question)
    if compared is not None:
        return compared
    in_clause = numerals(clause)
    if not in_clause:
        return Statement()
    last = in_clause[-1]
    if (
        INSTRUCTS.search(clause)
        and not _follows(_RESULT, last, clause)
        and not question.names(last, clause)
    ):
        return Statement()
    if _wavers(clause):
        return _DOUBT
    return _result(clause, question, short=alone or len(text.split()) <= SHORT)


def _restated(text: str, question: Question) -> str:
    """Return the part of a sentence that repeats all numbers of a question: "25% of 80 is 20, which
    leaves 60".
    """
    if question.asked or not question.numbers:
        return text
    for segment in re.split(r",\s(?:which|leaving)\s|;\s", text):
        values = {numeral.form for numeral in numerals(segment)}
        if question.numbers <= values and len(values) == len(question.numbers) + 1:
            return segment
    return text


def _whole(text: str) -> Statement:
    """Return the number that a text is, without any words."""
    text = undecorated(text)
    value = number(text)
    return Statement() if value is None else Statement(Numeral(value, 0, len(text), text), text)


def _prepared(sentence: str, question: Question, *, alone: bool) -> str:
    """Return a sentence without marks, quoted words, days of dates, and an approximation of its
    result.
    """
    sentence = sentence.replace("{,}", ",")
    text = plain(signed(sentence) if alone else sentence)
    text = signed(_QUOTED.sub(lambda quote: re.sub(r"[^\W_]", "q", quote[0]), text))
    rounded = _ROUNDED.search(text)
    if rounded:
        exact = numerals(text[: rounded.start()])[-1:]
        if any(question.states(numeral) for numeral in exact):  # asked to round: "3.14159 ≈ 3.14"
            text = text.replace("≈", "=").replace("\\approx", "=")
        else:  # "1/6 ≈ 0.167" says 1/6
            text = text[: rounded.start()]
    text = _DATE.sub(lambda date: date[1] or date[2], undecorated(text))
    return question.with_counts(text)


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
    """Return the number that an answer opens with, if what follows explains it: "55, the sum of 1
    to 10".
    """
    first = next(iter(numerals(text)), None)
    if first is None:
        return Statement()
    before = text[: first.start]
    after = text[first.end :]
    if not _OPENS.fullmatch(before) or _INEXACT_BEFORE.search(before):
        return Statement()
    if _CALCULATES.search(before.replace("x =", "").lstrip("= ")):
        return Statement()
    if _ROOT.search(before):
        return _DOUBT
    if _GOES_ON.match(after) or not _EXPLAINS.match(_UNIT_AFTER.sub("", after, count=1)):
        return Statement()
    return Statement(first, text)


def _wavers(clause: str) -> bool:
    """Return whether a clause only guesses. "3/4 or 0.75" says one thing twice."""
    hedges = {hedge[0].lower() for hedge in HEDGED.finditer(clause)}
    if hedges == {"or"}:
        return (
            len(numerals(clause)) > 1 and len({numeral.value for numeral in numerals(clause)}) > 1
        )
    return bool(hedges)


def _compared(clause: str, question: Question) -> Statement | None:
    """Return the number that a comparison answers with: "9.11 is smaller than 9.9"; None if it is
    none.
    """
    comparison = _COMPARED.search(clause)
    if comparison is None or not _COMPARES.search(clause, max(0, comparison.start() - 12)):
        return None
    results = [numeral for numeral in numerals(clause) if not _OF_WORK.match(clause, numeral.end)]
    sides = [numeral for numeral in results if question.states(numeral) or not question]
    before = [numeral for numeral in sides if numeral.end <= comparison.start()]
    after = [numeral for numeral in sides if numeral.start >= comparison.end()]
    if not question:
        asks_for_more = comparison[0].strip().lower().startswith(("larg", "great", "bigg", ">"))
        if len(before) == len(after) == 1 and asks_for_more:
            return Statement(before[0], clause)
        return _DOUBT if re.search(r"\bthan\b|[<>]", clause) else None
    named_quantity = _ASKS_TO_COMPARE.search(question.text)
    if named_quantity is None:
        return None
    agrees = comparison[0].strip().lower().startswith(_MORE) == named_quantity[
        0
    ].strip().lower().startswith(_MORE)
    if not before and len(after) == 1 and not comparison[1]:  # "The larger number is 9.11"
        return Statement(after[0], clause) if agrees else _DOUBT
    if not before:
        return None
    if len({numeral.value for numeral in before}) > 1:
        return _DOUBT
    if agrees:
        return Statement(before[0], clause)
    return Statement(after[0], clause) if after else _DOUBT


def _result(clause: str, question: Question, *, short: bool) -> Statement:
    """Return the number that a clause states, which neither wavers nor denies."""
    labelled = _named(clause)
    if labelled is not None:
        return _exact(labelled, clause, question)
    clause = _ARROW.sub(" = ", clause)
    if "=" in clause:
        return _equated(clause, question)
    candidates = _candidates(clause)
    added = [numeral for numeral in candidates if not question.states(numeral)]
    added = _in_digits(added) or added
    if len({numeral.value for numeral in added}) == 1:
        if short or question or _is_result(added[0], clause, question):
            return _exact(added[0], clause, question)
        return Statement()
    if added:
        return _one_of_several(clause, added, question)
    return _repeated(clause, candidates, question)


def _in_digits(quantities: list[Numeral]) -> list[Numeral]:
    return [numeral for numeral in quantities if not numeral.in_words]


def _named(clause: str) -> Numeral | None:
    """Return the number after "The sum is", unless another result follows."""
    names = list(NAMED.finditer(clause))
    if not names:
        return None
    end = names[-1].end()
    first = next((numeral for numeral in numerals(clause) if end <= numeral.start <= end + 2), None)
    if first is None or re.search(r"=|^\s?[-+*×÷/]", clause[first.end :]):
        return None
    later = [n for n in _candidates(clause) if n.start > first.end and _follows(_COPULA, n, clause)]
    return None if later else first


def _equated(clause: str, question: Question) -> Statement:
    """Return the number after the last equals sign."""
    result = clause[clause.rfind("=") + 1 :]
    quantities = numerals(result)
    if not quantities:
        return Statement()
    first = quantities[0]
    before = result[: first.start].strip(" $€£*~")
    operand = re.match(r"\s?(?:[-+*×÷/^]\s?[\d(]|\()", result[first.end :])
    if (not before or len(quantities) == 1) and not operand:
        return _exact(first, result, question)
    if len({numeral.value for numeral in quantities}) == 1:
        return _exact(first, result, question)
    return _one_of_several(result, quantities, question)


def _one_of_several(clause: str, added: list[Numeral], question: Question) -> Statement:
    """Return which of several new numbers is the result."""
    named_quantity = _asked_for(added, clause, question)
    if named_quantity:
        return _exact(named_quantity, clause, question)
    results = [numeral for numeral in added if _is_result(numeral, clause, question)]
    segments = [segment for segment in _segments(clause) if segment.has(added)]
    overlaps = {segment: question.closeness(segment.with_subject(clause)) for segment in segments}
    if len(set(overlaps.values())) < 2 and len({numeral.value for numeral in results}) == 1:
        return _exact(results[0], clause, question)
    if question:
        results = added
    segments = [segment for segment in segments if segment.has(results)]
    if len(segments) < 2:
        unique = len({numeral.value for numeral in results}) == 1
        return _exact(results[0], clause, question) if unique and results else _DOUBT
    closest = max(segments, key=lambda segment: (overlaps[segment], segment.start))
    inside = [numeral for numeral in results if closest.has([numeral])]
    if len({numeral.value for numeral in inside}) > 1:
        return _DOUBT
    return _exact(inside[0], clause, question)


# What a clause speaks of: "World War II" of "World War II began in 1939"
_SUBJECT = re.compile(r"(?:[Tt]he\s\w+|\w+)(?:\s(?:[A-Z]\w*|of|the|\d+))*(?=\s[a-z])")


class _Segment(NamedTuple):
    """One of the coordinated parts of a clause."""

    start: int
    text: str

    def has(self, quantities: list[Numeral]) -> bool:
        return any(
            self.start <= numeral.start < self.start + len(self.text) for numeral in quantities
        )

    def with_subject(self, clause: str) -> str:
        """Return its words, with those before it if it has no subject: "began in 1939 and ended in
        1945".
        """
        if not self.start or not re.match(r"\w+(?:ed|s)\b", self.text):
            return self.text
        subject = _SUBJECT.match(clause)
        return f"{subject[0]} {self.text}" if subject else self.text


def _segments(clause: str) -> list[_Segment]:
    starts = [0, *(match.end() for match in _SEGMENT.finditer(clause))]
    ends = [*starts[1:], len(clause)]
    return [_Segment(start, clause[start:end]) for start, end in zip(starts, ends, strict=True)]


def closest_segment(clause: str, question: Question, holds: Callable[[str], bool]) -> str:
    """Return the coordinated part of a clause that repeats most of the question, among those that
    hold something.
    """
    segments = [segment for segment in _segments(clause) if holds(segment.text)]
    if not segments:
        return clause
    overlaps = [question.overlap(segment.with_subject(clause)) for segment in segments]
    closest = [
        segment
        for segment, overlap in zip(segments, overlaps, strict=True)
        if overlap == max(overlaps)
    ]
    return closest[0].text if len(closest) == 1 else clause


def _repeated(clause: str, quantities: list[Numeral], question: Question) -> Statement:
    """Return the result of a clause that has no other numbers than the question."""
    named_quantity = _asked_for(quantities, clause, question)
    if named_quantity and (
        named_quantity.start == 0
        or _is_result(named_quantity, clause, question)
        or _follows(_WITHIN, named_quantity, clause)
    ):
        return _exact(named_quantity, clause, question)
    if named_quantity and re.match(r"\stimes\b", clause[named_quantity.end :]):
        return _exact(named_quantity, clause, question)
    quantities = _in_digits(quantities) or quantities
    results = [numeral for numeral in quantities if _follows(_COPULA, numeral, clause)]
    last = quantities[-1:]
    if (
        not results
        and last
        and _follows(_APPOSED, last[0], clause)
        and not clause[last[0].end :].strip(" .!")
    ):
        results = last
    if len({numeral.value for numeral in results}) == 1:
        return _exact(results[0], clause, question)
    if len(quantities) == 1 and len(clause.split()) <= 3:
        return _exact(quantities[0], clause, question)
    return Statement()


def _asked_for(candidates: list[Numeral], clause: str, question: Question) -> Numeral | None:
    """Return the only number that has the noun which the question asks for, such as "minutes"."""
    labelled = [
        n for n in candidates if question.names(n, clause) and not _follows(_COMPOSITE, n, clause)
    ]
    return labelled[0] if len({numeral.value for numeral in labelled}) == 1 else None


def _is_result(numeral: Numeral, clause: str, question: Question) -> bool:
    if not _follows(_RESULT, numeral, clause):
        return False
    return bool(question) or bool(_ENDS.match(clause, numeral.end))


def _candidates(clause: str) -> list[Numeral]:
    """Return the numbers of a clause that could be a result."""
    segments = [match.span() for match in _PERCENT_OF.finditer(clause)]
    quantities = []
    for numeral in numerals(clause):
        if any(start <= numeral.start < end for start, end in segments):
            continue
        if any(
            words.match(clause, numeral.end) for words in (_OF_WORK, _DIFFERENCE, _OPERATOR_AFTER)
        ):
            continue
        if any(
            _follows(words, numeral, clause) for words in (_NAME_BEFORE, _ROOT, _OPERATOR_BEFORE)
        ):
            continue
        quantities.append(numeral)
    return quantities


def _exact(numeral: Numeral, clause: str, question: Question) -> Statement:
    """Return a number unless it is only a bound or a guess.

    One with decimals may be rounded, and any number if the question asks for that: "about 3.14".
    """
    rounded = _follows(_ROUNDING, numeral, clause) and (
        numeral.value.denominator > 1 or question.rounds or "10^" in numeral.written
    )
    if _follows(_ROOT, numeral, clause) or (
        _follows(_INEXACT_BEFORE, numeral, clause) and not rounded
    ):
        return _DOUBT
    return Statement(numeral, clause)
