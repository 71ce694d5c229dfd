"""Tables what the thinking of attempts is made of, by how they ended and by size.

Outcomes have it in `details["anatomy"]` (`traces/anatomy.py`) where the texts are stored.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ponder.core import Ended, Estimate, Outcome, Records
from ponder.core.text import count
from ponder.figures import Row, basis, flat
from ponder.stats.accuracy import accuracy, mean
from ponder.stats.columns import by_problem, clusters
from ponder.traces.anatomy import Anatomy

ENDINGS: tuple[Ended, ...] = ("right", "wrong", "unparsed", "truncated")
# Each is averaged over the attempts in which it is known.
FRACTIONS = ("in_loop", "states_answer")
MEANS = ("loops", "hesitations", "restarts", "tokens_before_answer", "tokens_after_answer")
UNKNOWN = Estimate(math.nan, math.nan, math.nan, 0, 0)


def thinking_rows(series: str, outcomes: Sequence[Outcome]) -> Records:
    """Return a row per ending and size, and if there are several sizes one for all of them."""
    sizes: list[int | None] = [*sorted({outcome.size for outcome in outcomes})]
    if len(sizes) > 1:
        sizes.insert(0, None)
    rows = []
    for ended in ENDINGS:
        with_ending = [outcome for outcome in by_problem(outcomes) if outcome.ended == ended]
        for size in sizes:
            attempts = with_ending
            if size is not None:
                attempts = [outcome for outcome in with_ending if outcome.size == size]
            if any("anatomy" in outcome.details for outcome in attempts):
                rows.append(_row(series, ended, size, attempts))
    return rows


def _row(series: str, ended: Ended, size: int | None, attempts: Sequence[Outcome]) -> Row:
    measured = [outcome for outcome in attempts if "anatomy" in outcome.details]
    anatomies: list[Anatomy] = [outcome.details["anatomy"] for outcome in measured]
    problem = clusters(measured)
    estimates: dict[str, Estimate] = {}
    for name in (*FRACTIONS, *MEANS):
        # As floats, in which None is nan.
        values = np.array([getattr(anatomy, name) for anatomy in anatomies], dtype=np.float64)
        is_known = ~np.isnan(values)
        estimates[name] = UNKNOWN
        if is_known.any():
            known_problem = np.unique(problem[is_known], return_inverse=True)[1].astype(np.int64)
            if name in FRACTIONS:
                estimates[name] = accuracy(values[is_known] > 0, known_problem)
            else:
                estimates[name] = mean(values[is_known], known_problem)
    return flat(
        series=series,
        outcome="solved" if ended == "right" else ended,
        size=size,
        **estimates,
        measured=len(measured),
        attempts=len(attempts),
        problems=estimates["in_loop"].problems,
        basis=basis(attempts, (ended,)),
    )


def loop_clause(rows: Records) -> str:
    """Say how many truncated attempts of a series were in a loop; "" if none was truncated."""
    for row in rows:
        # The first one is that of all sizes.
        if row["outcome"] == "truncated":
            subject = count(row["measured"], "truncated attempt")
            fraction, low, high = (
                f"{100 * row[name]:.0f}" for name in ("in_loop", "in_loop_low", "in_loop_high")
            )
            verb = "was" if row["measured"] == 1 else "were"
            return f"of the {subject}, {fraction} % [{low}, {high}] {verb} in a loop"
    return ""
