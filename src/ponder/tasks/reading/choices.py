"""Finds the option that a reply to a multiple-choice question chooses."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from ponder.tasks.reading.clauses import ANSWER, DENIES, HEDGED, IS, conclusion
from ponder.tasks.reading.markup import TAIL, plain, undecorated
from ponder.tasks.reading.numerals import number
from ponder.tasks.reading.places import places
from ponder.tasks.reading.question import Question
from ponder.tasks.reading.texts import asserts

# After a letter that is ruled out: "Option B is wrong".
_REFUTED = r"(?!\W{1,3}(?:(?i:is|are|was)\s)?(?i:wrong|incorrect|false|ruled|eliminated|excluded|not correct)\b)"
_ARTICLE = re.compile(r"\W*A\s(?!(?:as|because|by|due|for|is|since|with)\b)[a-z]")  # "A good question"
_NAMES = rf"(?i:{ANSWER}|option|choice|(?<!not )(?:choose|pick|select|go(?:ing)? (?:with|for)|settle (?:on|for)))"
_BRACKETED = re.compile(r"[(\[]([A-Ja-j])[)\]]")
_LETTERED = re.compile(r"[\W_]*[a-j][).:\]]|[\W_]*\w[\W_]*$")  # `b) quick`
SHORTEST = 9  # characters of a place that is nothing but a letter with marks


def choice(text: str, options: Mapping[str, str], question: Question = Question()) -> str | None:  # noqa: B008
    """The letter of the chosen option; None if there is none.

    It may stand alone (`B`, `(b)`, `**B)** helium`) or after "option" in any place of an answer, or start the reply; or
    the answer may be the option's text.
    """
    letters = "".join(options)
    several = re.compile(
        rf"\W*[{letters}](?:\W{{1,9}}(?:\w{{1,9}}\W{{1,9}})?(?:or|oder|ou|and)\W{{1,9}}(?:\w{{4}}\W)?|\W{{0,3}}[,/&+]\W{{0,3}})"
        rf"[{letters}]\b"
    )
    ends = re.compile(
        rf"(?i:leaves|leaving|say|so|hence,?|thus,?|therefore,?|{IS})(?: actually| option)?"
        rf" \W{{0,3}}([{letters}])\W{{0,3}}$"
    )
    for place in places(text, question):
        said = undecorated(place.text)
        letter = _bare(place.text, options)
        if letter is None and not place.marked:
            letter = _bracketed(place.text, options) or _subject(plain(place.text), options)
        if letter:
            return letter
        if place.marked and several.match(plain(said)):
            return None
        if chosen := _alone(said, options) if place.marked else _last(ends.findall(plain(place.text))):
            return chosen
        if texts := [letter for letter, option in options.items() if _same_text(said, option)]:
            return texts[0] if len(texts) == 1 else None
    tail = plain(text[-TAIL:])
    named = re.compile(
        rf"{_NAMES}(?:\s(?:letter|option|choice))?\s{{0,9}}(?i:{IS})?"
        rf"(?:\s(?:the|la|option|choice))*[\W_]{{0,9}}([{letters}])(?![A-Za-z'’])(?!\.\w){_REFUTED}"
    )
    letter = _last(named.findall(tail)) or _of_line(text, options) or _last(ends.findall(tail))
    return letter or _affirmed(text, letters) or _named_option(text, options, question)


def _bare(text: str, options: Mapping[str, str]) -> str | None:
    """The letter that a text is, whatever the marks around it."""
    bare = re.fullmatch(r"[\W_]*([A-Za-z])[\W_]*", text.strip()) if len(text) <= SHORTEST else None
    return bare[1].upper() if bare and bare[1].upper() in options else None


def _subject(sentence: str, options: Mapping[str, str]) -> str | None:
    """The letter that a sentence speaks of: "C is a fruit", "B, potato, is a fruit"."""
    letter = re.match(r"\W*([A-J])\)?,?\s", sentence)
    if letter is None or letter[1] not in options or HEDGED.search(sentence) or DENIES.search(sentence):
        return None
    following = sentence[letter.end() :]
    if re.match(r"(?:is|must be|has|would be)\s(?!wrong|incorrect|false)", following):
        return letter[1]
    return letter[1] if following.casefold().startswith(undecorated(options[letter[1]]).casefold()) else None


def _bracketed(sentence: str, options: Mapping[str, str]) -> str | None:
    """The only letter in brackets in what a sentence concludes: "so the best match is (b)"."""
    clause = conclusion(sentence.replace(" (", " : ("), lambda part: bool(_BRACKETED.search(part)))
    letters: set[str] = {letter.upper() for letter in _BRACKETED.findall(clause)} & set(options)
    if len(letters) != 1 or HEDGED.search(clause) or DENIES.search(clause):
        return None
    return letters.pop()


def _affirmed(text: str, letters: str) -> str | None:
    """The letter that a sentence calls right: "B is right"."""
    affirmed = re.findall(
        rf"\b([{letters}])\)?(?:\s\w+){{0,3}}?\s(?:is|must be|would be)\s(?:the\s)?(?:right|correct|best|true)\b", text
    )
    return affirmed[0] if len(set(affirmed)) == 1 else None


def _named_option(text: str, options: Mapping[str, str], question: Question) -> str | None:
    """The letter of the only option whose text the concluding sentence names as the answer."""
    for place in places(text, question)[:1]:
        clause = conclusion(plain(place.text), lambda part: any(_mentions(part, option) for option in options.values()))
        if HEDGED.search(clause):
            return None
        named = [letter for letter, option in options.items() if asserts(clause, option, Question())]
        mentioned = [letter for letter, option in options.items() if _mentions(clause, option)]
        return named[0] if len(mentioned) == 1 and named == mentioned else None
    return None


def _mentions(text: str, option: str) -> bool:
    return undecorated(option).casefold() in text.casefold()


def _alone(said: str, options: Mapping[str, str]) -> str | None:
    """The letter that a text opens with."""
    alone = rf"(?:\\(?:text|math)\w*+\{{|[^\w\n])*+([{''.join(options)}])(?![A-Za-z'’])(?!\.\w){_REFUTED}"
    chosen = re.match(alone, said, re.IGNORECASE)
    if not chosen or (len(said) >= 3 and chosen[1].islower() and not _LETTERED.match(said)):
        return None
    article = _ARTICLE.match(said) and not _same_text(said[chosen.end() :], options.get("A", ""))
    return None if article else chosen[1].upper()


def _of_line(text: str, options: Mapping[str, str]) -> str | None:
    """The letter that the first or the last line opens with, unless the lines are the options."""
    letters = "".join(options)
    opens = re.compile(rf"[\W_]*+([{letters}])(?:[\W_]*+$|[.:]\s|[)\]]|\sis the (?:correct|right)){_REFUTED}")
    lines = plain(text[:TAIL]).strip().splitlines()
    for line in lines[:1]:
        letter = re.match(rf"\W{{0,3}}([{letters}])\W{{1,3}}(?=\w)", line)
        if letter and _same_text(line[letter.end() :], options[letter[1]]):
            return letter[1]
    found = [chosen[1] if (chosen := opens.match(line)) else None for line in lines]
    return None if len({*found} - {None}) > 1 or not found else found[0] or found[-1]


def _last(letters: Sequence[str]) -> str | None:
    return letters[-1] if letters else None


def _same_text(one: str, other: str) -> bool:
    left, right = (re.sub(r"^(?:the|an?) ", "", undecorated(text).casefold()) for text in (one, other))
    return left == right or (number(left) is not None and number(left) == number(right))
