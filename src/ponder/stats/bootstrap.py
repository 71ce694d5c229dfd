"""The bootstrap behind every fitted curve: it resamples whole problems within their size.

The rescaled bootstrap of Rao & Wu (1988): from H problems draw H-1 with replacement and weight each
by H/(H-1). A plain bootstrap of three problems per size would give two thirds of their variance. A
size with a single problem shares a stratum with the next size, because alone it would show no
variance.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from ponder.stats.columns import Floats, Ints


@dataclass(frozen=True, slots=True)
class Curve:
    """A fitted curve with a pointwise band, for drawing."""

    size: tuple[float, ...]
    value: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


def draw_curve(size: Floats, value: Floats, low: Floats, high: Floats) -> Curve:
    return Curve(*(tuple(column.tolist()) for column in (size, value, low, high)))


def drawing_sizes(sizes: Floats) -> Floats:
    """The sizes measured, and enough between them for a smooth line."""
    return np.unique(np.concatenate([sizes, np.linspace(sizes[0], sizes[-1], 41)]))


def strata(size_of: Ints) -> list[slice]:
    """Runs of problems, sorted by size, to resample together: one size, or neighbouring sizes up to
    two problems.
    """
    ends = [int(end) for end in np.flatnonzero(np.diff(size_of)) + 1] + [len(size_of)]
    cuts = [0]
    for end in ends:
        if end - cuts[-1] >= 2:
            cuts.append(end)
    if cuts[-1] != ends[-1]:  # a single problem at the end joins the run before it
        cuts[max(len(cuts) - 1, 1) :] = ends[-1:]
    return [slice(a, b) for a, b in pairwise(cuts)]


def resampled_sums(values: Floats, size_of: Ints, replicates: int, seed: int) -> Floats:
    """Replicates × sizes × columns: `values` (one row per problem) summed over the resampled
    problems of each size.
    """
    rng = np.random.default_rng(seed)
    out = np.zeros((replicates, int(size_of[-1]) + 1, values.shape[1]))
    for run in strata(size_of):
        own, first = size_of[run], int(size_of[run][0])
        starts = [0, *(np.flatnonzero(np.diff(own)) + 1), len(own)]
        for chunk in _chunks(replicates, len(own)):
            weights = _weights(rng, chunk.stop - chunk.start, len(own))
            for i, (a, b) in enumerate(pairwise(starts)):
                out[chunk, first + i] = weights[:, a:b] @ values[run][a:b]
    return out


def _weights(rng: np.random.Generator, replicates: int, problems: int) -> Floats:
    if problems == 1:
        return np.ones((replicates, 1))
    picks = rng.integers(0, problems, (replicates, problems - 1))
    picks += problems * np.arange(replicates)[:, None]
    counts = np.bincount(picks.ravel(), minlength=replicates * problems).reshape(
        replicates, problems
    )
    return np.asarray(counts * (problems / (problems - 1)), dtype=np.float64)


def _chunks(replicates: int, problems: int) -> Iterator[slice]:
    """Slices of the replicates whose draws fit into the processor's cache."""
    step = max(1, 50_000 // problems)
    return (slice(a, min(a + step, replicates)) for a in range(0, replicates, step))
