"""Trains nothing, in as many steps as it is told, and notes each of them: a method for tests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ponder.core import (
    Completion,
    Method,
    Model,
    Prepared,
    Progress,
    Request,
    Source,
    Task,
    WithWeights,
    Wrapped,
    not_in_key,
)


@dataclass(frozen=True)
class SlowTraining(Method, Prepared):
    folder: Path
    seed: int = 0
    steps: int = 3
    device: str = not_in_key("cpu")

    changes_weights = True

    def identity(self) -> dict[str, object]:
        return {"name": "slow_training", "seed": self.seed}

    def training_seed(self) -> int:
        return self.seed

    @property
    def weights(self) -> Path:
        return self.folder / f"made-{self.seed}"

    def notes(self) -> list[str]:
        log = self.weights / "steps.txt"
        return log.read_text().split() if log.exists() else []

    def make(self, model: Model) -> Iterator[Progress]:
        self.weights.mkdir(parents=True, exist_ok=True)
        for step in range(len(self.notes()) + 1, self.steps + 1):
            with (self.weights / "steps.txt").open("a") as log:
                log.write(f"{step}\n")
            yield {"step": step, "of": self.steps}

    def apply(self, model: Model) -> Model:
        assert len(self.notes()) == self.steps, "applied before it was made"
        return Trained(model, self)


class Trained(Wrapped, WithWeights):
    def __init__(self, inner: Model, method: SlowTraining) -> None:
        super().__init__(inner)
        self.method = method

    async def complete(self, request: Request) -> Completion:
        return await self.inner.complete(request)

    def made(self, task: Task) -> Mapping[str, float]:
        return {"training_tokens": 100.0 * self.method.steps, "seconds": 1.5}

    def source(self, task: Task) -> Source:
        return Source(self.method.weights)

    def with_weights(self, folder: Path) -> Model:
        raise NotImplementedError
