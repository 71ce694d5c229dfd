"""The pocket model: a small Llama that ships with Ponder and really reasons, on Tents, offline, without torch.

It was trained from nothing by the recipe beside it on traces of the task's own solver. It reads a puzzle in words of
its own, thinks aloud in passes over rows and columns, and names the tents; its answer is graded like any other model's.
`weights/card.json` says how it was made and how often it is right.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import queue
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from ponder.core import Bill, Completion, Model, ModelFailure, Request, Task, UserError, plumbing
from ponder.models.pocket import vocabulary as v
from ponder.tasks.tents import Puzzle, Tents, shape

if TYPE_CHECKING:
    from ponder.models.pocket.engine import Row

SHIPPED = Path(__file__).parent / "weights"


@dataclass(kw_only=True)
class Pocket(Model):
    weights: Path = plumbing(SHIPPED)  # a folder in the Hugging Face format; the one that ships if not given
    budget: int = 1024  # completion tokens, thinking included
    temperature: float = 0.0  # 0: always the likeliest word, so that samples of one problem are alike
    in_flight: int = plumbing(32)  # texts written at once; each takes up to 8 MB of memory

    def __post_init__(self) -> None:
        if self.budget < 1 or self.temperature < 0 or self.in_flight < 1:
            raise UserError("budget and in_flight must be at least 1, and temperature not negative")

    def identity(self) -> dict[str, Any]:
        # By its weights, so that another training is another model.
        return {**super().identity(), "weights": self._card["digest"]}

    @cached_property
    def _card(self) -> dict[str, Any]:
        try:
            card: dict[str, Any] = json.loads((self.weights / "card.json").read_text("utf-8"))
            digest = hashlib.sha256((self.weights / "model.safetensors").read_bytes()).hexdigest()
        except (OSError, ValueError) as error:
            hint = "ponder make pocket -o DIR makes such a folder"
            raise UserError(f"{self.weights} holds no pocket model: {error}", hint=hint) from None
        if digest != card["digest"]:
            what = f"{self.weights / 'model.safetensors'} is damaged: its digest is not the one in card.json"
            raise UserError(what, hint="install Ponder again, or make the folder again with ponder make pocket")
        return card

    def check(self, task: Task, size: int) -> None:
        side = max(shape(size) or (v.SIDE + 1, 0)) if not (isinstance(task, Tents) and task.ids) else 0
        if not isinstance(task, Tents) or side > v.SIDE:
            what = f"the pocket model has no words for {task.plugin_name()} of size {size}"
            raise UserError(what, hint=f"it plays tents with sides up to {v.SIDE}, such as size = [16, 25, 36, 49, 64]")

    @classmethod
    def make(cls, folder: Path, seed: int) -> Iterator[dict[str, Any]]:
        try:
            from ponder.models.pocket import measure, recipe
        except ModuleNotFoundError as missing:
            what = f"training needs a package that isn't installed: {missing.name}"
            raise UserError(what, hint="pip install 'ponder[torch]'") from None
        yield from recipe.train(recipe.Recipe(seed=seed), folder)
        yield from measure.write_card(folder)

    async def __aenter__(self) -> Self:
        _ = self._card
        self._asked: queue.SimpleQueue[Row | None] = queue.SimpleQueue()
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        self._asked.put(None)
        await asyncio.to_thread(self._thread.join)

    def _work(self) -> None:
        """Write texts until told to stop: take in what was asked whenever a row is free."""
        from ponder.models.pocket.engine import Engine

        engine = Engine(self.weights, self.in_flight)
        while True:
            while engine.room and (not engine.busy or not self._asked.empty()):
                if (row := self._asked.get()) is None:
                    return
                engine.join(row)
            engine.step()

    async def complete(self, request: Request) -> Completion:
        from ponder.models.pocket.engine import Row

        puzzle = Puzzle.from_id(request.problem.gold)
        if not v.expressible(puzzle):
            raise ModelFailure("the pocket model has no words for this puzzle")
        prompt = v.encode(v.prompt(puzzle))
        written: asyncio.Future[Row] = self._loop.create_future()

        def tell(row: Row) -> None:
            if not written.done():  # nobody waits any more if the run was interrupted
                written.set_result(row)

        budget = min(self.budget, request.budget or self.budget)
        started = time.monotonic()
        done = lambda row: self._loop.call_soon_threadsafe(tell, row)  # noqa: E731 it runs in the engine's thread
        self._asked.put(Row(prompt, budget, self.temperature, request.seed, done))
        row = await written
        words = v.decode(row.said[: -1 if row.ended else None])
        thinking = words[: words.index(v.ANSWER)] if v.ANSWER in words else words
        answer = words[len(thinking) + 1 :]
        bill = Bill(len(prompt), len(thinking), len(row.said) - len(thinking), time.monotonic() - started, "tokenizer")
        text = v.grid_text(puzzle, answer) if row.ended and answer else " ".join(answer)
        return Completion(" ".join(thinking), text, "end" if row.ended else "length", bill)
