"""Measures a pocket model on held-out problems and writes `card.json` next to its weights.

The card gives accuracy, length of thinking, and soundness by size. A step is sound if it follows
from the words before it by one rule. `ponder prepare pocket` measures each model that it has
trained.
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

from ponder.core import Message, Problem, Progress, Request, Task
from ponder.core.capabilities import grade_turns
from ponder.models._batch import Generation, generate_all
from ponder.models.pocket import codec_for, read_card
from ponder.models.pocket.codec import ANSWER, EOS, EvalSet, PocketCodec, Style
from ponder.models.pocket.engine import NumpyEngine
from ponder.stats.accuracy import accuracy as estimated

BUDGET = 1536  # thinking and answer; the longest trace of 1,000 at 10×10 Tents has 1,400 words


@dataclass
class EvalRun:
    """A problem, and the replies to its turns so far."""

    problem: Problem
    requests: list[Request] = field(default_factory=list)
    replies: list[list[str]] = field(default_factory=list)  # words of each reply
    texts: list[str] = field(default_factory=list)  # each reply's answer, as the task grades it

    def thinking(self) -> list[list[str]]:
        """Return the thinking of each reply, in words."""
        thinking = []
        for words in self.replies:
            end = words.index(ANSWER) if ANSWER in words else len(words)
            thinking.append(words[:end])
        return thinking

    def next_request(self, task: Task) -> Request:
        """Return the request of the next turn, with the turns so far as its history."""
        messages = list(self.problem.opening())
        for question, text in zip(self.problem.turns, self.texts, strict=False):
            messages += [Message("user", question), Message("assistant", text)]
        messages.append(Message("user", self.problem.turns[len(self.texts)]))
        return Request(task, self.problem, tuple(messages), 0)


def run(
    folder: Path, codec: PocketCodec, problems: EvalSet, n: int, seed: int = 0, budget: int = BUDGET
) -> list[EvalRun]:
    """Ask n problems turn by turn, greedily, in the engine that users run."""
    runs = [EvalRun(problem) for problem in islice(codec.tests(problems, seed), n)]
    for _ in runs[0].problem.turns:
        requests = [run.next_request(problems.task) for run in runs]
        prompts = [codec.encode(codec.prompt(request)) for request in requests]
        replies = _replies(folder, prompts, budget)
        for run, request, tokens in zip(runs, requests, replies, strict=True):
            _, text = codec.read(request, tokens)
            run.requests.append(request)
            run.replies.append(codec.decode(tokens))
            run.texts.append(text)
    return runs


def _replies(folder: Path, prompts: Sequence[list[int]], budget: int) -> list[list[int]]:
    generations = [Generation(prompt, budget) for prompt in prompts]
    for _ in generate_all(NumpyEngine(folder, batch_size=32), generations):
        pass
    return [generation.tokens for generation in generations]


def _is_right(problems: EvalSet, run: EvalRun) -> bool:
    return grade_turns(problems.task, run.problem, run.texts).correct


def accuracy(folder: Path, codec: PocketCodec, problems: EvalSet, n: int) -> float:
    """Return the accuracy during training, on other problems than the card's."""
    runs = run(folder, codec, problems, n, seed=1, budget=problems.glance)
    right = sum(_is_right(problems, run) for run in runs)
    return round(right / len(runs), 3)


def measured(
    folder: Path, codec: PocketCodec, style: Style, problems: EvalSet, n: int
) -> dict[str, Any]:
    """Return the card's row for one set of problems; tokens are summed over a problem's turns."""
    runs = run(folder, codec, problems, n)
    correct = np.array([_is_right(problems, run) for run in runs])
    thinking_tokens = np.array([_words_in(run.thinking()) for run in runs])
    reply_tokens = np.array([_words_in(run.replies) for run in runs])
    answer_tokens = reply_tokens - thinking_tokens
    sound = np.array([_is_sound(codec, style, run) for run in runs])
    as_taught = np.array([_is_as_taught(codec, style, run) for run in runs])
    unfinished = np.array([_is_unfinished(run) for run in runs])
    estimate = estimated(correct, np.arange(len(runs)))
    row = {
        "label": problems.label,
        "size": problems.size,
        "problems": len(runs),
        "accuracy": round(estimate.value, 4),
        "low": round(estimate.low, 4),
        "high": round(estimate.high, 4),
        "thinking_tokens": round(float(thinking_tokens.mean()), 1),
        "thinking_tokens_if_right": None,
        "answer_tokens": round(float(answer_tokens.mean()), 1),
        "sound_if_right": None,
        "as_taught": round(float(as_taught.mean()), 4),
        "unfinished": round(float(unfinished.mean()), 4),
    }
    if correct.any():
        row["thinking_tokens_if_right"] = round(float(thinking_tokens[correct].mean()), 1)
        row["sound_if_right"] = round(float(sound[correct].mean()), 4)
    return row


def _words_in(turns: Sequence[Sequence[str]]) -> int:
    return sum(len(words) for words in turns)


def _is_unfinished(run: EvalRun) -> bool:
    """Return whether a reply reached the token limit."""
    return any(words[-1] != EOS for words in run.replies)


def _is_sound(codec: PocketCodec, style: Style, run: EvalRun) -> bool:
    """Return whether all thinking is sound."""
    turns = zip(run.requests, run.thinking(), strict=True)
    return all(codec.unsound(request, words, style) is None for request, words in turns)


def _is_as_taught(codec: PocketCodec, style: Style, run: EvalRun) -> bool:
    """Return whether all replies are exactly those of the training examples."""
    for request, words in zip(run.requests, run.replies, strict=True):
        example = codec.lesson(request, style)
        if example is None or example.reply != words:
            return False
    return True


def write_card(folder: Path, start: Path | None = None, n: int = 200) -> Iterator[Progress]:
    """Measure a trained model on its evaluation sets and write its card; yield each row."""
    recipe = json.loads((folder / "recipe.json").read_text("utf-8"))
    codec = codec_for(recipe["task"])
    rows = []
    # On longer problems it is wrong, in many tokens.
    longest = recipe["curriculum"].get("tail_steps", float("inf"))
    for problems in codec.exams:
        if problems.size <= longest:
            rows.append(measured(folder, codec, recipe["style"], problems, n))
            yield rows[-1]
    _write(folder, _card(folder, codec, recipe, start, rows))


def add_seeds(folder: Path, others: Sequence[Path]) -> None:
    """Add the results of other training seeds of the same recipe to a model's card."""
    card = read_card(folder)
    card["seeds"] = card["seeds"][:1]
    for other_folder in others:
        card["seeds"].append(read_card(other_folder)["seeds"][0])
    _write(folder, card)


def _write(folder: Path, card: dict[str, Any]) -> None:
    (folder / "card.json").write_text(
        json.dumps(card, indent=1, ensure_ascii=False) + "\n", "utf-8"
    )


def _card(
    folder: Path,
    codec: PocketCodec,
    recipe: dict[str, Any],
    start: Path | None,
    rows: list[dict[str, Any]],
) -> dict[str, Any]:
    """Return a model's card: its training, and its measurements in `rows`."""
    log = [json.loads(line) for line in (folder / "log.jsonl").read_text("utf-8").splitlines()]
    weights = folder / "model.safetensors"
    digest = hashlib.sha256(weights.read_bytes()).hexdigest()
    training = {
        "seed": recipe["seed"],
        "tries": 1 + sum("restarted" in progress for progress in log),
        "tokens": log[-1]["tokens"],
        "cpu_seconds": log[-1]["cpu_seconds"],
    }
    origin = f"the weights with the digest {read_card(start)['digest']}" if start else "nothing"
    accuracies = {row["label"]: row["accuracy"] for row in rows}
    return {
        "name": "pocket",
        "task": codec.task,
        "style": recipe["style"],
        "digest": digest,
        "parameters": sum(tensor.size for tensor in load_file(weights).values()),
        "recipe": recipe,
        "trained": {"from": f"{origin}, on {codec.taught}", **training, "threads": 1},
        "test": {
            "problems": "held out of training by their ids",
            "decoding": f"greedy, at most {BUDGET} tokens, in float32 from the float16 weights",
            "interval": "95 %, Wilson",
            "by_size": rows,
        },
        # The first seed is that of these weights; it was chosen before the others were trained.
        "seeds": [{**training, "digest": digest, "accuracy": accuracies}],
        "limits": [*codec.limits, "It thinks in its own words. It knows nothing else."],
    }
