"""Reads a reply's answer and compares it with the right one, by the kind of the right one.

What is read depends on the reply, on the question, and on the kind of the right answer: a choice,
yes or no, a date or time, a number, a list, or a text. It doesn't depend on the right answer
itself, except that a text or a list in the middle of a sentence is recognised by it. A reply whose
sentences contradict each other is not read.
"""

from __future__ import annotations

import itertools
import re
import unicodedata
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import NamedTuple

from ponder.tasks.reading.candidates import (
    ANSWER,
    DENIES,
    HEDGED,
    IS,
    MISTAKEN,
    RECONSIDERS,
    TAKEN_BACK,
    Passage,
    any_of,
    bullets,
    claims,
    conclusion,
    final,
    firm_claims,
    is_bare,
    passages,
    pattern,
    ways_to_read,
)
from ponder.tasks.reading.markup import (
    LONG,
    TAIL,
    first_sentence,
    joined_initials,
    marked,
    plain,
    undecorated,
)
from ponder.tasks.reading.numbers import Statement, final_number, number_statement
from ponder.tasks.reading.question import FUNCTION_WORDS, Question, question_of, stem, stems
from ponder.tasks.reading.values import (
    ARTICLE,
    Moment,
    Numeral,
    decimal,
    denominator_in_words,
    in_words,
    items,
    moment,
    moments,
    number,
    numerals,
    same_items,
    same_text,
    simplified,
    with_signs,
)


class Reading(NamedTuple):
    """The answer that was read from a reply, and whether it is right."""

    parsed: str
    right: bool

    @property
    def why(self) -> str:
        return "" if self.right else "wrong answer"


def read(reply: str, gold: str, question: str = "") -> Reading | None:
    """Return a reply's answer and whether it is right; None if it gives none, or several."""
    parsed_question = question_of(question)
    for tag in ("</think>", "</thinking>"):
        following = reply.rpartition(tag)[2]
        if following.strip():
            reply = following
    letter = _letter_of(gold, parsed_question.options)
    if letter:
        chosen_letter = choice(reply, parsed_question.options, parsed_question)
        return Reading(chosen_letter, chosen_letter == letter) if chosen_letter else None
    if simplified(gold) in ("yes", "no", "true", "false"):
        return _yes_no(reply, simplified(gold), parsed_question)
    right_moment = moment(gold)
    if right_moment is not None:
        return _moment(reply, right_moment, parsed_question)
    right_number = _number_of(gold)
    if right_number is not None:
        return _number(reply, gold, right_number, parsed_question)
    reply = _corrected(reply, parsed_question)
    gold_items = items(gold)
    if len(gold_items) > 1:
        return _list(reply, gold, gold_items, parsed_question)
    return _text(reply, gold, parsed_question)


def readings(text: str, like: str, question: str = "") -> list[str]:
    """Return every way to read the final answer: bare, as it stands, the end of "The name is X".

    If the right answer (`like`) is a number, the first reading is the number, and without a number
    there is no reading.
    """
    answer = final(text)
    if answer is None:
        return []
    if number(like) is not None:
        value = final_number(text, question)
        if value is None:
            return []
        return [*dict.fromkeys([decimal(value), undecorated(answer), answer])]
    ways = ways_to_read(answer)
    if marked(text) is None:
        for lines in _LISTED.finditer(text[-TAIL:]):
            ways.append(", ".join(plain(line) for line in lines[0].strip().splitlines()))
        # A reply without steps opens with its answer: "The symbol is Au, from aurum. It is a
        # metal."
        stated = passages(text, question_of(question))[:1]
        is_marked = any(passage.kind == "mark" for passage in stated)
        if len(text) <= TAIL and not (is_marked or _TAKES_TURN.search(text)):
            first = _LINKED.split(first_sentence(text), maxsplit=1)[-1]
            ways += [first, _EXPLAINED.split(first)[0]]
    bare_ways = [undecorated(way) for way in ways]
    return [*dict.fromkeys(way for way in [*bare_ways, answer] if way)]


_LISTED = re.compile(r"(?:(?:^|\n)[ \t]{0,9}(?:\d{1,3}[.)]|[*•-])[ \t][^\n]{1,200}){2,100}\s{0,9}$")
_LINKED = pattern(rf"(?:(?:{IS})(?:\s{{0,3}}:)?|[:→]|->)\s*")
_EXPLAINED = re.compile(
    r"[,;]\s(?=(?:an?|also|as|because|from|he|it|meaning|named|she|since|that|the|there|they|this"
    r"|we|which|who|you)\b)"
)
_TAKES_TURN = pattern(
    any_of(
        r"but|however|reconsider|therefore|thus|hence|instead|conclu\w*|correction|mistake|error",
        r"incorrect|wrong|not right|sorry|wait|edit|actually|oops|hold on|should be|scratch that",
    )
)


# Numbers and their units

# Units of one dimension, each with its names. Two numbers with different units of one dimension
# are not equal.
_DIMENSIONS = (
    ("s sec secs second seconds", "min mins minute minutes", "h hr hrs hour hours", "day days",
     "week weeks", "month months", "year years", "ms millisecond milliseconds"),
    ("mm millimetre millimetres millimeter millimeters", "mile miles mi", "inch inches",
     "cm centimetre centimetres centimeter centimeters", "m metre metres meter meters",
     "km kilometre kilometres kilometer kilometers", "ft foot feet"),
    ("mg milligram milligrams", "g gram grams", "kg kilogram kilograms kilo kilos",
     "t ton tons tonne tonnes", "lb lbs pound pounds"),
    ("ml millilitre millilitres milliliter milliliters", "l litre litres liter liters"),
    ("cent cents ¢", "$ dollar dollars usd", "€ euro euros eur"),
    ("kb kilobyte kilobytes", "mb megabyte megabytes", "gb gigabyte gigabytes",
     "tb terabyte terabytes"),
    ("degree degrees °", "radian radians"),
    ("celsius c", "fahrenheit f"),
    ("mph", "kmh"),
    ("n newton newtons",), ("j joule joules",), ("w watt watts",), ("v volt volts",),
    ("a amp amps ampere amperes",), ("pa pascal pascals",), ("hz hertz",), ("k kelvin",),
    ("mol moles",), ("ohm ohms Ω",), ("u units unit",),
)  # fmt: skip
_UNIT: dict[str, tuple[int, str]] = {}
for _dimension, _units in enumerate(_DIMENSIONS):
    for _names in _units:
        _UNIT |= dict.fromkeys(_names.split(), (_dimension, _names))
# `84 cm²`, `2.5 m/s^2`, `12 square metres`, `40 °C`
_WITH_UNIT = pattern(
    r"[$€£]?\s?[-−+]?[\d.,/]+(?:\s(?:hundred|thousand|million|billion))?",
    r"(?:\s?[×x*]\s?10\^\{?[-−]?\d+\}?)?\s?((?:square|cubic)\s)?",
    r"((?:[^\W\d_²³]{1,20}|°[CF]?|%)(?:[²³]|\^?-?[23])?",
    r"(?:(?:\s?[/·*]\s?|\sper\s)[^\W\d]{1,20}(?:[²³]|\^?[23])?)?)",
)
_DEGREES = pattern(r"^\s?(?:°|degrees?)\s?([CF]\b|Celsius|Fahrenheit)")
_UNIT_AFTER = re.compile(r"\s?(square |cubic )?([^\W\d²³]+|[$€¢°])\s?([²³]|\^?\{?[23])?")
_ASKED_UNIT = pattern(r"\bhow many ([^\W\d]+)|\bin (?:degrees |whole |full )?([^\W\d]+)\b")
_ASKS_FOR_RATE = pattern(r"\bin [^\W\d]+\s?(?:/|per )\s?\w")
_IS_RATE = pattern(r"\s?(?:mph|kmh|kph|[^\W\d]+\s?(?:[/²³^·*]|(?:for )?(?:per|an?|each|every)\b))")
_LOWEST_TERMS = r"lowest terms?|simplest (?:form|terms)|simplif|\breduced?\b|irreducible"
_AS_A_FRACTION = r"\bas a (?:\w+ )?fraction"
_AS_A_DECIMAL = r"\b(?:as|in|to) (?:a )?decimal"


class _Unit(NamedTuple):
    dimension: int
    names: str
    power: int


def _number_of(gold: str) -> Numeral | None:
    """Return the number that a right answer is, with or without a unit; None if it is not one."""
    bare = with_signs(plain(undecorated(gold)))
    bare = re.sub(r"^[a-z]\s?=\s?(?=[-\d])", "", bare)  # x = 3
    value = number(bare)
    if value is None:
        value = in_words(bare)
    if value is not None:
        return Numeral(value, 0, len(bare), bare)
    quantity = next(iter(numerals(bare)), None)
    if quantity is None:
        return None
    ends = quantity.end == len(bare)
    if ends and (quantity.start == 0 or bare[0] in "$€£"):  # 9.11 × 10^-31, $7.50
        return quantity
    united = _WITH_UNIT.fullmatch(bare)
    if united and _is_unit(united[2]):
        return quantity
    return None


def _is_unit(text: str) -> bool:
    """Return whether a text is a unit: "m/s^2", "kilometres per hour", `%`."""
    if text in ("%", "°C", "°F"):
        return True
    words = [word for word in re.findall(r"[^\W\d²³]+|°", text.casefold()) if word != "per"]
    return bool(words) and all(word in _UNIT or word == "percent" for word in words)


def _number(reply: str, gold: str, right: Numeral, question: Question) -> Reading | None:
    statement = number_statement(reply, question)
    numeral = statement.numeral
    if numeral is None:
        return None
    equal = numeral.value == right.value
    percent = numeral.percent(statement.clause)
    in_percent = right.percent(gold) or question.mentions("percent", "%", _AS_A_DECIMAL)
    if percent and not equal and not in_percent:
        equal = numeral.value / 100 == right.value
    if not _in_form(numeral.written, right, question) or _other_unit(statement, gold, question):
        equal = False
    parsed = numeral.written if "/" in numeral.written else decimal(numeral.value)
    return Reading(f"{parsed}%" if percent else parsed, equal)


def _in_form(written: str, right: Numeral, question: Question) -> bool:
    """Return whether a number is in the form that is asked for: lowest terms, a decimal."""
    written_flat = re.sub(r"\\[dt]?frac\{(\d+)\}\{(\d+)\}", r"\1/\2", written)
    fraction = re.fullmatch(r"\W*(\d+)/(\d+)\W*", written_flat)
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
    """Return whether a number has another unit than the one asked for: seconds for minutes."""
    if statement.numeral is None:
        return False
    stated = _unit_of(statement.clause, statement.numeral)
    after = statement.clause[statement.numeral.end :]
    if stated and _ASKS_FOR_RATE.search(question.text) and not _IS_RATE.match(after):
        return True  # "50 km" for a speed in km/h
    required = None
    gold_text = with_signs(gold)
    for quantity in numerals(gold_text)[:1]:
        required = _unit_of(gold_text, quantity)
    if required is None:
        for words in _ASKED_UNIT.findall(question.text):
            for word in words:
                if word.casefold() in _UNIT and word.casefold() != "a":
                    required = _Unit(*_UNIT[word.casefold()], 1)
        if stated and stated.power != 1:
            return False
    if stated is None or required is None:
        return False
    temperature = _UNIT["celsius"][0]
    if stated.dimension != required.dimension:  # a height where a temperature is asked for
        is_degrees = stated.dimension in (temperature, _UNIT["°"][0])
        return required.dimension == temperature and not is_degrees
    return stated != required


def _unit_of(text: str, numeral: Numeral) -> _Unit | None:
    """Return the unit after a number, or the currency before it: "9 square metres", "$9"."""
    following = _UNIT_AFTER.match(_DEGREES.sub(r" \1", text[numeral.end :]))
    if following and following[2].casefold() in _UNIT:
        power = {"square ": 2, "cubic ": 3}.get(following[1] or "", 1)
        if following[3]:
            power = 3 if following[3][-1] in "³3" else 2
        return _Unit(*_UNIT[following[2].casefold()], power)
    currency = re.search(r"([$€])\s?-?$", text[: numeral.start])
    if currency:
        return _Unit(*_UNIT[currency[1]], 1)
    return None


# Dates and times


def _moment(reply: str, right: Moment, question: Question) -> Reading | None:
    """Read a date or a time of day: "on 21 July 1969", "at 10:05 p.m."."""
    repeated = moments(question.text)
    for passage in passages(reply, question):
        clause = conclusion(plain(passage.text), lambda segment: bool(moments(segment)), question)
        stated = [value for value in moments(clause) if value.is_time == right.is_time]
        if not moments(clause):
            continue
        if HEDGED.search(clause) and not passage.marked:
            return None
        added = [value for value in stated if value not in repeated] or stated
        if len(set(added)) != 1:
            return None
        return Reading(str(added[0]), added[0].matches(right))
    return None


# Choices

# After a letter that is ruled out: "Option B is wrong".
_REFUTED = (
    r"(?!\W{1,3}(?:(?i:is|are|was)\s)?(?i:wrong|incorrect|false|ruled|eliminated|excluded"
    r"|not correct)\b)"
)
# "A good question"
_A_NOUN = re.compile(r"\W*A\s(?!(?:as|because|by|due|for|is|since|with)\b)[a-z]")
_NAMES_LETTER = (
    rf"(?i:{ANSWER}|option|choice|(?<!not )(?:choose|pick|select|go(?:ing)? (?:with|for)"
    r"|settle (?:on|for)))"
)
_LETTERED = re.compile(r"[\W_]*[a-j][).:\]]|[\W_]*\w[\W_]*$")  # `b) quick`
_LETTER_OF_GOLD = re.compile(r"\W?([A-Ja-j])[).:]\s*(\S.*)?")  # `C) Mercury`
_WRONG = pattern(any_of("wrong|incorrect|false|ruled out|eliminated|excluded|less|worse"))


def _letter_of(gold: str, options: Mapping[str, str]) -> str | None:
    """Return the letter of the option that is right: for `C`, `C) Mercury` and `Mercury`."""
    if simplified(gold).upper() in options:
        return simplified(gold).upper()
    lettered = _LETTER_OF_GOLD.fullmatch(gold.strip())
    if lettered and lettered[1].upper() in options:
        return lettered[1].upper()
    letters = [letter for letter, text in options.items() if same_text(gold, text)]
    return letters[0] if len(letters) == 1 else None


def choice(text: str, options: Mapping[str, str], question: Question = Question()) -> str | None:  # noqa: B008
    """Return the letter of the chosen option; None if there is none.

    It may stand alone (`B`, `(b)`, `**B)** helium`) or after "option" in any place of an answer, or
    start the reply; or the answer may be the option's text.
    """
    letters = "".join(options)
    two_letters = rf"(?i:\bboth|\beither) \(?[{letters}]\)? (?:and|or) \(?[{letters}]\b"
    if re.search(two_letters, text[-TAIL:]):
        return None
    more_letters = re.compile(  # "A or B", `A, B`, "B und vielleicht oder C"
        rf"\W*[{letters}](?:\W{{1,9}}(?:\w{{1,9}}\W{{1,9}})?(?:or|oder|ou|and)\W{{1,9}}"
        r"(?:\w{4}\W)?"
        rf"|\W{{0,3}}[,/&+]\W{{0,3}})[{letters}]\b"
    )
    ends = re.compile(  # "… so it is actually (B)."
        rf"(?i:leaves|leaving|say|so|hence,?|thus,?|therefore,?|{IS}|→|->|=>|⇒)"
        rf"(?: actually| option)?:? \W{{0,3}}([{letters}])\W{{0,3}}$"
    )
    for passage in passages(text, question):
        answer = undecorated(passage.text)
        bare = re.fullmatch(r"[\W_]*([A-Za-z])[\W_]*", passage.text.strip()[:9])
        if bare and bare[1].upper() in options and len(passage.text) <= 9:
            return bare[1].upper()
        if passage.marked:
            if more_letters.match(plain(answer)):
                return None
            letter = _leading_letter(answer, options) or _last(ends.findall(plain(answer)))
        else:
            letter = _last(ends.findall(plain(passage.text)))
            letter = letter or _lettered_option(plain(passage.text), options)
        if letter:
            return letter
        equal = [letter for letter, option in options.items() if _same_option(answer, option)]
        if equal:
            return equal[0] if len(equal) == 1 else None
    tail = plain(text[-TAIL:])
    names_letter = re.compile(  # "the correct option is (B)", "I choose B"
        rf"{_NAMES_LETTER}(?:\s(?:letter|option|choice))?\s{{0,9}}(?i:{IS})?"
        rf"(?:\s(?:the|la|option|choice))*[\W_]{{0,9}}([{letters}])(?![A-Za-z'’])(?!\.\w){_REFUTED}"
    )
    opens = re.compile(  # `C) neon` and "C is correct" as the first line
        rf"[\W_]*+([{letters}])(?:[\W_]*+$|[.:]\s|[)\]]|\sis the (?:correct|right)){_REFUTED}"
    )
    lines = [opens.match(line) for line in tail.strip().splitlines()]
    line_letters = {line[1] for line in lines if line}
    letter = _last(names_letter.findall(tail))
    if letter is None and len(line_letters) == 1 and (lines[0] or lines[-1]):
        letter = line_letters.pop()
    return letter or _last(ends.findall(tail)) or _option_in_sentence(text, options, question)


def _leading_letter(answer: str, options: Mapping[str, str]) -> str | None:
    """Return the letter that a marked answer opens with."""
    letters = "".join(options)
    leading = re.match(
        rf"(?:\\(?:text|math)\w*+\{{|[^\w\n])*+([{letters}])(?![A-Za-z'’])(?!\.\w){_REFUTED}",
        answer,
        re.IGNORECASE,
    )
    if leading is None:
        return None
    if len(answer) >= 3 and leading[1].islower() and not _LETTERED.match(answer):
        return None
    if _A_NOUN.match(answer) and not _same_option(answer[leading.end() :], options.get("A", "")):
        return None
    return leading[1].upper()


def _lettered_option(sentence: str, options: Mapping[str, str]) -> str | None:
    """Return the only letter with its bracket in a sentence: "the best match is (b)", "B) neon"."""
    clause = conclusion(sentence.replace(" (", " : ("), lambda cut: bool(_bracketed(cut)))
    letters = _bracketed(clause) & set(options)
    if len(letters) != 1 or HEDGED.search(clause) or DENIES.search(clause):
        return None
    return letters.pop()


def _bracketed(text: str) -> set[str]:
    return {letter.upper() for letter in re.findall(r"[(\[]([A-Ja-j])[)\]]", text)}


def _option_in_sentence(text: str, options: Mapping[str, str], question: Question) -> str | None:
    """Return the only option, by text or letter, that the likeliest sentence names."""
    for passage in passages(text, question)[:1]:
        sentence = plain(passage.text)[:TAIL]
        clause = conclusion(sentence, lambda cut: bool(_mentioned(cut, options)))
        if HEDGED.search(clause) or DENIES.search(clause) or _WRONG.search(clause):
            return None
        mentioned = _mentioned(clause, options)
        if len(mentioned) == 1 and asserts(clause, options[mentioned[0]], Question()):
            return mentioned[0]
        letters = re.findall(r"(?<![\w'’])([B-HJ])(?![\w'’.:)\]])", sentence)
        in_options = [letter for letter in dict.fromkeys(letters) if letter in options]
        if not mentioned and len(in_options) == 1:
            return str(in_options[0])
    return None


def _mentioned(text: str, options: Mapping[str, str]) -> list[str]:
    """Return the letters of the options whose text a text contains."""
    text = text.casefold()
    return [letter for letter, option in options.items() if undecorated(option).casefold() in text]


def _last(letters: Sequence[str]) -> str | None:
    return letters[-1] if letters else None


def _same_option(text: str, option: str) -> bool:
    first = re.sub(r"^(?:the|an?) ", "", undecorated(text).casefold())
    second = re.sub(r"^(?:the|an?) ", "", undecorated(option).casefold())
    if first == second:
        return True
    return number(first) is not None and number(first) == number(second)


# Yes and no

_YES = ("yes", "true", "yeah", "yep", "correct", "right", "affirmative")
_NO = ("no", "false", "nope", "incorrect", "wrong", "negative")
_YES_NO = "|".join((*_YES, *_NO))
_OPENS_YES_NO = pattern(
    r"\W*+(?:(?:so|therefore|thus|hence|well|ok|okay|oh|and|the answer is)[,:]?\s++)*+\W*+",
    rf"({_YES_NO})\b(?!\W{{0,3}}(?:and|or|idea|way to|one)\b)",
)
# Matches "so no", "the claim that … is false", "that's actually wrong", "returns True".
_SAYS_YES_NO = pattern(
    r"(?:\b(?:so|therefore|thus|hence),?\s+",
    r"|\b(?:statement|claim|sentence|that|it|this|which|answer)",
    r"(?: that [^.;]{1,80}?)?(?:['’]s|\s(?:is|was|would be))",
    r"\s(?:(?:therefore|indeed|actually|clearly|thus|a)\s)?)",
    rf"\W{{0,3}}({_YES_NO})\b",
    r"|\b(?:evaluates to|returns|yields|gives|prints|short answer:|in short,?)\s\W{0,3}",
    r"(yes|no|true|false)\b",
    r"|^[^,;.]{1,40},\s(yes|no)\s?[.!]?$",  # "Botanically speaking, yes."
)
# "It does.", "It isn't, because …", "They can not."
_SHORT_VERDICT = pattern(
    r"\W*(?:well, |so |but )?(?:it|they|he|she|you|we|that|there)\s",
    r"(?:is|are|does|do|did|can|could|was|were|has|have|will|would|should)(n['’]t|\s?not)?",
    r"(?:,? (?:indeed|actually|in fact))?\s?(?:[.,;:!–—]|$)",
)
_BOTH = pattern(any_of("yes and no|yes or no|true or false|depends"))
_NEGATION = pattern(
    r"\b(?:not|cannot|never|no|unable|incapable)\b",
    r"|\b(?:is|are|does|do|was|were|can|wo|has|have|did)n?['’]t\b",
)
# Words of a question that a statement with the same meaning may lack
_NOT_ASKED = frozenset(
    map(stem, ("true", "false", "number", "statement", "now", "really", "still"))
)


def _yes_no(reply: str, gold: str, question: Question) -> Reading | None:
    verdict = _verdict(reply, question)
    if verdict is None:
        return None
    if gold in ("true", "false"):
        verdict = {"yes": "true", "no": "false"}[verdict]
    return Reading(verdict, verdict == gold)


def _verdict(reply: str, question: Question) -> str | None:
    """Return "yes" or "no": as a mark has it, else in a word, else as sentences affirm or deny."""
    ranked = passages(reply, question)
    mark = marked(reply)
    if mark is not None and RECONSIDERS.search(mark[1][:TAIL]):  # "Wait, it is not."
        verdict = _stated_verdict(mark[1][:TAIL], question)
        if verdict:
            return verdict
    for passage in ranked:
        if passage.marked:
            text = undecorated(passage.text)
            verdict = _explicit_yes_no(text) or _implied_yes_no(text, question)
            if verdict:
                return verdict
    if not ranked or ranked[0].kind == "mark":
        return None
    return _stated_verdict(reply[:TAIL], question)


def _stated_verdict(text: str, question: Question) -> str | None:
    """Return "yes" or "no" as the sentences of a text say in a word, else as they imply."""
    firm = firm_claims(text, question)
    explicit = [(passage, _explicit_yes_no(passage.text)) for passage in firm]
    if any(verdict for _, verdict in explicit):
        return _agreed(explicit)
    return _agreed([(passage, _implied_yes_no(passage.text, question)) for passage in firm])


def _agreed(verdicts: list[tuple[Passage, str | None]]) -> str | None:
    """Return the verdict that all sentences share, or the last one if it concludes or corrects."""
    stated = []
    turned = False
    for passage, verdict in verdicts:
        turned = turned or bool(RECONSIDERS.search(passage.text))
        if verdict:
            stated.append((passage, verdict, turned))
    if not stated:
        return None
    last_passage, last, after_turn = stated[-1]
    unanimous = len({verdict for _, verdict, _ in stated}) == 1
    if unanimous or last_passage.kind == "conclusion" or after_turn:
        return last
    return None


def _explicit_yes_no(sentence: str) -> str | None:
    """Return "yes" or "no" if a sentence says so in a word: "No, …", "The claim is false."."""
    if len(sentence) > LONG or _BOTH.search(sentence):
        return None
    words = [match[1] or match[2] or match[3] for match in _SAYS_YES_NO.finditer(sentence)]
    opens = _OPENS_YES_NO.match(sentence)
    if opens:
        words.append(opens[1])
    if words:
        return "yes" if words[-1].lower() in _YES else "no"
    short = _SHORT_VERDICT.match(re.split(r",?\sbut\s", sentence)[-1])
    if short:
        return "no" if short[1] else "yes"
    return None


def _implied_yes_no(sentence: str, question: Question) -> str | None:
    """Return "yes" or "no" if a sentence repeats what is asked and affirms or denies it."""
    if len(sentence) > LONG or _BOTH.search(sentence):
        return None
    asked_stems = question.asked - _NOT_ASKED
    clause = conclusion(sentence, lambda cut: asked_stems.issubset(stems(cut)), denials=True)
    if not asked_stems or not asked_stems.issubset(stems(clause)):
        return None
    if HEDGED.search(clause) or MISTAKEN.search(clause) or re.search(r"\bthan\b", clause):
        return None
    return {0: "yes", 1: "no"}.get(len(_NEGATION.findall(clause)))


# Lists

# Questions whose answer is the same list in any order: "Name the primary colours.", "What are the
# factors of 30?"
_ANY_ORDER = pattern(r"\b(?:name|list|which|what are|who (?:are|were)|identify|state)\b")
_IN_ORDER = pattern(
    any_of(
        r"sort\w*|order\w*|arrang\w+|rank\w*|sequence|first|next|last|from|ascending|descending",
        r"alphabetical\w*|smallest|largest|chronolog\w+|revers\w+|output|print\w*|coordinates?",
        r"range|steps?|\(x, ?y\)|pair|respectively|vertex|before|after|convert|between",
    ),
    r"|`|\[",
)
# What stands between the items of a list: "3 comes first, followed by 7 and finally 9"
_BETWEEN_ITEMS = pattern(
    r"(?:[\s,;:.<>×*&/()\"“”'`→-]|",
    any_of(
        r"and|then|followed|by|next|finally|lastly|after|that|come|comes|came|first|second|third",
        r"fourth|last|is|are|to|the|with|also|plus|as well as",
    ),
    r"|\b[a-z]\s?=){1,60}",
)
# Another item: "3, 7, 9, 8", "3, 7, 9 and 11"; not "3, 7 and 9, because …"
_MORE_ITEMS = pattern(
    r"\s?[×*/<>]|\s?[,;]?\s(?:and|or)\s(?!it|they|this|that|these|those|there|we|you|is|are)",
    rf"|\s?,\s(?!{any_of(*sorted(FUNCTION_WORDS), 'since', 'though', 'respectively')}|\w+ing\b)",
)
_NOT_NAMED = pattern(  # what denies an item or an answer
    any_of("not|never|than|unlike|except|without|nor|neither|cannot|nobody|least"),
    r"|n['’]t\b|\b(?:instead|rather) (?:of|than)\b",
)


def _list(reply: str, gold: str, gold_items: list[str], question: Question) -> Reading | None:
    any_order = bool(_ANY_ORDER.search(question.text)) and not _IN_ORDER.search(question.text)
    texts = readings(reply, gold, question.text)
    if not texts:
        return None
    for text in (texts[0], reply):
        if same_text(text, gold):
            return Reading(text, right=True)
    ranked = passages(reply, question)
    concludes = any(passage.kind in ("mark", "conclusion") for passage in ranked)
    bulleted = bullets(reply)
    if bulleted and not concludes:
        right = same_items(bulleted, gold_items, any_order=any_order)
        return Reading(", ".join(bulleted), right)
    for passage in ranked:
        if HEDGED.search(passage.text) and not passage.marked:
            continue
        sentence = plain(passage.text)
        clause = conclusion(sentence, lambda cut: _mentions_all(cut, gold_items))
        if _names_items(clause, gold_items, question, any_order=any_order):
            return Reading(", ".join(gold_items), right=True)
        bracketed = re.findall(r"\[[^\[\]]{1,500}\]", sentence)
        if len(bracketed) == 1 and not DENIES.search(sentence):
            stated = items(bracketed[0])
            right = same_items(stated, gold_items, any_order=any_order)
            return Reading(", ".join(stated), right)
    return Reading(texts[0], right=False)


def _names_items(
    text: str, gold: Sequence[str], question: Question, *, any_order: bool = False
) -> bool:
    """Return whether a clause names these items and no others: "3 comes first, followed by 7"."""
    if len(text) > LONG or len(gold) > 50 or _NOT_NAMED.search(text):
        return False
    spans = []
    position = 0
    for item in gold:
        match = _whole(item).search(text, 0 if any_order else position)
        if match is None:
            return False
        spans.append(match.span())
        position = match.end()
    spans.sort()
    before = text[: spans[0][0]]
    after = text[spans[-1][1] :]
    head = re.search(r"\b([^\W\d]+)\s$", before)  # "vitamin A, vitamin D and vitamin E"
    for (_, end), (start, _) in itertools.pairwise(spans):
        gap = text[end:start]
        if head and gap.endswith(head[0]):
            gap = gap.removesuffix(head[0]) + " "
        if not _BETWEEN_ITEMS.fullmatch(gap):
            return False
    equated = re.search(r"(\S*)\s?=\s?$", before)
    if re.search(r"[\d+×*^]\s?$", before) or _MORE_ITEMS.match(after):
        return False
    if equated and not re.fullmatch(r"[a-z]", equated[1]):
        return False
    return _may_precede(before, question, proper=False) and _may_follow(after, question)


def _mentions_all(text: str, gold: Sequence[str]) -> bool:
    return all(_whole(item).search(text) for item in gold)


def _whole(item: str) -> re.Pattern[str]:
    """Return the pattern of an item that is not a part of a longer word or number."""
    return re.compile(rf"(?<![\w.-]){re.escape(item)}(?![\w-]|\.\d)", re.IGNORECASE)


# Texts

# Words that may stand before or after an answer in its clause, besides those of the question
_LIGHT_WORDS = frozenset(
    map(
        stem,
        """
        is are was were be equals called named known use used get gets got give make take become
        produce form need release absorb write wrote written paint painted invent discover create
        compose direct found founded build built live located think believe say choose pick go goes
        went come stand mean remain refer represent belong win won happen speak spoken contain lie
        turn return print output has have does do can see hear require involve describe yield result
        actually indeed therefore thus simply just really definitely clearly certainly commonly
        usually obviously probably specifically namely correct right proper well here there itself
        then first famous great course sir dr professor president saint mr mrs lady lord king queen
        city town country river author writer novelist painter artist physicist scientist word term
        name keyword command function method planet element symbol gas capital language person
        character letter colour color animal month day season chemical english french german
        american italian british spanish dutch russian
        """.split(),  # noqa: SIM905 words read better so
    )
)
_PRONOUNS = frozenset(
    ("it", "is", "was", "the", "they", "he", "she", "has", "its", "this", "we", "you", "not")
)
_WAVERS = pattern(any_of("either|or|one of(?! the)|maybe|perhaps|might|could be|may be"))
_CONCLUDES = pattern(r"\W*(?:so|therefore|thus|hence|in (?:conclusion|short|summary)|overall)\b")
_REFERS = pattern(r"\W*(?:it|that|this|they|he|she|you)\b")
_EQUATES = pattern(rf"(?:{IS}|['’]s\b|=|→)\W*\w")
_OPENS_CORRECTION = pattern(rf"^\W*{TAKEN_BACK.pattern}\W+")
_LINK = pattern(rf"\s(?:{IS}|=)\s|(?<=^it)['’]s\s|(?<=^that)['’]s\s|:\s")
# "English, ahead of Mandarin": what is compared with the answer
_NEXT_TO = pattern(
    any_of("ahead of|followed by|behind|besides|along with|close to|next to|second to"),
    r"\s(?:the\s)?$",
)
_PREDICATE = pattern(r"\b(?:is|was|are|refers to|means|would be)(?: the| an?)?\s[\"“'‘`]?$")
_AREA_UNIT = re.compile(
    r"(?:\ssquare|\scubic)?\s(?:units?|cm|m|km|in|ft)[²³]?$"
)  # "9π square units"


def _text(reply: str, gold: str, question: Question) -> Reading | None:
    ranked = passages(reply, question)
    if not ranked:
        return None
    if ranked[0].marked:
        texts = [text for text in ways_to_read(ranked[0].text) if text]
        if texts:
            clause = conclusion(plain(ranked[0].text), bool)
            right = any(_same_answer(text, gold, question) for text in texts)
            return Reading(texts[0], right or asserts(clause, gold, question))
    statements: list[str] = []
    for passage in firm_claims(reply[:TAIL], question):
        if not passage.text.rstrip().endswith("?"):
            statements += re.split(r";\s", passage.text)
    if not statements:
        return None
    sentence = _answering(statements, question)
    clause = conclusion(plain(sentence), lambda cut: bool(_new_words(cut, question)), question)
    for match in re.finditer(r",?\sand\s(?=([\w'’]+))", clause):
        # a second claim: "Plants take in oxygen and release carbon dioxide"
        if stem(match[1]) in _LIGHT_WORDS and _new_words(clause[: match.start()], question):
            clause = clause[: match.start()]
            break
    if not clause or _WAVERS.search(clause):
        return None
    parsed = _complement(clause, question)
    right = _same_answer(parsed, gold, question) or same_text(sentence, gold)
    return Reading(parsed, right or asserts(clause, gold, question))


def _corrected(reply: str, question: Question) -> str:
    """Return a reply without an answer in a tag or box that it withdraws for another one."""
    mark = marked(reply)
    if mark is None:
        return reply
    ranked = passages(reply, question)
    if not ranked or ranked[0].marked:
        return reply
    replacements = _replacements(mark[1][:TAIL], question)
    if replacements:
        return "\n".join(replacements)
    withdrawn = ranked[-1].text  # empty if it was to be ignored
    return f"<answer>{withdrawn}</answer>"


def _replacements(text: str, question: Question) -> list[str]:
    """Return the statements after a withdrawn answer that give another: "Wait, it is Sydney"."""
    replacements = []
    for passage in claims(text, question):
        if passage.kind == "aside" or passage.text.rstrip().endswith("?"):
            continue
        for statement in re.split(r";\s", passage.text):
            content = TAKEN_BACK.sub("", statement)
            answers = _EQUATES.search(content) or _is_name(content)
            if answers and _new_words(content, question):
                replacements.append(_OPENS_CORRECTION.sub("", statement))
    return replacements


def _is_name(text: str) -> bool:
    """Return whether a text is a few words without grammar: "The Pacific Ocean", not "a typo"."""
    words = re.findall(r"[^\W_]+", ARTICLE.sub("", text.strip(" ,:;.!")))
    return is_bare(text) and not any(word.casefold() in FUNCTION_WORDS for word in words)


def _answering(statements: list[str], question: Question) -> str:
    """Return the last conclusion, else the opening if it answers, else the closest sentence."""
    turns = [n for n, sentence in enumerate(statements) if n and RECONSIDERS.search(sentence)]
    remaining = statements[turns[-1] :] if turns else statements
    concluding = [sentence for sentence in remaining if _CONCLUDES.match(sentence)]
    if concluding:
        return concluding[-1]
    first = remaining[0]
    if not turns and (_REFERS.match(first) or len(first.split()) <= 4):
        return first
    closest = first
    for sentence in remaining:
        if _closeness(sentence, question) > _closeness(closest, question):
            closest = sentence
    return closest


def _closeness(sentence: str, question: Question) -> float:
    """Return how much of the question a sentence repeats; the noun asked for counts more."""
    names = not question.nouns.isdisjoint(stems(sentence))
    return question.overlap(sentence) + 0.25 * names


def _complement(clause: str, question: Question) -> str:
    """Return what a clause adds to its question: "Canberra" of "The capital is Canberra"."""
    if "=" in clause:
        return undecorated(clause.rpartition("=")[2])
    segments = _LINK.split(clause, maxsplit=1)
    if len(segments) != 2 or len(clause) > LONG:
        return undecorated(clause)
    subject = segments[0].strip()
    predicate = segments[1].strip()
    if question.overlap(predicate) > question.overlap(subject) and stems(subject):
        return undecorated(subject)
    return undecorated(predicate or clause)


def _new_words(text: str, question: Question) -> list[str]:
    """Return the words of a text that could be an answer: not of the question, not light ones."""
    words = []
    for word in re.findall(r"[^\W_]+", text):
        light = word.casefold() in FUNCTION_WORDS or stem(word) in _LIGHT_WORDS
        if not light and word != "s" and not word.endswith("ly") and not question.repeats(word):
            words.append(word)
    return words


def asserts(clause: str, gold: str, question: Question) -> bool:
    """Return whether a clause names `gold` as its answer: not denied, not one of several.

    What stands next to it must be a word of the question or one that can't be part of the answer.
    """
    if len(clause) > LONG:
        return False
    text = " ".join(unicodedata.normalize("NFKC", clause).split())
    target = joined_initials(undecorated(gold))
    target = ARTICLE.sub("", " ".join(unicodedata.normalize("NFKC", target).split()))
    if not target:
        return False
    repeated = question.repeats(target)
    for match in re.finditer(_inflected(target, question), text, re.IGNORECASE):
        before = text[: match.start()]
        after = text[match.end() :]
        if repeated and not _answers_with_repeated(before, after, question):
            continue
        if _NOT_NAMED.search(before) or _NEXT_TO.search(before):
            continue
        proper = match[0][:1].isupper()
        if _may_precede(before, question, proper=proper) and _may_follow(after, question):
            return True
    shorter = _without_question_words(target, question)
    return shorter != target and asserts(clause, shorter, question)


def _answers_with_repeated(before: str, after: str, question: Question) -> bool:
    """Return whether a word of the question answers it: "Feathers are heavier"."""
    opens = re.fullmatch(r"(?:.*:)?\W*(?:(?:the|an?)\s)?", before, re.IGNORECASE)
    compared = re.search(r"(\w+) than\b", after)
    if compared and stem(compared[1]) not in question.words:
        return False
    if opens and not _new_words(after, question):
        return True
    return bool(_PREDICATE.search(before)) and not _new_words(before, question)


def _inflected(target: str, question: Question) -> str:
    """Return the pattern of a text as whole words, in singular and plural unless asked for one."""
    plain_word = len(target) > 3 and target[-1].isalpha()
    if plain_word and not question.mentions("plural", "singular", "spell", "tense", "form of"):
        return rf"(?<![\w-]){re.escape(target.removesuffix('s'))}(?:e?s)?(?![\w-])"
    return rf"(?<![\w-]){re.escape(target)}(?![\w-])"


def _may_precede(before: str, question: Question, *, proper: bool) -> bool:
    """Return whether an answer may stand after these words."""
    last = re.search(r"([\w'’]+)\W*$", before)
    if last is None or re.search(r"[?:=→\"“'`(*]\s?$", before):
        return True
    word = last[1].casefold()
    light = stem(word) in question.words | _LIGHT_WORDS
    if proper and before.endswith(", ") and light:  # "our own planet, Earth"
        return True
    # one of several, unless "So, 9"
    if re.search(r"[,;/&]\s?$|\b(?:and|or)\s?$", before, re.IGNORECASE):
        return word in ("so", "yes", "answer", "well", "therefore", "thus", "hence", "is", "then")
    if light or word in FUNCTION_WORDS or re.search(r"['’](?:s|re|d|ll|m)$", word):
        return True
    return proper and last[1].islower()  # "the novelist Jane Austen"


def _may_follow(after: str, question: Question) -> bool:
    """Return whether an answer may stand before these words."""
    if re.match(r"\s?[/&+]|,?\sor\s", after):
        return False
    coordinated = re.match(
        r",?\sand\s(?:(?:first|later|then|also|originally|was|is)\s)?([\w'’]+)", after
    )
    if coordinated:  # a verb begins a clause: "Plants take in oxygen and release …"
        word = coordinated[1].casefold()
        return stem(word) in _LIGHT_WORDS or word in _PRONOUNS or word.endswith("ed")
    following = re.match(r"(\W*)([\w'’]+)", after)
    if following is None:
        return True
    if re.search(r"[,.;:!?()\[\]–—\"”]", following[1]):
        return not re.match(r"\W*,\s?\w+,?\s(?:and|or)\s", after)  # not a list
    word = following[2].casefold()
    if word in FUNCTION_WORDS or word.endswith(("ed", "ly")):
        return True
    return stem(word) in question.words | _LIGHT_WORDS


def _same_answer(parsed: str, gold: str, question: Question) -> bool:
    """Return whether two texts are equal, or would be with words of the question added."""
    if same_text(parsed, gold) or same_text(_AREA_UNIT.sub("", parsed), gold):
        return True
    if _adds_question_word(parsed, gold, question):
        return True
    if question.mentions(r"\bwho\b") and _is_surname(parsed, gold):
        return True
    shorter = _without_question_words(ARTICLE.sub("", undecorated(gold)), question)
    return same_text(parsed, shorter) or simplified(parsed) == f"{simplified(gold)}()"


def _without_question_words(text: str, question: Question) -> str:
    """Return "Pacific" for "Pacific Ocean" if the question asks for an ocean."""
    words = text.split()
    if not words or not words[0][:1].isupper():
        return text
    while len(words) > 1 and stem(words[-1]) in question.words:
        words.pop()
    return " ".join(words)


def _adds_question_word(parsed: str, gold: str, question: Question) -> bool:
    """Return whether a text only adds words of the question: "Japanese yen" for "Yen" of Japan."""
    words = simplified(re.sub(r"\s?\([^()]*\)", "", parsed)).split()
    gold_words = simplified(gold).split()
    added = words[: -len(gold_words)]
    if not added or words[len(added) :] != gold_words:
        return False
    question_starts = [word[:5] for word in question.words if len(word) > 3]
    return all(word.startswith(tuple(question_starts)) for word in added)


def _is_surname(parsed: str, gold: str) -> bool:
    """Return whether a text is a person's last name: "Einstein did" for "Albert Einstein"."""
    names = gold.split()
    if not 2 <= len(names) <= 3 or not all(name[:1].isupper() and name.isalpha() for name in names):
        return False
    return re.fullmatch(rf"{re.escape(names[-1])}(?: did| was| is)?", parsed.strip()) is not None
