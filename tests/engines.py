"""The engines that tests use: vLLM in the environment that `make engines` makes, or a stand-in for
it.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

from ponder.core import Completion, Model, Request, UserError
from ponder.tasks.chain_sum import ChainSum

HERE = Path(__file__).parent
FAKE = HERE / "fake_vllm"
VLLM = HERE.parent / ".venv-vllm/bin/python"


def fake_vllm(folder: Path, **faults: Any) -> str:
    """An interpreter that has the stand-in for vLLM, with faults if they can't come from the
    environment.
    """
    path = folder / "python"
    given = f"export FAKE_VLLM='{json.dumps(faults)}'\n" if faults else ""
    path.write_text(f'#!/bin/sh\n{given}PYTHONPATH={FAKE} exec {sys.executable} "$@"\n')
    path.chmod(0o755)
    return str(path)


def ask(model: Model, requests: list[Request]) -> list[Completion]:
    async def together() -> list[Completion]:
        async with model:
            return await asyncio.gather(*(model.complete(request) for request in requests))

    return asyncio.run(together())


def sums(number: int) -> list[Request]:
    task = ChainSum()
    return [
        Request.first_turn(task, p, seed=n)
        for n, p in enumerate(islice(task.problems(2, 3), number))
    ]


def answered(path: Path, study: Path) -> int:
    """How many attempts of a study are in a store, which another process may use, or be about to
    make.
    """
    from ponder import Study
    from ponder.store.store import Store

    try:
        with Store(path) as store:
            return store.spent(Study.load(str(study)).cells)[0]
    except UserError:
        return 0


def done(record: Path, what: str) -> list[Any]:
    """What the stand-in wrote down of one kind."""
    lines = (
        [json.loads(line) for line in record.read_text().splitlines()] if record.exists() else []
    )
    return [more for kind, *more in lines if kind == what]


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"  # a zombie has ended, whether or not somebody has asked


def wait_for(happened: Callable[[], bool]) -> None:
    for _ in range(6000):
        if happened():
            return
        time.sleep(0.05)
    raise AssertionError("it did not happen")
