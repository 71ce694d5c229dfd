"""Holds what a question states and asks for, to tell an answer from what a reply only repeats."""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction
from functools import cached_property, lru_cache

from ponder.tasks.reading.markup import plain
from ponder.tasks.reading.values import Numeral, in_words, numerals, with_signs

LONGEST = 20_000  # characters of a question that are read
# Words that are in any question and any answer.
FUNCTION_WORDS = frozenset(
    """
    a about after all also am an and any are as at be because been before being between both but by
    can could did do does during each either for from give had has have he her here his how i if in
    into is it its just let many may me more most much must my no nor not now of off on one only or
    other our out over own please shall she should so some such than that the their them then there
    these they this those through to too under up us was we were what when where which while who
    whom whose why will with would write yes you your answer question yield
    """.split()  # noqa: SIM905 words read better so
)
_WORD = re.compile(r"[^\W_]+")
_ENDINGS = re.compile(r"(?:['’]s|ing|ies|ied|es|ed|s|e|y)$")
_SENTENCE_END = re.compile(r"(?<=[.!?:])\s+|\n+")
# `B) helium`, `(b) helium`, up to the next letter or the end of the line
_OPTION = re.compile(
    r"(?:^|\n|\s)[(\[]?([A-Ja-j])[.):\]]\s{0,3}(\S[^\n]{0,300}?)"
    r"(?=\s{1,9}[(\[]?[A-Ja-j][.):\]]\s|\n|$)"
)
_COUNTED = re.compile(r"(?i)\bhow (?:many|much) (?:more |different |other |whole )?([^\W\d]+)")
# "What is the average speed of …?"
_ASKED_NOUN = re.compile(
    r"(?i)\bwhat(?:['’]s| is| was| are| will be)? (?:the |its |their |his |her )(?:\w+ )?(?:\w+ )?"
    r"?([^\W\d]+)(?= of| when| if| in| for| after| between|\?)"
)
_ASKED_UNIT = re.compile(r"(?i)\bin (?:degrees |whole )?([^\W\d]+)(?= per\b|[?,.)]|$)")
_NOUN_BEFORE = re.compile(  # "a remainder of 2", "The price is therefore $2"
    r"([^\W\d]+)\s?(?:of|is|=|:|equals|are|was)(?: (?:therefore|thus|then|now|hence|only))?"
    r"\s?[$€£]?$"
)
_NOUN_AFTER = re.compile(r"(?:\s|-)([^\W\d]+)(?:\s([^\W\d]+))?")


@lru_cache(4096)
def stem(word: str) -> str:
    """Return a word without its ending, so that "minutes" is "minut" as "minute" is."""
    word = word.casefold()
    if len(word) <= 3:
        return word
    return _ENDINGS.sub("", word) or word


def stems(text: str) -> list[str]:
    """Return the stems of the words that carry a text's content, in order."""
    return [stem(word) for word in _WORD.findall(text) if word.casefold() not in FUNCTION_WORDS]


class Question:
    """A prompt as the reader of its reply sees it; an empty one if the question is unknown."""

    def __init__(self, prompt: str = "") -> None:
        self._prompt = prompt[:LONGEST]

    def __bool__(self) -> bool:
        return bool(self._prompt.strip())

    @cached_property
    def text(self) -> str:
        """Return the prompt without marks."""
        return plain(self._prompt)

    def mentions(self, *patterns: str) -> bool:
        """Return whether the question contains one of these phrases."""
        return any(re.search(pattern, self.text, re.IGNORECASE) for pattern in patterns)

    @cached_property
    def numbers(self) -> frozenset[tuple[Fraction, str]]:
        """Return the forms of the numbers that the question itself states."""
        return frozenset(numeral.form for numeral in numerals(with_signs(self.text)))

    def states(self, numeral: Numeral) -> bool:
        """Return whether the question itself states this number."""
        return numeral.form in self.numbers

    @cached_property
    def words(self) -> frozenset[str]:
        """Return the stems of its words."""
        return frozenset(stems(self.text))

    def repeats(self, text: str) -> bool:
        """Return whether the question has all words of a text that carry content."""
        words = {word for word in _WORD.findall(text.casefold()) if word not in FUNCTION_WORDS}
        return bool(words) and words.issubset(_WORD.findall(self.text.casefold()))

    @cached_property
    def asked(self) -> frozenset[str]:
        """Return the stems of the sentence that asks, without numbers."""
        asking = self.text
        for sentence in _SENTENCE_END.split(self.text):
            if sentence.rstrip().endswith("?"):
                asking = sentence
        return frozenset(word for word in stems(asking) if not word.isdigit())

    def overlap(self, text: str) -> float:
        """Return which fraction of the words that it asks with a text repeats."""
        if not self.asked:
            return 0.0
        return len(self.asked.intersection(stems(text))) / len(self.asked)

    @cached_property
    def nouns(self) -> frozenset[str]:
        """Return the stems of what is asked for: "minut" of "How many minutes?"."""
        words = []
        for asked_for in (_COUNTED, _ASKED_NOUN, _ASKED_UNIT):
            words += asked_for.findall(self.text)
        return frozenset(stem(word) for word in words if word.casefold() not in FUNCTION_WORDS)

    def names(self, numeral: Numeral, text: str) -> bool:
        """Return whether a text attaches a noun that is asked for to a number: "12 edges"."""
        after = _NOUN_AFTER.match(text, numeral.end)
        before = _NOUN_BEFORE.search(text[: numeral.start][-60:])
        words: list[str] = []
        if after and in_words(after[1]) is None:
            words += filter(None, after.groups())
        if before:
            words.append(before[1])
        return not self.nouns.isdisjoint(map(stem, words))

    def with_counts(self, text: str) -> str:
        """Return a text with "one nickel" and "no moons" as numbers if the question counts them."""
        counted = _COUNTED.findall(self.text)
        if not counted or len(text) > LONGEST:
            return text
        nouns = "|".join(rf"{re.escape(stem(noun))}\w*" for noun in counted)
        text = re.sub(rf"(?i)\bone(?=\s(?:\w+\s)?(?:{nouns})|\W*$)", "1", text)
        return re.sub(rf"(?i)\bno(?=\s(?:\w+\s)?(?:{nouns}))|^\W*none\b", "0", text)

    @cached_property
    def rounds(self) -> bool:
        """Return whether the question asks for a rounded number."""
        return self.mentions(
            r"\bround|\bnearest\b|approximat|\bestimate|\broughly\b|\babout how\b",
            r"\bdecimals?\b|\bsignificant (?:fig|dig)",
        )

    @cached_property
    def options(self) -> Mapping[str, str]:
        """Return the options of a multiple-choice question by letter, if lettered from A on."""
        options: dict[str, str] = {}
        for letter, text in _OPTION.findall(self.text):
            if letter.upper() == chr(ord("A") + len(options)):
                options[letter.upper()] = text.strip(" ,;")
        if len(options) < 2:
            return {}
        return options


@lru_cache(256)
def question_of(prompt: str) -> Question:
    """Return a prompt as a question; the attempts at a problem share it."""
    return Question(prompt)
