"""Reads a reply's answer and compares it with the right one, by the kind of the right one.

What is read depends on the reply, on the question, and on the kind of the right answer: a choice,
yes or no, a date or time, a number, one of the alternatives that the question names, a list, or a
text. It doesn't depend on the right answer itself, except that a text or a list in the middle of a
sentence is recognised by it. A reply whose sentences contradict each other is not read.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import NamedTuple

from ponder.tasks.reading.choices import choice
from ponder.tasks.reading.clauses import HEDGED, any_of, conclusion, pattern
from ponder.tasks.reading.conclusion import (
    Passage,
    bullets,
    claims,
    number_statement,
    passages,
    readings,
    ways_to_read,
)
from ponder.tasks.reading.markup import LONG, TAIL, plain, undecorated
from ponder.tasks.reading.moments import Moment, moment, moments
from ponder.tasks.reading.numerals import (
    Numeral,
    decimal,
    denominator_in_words,
    in_words,
    number,
    numerals,
    signed,
)
from ponder.tasks.reading.question import Question, question_of, stems
from ponder.tasks.reading.statements import Statement, closest_segment
from ponder.tasks.reading.texts import (
    asserts,
    chosen_alternative,
    complement,
    explicit_yes_no,
    implied_yes_no,
    is_verb,
    items,
    listed,
    mentions_all,
    names_items,
    new_words,
    same_answer_text,
    same_items,
    same_text,
    simplified,
)  # fmt: skip

# Units of one dimension, each with what it is called. Two numbers with different units of one
# dimension are not equal.
_UNITS = (
    ("s sec secs second seconds", "min mins minute minutes", "h hr hrs hour hours", "day days", "week weeks",
     "month months", "year years", "ms millisecond milliseconds"),
    ("mm millimetre millimetres millimeter millimeters", "cm centimetre centimetres centimeter centimeters",
     "m metre metres meter meters", "km kilometre kilometres kilometer kilometers", "mile miles mi", "inch inches",
     "ft foot feet"),
    ("mg milligram milligrams", "g gram grams", "kg kilogram kilograms kilo kilos", "t ton tons tonne tonnes",
     "lb lbs pound pounds"),
    ("ml millilitre millilitres milliliter milliliters", "l litre litres liter liters"),
    ("cent cents ¢", "$ dollar dollars usd", "€ euro euros eur"),
    ("kb kilobyte kilobytes", "mb megabyte megabytes", "gb gigabyte gigabytes", "tb terabyte terabytes"),
    ("degree degrees °", "radian radians"),
    ("celsius c", "fahrenheit f"),
    ("mph", "kmh"),
    ("n newton newtons",), ("j joule joules",), ("w watt watts",), ("v volt volts",), ("a amp amps ampere amperes",),
    ("pa pascal pascals",), ("hz hertz",), ("k kelvin",), ("mol moles",), ("ohm ohms Ω",), ("u units unit",),
)  # fmt: skip
_TEMPERATURE = 7  # the dimension of Celsius and Fahrenheit, after the degrees
_UNIT = {
    name: (kind, names)
    for kind, group in enumerate(_UNITS)
    for names in group
    for name in names.split()
}
# `84 cm²`, `2.5 m/s^2`, `12 square metres`, `40 °C`
_WITH_UNIT = pattern(
    r"[$€£]?\s?[-−+]?[\d.,/]+(?:\s(?:hundred|thousand|million|billion))?(?:\s?[×x*]\s?10\^\{?[-−]?\d+\}?)?",
    r"\s?((?:square|cubic)\s)?((?:[^\W\d_²³]{1,20}|°[CF]?|%)(?:[²³]|\^?-?[23])?(?:(?:\s?[/·*]\s?|\sper\s)[^\W\d]{1,20}(?:[²³]|\^?[23])?)?)",
)
_DEGREES = pattern(r"^\s?(?:°|degrees?)\s?([CF]\b|Celsius|Fahrenheit)")
_ASKED_UNIT = pattern(r"\bhow many ([^\W\d]+)|\bin (?:degrees |whole |full )?([^\W\d]+)\b")
_ASKS_FOR_RATE = pattern(r"\bin [^\W\d]+\s?(?:/|per )\s?\w")
_IS_RATE = pattern(r"\s?(?:mph|kmh|kph|[^\W\d]+\s?(?:[/²³^·*]|(?:for )?(?:per|an?|each|every)\b))")
_LOWEST_TERMS = r"lowest terms?|simplest (?:form|terms)|simplif|\breduced?\b|irreducible"
_AS_A_FRACTION = r"\bas a (?:\w+ )?fraction"
_AS_A_DECIMAL = r"\b(?:as|in|to) (?:a )?decimal"

# How a reply in sentences changes its mind: "Yes … Wait, it's no."
_TURNS = pattern(
    any_of("wait", "actually", "correction", "sorry", "scratch that", "reconsider", "mistake")
)
_CONCLUDES = pattern(r"\W*(?:so|therefore|thus|hence|in (?:conclusion|short|summary)|overall)\b")
# "It is …", "They were …": a first sentence that refers to what is asked
_REFERS = pattern(r"\W*(?:it|that|this|they|he|she|you)\b")
_WAVERS = pattern(
    any_of("either", "or", "one of(?! the)", "maybe", "perhaps", "might", "could be", "may be")
)
_CLAUSE_END = re.compile(r";\s|,\s(?:and|but|while)\s")
# "…, while A and D are not"
_CONTRASTED = pattern(r",?\s(?:while|whereas|unlike|in contrast to)\s.*$|,\swhich\s.*$")
_STATES = pattern(r"\s(?:is|are|was|were)\s")
_LETTER_OF_GOLD = re.compile(r"\W?([A-Ja-j])[).:]\s*(\S.*)?")  # `C) Mercury`
# Questions whose answer is the same list in any order: "Name the primary colours.", "What are the
# factors of 30?"
_ANY_ORDER = pattern(r"\b(?:name|list|which|what are|who (?:are|were)|identify|state)\b")
_IN_ORDER = pattern(
    any_of(
        r"sort\w*|order\w*|arrang\w+|rank\w*|sequence|first|next|last|from|ascending|descending|alphabetical\w*|smallest",
        r"largest|chronolog\w+|revers\w+|output|print\w*|coordinates?|range|steps?|\(x, ?y\)|pair|respectively|vertex",
        r"before|after|order|convert|between",
    ),
    r"|`|\[",
)


class Reading(NamedTuple):
    """The answer that was read from a reply, and whether it is right."""

    parsed: str
    right: bool

    @property
    def why(self) -> str:
        return "" if self.right else "wrong answer"


def read(reply: str, gold: str, question: str = "") -> Reading | None:
    """Return the answer that a reply gives and whether it is right; None if it gives none, or
    several.
    """
    asked_question = question_of(question)
    reply = _after_thinking(reply)
    letter = _letter_of(gold, asked_question)
    if letter:
        return _choice(reply, letter, asked_question)
    if simplified(gold) in ("yes", "no", "true", "false"):
        return _yes_no(reply, simplified(gold), asked_question)
    right_moment = moment(gold)
    if right_moment is not None:
        return _moment(reply, right_moment, asked_question)
    right_number = _number_of(gold)
    if right_number is not None:
        return _number(reply, gold, right_number, asked_question)
    if any(same_text(gold, alternative) for alternative in asked_question.alternatives):
        return _alternative(reply, gold, asked_question)
    gold_items = items(gold)
    if len(gold_items) > 1:
        return _list(reply, gold, gold_items, asked_question)
    return _text(reply, gold, asked_question)


def _after_thinking(reply: str) -> str:
    """Return what follows the thinking of a reply; all of it if its thinking isn't closed, or
    nothing follows.
    """
    for tag in ("</think>", "</thinking>"):
        following = reply.rpartition(tag)[2]
        if following.strip():
            reply = following
    return reply


def _letter_of(gold: str, question: Question) -> str | None:
    """Return the letter of the option that is right: for `C`, `C) Mercury` and `Mercury`."""
    options = question.options
    if not options:
        return None
    if simplified(gold).upper() in options:
        return simplified(gold).upper()
    lettered = _LETTER_OF_GOLD.fullmatch(gold.strip())
    if lettered and lettered[1].upper() in options:
        return lettered[1].upper()
    letters = [letter for letter, text in options.items() if same_text(gold, text)]
    return letters[0] if len(letters) == 1 else None


def _number_of(gold: str) -> Numeral | None:
    """Return the number that a right answer is, with or without a unit or in words; None if it is
    something else.
    """
    plain_gold = signed(plain(undecorated(gold)))
    plain_gold = re.sub(r"^[a-z]\s?=\s?(?=[-\d])", "", plain_gold)  # x = 3
    value = number(plain_gold)
    if value is None:
        value = in_words(plain_gold)
    if value is not None:
        return Numeral(value, 0, len(plain_gold), plain_gold)
    quantity = next(iter(numerals(plain_gold)), None)
    if quantity is None:
        return None
    if quantity.start == 0 and quantity.end == len(plain_gold):  # 9.11 × 10^-31
        return quantity
    if plain_gold[:1] in "$€£" and quantity.end == len(plain_gold):
        return quantity
    united = _WITH_UNIT.fullmatch(plain_gold)
    if united and _is_unit(united[2]):
        return quantity
    return None


def _is_unit(text: str) -> bool:
    """Return whether a text is a unit: "m/s^2", "kilometres per hour", `%`."""
    if text in ("%", "°C", "°F"):
        return True
    words = [term for term in re.findall(r"[^\W\d²³]+|°", text.casefold()) if term != "per"]
    return bool(words) and all(term in _UNIT or term == "percent" for term in words)


def _number(reply: str, gold: str, right: Numeral, question: Question) -> Reading | None:
    statement = number_statement(reply, question)
    if statement.numeral is None:
        return None
    value = statement.numeral.value
    equal = value == right.value
    percent = statement.numeral.percent(statement.clause)
    in_percent = right.percent(gold) or question.mentions("percent", "%", _AS_A_DECIMAL)
    if percent and not equal and not in_percent:
        equal = value / 100 == right.value
    if not _in_form(statement.numeral.written, right, question) or _other_unit(
        statement, gold, question
    ):
        equal = False
    parsed = statement.numeral.written if "/" in statement.numeral.written else decimal(value)
    return Reading(f"{parsed}%" if percent else parsed, equal)


def _in_form(written: str, right: Numeral, question: Question) -> bool:
    """Return whether a number is written as the question demands: in lowest terms, as a decimal, as
    a fraction.
    """
    fraction = re.fullmatch(
        r"\W*(\d+)/(\d+)\W*", re.sub(r"\\[dt]?frac\{(\d+)\}\{(\d+)\}", r"\1/\2", written)
    )
    if "/" in right.written or "frac" in right.written:
        if question.mentions(_LOWEST_TERMS):
            denominator = int(fraction[2]) if fraction else denominator_in_words(written)
            return denominator == Fraction(right.value).denominator
        if question.mentions(_AS_A_FRACTION):
            return fraction is not None or any(map(str.isalpha, written))
    if question.mentions(_AS_A_DECIMAL):
        return fraction is None
    return True


def _other_unit(statement: Statement, gold: str, question: Question) -> bool:
    """Return whether the number has another unit than the one that is asked for, such as seconds
    for minutes.
    """
    if statement.numeral is None:
        return False
    after = _DEGREES.sub(r" \1", statement.clause[statement.numeral.end :])
    before = statement.clause[: statement.numeral.start]
    stated = _unit_after(after) or _currency_before(before)
    # "50 km" for a speed in km/h
    if stated and _ASKS_FOR_RATE.search(question.text) and not _IS_RATE.match(after):
        return True
    gold_quantity = next(iter(numerals(signed(gold))), None)
    required = None
    if gold_quantity:
        required = _unit_after(signed(gold)[gold_quantity.end :]) or _currency_before(
            signed(gold)[: gold_quantity.start]
        )
    if required is None:
        words = [term.casefold() for pair in _ASKED_UNIT.findall(question.text) for term in pair]
        required = next(
            ((*_UNIT[term], 1) for term in reversed(words) if term in _UNIT and term != "a"), None
        )
        if required and stated and stated[2] != 1:
            return False
    if stated is None or required is None:
        return False
    if stated[0] != required[0]:  # a height where a temperature is asked for
        return required[0] == _TEMPERATURE and stated[0] not in (_TEMPERATURE, _TEMPERATURE - 1)
    return stated != required


def _unit_after(text: str) -> tuple[int, str, int] | None:
    """Return the dimension, unit and power that follow a number: of " square metres", " cm²"."""
    following = re.match(r"\s?(square |cubic )?([^\W\d²³]+|[$€¢°])\s?([²³]|\^?\{?[23])?", text)
    if following is None or following[2].casefold() not in _UNIT:
        return None
    power = {"square ": 2, "cubic ": 3}.get(following[1] or "", 1)
    if following[3]:
        power = 3 if following[3][-1] in "³3" else 2
    return (*_UNIT[following[2].casefold()], power)


def _currency_before(text: str) -> tuple[int, str, int] | None:
    sign = re.search(r"([$€])\s?-?$", text)
    return (*_UNIT[sign[1]], 1) if sign else None


def _moment(reply: str, right: Moment, question: Question) -> Reading | None:
    """Read a date or a time of day: "on 21 July 1969", "at 10:05 p.m."."""
    repeated = moments(question.text)
    for passage in passages(reply, question):
        clause = conclusion(
            plain(passage.text), lambda segment: bool(moments(segment)), question=question
        )
        if not moments(clause):
            continue
        if HEDGED.search(clause) and not passage.marked:
            return None
        stated = [value for value in moments(clause) if value.is_time == right.is_time]
        added = [value for value in stated if value not in repeated] or stated
        if len(set(added)) > 1:
            segments = [segment for segment in _CLAUSE_END.split(clause) if moments(segment)]
            overlaps = [question.overlap(segment) for segment in segments]
            closest = segments[overlaps.index(max(overlaps))]
            added = [value for value in moments(closest) if value.is_time == right.is_time]
        if len(set(added)) != 1:
            return None
        return Reading(str(added[0]), added[0].matches(right))
    return None


def _choice(reply: str, letter: str, question: Question) -> Reading | None:
    chosen = choice(reply, question.options, question)
    if chosen is None:
        return None
    return Reading(chosen, chosen == letter)


def _yes_no(reply: str, gold: str, question: Question) -> Reading | None:
    verdict = _verdict(reply, question)
    if verdict is None:
        return None
    if gold in ("true", "false"):
        verdict = {"yes": "true", "no": "false"}[verdict]
    return Reading(verdict, verdict == gold)


def _verdict(reply: str, question: Question) -> str | None:
    """Return "yes" or "no": as a mark has it, else as sentences say it in a word, else as they
    affirm or deny.
    """
    ranked = passages(reply, question)
    for passage in ranked:
        if passage.marked:
            verdict = explicit_yes_no(undecorated(passage.text)) or implied_yes_no(
                undecorated(passage.text), question
            )
            if verdict:
                return verdict
    if not ranked or ranked[0].kind == "mark":
        return None
    statements = claims(reply[:TAIL], question)
    firm = [passage for passage in statements if passage.kind != "aside"] or statements
    in_words = [(passage, explicit_yes_no(passage.text)) for passage in firm]
    implied = [(passage, implied_yes_no(passage.text, question)) for passage in firm]
    return _agreed(in_words) or (
        None if any(verdict for _, verdict in in_words) else _agreed(implied)
    )


def _agreed(verdicts: list[tuple[Passage, str | None]]) -> str | None:
    """Return the verdict that all sentences share, or the last one if it concludes or corrects the
    others.
    """
    stated = [(passage, verdict) for passage, verdict in verdicts if verdict]
    if not stated:
        return None
    last_place, last = stated[-1]
    if len({verdict for _, verdict in stated}) == 1:
        return last
    if last_place.kind == "conclusion" or _TURNS.search(last_place.text):
        return last
    corrected = [n for n, (passage, _) in enumerate(verdicts) if _TURNS.search(passage.text)]
    if corrected and verdicts.index((last_place, last)) >= corrected[-1]:
        return last
    return None


def _alternative(reply: str, gold: str, question: Question) -> Reading | None:
    """Read the answer to a question that names its possible answers, as in "Which is bigger, the
    Sun or the Moon?".
    """

    def holds(segment: str) -> bool:
        return any(
            simplified(alternative) in segment.casefold() for alternative in question.alternatives
        )

    ranked = passages(reply, question)
    opened = next((sentence for sentence in _firm(reply, question) if holds(sentence)), "")
    concluding = [
        passage.text for passage in ranked if passage.marked or _CONCLUDES.match(passage.text)
    ]
    for sentence in (*concluding, opened, *(passage.text for passage in ranked)):
        clause = conclusion(plain(sentence), holds, question=question)
        if not holds(clause):
            continue
        if _WAVERS.search(clause):
            return None
        chosen = chosen_alternative(clause, question)
        return None if chosen is None else Reading(chosen, same_text(chosen, gold))
    return None


def _list(reply: str, gold: str, gold_items: list[str], question: Question) -> Reading | None:
    any_order = bool(_ANY_ORDER.search(question.text)) and not _IN_ORDER.search(question.text)
    texts = readings(reply, gold, question.text)
    if not texts:
        return None
    for text in (texts[0], reply):
        if same_text(text, gold):
            return Reading(text, right=True)
    ranked = passages(reply, question)
    bulleted = bullets(reply)
    concluded = [passage for passage in ranked if passage.kind in ("mark", "conclusion")]
    if bulleted and not any(
        listed(undecorated(plain(passage.text)), gold_items) for passage in concluded
    ):
        right = same_items(bulleted, gold_items, any_order=any_order)
        return Reading(", ".join(bulleted), right)
    for passage in ranked:
        if HEDGED.search(passage.text) and not passage.marked:
            continue
        sentence = plain(passage.text)
        main = _CONTRASTED.sub("", sentence)
        if len(items(main)) > 1:
            sentence = main
        clause = conclusion(sentence, lambda segment: mentions_all(segment, gold_items))
        if names_items(clause, gold_items, question, any_order=any_order):
            return Reading(", ".join(gold_items), right=True)
        lists = listed(undecorated(plain(passage.text)), gold_items)
        if lists:
            matching = [
                candidate
                for candidate in lists
                if same_items(candidate, gold_items, any_order=any_order)
            ]
            return Reading(", ".join((matching or lists)[0]), bool(matching))
    return Reading(texts[0], right=False)


def _text(reply: str, gold: str, question: Question) -> Reading | None:
    ranked = passages(reply, question)
    if not ranked:
        return None
    if ranked[0].marked:
        texts = [text for text in ways_to_read(ranked[0].text) if text]
        if texts:
            clause = conclusion(plain(ranked[0].text), bool)
            right = any(same_answer_text(text, gold, question) for text in texts)
            return Reading(texts[0], right or asserts(clause, gold, question))
    sentences = [
        sentence for sentence in _firm(reply, question) if not sentence.rstrip().endswith("?")
    ]
    statements = [segment for sentence in sentences for segment in re.split(r";\s", sentence)]
    if not statements:
        return None
    sentence = _answering(statements, question)
    clause = conclusion(
        plain(sentence), lambda segment: _adds(segment, question), question=question
    )
    clause = closest_segment(clause, question, lambda segment: bool(_STATES.search(segment)))
    clause = _first_claim(clause, question)
    if not clause or _WAVERS.search(clause):
        return None
    parsed = undecorated(complement(clause, question))
    if "=" in clause:
        parsed = undecorated(clause.rpartition("=")[2])
    right = same_answer_text(parsed, gold, question) or same_text(sentence, gold)
    return Reading(parsed, right or asserts(clause, gold, question))


def _firm(reply: str, question: Question) -> list[str]:
    """Return the sentences of a reply that are not asides; all of them, if they are."""
    statements = claims(reply[:TAIL], question)
    firm = [passage.text for passage in statements if passage.kind != "aside"]
    return firm or [passage.text for passage in statements]


def _adds(text: str, question: Question) -> bool:
    """Return whether a text has a word that the question doesn't have."""
    return any(not question.repeats(term) for term in re.findall(r"[^\W_]+", text) if stems(term))


def _first_claim(clause: str, question: Question) -> str:
    """Return a clause up to "and", if a second claim follows: "Plants take in oxygen and release
    carbon dioxide".
    """
    if len(clause) > LONG:
        return clause
    for match in re.finditer(r",?\sand\s(?=([\w'’]+))", clause):
        if is_verb(match[1]) and _adds(clause[: match.start()], question):
            return clause[: match.start()]
    for comma in re.finditer(r",\s", clause):
        if new_words(clause[: comma.start()], question):
            return clause[: comma.start()]
    return clause


def _answering(statements: list[str], question: Question) -> str:
    """Return the sentence that answers: the last conclusion, else the opening if it does, else the
    closest one.
    """
    turns = [n for n, sentence in enumerate(statements) if n and _TURNS.search(sentence)]
    remaining = statements[turns[-1] :] if turns else statements
    announced = [
        sentence
        for sentence in remaining
        if sentence.rstrip().endswith(":") and question.overlap(sentence) < 0.5
    ]
    remaining = [sentence for sentence in remaining if sentence not in announced] or remaining
    concluding = [sentence for sentence in remaining if _CONCLUDES.match(sentence)]
    if concluding:
        return concluding[-1]
    first = remaining[0]
    closeness = [_closeness(sentence, question) for sentence in remaining]
    refers = _REFERS.match(first) or len(first.split()) <= 4
    if closeness[0] == max(closeness) or (refers and not turns):
        return first
    return [
        sentence
        for sentence, close in zip(remaining, closeness, strict=True)
        if close == max(closeness)
    ][-1]


def _closeness(sentence: str, question: Question) -> float:
    """Return how much of the question a sentence repeats; the noun that is asked for counts more."""
    names = not question.nouns.isdisjoint(stems(sentence))
    return question.overlap(sentence) + 0.25 * names
