"""Finds the option that a reply to a multiple-choice question chooses."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from ponder.core.reading import places
from ponder.core.reading.markup import TAIL, plain, undecorated
from ponder.core.reading.numerals import number
from ponder.core.reading.statements import ANSWER, IS

# After a letter that is ruled out: "Option B is wrong".
_REFUTED = r"(?!\W{1,3}(?:(?i:is|are|was)\s)?(?i:wrong|incorrect|false|ruled|eliminated|excluded|not correct)\b)"
_ARTICLE = re.compile(r"\W*A\s(?!(?:as|because|by|due|for|is|since|with)\b)[a-z]")  # "A good question"
_NAMES = rf"(?i:{ANSWER}|option|choice|(?<!not )(?:choose|pick|select))"


def choice(text: str, options: Mapping[str, str]) -> str | None:
    """The letter of the chosen option; None if there is none.

    It may stand alone (`B`, `(b)`, `**B)** helium`) or after "option" in any place of an answer, or start the reply; or
    the answer may be the option's text.
    """
    letters = "".join(options)
    several = re.compile(
        rf"\W*[{letters}](?:\W{{1,9}}(?:\w{{1,9}}\W{{1,9}})?(?:or|oder|ou|and)\W{{1,9}}(?:\w{{4}}\W)?|\W{{0,3}}[,/&+]\W{{0,3}})"
        rf"[{letters}]\b"
    )
    ends = re.compile(rf"(?:leaves|leaving|say|{IS})(?: actually| option)? \W{{0,3}}([{letters}])\W{{0,3}}$")
    for place in places(text):
        said = undecorated(place.text)
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
    return _last(named.findall(tail)) or _of_line(text, letters) or _last(ends.findall(tail))


def _alone(said: str, options: Mapping[str, str]) -> str | None:
    """The letter that a text opens with."""
    alone = rf"(?:\\(?:text|math)\w*+\{{|[^\w\n])*+([{''.join(options)}])(?![A-Za-z'’])(?!\.\w){_REFUTED}"
    chosen = re.match(alone, said, re.IGNORECASE)
    if not chosen or (len(said) >= 3 and chosen[1].islower()):
        return None
    article = _ARTICLE.match(said) and not _same_text(said[chosen.end() :], options.get("A", ""))
    return None if article else chosen[1].upper()


def _of_line(text: str, letters: str) -> str | None:
    """The letter that the first or the last line opens with, unless the lines are the options."""
    opens = re.compile(rf"[\W_]*+([{letters}])(?:[\W_]*+$|[.:]\s|[)\]]|\sis the (?:correct|right)){_REFUTED}")
    lines = plain(text[:TAIL]).strip().splitlines()
    found = [chosen[1] if (chosen := opens.match(line)) else None for line in lines]
    return None if len({*found} - {None}) > 1 or not found else found[0] or found[-1]


def _last(letters: Sequence[str]) -> str | None:
    return letters[-1] if letters else None


def _same_text(one: str, other: str) -> bool:
    left, right = (re.sub(r"^(?:the|an?) ", "", undecorated(text).casefold()) for text in (one, other))
    return left == right or (number(left) is not None and number(left) == number(right))
