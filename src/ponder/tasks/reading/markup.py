"""Takes Markdown and LaTeX marks off a text, and splits it into sentences."""

from __future__ import annotations

import re

LONG = 1000  # characters of a sentence that is not read, because it is none
TAIL = 10_000  # characters at the end of a reply in which an answer without a tag or box is searched
_MARKUP = re.compile(
    r"\*\*|__|`+\w*\n|`+|\$+|\\[()\[\],;!]|\\(?:text|mathrm|mathbf|textbf|boxed)(?=\{)|\\q?quad|\\\\(?=\s|$)"
    r"|(?<=[\w) ])&(?==)|\\(?:begin|end)\{[^{}\n]{1,20}\}|(?m:^[ \t]*(?:#+|>|[*•-]|\d{1,3}[.)])[ \t])"
)
_BOLD = re.compile(r"\*\*([^*\n]{1,200})\*\*|\\(?:textbf|mathbf)\{([^{}\n]{1,200})\}")
SENTENCE = re.compile(r"(?<=[.!?])\s+(?![=+×*/])|(?<=。)|[\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029]+")
ASIDE = re.compile(r"\s{0,9}[(（][^()（）]{0,60}[)）]$")  # "9 (nine)"


def plain(text: str) -> str:
    """A text without Markdown and LaTeX marks."""
    return _MARKUP.sub("", text)


def undecorated(text: str) -> str:
    """A text without the marks around it: `**9**`, `$9$`, `\\(9\\)`, `\\boxed{9}`, `"9"`, `9.`"""
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
            if text.startswith(opening) and text.endswith(closing) and "{" not in text[len(opening) :]:
                text = text[len(opening) : -len(closing)]
    return text.strip()


def bold_spans(text: str) -> list[str]:
    """What stands in bold, without headings: "Step 1:"."""
    spans = (one[1] or one[2] or "" for one in _BOLD.finditer(text))
    return [s for s in spans if not re.search(r"[:：]\s*$|^\W*(?:step|schritt|check)\b", s, re.IGNORECASE)]


def opening(text: str) -> str:
    """The first sentence of a text, without marks."""
    # Split first: at the start of a line, `9. ` looks like the number of a list.
    sentences = (undecorated(plain(f" {sentence}")) for sentence in SENTENCE.split(text))
    return next((sentence for sentence in sentences if sentence), "")
