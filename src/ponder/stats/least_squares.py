"""Weighted least squares for many responses at once, and the search for the best of several designs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ponder.stats.columns import Floats, Ints


@dataclass(frozen=True, slots=True)
class Fits:
    """For each row of responses: the design that leaves the smallest squares, and its coefficients."""

    design: Ints
    coefficients: Floats

    def fitted(self, designs: Sequence[Floats]) -> Floats:
        """The values of the fits, row by row; other rows in `designs` give values at other places."""
        out = np.empty((len(self.design), len(designs[0])))
        for i, design in enumerate(designs):
            out[self.design == i] = self.coefficients[self.design == i] @ design.T
        return out


def projection(design: Floats, weight: Floats) -> Floats:
    """The matrix that turns responses into coefficients."""
    weighted = design.T * weight
    return np.asarray(np.linalg.solve(weighted @ design, weighted))


def search(responses: Floats, weight: Floats, designs: Sequence[Floats]) -> Fits:
    coefficients = np.array([responses @ projection(design, weight).T for design in designs])
    explained = [
        np.einsum("rc,rc->r", (responses * weight) @ design, fit)
        for design, fit in zip(designs, coefficients, strict=True)
    ]
    best = np.argmax(np.array(explained), axis=0)
    return Fits(best, coefficients[best, np.arange(len(responses))])
