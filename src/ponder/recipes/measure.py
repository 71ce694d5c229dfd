"""Measures a pocket model on held-out problems and writes `card.json` beside its weights.

The card gives accuracy, length of thinking, and soundness by size. A step is sound if it follows from the words before
it by one rule. `ponder prepare pocket` measures each model that it has trained.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from ponder.core import Message, Problem, Progress, Request
from ponder.core.capabilities import grade_turns
from ponder.models._batch import Generation, generate_all
from ponder.models.pocket import codec_for, read_card
from ponder.models.pocket.codec import ANSWER, EOS, EvalSet, PocketCodec, Style
from ponder.models.pocket.engine import NumpyEngine
from ponder.stats.accuracy import accuracy as estimated

BUDGET = 1536  # thinking and answer; the longest trace of 1,000 at 10×10 Tents has 1,400 words


@dataclass
class EvalRun:
    """One problem, and the replies to its turns so far."""

    problem: Problem
    requests: list[Request] = field(default_factory=list)
    said: list[list[str]] = field(default_factory=list)  # words of each reply
    texts: list[str] = field(default_factory=list)  # the answer of each reply, as the task grades it


def run(
    folder: Path, codec: PocketCodec, problems: EvalSet, n: int, seed: int = 0, budget: int = BUDGET
) -> list[EvalRun]:
    """Ask n problems turn by turn, greedily, in the engine that users run."""
    runs = [EvalRun(problem) for problem in islice(codec.tests(problems, seed), n)]
    for turn in range(len(runs[0].problem.turns)):
        for r in runs:
            turns = zip(r.problem.turns, r.texts, strict=False)
            past = [m for asked, text in turns for m in (Message("user", asked), Message("assistant", text))]
            messages = (*r.problem.opening(), *past, Message("user", r.problem.turns[turn]))
            r.requests.append(Request(problems.task, r.problem, messages, 0))
        prompts = [codec.encode(codec.prompt(r.requests[-1])) for r in runs]
        for r, tokens in zip(runs, _replies(folder, prompts, budget), strict=True):
            r.said.append(codec.decode(tokens))
            r.texts.append(codec.read(r.requests[-1], tokens)[1])
    return runs


def _replies(folder: Path, prompts: Sequence[list[int]], budget: int) -> list[list[int]]:
    generations = [Generation(prompt, budget) for prompt in prompts]
    for _ in generate_all(NumpyEngine(folder, batch_size=32), generations):
        pass
    return [generation.tokens for generation in generations]


def _right(problems: EvalSet, run: EvalRun) -> bool:
    return grade_turns(problems.task, run.problem, run.texts).correct


def accuracy(folder: Path, codec: PocketCodec, problems: EvalSet, n: int) -> float:
    """Accuracy during training, on other problems than the card's."""
    runs = run(folder, codec, problems, n, seed=1, budget=problems.glance)
    return round(sum(_right(problems, r) for r in runs) / len(runs), 3)


def measured(folder: Path, codec: PocketCodec, style: Style, problems: EvalSet, n: int) -> dict[str, Any]:
    """The card's row for one set of problems; tokens are summed over the turns of a problem."""
    runs = run(folder, codec, problems, n)
    correct = np.array([_right(problems, r) for r in runs])
    thinking = [[words[: words.index(ANSWER)] if ANSWER in words else words for words in r.said] for r in runs]
    lengths = np.array([sum(map(len, turns)) for turns in thinking])
    answers = np.array([sum(map(len, r.said)) for r in runs]) - lengths
    sound, exact = [], []
    for r, turns in zip(runs, thinking, strict=True):
        sound.append(
            all(codec.unsound(request, words, style) is None for request, words in zip(r.requests, turns, strict=True))
        )
        examples = [codec.lesson(request, style) for request in r.requests]
        exact.append(all(e is not None and e.said == said for e, said in zip(examples, r.said, strict=True)))
    estimate = estimated(correct, np.arange(len(runs)))
    return {
        "label": problems.label,
        "size": problems.size,
        "problems": len(runs),
        "accuracy": round(estimate.value, 4),
        "low": round(estimate.low, 4),
        "high": round(estimate.high, 4),
        "thinking_tokens": round(float(lengths.mean()), 1),
        "thinking_tokens_if_right": round(float(lengths[correct].mean()), 1) if correct.any() else None,
        "answer_tokens": round(float(answers.mean()), 1),
        "sound_if_right": round(float(np.array(sound)[correct].mean()), 4) if correct.any() else None,
        "as_taught": round(float(np.mean(exact)), 4),
        "unfinished": round(float(np.mean([any(words[-1] != EOS for words in r.said) for r in runs])), 4),
    }


def write_card(folder: Path, start: Path | None = None, n: int = 200) -> Iterator[Progress]:
    """Measure a trained model on its evaluation sets and write its card; yields each row."""
    recipe = json.loads((folder / "recipe.json").read_text("utf-8"))
    codec = codec_for(recipe["task"])
    rows = []
    longest = recipe["curriculum"].get("tail_steps", float("inf"))  # on longer problems it is wrong, in many tokens
    for problems in (problems for problems in codec.exams if problems.size <= longest):
        rows.append(measured(folder, codec, recipe["style"], problems, n))
        yield rows[-1]
    _write(folder, _card(folder, codec, recipe, start, rows))


def add_seeds(folder: Path, others: Sequence[Path]) -> None:
    """Add the results of other training seeds of the same recipe to a model's card."""
    card = read_card(folder)
    card["seeds"] = [*card["seeds"][:1], *(read_card(other)["seeds"][0] for other in others)]
    _write(folder, card)


def _write(folder: Path, card: dict[str, Any]) -> None:
    (folder / "card.json").write_text(json.dumps(card, indent=1, ensure_ascii=False) + "\n", "utf-8")


def _card(
    folder: Path, codec: PocketCodec, recipe: dict[str, Any], start: Path | None, rows: list[dict[str, Any]]
) -> dict[str, Any]:
    log = [json.loads(line) for line in (folder / "log.jsonl").read_text("utf-8").splitlines()]
    weights = folder / "model.safetensors"
    digest = hashlib.sha256(weights.read_bytes()).hexdigest()
    trained = {
        "seed": recipe["seed"],
        "tries": 1 + sum("restarted" in progress for progress in log),
        "tokens": log[-1]["tokens"],
        "cpu_seconds": log[-1]["cpu_seconds"],
    }
    origin = f"the weights with the digest {read_card(start)['digest']}" if start else "nothing"
    return {
        "name": "pocket",
        "task": codec.task,
        "style": recipe["style"],
        "digest": digest,
        "parameters": sum(tensor.size for tensor in load_file(weights).values()),
        "recipe": recipe,
        "trained": {"from": f"{origin}, on {codec.taught}", **trained, "threads": 1},
        "test": {
            "problems": "held out of training by their ids",
            "decoding": f"greedy, at most {BUDGET} tokens, in float32 from the float16 weights",
            "interval": "95 %, Wilson",
            "by_size": rows,
        },
        # The first seed is that of these weights; it was chosen before the others were trained.
        "seeds": [{**trained, "digest": digest, "accuracy": {row["label"]: row["accuracy"] for row in rows}}],
        "limits": [*codec.limits, "It thinks in its own words. It knows nothing else."],
    }
