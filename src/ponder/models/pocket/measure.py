"""How often the pocket model is right on held-out puzzles, how long it thinks, and whether its steps are sound.

It goes into `card.json` beside the weights. A step is sound if it follows from what was said before by one rule.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from ponder.core import seed_from
from ponder.models.pocket import vocabulary as v
from ponder.models.pocket.engine import Engine, Row, safetensors
from ponder.models.pocket.recipe import Recipe, held_out
from ponder.models.pocket.traces import trace, unsound
from ponder.stats.accuracy import accuracy as estimated
from ponder.tasks.tents.generator import generate
from ponder.tasks.tents.puzzle import Puzzle

BUDGET = 1536  # thinking and answer; the longest trace of 1,000 at 10×10 has 1,400 words


def puzzles(width: int, height: int, seed: int = 0) -> Iterator[Puzzle]:
    """Different held-out puzzles, until there seem to be no more: of 4×4 there are 240 in all, 28 held out."""
    seen: set[str] = set()
    index = repeats = 0
    while repeats < 1000:
        puzzle = generate(width, height, "easy", random.Random(seed_from("pocket test", width, height, seed, index)))
        index += 1
        repeats += 1
        if held_out(puzzle) and puzzle.id not in seen:
            seen.add(puzzle.id)
            repeats = 0
            yield puzzle


def ask(folder: Path, asked: Sequence[Puzzle], budget: int = BUDGET) -> list[list[str]]:
    """What the model in a folder says of puzzles: the likeliest words, in the engine that users run it in."""
    engine, rows = Engine(folder, rows=32), [Row(v.encode(v.prompt(p)), budget, 0.0, 0, bool) for p in asked]
    waiting = rows[::-1]
    while waiting or engine.busy:
        while waiting and engine.room:
            engine.join(waiting.pop())
        if engine.busy:
            engine.step()
    return [v.decode(row.said) for row in rows]


def right(puzzle: Puzzle, said: list[str]) -> bool:
    if v.ANSWER not in said or said[-1] != v.EOS:
        return False
    text = v.grid_text(puzzle, said[said.index(v.ANSWER) + 1 : -1])
    return text.startswith("[") and puzzle.check(json.loads(text)) is None


def accuracy(folder: Path, side: int, n: int) -> float:
    """A quick look while training; at most so many words as the longest traces have."""
    asked = list(islice(puzzles(side, side, seed=1), n))
    return round(sum(map(right, asked, ask(folder, asked, 12 * side * side))) / len(asked), 3)


def measured(folder: Path, width: int, height: int, n: int) -> dict[str, Any]:
    """Everything that the card says of one shape."""
    asked = list(islice(puzzles(width, height), n))
    said = ask(folder, asked)
    correct = np.array([right(puzzle, words) for puzzle, words in zip(asked, said, strict=True)])
    thinking = [words[: words.index(v.ANSWER)] if v.ANSWER in words else words for words in said]
    lengths = np.array([len(words) for words in thinking])
    sound = np.array([unsound(puzzle, words) is None for puzzle, words in zip(asked, thinking, strict=True)])
    exact = np.array([words == trace(puzzle) for puzzle, words in zip(asked, said, strict=True)])
    share = estimated(correct, np.arange(len(asked)))
    return {
        "shape": f"{width}×{height}",
        "size": width * height,
        "puzzles": len(asked),
        "accuracy": round(share.value, 4),
        "low": round(share.low, 4),
        "high": round(share.high, 4),
        "thinking_tokens": round(float(lengths.mean()), 1),
        "thinking_tokens_if_right": round(float(lengths[correct].mean()), 1) if correct.any() else None,
        "answer_tokens": round(float(np.mean([len(w) - len(t) for w, t in zip(said, thinking, strict=True)])), 1),
        "sound_if_right": round(float(sound[correct].mean()), 4) if correct.any() else None,
        "as_taught": round(float(exact.mean()), 4),
        "unfinished": round(float(np.mean([words[-1] != v.EOS for words in said])), 4),
    }


def write_card(folder: Path, sides: Sequence[int] = (4, 5, 6, 7, 8, 9, 10), n: int = 200) -> Iterator[dict[str, Any]]:
    """Measure a trained model at each size, and write down what it is and what it can do."""
    found = []
    for side in sides:
        found.append(measured(folder, side, side, n))
        yield found[-1]
    text = json.dumps(_card(folder, found), indent=1, ensure_ascii=False)
    (folder / "card.json").write_text(text + "\n", "utf-8")


def _card(folder: Path, found: list[dict[str, Any]]) -> dict[str, Any]:
    *_, last = (json.loads(line) for line in (folder / "log.jsonl").read_text("utf-8").splitlines())
    recipe = Recipe(**json.loads((folder / "recipe.json").read_text("utf-8")))
    return {
        "name": "pocket",
        "digest": hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest(),
        "parameters": sum(tensor.size for tensor in safetensors(folder / "model.safetensors").values()),
        "recipe": vars(recipe),
        "trained": {
            "from": "nothing, on easy Tents puzzles made on the way and the traces of the task's deductions",
            "seed": recipe.seed,
            "tokens": last["tokens"],
            "cpu_seconds": last["cpu_seconds"],
            "threads": 1,
        },
        "test": {
            "puzzles": "made with other seeds; those with seed_from('pocket', id) % 10 == 0, which training leaves out",
            "decoding": f"greedy, at most {BUDGET} tokens, in float32 from the float16 weights",
            "interval": "95 %, Wilson",
            "by_size": found,
        },
        "limits": [
            f"It has words for sides up to {v.SIDE} and plays easy puzzles only: the tricky rules weren't taught.",
            "Sides above 8 are a twentieth of what it trained on, and area above 100 is none of it.",
            "There are 240 easy 4×4 puzzles and it trained on nine tenths: at 16 cells a study asks what it has seen.",
            "One training seed so far.",
            "It thinks in its own words. It knows nothing else.",
        ],
    }
