"""Made-up traces with scores, and files of them, for tests of scoring and selection."""

from __future__ import annotations

import json
import random
from pathlib import Path

from ponder.traces import Trace
from ponder.traces.selection import Choice, Scored, select

# Words that don't repeat, so that a trace made of them is like no other.
WORDS = [a + b + c for a in "bdfgklmnprst" for b in "aeiou" for c in "bdfgklmnprst"]


def text(seed: int | str, count: int = 80) -> str:
    return " ".join(random.Random(seed).choices(WORDS, k=count))


def scored(name: str, score: float | None, said: str = "", question: str = "", **more) -> Scored:
    """A trace like no other, where nothing else is said."""
    question, said = question or f"{name}: {text(name, 12)}?", said or text(f"{name} thinks")
    return Scored(Trace(question, said, f"so {name}", id=name, **more), score)


def kept(traces, **how) -> list[str]:
    return [one.id for one in select(traces, Choice(**how)).kept]


def edited(said: str, changes: int, seed: int = 0) -> str:
    found, rng = said.split(), random.Random(seed)
    for at in rng.sample(range(len(found)), changes):
        found[at] = f"new{at}"
    return " ".join(found)


def records(count: int = 6) -> list[dict]:
    return [
        {
            "id": f"t{n}",
            "problem": f"Question {n}: {text(n, 10)}?",
            "response": f"<think>{text(n + 50)}\n\n{text(n + 90)}</think>so {n}",
            "labels": [True, n % 2 == 0, n / 10],
            "correct": n % 3 > 0,
            "source": "s1",
        }
        for n in range(count)
    ]


def lines_of(rows) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def read_json(name: str) -> list[dict]:
    return [json.loads(line) for line in Path(name).read_text("utf-8").splitlines()]
