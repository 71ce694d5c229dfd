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
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal, Self

from ponder.core import Bill, Completion, Model, Request, Source, Task, UserError, plumbing
from ponder.models import Desk, making_cost
from ponder.models.pocket.execution import ExecutionLanguage
from ponder.models.pocket.language import Language, Style
from ponder.models.pocket.tents import TentsLanguage

LANGUAGES: dict[str, Language] = {spoken.task: spoken for spoken in (TentsLanguage(), ExecutionLanguage())}
WEIGHTS = Path(__file__).parent / "weights"
SHIPPED = WEIGHTS / "tents"


def speaks(task: str) -> Language:
    """The language for a task."""
    if task not in LANGUAGES:
        hint = "; ".join(spoken.can for spoken in LANGUAGES.values())
        raise UserError(f"the pocket model has no words for {task}", hint=hint)
    return LANGUAGES[task]


def language(folder: Path) -> Language:
    """The language that the model in a folder speaks: it renders requests for it and reads its answers."""
    return speaks(read_card(folder)["task"])


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
    weights: Path = plumbing(WEIGHTS)  # one model's folder, or one that `ponder make pocket` made; else what ships
    budget: int = 1024  # completion tokens, thinking included
    temperature: float = 0.0  # 0: always the likeliest word, so that samples of one problem are alike
    in_flight: int = plumbing(64)  # texts written at once; each takes up to 3 MB of memory

    def __post_init__(self) -> None:
        if self.budget < 1 or self.temperature < 0 or self.in_flight < 1:
            raise UserError("budget and in_flight must be at least 1, and temperature not negative")

    def identity(self) -> dict[str, Any]:
        # By its weights, so that another training is another model.
        return {**super().identity(), "weights": {task: card["digest"] for task, (_, card) in self._models.items()}}

    @cached_property
    def _models(self) -> dict[str, tuple[Path, dict[str, Any]]]:
        """The folder and the card for each task."""
        if (self.weights / "card.json").exists():
            card = read_card(self.weights)
            return {card["task"]: (self.weights, card)}
        spoken = [task for task, spoken in LANGUAGES.items() if self.style in spoken.styles]
        folders = {task: self.weights / folder_name(task, self.style) for task in spoken}
        found = {task: folder for task, folder in folders.items() if folder.exists()}
        if not found and self.weights != WEIGHTS:
            found = {"": self.weights}  # of which the error says what is wrong
        return {task: (folder, read_card(folder)) for task, folder in found.items()}

    def check(self, task: Task, size: int) -> None:
        name = task.plugin_name()
        spoken = speaks(name)
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
        return Source(self._models[task.plugin_name()][0])

    def with_weights(self, folder: Path) -> Pocket:
        return replace(self, weights=folder)

    @classmethod
    def make(cls, folder: Path, seed: int, task: str, style: str) -> Iterator[dict[str, Any]]:
        try:
            from ponder.models.pocket import recipe
        except ModuleNotFoundError as missing:
            what = f"training needs a package that isn't installed: {missing.name}"
            raise UserError(what, hint="pip install 'ponder[torch]'") from None
        yield from recipe.make(folder, seed, task, style)

    async def __aenter__(self) -> Self:
        from ponder.models.pocket.engine import Engine

        self._desks = {
            task: Desk(partial(Engine, folder, self.in_flight)) for task, (folder, _) in self._models.items()
        }
        return self

    async def __aexit__(self, *error: object) -> None:
        for desk in self._desks.values():
            await desk.close()

    async def complete(self, request: Request) -> Completion:
        from ponder.models.pocket.engine import Row

        task = request.task.plugin_name()
        spoken, started = speaks(task), time.monotonic()
        prompt = spoken.encode(spoken.prompt(request))
        budget = min(self.budget, request.budget or self.budget)
        row = await self._desks[task].write(Row(prompt, budget, self.temperature, request.seed, bool))
        thinking, text = spoken.read(request, row.said)
        bill = Bill(len(prompt), len(thinking), len(row.said) - len(thinking), time.monotonic() - started, "tokenizer")
        stop: Literal["end", "length"] = "end" if row.ended else "length"
        made = making_cost(self._models[task][0])
        return Completion(" ".join(thinking), text, stop, bill, made, row.said)
