"""Runs the pocket model: a Llama of 0.6 to 2 million parameters that ships with Ponder and reasons.

It needs no torch. There is one network per task, Tents and execution with values of two digits,
each trained from scratch by `recipes/pocket.py` on examples that the task generates. It reads a
problem in a vocabulary of its own, thinks step by step, and answers; the answer is graded like any
other model's. `style` sets how much it writes on execution: *short* skips intermediate results, so
it fails at smaller sizes; *long* drafts like short, judges its own draft, and works carefully, like
*plain*, if it doubts; *wordy* repeats its work, needed or not. The card next to each network says
how it was trained and its measured accuracy.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal, Self

from ponder import models
from ponder.core import (
    Bill,
    Completion,
    Model,
    Request,
    Sampled,
    Source,
    Task,
    UserError,
    WithCodec,
    WithWeights,
    not_in_key,
)
from ponder.models.pocket.codec import PocketCodec, Style
from ponder.models.pocket.execution import ExecutionCodec
from ponder.models.pocket.tents import TentsCodec

CODECS: dict[str, PocketCodec] = {codec.task: codec for codec in (TentsCodec(), ExecutionCodec())}
WEIGHTS = Path(__file__).parent / "weights"
SHIPPED = WEIGHTS / "tents"
MAKE = "ponder prepare pocket -o DIR makes such a folder"


def codec_for(task: str) -> PocketCodec:
    """Return the codec for a task; raise `UserError` if there is none."""
    if task not in CODECS:
        hint = "; ".join(codec.can for codec in CODECS.values())
        raise UserError(f"the pocket model has no vocabulary for {task}", hint=hint)
    return CODECS[task]


def folder_name(task: str, style: Style) -> str:
    if style == "plain":
        return task
    return f"{task}-{style}"


def read_card(folder: Path) -> dict[str, Any]:
    """Return the card of the pocket model in a folder, checked against its weights' digest."""
    card = models.read_card(folder)
    if "task" not in card:
        raise UserError(f"{folder} holds no pocket model", hint=MAKE)
    return card


@dataclass(kw_only=True)
class Pocket(Model, WithWeights, WithCodec, Sampled):
    style: Style = "plain"  # how much it writes on execution: short, plain, long or wordy
    # one model's folder, or what `ponder prepare pocket` wrote; default: shipped
    weights: Path = not_in_key(WEIGHTS)
    budget: int = 1024  # completion tokens, thinking included
    temperature: float = 0.0  # 0: greedy, so all samples of a problem are equal
    concurrency: int = not_in_key(64)  # replies generated at once; each takes up to 3 MB of memory

    def __post_init__(self) -> None:
        if self.budget < 1 or self.temperature < 0 or self.concurrency < 1:
            raise UserError(
                "budget and concurrency must be at least 1, and temperature not negative"
            )

    def identity(self) -> dict[str, Any]:
        # By its weights, so that another training is another model.
        identity = super().identity()
        identity["weights"] = {task: card["digest"] for task, (_, card) in self._networks.items()}
        return identity

    @cached_property
    def _networks(self) -> dict[str, tuple[Path, dict[str, Any]]]:
        """Return the folder and the card for each task."""
        if (self.weights / "card.json").exists():
            card = read_card(self.weights)
            return {card["task"]: (self.weights, card)}
        networks = {}
        for task, codec in CODECS.items():
            folder = self.weights / folder_name(task, self.style)
            if self.style in codec.styles and folder.exists():
                networks[task] = (folder, read_card(folder))
        if not networks and self.weights != WEIGHTS:
            read_card(self.weights)  # raises the error
        return networks

    def check(self, task: Task, size: int) -> None:
        name = task.plugin_name()
        codec = codec_for(name)
        if name not in self._networks:
            styles = [
                style
                for style in codec.styles
                if (self.weights / folder_name(name, style)).exists()
            ]
            hint = f"for {name} there is {', '.join(styles)}" if styles else MAKE
            message = (
                f"there is no pocket model for {name} in {self.weights} with style = {self.style!r}"
            )
            raise UserError(message, hint=hint)
        codec.check(task, size)

    def source(self, task: Task) -> Source:
        self.check(task, task.sizes()[0])
        return Source(self._networks[task.plugin_name()][0], codec=self.plugin_name())

    def with_weights(self, folder: Path) -> Pocket:
        return replace(self, weights=folder)

    def at_temperature(self, temperature: float) -> Pocket:
        return replace(self, temperature=temperature)

    def max_tokens(self) -> int:
        return self.budget

    def made(self, task: Task) -> dict[str, float]:
        return models.making_cost(self._networks[task.plugin_name()][0])

    def codec_name(self, task: Task) -> str:  # noqa: ARG002 it has no other
        return self.plugin_name()

    @classmethod
    def codec(cls, task: str) -> PocketCodec | None:
        return CODECS.get(task)

    async def __aenter__(self) -> Self:
        from ponder.models._batch import BatchWorker
        from ponder.models.pocket.engine import NumpyEngine

        self._workers = {}
        for task, (folder, _) in self._networks.items():
            self._workers[task] = BatchWorker(partial(NumpyEngine, folder, self.concurrency))
        return self

    async def __aexit__(self, *error: object) -> None:
        for worker in self._workers.values():
            await worker.close()
        self._workers.clear()

    async def complete(self, request: Request) -> Completion:
        from ponder.models._batch import Generation

        task = request.task.plugin_name()
        codec = codec_for(task)
        started = time.monotonic()
        budget = min(self.budget, request.budget or self.budget)
        generation = Generation(codec.prompt_ids(request), budget, self.temperature, request.seed)
        await self._workers[task].run(generation)
        thinking, answer, thinking_tokens = codec.reply(request, generation.tokens)
        bill = Bill(
            prompt_tokens=len(generation.prompt),
            thinking_tokens=thinking_tokens,
            answer_tokens=len(generation.tokens) - thinking_tokens,
            seconds=time.monotonic() - started,
            counted_by="tokenizer",
        )
        stop: Literal["end", "length"] = "end" if generation.ended else "length"
        return Completion(thinking, answer, stop, bill, tokens=generation.tokens)
