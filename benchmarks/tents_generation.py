"""Compares the CPU time per Tents puzzle of Ponder's generator (Python) with Simon Tatham's
`sgt-tents` (C).

Each size is generated repeatedly for at least 2 seconds of CPU time, or half a second with
`--quick`; the start-up of `sgt-tents` is measured and subtracted. It found no 30×30 puzzle in ten
minutes and needs minutes for one of 25×25, so only ours runs there.
"""

from __future__ import annotations

import argparse
import random
import resource
import shutil
import subprocess
import sys
import time

from measured import exponent, record

from ponder.tasks.tents.deduction import Difficulty
from ponder.tasks.tents.generator import generate

SGT = shutil.which("sgt-tents") or shutil.which("sgt-tents", path="/usr/games")
BOTH = [(8, 8), (10, 10), (15, 15), (20, 20)]
OURS = [(25, 25), (30, 30), (40, 40), (60, 60), (8, 50), (4, 100), (10, 100)]


def ours(width: int, height: int, difficulty: Difficulty, seconds: float) -> float:
    rng, count, start = random.Random(1), 0, time.process_time()
    while (spent := time.process_time() - start) < seconds or count < 3:
        generate(width, height, difficulty, rng)
        count += 1
    return spent / count


def _children_seconds(count: int, parameters: str) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [str(SGT), "--generate", str(count), parameters], check=True, capture_output=True
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def theirs(width: int, height: int, difficulty: Difficulty, seconds: float) -> float:
    parameters = f"{width}x{height}d{difficulty[0]}"
    startup = min(_children_seconds(1, "4x4de") for _ in range(5))
    count = 4
    while (spent := _children_seconds(count, parameters) - startup) < seconds:
        count *= 4
    return spent / count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "seconds", type=float, nargs="?", default=2.0, help="of CPU time, for each size"
    )
    parser.add_argument("--quick", action="store_true", help="half a second")
    told = parser.parse_args()
    seconds = 0.5 if told.quick else told.seconds
    if SGT is None:
        print(
            "sgt-tents is not installed (Debian: sgt-puzzles), so only ours runs", file=sys.stderr
        )
    heading = f"{'size':>8} {'difficulty':>10} {'ours, ms':>10}"
    print(f"{heading} {'sgt-tents, ms':>14} {'ours / theirs':>14}")
    squares: dict[str, list[tuple[int, float]]] = {"easy": [], "tricky": []}
    for size in BOTH + OURS:
        for difficulty in ("easy", "tricky"):
            mine = ours(*size, difficulty, seconds) * 1000
            line = f"{size[0]:>5}×{size[1]:<3}{difficulty:>9} {mine:>10.2f}"
            if SGT is not None and size in BOTH:
                his = theirs(*size, difficulty, seconds) * 1000
                line += f" {his:>14.2f} {mine / his:>14.2f}"
                what = f"CPU per puzzle of {size[0]}×{size[1]}, {difficulty}"
                packages = ["debian/sgt-puzzles"]
                record("Tents", what, "ms", mine, "sgt-tents (C)", his, packages=packages)
            if size[0] == size[1]:
                squares[difficulty].append((size[0] * size[1], mine))
            print(line, flush=True)
    for difficulty, rows in squares.items():
        (smaller, _), (larger, _) = rows[-2:]
        what = f"growth of CPU with cells, {smaller:,} to {larger:,}, {difficulty}"
        record("Tents", what, "exponent", exponent(*zip(*rows, strict=True)))


if __name__ == "__main__":
    main()
