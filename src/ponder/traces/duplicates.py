"""Finds near-duplicates among any number of traces, in time linear in their number.

A trace's fingerprint consists of MinHashes (Broder 1997) of its runs of five words, all from one hash function (Li,
Owen and Zhang 2012), empty bins filled from others (Shrivastava 2017), 16 bits each (Li and König 2010): 384 bytes.
Fingerprints that agree in a band of bins are compared (Indyk and Motwani 1998). Thinking and answer have bins of their
own, since prompts may share a page of rules; the whole trace has others, since short answers are often equal.
Near-duplicates are similar in both, and nearly as long: a text that repeats another twice has the same runs.
"""

from __future__ import annotations

import math
from collections import defaultdict
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from ponder.core import digest
from ponder.traces import Trace
from ponder.traces.ngrams import Hashes, ngrams, normalized, words

MinHashes: TypeAlias = npt.NDArray[np.uint16]

RUN = 5  # words
REPLY, WHOLE = 128, 64  # bins for thinking and answer, and for the whole trace
MISSED = 0.01  # the fraction of pairs exactly at the threshold that no band finds
DEPTH = 256  # fingerprints compared per bucket: what more of them share is a common phrase
_IS_REPLY = np.arange(REPLY + WHOLE) % 3 < 2  # two bins of the reply, then one of the whole


class Fingerprint(NamedTuple):
    exact: bytes  # equal for traces that differ only in case and spacing
    bins: MinHashes
    words: int  # of thinking and answer


def fingerprint(trace: Trace) -> Fingerprint:
    # With signs, as one may be all that tells two short traces apart.
    spelled = words(f"{trace.thinking}\n{trace.answer}", signs=True)
    reply = ngrams(spelled, RUN)
    whole = np.concatenate([reply, ngrams(words(trace.question, signs=True), RUN)])
    bins = np.column_stack([_minhashes(reply, REPLY).reshape(-1, 2), _minhashes(whole, WHOLE)]).ravel()
    return Fingerprint(digest(normalized(trace.question, trace.thinking, trace.answer)), bins, len(spelled))


def _minhashes(hashes: Hashes, count: int) -> MinHashes:
    """The smallest hash in each of `count` equal parts of the range of hashes."""
    if not len(hashes):
        return np.zeros(count, np.uint16)
    hashes = np.sort(hashes)
    starts = np.arange(count, dtype=np.uint64) << np.uint64(64 - count.bit_length() + 1)
    first = np.searchsorted(hashes, starts)
    filled = first < np.append(first[1:], len(hashes))
    # An empty bin takes the hash of the first filled one, in an order of its own that is the same for every text.
    order = _ORDER[count]
    lender = order[np.arange(count), filled[order].argmax(axis=1)]
    return hashes[first[np.where(filled, np.arange(count), lender)]].astype(np.uint16)


def _orders(count: int) -> npt.NDArray[np.int64]:
    return np.random.default_rng(0).permuted(np.tile(np.arange(count), (count, 1)), axis=1)


_ORDER = {count: _orders(count) for count in (REPLY, WHOLE)}


class FingerprintIndex:
    """Fingerprints so far, and which of them a new one repeats."""

    def __init__(self, alike: float) -> None:
        self.alike = alike
        self.compared = 0
        self._rows, self._bands = bands(alike)
        self._exact: dict[bytes, int] = {}
        self._buckets: dict[tuple[int, bytes], list[int]] = defaultdict(list)
        self._bins: list[MinHashes] = []
        self._words: list[int] = []

    def nearest(self, new: Fingerprint) -> tuple[int, bool] | None:
        """The number of the fingerprint that this one repeats, if any, and whether exactly."""
        if (same := self._exact.get(new.exact)) is not None:
            return same, True
        near = {n for key in self._keys(new) for n in self._buckets.get(key, ())[-DEPTH:]}
        if not near:
            return None
        self.compared += len(near)
        ordered = sorted(near)
        # Without repetition this follows from the similarity itself: it can't exceed the ratio of the lengths.
        lengths = np.array([self._words[n] for n in ordered])
        as_long = np.minimum(lengths, new.words) >= self.alike * np.maximum(lengths, new.words)
        equal = np.array([self._bins[n] for n in ordered]) == new.bins
        likeness = as_long * np.minimum(equal[:, _IS_REPLY].mean(axis=1), equal[:, ~_IS_REPLY].mean(axis=1))
        best = int(likeness.argmax())
        return (ordered[best], False) if likeness[best] >= self.alike else None

    def add(self, new: Fingerprint) -> None:
        number = len(self._bins)
        self._bins.append(new.bins)
        self._words.append(new.words)
        self._exact.setdefault(new.exact, number)
        for key in self._keys(new):
            self._buckets[key].append(number)

    def _keys(self, new: Fingerprint) -> list[tuple[int, bytes]]:
        starts = range(0, self._rows * self._bands, self._rows)
        return [(start, new.bins[start : start + self._rows].tobytes()) for start in starts]


def bands(alike: float) -> tuple[int, int]:
    """Bins per band and number of bands that miss at most `MISSED` of the pairs of similarity `alike`."""
    for rows in (5, 4, 3, 2):
        missed = 1 - alike**rows
        count = 1 if missed <= MISSED else math.ceil(math.log(MISSED) / math.log(missed))
        if rows * count <= REPLY + WHOLE:
            return rows, count
    return 1, REPLY + WHOLE
