"""Splits texts into words and hashed n-grams of words.

Copies are found despite other case, spacing or punctuation.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TypeAlias
from zlib import crc32

import numpy as np
import numpy.typing as npt

Hashes: TypeAlias = npt.NDArray[np.uint64]

SIGNS = "+-*/^=<>"
_BLANK = bytes(32 if n < 128 and not chr(n).isalnum() else n for n in range(256))
_BLANK_BUT_SIGNS = bytes(n if chr(n) in SIGNS else _BLANK[n] for n in range(256))
_MARK = re.compile(r"[^\w\s\x00-\x7f]")  # dashes, typographic quotes, × and ≤
# Scripts without spaces: each character is a word.
_ALONE = re.compile(r"[぀-ヿ㐀-鿿가-힣฀-๿\U00020000-\U0003ffff]")
_FACTOR = np.uint64(0x9E3779B97F4A7C15)  # odd, so that multiplying by it is invertible


def words(text: str, signs: bool = False) -> list[bytes]:
    """Return the words of a text in lower case, without punctuation, as bytes for hashing.

    `signs` keeps those of arithmetic.
    """
    if not text.isascii():
        text = _MARK.sub(" ", text)
        text = _ALONE.sub(r" \g<0> ", text)
    encoded = text.casefold().encode("utf-8", "surrogatepass")
    if signs:
        return encoded.translate(_BLANK_BUT_SIGNS).split()
    return encoded.translate(_BLANK).split()


def normalized(*texts: str) -> str:
    """Return texts without differences in case and spacing.

    Punctuation stays, since a sign may be all that differs.
    """
    return "\n".join(" ".join(text.casefold().split()) for text in texts)


def ngrams(words: Sequence[bytes], length: int) -> Hashes:
    """Return a hash of each run of `length` words, in order; a text with fewer words is one run."""
    codes = np.fromiter(map(crc32, words), np.uint64, len(words))
    if not len(codes):
        return codes
    count = max(1, len(codes) - length + 1)
    mixed = np.zeros(count, np.uint64)
    for n in range(min(length, len(codes))):
        mixed = (mixed ^ codes[n : n + count]) * _FACTOR
        mixed ^= mixed >> np.uint64(29)
    return mixed * _FACTOR
