"""Compares the client's CPU time per call in long conversations with that of as many single turns.

Task, server and number of calls are the same. A conversation sends its whole history with every
call, and each turn is stored as it ends, so that a killed run loses none. Both include the CPU time
of the start.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from measured import PONDER, Cost, cost, table, verdict
from run_loop import look, serving

TURNS = 180
STUDY = """
problems = {problems}
[[task]]
name = "execution"
size = {steps}
[[model]]
name = "endpoint"
id = "served"
url = "{url}"
concurrency = 16
"""


def measure(server: str, problems: int, steps: int) -> Cost:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "study.toml").write_text(
            STUDY.format(problems=problems, steps=steps, url=f"{server}/v1")
        )
        used = cost(
            [PONDER, "run", "study.toml"], folder, lambda pid: look(server, f"watch?pid={pid}")
        )
        asked = look(server, "state")["requests"]
        assert asked == problems * steps, f"{asked} calls, not {problems * steps}"
    return used


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="30 rollouts instead of 100")
    rollouts = 30 if parser.parse_args().quick else 100
    calls = rollouts * TURNS
    with serving(0.05) as server:
        single, many = measure(server, calls, 1), measure(server, rollouts, TURNS)
        fifth = measure(server, rollouts // 5, TURNS)
    rows = [
        (name, f"{n:,}", f"{1000 * used.cpu_seconds / n:.2f}", f"{used.peak_mb:.0f}")
        for name, n, used in (
            ("single turns", calls, single),
            (f"{rollouts} rollouts of {TURNS} turns", calls, many),
            (f"{rollouts // 5} rollouts of {TURNS} turns", calls // 5, fifth),
        )
    ]
    print(table(rows, ("asked as", "calls", "CPU ms per call", "peak MB")))
    print()
    ratio = many.cpu_seconds / single.cpu_seconds
    print(verdict("CPU per call in a conversation, relative to a single turn", ratio, 1.3, "×"))
    print(
        verdict(
            "additional memory of five times as many rollouts",
            many.peak_mb - fifth.peak_mb,
            10,
            " MB",
        )
    )


if __name__ == "__main__":
    main()
