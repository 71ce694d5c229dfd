"""Continuous batching for local models: generations join a running batch and leave when they end.

An engine (`NumpyEngine`, `TorchEngine`) holds the weights and advances every generation in its
batch by one token per step. `BatchWorker` drives one in a thread, for asyncio callers;
`generate_all` drives one to the end, without asyncio.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

Floats: TypeAlias = npt.NDArray[np.float32]


@dataclass(eq=False)
class Generation:
    """One reply being generated.

    It samples from its own seed, so it doesn't depend on the others of the batch.
    """

    prompt: list[int]
    budget: int  # maximum number of tokens to generate
    temperature: float = 0.0  # 0: greedy
    seed: int = 0
    done: Callable[[Generation], object] = bool  # called with the generation when it is complete
    tokens: list[int] = field(default_factory=list)  # generated so far
    ended: bool = False  # by an end token, not by the budget

    def __post_init__(self) -> None:
        self._random = np.random.default_rng(self.seed)
        self.pages: list[int] = []  # pages of the engine's KV cache, in the order of the tokens

    @property
    def position(self) -> int:
        """Return the position of the last token, which is the next that the network reads."""
        return len(self.prompt) + len(self.tokens) - 1

    def choose(self, logits: Floats) -> int:
        """Return the next token from logits (vocabulary,): the likeliest, or a sampled one."""
        if not self.temperature:
            return int(logits.argmax())
        scaled = logits.astype(np.float64) / self.temperature
        weights = np.exp(scaled - scaled.max()).cumsum()
        return int(np.searchsorted(weights, self._random.random() * weights[-1], side="right"))


class BatchEngine(Protocol):
    """Generates a batch of replies. Generations may join at any step."""

    @property
    def busy(self) -> bool:
        """Return whether any generation is in progress."""

    @property
    def room(self) -> bool:
        """Return whether another generation may join."""

    def join(self, generation: Generation) -> None:
        """Read a prompt and generate its first token."""

    def step(self) -> None:
        """Generate one more token of every generation."""


def generate_all(engine: BatchEngine, generations: Sequence[Generation]) -> Iterator[int]:
    """Run generations to their end; after every step, yield how many are complete."""
    complete: list[Generation] = []
    waiting = list(reversed(generations))
    while waiting or engine.busy:
        while waiting and engine.room:
            waiting[-1].done = complete.append
            engine.join(waiting.pop())
        if engine.busy:  # a generation may end with its first token
            engine.step()
        yield len(complete)


class BatchWorker:
    """Runs an engine in a thread, which starts with the first generation."""

    def __init__(self, engine: Callable[[], BatchEngine]) -> None:
        self._engine = engine
        self._queue: queue.SimpleQueue[Generation | None] = queue.SimpleQueue()
        self._waiting: set[asyncio.Future[Generation]] = set()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._work, daemon=True)

    async def run(self, generation: Generation) -> None:
        """Wait until a generation is complete."""
        if self._error:
            raise self._error
        self._loop = asyncio.get_running_loop()
        complete: asyncio.Future[Generation] = self._loop.create_future()

        def resolve(generation: Generation) -> None:
            if not complete.done():  # nobody waits any more if the run was interrupted
                complete.set_result(generation)

        # It is called in the engine's thread.
        generation.done = lambda generation: self._loop.call_soon_threadsafe(resolve, generation)
        self._waiting.add(complete)
        if not self._thread.ident:
            self._thread.start()
        self._queue.put(generation)
        try:
            await complete
        finally:
            self._waiting.discard(complete)

    async def close(self) -> None:
        self._queue.put(None)
        if self._thread.ident:
            await asyncio.to_thread(self._thread.join)

    def _work(self) -> None:
        """Generate until `close`; generations join whenever there is room."""
        try:
            engine = self._engine()
            while True:
                while engine.room and (not engine.busy or not self._queue.empty()):
                    generation = self._queue.get()
                    if generation is None:
                        return
                    engine.join(generation)
                if engine.busy:  # a generation may end with its first token
                    engine.step()
        except Exception as error:
            self._error = error
            self._loop.call_soon_threadsafe(self._fail)

    def _fail(self) -> None:
        """Pass the engine's error on to every caller that waits."""
        for complete in self._waiting:
            if not complete.done():
                complete.set_exception(self._error or RuntimeError("the engine stopped"))
