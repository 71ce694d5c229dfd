"""Draws samples that several of its kind share, then trains nothing in a few steps: a method for
tests.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ponder.core import (
    Completion,
    Method,
    Model,
    Prepared,
    Progress,
    Request,
    UserError,
    Wrapped,
    not_in_key,
)


@dataclass(frozen=True)
class SharedTraining(Method, Prepared):
    path: Path = not_in_key(Path())
    seed: int = 0
    samples: str = "samples"  # drawn by the first that needs them
    steps: int = 3
    # how it fails at its second step, the first time: killed, refused, broken, slow
    fault: str = ""

    changes_weights = True

    def training_seed(self) -> int:
        return self.seed

    def name(self, model: Model) -> str:
        return f"{getattr(model, 'name', '')}made-{self.seed}"

    def missing_outputs(self, model: Model) -> list[Path]:
        folder = self.path / self.name(model)
        return (
            []
            if folder.is_dir()
            else [p for p in (folder, self.path / self.samples) if not p.exists()]
        )

    def note(self, text: str) -> None:
        with (self.path / "log.txt").open("a") as log:
            log.write(f"{text} {os.getpid()}\n")

    def make(self, model: Model) -> Iterator[Progress]:
        if not self.missing_outputs(model):
            return
        name, part = self.name(model), self.path / f"{self.name(model)}.part"
        self.note(f"begin {name}")
        if not (self.path / self.samples).exists():
            self.note("sample")
            yield {"sampled": 1, "of": 2}
            (self.path / self.samples).write_text("drawn")
            yield {"sampled": 2, "of": 2}
        begun = int(part.read_text()) if part.exists() else 0
        for step in range(begun + 1, self.steps + 1):
            part.write_text(str(step))
            yield {"step": step, "of": self.steps}
            if step == 2 and begun == 0:
                self._fail()
        self.note(f"end {name}")
        part.unlink()
        (self.path / name).mkdir()

    def _fail(self) -> None:
        if self.fault == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.fault == "refused":
            raise UserError("nothing to train on", hint="draw more")
        if self.fault == "broken":
            raise ZeroDivisionError("a fault of the method")
        while self.fault == "slow":
            time.sleep(0.01)

    def apply(self, model: Model) -> Model:
        assert not self.missing_outputs(model), "applied before it was made"
        return Trained(model, f"{self.name(model)}-")


class Trained(Wrapped):
    def __init__(self, inner: Model, name: str) -> None:
        super().__init__(inner)
        self.name = name

    async def complete(self, request: Request) -> Completion:
        return await self.inner.complete(request)
