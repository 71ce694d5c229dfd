"""Scores pocket traces in batches and one at a time: CPU time, and memory that doesn't grow with
the file.

Each measurement is a process that reads traces from a file and scores them with the pocket reward,
on one thread. The time of a process with a single trace is subtracted. The two cases differ only in
the number of traces per batch.
"""

from __future__ import annotations

import itertools
import sys
import tempfile
from pathlib import Path

import msgspec
from measured import Cost, cost, table, verdict

# traces in batches, in batches for comparing memory, and one at a time
MANY, FEW, ALONE = 4_000, 1_000, 600
SCORE = """
import itertools, sys
from pathlib import Path
from ponder.core.scoring import scores_by_index
from ponder.rewards.pocket import Pocket
from ponder.traces import read, steps
size, number, batch = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
split = (steps(trace, "task") for trace in itertools.islice(read(Path("traces.jsonl")), number))
reward = Pocket(size=size)
chunks = iter(lambda: list(itertools.islice(split, batch)), [])
scored = 0
for chunk in chunks:
    for _, scores in scores_by_index(reward, chunk):
        scored += scores.total is not None
assert scored == number
"""


def write(path: Path) -> None:
    from ponder.recipes.faults import traces

    with path.open("wb") as file:
        for n, trace in enumerate(itertools.islice(traces(7, test=True), MANY)):
            facts = {
                name: trace.facts[name] for name in ("codec", "task", "problem", "style", "correct")
            }
            texts = {"id": str(n), "question": trace.question, "thinking": " ".join(trace.thinking)}
            file.write(msgspec.json.encode({**texts, "answer": trace.answer[0], **facts}) + b"\n")


def main() -> None:
    rows, ratios, growth = [], {}, {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder / "traces.jsonl")

        def took(size: str, number: int, batch: int) -> Cost:
            return cost(
                [sys.executable, "-c", SCORE, size, str(number), str(batch)],
                folder,
                OMP_NUM_THREADS="1",
            )

        for size in ("small", "medium", "large"):
            start = took(size, 1, 1).cpu_seconds
            many, few, alone = took(size, MANY, 1024), took(size, FEW, 1024), took(size, ALONE, 1)
            each, each_alone = (
                (many.cpu_seconds - start) / MANY,
                (alone.cpu_seconds - start) / ALONE,
            )
            ratios[size], growth[size] = each_alone / each, many.peak_mb / few.peak_mb
            cells = [f"{1 / each:,.0f}", f"{1 / each_alone:,.0f}", f"{ratios[size]:.1f}×"]
            rows.append([size, *cells, f"{few.peak_mb:.0f}", f"{many.peak_mb:.0f}"])
    heads = ["", "traces/CPU s", "one at a time", "ratio", f"MB, {FEW:,}", f"MB, {MANY:,}"]
    print(table(rows, heads))
    for size, ratio in ratios.items():
        print(
            verdict(f"{size}: speed one at a time as a fraction of that in batches", 1 / ratio, 0.4)
        )
        print(
            verdict(
                f"{size}: peak memory of {MANY:,} traces as a fraction of that of {FEW:,}",
                growth[size],
                1.1,
            )
        )


if __name__ == "__main__":
    main()
