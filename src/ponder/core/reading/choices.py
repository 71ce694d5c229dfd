"""Finds the option that a reply to a multiple-choice question chooses."""

from __future__ import annotations

import re
from collections.abc import Mapping

from ponder.core.reading import places
from ponder.core.reading.markup import TAIL, plain, undecorated
from ponder.core.reading.numerals import number
from ponder.core.reading.statements import ANSWER, IS


def choice(text: str, options: Mapping[str, str]) -> str | None:
    """The letter of the chosen option; None if there is none.

    It may stand alone (`B`, `(b)`, `**B)** helium`) or after "option" in any place of an answer, or start the reply; or
    the answer may be the option's text.
    """
    letters = "".join(options)
    alone = re.compile(rf"(?:\\(?:text|math)\w*+\{{|[^\w\n])*+([{letters}])(?![A-Za-z'’])(?!\.\w)", re.IGNORECASE)
    named = re.compile(
        rf"(?i:{ANSWER}|option|choice|choose|pick|select)(?:\s(?:letter|option|choice))?\s{{0,9}}(?i:{IS})?"
        rf"(?:\s(?:the|la|option|choice))*[\W_]{{0,9}}([{letters}])(?![A-Za-z'’])(?!\.\w)"
    )
    several = re.compile(
        rf"\W*[{letters}]\W{{1,9}}(?:\w{{1,9}}\W{{1,9}})?(?:or|oder|ou|and)\W{{1,9}}(?:\w{{4}}\W)?[{letters}]\b"
    )
    for place in places(text):
        said = undecorated(place.text)
        if place.marked and several.match(plain(said)):
            return None
        if place.marked and (chosen := alone.match(said)) and (len(said) < 3 or not chosen[1].islower()):
            return chosen[1].upper()
        if texts := [letter for letter, option in options.items() if _same_text(said, option)]:
            return texts[0] if len(texts) == 1 else None
    tail = plain(text[-TAIL:])
    if chosen_after := named.findall(tail):
        return str(chosen_after[-1])
    lines = plain(text[:TAIL]).strip().splitlines()
    for line in (lines[0], lines[-1]) if lines else ():
        if chosen := re.match(rf"[\W_]*+([{letters}])(?:[\W_]*+$|[.:]\s|[)\]])", line):
            return chosen[1]
    if ends := re.search(rf"(?:leaves|{IS})(?: option)? \W{{0,3}}([{letters}])\W{{0,3}}$", tail):
        return ends[1]
    return None


def _same_text(one: str, other: str) -> bool:
    left, right = (re.sub(r"^(?:the|an?) ", "", undecorated(text).casefold()) for text in (one, other))
    return left == right or (number(left) is not None and number(left) == number(right))
