"""How often a pocket model is right on held-out problems, how long it thinks, and whether its steps are sound.

It goes into `card.json` beside the weights. A step is sound if it follows from what was said before by one rule.
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

from ponder.core import Message, Problem, Request
from ponder.models._batch import Generation, generate_all
from ponder.models.pocket import codec_for, read_card
from ponder.models.pocket.codec import ANSWER, EOS, EvalSet, PocketCodec, Style
from ponder.models.pocket.engine import NumpyEngine
from ponder.stats.accuracy import accuracy as estimated

BUDGET = 1536  # thinking and answer; the longest trace of 1,000 at 10×10 Tents has 1,400 words


@dataclass
class EvalRun:
    """One problem, and what was said to it so far."""

    problem: Problem
    requests: list[Request] = field(default_factory=list)
    said: list[list[str]] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)


def sit(
    folder: Path, language: PocketCodec, exam: EvalSet, n: int, seed: int = 0, budget: int = BUDGET
) -> list[EvalRun]:
    """Ask so many problems turn by turn: the likeliest words, in the engine that users run it in."""
    sittings = [EvalRun(problem) for problem in islice(language.tests(exam, seed), n)]
    for turn in range(len(sittings[0].problem.turns)):
        for s in sittings:
            turns = zip(s.problem.turns, s.texts, strict=False)
            past = [m for asked, text in turns for m in (Message("user", asked), Message("assistant", text))]
            messages = (*s.problem.opening(), *past, Message("user", s.problem.turns[turn]))
            s.requests.append(Request(exam.task, s.problem, messages, 0))
        prompts = [language.encode(language.prompt(s.requests[-1])) for s in sittings]
        for s, tokens in zip(sittings, written(folder, prompts, budget), strict=True):
            s.said.append(language.decode(tokens))
            s.texts.append(language.read(s.requests[-1], tokens)[1])
    return sittings


def written(folder: Path, prompts: Sequence[list[int]], budget: int) -> list[list[int]]:
    generations = [Generation(prompt, budget) for prompt in prompts]
    for _ in generate_all(NumpyEngine(folder, batch_size=32), generations):
        pass
    return [generation.tokens for generation in generations]


def right(exam: EvalSet, sitting: EvalRun) -> bool:
    return exam.task.grade_turns(sitting.problem, sitting.texts).correct


def accuracy(folder: Path, language: PocketCodec, exam: EvalSet, n: int) -> float:
    """A quick look while training, at other problems than the card's."""
    sittings = sit(folder, language, exam, n, seed=1, budget=exam.glance)
    return round(sum(right(exam, s) for s in sittings) / len(sittings), 3)


def measured(folder: Path, language: PocketCodec, style: Style, exam: EvalSet, n: int) -> dict[str, Any]:
    """Everything that the card says of one kind of problem; tokens are those of all turns of a problem."""
    sittings = sit(folder, language, exam, n)
    correct = np.array([right(exam, s) for s in sittings])
    thinking = [[words[: words.index(ANSWER)] if ANSWER in words else words for words in s.said] for s in sittings]
    lengths = np.array([sum(map(len, turns)) for turns in thinking])
    answers = np.array([sum(map(len, s.said)) for s in sittings]) - lengths
    sound, exact = [], []
    for s, turns in zip(sittings, thinking, strict=True):
        pairs = list(zip(s.requests, turns, s.said, strict=True))
        sound.append(all(language.unsound(request, words, style) is None for request, words, _ in pairs))
        lessons = [language.lesson(request, style) for request, _, _ in pairs]
        exact.append(all(lesson and lesson.said == said for lesson, said in zip(lessons, s.said, strict=True)))
    share = estimated(correct, np.arange(len(sittings)))
    return {
        "label": exam.label,
        "size": exam.size,
        "problems": len(sittings),
        "accuracy": round(share.value, 4),
        "low": round(share.low, 4),
        "high": round(share.high, 4),
        "thinking_tokens": round(float(lengths.mean()), 1),
        "thinking_tokens_if_right": round(float(lengths[correct].mean()), 1) if correct.any() else None,
        "answer_tokens": round(float(answers.mean()), 1),
        "sound_if_right": round(float(np.array(sound)[correct].mean()), 4) if correct.any() else None,
        "as_taught": round(float(np.mean(exact)), 4),
        "unfinished": round(float(np.mean([any(words[-1] != EOS for words in s.said) for s in sittings])), 4),
    }


def write_card(folder: Path, start: Path | None = None, n: int = 200) -> Iterator[dict[str, Any]]:
    """Measure a trained model on its exams, and write down what it is and what it can do."""
    recipe = json.loads((folder / "recipe.json").read_text("utf-8"))
    language = codec_for(recipe["task"])
    found = []
    longest = recipe["curriculum"].get("tail_steps", float("inf"))  # beyond what it trained on it fails, and at length
    for exam in (exam for exam in language.exams if exam.size <= longest):
        found.append(measured(folder, language, recipe["style"], exam, n))
        yield found[-1]
    _write(folder, _card(folder, language, recipe, start, found))


def add_seeds(folder: Path, others: Sequence[Path]) -> None:
    """Put down in a model's card how other trainings by the same recipe came out."""
    card = read_card(folder)
    card["seeds"] = [*card["seeds"][:1], *(read_card(other)["seeds"][0] for other in others)]
    _write(folder, card)


def _write(folder: Path, card: dict[str, Any]) -> None:
    (folder / "card.json").write_text(json.dumps(card, indent=1, ensure_ascii=False) + "\n", "utf-8")


def _card(
    folder: Path, language: PocketCodec, recipe: dict[str, Any], start: Path | None, found: list[dict[str, Any]]
) -> dict[str, Any]:
    log = [json.loads(line) for line in (folder / "log.jsonl").read_text("utf-8").splitlines()]
    weights = folder / "model.safetensors"
    digest = hashlib.sha256(weights.read_bytes()).hexdigest()
    trained = {
        "seed": recipe["seed"],
        "tries": 1 + sum("begins" in report for report in log),
        "tokens": log[-1]["tokens"],
        "cpu_seconds": log[-1]["cpu_seconds"],
    }
    origin = f"the weights with the digest {read_card(start)['digest']}" if start else "nothing"
    return {
        "name": "pocket",
        "task": language.task,
        "style": recipe["style"],
        "digest": digest,
        "parameters": sum(tensor.size for tensor in load_file(weights).values()),
        "recipe": recipe,
        "trained": {"from": f"{origin}, on {language.taught}", **trained, "threads": 1},
        "test": {
            "problems": "held out of training by their ids",
            "decoding": f"greedy, at most {BUDGET} tokens, in float32 from the float16 weights",
            "interval": "95 %, Wilson",
            "by_size": found,
        },
        # The first is the one whose weights these are; it was chosen before the others were trained.
        "seeds": [{**trained, "digest": digest, "accuracy": {row["label"]: row["accuracy"] for row in found}}],
        "limits": [*language.limits, "It thinks in its own words. It knows nothing else."],
    }
