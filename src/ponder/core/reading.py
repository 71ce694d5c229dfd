"""Finds the final answer in a model's reply, where a person would: lenient about form, strict about content.

An answer stands in the last `<answer>` tag or `\\boxed{}` that has content, unless the reply takes it back afterwards;
else after the last "answer is"; else it is what the reply puts in bold; else what its last sentences state. A reply
that wavers ("9 or 10", "about 9", "not 9") states nothing. `tests/data/replies.jsonl` has 500 replies of real models
and in the manner of others, labelled by hand, that these rules are held to.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction
from typing import NamedTuple

from ponder.core.numerals import IN_TEXT, decimal, english, number

_TAIL = 10_000  # characters at the end of a reply in which an answer without a tag or box is searched
_THINK_TAG = re.compile(r"<(/?)think(?:ing)?>")
_ANSWER_TAG = re.compile(r"(?:<|&lt;)\s{0,3}(/?)\s{0,3}(?:final[_ ])?answer\s{0,3}(?:>|&gt;)", re.IGNORECASE)
_PARAGRAPH = re.compile(r"\n[ \t]*\n")
# What a model leaves in a tag that it only quotes: "between <answer> and </answer>", "<answer>...</answer>".
_QUOTED = re.compile(r"[\s.…*_`$]*(?:and|\\[lc]?dots)?[\s.…*_`$]*", re.IGNORECASE)
_EMPTY = re.compile(rf"{_ANSWER_TAG.pattern}|\\boxed\{{[\s.…]{{0,9}}(?:\\[lc]?dots)?\s{{0,9}}(?:\}}|$)", re.IGNORECASE)
_FENCED = re.compile(r"```\w*\n([^\n`]{1,500})\n```\s{0,9}$")
_BOLD = re.compile(r"\*\*([^*\n]{1,200})\*\*|\\(?:textbf|mathbf)\{([^{}\n]{1,200})\}")
_MARKUP = re.compile(
    r"\*\*|__|`+\w*\n|`+|\$+|\\[()\[\],;!]|\\(?:text|mathrm|mathbf|textbf|boxed)(?=\{)|\\q?quad|\\\\(?=\s|$)"
    r"|(?<=[\w) ])&(?==)|\\(?:begin|end)\{[^{}\n]{1,20}\}|(?m:^[ \t]*(?:#+|>|[*•-]|\d{1,3}[.)])[ \t])"
)
_ANSWER = r"\b(?:answer|antwort|réponse|respuesta|risposta|resposta|endergebnis)\b|答案|答え"
_IS = r"\b(?:is|are|equals|ist|lautet|est|es|son|è)\b|是|为"
_LEADS = rf"(?:\s{{1,9}}(?:to|of|for)\b[^\n.:=?!]{{1,60}}?)?\s{{0,9}}(?:(?:{_IS})(?:\s{{0,9}}[:=])?|[:=：])\s{{0,9}}"
_ANSWER_IS = re.compile(rf"(?:{_ANSWER})(?:{_LEADS}|[ \t]{{0,9}}\n\s{{0,9}})", re.IGNORECASE)
_NAMED = re.compile(
    r"\b(?:result|sum|total|number|value|resultado|ergebnis|résultat|summe)\b"
    rf"(?:\s(?:so far|now|here))?{_LEADS}(?:now\s)?",
    re.IGNORECASE,
)
_CHECKED = re.compile(r"(?im)^\W{0,5}(?:let(?:'s| me| us) )?(?:double-?check|check|verify|verification|proof|probe)\b")
_TAKEN_BACK = re.compile(
    r"\b(?:correction|mistake|incorrect|disregard|ignore|on reflection|not right|sorry|wait|edit)\b", re.IGNORECASE
)
_DROPPED = re.compile(r"\b(?:disregard|ignore)\b", re.IGNORECASE)
_SENTENCE = re.compile(r"(?<=[.!?])\s+|(?<=。)|[\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029]+")
_DETACHED = re.compile(r"((?:[=:(]|\bis)\s{0,9})([-−])\s{1,3}(?=\d)")
_ASIDE = re.compile(r"\s{0,9}[(（][^()（）]{0,60}[)）]$")  # "9 (nine)"
# Words before a number that ends a sentence, which make it the sentence's result.
_RESULT = re.compile(
    rf"(?:[=:≈→⇒]|->|\b(?:be|equal|gives?(?: us| you)?|gets?|got|becomes?|makes?|leaves?|have|to|now|of)|{_IS})\s*$",
    re.IGNORECASE,
)
_HEDGED = re.compile(
    r"\b(?:or|not|either|is between|about|approximately|roughly|around|maybe|perhaps|if|than|at least|at most)\b"
    r"|n['’]t\b|\?",
    re.IGNORECASE,
)
_UNDECIDED = re.compile(r"\b(?:either|can(?:'t|’t|not)|unable|sorry)\b|\?\s*$", re.IGNORECASE)
# Not "one", which is a pronoun as well.
_WORDS = {"once": 1, "twice": 2} | {
    word: n
    for n, word in enumerate(
        ("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"), 2
    )
}
_COPULA = re.compile(rf"(?:{_IS})\s*$", re.IGNORECASE)
SHORT = 8  # words of a sentence in which a number needs no word before it: "A hexagon has 6 sides."
_LINKED = re.compile(rf"(?:{_IS}|:)\s*", re.IGNORECASE)
_LISTED = re.compile(r"(?:(?:^|\n)[ \t]{0,9}(?:\d{1,3}[.)]|[*•-])[ \t][^\n]{1,200}){2,100}\s{0,9}$")
_OPEN = re.compile(r"[=+*×÷/−-]\s*$")


def split_thinking(text: str) -> tuple[str, str]:
    """Split a reply with `<think>` tags into thinking and answer.

    The answer is what follows the last closing tag. The opening tag may be missing, because some prompts contain it
    already, and thinking may quote the tags. After an opening tag that is never closed, everything is thinking.
    """
    end, tag = max((text.rfind(tag), tag) for tag in ("</think>", "</thinking>"))
    thinking, rest = (text[:end], text[end + len(tag) :]) if end >= 0 else ("", text)
    if reopened := _THINK_TAG.search(rest):
        thinking, rest = thinking + rest[reopened.end() :], rest[: reopened.start()]
    return _THINK_TAG.sub("", thinking).strip(), rest.strip()


class _Place(NamedTuple):
    """A piece of a reply that may state its answer."""

    text: str
    marked: bool  # whether it is nothing but the answer: in a tag or box, in bold, or after "answer is"


def _places(text: str) -> list[_Place]:
    """Where the final answer may stand, the likeliest place first."""
    if (found := _marked(text)) is not None:
        inside, rest = found
        if not _TAKEN_BACK.search(rest := rest[:_TAIL]):
            return [_Place(inside, marked=True)]
        later = _after_answer_is(rest) or _corrected(rest)
        return later or [_Place("" if _DROPPED.search(rest) else inside, marked=True)]
    tail = _EMPTY.sub("", text.rstrip()[-_TAIL:]).rstrip()
    if check := _CHECKED.search(tail):
        tail = tail[: check.start()] if tail[: check.start()].strip() else tail
    if said := _after_answer_is(tail):
        return said
    sentences = [_Place(s, marked=False) for s in _SENTENCE.split(_plain(tail)) if s and not s.isspace()]
    fenced = _FENCED.search(tail)
    return [*([_Place(fenced[1], marked=True)] if fenced else _bold(tail)), *reversed(sentences[-3:])]


def _marked(text: str) -> tuple[str, str] | None:
    """The content of the last tag or box, and what follows it."""
    for find in (_tag, _box):
        if (found := find(text)) is not None:
            return found
    return None


def _after_answer_is(text: str) -> list[_Place]:
    text = _BOLD_HEADING.sub(r"\1", text)
    said = [match.end() for match in _ANSWER_IS.finditer(text)]
    rest = text[said[-1] :].lstrip("*_: \t\n") if said else ""
    if not rest:
        return []
    line = rest.splitlines()[0]
    bold = [_Place(one, marked=True) for one in _bold_spans(line)]
    return bold if len(bold) == 1 else [_Place(_opening(rest), marked=True)]


def _opening(text: str) -> str:
    """The first sentence of a text, without marks."""
    # Split first: at the start of a line, `9. ` looks like the number of a list.
    sentences = (undecorated(_plain(f" {sentence}")) for sentence in _SENTENCE.split(text))
    return next((sentence for sentence in sentences if sentence), "")


_BOLD_HEADING = re.compile(rf"\*\*([^*\n]{{0,60}}(?:{_ANSWER})[^*\n]{{0,30}}?[:：]?)\*\*", re.IGNORECASE)


def _corrected(text: str) -> list[_Place]:
    """What "the correct number is 75" puts in place of an earlier answer."""
    named = [_plain(text)[match.end() :] for match in _NAMED.finditer(_plain(text))]
    return [_Place(_opening(named[-1]), marked=True)] if named else []


def _bold(text: str) -> list[_Place]:
    """What stands in bold, if only one thing does, or if it is in the last sentence."""
    spans = list(dict.fromkeys(_bold_spans(text)))
    last = [s for s in _SENTENCE.split(text.rstrip()) if s and not s.isspace()][-1:]
    in_last = _bold_spans(last[0]) if last else []
    return [_Place(one, marked=True) for one in (spans if len(spans) == 1 else in_last[-1:])]


def _bold_spans(text: str) -> list[str]:
    """What stands in bold, without headings: "Step 1:"."""
    spans = (one[1] or one[2] or "" for one in _BOLD.finditer(text))
    return [s for s in spans if not re.search(r"[:：]\s*$|^\W*(?:step|schritt|check)\b", s, re.IGNORECASE)]


def final(text: str) -> str | None:
    """The final answer as text; None if there is none."""
    for place in _places(text):
        if place.marked and (plain := place.text.strip()):
            return plain
        if not place.marked and (plain := undecorated(_after_named(place.text))):
            return None if _UNDECIDED.search(place.text) else plain
    return None


def _after_named(sentence: str) -> str:
    named = list(_NAMED.finditer(sentence))
    return sentence[named[-1].end() :] or sentence if named else sentence


def readings(text: str, like: str) -> list[str]:
    """Every way to read the final answer: without marks, as it stands, and the end of "The capital is Paris".

    If the right answer (`like`) is a number, the first reading is the number, and without a number there is no reading.
    """
    said = final(text)
    if said is None:
        return []
    plain = undecorated(said)
    if number(like) is not None:
        value = final_number(text)
        return [] if value is None else [*dict.fromkeys([decimal(value), plain, said])]
    ends = [_ASIDE.sub("", plain), _LINKED.split(plain)[-1]]
    ends += [aside[0].strip(" ()（）")] if (aside := _ASIDE.search(plain)) else []  # 渥太华 (Ottawa)
    if (items := _LISTED.search(text[-_TAIL:])) and _marked(text) is None:
        ends.append(", ".join(undecorated(_plain(line)) for line in items[0].strip().splitlines()))
    if _marked(text) is None and (opening := _opening(text[:_TAIL])):
        # A reply without steps opens with its answer: "The symbol is Au. It is a metal."
        ends += [_LINKED.split(opening, maxsplit=1)[-1], re.split("[,;]", _LINKED.split(opening, maxsplit=1)[-1])[0]]
    return [*dict.fromkeys(one for one in (plain, said, *map(undecorated, ends)) if one)]


def expressions(said: str) -> list[str]:
    """Every way to read a mathematical answer: as it stands, without marks, and the end of "the length is 2√3"."""
    plain = undecorated(said)
    ends = re.split(rf"(?:{_IS}|\bhas (?:length|area|value)|:)\s", plain)[-1]
    return [*dict.fromkeys(one for one in (said, plain, undecorated(ends)) if one)]


def final_number(text: str) -> Fraction | None:
    """The number that is the final answer; None if there is none.

    `44 + 24 = 68`, "**68**" and "The sum is 68." say 68; "68 or 69" says nothing.
    """
    in_english = english(text[-_TAIL:])
    for place in _places(in_english if len(text) <= _TAIL else text):
        value = _number_in(place)
        doubtful = not place.marked and (_HEDGED.search(place.text) or _OPEN.search(place.text))
        if value is not None or (doubtful and any(map(str.isdigit, place.text))):
            return value
    return None


def _number_in(place: _Place) -> Fraction | None:
    """The number that a short text states. In a sentence, a word has to say that it is the result."""
    text = place.text
    plain = undecorated(_ASIDE.sub("", undecorated(_plain(text[:_TAIL])))).removesuffix("%").strip()
    for part in (plain, undecorated(plain[plain.rfind("=") + 1 :])):
        if (whole := number(part)) is not None:
            return whole
    if len(text) > _TAIL or _HEDGED.search(plain):
        return None
    if not any(map(str.isdigit, plain)):
        short = place.marked or len(plain.split()) <= SHORT
        words = [
            _WORDS[word]
            for word in re.findall(r"[a-z]+(?= times\b)|\b(?:once|twice)\b" if not short else r"[a-z]+", plain.lower())
            if word in _WORDS
        ]
        return Fraction(words[0]) if len(words) == 1 else None
    plain = _DETACHED.sub(r"\1\2", plain)
    if named := list(_NAMED.finditer(plain)):
        first = IN_TEXT.match(plain, named[-1].end())
        if first and (value := number(first[0].rstrip(",."))) is not None and not _OPEN.match(plain[first.end() :]):
            return value if "=" not in plain[first.end() :] else None
    numbers = list(IN_TEXT.finditer(plain[plain.rfind("=") + 1 :]))
    if len(numbers) == 1 and (place.marked or "=" in plain):
        return number(numbers[0][0].rstrip(",."))
    if len(numbers) == 1 and len(plain.split()) <= SHORT:
        return number(numbers[0][0].rstrip(",."))
    rest = plain[plain.rfind("=") + 1 :]
    stated = [n for n in numbers if _RESULT.search(rest[: n.start()]) and n.end() == len(rest)]
    stated = stated or [
        n for n in numbers if _COPULA.search(rest[: n.start()]) and rest[n.end() :].startswith((",", ";"))
    ]
    return number(stated[0][0].rstrip(",.")) if len(stated) == 1 else None


def undecorated(text: str) -> str:
    """A text without the marks around it: `**9**`, `$9$`, `\\(9\\)`, `\\boxed{9}`, `"9"`, `9.`"""
    before = None
    while text != before and len(text) <= _TAIL:
        before, text = text, text.strip().strip("*_`$\"“”'‘’").removesuffix(".").strip()
        for opening, closing in (
            ("\\(", "\\)"),
            ("\\[", "\\]"),
            ("\\boxed{", "}"),
            ("\\text{", "}"),
            ("\\mathrm{", "}"),
            ("{", "}"),
        ):
            if text.startswith(opening) and text.endswith(closing) and "{" not in text[len(opening) :]:
                text = text[len(opening) : -len(closing)]
    return text.strip()


def _plain(text: str) -> str:
    """A text without Markdown and LaTeX marks."""
    return _MARKUP.sub("", text)


def tagged(text: str) -> str | None:
    """The content of the last `<answer>` tag that has any, because a model may correct itself; None if there is none.

    A tag that is never closed ends at the next one, or with its paragraph.
    """
    return found[0] if (found := _tag(text)) else None


def _tag(text: str) -> tuple[str, str] | None:
    """The content of the last `<answer>` tag, and what follows it."""
    # Not one regex for a pair of tags: from each of many tags that are never closed, it would search to the end.
    found, opened = None, -1
    for tag in _ANSWER_TAG.finditer(text):
        if opened >= 0 and not _QUOTED.fullmatch(content := text[opened : tag.start()].strip()):
            found = content, tag.end()
        opened = tag.end() if not tag[1] or opened < 0 else -1  # `</answer>9</answer>` opens with a closing tag
    if opened >= 0 and not text[:opened].rstrip().endswith(("/answer>", "/Answer>")):
        rest = text[opened:]
        start = len(rest) - len(rest.lstrip())
        end = _PARAGRAPH.search(rest, start)
        content = (rest[: end.start()] if end else rest).strip()
        if not _QUOTED.fullmatch(content):
            found = content, opened + (end.start() if end else len(rest))
    return (found[0], text[found[1] :]) if found else None


def boxed(text: str) -> str | None:
    """The content of the last `\\boxed{}` that has any; None if there is none."""
    return found[0] if (found := _box(text)) else None


def _box(text: str) -> tuple[str, str] | None:
    """The content of the last `\\boxed{}`, and what follows it."""
    end = len(text)
    for _ in range(20):  # bounds the time for 10 MB of nothing but empty boxes
        start = text.rfind("\\boxed{", 0, end)
        if start < 0:
            return None
        close = _closing(text, start)
        if close >= 0 and not _QUOTED.fullmatch(inside := text[start + 7 : close].strip()):
            return inside, text[close + 1 :]
        end = start
    return None


def _closing(text: str, start: int) -> int:
    """Where the braces of a command that starts here are closed; -1 if nowhere."""
    depth, at = 0, start
    while (end := text.find("}", at)) >= 0:
        depth += text.count("{", at, end) - 1
        if depth == 0:
            return end
        at = end + 1
    return -1


def choice(text: str, options: Mapping[str, str]) -> str | None:
    """The letter of the chosen option; None if there is none.

    It may stand alone (`B`, `(b)`, `**B)** helium`) or after "option" in any place of an answer, or start the reply; or
    the answer may be the option's text.
    """
    letters = "".join(options)
    alone = re.compile(rf"(?:\\(?:text|math)\w*+\{{|[^\w\n])*+([{letters}])(?![A-Za-z'’])(?!\.\w)", re.IGNORECASE)
    named = re.compile(
        rf"(?i:{_ANSWER}|option|choice|choose|pick|select)(?:\s(?:letter|option|choice))?\s{{0,9}}(?i:{_IS})?"
        rf"(?:\s(?:the|la|option|choice))*[\W_]{{0,9}}([{letters}])(?![A-Za-z'’])(?!\.\w)"
    )
    several = re.compile(
        rf"\W*[{letters}]\W{{1,9}}(?:\w{{1,9}}\W{{1,9}})?(?:or|oder|ou|and)\W{{1,9}}(?:\w{{4}}\W)?[{letters}]\b"
    )
    for place in _places(text):
        plain = undecorated(place.text)
        if place.marked and several.match(_plain(plain)):
            return None
        if place.marked and (chosen := alone.match(plain)) and (len(plain) < 3 or not chosen[1].islower()):
            return chosen[1].upper()
        if texts := [letter for letter, option in options.items() if _same_text(plain, option)]:
            return texts[0] if len(texts) == 1 else None
    tail = _plain(text[-_TAIL:])
    if said := named.findall(tail):
        return str(said[-1])
    lines = _plain(text[:_TAIL]).strip().splitlines()
    for line in (lines[0], lines[-1]) if lines else ():
        if chosen := re.match(rf"[\W_]*+([{letters}])(?:[\W_]*+$|[.:]\s|[)\]])", line):
            return chosen[1]
    if ends := re.search(rf"(?:leaves|{_IS})(?: option)? \W{{0,3}}([{letters}])\W{{0,3}}$", tail):
        return ends[1]
    return None


def _same_text(one: str, other: str) -> bool:
    plain = [re.sub(r"^(?:the|an?) ", "", undecorated(text).casefold()) for text in (one, other)]
    return plain[0] == plain[1] or (number(plain[0]) is not None and number(plain[0]) == number(plain[1]))
