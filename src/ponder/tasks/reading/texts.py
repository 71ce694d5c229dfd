"""Reads answers in words: yes or no, lists, names and other short texts."""

from __future__ import annotations

import itertools
import re
import unicodedata
from collections.abc import Sequence

from ponder.tasks.reading.clauses import HEDGED, IS, MISTAKEN, any_of, conclusion, pattern
from ponder.tasks.reading.markup import LONG, joined_initials, plain, undecorated
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
    r"|\b(?:statement|claim|sentence|assertion|proposition|idea|that|it|this|which|answer)",
    r"(?: that [^.;]{1,80}?)?",
    r"(?:['’]s|\s(?:is|was|would be))\s(?:(?:therefore|indeed|actually|clearly|thus|a)\s)?)",
    rf"\W{{0,3}}({_YES_NO})\b",
    r"|\b(?:evaluates to|returns|yields|gives|prints|short answer:|in short,?)\s\W{0,3}(yes|no|true|false)\b",
    r"|^[^,;.]{1,40},\s(yes|no)\s?[.!]?$",  # "Botanically speaking, yes."
)
_SAYS_NOT = pattern(
    r"\b(?:that|it|this|statement|claim)(?:['’]s| is| was) not (?:true|correct|right|the case)\b",
    r"|n['’]t (?:true|correct|right|the case)\b",
)
# "It does.", "It isn't, because …", "They can not."
_SHORT_VERDICT = pattern(
    r"\W*(?:well, |so |but )?(?:it|they|he|she|you|we|that|there)\s",
    r"(?:is|are|does|do|did|can|could|was|were|has|have|will|would|should)(n['’]t|\s?not)?",
    r"(?:,? (?:indeed|actually|in fact))?\s?(?:[.,;:!–—]|$)",
)
# "Not really.", "Absolutely not!"
_NOT_AT_ALL = pattern(
    r"\W*(?:absolutely|definitely|certainly|of course)?,?\s?not\b\W*$",
    r"|\W*not (?:really|at all|quite)\b",
)
_BOTH = pattern(any_of("yes and no", "yes or no", "true or false", "depends"))
_NEGATION = pattern(
    r"\b(?:not|cannot|never|no|unable|incapable)\b|\b(?:is|are|does|do|was|were|can|wo|has|have|did)n?['’]t\b",
)
# Words of a question that a statement with the same meaning may lack
_NOT_ASKED = frozenset(
    map(
        stem,
        (
            "yes",
            "no",
            "true",
            "false",
            "number",
            "statement",
            "today",
            "now",
            "currently",
            "really",
            "still",
            "speaking",
        ),
    )
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
# "English, ahead of Mandarin": what is compared with the answer, not the answer
_NEXT_TO = pattern(
    any_of(
        r"ahead of|followed by|behind|besides|along with|together with|succeeded by|preceded by|similar to",
        r"contemporary of|close to|next to|second to|compared (?:to|with)|corresponds? to|as opposed to",
    ),
    r"\s(?:the\s)?$",
)
_PREDICATE = pattern(r"\b(?:is|was|are|refers to|means|would be)(?: the| an?)?\s[\"“'‘`]?$")
_PRONOUNS = frozenset(
    ("it", "is", "was", "the", "they", "he", "she", "has", "its", "this", "we", "you", "not")
)
_DENIES = pattern(
    any_of(
        "not",
        "never",
        "than",
        "unlike",
        "except",
        "without",
        "nor",
        "neither",
        "cannot",
        "nobody",
        "least",
    ),
    r"|n['’]t\b|\b(?:instead|rather) (?:of|than)\b",
)
_SPLIT_ITEMS = pattern(r"\s{0,9}(?:[,;\n、，]|→|->|[<>])\s{0,9}(?:and\s|then\s)?|\s(?:and|&)\s")
_IN_ORDER = pattern(r"\s(?:in (?:that|this|\w+ing|alphabetical) order|respectively).*$")
_LIST_FOLLOWS = pattern(
    rf"(?:(?:{IS})(?:\s{{0,3}}:)?|:|=|→",
    r"|\b(?:as follows|becomes|be|(?:gives|get|yields|returns|leaves)(?: you| us)?)\b:?)\s+",
)
_LINK = pattern(rf"\s(?:{IS}|=)\s|(?<=^it)['’]s\s|(?<=^that)['’]s\s|:\s")


_POWER = re.compile(r"(?<=[a-z)])\^\{?(\d{1,3})\}?")  # `x^2`, as `x²` is compared
_FUNCTION = re.compile(r"\\(log|ln|exp|sin|cos|tan)\b")
_ROOT_SIGN = re.compile(r"\\?sqrt\{([^{}()]{1,50})\}|\\?sqrt\(([^{}()]{1,50})\)")
_ABBREVIATIONS = {"mt": "mount", "st": "saint", "dr": "doctor"}
_ABBREVIATION = re.compile(r"\b(mt|st|dr)\.?(?=\s)")


def simplified(text: str) -> str:
    """Return a text as it is compared: without case, subscripts, marks, articles and the spaces
    around signs.
    """
    text = unicodedata.normalize("NFKC", joined_initials(undecorated(text))).casefold()
    text = _POWER.sub(r"\1", _FUNCTION.sub(r"\1", text))
    text = _ROOT_SIGN.sub(
        lambda root: f"√{root[1] or root[2]}", text.replace("\\pi", "π").replace("\\cdot", "·")
    )
    text = _ABBREVIATION.sub(lambda short: _ABBREVIATIONS[short[1]], text)
    text = " ".join(text.replace("’", "'").split())
    text = re.sub(r"\s?([^\w\s'])\s?", r"\1", text)
    return _ARTICLE.sub("", text).strip(" .!\"'")


def same_text(parsed: str, gold: str) -> bool:
    """Return whether two answers are equal as numbers or texts, or as lists in the same order."""
    # also because `normalize` takes quadratic time on many marks in a row
    if len(parsed) > TOO_LONG > len(gold):
        return False
    if _same_item(parsed, gold):
        return True
    gold_items = items(gold)
    return len(gold_items) > 1 and same_items(items(parsed), gold_items)


def _same_item(first: str, second: str) -> bool:
    first_number = number(first)
    second_number = number(second)
    if first_number is None or second_number is None:
        return simplified(first) == simplified(second) != "" or first == second
    return first_number == second_number


def items(text: str) -> list[str]:
    """Return the items of a list: `[3, 7, 9]`, `3,7,9`, "3, 7 and 9", or one per line."""
    text = undecorated(text)
    while len(text) > 1 and (text[0], text[-1]) in (("[", "]"), ("(", ")"), ("{", "}")):
        text = text[1:-1].strip()
    split_items = [undecorated(plain(item)) for item in _SPLIT_ITEMS.split(text)]
    return [item for item in split_items if item]


def same_items(first: Sequence[str], second: Sequence[str], *, any_order: bool = False) -> bool:
    """Return whether two lists have equal items, in the same order or in any."""
    if len(first) != len(second):
        return False
    if all(map(_same_item, first, second)):
        return True
    if not any_order or len(first) > 100:
        return False
    unmatched = list(second)
    for item in first:
        equal = next((candidate for candidate in unmatched if _same_item(item, candidate)), None)
        if equal is None:
            return False
        unmatched.remove(equal)
    return True


def listed(text: str, gold: Sequence[str]) -> list[list[str]]:
    """Return the lists that a text may state, the likeliest first."""
    if len(text) > TOO_LONG:
        return []
    clause = conclusion(text, lambda segment: len(items(segment)) > 1)
    bracketed = re.findall(r"\[[^\[\]]{1,500}\]", clause)
    segments = _LIST_FOLLOWS.split(clause)
    candidates = bracketed[-1:] or [segments[-1], clause, segments[0]]
    lists = []
    for candidate in candidates:
        split = [_IN_ORDER.sub("", item) for item in items(candidate)]
        if len(split) == 1 and all(" " not in item for item in gold):  # "3 7 9"
            split = split[0].split()
        longest = max(len(item.split()) for item in gold) + 2
        if len(split) > 1 and max(len(item.split()) for item in split) <= longest:
            lists.append(split)
    return lists


# What stands between the items of a list in a sentence: "3 comes first, followed by 7 and finally
# 9"
_BETWEEN_ITEMS = pattern(
    r"(?:[\s,;:.<>×*&/()\"“”'`→-]|",
    any_of(
        r"and|then|followed|by|next|finally|lastly|after|that|come|comes|came|first|second|third|fourth|last|is|are|to|the",
        r"with|also|plus|as well as",
    ),
    r"|\b[a-z]\s?=){1,60}",
)


def names_items(
    text: str, gold: Sequence[str], question: Question, *, any_order: bool = False
) -> bool:
    """Return whether a clause names these items and no others: "3 comes first, followed by 7 and
    finally 9".
    """
    if len(text) > LONG or len(gold) > 50:
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
    head = re.search(r"\b([^\W\d]+)\s$", before)  # "vitamin A, vitamin D and vitamin E"
    for (_, end), (start, _) in itertools.pairwise(spans):
        gap = text[end:start]
        if head and gap.endswith(head[0]):
            gap = gap.removesuffix(head[0]) + " "
        if not _BETWEEN_ITEMS.fullmatch(gap):
            return False
    after = text[spans[-1][1] :]
    if _DENIES.search(text) or re.search(r"[\d+×*^]\s?$", before):
        return False
    equated = re.search(r"(\S*)\s?=\s?$", before)
    if _MORE_ITEMS.match(after) or (equated and not re.fullmatch(r"[a-z]", equated[1])):
        return False
    return _may_precede(before, question, proper=False) and _may_follow(after, question)


# Another item: "3, 7, 9, 8", "3, 7, 9 and 11"; not "3, 7 and 9, because …"
_MORE_ITEMS = pattern(
    r"\s?[×*/<>]|\s?[,;]?\s(?:and|or)\s(?!it|they|this|that|these|those|there|we|you|is|are)",
    rf"|\s?,\s(?!{any_of(*sorted(FUNCTION_WORDS), 'since', 'though', 'although', 'whereas', 'respectively')}|\w+ing\b)",
)


def mentions_all(text: str, gold: Sequence[str]) -> bool:
    """Return whether a text contains all items of a list."""
    return all(_whole(item).search(text) for item in gold)


def _whole(item: str) -> re.Pattern[str]:
    """Return the pattern of an item that is not a part of a longer word or number."""
    return re.compile(rf"(?<![\w.-]){re.escape(item)}(?![\w-]|\.\d)", re.IGNORECASE)


def explicit_yes_no(sentence: str) -> str | None:
    """Return "yes" or "no" if a sentence says so in a word: "No, …", "The claim is false.", "It
    does."; else None.
    """
    if len(sentence) > LONG or _BOTH.search(sentence):
        return None
    if _SAYS_NOT.search(sentence):
        return "no"
    words = [
        (match[1] or match[2] or match[3]).lower() for match in _SAYS_YES_NO.finditer(sentence)
    ]
    opens = _OPENS_YES_NO.match(sentence)
    if opens:
        words.append(opens[1].lower())
    if words:
        return "yes" if words[-1] in YES else "no"
    short = _SHORT_VERDICT.match(re.split(r",?\sbut\s", sentence)[-1])
    if short:
        return "no" if short[1] else "yes"
    return "no" if _NOT_AT_ALL.match(sentence) else None


def implied_yes_no(sentence: str, question: Question) -> str | None:
    """Return "yes" or "no" if a sentence affirms or denies what is asked; else None."""
    if len(sentence) > LONG or _BOTH.search(sentence):
        return None
    asked = question.asked - _NOT_ASKED
    clause = conclusion(sentence, lambda segment: asked.issubset(stems(segment)), denials=True)
    if HEDGED.search(clause) or MISTAKEN.search(clause):
        return None
    if not asked or (not asked.issubset(stems(clause)) and not _of_pronoun(clause, question)):
        return None
    if not _same_comparison(clause, question):
        return None
    denials = len(_NEGATION.findall(clause))
    return {0: "yes", 1: "no"}.get(denials)


def _same_comparison(clause: str, question: Question) -> bool:
    """Return whether what stands after "than" is the same in a clause as in the question."""
    compared = re.search(r"\bthan\b(.*)", clause)
    asked = re.search(r"\bthan\b(.*)", question.text)
    if compared is None or asked is None:
        return True
    return not set(stems(compared[1])).isdisjoint(stems(asked[1])) and not set(
        stems(clause[: compared.start()])
    ) & set(stems(asked[1]))


def _of_pronoun(clause: str, question: Question) -> bool:
    """Return whether a clause says of "it" what the question asks: "It isn't flat" to "Is the Earth
    flat?".
    """
    pronoun = re.match(
        r"\W*(?:it|they|he|she)(?:['’]s|['’]re|\s(?:is|are|was|were|does|do|can|has|have)(?:n['’]t)?)\b",
        clause,
        re.IGNORECASE,
    )
    ordered = [
        term
        for term in stems(question.text.rstrip(" ?").rpartition(". ")[2])
        if term in question.asked
    ]
    return pronoun is not None and bool(ordered) and stems(clause)[:1] == ordered[-1:]


def new_words(text: str, question: Question) -> list[str]:
    """Return the words of a text that could be an answer: not those of the question, verbs and
    asides.
    """
    words = [
        term
        for term in _WORD.findall(text)
        if term.casefold() not in FUNCTION_WORDS and term != "s"
    ]
    words = [
        term for term in words if stem(term) not in _VERBS | _ASIDES and not term.endswith("ly")
    ]
    return [term for term in words if not question.repeats(term)]


def is_verb(term: str) -> bool:
    return stem(term) in _VERBS


def asserts(clause: str, gold: str, question: Question) -> bool:
    """Return whether a clause names `gold` as its answer: as a whole, not denied, not as one of
    several.

    What stands next to it must be a word of the question or one that can't be part of the answer.
    """
    text = " ".join(unicodedata.normalize("NFKC", clause[: LONG + 1]).split())
    target = _ARTICLE.sub(
        "", " ".join(unicodedata.normalize("NFKC", joined_initials(undecorated(gold))).split())
    )
    if gold[:1].isupper():
        text = _without_accents(text)
        target = _without_accents(target)
    if not target or len(clause) > LONG:
        return False
    repeated = question.repeats(target)
    if repeated and not _same_direction(text, question):
        return False
    for match in re.finditer(_inflected(target, question), text, re.IGNORECASE):
        before = text[: match.start()]
        after = text[match.end() :]
        proper = match[0][:1].isupper()
        # A word of the question answers it only as the subject ("Feathers are heavier") or after
        # "is" ("the verb is").
        as_subject = _opens(before) and not new_words(after, question)
        as_predicate = bool(_PREDICATE.search(before)) and not new_words(before, question)
        if repeated and not (as_subject or as_predicate):
            continue
        if (
            _DENIES.search(before)
            or _NEXT_TO.search(before)
            or not _may_precede(before, question, proper=proper)
        ):
            continue
        if _may_follow(after, question) or _is_subject(before, after, question, proper=proper):
            return True
    shorter = _without_question_words(target, question)
    return shorter != target and asserts(clause, shorter, question)


def _without_accents(text: str) -> str:
    """Return a name without accents: "Brasilia" for "Brasília"."""
    decomposed = unicodedata.normalize("NFKD", text)
    return "".join(character for character in decomposed if not unicodedata.combining(character))


def _inflected(target: str, question: Question) -> str:
    """Return the pattern of a text as whole words, in the singular and plural if the question
    doesn't ask for one.
    """
    plain_word = len(target) > 3 and target[-1].isalpha()
    if plain_word and not question.mentions("plural", "singular", "spell", "tense", "form of"):
        return rf"(?<![\w-]){re.escape(target.removesuffix('s'))}(?:e?s)?(?![\w-])"
    return rf"(?<![\w-]){re.escape(target)}(?![\w-])"


def _opens(before: str) -> bool:
    """Return whether nothing but an article stands before an answer, or a colon does."""
    return bool(re.fullmatch(r"(?:.*:)?\W*(?:(?:the|an?)\s)?", before, re.IGNORECASE))


def _same_direction(clause: str, question: Question) -> bool:
    """Return whether a comparison is made with a word of the question: "heavier than", not "lighter
    than".
    """
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
    term = last[1].casefold()
    # "our own planet, Earth"
    if proper and before.endswith(", ") and stem(term) in question.words | _ASIDES:
        return True
    # one of several, unless "So, 9"
    if re.search(r"[,;/&]\s?$|\b(?:and|or)\s?$", before, re.IGNORECASE):
        return term in ("so", "yes", "answer", "well", "therefore", "thus", "hence", "is", "then")
    if term in FUNCTION_WORDS or re.search(r"['’](?:s|re|d|ll|m)$", term):
        return True
    if stem(term) in question.words | _VERBS | _ASIDES:
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
        term = coordinated[1].casefold()
        return is_verb(term) or term in _PRONOUNS or term.endswith("ed")
    following = re.match(r"(\W*)([\w'’]+)", after)
    if following is None:
        return True
    if re.search(r"[,.;:!?()\[\]–—\"”]", following[1]):
        return not re.match(r"\W*,\s?\w+,?\s(?:and|or)\s", after)  # not a list
    term = following[2].casefold()
    if term in FUNCTION_WORDS or term.endswith(("ed", "ly")):
        return True
    return stem(term) in question.words | _VERBS | _ASIDES


# "9π square units"
_AREA_UNIT = re.compile(r"(?:\ssquare|\scubic)?\s(?:units?|cm|m|km|in|ft)[²³]?$")


def same_answer_text(parsed: str, gold: str, question: Question) -> bool:
    """Return whether two texts are equal, or would be with the words of the question that one of
    them leaves out.
    """
    if same_text(parsed, gold):
        return True
    if _with_adjective(parsed, gold, question) or (
        question.mentions(r"\bwho\b") and _is_surname(parsed, gold)
    ):
        return True
    if same_text(_AREA_UNIT.sub("", parsed), gold):
        return True
    shorter = _without_question_words(_ARTICLE.sub("", undecorated(gold)), question)
    return same_text(parsed, shorter) or simplified(parsed) == f"{simplified(gold)}()"


def _with_adjective(parsed: str, gold: str, question: Question) -> bool:
    """Return whether a text adds only a word of the question to the right answer: "Japanese yen"
    for "Yen" of Japan.
    """
    words = simplified(re.sub(r"\s?\([^()]*\)", "", parsed)).split()
    added = words[: -len(simplified(gold).split())]
    if not added or " ".join(words[len(added) :]) != simplified(gold):
        return False
    return all(
        any(
            term.startswith(asked_word[:5]) and len(asked_word) > 3 for asked_word in question.words
        )
        for term in added
    )


def _is_surname(parsed: str, gold: str) -> bool:
    """Return whether a text is the last of the names of a person: "Einstein", "Einstein did" for
    "Albert Einstein".
    """
    names = gold.split()
    if not 2 <= len(names) <= 3 or not all(name[:1].isupper() and name.isalpha() for name in names):
        return False
    return re.fullmatch(rf"{re.escape(names[-1])}(?: did| was| is)?", parsed.strip()) is not None


def complement(clause: str, question: Question) -> str:
    """Return what a clause adds to its question: "Canberra" of "The capital of Australia is
    Canberra".
    """
    if len(clause) > LONG:
        return clause
    segments = _LINK.split(clause, maxsplit=1)
    if len(segments) != 2:
        return clause
    subject = segments[0].strip()
    predicate = segments[1].strip()
    if question.overlap(predicate) > question.overlap(subject) and stems(subject):
        return subject
    return predicate or clause


def chosen_alternative(clause: str, question: Question) -> str | None:
    """Return which of the answers that a question offers a clause chooses; None if it is not clear.

    It may be the only one that is named, or the one that a comparison is in favour of.
    """
    passages = {}
    for alternative in question.alternatives:
        match = re.search(
            rf"(?<![\w-]){re.escape(_ARTICLE.sub('', alternative))}(?![\w-])", clause, re.IGNORECASE
        )
        if match:
            passages[alternative] = match.start()
    in_order = sorted(passages, key=lambda alternative: passages[alternative])
    direction = Question(clause).more()
    agrees = direction is None or direction == question.more()
    if _DENIES.search(re.sub(r"\bthan\b", "", clause)):
        return None
    if len(in_order) == 2 and re.search(r"\bthan\b", clause):
        return in_order[0] if agrees else in_order[1]
    if len(in_order) != 1:
        return None
    if agrees:
        return in_order[0]
    alternatives_left = [
        alternative for alternative in question.alternatives if alternative != in_order[0]
    ]
    return alternatives_left[0] if len(alternatives_left) == 1 else None
