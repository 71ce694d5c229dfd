"""The pocket model: a small Llama that ships with Ponder and really reasons, offline, without torch.

It is one network a task, each trained from nothing by the recipe beside it on lessons made by the task itself: Tents,
and execution with values of two digits. It reads a problem in words of its own, thinks aloud, and answers; the answer
is graded like any other model's. `style` says how much it says on execution: *long* goes over everything again until
two passes agree, and often once more; *short* prints less and does more in its head, so it gives out sooner. Both were
trained from the *plain* one. The card beside each says how it was made and how often it is right.
"""

from __future__ import annotations

import hashlib
import json
import time
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal, Self

from ponder.core import Bill, Completion, Model, Request, Source, Task, UserError, not_in_key
from ponder.models import BatchWorker, making_cost
from ponder.models.pocket.codec import PocketCodec, Style
from ponder.models.pocket.execution import ExecutionCodec
from ponder.models.pocket.tents import TentsCodec

CODECS: dict[str, PocketCodec] = {spoken.task: spoken for spoken in (TentsCodec(), ExecutionCodec())}
WEIGHTS = Path(__file__).parent / "weights"
SHIPPED = WEIGHTS / "tents"


def codec_for(task: str) -> PocketCodec:
    """The language for a task."""
    if task not in CODECS:
        hint = "; ".join(spoken.can for spoken in CODECS.values())
        raise UserError(f"the pocket model has no words for {task}", hint=hint)
    return CODECS[task]


def language(folder: Path) -> PocketCodec:
    """The language that the model in a folder codec_for: it renders requests for it and reads its answers."""
    return codec_for(read_card(folder)["task"])


def folder_name(task: str, style: Style) -> str:
    return task if style == "plain" else f"{task}-{style}"


def read_card(folder: Path) -> dict[str, Any]:
    """What the card in a model's folder says, if it is the card of the weights beside it."""
    try:
        card: dict[str, Any] = json.loads((folder / "card.json").read_text("utf-8"))
        digest = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    except (OSError, ValueError) as error:
        hint = "ponder make pocket -o DIR makes such a folder"
        raise UserError(f"{folder} holds no pocket model: {error}", hint=hint) from None
    if digest != card["digest"]:
        what = f"{folder / 'model.safetensors'} is damaged: its digest is not the one in card.json"
        raise UserError(what, hint="install Ponder again, or make the folder again with ponder make pocket")
    return card


@dataclass(kw_only=True)
class Pocket(Model):
    style: Style = "plain"  # how much it says on execution: long, plain or short
    weights: Path = not_in_key(WEIGHTS)  # one model's folder, or one that `ponder make pocket` made; else what ships
    budget: int = 1024  # completion tokens, thinking included
    temperature: float = 0.0  # 0: always the likeliest word, so that samples of one problem are alike
    concurrency: int = not_in_key(64)  # texts written at once; each takes up to 3 MB of memory

    def __post_init__(self) -> None:
        if self.budget < 1 or self.temperature < 0 or self.concurrency < 1:
            raise UserError("budget and concurrency must be at least 1, and temperature not negative")

    def identity(self) -> dict[str, Any]:
        # By its weights, so that another training is another model.
        return {**super().identity(), "weights": {task: card["digest"] for task, (_, card) in self._models.items()}}

    @cached_property
    def _models(self) -> dict[str, tuple[Path, dict[str, Any]]]:
        """The folder and the card for each task."""
        if (self.weights / "card.json").exists():
            card = read_card(self.weights)
            return {card["task"]: (self.weights, card)}
        spoken = [task for task, spoken in CODECS.items() if self.style in spoken.styles]
        folders = {task: self.weights / folder_name(task, self.style) for task in spoken}
        found = {task: folder for task, folder in folders.items() if folder.exists()}
        if not found and self.weights != WEIGHTS:
            found = {"": self.weights}  # of which the error says what is wrong
        return {task: (folder, read_card(folder)) for task, folder in found.items()}

    def check(self, task: Task, size: int) -> None:
        name = task.plugin_name()
        spoken = codec_for(name)
        if name not in self._models:
            what = f"there is no pocket model for {name} in {self.weights} with style = {self.style!r}"
            there = [style for style in spoken.styles if (self.weights / folder_name(name, style)).exists()]
            hint = (
                f"for {name} there is {', '.join(there)}" if there else "ponder make pocket -o DIR makes such a folder"
            )
            raise UserError(what, hint=hint)
        spoken.check(task, size)

    def source(self, task: Task) -> Source:
        self.check(task, task.sizes()[0])
        return Source(self._models[task.plugin_name()][0], codec=self.plugin_name())

    def with_weights(self, folder: Path) -> Pocket:
        return replace(self, weights=folder)

    def at_temperature(self, temperature: float) -> Pocket:
        return replace(self, temperature=temperature)

    def max_tokens(self) -> int:
        return self.budget

    def made(self, task: Task) -> dict[str, float]:
        return making_cost(self._models[task.plugin_name()][0])

    def codec_name(self, task: Task) -> str:  # noqa: ARG002 it has no other
        return self.plugin_name()

    @classmethod
    def codec(cls, task: str) -> PocketCodec | None:
        return CODECS.get(task)

    async def __aenter__(self) -> Self:
        from ponder.models.pocket.engine import Engine

        self._desks = {
            task: BatchWorker(partial(Engine, folder, self.concurrency)) for task, (folder, _) in self._models.items()
        }
        return self

    async def __aexit__(self, *error: object) -> None:
        for desk in self._desks.values():
            await desk.close()

    async def complete(self, request: Request) -> Completion:
        from ponder.models.pocket.engine import Row

        task = request.task.plugin_name()
        spoken, started = codec_for(task), time.monotonic()
        prompt = spoken.encode(spoken.prompt(request))
        budget = min(self.budget, request.budget or self.budget)
        row = await self._desks[task].write(Row(prompt, budget, self.temperature, request.seed, bool))
        thinking, text = spoken.read(request, row.said)
        bill = Bill(len(prompt), len(thinking), len(row.said) - len(thinking), time.monotonic() - started, "tokenizer")
        stop: Literal["end", "length"] = "end" if row.ended else "length"
        return Completion(" ".join(thinking), text, stop, bill, tokens=row.said)
