"""Measures what a reply is made of: loops, hesitations, and where its answer is first stated.

A loop is a passage that comes at least `PASSES` times in a row, character by character, and whose
later passes have at least `SHORTEST` characters together. Only these later passes are counted, so
`loops` is the fraction of the text that could be removed without losing a word. Passages that
differ in one character, such as a counter, are no loop: the fraction is a lower bound, and tables,
enumerations and code are not mistaken for loops (docs/effort.md has the counts).

Every measure takes time linear in the text, but for one sort of its positions. A server counts only
the tokens of a whole text, so those before and after a position are in proportion to characters.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from ponder.core import Completion

Bools: TypeAlias = npt.NDArray[np.bool_]
Characters: TypeAlias = npt.NDArray[np.uint32]

PASSES = 3  # a calculation that is done again as a check is not a loop
SHORTEST = 200  # characters of the later passes together: about 50 tokens
SEPARATOR = 4  # characters between two passages, which the last may lack
RUN = 32  # characters that must be equal for a distance to be tried; a power of two
MOST_PERIODS = 32  # distances that are tried, the most frequent first, so that time is bounded
CUT_OFF = 16  # characters after a loop that still count as its end: a token may be cut in two
POSITION_BITS = np.uint64(24)
LONGEST = 1 << 24  # characters that are read, from the end of a text
LONGEST_ANSWER = 200  # characters: a longer answer is a document, which nothing states in passing
_WITHOUT_MARKS = bytes(n if chr(n).isalnum() and n < 128 else 32 for n in range(256))
_FACTOR = np.uint64(0x9E3779B97F4A7C15)  # odd, so that multiplying by it is invertible

# Each counts as a whole word or phrase, in any case. No phrase contains another.
HESITATIONS = (
    "wait",
    "hmm",
    "hm",
    "actually",
    "alternatively",
    "on second thought",
    "let me check",
    "let me double check",
    "let me recheck",
    "let me verify",
    "let's check",
    "let's double check",
    "let's verify",
    "i'm not sure",
    "i made a mistake",
)
RESTARTS = (
    "start over",
    "start again",
    "start afresh",
    "start from scratch",
    "begin again",
    "try again",
    "try another approach",
    "try a different approach",
)


class Anatomy(NamedTuple):
    """What an attempt's replies are made of; None where that is unknown."""

    loops: float  # fraction of the text that repeats an earlier passage of a loop
    in_loop: bool  # whether the text ends in a loop
    hesitations: float | None = None  # per 1,000 tokens
    restarts: float | None = None  # per 1,000 tokens
    states_answer: bool | None = None  # whether the parsed answer appears; None: can't be found
    tokens_before_answer: float | None = None  # until it first appears
    tokens_after_answer: float | None = None


def anatomy(
    replies: Sequence[Completion], answer: Any = None, *, one_call: bool = True
) -> Anatomy | None:
    """Return what an attempt's replies are made of; None if a server hides or sums up the thinking.

    `answer` is the parsed answer. Loops are looked for in thinking and answer, the other measures
    are of the thinking, or of the reply of a model without thinking. A bill of several calls
    (`one_call=False`) covers other texts too, so nothing is counted in tokens then.
    """
    text = "\n".join(f"{reply.thinking}\n{reply.answer}" for reply in replies)
    if not text.strip() or any(map(_hides_thinking, replies)):
        return None
    repeated = loops(text)
    measured = Anatomy(float(repeated.mean()), bool(repeated[-CUT_OFF:].any()))
    reasoning = "\n".join(reply.thinking or reply.answer for reply in replies)
    tokens = sum(map(_reasoning_tokens, replies))
    if not tokens or not one_call:
        return measured

    text_words = _separated(reasoning)
    measured = measured._replace(
        hesitations=1000 * sum(map(text_words.count, _HESITATIONS)) / tokens,
        restarts=1000 * sum(map(text_words.count, _RESTARTS)) / tokens,
    )
    if len(replies) > 1:  # a conversation has an answer in each turn
        return measured
    position = first_statement(reasoning, answer)
    if position is None:
        return measured
    measured = measured._replace(states_answer=position >= 0)
    if position < 0:
        return measured
    before = tokens * position / len(reasoning)
    return measured._replace(tokens_before_answer=before, tokens_after_answer=tokens - before)


def _hides_thinking(reply: Completion) -> bool:
    if "summarized" in reply.measures:
        return True
    return reply.bill.thinking_tokens > 0 and not reply.thinking


def _reasoning_tokens(reply: Completion) -> int:
    return reply.bill.thinking_tokens if reply.thinking else reply.bill.answer_tokens


# Loops.


def loops(text: str) -> Bools:
    """Return for each character whether it is in a later passage of a loop.

    White space at both ends of the text is left out.
    """
    encoded = text.strip()[-LONGEST:].encode("utf-32-le", "surrogatepass")
    characters = np.frombuffer(encoded, np.uint32)
    repeated = np.zeros(len(characters), np.bool_)
    for period in _periods(characters):
        equal = characters[period:] == characters[:-period]
        edges = np.flatnonzero(np.diff(equal, prepend=False, append=False))
        starts = edges[::2]
        ends = edges[1::2]
        is_loop = ends - starts >= max(SHORTEST, (PASSES - 1) * period) - SEPARATOR
        for start, end in zip(starts[is_loop], ends[is_loop], strict=True):
            repeated[period + start : period + end] = True
    return repeated


def _periods(characters: Characters) -> list[int]:
    """Return the distances that may be the period of a loop, the most frequent first.

    They are those from a run of characters to its last occurrence before.
    """
    if len(characters) <= SHORTEST:
        return []
    hashes = characters.astype(np.uint64)
    length = 1
    while length < RUN:  # the hash of a run is made of those of its halves
        halves = hashes[:-length] * _FACTOR
        halves ^= halves >> np.uint64(29)
        hashes = (halves ^ hashes[length:]) * _FACTOR
        length *= 2
    # The positions are in the low bits, so that one sort brings equal runs together, in order.
    hashes &= ~np.uint64(LONGEST - 1)
    hashes |= np.arange(len(hashes), dtype=np.uint64)
    hashes.sort()
    is_repeated = hashes[1:] >> POSITION_BITS == hashes[:-1] >> POSITION_BITS
    distances = np.diff(hashes)[is_repeated].astype(np.int64)
    counts = np.bincount(distances[distances <= (len(characters) + SEPARATOR) // PASSES])
    most_frequent = np.argsort(-counts, kind="stable")[:MOST_PERIODS]
    return [int(period) for period in most_frequent if counts[period]]


# Words and answers.


def _separated(text: str) -> bytes:
    """Return the English words of a text in lower case, each with a space before and after."""
    letters = text.lower().encode("ascii", "replace").translate(_WITHOUT_MARKS)
    return b" " + b"  ".join(letters.split()) + b" "


_HESITATIONS = tuple(map(_separated, HESITATIONS))
_RESTARTS = tuple(map(_separated, RESTARTS))


def first_statement(text: str, answer: Any) -> int | None:
    """Return the position at which a text first states an answer; -1 if it doesn't.

    Return None for an answer that can't be looked for: neither a number nor a text, or a single
    letter, which may be a word.
    """
    if isinstance(answer, list) and len(answer) == 1:
        [answer] = answer
    if isinstance(answer, bool) or not isinstance(answer, str | int | float):
        return None
    answer_words = str(answer).split()
    answer = " ".join(answer_words)
    if len(answer) > LONGEST_ANSWER or (len(answer) < 2 and not answer.isdecimal()):
        return None
    stated = r"\s+".join(map(re.escape, answer_words))
    if answer.isdecimal():
        stated = f"(?:{answer}|{int(answer):,})"
    # Neither inside a longer word nor inside a longer number.
    any_case = re.IGNORECASE if answer.lower() != answer.upper() else re.NOFLAG
    match = re.search(rf"(?<!\w)(?<!\d[.,]){stated}(?!\w|[.,]\d)", text, any_case)
    return match.start() if match else -1
