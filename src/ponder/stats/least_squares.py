"""Weighted least squares for many responses at once, with a choice of the best of several design matrices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ponder.stats.columns import Floats, Ints


@dataclass(frozen=True, slots=True)
class Fits:
    """For each row of responses: the design with the smallest sum of squares, and its coefficients."""

    design: Ints
    coefficients: Floats

    def fitted(self, designs: Sequence[Floats]) -> Floats:
        """The fitted values, row by row; pass designs for other sizes to evaluate the fits there."""
        out = np.empty((len(self.design), len(designs[0])))
        for i, design in enumerate(designs):
            out[self.design == i] = self.coefficients[self.design == i] @ design.T
        return out


def projection(design: Floats, weight: Floats) -> Floats:
    """The matrix that turns responses into coefficients."""
    weighted = design.T * weight
    return np.asarray(np.linalg.solve(weighted @ design, weighted))


def search(responses: Floats, weight: Floats, designs: Sequence[Floats]) -> Fits:
    """Fits every design to every row of responses and keeps the best design of each row."""
    coefficients = np.array([responses @ projection(design, weight).T for design in designs])
    explained = [
        np.einsum("rc,rc->r", (responses * weight) @ design, fit)
        for design, fit in zip(designs, coefficients, strict=True)
    ]
    best = np.argmax(np.array(explained), axis=0)
    return Fits(best, coefficients[best, np.arange(len(responses))])
