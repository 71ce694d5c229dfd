"""Aligns thinking steps with answer steps.

ReasonFlux-PRM (arXiv 2506.18896) compares the t-th thinking step with the t-th answer step, and requires equally many;
real thinking has ten times as many. So each thinking step is assigned an answer step: the most similar one (`best`), or
the one that dynamic time warping assigns, which keeps the order (`monotone`). The paper doesn't name its encoder; ours
counts hashed character n-grams and needs no weights. Any function from texts to vectors can replace it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

Floats: TypeAlias = npt.NDArray[np.float64]
Encoder: TypeAlias = Callable[[Sequence[str]], Floats]  # texts -> one row per text

_FACTOR = np.uint64(0x9E3779B97F4A7C15)  # odd, so that multiplying by it is invertible


def hashed(texts: Sequence[str], width: int = 2048) -> Floats:
    """Square roots of the counts of words and of n-grams of two to four characters, hashed into `width` columns."""
    letters, owner = _letters(texts)
    columns, rows = [], []
    for n in (2, 3, 4):
        if len(letters) < n:
            break
        codes = np.zeros(len(letters) - n + 1, np.uint64)
        for k in range(n):
            codes = (codes ^ letters[k : len(letters) - n + 1 + k]) * _FACTOR
        inside = owner[: len(codes)] == owner[n - 1 :]
        columns.append(_column(codes[inside], n, width))
        rows.append(owner[: len(codes)][inside])
    blank = letters == 32
    first = np.ones(len(letters), bool)
    first[1:] = blank[:-1] | (owner[1:] != owner[:-1])
    starts = np.flatnonzero(first & ~blank)
    if len(starts):
        offset = np.arange(len(letters)) - np.repeat(starts, np.diff(np.r_[starts, len(letters)]))
        powers = _FACTOR ** (offset + 1).astype(np.uint64)
        words = np.add.reduceat(np.where(blank, np.uint64(0), letters * powers), starts)
        columns.append(_column(words, 1, width))
        rows.append(owner[starts])
    counts = np.zeros(len(texts) * width)
    if columns:
        counts += np.bincount(np.concatenate(rows) * width + np.concatenate(columns), minlength=len(counts))
    return np.sqrt(counts).reshape(len(texts), width)


def _letters(texts: Sequence[str]) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]:
    """The characters of all texts in lower case, one after the other, and the text that each belongs to."""
    plain = [" ".join(text.casefold().split()) for text in texts]
    codes = np.frombuffer("".join(plain).encode("utf-32-le", "surrogatepass"), np.uint32).astype(np.uint64)
    return codes, np.repeat(np.arange(len(plain)), [len(text) for text in plain])


def _column(codes: npt.NDArray[np.uint64], kind: int, width: int) -> npt.NDArray[np.int64]:
    mixed = (codes ^ np.uint64(kind)) * _FACTOR
    mixed = (mixed ^ (mixed >> np.uint64(29))) * _FACTOR
    return ((mixed >> np.uint64(32)) % np.uint64(width)).astype(np.int64)


def similarity(left: Sequence[str], right: Sequence[str], encoder: Encoder = hashed) -> Floats:
    """Cosine similarities, left × right; 0 for an empty text."""
    rows = np.asarray(encoder([*left, *right]), np.float64)
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    rows = np.divide(rows, norms, out=np.zeros_like(rows), where=norms > 0)
    cosines: Floats = rows[: len(left)] @ rows[len(left) :].T
    return cosines.clip(-1.0, 1.0)


def align(similar: Floats, how: Literal["monotone", "best"] = "monotone") -> tuple[int, ...]:
    """For each row of a similarity matrix, the column that it is aligned with."""
    if not similar.size:
        return ()
    if how == "best":
        return tuple(int(j) for j in similar.argmax(axis=1))
    best = dict[int, int]()
    for i, j in _warped(1 - similar):
        if i not in best or similar[i, j] > similar[i, best[i]]:  # the path may visit several columns in a row
            best[i] = j
    return tuple(best[i] for i in range(len(similar)))


def _warped(cost: Floats) -> list[tuple[int, int]]:
    """The cheapest monotone path from the first pair to the last."""
    least = np.empty_like(cost)
    least[0] = cost[0].cumsum()
    for i in range(1, len(cost)):
        # The cheapest path to j enters the row at some k ≤ j and follows it, so a running minimum finds it.
        above = np.minimum(least[i - 1], np.r_[np.inf, least[i - 1, :-1]])
        along = cost[i].cumsum()
        least[i] = along + np.minimum.accumulate(above - along + cost[i])
    i, j = len(cost) - 1, cost.shape[1] - 1
    path = [(i, j)]
    while i or j:
        ways = [(i - 1, j - 1), (i - 1, j), (i, j - 1)]
        i, j = min((way for way in ways if min(way) >= 0), key=lambda way: least[way])
        path.append((i, j))
    return path[::-1]
