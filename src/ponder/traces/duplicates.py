"""Finds near-duplicates among any number of traces, in time linear in their number.

A trace's fingerprint consists of MinHashes (Broder 1997) of its runs of five words, all from one
hash function (Li, Owen and Zhang 2012), empty bins filled from others (Shrivastava 2017), 16 bits
each (Li and König 2010): 384 bytes. Fingerprints that agree in a band of bins are compared (Indyk
and Motwani 1998). Thinking and answer have bins of their own, since prompts may share a page of
rules; the whole trace has others, since short answers are often equal. Near-duplicates are similar
in both, and nearly as long: a text that repeats another twice has the same runs.
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
REPLY = 128  # bins for thinking and answer
WHOLE = 64  # bins for question, thinking and answer
MISSED = 0.01  # the fraction of pairs exactly at the threshold that no band finds
DEPTH = 256  # fingerprints compared per bucket: what more of them share is a common phrase
_IS_REPLY = np.arange(REPLY + WHOLE) % 3 < 2  # two bins of the reply, then one of the whole trace


class Fingerprint(NamedTuple):
    exact: bytes  # equal for traces that differ only in case and spacing
    bins: MinHashes
    words: int  # of thinking and answer


def fingerprint(trace: Trace) -> Fingerprint:
    """Return what is compared of a trace: a digest, MinHashes and the number of words."""
    # With signs, as one may be all that tells two short traces apart.
    reply_words = words(f"{trace.thinking}\n{trace.answer}", signs=True)
    question_words = words(trace.question, signs=True)
    reply_runs = ngrams(reply_words, RUN)
    trace_runs = np.concatenate([reply_runs, ngrams(question_words, RUN)])
    reply_bins = _minhashes(reply_runs, REPLY).reshape(-1, 2)
    trace_bins = _minhashes(trace_runs, WHOLE)
    bins = np.column_stack([reply_bins, trace_bins]).ravel()
    exact = digest(normalized(trace.question, trace.thinking, trace.answer))
    return Fingerprint(exact, bins, len(reply_words))


def _minhashes(hashes: Hashes, count: int) -> MinHashes:
    """Return the smallest hash in each of `count` equal sections of the range of hashes."""
    if not len(hashes):
        return np.zeros(count, np.uint16)
    hashes = np.sort(hashes)
    bins = np.arange(count)
    starts = np.arange(count, dtype=np.uint64) << np.uint64(64 - count.bit_length() + 1)
    first = np.searchsorted(hashes, starts)
    following = np.append(first[1:], len(hashes))
    filled = first < following
    # An empty bin takes the hash of the first filled one, in its own order, which is the same for
    # every text.
    order = _ORDER[count]
    first_filled = filled[order].argmax(axis=1)
    lenders = order[bins, first_filled]
    sources = np.where(filled, bins, lenders)
    return hashes[first[sources]].astype(np.uint16)


def _orders(count: int) -> npt.NDArray[np.int64]:
    """Return a random order of all bins for each bin, shape (count, count)."""
    bins = np.tile(np.arange(count), (count, 1))
    return np.random.default_rng(0).permuted(bins, axis=1)


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
        """Return which fingerprint the new one repeats, and whether exactly; None if none."""
        copy = self._exact.get(new.exact)
        if copy is not None:
            return copy, True
        in_same_bucket = set[int]()
        for key in self._keys(new):
            in_same_bucket.update(self._buckets.get(key, ())[-DEPTH:])
        if not in_same_bucket:
            return None
        candidates = sorted(in_same_bucket)
        self.compared += len(candidates)

        equal = np.array([self._bins[number] for number in candidates]) == new.bins
        replies_alike = equal[:, _IS_REPLY].mean(axis=1)
        traces_alike = equal[:, ~_IS_REPLY].mean(axis=1)
        # Without repetition this follows from the similarity itself: it can't exceed the ratio of
        # the lengths.
        lengths = np.array([self._words[number] for number in candidates])
        shorter = np.minimum(lengths, new.words)
        longer = np.maximum(lengths, new.words)
        similar_length = shorter >= self.alike * longer
        likeness = similar_length * np.minimum(replies_alike, traces_alike)
        best = int(likeness.argmax())
        if likeness[best] < self.alike:
            return None
        return candidates[best], False

    def add(self, new: Fingerprint) -> None:
        number = len(self._bins)
        self._bins.append(new.bins)
        self._words.append(new.words)
        self._exact.setdefault(new.exact, number)
        for key in self._keys(new):
            self._buckets[key].append(number)

    def _keys(self, new: Fingerprint) -> list[tuple[int, bytes]]:
        """Return the bucket of each band: where the band begins, and its bins."""
        starts = range(0, self._rows * self._bands, self._rows)
        return [(start, new.bins[start : start + self._rows].tobytes()) for start in starts]


def bands(alike: float) -> tuple[int, int]:
    """Return bins per band and number of bands.

    They miss at most `MISSED` of the pairs of similarity `alike`.
    """
    for rows in (5, 4, 3, 2):
        missed = 1 - alike**rows
        count = 1
        if missed > MISSED:
            count = math.ceil(math.log(MISSED) / math.log(missed))
        if rows * count <= REPLY + WHOLE:
            return rows, count
    return 1, REPLY + WHOLE
