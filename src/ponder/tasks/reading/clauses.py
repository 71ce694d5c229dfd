"""Cuts a sentence down to the clause that concludes it, and tells a claim from a doubt, a denial or
a report.

`conclusion` applies its rules from top to bottom: brackets go, and what the writer
takes back; what follows "so" stays; of two
parts around "but" the claim stays; what is denied goes; a condition or reason before the claim
goes; and so does a reason or an explanation after it.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from ponder.tasks.reading.markup import LONG
from ponder.tasks.reading.question import Question

ANSWER = r"\b(?:answer|antwort|réponse|respuesta|risposta|resposta|endergebnis)\b|答案|答え"
IS = (
    r"\b(?:is|are|was|were|(?:must|would|should|will|has to|have to) be|equals"
    r"|ist|lautet|est|es|son|è)\b|是|为"
)
_IN_CLAUSE = r"(?:[^,]|,(?=\d))"  # a comma between digits separates thousands, not clauses


def any_of(*phrases: str) -> str:
    """Return the pattern of a word or phrase out of these, which are patterns themselves."""
    return rf"\b(?:{'|'.join(phrases)})\b"


def pattern(*segments: str) -> re.Pattern[str]:
    return re.compile("".join(segments), re.IGNORECASE)


# "(nine)", and ", which was built in 1961," in the middle of a sentence
_BRACKETS = pattern(
    r"\s{1,3}\([^()（）]{0,200}\)|\s{0,3}（[^()（）]{0,200}）",
    r"|,\s(?:which|who|where)\s[^,;]{1,100}(?=,\s)",
)
_THEREFORE = pattern(
    r"(?<!\bis)(?<!\bare)(?<!\bwas)(?:^|[,;:.\s])(?:and\s)?",
    any_of(
        r"(?<!if )so(?!\s(?:far|that|on|many|much|called|is|are|do|does|long)\b)",
        r"therefore|thus|hence|consequently|accordingly|in conclusion|in other words",
        r"(?:which|this|that) means(?: that)?|meaning(?: that)?",
        r"more precisely|to be (?:precise|exact)|or rather|that is(?=,|\s[$\d])",
    ),
    r"(?:\sthat)?[,:]?\s",
)
# What concludes if a number follows
_COMES_TO = pattern(
    r"(?:^|[,;:.\s])(?:and\s)?",
    any_of(
        r"altogether|then|resulting in|(?<=, )(?:giving|leaving|yielding|making)",
        r"(?:for|making) a (?:total|sum) of|bringing \w+ \w+ to",
        r"which (?:is|has|contains)(?=\s\$?-?\d)",
        r"which (?:gives|makes|leaves|yields|results in|brings|equals)",
        r"which (?:rounds?|simplifies|comes|amounts|adds up|works out|reduces|is equal) to",
    ),
    r"(?:\sthe total)?[,:]?\s",
)
# "Toronto — no, sorry, Ottawa"
_CORRECTS_ITSELF = pattern(
    r"\s?(?:[—–,.…-]{1,3}|\.\.\.)\s{0,3}(?:no|wait|sorry|oops|I mean|correction)\b",
    r"(?:,?\s(?:no|wait|sorry|actually)\b)*[,:.]?\s",
)
_BUT = pattern(r"[,;.]?\s(?:but|however|yet),?\s")
# What is said of other people's answers, or of a first thought
MISTAKEN = pattern(
    r"(?<!\bI )(?<!\bI'd )",
    any_of(
        r"thinks?|thought|says?|said|believe|assumed?|expect|guess|seems?|looks?|tempt\w*",
        r"might|may|could|would|often|commonly|sometimes|usually|first|popular",
        r"some|many|most people|people|mistak\w+|confus\w+|misconception",
    ),
)
# What a part after "but" opens with if it corrects the part before
_CORRECTED = pattern(
    "^",
    any_of(
        r"it|that|this|actually|really|in fact|here",
        r"the (?:right|correct|real|actual|true|final)",
    ),
)
_DENIED = pattern(
    r",?\s?(?:\band\s|\bbut\s)?",
    any_of(
        "not",
        "rather than",
        "instead of",
        "as opposed to",
        "unlike",
        "never",
        "except",
        "excluding",
        "no",
    ),
    rf"(?!\sonly){_IN_CLAUSE}{{1,200}}?(?=[;,]\s|\sbut\s|$)",
)
DENIES = pattern(r"n['’]t\b|", any_of("not", "cannot", "neither", "nor"))
# "Since 7 * 7 is 49, …", "Adding 5, …"
_SUBORDINATE = pattern(
    r"^\W*(?:and\s|but\s)?",
    any_of(
        r"if|when|since|because|as|given|although|though|while|whereas|even though|once|despite|unlike",
        r"after|before|with|without|at|for|in|of|by|on|from|using|instead of|between|among|to \w+",
        r"\w{3,15}ing(?!\s(?:gives|yields|makes|leaves|is|are|was|results|brings|returns)\b)",
    ),
    rf"{_IN_CLAUSE}{{1,300}},\s",
)
_REASON = pattern(
    r"[,;:]?\s",
    any_of(
        r"because|since|given that|due to|while|whereas|although|though|even though|assuming|unlike",
        r"as in|such as|for example|(?<=, )as (?=\$?\d)|compared (?:to|with)|in order to",
        r"as (?=(?:there|it|the|each|we|they|this|that|you|he|she|\w+ (?:is|are|has))\b)",
        r"which (?=is (?:the|an?|also|why|how|because)\b|corresponds|was|were|are|has|have|comes?|can|we|you|I)",
        r"who|where|after|before|if|when|once",
    ),
)
_APPOSITION = pattern(
    r"[,;–—]\s{0,2}(?=(?:an?|the|its|also|from|named|including|with|located|for|in|or)\b)",
    r"|(?<!\d)\s[–—-]\s(?!\$?\d)",
)
# "First, add 5": a step to be taken, not its result
INSTRUCTS = pattern(
    r"^\W*(?:first|next|now|then|finally|to solve this|let's|let us|just|simply|,|\s",
    r"|you (?:need to|should|must|have to|can)|we (?:need to|must|have to))*",
    r"(?:add|subtract|multiply|divide|start|compute|calculate|convert|take|try|use)(?:s|ing)?\b",
)
# What makes a statement a guess, a bound or a condition
HEDGED = pattern(
    any_of(
        r"either|or|maybe|perhaps|possibly|might|may be|could be|not sure|uncertain|depends?",
        r"if|unless|were|is between|at least|at most",
        r"(?<!add )(?<!adds )(?<!adding )(?<!added )(?<!sum )up to",
    ),
    r"|\?",
)
CONDITIONAL = pattern(any_of("if (?:so|not)", "otherwise", "depending on"))


def conclusion(
    sentence: str,
    holds: Callable[[str], bool],
    concludes: Callable[[str], bool] | None = None,
    *,
    question: Question | None = None,
    denials: bool = False,
    numeric: bool = False,
) -> str:
    """Return the part of a sentence that states its result, without reasons, conditions and asides.

    Each cut is made only if what remains still `holds` something that could be an answer. After
    "so" and "therefore", `concludes` decides that, if given. With `denials`, what the sentence
    denies stays too. In a `numeric` one, "which gives" concludes as well, and a colon ends it.
    """
    if len(sentence) > LONG:
        return sentence
    text = _kept(_BRACKETS.sub("", sentence), sentence, holds)
    if not denials:
        text = _kept(_CORRECTS_ITSELF.split(text)[-1], text, holds)
    text = _after_therefore(text, concludes or holds, question or Question(), numeric=numeric)
    text = _kept(_claim(text, holds, question or Question()), text, holds)
    if not denials:
        text = _kept(_DENIED.sub("", text), text, holds)
    before, colon, after = text.partition(": ")
    if colon and numeric:
        text = before if holds(before) and not INSTRUCTS.search(before) else after
    text = _kept(_main(text, question or Question()), text, holds)
    text = _up_to(_REASON, text, holds)
    text = _up_to(_APPOSITION, text, holds)
    return text.strip(" ,;:")


def _kept(segment: str, original: str, holds: Callable[[str], bool]) -> str:
    return segment if holds(segment) else original


def _after_therefore(
    text: str, concludes: Callable[[str], bool], question: Question, *, numeric: bool
) -> str:
    """Return what follows the last "so" that something follows."""
    matches = list(_THEREFORE.finditer(text))
    if numeric:
        matches += [
            match
            for match in _COMES_TO.finditer(text)
            if not question.defines(text[: match.start()])
        ]
    for match in sorted(matches, key=re.Match.start, reverse=True):
        if concludes(text[match.end() :]):
            return text[match.end() :]
    return text


def _claim(text: str, holds: Callable[[str], bool], question: Question) -> str:
    """Return which part around a "but" is the claim; the other reports an error, or adds to it."""
    segments = [segment for segment in _BUT.split(text) if segment.strip()]
    if len(segments) < 2:
        return text
    first = segments[0]
    last = segments[-1]
    if DENIES.search(first):  # "It isn't 9, but 10"
        return last
    if not holds(last) or MISTAKEN.search(last):
        return first
    if not holds(first) or MISTAKEN.search(first):
        return last
    if question.overlap(first) != question.overlap(last):
        return max(first, last, key=question.overlap)
    return last if _CORRECTED.search(last) else first


def _main(text: str, question: Question) -> str:
    """Return a sentence without the condition, reason or circumstance that it opens with."""
    subordinate = _SUBORDINATE.match(text)
    if subordinate is None:
        return text
    main = text[subordinate.end() :]
    for comma in re.finditer(r",\s", main):  # "Counting Mercury, Venus and Earth, it is the third"
        later = main[comma.end() :]
        if re.search(IS, later) and question.overlap(later) == question.overlap(main) > 0:
            return later
    return main


def _up_to(boundary: re.Pattern[str], text: str, holds: Callable[[str], bool]) -> str:
    """Return a text up to the first match that leaves something."""
    for match in boundary.finditer(text):
        if match.start() and holds(text[: match.start()]):
            return text[: match.start()]
    return text
