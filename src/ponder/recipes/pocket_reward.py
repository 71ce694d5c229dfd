"""Trains the pocket rewards that ship with Ponder: `ponder prepare pocket_reward -o FOLDER`, on one CPU thread.

First a language model learns which word follows, in right traces and in traces with errors; words that don't follow are
read but not learned. Small and medium start from random weights, large starts from the pocket model for execution. Then
the language model and two heads are trained as any process reward (`training.reward`), with exact labels as targets.
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
from ponder.recipes.pocket import PLAIN, Batch, Data, Pretraining, Recipe
from ponder.rewards.pocket import TASK, Pocket
from ponder.stats.process import first_error, first_wrong, step_errors
from ponder.training.reward import RewardSettings, train

_GROWN = Curriculum(grown=0, tail_steps=48)
_NEW = replace(PLAIN, curriculum=replace(_GROWN, grown=400), steps=1200, patience=0)
BACKBONES = {
    "small": replace(_NEW, shape=Shape(width=16, layers=4, heads=1, kv_heads=1, head_width=16, inner=48)),
    "medium": replace(_NEW, shape=Shape(width=32, layers=4, heads=2, kv_heads=2, head_width=16, inner=96)),
    "large": replace(PLAIN, curriculum=_GROWN, steps=500, patience=0, vector_rate=3e-3, decay=0.6),
}


class FaultyData(Data):
    """Batches in which half of the traces are right and half contain errors."""

    def batch(self, step: int) -> Batch:
        rng = random.Random(seed_from("pocket reward", self.recipe.seed, step))
        examples: list[Example] = []
        while sum(len(example.prompt) + len(example.said) for example in examples) < self.recipe.tokens:
            if rng.random() < 0.5:
                right = self.codec.practise(rng, step, self.recipe.curriculum, "plain")
                examples += [right] if right else []
                continue
            request = self.codec.draw(rng, step, self.recipe.curriculum)
            if not self.codec.held_out(request.problem):
                examples.append(example_of(trace(request, rng.choice(STYLES), rng, often=rng.random() < 0.5)))
        return self.packed(examples)


def example_of(said: Steps) -> Example:
    """A trace with errors as an example: the words that don't follow are not learned."""
    request = Request.first_turn(TASK, said.facts["problem"])
    answer = digits(TASK.parse(request.problem, said.answer[0]) or 0)
    words, apart = list[str](), set[int]()
    for step, false in zip([*map(str.split, said.thinking), answer], said.facts["false"], strict=True):
        if step is answer:
            words.append(ANSWER)
        apart |= {len(words) + place for place in false}
        words += step
    return Example(CODECS["execution"].prompt(request), [*words, EOS], frozenset(apart))


def backbone(recipe: Recipe, folder: Path, start: Path | None) -> Iterator[Progress]:
    """Train a language model on right traces and traces with errors."""
    torch.set_num_threads(1)
    training, data, losses = Pretraining(recipe, start), FaultyData(recipe), list[float]()
    while training.step < recipe.steps:
        losses.append(training.learn(data.batch(training.step)))
        if training.step % 50 == 0:
            yield {"step": training.step, "of": recipe.steps, "loss": round(sum(losses[-50:]) / 50, 4)}
    training.model.save(folder)


HEADS = RewardSettings(
    targets="labels", loss="cross-entropy", rate=3e-4, head_rate=0.03, epochs=1, batch=16, micro_tokens=4096
)
TRACES = 2400  # that the reward is trained on
TESTED = 1000  # held-out traces, about two thirds of them with errors


def make(
    folder: Path,
    seed: int = 1,  # of the training
) -> Iterator[Progress]:
    """Train the pocket rewards small, medium and large, each in a folder of its own, and measure them."""
    for size, unseeded in BACKBONES.items():
        recipe, heads = replace(unseeded, seed=seed), replace(HEADS, seed=seed)
        into, began = folder / size, time.process_time()
        if (into / "card.json").is_file():
            continue
        start = WEIGHTS / "execution" if size == "large" else None
        base = into / "backbone"
        for progress in backbone(recipe, base, start):
            yield {"reward": size, **progress}
        for progress in train(Pocket(id=str(base)), list(islice(traces(seed), TRACES)), into, heads):
            yield {"reward": size, **progress}
        shutil.rmtree(base)
        (into / "made.json").unlink()  # the card has it all
        _halve(into)
        seconds = round(time.process_time() - began)
        origin = f"the pocket model {fingerprint(start / 'model.safetensors')[:12]}" if start else "nothing"
        trained = {"from": origin, "seed": seed, "cpu_seconds": seconds, "threads": 1}
        trained |= {"backbone": asdict(recipe), "heads": asdict(heads)}
        card = {"name": "pocket reward", "size": size, "trained": trained, **measured(into, size)}
        (into / "card.json").write_text(json.dumps(card, indent=1) + "\n", "utf-8")
        yield {"reward": size, "first error F1": card["first_error"]["f1"]["value"]}


def _halve(folder: Path) -> None:
    """Convert the weights to float16, as the pocket models ship."""
    path = folder / "model.safetensors"
    save_file({name: weight.half() for name, weight in load_file(path).items()}, path, {"format": "pt"})


def measured(folder: Path, size: Any, n: int = TESTED) -> dict[str, Any]:
    """The card's measurements: how well a reward finds errors in traces of held-out problems."""
    reward = Pocket(size=size, id=str(folder))
    tested = list(islice(traces(0, test=True), n))
    scores = [list(rated.steps) for rated in scored(reward, tested)]
    labels: list[list[bool]] = [trace.facts["labels"] for trace in tested]
    first = first_error(scores, [first_wrong(row) for row in labels])
    faulty = [n for n, row in enumerate(labels) if not all(row)]
    steps = step_errors([scores[n] for n in faulty], [labels[n] for n in faulty])
    return {
        "parameters": reward.parameters(),
        "test": {
            "traces": f"{n} of held-out problems, {len(faulty)} of them with errors (`ponder.recipes.faults`)",
            "interval": "95 %, bootstrap over problems",
            "threshold": "chosen on one half of the problems, tested on the other",
        },
        "first_error": {
            name: _rounded(getattr(first, name)) for name in ("f1", "on_wrong", "on_right", "position", "gain")
        },
        "steps": {name: _rounded(getattr(steps, name)) for name in ("prm_score", "f1", "negative", "position", "gain")},
    }


def _rounded(estimate: Estimate) -> dict[str, float]:
    return {name: round(getattr(estimate, name), 4) for name in ("value", "low", "high")}
