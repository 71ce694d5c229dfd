"""What each pass of the pocket model's long style is worth, and what the methods of `long2short`
make of its policy.

Reads the attempts of `ponder run long2short` from a store (an argument, or `ponder.db`) and calls
no model. The sum at the end of a pass is graded as if the model had stopped there. Intervals are 95
%, clustered by problem.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from measured import table

from ponder import Study
from ponder.core import Estimate
from ponder.models.pocket.codec import AGAIN
from ponder.models.pocket.execution import number
from ponder.stats.accuracy import accuracy, mean
from ponder.store.store import Store
from ponder.study.cell import Cell

HEADS = (
    "model",
    "steps",
    "attempts",
    "passes",
    "starts with a draft %",
    "first pass %",
    "answer %",
    "gain",
    "again if right %",
    "if wrong %",
)


def ends(thinking: str) -> list[int | None]:
    """The sum at the end of each pass."""
    return [number(one.split()[-4:]) for one in thinking.split(AGAIN)]


def drafted(thinking: str) -> bool:
    """Whether the first step of the first pass shows only the lower two digits."""
    return not any(word[0] in "hk" and word[1:2].isdigit() for word in thinking.split()[7:10])


def shown(estimate: Estimate, sign: str = "") -> str:
    return "{} [{}, {}]".format(
        *(f"{100 * v:{sign}.1f}" for v in (estimate.value, estimate.low, estimate.high))
    )


def measured(model: str, cells: Iterable[Cell], store: Store) -> list[str]:
    """One row: all training seeds of a model at one size."""
    attempts = [done.attempt for cell in cells for done in store.attempts(cell)]
    thoughts = [attempt.completions[-1].thinking for attempt in attempts]
    passes = [ends(thinking) for thinking in thoughts]
    names = list(dict.fromkeys(attempt.problem.id for attempt in attempts))
    cluster = np.array([names.index(attempt.problem.id) for attempt in attempts])
    first = np.array(
        [p[0] == a.problem.gold["sums"][-1] for p, a in zip(passes, attempts, strict=True)]
    )
    last = np.array([bool(attempt.correct) for attempt in attempts])
    more = np.array([len(p) > 1 for p in passes])
    gain = mean(last.astype(float) - first, cluster, least=-1.0)
    again = [shown(accuracy(more[of], cluster[of])) if of.any() else "–" for of in (first, ~first)]
    often = f"{np.mean([len(p) for p in passes]):.2f}"
    starts = shown(accuracy(np.array([drafted(thinking) for thinking in thoughts]), cluster))
    right = [shown(accuracy(of, cluster)) for of in (first, last)]
    return [
        model,
        str(attempts[0].problem.size),
        str(len(attempts)),
        often,
        starts,
        *right,
        shown(gain, "+"),
        *again,
    ]


def rows(study: Study, store: Store) -> Iterable[Sequence[str]]:
    kinds: dict[tuple[str, int], list[Cell]] = {}
    for cell in study.cells:
        if cell.label.base == "long" and store.done(cell):
            kinds.setdefault((cell.label.variant, cell.size), []).append(cell)
    for (model, _), cells in kinds.items():
        yield measured(model, cells, store)


if __name__ == "__main__":
    with Store(Path(sys.argv[1] if len(sys.argv) > 1 else "ponder.db")) as opened:
        print(table(list(rows(Study.load("long2short"), opened)), HEADS))
