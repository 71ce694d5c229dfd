"""Trains the pocket models that ship with Ponder, on one CPU thread: `ponder prepare pocket`.

Problems are generated during training. A model of the style `plain` starts from random weights,
`short` and `wordy` from the plain model, `long` from the short one. Problems whose id hashes to 0
modulo 10 are never trained on: they are the test set. If interrupted, run the same command again to
resume from the last checkpoint.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ponder.core import Progress, Request, UserError, seed_from
from ponder.models._batch import Generation, generate_all
from ponder.models.pocket import codec_for, execution, folder_name, tents
from ponder.models.pocket.codec import PAD, Example, Style
from ponder.models.pocket.engine import NumpyEngine
from ponder.recipes.network import Groups, Llama, Shape

BUDGET = 800  # tokens of a reply that is trained on


@dataclass(frozen=True)
class Recipe:
    """How one pocket model is trained."""

    task: str
    curriculum: Any  # of the task's codec: which problems at which step
    shape: Shape
    style: Style = "plain"
    start: Style = "plain"  # the style whose weights another style starts from
    seed: int = 1
    steps: int = 3200
    tokens: int = 2048  # per step, at least
    matrix_rate: float = 0.02  # learning rate of Muon, for the matrices of the blocks
    vector_rate: float = 6e-3  # of AdamW, for all other weights
    own_rate: float = 1e-3  # of AdamW, for each word's own vector
    decay: float = 0.45  # the last fraction of the steps, with rates that fall linearly to 0

    # Start each word's output vector as its embedding, scaled down: the model learns sooner to copy
    # words. (Loss on an execution's keys after 100 steps: 5.8 without, 4.0 with; 0.2 if letters are
    # also parts of the keys.)
    alike: bool = False

    # If the loss is above `hope` at step `patience` (a step with a checkpoint), training restarts
    # with queries and keys a third as large: attention that starts sharp can take ten times as long
    # to find what to look up. (The execution model that ships did not need it, seeds 2 and 3 did.)
    patience: int = 0  # 0: never
    hope: float = 0.0

    # At each of these steps (each with a checkpoint), the model replies to new problems. From then
    # on, half of the examples are built around the latest replies, with the verdicts that the
    # solver gives (`judged` of the codec).
    rounds: tuple[int, ...] = ()
    replies: int = 1500  # per round
    stress: float = 15.0  # weight of a verdict in the loss: it is one word among a hundred

    def rate(self, step: int) -> float:
        """Return the factor on the learning rates at a step."""
        warmup = (step + 1) / 40
        decay = (1 - step / self.steps) / self.decay
        return min(1.0, warmup, decay)


_SMALL = Shape(width=96, layers=4, heads=3, kv_heads=3, head_width=32, inner=256)
PLAIN = Recipe(
    "execution", execution.Curriculum(), _SMALL, steps=2400, alike=True, patience=150, hope=1.2
)
_STYLE = replace(  # starts from the plain model: all sizes from the first step, at lower rates
    PLAIN,
    curriculum=execution.Curriculum(grown=0, tail_steps=32),
    matrix_rate=0.01,
    vector_rate=1e-3,
    own_rate=5e-4,
    decay=0.7,
    patience=0,
)
_WIDE = execution.Curriculum(grown=0, per_turn=16, tail_steps=32)
RECIPES = (
    Recipe("tents", tents.Curriculum(), Shape()),
    PLAIN,
    replace(_STYLE, style="short", steps=800),
    replace(
        _STYLE,
        style="long",
        start="short",
        steps=500,
        tokens=2560,
        matrix_rate=0.005,
        curriculum=replace(_WIDE, fresh=0.8),
        rounds=(300, 400),
    ),
    replace(_STYLE, style="wordy", steps=700, tokens=3072, curriculum=_WIDE),
)


@dataclass(frozen=True)
class Batch:
    """Sequences laid end to end."""

    tokens: Tensor
    groups: Groups
    predicting: Tensor  # positions whose next word enters the loss
    targets: Tensor  # the next word at each of these positions
    weights: Tensor | None = None  # of the targets in the loss; None: all are equal


class Data:
    """Generates batches: the same seed and step give the same batch."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.codec = codec_for(recipe.task)
        self.judged: list[Example] = []  # around the model's own replies

    def batch(self, step: int) -> Batch:
        """Return the batch of a training step."""
        rng = random.Random(seed_from("pocket", self.recipe.seed, step))
        examples: list[Example] = []
        while words_in(examples) < self.recipe.tokens:
            if self.judged and rng.random() < 0.5:
                examples.append(rng.choice(self.judged))
                continue
            example = self.codec.practise(rng, step, self.recipe.curriculum, self.recipe.style)
            if example:
                examples.append(example)
        return self.packed(examples)

    def packed(self, examples: list[Example]) -> Batch:
        """Return examples in groups of similar length, padded to the longest of the group."""
        unpacked = sorted(examples, key=_length)
        tokens: list[int] = []
        groups: list[tuple[int, int]] = []
        predicting: list[int] = []
        targets: list[int] = []
        weights: list[float] = []
        while unpacked:
            length = _length(unpacked[-1])
            group = [example for example in unpacked if _length(example) > 0.85 * length]
            del unpacked[-len(group) :]
            groups.append((len(group), length))
            for example in group:
                ids = self.codec.encode(example.prompt + example.reply)
                for n in range(len(example.reply)):
                    if n in example.without_loss:
                        continue
                    position = len(example.prompt) + n
                    predicting.append(len(tokens) + position - 1)
                    targets.append(ids[position])
                    weights.append(self.recipe.stress if n in example.verdicts else 1.0)
                padding = [self.codec.index[PAD]] * (length - len(ids))
                tokens += ids + padding
        return Batch(
            tokens=torch.tensor(tokens),
            groups=groups,
            predicting=torch.tensor(predicting),
            targets=torch.tensor(targets),
            weights=torch.tensor(weights) if any(weight != 1 for weight in weights) else None,
        )

    def listen(self, folder: Path, step: int) -> None:
        """Let the model in a folder answer new problems, and build examples around its replies."""
        seed = seed_from("pocket replies", self.recipe.seed, step)
        rng = random.Random(seed)
        requests: list[Request] = []
        while len(requests) < self.recipe.replies:
            request = self.codec.draw(rng, step, self.recipe.curriculum)
            if not self.codec.held_out(request.problem):
                requests.append(request)
        path = folder / f"replies-{step}.json"
        if not path.exists():
            prompts = [self.codec.prompt_ids(request) for request in requests]
            generations = [
                Generation(prompt, BUDGET, 1.0, seed_from(seed, n))
                for n, prompt in enumerate(prompts)
            ]
            for _ in generate_all(NumpyEngine(folder, batch_size=64), generations):
                pass
            path.write_text(json.dumps([generation.tokens for generation in generations]), "utf-8")
        replies = json.loads(path.read_text("utf-8"))
        self.judged = []
        for request, tokens in zip(requests, replies, strict=True):
            example = self.codec.judged(request, self.codec.decode(tokens), rng)
            if example:
                self.judged.append(example)


def words_in(examples: Sequence[Example]) -> int:
    """Count the words of examples."""
    return sum(map(_length, examples))


def _length(example: Example) -> int:
    return len(example.prompt) + len(example.reply)


class Muon:  # when weights are next trained: torch.optim.Muon, whose steps differ in the last bits
    """Momentum orthogonalized to singular values near 1 (Jordan et al. 2024).

    Matrices of the same shape are batched.
    """

    def __init__(self, matrices: Sequence[Tensor]) -> None:
        self.stacks: dict[torch.Size, list[Tensor]] = {}
        for matrix in matrices:
            self.stacks.setdefault(matrix.shape, []).append(matrix)
        self.momenta = {
            shape: torch.zeros(len(stack), *shape) for shape, stack in self.stacks.items()
        }

    @torch.no_grad()
    def step(self, rate: float, beta: float) -> None:
        """Update the matrices by their gradients, and reset these."""
        for shape, stack in self.stacks.items():
            gradient = torch.stack([matrix.grad for matrix in stack])  # type: ignore[misc]
            momentum = self.momenta[shape].lerp_(gradient, 1 - beta)
            scale = max(1.0, shape[0] / shape[1]) ** 0.5
            update = _orthogonal(gradient.lerp(momentum, beta)) * scale
            for matrix, change in zip(stack, update, strict=True):
                matrix.add_(change, alpha=-rate)
                matrix.grad = None


def _orthogonal(x: Tensor) -> Tensor:
    """Orthogonalize matrices, (matrices, rows, columns), by five Newton-Schulz iterations.

    They are quintic, with Muon's coefficients.
    """
    tall = x.shape[1] > x.shape[2]
    if tall:
        x = x.mT
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(5):
        square = x @ x.mT
        x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
    return x.mT if tall else x


class Pretraining:
    """A pocket model with its optimizers.

    Separate from `training.loop`: it has two optimizers, packed words and a restart, and the
    shipped weights depend on every bit.
    """

    def __init__(self, recipe: Recipe, start: Path | None = None, *, soft: bool = False) -> None:
        torch.manual_seed(recipe.seed)
        self.recipe = recipe
        self.step = 0
        self.seconds = 0.0
        self.tokens = 0
        self.soft = soft
        self.model = Llama(codec_for(recipe.task), recipe.shape)
        if recipe.alike:
            self.model.head.parts.data = 0.1 * self.model.embed.parts.data
        if start:
            self.model.load(start)
        if soft:
            for name, weights in self.model.blocks.named_parameters():
                if name.endswith((".q", ".k")):
                    weights.data *= 0.3
        matrices = [weights for weights in self.model.blocks.parameters() if weights.ndim == 2]
        word_vectors = [self.model.embed.own, self.model.head.own]
        ids = {id(weights) for weights in matrices + word_vectors}
        vectors = [weights for weights in self.model.parameters() if id(weights) not in ids]
        self.muon = Muon(matrices)
        self.adam = torch.optim.AdamW(
            [
                {"params": vectors, "rate": recipe.vector_rate},
                {"params": word_vectors, "rate": recipe.own_rate},
            ],
            betas=(0.9, 0.98),
            weight_decay=0.0,
            foreach=True,
        )

    def learn(self, batch: Batch) -> float:
        """Take an optimizer step on a batch; return the loss."""
        logits = self.model(batch.tokens, batch.groups, batch.predicting)
        if batch.weights is None:
            loss = functional.cross_entropy(logits, batch.targets)
        else:
            losses = functional.cross_entropy(logits, batch.targets, reduction="none")
            loss = losses @ batch.weights / batch.weights.sum()
        return self.update(loss, len(batch.tokens))

    def update(self, loss: Tensor, tokens: int) -> float:
        """Take an optimizer step on a loss over this many tokens; return the loss."""
        loss.backward()  # type: ignore[no-untyped-call]
        factor = self.recipe.rate(self.step)
        momentum = 0.85 + 0.1 * min(1.0, self.step / 300)
        for group in self.adam.param_groups:
            group["lr"] = group["rate"] * factor
        self.adam.step()
        self.adam.zero_grad()
        self.muon.step(self.recipe.matrix_rate * factor, momentum)
        self.step += 1
        self.tokens += tokens
        return loss.item()

    def save(self, folder: Path) -> None:
        """Write a checkpoint, and the model."""
        state = {
            "model": self.model.state_dict(),
            "adam": self.adam.state_dict(),
            "muon": self.muon.momenta,
            "at": (self.step, self.seconds, self.tokens, self.soft),
        }
        torch.save(state, folder / "training.new")
        (folder / "training.new").replace(folder / "training.pt")
        self.model.save(folder)

    def resume(self, folder: Path) -> None:
        """Load a checkpoint."""
        state = torch.load(folder / "training.pt", weights_only=True)
        self.model.load_state_dict(state["model"])
        self.adam.load_state_dict(state["adam"])
        self.muon.momenta = state["muon"]
        self.step, self.seconds, self.tokens, self.soft = state["at"]


def train(
    recipe: Recipe,
    folder: Path,
    start: Path | None = None,
    *,
    save_every: int = 50,
    test_every: int = 300,
) -> Iterator[Progress]:
    """Train a model, resuming if there is a checkpoint; yield progress every `save_every` steps."""
    from ponder.recipes.measure import accuracy

    torch.set_num_threads(1)
    codec = codec_for(recipe.task)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "recipe.json"
    text = json.dumps(asdict(recipe), indent=1) + "\n"
    has_checkpoint = (folder / "training.pt").exists()
    if has_checkpoint and path.read_text("utf-8") != text:
        message = f"{folder} holds a training with another recipe or seed"
        hint = (
            "resume it with the same --seed and version of Ponder, or give another folder with -o"
        )
        raise UserError(message, hint=hint)
    path.write_text(text, "utf-8")
    training = Pretraining(recipe, start)
    data = Data(recipe)
    if has_checkpoint:
        training.resume(folder)
    losses: list[float] = []
    while training.step < recipe.steps:
        began = time.process_time()
        latest_round = max((step for step in recipe.rounds if step <= training.step), default=None)
        if latest_round is not None and (training.step == latest_round or not data.judged):
            data.listen(folder, latest_round)
        losses.append(training.learn(data.batch(training.step)))
        training.seconds += time.process_time() - began
        step = training.step
        is_last = step == recipe.steps
        if step % save_every and not is_last:
            continue

        loss = sum(losses) / len(losses)
        losses.clear()
        progress: Progress = {
            "step": step,
            "loss": round(loss, 4),
            "tokens": training.tokens,
            "cpu_seconds": round(training.seconds),
        }
        restarts = step == recipe.patience and loss > recipe.hope and not training.soft
        if restarts:
            progress["restarted"] = True
            abandoned = training
            training = Pretraining(recipe, soft=True)
            training.seconds = abandoned.seconds
            training.tokens = abandoned.tokens
        training.save(folder)
        if not restarts and (step % test_every == 0 or is_last):
            progress["accuracy"] = {
                problems.label: accuracy(folder, codec, problems, 20) for problems in codec.glances
            }
        with (folder / "log.jsonl").open("a", encoding="utf-8") as log:
            log.write(json.dumps(progress, ensure_ascii=False) + "\n")
        yield progress


def make(
    folder: Path,
    seed: int = 1,  # of the training
    task: str = "",  # only models for this task; left out: all tasks
    style: str = "",  # only this style, and those that it starts from; left out: all styles
) -> Iterator[Progress]:
    """Train the pocket models, each in its own folder, and measure them on held-out problems."""
    from ponder.recipes.measure import write_card

    needed = set[tuple[str, Style]]()
    for recipe in RECIPES:
        if task in ("", recipe.task) and style in ("", recipe.style):
            needed |= _with_starts(recipe)
    if not needed:
        options = [f"--task {recipe.task} --style {recipe.style}" for recipe in RECIPES]
        hint = f"there are {', '.join(options)}"
        raise UserError(f"there is no recipe for task {task!r} and style {style!r}", hint=hint)
    for recipe in RECIPES:
        if (recipe.task, recipe.style) not in needed:
            continue
        model_folder = folder / folder_name(recipe.task, recipe.style)
        start = None
        if recipe.style != "plain":
            start = folder / folder_name(recipe.task, recipe.start)
        for progress in train(replace(recipe, seed=seed), model_folder, start):
            yield {"model": model_folder.name, **progress}
        if not (model_folder / "card.json").exists():
            for progress in write_card(model_folder, start):
                yield {"model": model_folder.name, **progress}


def _with_starts(recipe: Recipe) -> set[tuple[str, Style]]:
    """Return the task and style of a recipe, and of those that it starts from."""
    needed = {(recipe.task, recipe.style)}
    while recipe.style != "plain":
        recipe = next(r for r in RECIPES if (r.task, r.style) == (recipe.task, recipe.start))
        needed.add((recipe.task, recipe.style))
    return needed
