"""Measures `ponder report` on stores of 10,000, 100,000 and 1,000,000 attempts: CPU seconds, peak
memory, and growth.

Five studies, with the figures that studies of their kind draw. Their attempts are simulated, and
written by the store's own writer; only the report is measured. The exponent is that of a power law
through the two largest stores: 1 is linear. `--quick` measures one study, without the million.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from measured import PONDER, Cost, cost, exponent, record, table, verdict
from simulated import STUDIES, write_store

SECONDS, MEGABYTES = 60.0, 1000.0  # of a report of the largest store


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("studies", nargs="*", metavar="STUDY", help=", ".join(STUDIES))
    parser.add_argument(
        "--quick", action="store_true", help="effort only, at most 100,000 attempts"
    )
    parser.add_argument("--attempts", type=int, nargs="+")
    parser.add_argument(
        "--keep", type=Path, help="a folder for the stores, which are then written once"
    )
    parser.add_argument(
        "--verb", nargs="+", default=["report"], help="such as: export, or export --format jsonl"
    )
    told = parser.parse_args()
    told.studies = told.studies or (["effort"] if told.quick else list(STUDIES))
    told.attempts = told.attempts or [10_000, 100_000] + [1_000_000] * (not told.quick)
    with tempfile.TemporaryDirectory() as name:
        rows, misses = [], []
        for study in told.studies:
            costs = [_measured(study, n, told.keep or Path(name), told.verb) for n in told.attempts]
            rows += [
                (study, f"{n:,}", f"{c.cpu_seconds:.1f}", f"{c.peak_mb:.0f}")
                for n, c in zip(told.attempts, costs, strict=True)
            ]
            rows.append((study, "exponent", *_exponents(told.attempts, costs)))
            what, last = (
                f"{' '.join(told.verb)} of {study}, {told.attempts[-1]:,} attempts",
                costs[-1],
            )
            record("Report", f"CPU, {what}", "s", last.cpu_seconds)
            record("Report", f"peak memory, {what}", "MB", last.peak_mb)
            if len(costs) > 1:
                grown = exponent(told.attempts, [used.cpu_seconds for used in costs])
                record(
                    "Report",
                    f"growth of CPU, {what.replace(', ', f', {told.attempts[-2]:,} to ')}",
                    "exponent",
                    grown,
                )
            misses.append(verdict(f"{study}: CPU", costs[-1].cpu_seconds, SECONDS, " s"))
            misses.append(verdict(f"{study}: peak memory", costs[-1].peak_mb, MEGABYTES, " MB"))
    costs_table = table(rows, ("study", "attempts", "CPU s", "peak MB"))
    print(f"\nponder {' '.join(told.verb)}\n\n{costs_table}\n")
    print("\n".join(misses))


def _measured(study: str, attempts: int, root: Path, verb: list[str]) -> Cost:
    folder = root / f"{study}-{attempts}"
    if not (folder / "written").exists():
        folder.mkdir(parents=True, exist_ok=True)
        # In a process of its own: a child inherits its parent's peak memory.
        write_store(study, attempts, folder)
        (folder / "written").touch()
    used = cost([PONDER, *verb[:1], "study.toml", *verb[1:]], folder)
    print(f"{study}, {attempts:,}: {used.cpu_seconds:.1f} CPU s, {used.peak_mb:.0f} MB", flush=True)
    return used


def _exponents(attempts: list[int], costs: list[Cost]) -> list[str]:
    if len(costs) < 2:
        return ["", ""]
    return [f"{exponent(attempts, column):.2f}" for column in zip(*costs, strict=True)]


if __name__ == "__main__":
    main()
