"""Prints how often Ponder's 95 % intervals contain the truth, in seeded simulations.

    python benchmarks/coverage.py                    # every topic: hours
    python benchmarks/coverage.py effort -r 300      # one topic, fewer replicates

Columns: the scenario, the fraction of intervals with the truth inside (of tests: of rejections),
the mean width, and the replicates. The Monte-Carlo error of a coverage of .95 is .011 at 400
replicates.
"""

from __future__ import annotations

import argparse
from importlib import import_module

TOPICS = (
    "effort",
    "shape",
    "horizon",
    "seeds",
    "compare",
    "adaptive",
    "gate",
    "judged",
    "routing",
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("topics", nargs="*", default=TOPICS)
    parser.add_argument("-r", "--replicates", type=int, default=400)
    parser.add_argument("--seed", type=int, default=16)
    options = parser.parse_args()
    print(f"{'scenario':<96} reached     width      R")
    for topic in options.topics:
        for scenario, reached, width, used in import_module(f"coverage_{topic}").rows(
            options.replicates, options.seed
        ):
            print(f"{scenario:<96} {reached:7.3f} {width:9.3f} {used:6}", flush=True)


if __name__ == "__main__":
    main()
