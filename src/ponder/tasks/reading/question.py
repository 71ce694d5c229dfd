"""Holds what a question states and asks for, so that a reply's answer can be told from what it only
repeats.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction
from functools import cached_property, lru_cache

from ponder.tasks.reading.markup import plain
from ponder.tasks.reading.numerals import Numeral, in_words, numerals, signed

LONGEST = 20_000  # characters of a question that are read
# Words that are in any question and any answer.
FUNCTION_WORDS = frozenset(
    """
    a about after all also am an and any are as at be because been before being between both but by can could did do
    does during each either for from give had has have he her here his how i if in into is it its just let many may
    me more most much must my no nor not now of off on one only or other our out over own please shall she should so
    some such than that the their them then there these they this those through to too under up us was we were what
    when where which while who whom whose why will with would write yes you your answer question yield
    """.split()  # noqa: SIM905 words read better so
)
_WORD = re.compile(r"[^\W_]+")
_SENTENCE_END = re.compile(r"(?<=[.!?:])\s+|\n+")
_OPTION = re.compile(
    r"(?:^|\n|\s)[(\[]?([A-Ja-j])[.):\]]\s{0,3}(\S[^\n]{0,300}?)(?=\s{1,9}[(\[]?[A-Ja-j][.):\]]\s|\n|$)"
)
_ENDINGS = re.compile(r"(?:['’]s|ing|ies|ied|es|ed|s|e|y)$")


_COUNTED = re.compile(r"(?i)\bhow (?:many|much) (?:more |different |other |whole )?([^\W\d]+)")
_ASKED_NOUN = re.compile(
    r"(?i)\bwhat(?:['’]s| is| was| are| will be)? (?:the |its |their |his |her )(?:\w+ )?(?:\w+ )?"
    r"?([^\W\d]+)(?= of| when| if| in| for| after| between|\?)"
)
_ASKED_UNIT = re.compile(r"(?i)\bin (?:degrees |whole )?([^\W\d]+)(?= per\b|[?,.)]|$)")
_MORE = (
    r"\b(?:larger|greater|bigger|higher|more|longer|heavier|taller|older|faster|warmer|largest|greatest|biggest|highest"
    r"|longest|heaviest|tallest|oldest|fastest|most)\b"
)
_LESS = (
    r"\b(?:smaller|less|lower|fewer|shorter|lighter|younger|slower|colder|smallest|lowest|least|fewest|shortest|lightest"
    r"|youngest|slowest|coldest)\b"
)


# Choices in brackets, as in: "… this headline (World, Sports, Business)."
_IN_BRACKETS = re.compile(r"\(([^()]{3,200})\)[.?:]?$")


_DEFINES = re.compile(
    r"((?:[^\W\d]+\s){1,5})(?:is|was|equals|=)\s(?:therefore |thus |then )?[$€£]?\d"
)


@lru_cache(4096)
def stem(term: str) -> str:
    """Return a word without its ending, so that "minutes" is "minute" and "removes" is "remove"."""
    term = term.casefold()
    if len(term) <= 3:
        return term
    return _ENDINGS.sub("", term) or term


def stems(text: str) -> list[str]:
    """Return the words of a text that carry its content, in order."""
    return [stem(term) for term in _WORD.findall(text) if term.casefold() not in FUNCTION_WORDS]


# Past tenses, for telling which of two sentences is about what is asked.
_PAST = """
began/begin begun/begin fell/fall fallen/fall wrote/write written/write built/build went/go took/take sold/sell won/win
made/make found/find left/leave bought/buy paid/pay sank/sink sunk/sink became/become came/come ate/eat gave/give
given/give got/get drew/draw drove/drive flew/fly grew/grow held/hold knew/know lost/lose ran/run saw/see spent/spend
spoke/speak stood/stand taught/teach thought/think wore/wear
""".split()  # noqa: SIM905
_PRESENT = {stem(past): stem(present) for past, present in (pair.split("/") for pair in _PAST)}


class Question:
    """A prompt as the reader of its reply sees it; an empty one is of an unknown question."""

    def __init__(self, prompt: str = "") -> None:
        self._prompt = prompt[:LONGEST]

    def __bool__(self) -> bool:
        return bool(self._prompt.strip())

    @cached_property
    def text(self) -> str:
        """Return the prompt without marks."""
        return plain(self._prompt)

    @cached_property
    def numbers(self) -> frozenset[tuple[Fraction, str]]:
        """Return the forms of the numbers that the question itself states."""
        return frozenset(numeral.form for numeral in numerals(signed(self.text)))

    def states(self, numeral: Numeral) -> bool:
        """Return whether the question itself states this number."""
        return numeral.form in self.numbers

    def repeats(self, text: str) -> bool:
        """Return whether the question has all words of a text that carry content."""
        words = [term for term in _WORD.findall(text.casefold()) if term not in FUNCTION_WORDS]
        return bool(words) and set(words).issubset(_WORD.findall(self.text.casefold()))

    @cached_property
    def words(self) -> frozenset[str]:
        """Return the stems of its words."""
        return frozenset(stems(self.text))

    @cached_property
    def asked(self) -> frozenset[str]:
        """Return the stems of the sentence that asks, without numbers."""
        sentences = _SENTENCE_END.split(self.text)
        asking = [sentence for sentence in sentences if sentence.rstrip().endswith("?")]
        content = stems(asking[-1] if asking else self.text)
        return frozenset(term for term in content if not term.isdigit())

    def overlap(self, text: str) -> float:
        """Return which fraction of the words that it asks with a text repeats."""
        if not self.asked:
            return 0.0
        asked = {_PRESENT.get(term, term) for term in self.asked}
        content = {_PRESENT.get(term, term) for term in stems(text)}
        return len(asked & content) / len(asked)

    def closeness(self, text: str) -> float:
        """Return the overlap; if the question asks with numbers alone, whether a text repeats them
        all.
        """
        if self.asked or not self.numbers:
            return self.overlap(text)
        return float(self.numbers <= {numeral.form for numeral in numerals(signed(text))})

    def mentions(self, *patterns: str) -> bool:
        """Return whether the question contains one of these phrases."""
        return any(re.search(pattern, self.text, re.IGNORECASE) for pattern in patterns)

    @cached_property
    def nouns(self) -> frozenset[str]:
        """Return the stems of what is asked for: "minut" of "How many minutes …?" and of "How long
        … in minutes?".
        """
        words = [*self.counted, *_ASKED_NOUN.findall(self.text), *_ASKED_UNIT.findall(self.text)]
        return frozenset(stem(term) for term in words if term.casefold() not in FUNCTION_WORDS)

    @cached_property
    def counted(self) -> list[str]:
        """Return what the question asks the number of."""
        return _COUNTED.findall(self.text)

    def names(self, numeral: Numeral, text: str) -> bool:
        """Return whether a text attaches a noun that is asked for to a number: "12 edges", "a
        remainder of 2".
        """
        after = re.match(r"(?:\s|-)([^\W\d]+)(?:\s([^\W\d]+))?", text[numeral.end :])
        before = re.search(
            r"([^\W\d]+)\s?(?:of|is|=|:|equals|are|was)(?: (?:therefore|thus|then|now|hence|only))?\s?[$€£]?$",
            text[: numeral.start][-60:],
        )
        words = [term for match in (after, before) if match for term in match.groups() if term]
        if after and in_words(after[1]) is not None:  # "from 25 five times"
            words = []
        return not self.nouns.isdisjoint(map(stem, words))

    def defines(self, text: str) -> bool:
        """Return whether a text gives what is asked for a value: "The probability is 5/8", "The
        sale price is $36".
        """
        subjects = [match[1] for match in _DEFINES.finditer(text[:LONGEST])]
        return any(not self.nouns.isdisjoint(stems(subject)) for subject in subjects)

    def with_counts(self, text: str) -> str:
        """Return a text with "one nickel" and "no moons" as numbers, if that is what the question
        counts.
        """
        if not self.counted or len(text) > LONGEST:
            return text
        nouns = "|".join(rf"{re.escape(stem(noun))}\w*" for noun in self.counted)
        text = re.sub(rf"(?i)\bone(?=\s(?:\w+\s)?(?:{nouns})|\W*$)", "1", text)
        return re.sub(rf"(?i)\bno(?=\s(?:\w+\s)?(?:{nouns}))|^\W*none\b", "0", text)

    @cached_property
    def alternatives(self) -> list[str]:
        """Return the answers that a question offers in words: "the Sun" and "the Moon" of "…, the
        Sun or the Moon?".
        """
        bracketed = _IN_BRACKETS.search(self.text.rstrip())
        if (
            bracketed
            and "," in bracketed[1]
            and not re.search(r"\d|\b(?:and|with|of|in|as)\b", bracketed[1])
        ):
            return [segment.strip() for segment in re.split(r",\s(?:or\s)?|\sor\s", bracketed[1])]
        text = re.sub(r"\s?\([^()]{0,100}\)", "", self.text)
        asking = [
            segment
            for segment in re.split(r"(?<=[.?!])\s|\n", text)
            if segment.rstrip().endswith("?")
        ]
        offered = asking[-1].rstrip(" ?") if asking else ""
        listed = offered.rpartition(": ")[2]
        segments = [segment.strip(" \"“”'") for segment in re.split(r",\s(?:or\s)?|\sor\s", listed)]
        if len(segments) > 2 and re.match(
            r"(?i)(?:which|what|who|is|are|does|do|in|of)\b", segments[0]
        ):
            segments = segments[1:]
        elif listed == offered and len(segments) == 2:  # "Is it heads or tails if …?"
            segments = [segments[0].split()[-1], segments[1].split()[0]] if all(segments) else []
        offers_several = len(segments) >= 2 and (" or " in listed or listed != offered)
        return segments if offers_several else []

    def more(self) -> bool | None:
        """Return whether the question asks for the larger of things, or the smaller; None if it
        doesn't compare.
        """
        if self.mentions(_MORE):
            return True
        return False if self.mentions(_LESS) else None

    @cached_property
    def rounds(self) -> bool:
        """Return whether the question asks for a rounded number."""
        return self.mentions(
            r"\bround|\bnearest\b|approximat|\bestimate|\broughly\b|\babout how\b",
            r"\bdecimals?\b|\bsignificant (?:fig|dig)",
        )

    @cached_property
    def options(self) -> Mapping[str, str]:
        """Return the options of a multiple-choice question by letter; none unless they are lettered
        from A on.
        """
        options: dict[str, str] = {}
        for letter, text in _OPTION.findall(self.text):
            if letter.upper() == chr(ord("A") + len(options)):
                options[letter.upper()] = text.strip(" ,;")
        return options if len(options) >= 2 else {}


@lru_cache(256)
def question_of(prompt: str) -> Question:
    """Return a prompt as a question; the attempts at a problem share it."""
    return Question(prompt)
