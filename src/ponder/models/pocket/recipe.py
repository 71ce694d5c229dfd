"""How the pocket model is made: from nothing, on one CPU thread, with puzzles that are generated on the way.

`ponder make pocket -o FOLDER` runs it; stopped, it goes on where it last saved. Puzzles whose id hashes to 0 modulo 10
are never trained on: they are the test.
"""

from __future__ import annotations

import json
import math
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ponder.core import seed_from
from ponder.models.pocket import vocabulary as v
from ponder.models.pocket.network import Groups, Llama
from ponder.models.pocket.traces import trace
from ponder.tasks.tents.generator import generate, possible
from ponder.tasks.tents.puzzle import Puzzle


@dataclass(frozen=True)
class Recipe:
    seed: int = 1
    steps: int = 2900
    tokens: int = 2048  # a step, at least
    matrix_rate: float = 0.02  # Muon, for the matrices of the blocks
    vector_rate: float = 6e-3  # AdamW, for the rest
    own_rate: float = 1e-3  # AdamW, for what a word has of its own
    decay: float = 0.45  # of the run, at its end, linearly to 0
    side: int = 8
    smallest: int = 12  # area, at the start …
    largest: int = 64  # … and from step `grown` on
    grown: int = 920
    tail: float = 0.05  # of the puzzles, once grown, from all shapes up to `tail_area`
    tail_area: int = 100

    def rate(self, step: int) -> float:
        """The factor on the learning rates."""
        left = 1 - step / self.steps
        return min(1.0, (step + 1) / 40, left / self.decay)


def held_out(puzzle: Puzzle) -> bool:
    """Whether a puzzle belongs to the test, and so never to training."""
    return seed_from("pocket", puzzle.id) % 10 == 0


@dataclass(frozen=True)
class Batch:
    tokens: Tensor
    groups: Groups
    wanted: Tensor  # places whose next word is learnt
    targets: Tensor


class Data:
    """Endless batches; the same seed and step give the same batch."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe

    def batch(self, step: int) -> Batch:
        rng = random.Random(seed_from("pocket", self.recipe.seed, step))
        grown = min(1.0, step / self.recipe.grown)
        area = self.recipe.smallest + grown * (self.recipe.largest - self.recipe.smallest)
        found: list[tuple[list[int], int]] = []
        while sum([len(words) for words, _ in found]) < self.recipe.tokens:
            tail = grown == 1 and rng.random() < self.recipe.tail
            puzzle = self._puzzle(rng, self.recipe.tail_area if tail else area, v.SIDE if tail else self.recipe.side)
            thinking = None if held_out(puzzle) or not v.expressible(puzzle) else trace(puzzle)
            if thinking:
                prompt = v.prompt(puzzle)
                found.append((v.encode(prompt + thinking), len(prompt)))
        return _packed(sorted(found, key=lambda pair: len(pair[0])))

    def _puzzle(self, rng: random.Random, area: float, side: int) -> Puzzle:
        """Large and square shapes are likelier."""
        shapes = [(w, h) for w in range(2, side + 1) for h in range(2, side + 1) if w * h <= area]
        shapes = [shape for shape in shapes if possible(*shape, "easy")]
        weights = [w * h * math.sqrt(min(w, h) / max(w, h)) for w, h in shapes]
        return generate(*rng.choices(shapes, weights)[0], "easy", rng)


def _packed(found: list[tuple[list[int], int]]) -> Batch:
    """Sequences of like length side by side, filled up to the longest of them; prompts and filling aren't learnt."""
    tokens: list[int] = []
    groups: list[tuple[int, int]] = []
    wanted: list[int] = []
    targets: list[int] = []
    while found:
        length = len(found[-1][0])
        rows = [pair for pair in found if len(pair[0]) > 0.85 * length]
        found = found[: len(found) - len(rows)]
        for words, prompt in rows:
            wanted += range(len(tokens) + prompt - 1, len(tokens) + len(words) - 1)
            targets += words[prompt:]
            tokens += words + [v.INDEX[v.PAD]] * (length - len(words))
        groups.append((len(rows), length))
    return Batch(torch.tensor(tokens), groups, torch.tensor(wanted), torch.tensor(targets))


class Muon:
    """Momentum whose steps have all singular values near 1 (Jordan et al. 2024); like-shaped matrices go together."""

    def __init__(self, matrices: Sequence[Tensor]) -> None:
        self.stacks: dict[torch.Size, list[Tensor]] = {}
        for matrix in matrices:
            self.stacks.setdefault(matrix.shape, []).append(matrix)
        self.momenta = {shape: torch.zeros(len(stack), *shape) for shape, stack in self.stacks.items()}

    @torch.no_grad()
    def step(self, rate: float, beta: float) -> None:
        for shape, stack in self.stacks.items():
            slope = torch.stack([matrix.grad for matrix in stack])  # type: ignore[misc]
            momentum = self.momenta[shape].lerp_(slope, 1 - beta)
            update = _orthogonal(slope.lerp(momentum, beta)) * max(1.0, shape[0] / shape[1]) ** 0.5
            for matrix, change in zip(stack, update, strict=True):
                matrix.add_(change, alpha=-rate)
                matrix.grad = None


def _orthogonal(x: Tensor) -> Tensor:
    """Newton-Schulz iterations of the fifth order with Muon's coefficients."""
    tall = x.shape[1] > x.shape[2]
    x = x.mT if tall else x
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(5):
        square = x @ x.mT
        x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
    return x.mT if tall else x


class Training:
    """The model with its optimisers, at some step."""

    def __init__(self, recipe: Recipe) -> None:
        torch.manual_seed(recipe.seed)
        self.recipe, self.model, self.step, self.seconds, self.tokens = recipe, Llama(), 0, 0.0, 0
        blocks = [p for p in self.model.blocks.parameters() if p.ndim == 2]
        own = [self.model.embed.own, self.model.head.own]
        taken = {id(p) for p in blocks + own}
        rest = [p for p in self.model.parameters() if id(p) not in taken]
        self.muon = Muon(blocks)
        self.adam = torch.optim.AdamW(
            [{"params": rest, "rate": recipe.vector_rate}, {"params": own, "rate": recipe.own_rate}],
            betas=(0.9, 0.98),
            weight_decay=0.0,
            foreach=True,
        )

    def learn(self, batch: Batch) -> float:
        logits = self.model(batch.tokens, batch.groups, batch.wanted)
        loss = functional.cross_entropy(logits, batch.targets)
        loss.backward()  # type: ignore[no-untyped-call]
        factor = self.recipe.rate(self.step)
        for group in self.adam.param_groups:
            group["lr"] = group["rate"] * factor
        self.adam.step()
        self.adam.zero_grad()
        self.muon.step(self.recipe.matrix_rate * factor, 0.85 + 0.1 * min(1.0, self.step / 300))
        self.step += 1
        self.tokens += len(batch.tokens)
        return loss.item()

    def save(self, folder: Path) -> None:
        state = {
            "model": self.model.state_dict(),
            "adam": self.adam.state_dict(),
            "muon": self.muon.momenta,
            "at": (self.step, self.seconds, self.tokens),
        }
        torch.save(state, folder / "training.new")
        (folder / "training.new").replace(folder / "training.pt")
        self.model.save(folder)

    def resume(self, folder: Path) -> None:
        state = torch.load(folder / "training.pt")
        self.model.load_state_dict(state["model"])
        self.adam.load_state_dict(state["adam"])
        self.muon.momenta = state["muon"]
        self.step, self.seconds, self.tokens = state["at"]


def train(recipe: Recipe, folder: Path, *, save_every: int = 50, test_every: int = 300) -> Iterator[dict[str, Any]]:
    """Train to the end, or go on doing so; say how it stands after every `save_every` steps."""
    from ponder.models.pocket.measure import accuracy

    torch.set_num_threads(1)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "recipe.json").write_text(json.dumps(asdict(recipe), indent=1) + "\n", "utf-8")
    training, data = Training(recipe), Data(recipe)
    if (folder / "training.pt").exists():
        training.resume(folder)
    losses: list[float] = []
    while training.step < recipe.steps:
        began = time.process_time()
        losses.append(training.learn(data.batch(training.step)))
        training.seconds += time.process_time() - began
        if training.step % save_every == 0 or training.step == recipe.steps:
            training.save(folder)
            tested = training.step % test_every == 0 or training.step == recipe.steps
            report = {
                "step": training.step,
                "loss": round(sum(losses) / len(losses), 4),
                "tokens": training.tokens,
                "cpu_seconds": round(training.seconds),
                **({"accuracy": {f"{n}×{n}": accuracy(folder, n, 20) for n in (4, 5, 6, 7)}} if tested else {}),
            }
            with (folder / "log.jsonl").open("a", encoding="utf-8") as log:
                log.write(json.dumps(report, ensure_ascii=False) + "\n")
            yield report
            losses.clear()
