"""What a model says to problems that methods train on: many samples of each, graded, written many at once.

Any model that can be asked can be sampled, an endpoint too. Where the model runs here its tokens are taken as written;
else its text is put into tokens again.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ponder.core import (
    Completion,
    Model,
    ModelFailure,
    Problem,
    Progress,
    Request,
    Task,
    TrainingProblems,
    UserError,
    seed_from,
)
from ponder.models._torch_engine import Loaded
from ponder.training.loop import Example


@dataclass(frozen=True)
class Asked:
    """A problem to practise on."""

    task: Task
    problem: Problem

    def request(self, seed: int = 0, budget: int | None = None) -> Request:
        return Request.first_turn(self.task, self.problem, seed, budget)


@dataclass(frozen=True)
class Sample:
    """One text that a model wrote, and whether its answer is right."""

    text: Example
    right: bool
    thinking: str = ""
    answer: str = ""

    @property
    def tokens(self) -> int:
        return len(self.text.said)


def chosen(on: Sequence[TrainingProblems], number: int, seed: int) -> list[Asked]:
    """So many problems in all, from each task and size in turn."""
    found: list[Asked] = []
    sources = [(practice.task, practice.problems(seed)) for practice in on]
    while sources and len(found) < number:
        for source in tuple(sources):
            task, problems = source
            if (problem := next(problems, None)) is None:
                sources.remove(source)
            elif len(problem.turns) > 1:
                raise UserError("methods train on problems of one turn", hint="per_turn = 0 under [[train]]")
            elif len(found) < number:
                found.append(Asked(task, problem))
    if not found:
        what = "there is no problem to train on: the study asks them all"
        raise UserError(what, hint="a smaller `problems`, or a [[train]] with another task")
    return found


class Rollouts:
    """Samples of a model, `n` for each problem, once it has been iterated over to its end."""

    def __init__(
        self,
        model: Model,
        loaded: Loaded,
        asked: Sequence[Asked],
        n: int,
        seed: int,
        kept: Path,
        budget: int | None = None,
    ) -> None:
        self._model, self._loaded, self._asked, self._n = model, loaded, asked, n
        self._seed, self._budget, self._kept = seed, budget, kept
        self.samples: list[list[Sample]] = []

    def __iter__(self) -> Iterator[Progress]:
        """Write them all; says about once a second how many are written. Those that a file keeps are read from it."""
        if not self._kept.is_file():
            said: dict[tuple[int, int], Completion] = {}
            yield from self._write(said)
            found = [[self._sample(place, said[place, n]) for n in range(self._n)] for place in range(len(self._asked))]
            new = self._kept.with_suffix(f".{os.getpid()}")
            new.write_bytes(msgspec.json.encode(found))
            new.replace(self._kept)
        self.samples = msgspec.json.decode(self._kept.read_bytes(), type=list[list[Sample]])

    def _write(self, said: dict[tuple[int, int], Completion]) -> Iterator[Progress]:
        async def begin() -> set[asyncio.Task[None]]:
            room = asyncio.Semaphore(self._model.concurrency)
            places = itertools.product(range(len(self._asked)), range(self._n))
            return {asyncio.create_task(ask(place, n, room)) for place, n in places}

        async def ask(place: int, n: int, room: asyncio.Semaphore) -> None:
            asked = self._asked[place]
            async with room:
                seed = seed_from(self._seed, asked.problem.id, n)
                try:
                    said[place, n] = await self._model.complete(asked.request(seed, self._budget))
                except ModelFailure as failure:  # which the model has tried again already
                    raise UserError(f"sampling {self._model.title()} failed: {failure}", hint="run again") from None

        with asyncio.Runner() as runner:
            runner.run(self._model.__aenter__())
            try:
                waiting = runner.run(begin())
                while waiting:
                    done, waiting = runner.run(_some(waiting))
                    for task in done:
                        task.result()
                    yield {"written": len(said), "of": len(self._asked) * self._n}
            finally:
                runner.run(self._model.__aexit__(None, None, None))

    def _sample(self, place: int, said: Completion) -> Sample:
        asked = self._asked[place]
        right = asked.task.grade_turns(asked.problem, [said.answer]).correct and said.stop == "end"
        tokens = said.tokens or self._loaded.encode(said)
        return Sample(Example(self._loaded.prompt(asked.request()), tokens), right, said.thinking, said.answer)

    @property
    def tokens(self) -> int:
        return sum(len(sample.text) for samples in self.samples for sample in samples)


async def _some(waiting: set[asyncio.Task[None]]) -> tuple[set[asyncio.Task[None]], set[asyncio.Task[None]]]:
    return await asyncio.wait(waiting, timeout=1.0)
