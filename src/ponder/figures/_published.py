"""Reads published accuracies for overlays, with binomial intervals, and tests their differences.

Papers report one accuracy per point and not the answer to each problem, so the answers to a
benchmark's problems are assumed to be independent.
"""

from __future__ import annotations

import csv
from pathlib import Path

from ponder.core import Estimate, Records, UserError
from ponder.core.plugins import nearest
from ponder.figures import Row
from ponder.figures._variants import signed
from ponder.stats.grid import binomial

FOLDER = Path(__file__).parent / "published"
# Columns of published/*.csv that hold text; all others hold numbers.
TEXT_COLUMNS = ("model", "method", "benchmark", "family", "selector", "reward")
# How many problems each benchmark has.
PROBLEMS = {"AIME24": 30, "AIME2024": 30, "MATH500": 500, "GPQA-D": 198}
# A sentence for findings.
PAIRING_CAVEAT = (
    "All answered the same problems, so binomial intervals of their differences are too wide; by "
    "how much, only the answers to each problem could show."
)


def published(name: str) -> Records:
    """Read `published/NAME.csv`. An empty field becomes None."""
    files = {path.stem: path for path in FOLDER.glob("*.csv")}
    if name not in files:
        raise UserError(
            f"there are no published numbers called `{name}`", hint=nearest(name, files)
        )
    records = []
    with files[name].open(encoding="utf-8", newline="") as file:
        for line in csv.DictReader(file):
            record: Row = {}
            for column, text in line.items():
                if column in TEXT_COLUMNS:
                    record[column] = text
                else:
                    record[column] = float(text) if text else None
            records.append(record)
    return records


def by_model(records: Records) -> dict[str, Records]:
    """Group published points by model, in the order of the file."""
    groups: dict[str, Records] = {}
    for record in records:
        groups.setdefault(record["model"], []).append(record)
    return groups


def by_benchmark(records: Records) -> dict[str, Records]:
    """Group published points by benchmark, in the order of the file."""
    groups: dict[str, Records] = {}
    for record in records:
        groups.setdefault(record["benchmark"], []).append(record)
    return groups


def with_interval(accuracy: float, benchmark: str) -> Estimate:
    """Return a published accuracy with its binomial interval, from the benchmark's size."""
    return binomial(accuracy, PROBLEMS[benchmark])


def beyond_chance(difference: Estimate) -> bool:
    """Return whether the interval of a difference excludes 0."""
    return difference.low > 0 or difference.high < 0


def split_by_chance(differences: dict[str, Estimate]) -> tuple[str, str]:
    """Return two lists as text: the differences whose interval excludes 0, and the others.

    For example `("best (+4.0), vote (+2.5)", "none")`.
    """
    beyond = []
    within = []
    for name, difference in differences.items():
        text = f"{name} ({signed(difference.value)})"
        if beyond_chance(difference):
            beyond.append(text)
        else:
            within.append(text)
    return ", ".join(beyond) or "none", ", ".join(within) or "none"
