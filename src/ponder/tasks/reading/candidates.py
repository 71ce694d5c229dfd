"""Finds the passages of a reply that may state its final answer, the likeliest first.

1. *Marks*: the last `<answer>` tag or `\\boxed{}` that has content; else what follows the last
   "answer is" or "Answer:"; else a line of code that ends the reply; else words in bold in the
   sentence that answers.
2. The *opening* sentence, if it is nothing but an answer or repeats the question, and no later
   sentence concludes.
3. The *conclusion*: a sentence that opens with "so", "in total" or "the result".
4. The other *claims*, from the last to the first.
5. *Asides*: checks, comparisons, and what others are reported to say.

`read` takes the first passage that states an answer of the kind that is asked for.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import Literal, NamedTuple

from ponder.tasks.reading.markup import (
    ASIDE,
    EMPTY_MARK,
    LONG,
    SENTENCE,
    TAIL,
    bold_spans,
    first_sentence,
    marked,
    plain,
    sentences,
    undecorated,
    without_abbreviations,
)
from ponder.tasks.reading.question import Question, stems
from ponder.tasks.reading.values import numerals


def pattern(*segments: str) -> re.Pattern[str]:
    """Compile segments of one pattern, without case."""
    return re.compile("".join(segments), re.IGNORECASE)


def any_of(*phrases: str) -> str:
    """Return the pattern of a word or phrase out of these, which are patterns themselves."""
    return rf"\b(?:{'|'.join(phrases)})\b"


ANSWER = r"\b(?:answer|antwort|réponse|respuesta|risposta|resposta|endergebnis)\b|答案|答え"
IS = (
    r"\b(?:is|are|was|were|(?:must|would|should|will|has to|have to) be|equals"
    r"|ist|lautet|est|es|son|è)\b|是|为"
)
# Matches " is ", ": " and " of these numbers is ".
_LEADS = (
    r"(?:\s{1,9}(?:to|of|for)\b[^\n.:=?!]{1,60}?)?\s{0,9}"
    rf"(?:(?:{IS})(?:\s{{0,9}}[:=])?|[:=：])\s{{0,9}}"
)
_ANSWER_IS = pattern(
    rf"(?<!long )(?<!longer )(?<!wrong )(?<!incorrect )(?:{ANSWER})",
    rf"(?:{_LEADS}|[ \t]{{0,9}}\n\s{{0,9}})",
)
_RESULT_IS = pattern(  # "The sum so far is ", "total: "
    r"(?<!first )(?<!second )(?<!third )",
    any_of("result|sum|total|number|value|resultado|ergebnis|résultat|summe"),
    rf"(?:\s(?:so far|now|here))?{_LEADS}(?:now\s)?",
)
_BOLD_HEADING = pattern(rf"\*\*([^*\n]{{0,60}}(?:{ANSWER})[^*\n]{{0,30}}?[:：]?)\*\*")
_FENCED = re.compile(r"```\w*\n([^\n`]{1,500})\n```\s{0,9}$")
_EQUATION = re.compile(r"[ \t]*[-+−(]?[\d=][^\n]*=[^\n]*|[ \t]*=[^\n]*")
_LINKED = pattern(rf"(?:(?:{IS})(?:\s{{0,3}}:)?|[:→]|->)\s*")
# One step of several: `31 - 7 = **24**. Then 24 + 54 = 78.`
_BOLD_STEP = pattern(r"=\s{0,3}\*\*[^*\n]{1,200}\*\*(?:[.\n]|,? then\b)[^*]{0,500}=\s{0,3}-?\d")

# "Correction: …", "Sorry, that should be 9": how a writer takes an answer back
TAKEN_BACK = pattern(
    any_of(
        r"correction|mistake|error|incorrect|wrong|disregard|ignore|on reflection|not right|sorry",
        r"on second thought|wait|edit|actually|oops|hold on|should be|scratch that",
        r"let me (?:redo|recount|recheck|correct)",
    )
)
_DROPPED = pattern(any_of("disregard|ignore"))
# "Wait, that is wrong.", "Let me recount."
RECONSIDERS = pattern(
    any_of(
        r"correction|on reflection|on second thought|sorry|wait|actually|oops|hold on|should be",
        r"scratch that|(?:that|this|which) (?:is|was) (?:wrong|incorrect|a mistake|not right)",
        r"I made|let me (?:redo|recount|recheck|correct|reconsider)",
    )
)
# "I'm not sure", "I can't tell", "It is impossible to say"
_REFUSES = pattern(
    any_of(
        r"I(?:['’]m| am) (?:not (?:sure|certain|able)|unable|unsure|afraid)",
        r"I (?:can(?:['’]t|not| not)|could(?: not|n['’]t)|do(?: not|n['’]t) (?:know|have))",
        r"I have no (?:idea|way)|I(?:['’]d| would)? need (?:more|to know)",
        r"(?:impossible|not possible) to (?:say|tell|know|determine)|not enough information",
        r"(?:cannot|can['’]t) be determined|need more information|no idea|hard to say",
    )
)
# "So it is 100 or 102, depending on how the store rounds", "It could be either"
_LEAVES_OPEN = pattern(
    any_of(
        r"it depends|depend(?:s|ing) on (?:what|how|which|whether|who|where|your)|ambiguous",
        r"either\b.{1,80}\bor|(?:could|can|may|might) (?:be|mean) (?:either|both)|equally valid",
        r"(?:no|isn['’]t a|not a) single (?:right |correct )?answer",
        r"both (?:are|answers|readings|fit)",
    )
)
_UNDECIDED = pattern(r"\b(?:either|can(?:'t|’t|not)|unable|sorry)\b|\?\s*$")

# Sentences that never overrule an answer
_CHECKED = pattern(
    r"(?m:^)\W{0,5}(?:let(?:'s| me| us) )?",
    r"(?:double-?check|check|verify|verification|proof|probe)\b",
)
# "Let me know if you need more"
_OFFERS = pattern(
    any_of(
        r"let me know|feel free|would you like|happy to|hope (?:this|that|it)|do you want",
        r"if you (?:have|need|want|would|'d|like)",
    )
)
# Matches "(A prime has two divisors.)", "For example, …" and "Note that …".
_ASIDES = pattern(
    r"^\W*\([^()]*\)\W*$|^\W*",
    any_of(
        r"(?:this|it|that)(?:'s| is) like|think of|imagine|for (?:example|instance|comparison)",
        r"by (?:comparison|contrast)|fun fact|note that|remember that|by the way|similarly",
    ),
)
# Matches "Checking: …", "Plugging it back gives the same result".
_VERIFIES = pattern(
    any_of(
        r"check|double-?check|verif\w+|confirm\w*|substituting back|sanity",
        r"plugging (?:it |this |that )?back|the same (?:thing|result|answer|number|value)",
    )
)
# "Some people say 9", "It is often thought that …", "10 would be too large"
_REPORTS = pattern(
    any_of(
        r"(?:some|many|most|other|few|several) (?:people|students|others|sources|would|might|say)",
        r"(?:some|many|most|other|few|several) \w+ (?:say|claim|give|think|believe|count|include)",
        r"(?:often|sometimes|commonly|widely) (?:claimed|thought|said|believed|assumed|cited)",
        r"(?:one|you|people|others) (?:might|may|could|often|sometimes|would)",
        r"common (?:mistake|error|misconception)|mistakenly|tempting|at first",
        r"too (?:small|large|big|low|high|much|many|few|far|short|long)",
    )
)

# Sentences that conclude, calculate or go on
# "So …", "In total, …", "This gives …", "The result …"
_CONCLUDES = pattern(
    r"\W*(?:→|⇒|->|=>|",
    any_of(
        r"so(?! far| that| many| much| called| do| does| is| are\b)|therefore|thus|hence",
        r"consequently|accordingly|in (?:conclusion|short|summary|total|all)|overall|altogether",
        r"all in all|as a result|to sum up|finally|(?:this|that) (?:means|gives|leaves|makes)",
        r"the (?:answer|result|correct)",
    ),
    ")",
)
_CONCLUDES_WITHIN = pattern(  # "Each costs 3, so 7 of them cost 21"
    r"[,;:]\s(?:and )?(?:so|therefore|thus|hence)\s(?!far|that|many|much|called|on\b)"
)
_TURNS = pattern(
    any_of(r"but|however|reconsider|therefore|thus|hence|instead|so(?! on| far| that)|conclu\w*")
)
# "Then she buys 5 more", "which leaves 4": what a calculation goes on with
_STEP = pattern(
    any_of(
        r"then|next|finally|now|after that|total|altogether|giving|leav\w+|left|add\w*|subtract\w*"
    ),
    "|=",
)
# "First add 5", `4 + 5 = 9`: steps of a calculation
_CALCULATES = pattern(
    r"[=+×÷]|",
    any_of(
        r"so|then|total|altogether|finally|next|first|second|step|left|leav\w+|remain\w*|makes?",
        r"gives?|get|we|now|add\w*|subtract\w*|multipl\w+|divid\w+",
    ),
)
# "It is 9", "They're red, yellow and blue", "That comes to $9", "There are 9"
_REFERS = pattern(
    r"\W*(?:there(?:['’]s| is| are| was| were) (?:exactly |only )?[$€£]?[-−]?\d",
    r"|(?:it|that|this|they|these|those)(?:['’]s|['’]re|\s(?:is|are|was|were|would be|comes? to",
    r"|costs?|takes?|equals?|makes?|amounts? to|works? out (?:to|at)))\s)",
)
_IF = pattern(r"\b(?:if|had|were|unless|suppose|assuming|imagine)\s([^,;]{1,200})")
_WOULD = pattern(r"\bwould(?! say)\b|\b(?:you|it|they|we|he|she|that)['’]d\b")

_BARE = 4  # words of a sentence that is nothing but an answer
_LAST = 6  # sentences from the end that are read
_REPEATS = 0.75  # of the question's words, in an opening that sentences follow which calculate
_TOUCHES = 0.4  # the same, if no sentence that follows calculates


class Passage(NamedTuple):
    """A piece of a reply that may state its answer."""

    text: str
    kind: Literal["mark", "bold", "opening", "conclusion", "claim", "aside"]

    @property
    def marked(self) -> bool:
        """Return whether it is nothing but the answer: in a tag, box, bold, after "answer is"."""
        return self.kind in ("mark", "bold")


def passages(text: str, question: Question = Question()) -> list[Passage]:  # noqa: B008 it is never changed
    """Return where the final answer may stand, the likeliest place first."""
    mark = marked(text)
    if mark is not None:
        inside, following = mark
        following = following[:TAIL]
        if not TAKEN_BACK.search(following):
            return [Passage(inside, "mark")]
        corrected = _after_answer_is(following, question) or _corrected(following)
        if corrected:
            return corrected
        withdrawn = Passage("" if _DROPPED.search(following) else inside, "mark")
        return [*_ranked(claims(following, question), question), withdrawn]
    tail = answer_part(text)
    after_answer_is = _after_answer_is(tail, question)
    if after_answer_is:
        return after_answer_is
    statements = claims(tail, question)
    code = _FENCED.search(tail)
    if code:
        return [Passage(code[1], "mark"), *_ranked(statements, question)]
    last_claims = [passage for passage in statements if passage.kind != "aside"][-2:]
    if any(_LEAVES_OPEN.search(passage.text) for passage in last_claims):
        return []
    bold = _bold(tail, statements, question)
    if not bold and _REFUSES.search(tail):
        return []
    return [*bold, *_ranked(statements, question)]


def answer_part(text: str) -> str:
    """Return the end of a reply, without empty marks and without a check of the answer."""
    tail = EMPTY_MARK.sub("", text.rstrip()[-TAIL:]).rstrip()
    tail = without_abbreviations(tail)
    check = _CHECKED.search(tail)
    if check and tail[: check.start()].strip():
        return tail[: check.start()]
    return tail


def _after_answer_is(text: str, question: Question) -> list[Passage]:
    """Return what follows the last "answer is" or "Answer:"."""
    text = _BOLD_HEADING.sub(r"\1", text)
    following = ""
    for match in _ANSWER_IS.finditer(text):
        if not _supposes(text, match, question):
            following = text[match.end() :]
    following = following.lstrip("*_: \t\n")
    if not following:
        return []
    line, *later_lines = following.splitlines()
    correction = "\n".join(later_lines)
    if TAKEN_BACK.search(correction):
        unknown = Question()
        corrected = _corrected(correction) or _ranked(claims(correction, unknown), unknown)
        return [*corrected, Passage(first_sentence(line), "mark")]
    sentence = SENTENCE.split(line)[0]
    goes_on = bool(later_lines) and later_lines[0].lstrip().startswith("=")
    if _EQUATION.fullmatch(sentence) or goes_on:
        steps = itertools.takewhile(_EQUATION.fullmatch, filter(str.strip, later_lines))
        return [Passage(plain([sentence, *steps][-1]), "mark")]
    bold = bold_spans(line)
    if len(bold) == 1:
        return [Passage(bold[0], "mark")]
    return [Passage(first_sentence(following), "mark")]


def _supposes(text: str, match: re.Match[str], question: Question) -> bool:
    """Return whether "answer is" is about another question: "If you meant tin, the answer is"."""
    before = SENTENCE.split(text[max(0, match.start() - LONG) : match.start()])
    sentence = before[-1] + match[0]
    is_first = not plain("".join(before[:-1])).strip()
    if is_first or not question or _TURNS.search(sentence):
        return False
    would = bool(_WOULD.search(sentence))
    condition = _IF.search(sentence)
    if condition:
        return would or not question.words.issuperset(stems(condition[1]))
    return would and question.overlap(sentence) < _TOUCHES


def _corrected(text: str) -> list[Passage]:
    """Return what "the correct number is 75" puts in place of an earlier answer."""
    text = plain(text)
    results = [text[match.end() :] for match in _RESULT_IS.finditer(text)]
    if not results:
        return []
    return [Passage(first_sentence(results[-1]), "mark")]


def _bold(text: str, statements: list[Passage], question: Question) -> list[Passage]:
    """Return the only words in bold, else those of the sentence that answers the question."""
    if _BOLD_STEP.search(text):
        return []
    firm = {passage.text for passage in statements if passage.kind != "aside"}
    marked_sentences = [sentence for sentence in sentences(text) if plain(sentence) in firm]
    spans_of: list[list[str]] = []
    for sentence in marked_sentences:
        spans = bold_spans(sentence)
        spans_of.append([span for span in spans if not question.repeats(span)])
    distinct = set(itertools.chain.from_iterable(spans_of))
    if len(distinct) == 1:
        return [Passage(distinct.pop(), "bold")]
    if not distinct:
        return []
    if not question:
        return [Passage(span, "bold") for span in spans_of[-1][-1:]]
    answering = _answering_sentence(marked_sentences, question)
    if len(set(spans_of[answering])) == 1:
        return [Passage(spans_of[answering][0], "bold")]
    return []


def _answering_sentence(texts: list[str], question: Question) -> int:
    """Return the index of the last conclusion, else of the sentence closest to the question."""
    concluding = [n for n, sentence in enumerate(texts) if _CONCLUDES.match(plain(sentence))]
    if concluding:
        return concluding[-1]
    overlaps = [question.overlap(sentence) for sentence in texts]
    if max(overlaps) < _TOUCHES:
        return len(texts) - 1
    return overlaps.index(max(overlaps))


def claims(text: str, question: Question) -> list[Passage]:
    """Return the sentences of a text that may state its answer, in order."""
    statements: list[Passage] = []
    for marked_sentence in sentences(text):
        sentence = plain(marked_sentence)
        if _OFFERS.search(sentence):
            continue
        if _CONCLUDES.match(sentence) or (question and _CONCLUDES_WITHIN.search(sentence)):
            statements.append(Passage(sentence, "conclusion"))
        elif (
            _ASIDES.match(sentence)
            or _REPORTS.search(sentence)
            or (statements and _VERIFIES.search(sentence))
        ):
            statements.append(Passage(sentence, "aside"))
        else:
            statements.append(Passage(sentence, "claim"))
    return statements


def firm_claims(text: str, question: Question) -> list[Passage]:
    """Return the sentences that are not asides; all of them, if they are."""
    statements = claims(text, question)
    return [passage for passage in statements if passage.kind != "aside"] or statements


def _ranked(statements: list[Passage], question: Question) -> list[Passage]:
    """Return sentences by how likely they state the answer.

    What follows the conclusion comes after it, unless it calculates further or corrects it.
    """
    asides = [passage for passage in statements if passage.kind == "aside"]
    firm = [passage for passage in statements if passage.kind != "aside"]
    ordered = firm[::-1]
    conclusions = [n for n, passage in enumerate(ordered) if passage.kind == "conclusion"]
    if conclusions:
        n = conclusions[0]
        conclusion_text = ordered[n].text
        continuing = []
        remarks = []
        for passage in ordered[:n]:
            if _continues(passage.text, conclusion_text, question):
                continuing.append(passage)
            else:
                remarks.append(passage)
        ordered = [*continuing, ordered[n], *remarks, *ordered[n + 1 :]]
    last_asides = asides[::-1][:_LAST]
    return [*_opening(firm, question), *ordered[:_LAST], *last_asides]


def _continues(sentence: str, earlier: str, question: Question) -> bool:
    """Return whether a sentence after a conclusion goes on with the calculation or corrects it."""
    if RECONSIDERS.search(sentence) or _STEP.search(sentence):
        return True
    return question.overlap(sentence) > question.overlap(earlier)


def _opening(firm: list[Passage], question: Question) -> list[Passage]:
    """Return the first sentence, if it alone answers and no later one concludes."""
    if not question or not 2 <= len(firm) <= 20:
        return []
    first = firm[0].text
    later = [passage.text for passage in firm[1:]]
    following = " ".join(later)
    concluded = any(passage.kind == "conclusion" for passage in firm[1:])
    if concluded or RECONSIDERS.search(following) or first.rstrip().endswith(("?", ":")):
        return []
    opening = [Passage(first, "opening")]
    if _REFERS.match(first) or is_bare(first):
        return opening
    overlap = question.overlap(first)
    least = _REPEATS if _CALCULATES.search(following) else _TOUCHES
    closest = overlap > max(map(question.overlap, later))
    if overlap < least or not closest or _TURNS.search(following):
        return []
    return opening


def is_bare(sentence: str) -> bool:
    """Return whether a sentence is nothing but an answer: "90 degrees.", "Blue and red."."""
    words = len(sentence.split())
    if len(stems(sentence)) <= 2 and words <= _BARE:
        return True
    enumerates = "," in sentence and words <= 2 * _BARE
    return enumerates and not re.search(rf"\d|{IS}", sentence)


def refers(sentence: str) -> bool:
    """Return whether a sentence can only be meant as an answer: "9.", "It is 9", "There are 9."."""
    single = bool(_REFERS.match(sentence)) and len({n.value for n in numerals(sentence)}) == 1
    return single or is_bare(sentence)


# The clause of a sentence that concludes it

_IN_CLAUSE = r"(?:[^,]|,(?=\d))"  # a comma between digits separates thousands, not clauses
_BRACKETS = pattern(r"\s{1,3}\([^()（）]{0,200}\)|\s{0,3}（[^()（）]{0,200}）")
# "…, so it is 9", "…, which means that …", "…, giving 9"
_THEREFORE = pattern(
    r"(?<!\bis)(?<!\bare)(?<!\bwas)(?:^|[,;:.\s])(?:and\s)?",
    any_of(
        r"(?<!if )so(?!\s(?:far|that|on|many|much|called|is|are|do|does|long)\b)|therefore|thus",
        r"hence|consequently|in conclusion|in other words|(?:which|this|that) means|meaning",
        r"or rather|resulting in|(?<=, )(?:giving|leaving|yielding|making)(?= \S{0,3}\d)",
        r"which (?:gives|makes|leaves|equals|(?:simplifies|comes|amounts) to|is(?=\s\$?-?\d))",
    ),
    r"(?:\sthat)?[,:]?\s",
)
_DENIED = pattern(  # ", not 9", "rather than 9"
    r"(?<=[^\W_]),?\s(?:\band\s|\bbut\s)?",
    any_of("not|rather than|instead of|as opposed to|unlike|never|except|excluding"),
    rf"(?!\sonly){_IN_CLAUSE}{{1,200}}?(?=[;,]\s|\sbut\s|$)",
)
# "Since 7 * 7 is 49, …", "Adding 5, …", "In 1969, …"
_SUBORDINATE = pattern(
    r"^\W*(?:and\s|but\s)?",
    any_of(
        r"if|when|since|because|as|given|although|though|while|whereas|once|despite|unlike|after",
        r"before|with|without|at|for|in|of|by|on|from|using|between|among|to \w+|\w{3,15}ing",
    ),
    rf"{_IN_CLAUSE}{{1,300}},\s",
)
# "9, because …", "9, which is the largest", "9 if …"
_REASON = pattern(
    r"[,;:]?\s",
    any_of(
        r"because|since|given that|due to|while|whereas|although|though|assuming|unlike",
        r"(?<=, )as (?=\$?\d)",
        r"as (?=(?:there|it|the|each|we|they|this|that|you|he|she|\w+ (?:is|are|has))\b)",
        r"which (?=is (?:the|an?|also|why)\b|was|were|are|has|have|can|we|you|I)",
        r"such as|for example|compared (?:to|with)|who|where|after|before|if|when|once",
    ),
)
_APPOSITION = pattern(r"[,;–—]\s{0,2}(?=(?:an?|the|its|also|from|named|with|for|in|or)\b)")
# What makes a statement a guess, a bound or a condition
HEDGED = pattern(
    any_of(
        r"either|or|maybe|perhaps|possibly|might|may be|could be|not sure|uncertain|depends?",
        r"if|unless|were|is between|at least|at most",
        r"(?<!add )(?<!adds )(?<!adding )(?<!added )(?<!sum )up to",
    ),
    r"|\?",
)
DENIES = pattern(r"n['’]t\b|", any_of("not|cannot|neither|nor"))
_BUT = pattern(r"[,;.]?\s(?:but|however|yet),?\s")
MISTAKEN = pattern(  # what is said of other people's answers, or of a first thought
    r"(?<!\bI )(?<!\bI'd )",
    any_of(
        r"thinks?|thought|says?|said|believe|assumed?|expect|guess|seems?|looks?|might|may|could",
        r"would|often|commonly|sometimes|usually|first|some|many|people|mistak\w+|misconception",
    ),
)


def conclusion(
    sentence: str,
    holds: Callable[[str], bool],
    question: Question = Question(),  # noqa: B008 it is never changed
    *,
    denials: bool = False,
) -> str:
    """Return the clause that states a sentence's result, without reasons, conditions and asides.

    Each cut is made only if what remains still `holds` something that could be an answer. With
    `denials`, what the sentence denies stays too.
    """
    if len(sentence) > LONG:
        return sentence
    clause = sentence
    removals = [_BRACKETS] if denials else [_BRACKETS, _DENIED]
    for removed in removals:
        shorter = removed.sub("", clause)
        if holds(shorter):
            clause = shorter
    for therefore in reversed(list(_THEREFORE.finditer(clause))):
        if holds(clause[therefore.end() :]):
            clause = clause[therefore.end() :]
            break
    clause = _claim(clause, holds, question)
    subordinate = _SUBORDINATE.match(clause)
    if subordinate and holds(clause[subordinate.end() :]):
        clause = clause[subordinate.end() :]
    for boundary in (_REASON, _APPOSITION):
        for match in boundary.finditer(clause):
            if match.start() and holds(clause[: match.start()]):
                clause = clause[: match.start()]
                break
    return clause.strip(" ,;:")


def _claim(clause: str, holds: Callable[[str], bool], question: Question) -> str:
    """Return the part before or after "but" that claims; the other reports an error, or adds."""
    first, *later = _BUT.split(clause)
    if not later:
        return clause
    last = later[-1]
    if DENIES.search(first) or MISTAKEN.search(first) or not holds(first):
        return last if holds(last) else clause
    if MISTAKEN.search(last) or not holds(last):
        return first
    return max(first, last, key=question.overlap)


# The final answer as text

_BULLET = re.compile(r"[ \t]{0,9}(?:\d{1,3}[.)]|[*•-])[ \t]+(?=\S)")
_EXPLAINS_ITEM = re.compile(r"\s[–—-]\s|:\s|\s\(|;\s|,\s")


def bullets(text: str) -> list[str]:
    """Return the items of the only list of lines in a reply, without their explanations."""
    blocks: list[list[str]] = []
    inside = False
    for line in text[-TAIL:].splitlines():
        bullet = _BULLET.match(line)
        if bullet and not inside:
            blocks.append([])
        if bullet:
            item = line[bullet.end() :]
            bold = re.match(r"\s*\*\*([^*\n]{1,100})\*\*", item)
            head = bold[1] if bold else _EXPLAINS_ITEM.split(item, maxsplit=1)[0]
            blocks[-1].append(undecorated(plain(head)).rstrip(":, "))
        if line.strip():
            inside = bool(bullet)
    lists = [block for block in blocks if len(block) > 1]
    return lists[0] if len(lists) == 1 else []


def final(text: str) -> str | None:
    """Return the final answer as text; None if there is none."""
    if marked(text) is None and text.rstrip().endswith("?"):
        return None
    for passage in sorted(passages(text), key=lambda passage: not passage.marked):
        if passage.marked:
            answer = passage.text.strip()
        else:
            results = list(_RESULT_IS.finditer(passage.text))
            end = results[-1].end() if results else 0
            answer = undecorated(passage.text[end:] or passage.text)
        if answer and not passage.marked and _UNDECIDED.search(passage.text):
            return None
        if answer:
            return answer
    return None


def ways_to_read(answer: str) -> list[str]:
    """Return the ways to read a marked answer: bare, or the end of "The name is X"."""
    bare = undecorated(answer)
    without_aside = ASIDE.sub("", bare)
    ways = [bare, answer, without_aside, _LINKED.split(bare)[-1]]
    if not without_aside.isascii():
        ways += [aside[0].strip(" ()（）") for aside in ASIDE.finditer(bare)]  # 渥太华 (Ottawa)
    return ways


def expressions(answer: str) -> list[str]:
    """Return the ways to read a mathematical answer: bare, or the end of "the length is 2√3"."""
    bare = undecorated(answer)
    ways = [answer, bare]
    start, *end = re.split(rf"(?:{IS}|\bhas (?:length|area|value)|:)\s", bare)
    # not the ratio 9: 10
    if len(end) == 1 and not any(map(str.isdigit, start)):
        ways.append(undecorated(end[0]))
    return [*dict.fromkeys(way for way in ways if way)]
