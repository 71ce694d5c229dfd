"""Aligns thinking steps with answer steps.

ReasonFlux-PRM (arXiv 2506.18896) compares the t-th thinking step with the t-th answer step, and
requires equally many; real thinking has ten times as many. So each thinking step is assigned an
answer step: the most similar one (`best`), or the one that dynamic time warping assigns, which
keeps the order (`monotone`). The paper doesn't name its encoder; ours counts hashed character
n-grams and needs no weights. Any function from texts to vectors can replace it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

Floats: TypeAlias = npt.NDArray[np.float64]
Codes: TypeAlias = npt.NDArray[np.uint64]
Indices: TypeAlias = npt.NDArray[np.int64]
Encoder: TypeAlias = Callable[[Sequence[str]], Floats]  # texts -> one row per text

_FACTOR = np.uint64(0x9E3779B97F4A7C15)  # odd, so that multiplying by it is invertible


def hashed(texts: Sequence[str], width: int = 2048) -> Floats:
    """Return feature vectors of texts, shape (texts, width).

    A feature is the square root of how often a word or an n-gram of two to four characters occurs,
    hashed into one of `width` columns.
    """
    letters, owners = _letters(texts)
    features = [_ngrams(letters, owners, n, width) for n in (2, 3, 4) if len(letters) >= n]
    if len(letters):
        features.append(_words(letters, owners, width))
    counts = np.zeros(len(texts) * width)
    for rows, columns in features:
        counts += np.bincount(rows * width + columns, minlength=len(counts))
    return np.sqrt(counts).reshape(len(texts), width)


def _letters(texts: Sequence[str]) -> tuple[Codes, Indices]:
    """Return the characters of all texts in lower case, and the text that each belongs to."""
    folded = [" ".join(text.casefold().split()) for text in texts]
    encoded = "".join(folded).encode("utf-32-le", "surrogatepass")
    letters = np.frombuffer(encoded, np.uint32).astype(np.uint64)
    lengths = [len(text) for text in folded]
    return letters, np.repeat(np.arange(len(folded)), lengths)


def _ngrams(letters: Codes, owners: Indices, n: int, width: int) -> tuple[Indices, Indices]:
    """Return the row and the column of each run of `n` characters that lies within a text."""
    count = len(letters) - n + 1
    codes = np.zeros(count, np.uint64)
    for offset in range(n):
        codes = (codes ^ letters[offset : offset + count]) * _FACTOR
    first_owners = owners[:count]
    last_owners = owners[n - 1 :]
    inside = first_owners == last_owners
    return first_owners[inside], _column(codes[inside], n, width)


def _words(letters: Codes, owners: Indices, width: int) -> tuple[Indices, Indices]:
    """Return the row and the column of each word."""
    blank = letters == ord(" ")
    opens_word = np.ones(len(letters), bool)
    opens_word[1:] = blank[:-1] | (owners[1:] != owners[:-1])
    starts = np.flatnonzero(opens_word & ~blank)
    lengths = np.diff(np.r_[starts, len(letters)])
    position = np.arange(len(letters)) - np.repeat(starts, lengths)
    powers = _FACTOR ** (position + 1).astype(np.uint64)
    terms = np.where(blank, np.uint64(0), letters * powers)
    codes = np.add.reduceat(terms, starts)
    return owners[starts], _column(codes, 1, width)


def _column(codes: Codes, kind: int, width: int) -> Indices:
    """Hash codes of one kind of feature into columns."""
    mixed = (codes ^ np.uint64(kind)) * _FACTOR
    mixed = (mixed ^ (mixed >> np.uint64(29))) * _FACTOR
    columns = (mixed >> np.uint64(32)) % np.uint64(width)
    return columns.astype(np.int64)


def similarity(left: Sequence[str], right: Sequence[str], encoder: Encoder = hashed) -> Floats:
    """Return cosine similarities, shape (left, right); 0 for an empty text."""
    vectors = np.asarray(encoder([*left, *right]), np.float64)
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    vectors = np.divide(vectors, norms, out=np.zeros_like(vectors), where=norms > 0)
    cosines: Floats = vectors[: len(left)] @ vectors[len(left) :].T
    return cosines.clip(-1.0, 1.0)


def align(similar: Floats, how: Literal["monotone", "best"] = "monotone") -> tuple[int, ...]:
    """Return the column that each row of a similarity matrix is aligned with."""
    if not similar.size:
        return ()
    if how == "best":
        return tuple(similar.argmax(axis=1).tolist())
    best = dict[int, int]()
    for i, j in _warped(1 - similar):
        # The path may visit several columns in a row.
        if i not in best or similar[i, j] > similar[i, best[i]]:
            best[i] = j
    return tuple(best[i] for i in range(len(similar)))


def _warped(cost: Floats) -> list[tuple[int, int]]:
    """Return the cheapest monotone path from first pair to last: dynamic time warping."""
    least = np.empty_like(cost)
    least[0] = cost[0].cumsum()
    for i in range(1, len(cost)):
        # The cheapest path to j enters the row at some k ≤ j and follows it, so a running minimum
        # finds it.
        diagonal = np.r_[np.inf, least[i - 1, :-1]]
        above = np.minimum(least[i - 1], diagonal)
        along = cost[i].cumsum()
        least[i] = along + np.minimum.accumulate(above - along + cost[i])

    i = len(cost) - 1
    j = cost.shape[1] - 1
    path = [(i, j)]
    while i or j:
        steps = [(i - 1, j - 1), (i - 1, j), (i, j - 1)]
        possible = [step for step in steps if min(step) >= 0]
        i, j = min(possible, key=lambda step: least[step])
        path.append((i, j))
    return path[::-1]
