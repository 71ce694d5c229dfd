"""Texts as words and runs of words, so that copies are found whatever their case, spacing and punctuation."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TypeAlias
from zlib import crc32

import numpy as np
import numpy.typing as npt

Codes: TypeAlias = npt.NDArray[np.uint64]

SIGNS = "+-*/^=<>"
_BLANK = bytes(32 if n < 128 and not chr(n).isalnum() else n for n in range(256))
_BLANK_BUT_SIGNS = bytes(n if chr(n) in SIGNS else _BLANK[n] for n in range(256))
_MARK = re.compile(r"[^\w\s\x00-\x7f]")  # dashes, typographic quotes, × and ≤
_ALONE = re.compile(r"[぀-ヿ㐀-鿿가-힣฀-๿\U00020000-\U0003ffff]")  # scripts without spaces: each character is a word
_FACTOR = np.uint64(0x9E3779B97F4A7C15)  # odd, so that multiplying by it loses nothing


def words(text: str, signs: bool = False) -> list[bytes]:
    """In lower case, without punctuation; with the signs of arithmetic, if told so. Bytes, as they are only hashed."""
    if not text.isascii():
        text = _ALONE.sub(r" \g<0> ", _MARK.sub(" ", text))
    return text.casefold().encode("utf-8", "surrogatepass").translate(_BLANK_BUT_SIGNS if signs else _BLANK).split()


def plain(*texts: str) -> str:
    """Texts without case and spacing, with everything else: a sign is often all that differs."""
    return "\n".join(" ".join(text.casefold().split()) for text in texts)


def runs(found: Sequence[bytes], length: int) -> Codes:
    """A code for each run of so many words, in their order; for one run of all of them where there are fewer."""
    codes = np.fromiter(map(crc32, found), np.uint64, len(found))
    count = max(1, len(found) - length + 1)
    mixed = np.zeros(count if len(found) else 0, np.uint64)
    for n in range(min(length, len(found))):
        mixed = (mixed ^ codes[n : n + count]) * _FACTOR
        mixed ^= mixed >> np.uint64(29)
    return mixed * _FACTOR
