"""What the passes after the first are worth to the pocket model's long style, on problems of the study `long2short`.

The sum at the end of a pass is graded as if the model had stopped there. Intervals are 95 %, clustered by problem.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
from measured import table

from ponder.core import Estimate, Request, seed_from
from ponder.models._batch import Generation, generate_all
from ponder.models.pocket import WEIGHTS, codec_for
from ponder.models.pocket.codec import AGAIN, ANSWER
from ponder.models.pocket.engine import NumpyEngine
from ponder.models.pocket.execution import number
from ponder.stats.accuracy import mean, rate
from ponder.tasks.execution import Execution

TASK, SIZES, PROBLEMS, SAMPLES, SEED = Execution(per_turn=0, dictionary=16), (6, 16), 180, 2, 5
HEADS = ("steps", "passes", "first pass %", "last pass %", "gain", "fixed", "broken", "again if right", "if wrong")


def sums(words: Sequence[str]) -> list[int | None]:
    """The sum at the end of each pass of a reply."""
    thinking = words[: words.index(ANSWER)] if ANSWER in words else words
    return [number(one.split()[-4:]) for one in " ".join(thinking).split(AGAIN)]


def shown(estimate: Estimate, sign: str = "") -> str:
    return "{} [{}, {}]".format(*(f"{100 * v:{sign}.1f}" for v in (estimate.value, estimate.low, estimate.high)))


def measured(size: int) -> list[str]:
    codec = codec_for("execution")
    problems = list(itertools.islice(TASK.problems(size, SEED), PROBLEMS))
    asked = [problem for problem in problems for _ in range(SAMPLES)]
    replies = [
        Generation(codec.prompt_ids(Request.first_turn(TASK, problem)), 1024, 1.0, seed_from("passes", n))
        for n, problem in enumerate(asked)
    ]
    for _ in generate_all(NumpyEngine(WEIGHTS / "execution-long", batch_size=64), replies):
        pass
    passes = [sums(codec.decode(reply.tokens)) for reply in replies]
    true = [problem.gold["sums"][-1] for problem in asked]
    first, last = (np.array([p[n] == t for p, t in zip(passes, true, strict=True)]) for n in (0, -1))
    often, cluster = np.array([len(p) for p in passes]), np.arange(len(asked)) // SAMPLES
    gain = mean(last.astype(float) - first, cluster, least=-1.0)
    counts = [int((~first & last).sum()), int((first & ~last).sum())]
    again = [shown(rate(often[of] > 1, cluster[of])) if of.any() else "" for of in (first, ~first)]
    accuracies = [shown(rate(right, cluster)) for right in (first, last)]
    return [str(size), f"{often.mean():.2f}", *accuracies, shown(gain, "+"), *map(str, counts), *again]


if __name__ == "__main__":
    print(table([measured(size) for size in SIZES], HEADS))
