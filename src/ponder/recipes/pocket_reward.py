"""Trains the pocket rewards that ship with Ponder, on one CPU: `ponder prepare pocket_reward`.

First a language model learns which word follows, in right traces and in traces with errors; words
that don't follow are read but not learned. Small and medium start from random weights, large starts
from the pocket model for execution. Then the language model and two heads are trained as any
process reward (`training.reward`), with exact labels as targets.
"""

from __future__ import annotations

import json
import random
import shutil
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from ponder.core import Estimate, Progress, Request, Steps, fingerprint, seed_from
from ponder.core.scoring import scored
from ponder.models.pocket import CODECS, WEIGHTS
from ponder.models.pocket.codec import ANSWER, EOS, Example
from ponder.models.pocket.execution import Curriculum, digits
from ponder.recipes.faults import STYLES, trace, traces
from ponder.recipes.network import Shape
from ponder.recipes.pocket import PLAIN, Batch, Data, Pretraining, Recipe, words_in
from ponder.rewards.pocket import TASK, Pocket
from ponder.stats.process import first_error, first_wrong, step_errors
from ponder.training.reward import RewardSettings, train

_GROWN = Curriculum(grown=0, tail_steps=48)
_NEW = replace(PLAIN, curriculum=replace(_GROWN, grown=400), steps=1200, patience=0)
BACKBONES = {
    "small": replace(
        _NEW, shape=Shape(width=16, layers=4, heads=1, kv_heads=1, head_width=16, inner=48)
    ),
    "medium": replace(
        _NEW, shape=Shape(width=32, layers=4, heads=2, kv_heads=2, head_width=16, inner=96)
    ),
    "large": replace(PLAIN, curriculum=_GROWN, steps=500, patience=0, vector_rate=3e-3, decay=0.6),
}


class FaultyData(Data):
    """Batches in which half of the traces are right and half contain errors."""

    def batch(self, step: int) -> Batch:
        rng = random.Random(seed_from("pocket reward", self.recipe.seed, step))
        examples: list[Example] = []
        while words_in(examples) < self.recipe.tokens:
            example: Example | None = None
            if rng.random() < 0.5:
                example = self.codec.practise(rng, step, self.recipe.curriculum, "plain")
            else:
                request = self.codec.draw(rng, step, self.recipe.curriculum)
                if not self.codec.held_out(request.problem):
                    style = rng.choice(STYLES)
                    often = rng.random() < 0.5
                    example = example_of(trace(request, style, rng, often=often))
            if example:
                examples.append(example)
        return self.packed(examples)


def example_of(trace: Steps) -> Example:
    """Return a trace with errors as an example: the words that don't follow are not learned."""
    request = Request.first_turn(TASK, trace.facts["problem"])
    *false_in_steps, false_in_answer = trace.facts["false"]
    words = list[str]()
    not_learned = set[int]()
    for step, false in zip(trace.thinking, false_in_steps, strict=True):
        not_learned |= {len(words) + position for position in false}
        words += step.split()
    words.append(ANSWER)
    not_learned |= {len(words) + position for position in false_in_answer}
    words += digits(TASK.parse(request.problem, trace.answer[0]) or 0)
    words.append(EOS)
    return Example(CODECS["execution"].prompt(request), words, frozenset(not_learned))


def backbone(recipe: Recipe, folder: Path, start: Path | None) -> Iterator[Progress]:
    """Train a language model on right traces and traces with errors."""
    torch.set_num_threads(1)
    training = Pretraining(recipe, start)
    data = FaultyData(recipe)
    losses = list[float]()
    while training.step < recipe.steps:
        losses.append(training.learn(data.batch(training.step)))
        if training.step % 50 == 0:
            loss = sum(losses[-50:]) / 50
            yield {"step": training.step, "of": recipe.steps, "loss": round(loss, 4)}
    training.model.save(folder)


HEADS = RewardSettings(
    targets="labels",
    loss="cross-entropy",
    rate=3e-4,
    head_rate=0.03,
    epochs=1,
    batch=16,
    micro_tokens=4096,
)
TRACES = 2400  # that the reward is trained on
TESTED = 1000  # held-out traces, about two thirds of them with errors


def make(
    folder: Path,
    seed: int = 1,  # of the training
) -> Iterator[Progress]:
    """Train the pocket rewards small, medium and large, each in its own folder; measure them."""
    for size, unseeded in BACKBONES.items():
        recipe = replace(unseeded, seed=seed)
        heads = replace(HEADS, seed=seed)
        reward_folder = folder / size
        backbone_folder = reward_folder / "backbone"
        began = time.process_time()
        if (reward_folder / "card.json").is_file():
            continue
        start = None
        origin = "nothing"
        if size == "large":
            start = WEIGHTS / "execution"
            origin = f"the pocket model {fingerprint(start / 'model.safetensors')[:12]}"
        for progress in backbone(recipe, backbone_folder, start):
            yield {"reward": size, **progress}
        training_traces = list(islice(traces(seed), TRACES))
        for progress in train(
            Pocket(id=str(backbone_folder)), training_traces, reward_folder, heads
        ):
            yield {"reward": size, **progress}
        shutil.rmtree(backbone_folder)
        (reward_folder / "made.json").unlink()  # the card has it all
        _halve(reward_folder)
        training = {
            "from": origin,
            "seed": seed,
            "cpu_seconds": round(time.process_time() - began),
            "threads": 1,
            "backbone": asdict(recipe),
            "heads": asdict(heads),
        }
        card = {
            "name": "pocket reward",
            "size": size,
            "trained": training,
            **measured(reward_folder, size),
        }
        (reward_folder / "card.json").write_text(json.dumps(card, indent=1) + "\n", "utf-8")
        yield {"reward": size, "first error F1": card["first_error"]["f1"]["value"]}


def _halve(folder: Path) -> None:
    """Convert the weights to float16, as the pocket models ship."""
    path = folder / "model.safetensors"
    halves = {name: weight.half() for name, weight in load_file(path).items()}
    save_file(halves, path, {"format": "pt"})


def measured(folder: Path, size: Any, n: int = TESTED) -> dict[str, Any]:
    """Measure for the card how well a reward finds errors in traces of held-out problems."""
    reward = Pocket(size=size, id=str(folder))
    test_traces = list(islice(traces(0, test=True), n))
    scores = [list(rated.steps) for rated in scored(reward, test_traces)]
    labels: list[list[bool]] = [trace.facts["labels"] for trace in test_traces]
    first = first_error(scores, [first_wrong(row) for row in labels])
    faulty = [n for n, row in enumerate(labels) if not all(row)]
    faulty_scores = [scores[n] for n in faulty]
    faulty_labels = [labels[n] for n in faulty]
    steps = step_errors(faulty_scores, faulty_labels)
    return {
        "parameters": reward.parameters(),
        "test": {
            "traces": f"{n} of held-out problems, {len(faulty)} of them with errors"
            " (`ponder.recipes.faults`)",
            "interval": "95 %, bootstrap over problems",
            "threshold": "chosen on one half of the problems, tested on the other",
        },
        "first_error": _rounded(first, "f1", "on_wrong", "on_right", "position", "gain"),
        "steps": _rounded(steps, "prm_score", "f1", "negative", "position", "gain"),
    }


def _rounded(measures: Any, *names: str) -> dict[str, dict[str, float]]:
    """Return the estimates of these names, with four decimals."""
    rounded = {}
    for name in names:
        estimate: Estimate = getattr(measures, name)
        rounded[name] = {
            "value": round(estimate.value, 4),
            "low": round(estimate.low, 4),
            "high": round(estimate.high, 4),
        }
    return rounded
