"""What the verbs cost that read a store of 50,000 attempts: a report in seconds, a plan or a listing at once.

And what its first figure costs to draw, beside Vega in vl-convert, from the same chart to the same files.
"""

from __future__ import annotations

import argparse
import sys
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
gives_out = 24
error = 0.03
peak = 48
budget = 4000
[[figure]]
name = "effort"
[[figure]]
name = "accuracy"
"""
CHART = """
import json, pathlib
from ponder.runner.store import Store
from ponder.runner.study import Study
study = Study.load("study.toml")
figure = study.figures[0]
tables = figure.estimate(list(Store(pathlib.Path("ponder.db")).outcomes(study.cells)))
pathlib.Path("chart.json").write_text(json.dumps(figure.draw(tables).to_dict()))
"""
DRAW = {
    "ponder": "from ponder import vega; drawn = vega.svg(json.loads(chart)); picture = vega.png(drawn)",
    "vl-convert": "import vl_convert; drawn = vl_convert.vegalite_to_svg(chart); "
    "picture = vl_convert.vegalite_to_png(chart, scale=2)",
}
WRITTEN = "import json, pathlib; chart = pathlib.Path('chart.json').read_text(); {}; assert drawn and picture"
TRIES = 3  # the median counts
VERBS = (  # with at most so many CPU seconds
    (["report", "study.toml"], 10.0),
    (["plan", "study.toml"], 0.5),
    (["list"], 0.5),
    (["list", "tasks"], 0.5),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--attempts", type=int, default=50_000)
    attempts = parser.parse_args().attempts
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "study.toml").write_text(STUDY.format(problems=attempts // len(SIZES) // 5, sizes=SIZES))
        made = cost([PONDER, "run", "study.toml"], folder)
        again = cost([PONDER, "run", "study.toml"], folder)
        costs = _medians([[cost([PONDER, *verb], folder) for verb, _ in VERBS] for _ in range(TRIES)])
        cost([sys.executable, "-c", CHART], folder)
        draws = [[sys.executable, "-c", WRITTEN.format(code)] for code in DRAW.values()]
        drawn = _medians([[cost(command, folder) for command in draws] for _ in range(TRIES)])
    named = [("run (oracle)", made), ("run, with nothing left", again)]
    named += [(" ".join(verb), used) for (verb, _), used in zip(VERBS, costs, strict=True)]
    rows = [(name, f"{used.cpu_seconds:.2f}", f"{used.peak_mb:.0f}") for name, used in named]
    print(f"\n{attempts:,} attempts in the store\n\n{table(rows, ('verb', 'CPU s', 'peak MB'))}\n")
    for (verb, limit), used in zip(VERBS, costs, strict=True):
        print(verdict(f"ponder {' '.join(verb)}", used.cpu_seconds, limit, " s"))
    rows = [(name, f"{used.cpu_seconds:.2f}", f"{used.peak_mb:.0f}") for name, used in zip(DRAW, drawn, strict=True)]
    print(f"\nits first figure as SVG and PNG\n\n{table(rows, ('drawn by', 'CPU s', 'peak MB'))}\n")
    own, theirs = drawn
    print(verdict("CPU time of a figure beside vl-convert", own.cpu_seconds / theirs.cpu_seconds, 1.0, " times"))
    print(verdict("memory of a figure beside vl-convert", own.peak_mb / theirs.peak_mb, 0.5, " times"))


def _medians(tries: list[list[Cost]]) -> list[Cost]:
    return [Cost(*map(median, zip(*column, strict=True))) for column in zip(*tries, strict=True)]


if __name__ == "__main__":
    main()
