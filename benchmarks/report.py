"""Measures the verbs that read a store of 100,000 attempts: CPU seconds and peak memory.

A report must take seconds, a plan or a listing no time to speak of. Most of a report's memory is
Vega's engine. Exports stream: their memory doesn't grow with the store.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from statistics import median

from measured import PONDER, Cost, cost, table, verdict

SIZES = [4, 6, 8, 12, 16, 24, 32, 48, 64, 96]
STUDY = """
problems = {problems}
samples  = 5
[[task]]
name = "chain_sum"
size = {sizes}
digits = 3
[[model]]
name = "oracle"
critical_size = 24
error = 0.03
peak = 48
budget = 4000
[[figure]]
name = "effort"
[[figure]]
name = "accuracy"
"""
TRIES = 3  # the median counts
REPORT_MB = 350  # its outcomes, its charts, and Vega
EXPORT_MB = 100
EXPORTS = ("csv", "jsonl", "inspect", "parquet")
VERBS = (  # and the most CPU seconds and MB each may take
    (["report", "study.toml"], 10.0, REPORT_MB),
    (["plan", "study.toml"], 0.5, EXPORT_MB),
    (["list"], 0.5, EXPORT_MB),
    (["list", "tasks"], 0.5, EXPORT_MB),
    *((["export", "study.toml", "--format", form], 30.0, EXPORT_MB) for form in EXPORTS),
    (["store", "check"], 30.0, REPORT_MB),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--attempts", type=int, default=100_000)
    attempts = parser.parse_args().attempts
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "study.toml").write_text(
            STUDY.format(problems=attempts // len(SIZES) // 5, sizes=SIZES)
        )
        made = cost([PONDER, "run", "study.toml"], folder)
        again = cost([PONDER, "run", "study.toml"], folder)
        costs = _medians(
            [[cost([PONDER, *verb], folder) for verb, *_ in VERBS] for _ in range(TRIES)]
        )
    named = [("run (oracle)", made), ("run, with nothing left", again)]
    named += [(" ".join(verb), used) for (verb, *_), used in zip(VERBS, costs, strict=True)]
    rows = [(name, f"{used.cpu_seconds:.2f}", f"{used.peak_mb:.0f}") for name, used in named]
    print(f"\n{attempts:,} attempts in the store\n\n{table(rows, ('verb', 'CPU s', 'peak MB'))}\n")
    for (verb, seconds, megabytes), used in zip(VERBS, costs, strict=True):
        print(verdict(f"ponder {' '.join(verb)}", used.cpu_seconds, seconds, " s"))
        print(verdict(f"ponder {' '.join(verb)}", used.peak_mb, megabytes, " MB"))


def _medians(tries: list[list[Cost]]) -> list[Cost]:
    return [Cost(*map(median, zip(*column, strict=True))) for column in zip(*tries, strict=True)]


if __name__ == "__main__":
    main()
