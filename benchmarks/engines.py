"""Compares the tokens per second of `vllm` and `transformers` on SmolLM2, at 1 and 16 requests in
flight.

Both answer the same sums greedily, in float32 on one thread. CPU seconds are those of all processes
that generate; wall time on a shared machine depends on what else runs. Needs `make engines`.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections.abc import Callable
from pathlib import Path

from measured import table

from ponder.core import Model, Request
from ponder.models._local_weights import as_folder
from ponder.models.transformers import Transformers
from ponder.models.vllm import Vllm
from ponder.tasks.chain_sum import ChainSum

VLLM = Path(__file__).parent.parent / ".venv-vllm/bin/python"
SMALL = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
}
BUDGET, REQUESTS = 48, {1: 4, 16: 48}


def server_seconds() -> float:
    """Return the CPU seconds of all processes in the groups of vLLM's servers."""
    servers, ticks = set[str](), dict[str, int]()
    for path in Path("/proc").glob("[0-9]*"):
        try:
            words, stat = (
                (path / "cmdline").read_bytes().split(b"\0"),
                (path / "stat").read_text().rpartition(")")[2].split(),
            )
        except OSError:
            continue
        if words[0] == str(VLLM).encode():
            servers.add(stat[2])
        ticks[stat[2]] = ticks.get(stat[2], 0) + int(stat[11]) + int(stat[12])
    return sum(ticks[group] for group in servers) / os.sysconf("SC_CLK_TCK")


async def ask(model: Model, requests: list[Request], in_flight: int) -> int:
    room = asyncio.Semaphore(in_flight)

    async def one(request: Request) -> int:
        async with room:
            return len((await model.complete(request)).tokens)

    return sum(await asyncio.gather(*map(one, requests)))


async def measured(
    model: Model, in_flight: int, cpu: Callable[[], float]
) -> tuple[int, float, float]:
    task = ChainSum()
    problems = itertools.islice(task.problems(4, seed=in_flight), REQUESTS[in_flight] + 1)
    warm, *requests = [Request.first_turn(task, problem) for problem in problems]
    async with model:
        await ask(model, [warm], 1)
        began, cpu_began = time.monotonic(), cpu()
        tokens = await ask(model, requests, in_flight)
        return tokens, time.monotonic() - began, cpu() - cpu_began


def main() -> None:
    os.environ.update(SMALL, PONDER_VLLM=str(VLLM))
    folder = str(as_folder(Transformers(id="smollm2").source(ChainSum())))
    args = {"enforce_eager": True, "max_num_seqs": 16, "max_model_len": 1024}
    engines: list[tuple[str, Model, Callable[[], float]]] = [
        ("vllm", Vllm(id=folder, dtype="float32", budget=BUDGET, args=args), server_seconds),
        ("transformers", Transformers(id=folder, budget=BUDGET), time.process_time),
    ]
    rows = []
    for name, model, cpu in engines:
        for in_flight in REQUESTS:
            tokens, seconds, cpu_seconds = asyncio.run(measured(model, in_flight, cpu))
            rows.append(
                [name, in_flight, tokens, f"{tokens / seconds:.1f}", f"{tokens / cpu_seconds:.1f}"]
            )
    print(table(rows, ["engine", "in flight", "tokens", "tokens per second", "per CPU second"]))


if __name__ == "__main__":
    main()
