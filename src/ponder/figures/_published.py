"""Published accuracies for overlays: their binomial intervals, and which differences exceed chance.

Papers print one accuracy per point and no answers, so the answers to a benchmark's problems are
taken as independent.
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
PROBLEMS = {"AIME24": 30, "AIME2024": 30, "MATH500": 500, "GPQA-D": 198}
PAIRED = (
    "All were asked the same problems, so chance is smaller than binomial; how much smaller, only "
    "answers paired by problem would tell."
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


def on_benchmark(accuracy: float, benchmark: str) -> Estimate:
    """Return a published accuracy with its binomial interval."""
    return binomial(accuracy, PROBLEMS[benchmark])


def beyond_chance(difference: Estimate) -> bool:
    return difference.low > 0 or difference.high < 0


def split_by_chance(differences: dict[str, Estimate]) -> tuple[str, str]:
    """List the named differences that are beyond chance, and those within it."""
    beyond = []
    within = []
    for name, difference in differences.items():
        text = f"{name} ({signed(difference.value)})"
        if beyond_chance(difference):
            beyond.append(text)
        else:
            within.append(text)
    return ", ".join(beyond) or "none", ", ".join(within) or "none"
