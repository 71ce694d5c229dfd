"""How the pocket rewards are made: on one CPU thread, from lessons with faults, in minutes each.

First the backbone learns which word follows, in right lessons and in faulty ones, where words that don't follow are
read but not learnt: small and medium from nothing, large from the weights that execute. Then the heads and the backbone
learn as any reward does (`training.reward`), with the exact labels as targets.
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
from ponder.models.pocket import CODECS, WEIGHTS
from ponder.models.pocket.codec import ANSWER, EOS, Example
from ponder.models.pocket.execution import Curriculum, digits
from ponder.recipes.faults import STYLES, trace, traces
from ponder.recipes.network import Shape
from ponder.recipes.pocket import PLAIN, Batch, Data, Recipe, Training
from ponder.rewards.pocket import TASK, Pocket
from ponder.stats.process import first_error, first_wrong, step_errors
from ponder.training.reward import Recipe as Fit
from ponder.training.reward import train

_GROWN = Curriculum(grown=0, tail_steps=48)
_NEW = replace(PLAIN, curriculum=replace(_GROWN, grown=400), steps=1200, patience=0)
BACKBONES = {
    "small": replace(_NEW, shape=Shape(width=16, layers=4, heads=1, kv_heads=1, head_width=16, inner=48)),
    "medium": replace(_NEW, shape=Shape(width=32, layers=4, heads=2, kv_heads=2, head_width=16, inner=96)),
    "large": replace(PLAIN, curriculum=_GROWN, steps=500, patience=0, vector_rate=3e-3, decay=0.6),
}


class Faulty(Data):
    """Batches of which half is right, and half is said by one who errs."""

    def batch(self, step: int) -> Batch:
        rng = random.Random(seed_from("pocket reward", self.recipe.seed, step))
        found: list[Example] = []
        while sum([len(lesson.prompt) + len(lesson.said) for lesson in found]) < self.recipe.tokens:
            if rng.random() < 0.5:
                right = self.language.practise(rng, step, self.recipe.curriculum, "plain")
                found += [right] if right else []
                continue
            request = self.language.draw(rng, step, self.recipe.curriculum)
            if not self.language.held_out(request.problem):
                found.append(lesson(trace(request, rng.choice(STYLES), rng, fond=rng.random() < 0.5)))
        return self._packed(sorted(found, key=lambda lesson: len(lesson.prompt) + len(lesson.said)))


def lesson(said: Steps) -> Example:
    """A faulty trace as something to learn from: all but the words that don't follow."""
    request = Request.first_turn(TASK, said.facts["problem"])
    answer = digits(TASK.parse(request.problem, said.answer[0]) or 0)
    words, apart = list[str](), set[int]()
    for step, false in zip([*map(str.split, said.thinking), answer], said.facts["false"], strict=True):
        if step is answer:
            words.append(ANSWER)
        apart |= {len(words) + place for place in false}
        words += step
    return Example(CODECS["execution"].prompt(request), [*words, EOS], frozenset(apart))


def backbone(how: Recipe, folder: Path, start: Path | None) -> Iterator[Progress]:
    """Teach a model which words follow."""
    torch.set_num_threads(1)
    training, data, losses = Training(how, start), Faulty(how), list[float]()
    while training.step < how.steps:
        losses.append(training.learn(data.batch(training.step)))
        if training.step % 50 == 0:
            yield {"step": training.step, "of": how.steps, "loss": round(sum(losses[-50:]) / 50, 4)}
    training.model.save(folder)


FIT = Fit(targets="labels", loss="cross-entropy", rate=3e-4, head_rate=0.03, epochs=1, batch=16, micro_tokens=4096)
TRACES = 2400  # that the heads are fitted on
TESTED = 1000  # held-out traces, about two thirds of them with faults


def make(folder: Path, seed: int = 1) -> Iterator[Progress]:
    """Make the three rewards, each in a folder of its own, and measure them."""
    for size, how in BACKBONES.items():
        into, began = folder / size, time.process_time()
        if (into / "card.json").is_file():
            continue
        start = WEIGHTS / "execution" if size == "large" else None
        base = into / "backbone"
        for report in backbone(replace(how, seed=seed), base, start):
            yield {"reward": size, **report}
        some = list(islice(traces(seed), TRACES))
        for report in train(Pocket(id=str(base)), some, into, replace(FIT, seed=seed)):
            yield {"reward": size, **report}
        shutil.rmtree(base)
        (into / "made.json").unlink()  # the card says it all
        _halve(into)
        seconds = round(time.process_time() - began)
        origin = f"the pocket model {fingerprint(start / 'model.safetensors')[:12]}" if start else "nothing"
        trained = {"from": origin, "seed": seed, "cpu_seconds": seconds, "threads": 1}
        trained |= {"backbone": asdict(replace(how, seed=seed)), "heads": asdict(replace(FIT, seed=seed))}
        card = {"name": "pocket reward", "size": size, "trained": trained, **measured(into, size)}
        (into / "card.json").write_text(json.dumps(card, indent=1) + "\n", "utf-8")
        yield {"reward": size, "first error F1": card["first_error"]["f1"]["value"]}


def _halve(folder: Path) -> None:
    """Weights in two bytes each, as the pocket models ship."""
    path = folder / "model.safetensors"
    save_file({name: weight.half() for name, weight in load_file(path).items()}, path, {"format": "pt"})


def measured(folder: Path, size: Any, n: int = TESTED) -> dict[str, Any]:
    """What the card says of a reward: how well it finds faults in traces of held-out problems."""
    reward = Pocket(size=size, id=str(folder))
    some = list(islice(traces(0, test=True), n))
    scores = [list(rated.steps) for rated in reward.scored(some)]
    labels: list[list[bool]] = [trace.facts["labels"] for trace in some]
    found = first_error(scores, [first_wrong(row) for row in labels])
    faulty = [n for n, row in enumerate(labels) if not all(row)]
    steps = step_errors([scores[n] for n in faulty], [labels[n] for n in faulty])
    return {
        "parameters": reward.parameters(),
        "test": {
            "traces": f"{n} of held-out problems, {len(faulty)} of them with faults (`ponder.recipes.faults`)",
            "interval": "95 %, bootstrap over problems",
            "threshold": "learnt on one half of the problems, judged on the other",
        },
        "first_error": {
            name: _rounded(getattr(found, name)) for name in ("f1", "on_wrong", "on_right", "position", "gain")
        },
        "steps": {name: _rounded(getattr(steps, name)) for name in ("prm_score", "f1", "negative", "position", "gain")},
    }


def _rounded(found: Estimate) -> dict[str, float]:
    return {name: round(getattr(found, name), 4) for name in ("value", "low", "high")}
