"""Coverage of an accuracy corrected for the judge's errors, next to the judge's own accuracy.

    python benchmarks/coverage.py judged -r 1000

A judge calls a right reply right with the probability `sensitivity`, and a wrong one with the
probability `false positives`. People have judged a random sample of the replies. Problems are of
equal difficulty, or differ: then samples of a problem are correlated. In the last design the judge
is asked about four of five attempts; the others were truncated, and are wrong.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from ponder.core import Estimate
from ponder.stats.accuracy import accuracy
from ponder.stats.judged import FEWEST, JudgedColumns, corrected

Row = tuple[str, float, float, int]  # scenario, coverage, mean width, replicates
LABELS = (20, 50, 200)
ACCURACIES = (0.2, 0.5, 0.8, 0.95)
# Sensitivity, and false positives.
JUDGES = ((0.7, 0.3), (0.7, 0.05), (0.8, 0.15), (0.95, 0.3), (0.95, 0.05))


class Design(NamedTuple):
    problems: int
    samples: int
    correlation: float  # of attempts at one problem
    truncated: float = 0.0

    def text(self) -> str:
        words = f"{self.problems} problems × {self.samples}"
        if self.correlation:
            words += f", correlation {self.correlation:g}"
        if self.truncated:
            words += f", {self.truncated:.0%} truncated"
        return words


DESIGNS = (
    Design(300, 1, 0.0),
    Design(60, 5, 0.3),
    Design(100, 3, 0.6),
    Design(300, 1, 0.0, truncated=0.2),
)


def simulated(
    design: Design, true: float, judge: tuple[float, float], labels: int, rng: np.random.Generator
) -> JudgedColumns:
    """Draw the attempts of a study, the judge's verdicts, and the labels."""
    ability = np.full(design.problems, true)
    if design.correlation:
        strength = 1 / design.correlation - 1
        ability = rng.beta(true * strength, (1 - true) * strength, design.problems)
    problem = np.repeat(np.arange(design.problems), design.samples)
    right = rng.random(len(problem)) < ability[problem]
    sensitivity, false_positives = judge
    says_right = rng.random(len(problem)) < np.where(right, sensitivity, false_positives)
    judged = rng.random(len(problem)) >= design.truncated
    labelled = np.zeros(len(problem), dtype=np.bool_)
    labelled[rng.choice(judged.nonzero()[0], labels, replace=False)] = True
    return JudgedColumns(says_right & judged, judged, labelled, right & labelled, problem)


def coverage(
    design: Design,
    true: float,
    judge: tuple[float, float],
    labels: int,
    replicates: int,
    rng: np.random.Generator,
) -> Iterator[Row]:
    truth = true * (1 - design.truncated)
    with_labels: list[Estimate] = []
    without: list[Estimate] = []
    for _ in range(replicates):
        data = simulated(design, true, judge, labels, rng)
        estimate = corrected(data)
        if estimate is not None:  # labels of fewer problems than a correction needs
            with_labels.append(estimate)
            without.append(accuracy(data.right, data.problem))
    sensitivity, false_positives = judge
    scenario = f"{design.text()}, {labels} labels, accuracy {true:g}"
    scenario += f", sensitivity {sensitivity:g}, false positives {false_positives:g}"
    for name, estimates in (("", with_labels), (", uncorrected", without)):
        inside = [estimate.low <= truth <= estimate.high for estimate in estimates]
        width = [estimate.high - estimate.low for estimate in estimates]
        yield scenario + name, float(np.mean(inside)), float(np.mean(width)), len(estimates)


def rows(replicates: int, seed: int) -> Iterator[Row]:
    assert min(LABELS) >= FEWEST
    rng = np.random.default_rng(seed)
    for design in DESIGNS:
        for labels in LABELS:
            for true in ACCURACIES:
                for judge in JUDGES:
                    yield from coverage(design, true, judge, labels, replicates, rng)
