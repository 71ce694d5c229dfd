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
    return Curve(
        size=tuple(size.tolist()),
        value=tuple(value.tolist()),
        low=tuple(low.tolist()),
        high=tuple(high.tolist()),
    )


def drawing_sizes(sizes: Floats) -> Floats:
    """Return the sizes measured, and enough between them for a smooth line."""
    return np.unique(np.concatenate([sizes, np.linspace(sizes[0], sizes[-1], 41)]))


def strata(size_of: Ints) -> list[slice]:
    """Return runs of problems, sorted by size, to resample together.

    A run holds one size, or neighbouring sizes until there are two problems.
    """
    ends = _ends_of_sizes(size_of)
    cuts = [0]
    for end in ends:
        if end - cuts[-1] >= 2:
            cuts.append(end)
    last = ends[-1]
    if cuts[-1] != last:  # a single problem at the end joins the run before it
        if len(cuts) > 1:
            cuts.pop()
        cuts.append(last)
    return [slice(start, stop) for start, stop in pairwise(cuts)]


def _ends_of_sizes(size_of: Ints) -> list[int]:
    """Return where each run of equal sizes ends."""
    ends: list[int] = (np.flatnonzero(np.diff(size_of)) + 1).tolist()
    return [*ends, len(size_of)]


def resampled_sums(values: Floats, size_of: Ints, replicates: int, seed: int) -> Floats:
    """Sum `values` over the resampled problems of each size.

    `values` is problems × columns, and `size_of` the index of each problem's size, ascending.
    Return replicates × sizes × columns.
    """
    rng = np.random.default_rng(seed)
    sums = np.zeros((replicates, int(size_of[-1]) + 1, values.shape[1]))
    for stratum in strata(size_of):
        sizes = size_of[stratum]
        stratum_values = values[stratum]
        first_size = int(sizes[0])
        edges = [0, *_ends_of_sizes(sizes)]
        for chunk in _chunks(replicates, len(sizes)):
            weights = _weights(rng, chunk.stop - chunk.start, len(sizes))
            for i, (start, stop) in enumerate(pairwise(edges)):
                sums[chunk, first_size + i] = weights[:, start:stop] @ stratum_values[start:stop]
    return sums


def _weights(rng: np.random.Generator, replicates: int, problems: int) -> Floats:
    """Draw the weight of each problem, replicates × problems."""
    if problems == 1:
        return np.ones((replicates, 1))
    picks = rng.integers(0, problems, (replicates, problems - 1))
    picks += problems * np.arange(replicates)[:, None]
    counts = np.bincount(picks.ravel(), minlength=replicates * problems)
    rescaled = counts.reshape(replicates, problems) * (problems / (problems - 1))
    return np.asarray(rescaled, dtype=np.float64)


def _chunks(replicates: int, problems: int) -> Iterator[slice]:
    """Split the replicates so that the draws of a chunk fit into the processor's cache."""
    step = max(1, 50_000 // problems)
    for start in range(0, replicates, step):
        yield slice(start, min(start + step, replicates))
