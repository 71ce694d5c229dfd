"""The engines that tests use: vLLM in the environment that `make engines` makes, or a stand-in for it."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path

from ponder.core import Completion, Model, Request
from ponder.tasks.chain_sum import ChainSum

HERE = Path(__file__).parent
FAKE = HERE / "fake_vllm"
VLLM = HERE.parent / ".venv-vllm/bin/python"


def fake_vllm(folder: Path) -> str:
    """An interpreter that has the stand-in for vLLM."""
    path = folder / "python"
    path.write_text(f'#!/bin/sh\nPYTHONPATH={FAKE} exec {sys.executable} "$@"\n')
    path.chmod(0o755)
    return str(path)


def ask(model: Model, requests: list[Request]) -> list[Completion]:
    async def together() -> list[Completion]:
        async with model:
            return await asyncio.gather(*(model.complete(request) for request in requests))

    return asyncio.run(together())


def sums(number: int) -> list[Request]:
    task = ChainSum()
    return [Request.first_turn(task, p, seed=n) for n, p in enumerate(islice(task.problems(2, 3), number))]


def answered(path: Path, study: Path) -> int:
    """How many attempts of a study are in a store, which may be in use."""
    from ponder.runner.store import Store
    from ponder.runner.study import Study

    if not path.is_file():
        return 0
    with Store(path) as store:
        return store.spent(Study.load(str(study)).cells)[0]


def wait_for(happened: Callable[[], bool]) -> None:
    for _ in range(6000):
        if happened():
            return
        time.sleep(0.05)
    raise AssertionError("it did not happen")
