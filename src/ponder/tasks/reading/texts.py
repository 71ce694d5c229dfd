"""Reads answers in words: yes or no, lists, names and other short texts."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

from ponder.tasks.reading.clauses import HEDGED, IS, MISTAKEN, any_of, conclusion, pattern
from ponder.tasks.reading.markup import LONG, plain, undecorated
from ponder.tasks.reading.numerals import number
from ponder.tasks.reading.question import FUNCTION_WORDS, Question, stem, stems

TOO_LONG = 1000  # characters; the longest answer in MATH-500 has 53
_WORD = re.compile(r"[^\W_]+")
_ARTICLE = pattern(r"^(?:the|an?|le|la|les|un|une|der|die|das|ein|eine|el|los|las)\s")

YES = ("yes", "true", "yeah", "yep", "correct", "right", "affirmative")
NO = ("no", "false", "nope", "incorrect", "wrong", "negative")
_YES_NO = "|".join((*YES, *NO))
_OPENS_YES_NO = pattern(
    r"\W*+(?:(?:so|therefore|thus|hence|well|ok|okay|oh|and|the answer is)[,:]?\s++)*+\W*+",
    rf"({_YES_NO})\b(?!\W{{0,3}}(?:and|or|idea|way to|one)\b)",
)
_SAYS_YES_NO = pattern(
    r"(?:\b(?:so|therefore|thus|hence),?\s+",
    r"|\b(?:statement|claim|sentence|assertion|proposition|that|it|this|which|answer)",
    r"(?:['’]s|\s(?:is|was|would be))\s(?:(?:therefore|indeed|actually|clearly|thus|a)\s)?)",
    rf"\W{{0,3}}({_YES_NO})\b",
)
_SAYS_NOT = pattern(
    r"\b(?:that|it|this|statement|claim)(?:['’]s| is| was) not (?:true|correct|right|the case)\b",
    r"|n['’]t (?:true|correct|right|the case)\b",
)
_BOTH = pattern(any_of("yes and no", "yes or no", "true or false", "depends"))
_NEGATION = pattern(
    r"\b(?:not|cannot|never|no)\b|\b(?:is|are|does|do|was|were|can|wo|has|have|did)n?['’]t\b",
)
# Words of a question that a statement with the same meaning may lack
_NOT_ASKED = frozenset(
    map(stem, ("yes", "no", "true", "false", "number", "statement", "today", "now", "currently", "really", "still"))
)

# Words that may stand before or after an answer in its clause, besides those of the question
_VERBS = frozenset(
    map(
        stem,
        """
        is are was were be equals called named known use used get gets got give make take become produce form need
        release absorb write wrote written paint painted invent discover create compose direct found founded build
        built live located think believe say choose pick go goes went come stand mean remain refer represent belong
        win won happen speak spoken contain lie turn return print output has have does do can see hear require
        involve describe yield result
        """.split(),  # noqa: SIM905 words read better so
    )
)
_ASIDES = frozenset(
    map(
        stem,
        """
        actually indeed therefore thus simply just really definitely clearly certainly commonly usually obviously
        probably specifically namely correct right proper well here there itself then first famous great course
        so-called built-in inc ltd corp corporation company sir dr professor president
        saint mr mrs lady lord king queen astronaut city town country
        river author writer novelist painter artist physicist scientist word term name keyword command function
        method planet element symbol gas capital language person character letter colour color animal month day
        season chemical english french german american italian british spanish dutch russian
        """.split(),  # noqa: SIM905
    )
)
_PRONOUNS = frozenset(("it", "is", "was", "the", "they", "he", "she", "has", "its", "this", "we", "you", "not"))
_DENIES = pattern(
    any_of("not", "never", "than", "unlike", "except", "without", "nor", "neither", "cannot", "nobody", "least"),
    r"|n['’]t\b|\b(?:instead|rather) (?:of|than)\b",
)
_SPLIT_ITEMS = pattern(r"\s{0,9}(?:[,;\n、，]|→|->|[<>])\s{0,9}(?:and\s|then\s)?|\s(?:and|&)\s")
_IN_ORDER = pattern(r"\s(?:in (?:that|this|\w+ing|alphabetical) order|respectively).*$")
_LIST_FOLLOWS = pattern(
    rf"(?:(?:{IS})(?:\s{{0,3}}:)?|:|=|→",
    r"|\b(?:as follows|becomes|be|(?:gives|get|yields|returns|leaves)(?: you| us)?)\b:?)\s+",
)
_LINK = pattern(rf"\s(?:{IS}|=)\s|(?<=^it)['’]s\s|(?<=^that)['’]s\s|:\s")


def simplified(text: str) -> str:
    """Return a text as it is compared: without case, subscripts, marks, articles and the spaces around signs."""
    text = unicodedata.normalize("NFKC", undecorated(text)).casefold()
    text = " ".join(text.replace("’", "'").split())
    text = re.sub(r"\s?([^\w\s'])\s?", r"\1", text)
    return _ARTICLE.sub("", text).strip(" .!\"'")


def same_text(parsed: str, gold: str) -> bool:
    """Return whether two answers are equal as numbers or texts, or as lists in the same order."""
    if len(parsed) > TOO_LONG > len(gold):  # also because `normalize` takes quadratic time on many marks in a row
        return False
    if _same_item(parsed, gold):
        return True
    gold_items = items(gold)
    return len(gold_items) > 1 and same_items(items(parsed), gold_items)


def _same_item(one: str, other: str) -> bool:
    left = number(one)
    right = number(other)
    if left is None or right is None:
        return simplified(one) == simplified(other) != "" or one == other
    return left == right


def items(text: str) -> list[str]:
    """Return the items of a list: `[3, 7, 9]`, `3,7,9`, "3, 7 and 9", or one per line."""
    text = undecorated(text)
    while len(text) > 1 and (text[0], text[-1]) in (("[", "]"), ("(", ")"), ("{", "}")):
        text = text[1:-1].strip()
    found = [undecorated(plain(item)) for item in _SPLIT_ITEMS.split(text)]
    return [item for item in found if item]


def same_items(one: Sequence[str], other: Sequence[str]) -> bool:
    return len(one) == len(other) and all(map(_same_item, one, other))


def listed(text: str, gold: Sequence[str]) -> list[list[str]]:
    """Return the lists that a text may state, the likeliest first."""
    if len(text) > TOO_LONG:
        return []
    clause = conclusion(text, lambda part: len(items(part)) > 1)
    bracketed = re.findall(r"\[[^\[\]]{1,500}\]", clause)
    parts = _LIST_FOLLOWS.split(clause)
    candidates = bracketed[-1:] or [parts[-1], clause, parts[0]]
    lists = []
    for candidate in candidates:
        split = [_IN_ORDER.sub("", item) for item in items(candidate)]
        if len(split) == 1 and all(" " not in item for item in gold):  # "3 7 9"
            split = split[0].split()
        if len(split) > 1:
            lists.append(split)
    return lists


def states_items(text: str, gold: Sequence[str], question: Question) -> bool:
    """Return whether a clause ends or begins with these items: "30 factors into 2, 3 and 5"."""
    found = items(text) if len(text) <= LONG else []
    if len(found) != len(gold) or not same_items(found[1:-1], gold[1:-1]):
        return False
    before = re.fullmatch(rf"(?:(.*?)\s)?{re.escape(gold[0])}", found[0], re.IGNORECASE)
    after = re.fullmatch(rf"{re.escape(gold[-1])}(\s.*)?", found[-1], re.IGNORECASE)
    if before is None or after is None or _DENIES.search(text):
        return False
    return _may_precede(f"{before[1] or ''} ", question, proper=False) and _may_follow(after[1] or "", question)


def yes_no(sentence: str, question: Question) -> str | None:
    """Return "yes" or "no" if a sentence says so, in a word or by affirming or denying what is asked; else None."""
    if len(sentence) > LONG or _BOTH.search(sentence):
        return None
    if _SAYS_NOT.search(sentence):
        return "no"
    words = [match[1].lower() for match in _SAYS_YES_NO.finditer(sentence)]
    opens = _OPENS_YES_NO.match(sentence)
    if opens:
        words.append(opens[1].lower())
    if words:
        return "yes" if words[-1] in YES else "no"
    asked = question.asked - _NOT_ASKED
    clause = conclusion(sentence, lambda part: asked.issubset(stems(part)), denials=True)
    if HEDGED.search(clause) or MISTAKEN.search(clause):
        return None
    if not asked or not asked.issubset(stems(clause)):
        return None
    denials = len(_NEGATION.findall(clause))
    return {0: "yes", 1: "no"}.get(denials)


def new_words(text: str, question: Question) -> list[str]:
    """Return the words of a text that could be an answer: not those of the question, verbs and asides."""
    words = [word for word in _WORD.findall(text) if word.casefold() not in FUNCTION_WORDS and word != "s"]
    words = [word for word in words if stem(word) not in _VERBS | _ASIDES and not word.endswith("ly")]
    return [word for word in words if not question.repeats(word)]


def is_verb(word: str) -> bool:
    return stem(word) in _VERBS


def asserts(clause: str, gold: str, question: Question) -> bool:
    """Return whether a clause names `gold` as its answer: as a whole, not denied, not as one of several.

    What stands next to it must be a word of the question or one that can't be part of the answer.
    """
    text = " ".join(unicodedata.normalize("NFKC", clause[: LONG + 1]).split())
    wanted = _ARTICLE.sub("", " ".join(unicodedata.normalize("NFKC", undecorated(gold)).split()))
    if not wanted or len(clause) > LONG:
        return False
    repeated = question.repeats(wanted)
    if repeated and not _same_direction(text, question):
        return False
    for match in re.finditer(_inflected(wanted, question), text, re.IGNORECASE):
        before = text[: match.start()]
        after = text[match.end() :]
        proper = match[0][:1].isupper()
        # A word of the question answers it only as the subject: "Feathers are heavier".
        if repeated and not (_opens(before) and not new_words(after, question)):
            continue
        if _DENIES.search(before) or not _may_precede(before, question, proper=proper):
            continue
        if _may_follow(after, question) or _is_subject(before, after, question, proper=proper):
            return True
    shorter = _without_question_words(wanted, question)
    return shorter != wanted and asserts(clause, shorter, question)


def _inflected(wanted: str, question: Question) -> str:
    """Return the pattern of a text as whole words, in the singular and plural if the question doesn't ask for one."""
    plain_word = len(wanted) > 3 and wanted[-1].isalpha()
    if plain_word and not question.mentions("plural", "singular", "spell", "tense", "form of"):
        return rf"(?<![\w-]){re.escape(wanted.removesuffix('s'))}(?:e?s)?(?![\w-])"
    return rf"(?<![\w-]){re.escape(wanted)}(?![\w-])"


def _opens(before: str) -> bool:
    """Return whether nothing but an article stands before an answer, or a colon does."""
    return bool(re.fullmatch(r"(?:.*:)?\W*(?:(?:the|an?)\s)?", before, re.IGNORECASE))


def _same_direction(clause: str, question: Question) -> bool:
    """Return whether a comparison is made with a word of the question: "heavier than", not "lighter than"."""
    compared = re.search(r"(\w+) than\b", clause)
    return compared is None or stem(compared[1]) in question.words


def _without_question_words(text: str, question: Question) -> str:
    """Return "Pacific" for "Pacific Ocean" if the question asks for an ocean."""
    words = text.split()
    while len(words) > 1 and stem(words[-1]) in question.words:
        words.pop()
    return " ".join(words) if words[0][:1].isupper() else text


def _is_subject(before: str, after: str, question: Question, *, proper: bool) -> bool:
    """Return whether an answer opens its clause and a verb follows: "Tuesday follows Monday"."""
    verb = re.match(r"\s([a-z]+)\s" if proper else r"\s(\w+(?:s|ed))\s", after)
    if verb is None or verb[1] in FUNCTION_WORDS:
        return False
    return _opens(before) and not question.words.isdisjoint(stems(after))


def _may_precede(before: str, question: Question, *, proper: bool) -> bool:
    """Return whether an answer may stand after these words."""
    last = re.search(r"([\w'’]+)\W*$", before)
    if last is None or re.search(r"[?:=→\"“'`(*]\s?$", before):
        return True
    word = last[1].casefold()
    if proper and before.endswith(", ") and stem(word) in question.words | _ASIDES:  # "our own planet, Earth"
        return True
    if re.search(r"[,;/&]\s?$|\b(?:and|or)\s?$", before, re.IGNORECASE):  # one of several, unless "So, 9"
        return word in ("so", "yes", "answer", "well", "therefore", "thus", "hence", "is", "then")
    if word in FUNCTION_WORDS or re.search(r"['’](?:s|re|d|ll|m)$", word):
        return True
    if stem(word) in question.words | _VERBS | _ASIDES:
        return True
    return proper and last[1].islower()  # "the novelist Jane Austen"


def _may_follow(after: str, question: Question) -> bool:
    """Return whether an answer may stand before these words."""
    if re.match(r"\s?[/&+]|,?\sor\s", after):
        return False
    coordinated = re.match(r",?\sand\s([\w'’]+)", after)
    if coordinated:  # a verb begins a clause: "Plants take in oxygen and release …"
        word = coordinated[1].casefold()
        return is_verb(word) or word in _PRONOUNS or word.endswith("ed")
    following = re.match(r"(\W*)([\w'’]+)", after)
    if following is None:
        return True
    if re.search(r"[,.;:!?()\[\]–—\"”]", following[1]):
        return not re.match(r"\W*,\s?\w+,?\s(?:and|or)\s", after)  # not a list
    word = following[2].casefold()
    if word in FUNCTION_WORDS or word.endswith(("ed", "ly")):
        return True
    return stem(word) in question.words | _VERBS | _ASIDES


def same_answer_text(parsed: str, gold: str, question: Question) -> bool:
    """Return whether two texts are equal, or would be with the words of the question that one of them leaves out."""
    if same_text(parsed, gold):
        return True
    shorter = _without_question_words(_ARTICLE.sub("", undecorated(gold)), question)
    return same_text(parsed, shorter) or simplified(parsed) == f"{simplified(gold)}()"


def complement(clause: str, question: Question) -> str:
    """Return what a clause adds to its question: "Canberra" of "The capital of Australia is Canberra"."""
    if len(clause) > LONG:
        return clause
    parts = _LINK.split(clause, maxsplit=1)
    if len(parts) != 2:
        return clause
    subject = parts[0].strip()
    predicate = parts[1].strip()
    if question.overlap(predicate) > question.overlap(subject) and stems(subject):
        return subject
    return predicate or clause


def chosen_alternative(clause: str, question: Question) -> str | None:
    """Return which of the answers that a question offers a clause chooses; None if it is not clear.

    It may be the only one that is named, or the one that a comparison is in favour of.
    """
    places = {}
    for alternative in question.alternatives:
        match = re.search(rf"(?<![\w-]){re.escape(_ARTICLE.sub('', alternative))}(?![\w-])", clause, re.IGNORECASE)
        if match:
            places[alternative] = match.start()
    named = sorted(places, key=lambda alternative: places[alternative])
    direction = Question(clause).more()
    agrees = direction is None or direction == question.more()
    if _DENIES.search(re.sub(r"\bthan\b", "", clause)):
        return None
    if len(named) == 2 and re.search(r"\bthan\b", clause):
        return named[0] if agrees else named[1]
    if len(named) != 1:
        return None
    if agrees:
        return named[0]
    others = [alternative for alternative in question.alternatives if alternative != named[0]]
    return others[0] if len(others) == 1 else None
