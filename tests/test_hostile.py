"""Three megabytes of any text are read in linear time.

Each reader gets every shape in a subprocess of limited CPU time, which no load on the machine can
use up. In linear time a reader takes from one to five of its CPU seconds; in quadratic time, the
first quadratic shape takes hours.
"""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Callable

import pytest

from ponder.core import Problem
from ponder.rewards import judge
from ponder.tasks import reading
from ponder.tasks.reading.markup import marked
from ponder.tasks.tents.grid_text import last_grid
from ponder.traces import Trace
from ponder.traces.contamination import EvaluationSet
from ponder.traces.split import sentences

SIZE = 3_000_000
CPU_SECONDS = 300
REPEATED = (
    "<answer>", "</answer>", "<think>", "</think>", "\\boxed{", "\\text{", "[[", "[[1],", "1", "1,", "{", "}", '{"',
    '{"a":', '{"steps":[', "answer is ", "answer to ", "the sum is 1. ", "9 ", "0 1\n", "**", "\\boxed{}", '"', "\0", "\u0315\u0300\u0327", "\ud800", ".", "\n", " ", "\\frac{1",
)  # fmt: skip
LONG = {
    "nested boxes": "\\boxed{" + "{}" * (SIZE // 2),
    "box of brackets": "\\boxed{" + "(" * SIZE + "}",
    "nested texts": "\\boxed{" + "\\text{" * (SIZE // 12) + "}" * (SIZE // 12 + 1),
    "unclosed grids": "[" * 40 + "1," * (SIZE // 2),
    "grid of one digit string": "[[1." + "1" * SIZE,
    "unclosed objects": '{"a":' * 900 + "[" + "1," * (SIZE // 2),
    "dots and quotes": "." * (SIZE // 2) + '"' * (SIZE // 2),
    "blank after answer": "answer" + " " * SIZE + "x",
}
# These count every word or sentence, so ordinary text of megabytes takes them seconds.
QUADRATIC_ONCE = {"dots and quotes": LONG["dots and quotes"]} | {
    c: c * (SIZE // len(c)) for c in (".", "\u0315\u0300")
}


def _judged(text: str) -> None:
    with pytest.raises(ValueError, match="no scores"):
        judge.parse(text, 3)


def _contains(text: str) -> bool:
    return EvaluationSet(
        [Problem("p", 0, ("one two three four five six seven eight nine",))]
    ).contains(Trace(text, "t", ""))


READERS: dict[str, Callable[[str], object]] = {
    "split_thinking": reading.split_thinking,
    "last_grid": last_grid,
    "final": reading.final,
    "final_number": reading.final_number,
    "readings": lambda text: reading.readings(text, "Paris"),
    "read a text": lambda text: reading.read(text, "Paris", "What is the capital of France?"),
    "read a number": lambda text: reading.read(text, "3", "How many apples are 2 and 1?"),
    "read yes or no": lambda text: reading.read(text, "yes", "Is it red?"),
    "read a list": lambda text: reading.read(text, "a, b", "Which letters?"),
    "read an alternative": lambda text: reading.read(text, "tea", "Which is hotter, tea or ice?"),
    "marked": marked,
    "choice": lambda text: reading.choice(text, dict.fromkeys("ABCD", "x")),
    "same": lambda text: reading.same(text, "1"),
    "differs": lambda text: reading.differs(text, "1"),
    "judge": _judged,
    "sentences": sentences,
    "contamination": _contains,
}


@pytest.mark.parametrize("reader", READERS)
def test_megabytes_take_linear_time(reader: str) -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))

    ended = subprocess.run(
        [sys.executable, __file__, reader], preexec_fn=limit, stderr=subprocess.PIPE, check=False
    )
    assert ended.returncode == 0, ended.stderr.decode()  # ends with the shape that took too long


if __name__ == "__main__":
    read = READERS[sys.argv[1]]
    shapes = {c: c * (SIZE // len(c)) for c in REPEATED} | LONG
    for name, shape in (QUADRATIC_ONCE if read in (sentences, _contains) else shapes).items():
        sys.stderr.write(f"{name!a}\n")
        read(shape)
