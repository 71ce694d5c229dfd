"""Reads a reply's answer and compares it with the right one, by the kind of the right one.

What is read depends on the reply, on the question, and on whether the right answer is a number, yes
or no, a choice, a list or a text; not on the right answer itself, except that a text or a list in
the middle of a sentence is recognised by it.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import NamedTuple

from ponder.tasks.reading.choices import choice
from ponder.tasks.reading.clauses import HEDGED, any_of, conclusion, pattern
from ponder.tasks.reading.markup import LONG, TAIL, plain, undecorated
from ponder.tasks.reading.numerals import Numeral, decimal, denominator_in_words, in_words, number, numerals
from ponder.tasks.reading.places import number_statement, places, readings, sentences_of
from ponder.tasks.reading.question import Question, question_of, stems
from ponder.tasks.reading.statements import Statement
from ponder.tasks.reading.texts import (
    asserts,
    chosen_alternative,
    complement,
    is_verb,
    items,
    listed,
    new_words,
    same_answer_text,
    same_items,
    same_text,
    simplified,
    states_items,
    yes_no,
)  # fmt: skip

# Units of one dimension, each with what it is called. Two numbers with different units of one dimension are not equal.
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
)  # fmt: skip
_UNIT = {name: (kind, names) for kind, group in enumerate(_UNITS) for names in group for name in names.split()}
_WITH_UNIT = pattern(
    r"[$€£]?\s?[-−+]?[\d.,/]+(?:\s(?:hundred|thousand|million|billion))?\s?([^\W\d]{1,20}|%|°[CF]?)",
)
_DEGREES = pattern(r"^\s?(?:°|degrees?)\s?([CF]\b|Celsius|Fahrenheit)")
_ASKED_UNIT = pattern(r"\bhow many ([^\W\d]+)|\bin (?:degrees |whole |full )?([^\W\d]+)\b")
_LOWEST_TERMS = r"lowest terms?|simplest (?:form|terms)|simplif|\breduced?\b|irreducible"
_AS_A_FRACTION = r"\bas a (?:\w+ )?fraction"
_AS_A_DECIMAL = r"\b(?:as|in|to) (?:a )?decimal"

# How a reply in sentences changes its mind, and how it concludes
_TURNS = pattern(any_of("wait", "actually", "correction", "sorry", "scratch that", "reconsider", "mistake"))
_SETTLES = pattern(any_of("wait", "actually", "reconsider", "therefore", "thus", "hence", "however", "but", "so"))
_CONCLUDES = pattern(r"\W*(?:so|therefore|thus|hence|in (?:conclusion|short|summary)|overall)\b")
_REFERS = pattern(r"\W*(?:it|that|this|they|he|she|you)\b")
_WAVERS = pattern(any_of("either", "or", "one of(?! the)", "maybe", "perhaps", "might", "could be", "may be"))


class Reading(NamedTuple):
    """The answer that was read from a reply, and whether it is right."""

    parsed: str
    right: bool

    @property
    def why(self) -> str:
        return "" if self.right else "wrong answer"


def read(reply: str, gold: str, question: str = "") -> Reading | None:
    """Return the answer that a reply gives and whether it is right; None if it gives none, or several."""
    asked = question_of(question)
    kind = simplified(gold)
    if asked.options:
        letters = [letter for letter, text in asked.options.items() if gold.strip() in (letter, text)]
        if kind.upper() in asked.options:
            letters = [kind.upper()]
        if len(letters) == 1:
            return _choice(reply, letters[0], asked)
    if kind in ("yes", "no", "true", "false"):
        return _yes_no(reply, kind, asked)
    right = _number_of(gold)
    if right is not None:
        return _number(reply, gold, right, asked)
    if any(same_text(gold, alternative) for alternative in asked.alternatives):
        return _alternative(reply, gold, asked)
    gold_items = items(gold)
    if len(gold_items) > 1:
        return _list(reply, gold, gold_items, asked)
    return _text(reply, gold, asked)


def _number_of(gold: str) -> Numeral | None:
    """Return the number that a right answer is, with or without a unit or in words; None if it is something else."""
    plain_gold = undecorated(gold)
    value = number(plain_gold)
    if value is None:
        value = in_words(plain_gold)
    if value is not None:
        return Numeral(value, 0, len(plain_gold), plain_gold)
    united = _WITH_UNIT.fullmatch(plain_gold)
    if united and (united[1].casefold() in _UNIT or united[1] in ("%", "percent", "°C", "°F")):
        return next(iter(numerals(plain_gold)), None)
    if plain_gold[:1] in "$€£" and number(plain_gold[1:]) is not None:
        return next(iter(numerals(plain_gold)), None)
    return None


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
    if not _in_form(statement.numeral.written, right, question) or _other_unit(statement, gold, question):
        equal = False
    parsed = statement.numeral.written if "/" in statement.numeral.written else decimal(value)
    return Reading(f"{parsed}%" if percent else parsed, equal)


def _in_form(written: str, right: Numeral, question: Question) -> bool:
    """Return whether a number is written as the question demands: in lowest terms, as a decimal, as a fraction."""
    fraction = re.fullmatch(r"\W*(\d+)/(\d+)\W*", re.sub(r"\\[dt]?frac\{(\d+)\}\{(\d+)\}", r"\1/\2", written))
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
    """Return whether the number has another unit than the one that is asked for, such as seconds for minutes."""
    if statement.numeral is None:
        return False
    after = _DEGREES.sub(r" \1", statement.clause[statement.numeral.end :])
    following = re.match(r"\s?([^\W\d]+|[$€¢°])", after)
    before = re.search(r"([$€])\s?-?$", statement.clause[: statement.numeral.start])
    stated = following or before
    unit = _UNIT.get(stated[1].casefold()) if stated else None
    in_gold = re.search(r"([^\W\d]+|[$€¢])\W*$", gold) or re.match(r"([$€])", gold)
    asked = _UNIT.get(in_gold[1].casefold()) if in_gold else None
    if asked is None:
        words = [word.casefold() for pair in _ASKED_UNIT.findall(question.text) for word in pair]
        asked = next((_UNIT[word] for word in reversed(words) if word in _UNIT), None)
    return unit is not None and asked is not None and unit[0] == asked[0] and unit != asked


def _choice(reply: str, gold: str, question: Question) -> Reading | None:
    chosen = choice(reply, question.options, question)
    return None if chosen is None else Reading(chosen, chosen == gold)


def _yes_no(reply: str, gold: str, question: Question) -> Reading | None:
    said = _said_yes_no(reply, question)
    if said is None:
        return None
    parsed = {"yes": "true", "no": "false"}[said] if gold in ("true", "false") else said
    return Reading(parsed, parsed == gold)


def _said_yes_no(reply: str, question: Question) -> str | None:
    """Return "yes" or "no" as a mark has it, else as the first or the last sentence does, if they agree."""
    found = places(reply, question)
    for place in found:
        if place.marked:
            said = yes_no(undecorated(place.text), question)
            if said:
                return said
    if not found or found[0].kind == "mark":
        return None
    opened = next((yes_no(sentence, question) for sentence in sentences_of(reply[:TAIL])), None)
    verdicts = [yes_no(place.text, question) for place in found if not place.marked]
    last = next((verdict for verdict in verdicts if verdict), None)
    if opened and last and opened != last:
        return last if _SETTLES.search(reply) else None
    return opened or last


def _alternative(reply: str, gold: str, question: Question) -> Reading | None:
    """Read the answer to a question that names its possible answers, as in "Which is bigger, the Sun or the Moon?"."""

    def holds(part: str) -> bool:
        return any(simplified(alternative) in part.casefold() for alternative in question.alternatives)

    found = places(reply, question)
    opened = next((sentence for sentence in sentences_of(reply[:TAIL]) if holds(sentence)), "")
    concluding = [place.text for place in found if place.marked or _CONCLUDES.match(place.text)]
    for sentence in (*concluding, opened, *(place.text for place in found)):
        clause = conclusion(plain(sentence), holds, question=question)
        if not holds(clause):
            continue
        if _WAVERS.search(clause):
            return None
        chosen = chosen_alternative(clause, question)
        return None if chosen is None else Reading(chosen, same_text(chosen, gold))
    return None


def _list(reply: str, gold: str, gold_items: list[str], question: Question) -> Reading | None:
    texts = readings(reply, gold, question.text)
    if not texts:
        return None
    for text in (*texts, reply):
        if same_text(text, gold):
            return Reading(text, right=True)
    for place in places(reply, question):
        if HEDGED.search(place.text) and not place.marked:
            continue
        clause = conclusion(plain(place.text), bool)
        lists = listed(undecorated(plain(place.text)), gold_items)
        if states_items(clause, gold_items, question):
            return Reading(", ".join(items(clause)), right=True)
        if lists:
            matching = next((found for found in lists if same_items(found, gold_items)), None)
            return Reading(", ".join(matching or lists[0]), matching is not None)
    return Reading(texts[0], right=False)


def _text(reply: str, gold: str, question: Question) -> Reading | None:
    found = places(reply, question)
    if not found:
        return None
    if found[0].marked:
        texts = readings(reply, gold, question.text)
        if texts:
            clause = conclusion(plain(found[0].text), bool)
            right = any(same_answer_text(text, gold, question) for text in texts)
            return Reading(texts[0], right or asserts(clause, gold, question))
    sentences = [sentence for sentence in sentences_of(reply[:TAIL]) if not sentence.rstrip().endswith("?")]
    statements = [part for sentence in sentences for part in re.split(r";\s", sentence)]
    if not statements:
        return None
    sentence = _answering(statements, question)
    clause = conclusion(plain(sentence), lambda part: _adds(part, question), question=question)
    clause = _first_claim(clause, question)
    if not clause or _WAVERS.search(clause):
        return None
    parsed = undecorated(complement(clause, question))
    right = same_answer_text(parsed, gold, question) or same_text(sentence, gold)
    return Reading(parsed, right or asserts(clause, gold, question))


def _adds(text: str, question: Question) -> bool:
    """Return whether a text has a word that the question doesn't have."""
    return any(not question.repeats(word) for word in re.findall(r"[^\W_]+", text) if stems(word))


def _first_claim(clause: str, question: Question) -> str:
    """Return a clause up to "and", if a second claim follows: "Plants take in oxygen and release carbon dioxide"."""
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
    """Return the sentence that answers: the last conclusion, else the opening if it does, else the closest one."""
    turns = [n for n, sentence in enumerate(statements) if n and _TURNS.search(sentence)]
    left = statements[turns[-1] :] if turns else statements
    concluding = [sentence for sentence in left if _CONCLUDES.match(sentence)]
    if concluding:
        return concluding[-1]
    first = left[0]
    closeness = [_closeness(sentence, question) for sentence in left]
    refers = _REFERS.match(first) or len(first.split()) <= 4
    if closeness[0] == max(closeness) or (refers and not turns):
        return first
    return [sentence for sentence, close in zip(left, closeness, strict=True) if close == max(closeness)][-1]


def _closeness(sentence: str, question: Question) -> float:
    """Return how much of the question a sentence repeats; the noun that is asked for counts more."""
    names = not question.nouns.isdisjoint(stems(sentence))
    return question.overlap(sentence) + 0.25 * names
