"""Near-duplicates among any number of traces, in a time that grows with their number and not with its square.

A trace's print holds the smallest codes of its runs of five words (MinHash, Broder 1997), all from one hash (Li, Owen
and Zhang 2012), empty places filled from others (Shrivastava 2017), 16 bits each (Li and König 2010): 384 bytes.
Prints that agree in a band of places are compared (Indyk and Motwani 1998). What was said has places of its own, for
prompts may share a page of rules; the whole trace has others, for short answers are often the same. A near-duplicate is
alike in both.
"""

from __future__ import annotations

import math
from collections import defaultdict
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from ponder.core import digest
from ponder.traces import Trace
from ponder.traces.words import Codes, plain, runs, words

Places: TypeAlias = npt.NDArray[np.uint16]

RUN = 5  # words
SAID, WHOLE = 128, 64  # places for thinking and answer, and for all with the question
MISSED = 0.01  # share of the pairs right at the threshold that no band finds
DEPTH = 256  # prints that are looked at in one bucket: what more of them share is a phrase, and tells nothing
_OF_SAID = np.arange(SAID + WHOLE) % 3 < 2  # two of them, then one of the whole


class Print(NamedTuple):
    exact: bytes
    places: Places


def fingerprint(trace: Trace) -> Print:
    # A sign may be all that tells two short traces apart.
    said = runs(words(f"{trace.thinking}\n{trace.answer}", signs=True), RUN)
    whole = np.concatenate([said, runs(words(trace.question, signs=True), RUN)])
    places = np.column_stack([_smallest(said, SAID).reshape(-1, 2), _smallest(whole, WHOLE)]).ravel()
    return Print(digest(plain(trace.question, trace.thinking, trace.answer)), places)


def _smallest(codes: Codes, count: int) -> Places:
    """The smallest code in each of `count` equal parts of the range of codes."""
    if not len(codes):
        return np.zeros(count, np.uint16)
    codes = np.sort(codes)
    starts = np.arange(count, dtype=np.uint64) << np.uint64(64 - count.bit_length() + 1)
    first = np.searchsorted(codes, starts)
    filled = first < np.append(first[1:], len(codes))
    # An empty place takes the code of the first filled one in an order of its own, the same for every text.
    order = _ORDER[count]
    lender = order[np.arange(count), filled[order].argmax(axis=1)]
    return codes[first[np.where(filled, np.arange(count), lender)]].astype(np.uint16)


def _orders(count: int) -> npt.NDArray[np.int64]:
    return np.random.default_rng(0).permuted(np.tile(np.arange(count), (count, 1)), axis=1)


_ORDER = {count: _orders(count) for count in (SAID, WHOLE)}


class CacheView:
    """Prints, and which of them a new one is nearest to."""

    def __init__(self, alike: float) -> None:
        self.alike = alike
        self.compared = 0
        self._rows, self._bands = bands(alike)
        self._exact: dict[bytes, int] = {}
        self._buckets: dict[tuple[int, bytes], list[int]] = defaultdict(list)
        self._places: list[Places] = []

    def nearest(self, new: Print) -> tuple[int, bool] | None:
        """The number of the print that this one repeats, if there is one, and whether exactly."""
        if (same := self._exact.get(new.exact)) is not None:
            return same, True
        near = {n for key in self._keys(new) for n in self._buckets.get(key, ())[-DEPTH:]}
        if not near:
            return None
        self.compared += len(near)
        ordered = sorted(near)
        equal = np.array([self._places[n] for n in ordered]) == new.places
        likeness = np.minimum(equal[:, _OF_SAID].mean(axis=1), equal[:, ~_OF_SAID].mean(axis=1))
        best = int(likeness.argmax())
        return (ordered[best], False) if likeness[best] >= self.alike else None

    def add(self, new: Print) -> None:
        number = len(self._places)
        self._places.append(new.places)
        self._exact.setdefault(new.exact, number)
        for key in self._keys(new):
            self._buckets[key].append(number)

    def _keys(self, new: Print) -> list[tuple[int, bytes]]:
        cut = range(0, self._rows * self._bands, self._rows)
        return [(start, new.places[start : start + self._rows].tobytes()) for start in cut]


def bands(alike: float) -> tuple[int, int]:
    """Places in a band and how many bands, so that a pair that is just `alike` enough is hardly missed."""
    for rows in (5, 4, 3, 2):
        missed = 1 - alike**rows
        count = 1 if missed <= MISSED else math.ceil(math.log(MISSED) / math.log(missed))
        if rows * count <= SAID + WHOLE:
            return rows, count
    return 1, SAID + WHOLE
