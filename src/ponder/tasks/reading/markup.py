"""Finds what a reply marks as thinking or answer, takes Markdown and LaTeX off a text, and splits
it into sentences.
"""

from __future__ import annotations

import re

LONG = 1000  # characters of a sentence that is not read, because it is none
# characters at the end of a reply in which an answer without a tag or box is searched
TAIL = 10_000
_MARKUP = re.compile(
    r"\*\*|__|`+\w*\n|`+|\$+|\\[()\[\],;!]|\\(?:text|mathrm|mathbf|textbf|boxed)(?=\{)|\\q?quad|\\\\(?=\s|$)"
    r"|(?<=[\w) ])&(?==)|\\(?:begin|end)\{[^{}\n]{1,20}\}|(?m:^[ \t]*(?:#+|>|[*•-]|\d{1,3}[.)])[ \t])"
)
_INITIALS = re.compile(r"\b(?:[A-Z]\.\s?){2,4}(?=[A-Z][a-z])")
_BOLD = re.compile(r"\*\*([^*\n]{1,200})\*\*|\\(?:textbf|mathbf)\{([^{}\n]{1,200})\}")
SENTENCE = re.compile(r"(?<=[.!?])\s+(?![=+×*/])|(?<=。)|[\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029]+")
ASIDE = re.compile(r"\s{0,9}[(（][^()（）]{0,60}[)）]$")  # "9 (nine)"


def plain(text: str) -> str:
    """Return a text without Markdown and LaTeX marks."""
    return joined_initials(_MARKUP.sub("", text))


def joined_initials(text: str) -> str:
    """Return a text with "J.

    R. R. Tolkien" as "JRR Tolkien", so that no sentence ends inside the name.
    """
    return _INITIALS.sub(lambda initials: re.sub(r"[.\s]", "", initials[0]) + " ", text)


def undecorated(text: str) -> str:
    """Return a text without the marks around it: `**9**`, `$9$`, `\\(9\\)`, `\\boxed{9}`, `"9"`,
    `9.`
    """
    before = None
    while text != before and len(text) <= TAIL:
        before, text = text, text.strip().strip("*_`$\"“”'‘’").removesuffix(".").strip()
        for opening, closing in (
            ("\\(", "\\)"),
            ("\\[", "\\]"),
            ("\\boxed{", "}"),
            ("\\text{", "}"),
            ("\\mathrm{", "}"),
            ("{", "}"),
        ):
            if (
                text.startswith(opening)
                and text.endswith(closing)
                and "{" not in text[len(opening) :]
            ):
                text = text[len(opening) : -len(closing)]
    return text.strip()


def bold_spans(text: str) -> list[str]:
    """Return what stands in bold, without headings: "Step 1:"."""
    spans = (match[1] or match[2] or "" for match in _BOLD.finditer(text))
    return [
        s
        for s in spans
        if not re.search(r"[:：]\s*$|^\W*(?:step|schritt|check)\b", s, re.IGNORECASE)
    ]


def opening(text: str) -> str:
    """Return the first sentence of a text, without marks."""
    # Split first: at the start of a line, `9. ` looks like the number of a list.
    sentences = (undecorated(plain(f" {sentence}")) for sentence in SENTENCE.split(text))
    return next((sentence for sentence in sentences if sentence), "")


_THINK_TAG = re.compile(r"<(/?)think(?:ing)?>")
ANSWER_TAG = re.compile(
    r"(?:<|&lt;)\s{0,3}(/?)\s{0,3}(?:final[_ ])?answer\s{0,3}(?:>|&gt;)", re.IGNORECASE
)
_PARAGRAPH = re.compile(r"\n[ \t]*\n")
# What a model leaves in a tag that it only quotes: "between <answer> and </answer>",
# "<answer>...</answer>".
_QUOTED = re.compile(r"[\s.…*_`$]*(?:and|\\[lc]?dots)?[\s.…*_`$]*", re.IGNORECASE)
_SEVERAL = re.compile(
    r"\\boxed\{([^{}]{1,100})\}[\s$]{0,5}(,|\bor\b|\band\b|\\text\{ ?(?:or|and) ?\})[\s$]{0,5}$"
)
EMPTY = re.compile(
    rf"{ANSWER_TAG.pattern}|\\boxed\{{[\s.…]{{0,9}}(?:\\[lc]?dots)?\s{{0,9}}(?:\}}|$)",
    re.IGNORECASE,
)


def split_thinking(text: str) -> tuple[str, str]:
    """Split a reply with `<think>` tags into thinking and answer.

    The answer is what follows the last closing tag. The opening tag may be missing, because some
    prompts contain it already, and thinking may quote the tags. After an opening tag that is never
    closed, everything is thinking.
    """
    end, tag = max((text.rfind(tag), tag) for tag in ("</think>", "</thinking>"))
    thinking, following = (text[:end], text[end + len(tag) :]) if end >= 0 else ("", text)
    if reopened := _THINK_TAG.search(following):
        thinking, following = thinking + following[reopened.end() :], following[: reopened.start()]
    return _THINK_TAG.sub("", thinking).strip(), following.strip()


def marked(text: str) -> tuple[str, str] | None:
    """Return the content of the last tag or box, and what follows it."""
    for find in (_tag, _box):
        if (content_and_end := find(text)) is not None:
            return content_and_end
    return None


def _tag(text: str) -> tuple[str, str] | None:
    """Return the content of the last `<answer>` tag that has any, and what follows it.

    The last, because a model may correct itself.

    A tag that is never closed ends at the next one, or with its paragraph.
    """
    # Not one regex for a pair of tags: from each of many tags that are never closed, it would
    # search to the end.
    content_and_end, opened, tag = None, -1, None
    for tag in ANSWER_TAG.finditer(text):
        if opened >= 0 and not _QUOTED.fullmatch(content := text[opened : tag.start()].strip()):
            content_and_end = content, tag.end()
        # `</answer>9</answer>` opens with a closing tag
        opened = tag.end() if not tag[1] or opened < 0 else -1
    if tag and not tag[1]:
        following = text[opened:]
        start = len(following) - len(following.lstrip())
        end = _PARAGRAPH.search(following, start)
        content = (following[: end.start()] if end else following).strip()
        if not _QUOTED.fullmatch(content):
            content_and_end = content, opened + (end.start() if end else len(following))
    return (content_and_end[0], text[content_and_end[1] :]) if content_and_end else None


def _box(text: str) -> tuple[str, str] | None:
    """Return the content of the last `\\boxed{}`, and what follows it."""
    end = len(text)
    for _ in range(20):  # bounds the time for 10 MB of nothing but empty boxes
        start = text.rfind("\\boxed{", 0, end)
        if start < 0:
            return None
        close = _closing(text, start)
        if close >= 0 and not _QUOTED.fullmatch(inside := text[start + 7 : close].strip()):
            if pair := _SEVERAL.search(text, max(0, start - 200), start):
                inside = f"{pair[1].strip()}{pair[2]}{inside}"
            return inside, text[close + 1 :]
        end = start
    return None


def _closing(text: str, start: int) -> int:
    """Return where the braces of a command that starts here are closed; -1 if nowhere."""
    depth, at = 0, start
    while (end := text.find("}", at)) >= 0:
        depth += text.count("{", at, end) - 1
        if depth == 0:
            return end
        at = end + 1
    return -1
