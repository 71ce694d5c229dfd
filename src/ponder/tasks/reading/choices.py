"""Finds the option that a reply to a multiple-choice question chooses."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence

from ponder.tasks.reading.clauses import ANSWER, DENIES, HEDGED, IS, conclusion
from ponder.tasks.reading.conclusion import passages
from ponder.tasks.reading.markup import TAIL, plain, undecorated
from ponder.tasks.reading.numerals import number
from ponder.tasks.reading.question import Question
from ponder.tasks.reading.texts import asserts

# After a letter that is ruled out: "Option B is wrong".
_REFUTED = r"(?!\W{1,3}(?:(?i:is|are|was)\s)?(?i:wrong|incorrect|false|ruled|eliminated|excluded|not correct)\b)"
# "A good question"
_ARTICLE = re.compile(r"\W*A\s(?!(?:as|because|by|due|for|is|since|with)\b)[a-z]")
_NAMES = rf"(?i:{ANSWER}|option|choice|(?<!not )(?:choose|pick|select|go(?:ing)? (?:with|for)|settle (?:on|for)))"
_BRACKETED = re.compile(r"[(\[]([A-Ja-j])[)\]]")
_LETTERED = re.compile(r"[\W_]*[a-j][).:\]]|[\W_]*\w[\W_]*$")  # `b) quick`
_WRONG = re.compile(
    r"\b(?:wrong|incorrect|false|ruled out|eliminated|excluded|less|worse)\b", re.IGNORECASE
)
SHORTEST = 9  # characters of a place that is nothing but a letter with marks


def choice(text: str, options: Mapping[str, str], question: Question = Question()) -> str | None:  # noqa: B008
    """Return the letter of the chosen option; None if there is none.

    It may stand alone (`B`, `(b)`, `**B)** helium`) or after "option" in any place of an answer, or
    start the reply; or the answer may be the option's text.
    """
    letters = "".join(options)
    text = _without_analysis(text, options)
    if re.search(
        rf"(?i:\bboth|\beither) \(?[{letters}]\)? (?:and|or) \(?[{letters}]\b", text[-TAIL:]
    ):
        return None
    more_letters = re.compile(
        rf"\W*[{letters}](?:\W{{1,9}}(?:\w{{1,9}}\W{{1,9}})?(?:or|oder|ou|and)\W{{1,9}}(?:\w{{4}}\W)?|\W{{0,3}}[,/&+]\W{{0,3}})"
        rf"[{letters}]\b"
    )
    ends = re.compile(
        rf"(?i:leaves|leaving|say|so|hence,?|thus,?|therefore,?|{IS})(?: actually| option)?"
        rf" \W{{0,3}}([{letters}])\W{{0,3}}$"
    )
    for passage in passages(text, question):
        answer = undecorated(passage.text)
        letter = _bare(passage.text, options) or _concluded(plain(passage.text), options)
        if letter is None and not passage.marked:
            letter = _bracketed(passage.text, options) or _subject(plain(passage.text), options)
        if letter:
            return letter
        if passage.marked and more_letters.match(plain(answer)):
            return None
        if (
            chosen := _alone(answer, options)
            if passage.marked
            else _last(ends.findall(plain(passage.text)))
        ):
            return chosen
        if texts := [letter for letter, option in options.items() if _same_text(answer, option)]:
            return texts[0] if len(texts) == 1 else None
    tail = plain(text[-TAIL:])
    labelled = re.compile(
        rf"{_NAMES}(?:\s(?:letter|option|choice))?\s{{0,9}}(?i:{IS})?"
        rf"(?:\s(?:the|la|option|choice))*[\W_]{{0,9}}([{letters}])(?![A-Za-z'’])(?!\.\w){_REFUTED}"
    )
    letter = _last(labelled.findall(tail)) or _of_line(text, options) or _last(ends.findall(tail))
    letter = letter or _affirmed(text, letters) or _named_option(text, options, question)
    return letter or _only_letter(text, options, question)


def _without_analysis(text: str, options: Mapping[str, str]) -> str:
    """Return a reply without the lines in which it goes through the options, one each, if it has
    other lines.
    """
    opening = re.compile(rf"[\W_]*([{''.join(options)}])(?:[).:\]]\W|[).:\]]$)")
    lines = [line for line in text[-TAIL:].splitlines() if line.strip()]
    remaining: list[str] = []
    for is_option, run in itertools.groupby(
        lines, key=lambda line: opening.match(line) is not None
    ):
        run_lines = list(run)
        letters = {match[1] for match in map(opening.match, run_lines) if match}
        if not is_option or len(letters) < 3:
            remaining += run_lines
    if not remaining or len(remaining) == len(lines):
        return text
    return "\n".join(remaining)


def _concluded(sentence: str, options: Mapping[str, str]) -> str | None:
    """Return the letter that follows "So:" or an arrow, with its option: "So: C) Condensation"."""
    match = re.search(
        r"(?:^\W*(?i:so|therefore|thus|hence)\W{1,3}|(?:→|->|=>|⇒)\s?)\(?([A-J])(?:[).:\]]\s?(.*))?\W*$",
        sentence[-300:],
    )
    if match is None or match[1] not in options:
        return None
    return match[1] if not match[2] or _same_text(match[2], options[match[1]]) else None


def _only_letter(text: str, options: Mapping[str, str], question: Question) -> str | None:
    """Return the only letter that the likeliest sentence names: "The finding fits B best"."""
    for passage in passages(text, question)[:2]:
        letters = set(
            re.findall(r"(?<![\w'’])([B-HJ])(?![\w'’.:)\]])", plain(passage.text)[:TAIL])
        ) & set(options)
        if letters:
            denied = (
                HEDGED.search(passage.text)
                or DENIES.search(passage.text)
                or _WRONG.search(passage.text)
            )
            return letters.pop() if len(letters) == 1 and not denied else None
    return None


def _bare(text: str, options: Mapping[str, str]) -> str | None:
    """Return the letter that a text is, whatever the marks around it."""
    bare = re.fullmatch(r"[\W_]*([A-Za-z])[\W_]*", text.strip()) if len(text) <= SHORTEST else None
    return bare[1].upper() if bare and bare[1].upper() in options else None


def _subject(sentence: str, options: Mapping[str, str]) -> str | None:
    """Return the letter that a sentence speaks of: "C is a fruit", "B, potato, is a fruit"."""
    letter = re.match(r"\W*([A-J])\)?,?\s", sentence)
    if len(set(re.findall(r"\b([A-J])\)", sentence))) > 1:  # "A) is …, B) is …"
        return None
    if (
        letter is None
        or letter[1] not in options
        or HEDGED.search(sentence)
        or DENIES.search(sentence)
    ):
        return None
    following = sentence[letter.end() :]
    if re.match(r"(?:is|must be|has|would be)\s(?!wrong|incorrect|false)", following):
        return letter[1]
    return (
        letter[1]
        if following.casefold().startswith(undecorated(options[letter[1]]).casefold())
        else None
    )


def _bracketed(sentence: str, options: Mapping[str, str]) -> str | None:
    """Return the only letter in brackets in what a sentence concludes: "so the best match is (b)"."""
    clause = conclusion(
        sentence.replace(" (", " : ("), lambda segment: bool(_BRACKETED.search(segment))
    )
    letters: set[str] = {letter.upper() for letter in _BRACKETED.findall(clause)} & set(options)
    if len(letters) != 1 or HEDGED.search(clause) or DENIES.search(clause):
        return None
    return letters.pop()


def _affirmed(text: str, letters: str) -> str | None:
    """Return the letter that a sentence calls right: "B is right"."""
    affirmed = re.findall(
        rf"\b([{letters}])\)?(?:\s\w+){{0,3}}?\s(?:is|must be|would be)\s(?:the\s)?(?:right|correct|best|true)\b",
        text,
    )
    return affirmed[0] if len(set(affirmed)) == 1 else None


def _named_option(text: str, options: Mapping[str, str], question: Question) -> str | None:
    """Return the letter of the only option whose text the concluding sentence names as the answer."""
    for passage in passages(text, question)[:1]:
        clause = conclusion(
            plain(passage.text),
            lambda segment: any(_mentions(segment, option) for option in options.values()),
        )
        if HEDGED.search(clause):
            return None
        labelled = [
            letter for letter, option in options.items() if asserts(clause, option, Question())
        ]
        mentioned = [letter for letter, option in options.items() if _mentions(clause, option)]
        return labelled[0] if len(mentioned) == 1 and labelled == mentioned else None
    return None


def _mentions(text: str, option: str) -> bool:
    return undecorated(option).casefold() in text.casefold()


def _alone(answer: str, options: Mapping[str, str]) -> str | None:
    """Return the letter that a text opens with."""
    alone = rf"(?:\\(?:text|math)\w*+\{{|[^\w\n])*+([{''.join(options)}])(?![A-Za-z'’])(?!\.\w){_REFUTED}"
    chosen = re.match(alone, answer, re.IGNORECASE)
    if not chosen or (len(answer) >= 3 and chosen[1].islower() and not _LETTERED.match(answer)):
        return None
    article = _ARTICLE.match(answer) and not _same_text(
        answer[chosen.end() :], options.get("A", "")
    )
    return None if article else chosen[1].upper()


def _of_line(text: str, options: Mapping[str, str]) -> str | None:
    """Return the letter that the first or the last line opens with, unless the lines are the
    options.
    """
    letters = "".join(options)
    opens = re.compile(
        rf"[\W_]*+([{letters}])(?:[\W_]*+$|[.:]\s|[)\]]|\sis the (?:correct|right)){_REFUTED}"
    )
    lines = plain(text[:TAIL]).strip().splitlines()
    for line in lines[:1]:
        letter = re.match(rf"\W{{0,3}}([{letters}])\W{{1,3}}(?=\w)", line)
        if letter and _same_text(line[letter.end() :], options[letter[1]]):
            return letter[1]
    line_letters = [chosen[1] if (chosen := opens.match(line)) else None for line in lines]
    return (
        None
        if len({*line_letters} - {None}) > 1 or not line_letters
        else line_letters[0] or line_letters[-1]
    )


def _last(letters: Sequence[str]) -> str | None:
    return letters[-1] if letters else None


def _same_text(first: str, second: str) -> bool:
    first_text, second_text = (
        re.sub(r"^(?:the|an?) ", "", undecorated(text).casefold()) for text in (first, second)
    )
    return first_text == second_text or (
        number(first_text) is not None and number(first_text) == number(second_text)
    )
