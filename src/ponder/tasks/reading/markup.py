"""Finds what a reply marks as thinking or answer, strips Markdown and LaTeX, splits sentences."""

from __future__ import annotations

import re

LONG = 1000  # characters of a sentence; a longer one is not read
# characters at the end of a reply in which an answer without a tag or box is searched
TAIL = 10_000

# Bold marks, code fences, dollars, LaTeX commands around a text, and what a line of Markdown
# opens with: `# `, `> `, `- `, `2. `
_MARKUP = re.compile(
    r"\*\*|__|`+\w*\n|`+|\$+|\\[()\[\],;!]|\\(?:text|mathrm|mathbf|textbf|boxed)(?=\{)|\\q?quad"
    r"|\\\\(?=\s|$)|(?<=[\w) ])&(?==)|\\(?:begin|end)\{[^{}\n]{1,20}\}"
    r"|(?m:^[ \t]*(?:#+|>|[*•-]|\d{1,3}[.)])[ \t])"
)
_INITIALS = re.compile(r"\b(?:[A-Z]\.\s?){2,4}(?=[A-Z][a-z])")
_BOLD = re.compile(r"\*\*([^*\n]{1,200})\*\*|\\(?:textbf|mathbf)\{([^{}\n]{1,200})\}")
_HEADING = re.compile(r"[:：]\s*$|^\W*(?:step|schritt|check)\b", re.IGNORECASE)  # "Step 1:"
SENTENCE = re.compile(r"(?<=[.!?])\s+(?![=+×*/])|(?<=。)|[\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029]+")
ASIDE = re.compile(r"\s{0,9}[(（][^()（）]{0,60}[)）]$")  # "9 (nine)"
_ENCLOSED = (
    ("\\(", "\\)"),
    ("\\[", "\\]"),
    ("\\boxed{", "}"),
    ("\\text{", "}"),
    ("\\mathrm{", "}"),
    ("{", "}"),
)

# Abbreviations whose full stop ends no sentence, written out.
_ABBREVIATIONS = {
    "i.e": "that is,",
    "e.g": "for example",
    "vs": "versus",
    "approx": "approximately",
    "dr": "Dr",
    "mr": "Mr",
    "mrs": "Mrs",
    "st": "St",
    "mt": "Mount",
    "prof": "Professor",
    "a.m": "AM",
    "p.m": "PM",
}
_ABBREVIATED = re.compile(
    rf"\b({'|'.join(map(re.escape, _ABBREVIATIONS))})\.,?(?=\s|$)", re.IGNORECASE
)
_LIST_MARKER = re.compile(r"^[ \t]{0,9}(?:#+|>|[*•-]|\d{1,3}[.)])[ \t]+(?=\S)", re.MULTILINE)
_NUMBERED = re.compile(r"^[ \t]{0,9}(\d{1,3}[.)])[ \t]", re.MULTILINE)


def plain(text: str) -> str:
    """Return a text without Markdown and LaTeX marks."""
    return joined_initials(_MARKUP.sub("", text))


def joined_initials(text: str) -> str:
    """Return a text with "J. R. R. Tolkien" as "JRR Tolkien": no sentence ends inside the name."""
    return _INITIALS.sub(lambda initials: re.sub(r"[.\s]", "", initials[0]) + " ", text)


def undecorated(text: str) -> str:
    """Return a text without the marks around it: `**9**`, `$9$`, `\\boxed{9}`, `"9"`, `9.`"""
    before = None
    while text != before and len(text) <= TAIL:
        before = text
        text = text.strip().strip("*_`$\"“”'‘’").removesuffix(".").strip()
        for opening, closing in _ENCLOSED:
            enclosed = text.startswith(opening) and text.endswith(closing)
            if enclosed and "{" not in text[len(opening) :]:
                text = text[len(opening) : -len(closing)]
    return text.strip()


def bold_spans(text: str) -> list[str]:
    """Return what stands in bold, without headings: "Step 1:"."""
    spans = [match[1] or match[2] or "" for match in _BOLD.finditer(text)]
    return [span for span in spans if not _HEADING.search(span)]


def first_sentence(text: str) -> str:
    """Return the first sentence of a text, without marks."""
    # Split first: at the start of a line, `9. ` looks like the number of a list.
    for sentence in SENTENCE.split(text):
        bare = undecorated(plain(f" {sentence}"))
        if bare:
            return bare
    return ""


def without_abbreviations(text: str) -> str:
    """Return a text with "i.e." and others written out, as their dots end no sentence."""
    return _ABBREVIATED.sub(lambda short: _ABBREVIATIONS[short[1].lower()], text)


def sentences(text: str) -> list[str]:
    """Return the sentences of a text, with their marks."""
    if len(_NUMBERED.findall(text)) == 1:
        text = _NUMBERED.sub(r"\1\n", text)  # "55. This is the sum" is not an item of a list
    text = without_abbreviations(text)
    text = joined_initials(_LIST_MARKER.sub("", text))
    return [sentence for sentence in SENTENCE.split(text) if plain(sentence).strip()]


_THINK_TAG = re.compile(r"<(/?)think(?:ing)?>")
_ANSWER_TAG = re.compile(
    r"(?:<|&lt;)\s{0,3}(/?)\s{0,3}(?:final[_ ])?answer\s{0,3}(?:>|&gt;)", re.IGNORECASE
)
_PARAGRAPH = re.compile(r"\n[ \t]*\n")
# What a model leaves in a tag that it only quotes: "between <answer> and </answer>",
# "<answer>...</answer>".
_QUOTED = re.compile(r"[\s.…*_`$]*(?:and|\\[lc]?dots)?[\s.…*_`$]*", re.IGNORECASE)
# `\boxed{3}, ` or `\boxed{3} or ` before the last box
_BOX_BEFORE = re.compile(
    r"\\boxed\{([^{}]{1,100})\}[\s$]{0,5}(,|\bor\b|\band\b|\\text\{ ?(?:or|and) ?\})[\s$]{0,5}$"
)
EMPTY_MARK = re.compile(
    rf"{_ANSWER_TAG.pattern}|\\boxed\{{[\s.…]{{0,9}}(?:\\[lc]?dots)?\s{{0,9}}(?:\}}|$)",
    re.IGNORECASE,
)


def split_thinking(text: str) -> tuple[str, str]:
    """Split a reply with `<think>` tags into thinking and answer.

    The answer is what follows the last closing tag. The opening tag may be missing, because some
    prompts contain it already, and thinking may quote the tags. After an opening tag that is never
    closed, everything is thinking.
    """
    end, tag = max((text.rfind(tag), tag) for tag in ("</think>", "</thinking>"))
    thinking = ""
    answer = text
    if end >= 0:
        thinking = text[:end]
        answer = text[end + len(tag) :]
    reopened = _THINK_TAG.search(answer)
    if reopened:
        thinking += answer[reopened.end() :]
        answer = answer[: reopened.start()]
    return _THINK_TAG.sub("", thinking).strip(), answer.strip()


def marked(text: str) -> tuple[str, str] | None:
    """Return the content of the last `<answer>` tag, else of the last box, and what follows it."""
    return _tag(text) or _box(text)


def _tag(text: str) -> tuple[str, str] | None:
    """Return the content of the last `<answer>` tag that has any, and what follows it.

    The last, because a model may correct itself. A tag that is never closed ends at the next one,
    or with its paragraph.
    """
    # Not one regex for a pair of tags: from each of many tags that are never closed, it would
    # search to the end.
    last = None
    last_end = 0
    opened = -1
    tag = None
    for tag in _ANSWER_TAG.finditer(text):
        if opened >= 0:
            content = text[opened : tag.start()].strip()
            if not _QUOTED.fullmatch(content):
                last = content
                last_end = tag.end()
        # `</answer>9</answer>` opens with a closing tag
        if not tag[1] or opened < 0:
            opened = tag.end()
        else:
            opened = -1
    if tag and not tag[1]:
        following = text[opened:]
        start = len(following) - len(following.lstrip())
        paragraph_end = _PARAGRAPH.search(following, start)
        end = paragraph_end.start() if paragraph_end else len(following)
        content = following[:end].strip()
        if not _QUOTED.fullmatch(content):
            last = content
            last_end = opened + end
    if last is None:
        return None
    return last, text[last_end:]


def _box(text: str) -> tuple[str, str] | None:
    """Return the content of the last `\\boxed{}`, and what follows it."""
    end = len(text)
    for _ in range(20):  # bounds the time for 10 MB of nothing but empty boxes
        start = text.rfind("\\boxed{", 0, end)
        if start < 0:
            return None
        close = _closing_brace(text, start)
        content = text[start + len("\\boxed{") : close].strip()
        if close >= 0 and not _QUOTED.fullmatch(content):
            pair = _BOX_BEFORE.search(text, max(0, start - 200), start)
            if pair:
                content = f"{pair[1].strip()}{pair[2]}{content}"
            return content, text[close + 1 :]
        end = start
    return None


def _closing_brace(text: str, start: int) -> int:
    """Return where the braces of a command that starts here are closed; -1 if nowhere."""
    depth = 0
    position = start
    while True:
        end = text.find("}", position)
        if end < 0:
            return -1
        depth += text.count("{", position, end) - 1
        if depth == 0:
            return end
        position = end + 1
