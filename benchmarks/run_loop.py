"""Compares the client's CPU time per attempt between Ponder, Inspect, lm-eval and a bare aiohttp
loop.

All ask the same server the same prompts. Each client runs in a process of its own with two numbers
of attempts: the slope between the two is the cost of one attempt, without the start; the total
includes the start. Ponder's process does all that `ponder run` does: it generates the problems,
grades the answers and commits them to its store. `--quick` makes fewer attempts.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple
from urllib.request import urlopen

from measured import PONDER, Cost, cost, exponent, record, table, verdict

from ponder.tasks.chain_sum import ChainSum

HERE = Path(__file__).parent
PEERS_PYTHON = HERE.parent / ".venv-peers/bin/python"
TASK = ChainSum(digits=3)
SIZE = 8
STUDY = """
problems = {attempts}
{cap}
[[task]]
name = "chain_sum"
size = {size}
digits = {digits}
[[model]]
name = "endpoint"
id = "served"
url = "{url}"
budget = 2000
concurrency = {concurrency}
"""


PACKAGES = {
    "lm-eval": [".venv-peers/lm-eval"],
    "Inspect": [".venv-peers/inspect-ai"],
    "bare aiohttp loop": ["aiohttp"],
}


class Client(NamedTuple):
    """A client to measure, and with how many attempts: fewer for a slow one, which would take all
    day.
    """

    name: str
    command: Callable[[Path, str, int, int], list[str]]
    attempts: tuple[int, int]
    repeats: int


class Asked(NamedTuple):
    """One run of a client: what it cost, what the server saw, and how many bytes it stored."""

    attempts: int
    cost: Cost
    seen: dict[str, Any]
    stored_bytes: int


@contextmanager
def serving(seconds: float) -> Iterator[str]:
    """Start a server that takes this long for every answer, and yield its address."""
    command = [sys.executable, str(HERE / "server.py"), str(seconds)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin
    assert process.stdout
    try:
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
    finally:
        process.stdin.close()
        process.wait()


def ponder(cap: str = "") -> Callable[[Path, str, int, int], list[str]]:
    def command(folder: Path, url: str, concurrency: int, attempts: int) -> list[str]:
        task = {"attempts": attempts, "size": SIZE, "digits": TASK.digits}
        (folder / "study.toml").write_text(
            STUDY.format(**task, url=url, concurrency=concurrency, cap=cap)
        )
        return [PONDER, "run", "study.toml"]

    return command


def peer(script: str, python: Path) -> Callable[[Path, str, int, int], list[str]]:
    """The command of another client, which reads Ponder's prompts from a file."""

    def command(folder: Path, url: str, concurrency: int, attempts: int) -> list[str]:
        with (folder / "prompts.jsonl").open("w") as file:
            for problem in itertools.islice(TASK.problems(SIZE, 0), attempts):
                row = {"question": problem.turns[0], "tagged": TASK.solve(problem)}
                file.write(json.dumps(row) + "\n")
        return [str(python), str(HERE / "peers" / script), url, str(concurrency), "prompts.jsonl"]

    return command


def clients(quick: bool) -> list[Client]:
    most = (1000, 4000) if quick else (2000, 10_000)
    repeats = 1 if quick else 3
    listed = [
        Client("bare aiohttp loop", peer("floor.py", Path(sys.executable)), most, repeats),
        Client("Ponder", ponder(), most, repeats),
        Client("Ponder, with a cap", ponder("max_tokens = 1_000_000_000"), most, repeats),
    ]
    if PEERS_PYTHON.exists():
        listed += [
            Client(
                "lm-eval",
                peer("lm_eval_run.py", PEERS_PYTHON),
                (500, 2000) if quick else (1000, 4000),
                repeats,
            ),
            Client(
                "Inspect",
                peer("inspect_eval.py", PEERS_PYTHON),
                (100, 300) if quick else (200, 1000),
                1,
            ),
        ]
    else:
        print(
            "lm-eval and Inspect are left out; scripts/bench-peers installs them", file=sys.stderr
        )
    return listed


def ask(client: Client, server: str, concurrency: int, attempts: int) -> Asked:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        command = client.command(folder, f"{server}/v1", concurrency, attempts)
        used = cost(command, folder, lambda pid: look(server, f"watch?pid={pid}"))
        seen = look(server, "state")
        assert seen["requests"] == attempts, (
            f"{client.name} asked {seen['requests']} times, not {attempts}"
        )
        stored = sum(f.stat().st_size for f in folder.glob("ponder.db*"))
    print(f"{client.name}: {attempts:,} attempts, {concurrency} in flight", file=sys.stderr)
    return Asked(attempts, used, seen, stored)


def look(server: str, page: str) -> dict[str, Any]:
    with urlopen(f"{server}/{page}") as response:
        return dict(json.load(response))


class Speed(NamedTuple):
    """CPU milliseconds per attempt, as medians: of the long run with its start, and of each
    additional attempt.
    """

    total: float
    marginal: float
    first_request_cpu: float
    most_in_flight: int


def speeds(compared: list[Client], server: str, concurrency: int) -> dict[str, Speed]:
    """Measure each client.

    They take turns, so that a busy minute of the machine affects all of them.
    """
    runs: dict[str, list[list[Asked]]] = {client.name: [] for client in compared}
    for turn in range(max(client.repeats for client in compared)):
        for client in compared:
            if turn < client.repeats:
                runs[client.name].append(
                    [ask(client, server, concurrency, n) for n in client.attempts]
                )
    return {name: _speed(pairs) for name, pairs in runs.items()}


def _speed(runs: list[list[Asked]]) -> Speed:
    return Speed(
        total=median(1000 * long.cost.cpu_seconds / long.attempts for _, long in runs),
        marginal=median(
            1000
            * (long.cost.cpu_seconds - short.cost.cpu_seconds)
            / (long.attempts - short.attempts)
            for short, long in runs
        ),
        first_request_cpu=median(run.seen["first_request_cpu"] for pair in runs for run in pair),
        most_in_flight=max(run.seen["most_in_flight"] for pair in runs for run in pair),
    )


def compare(compared: list[Client], server: str, concurrencies: list[int]) -> list[str]:
    """Print the clients side by side; returns whether the targets are met."""
    verdicts = []
    for concurrency in concurrencies:
        measured = speeds(compared, server, concurrency)
        ours = measured["Ponder"]
        rows = []
        for client in compared:
            speed = measured[client.name]
            row = (
                client.name,
                " → ".join(f"{n:,}" for n in client.attempts),
                f"{speed.marginal:.2f}",
                f"{speed.marginal / ours.marginal:.2f}",
                f"{speed.total:.2f}",
                f"{speed.first_request_cpu:.2f}",
                speed.most_in_flight,
            )
            rows.append(row)
        for name, packages in PACKAGES.items():
            if name in measured:
                what, theirs = f"CPU per attempt, {concurrency} in flight", measured[name].marginal
                record("Runner", what, "ms", ours.marginal, name, theirs, packages=packages)
        heads = (
            "client",
            "attempts",
            "ms/attempt",
            "× Ponder",
            "ms with start",
            "s to 1st request",
            "most in flight",
        )
        print(f"\nCPU of the client, {concurrency} in flight, 50 ms per answer\n")
        print(table(rows, heads))
        verdicts += [
            verdict(f"CPU per attempt, {concurrency} in flight", ours.marginal, 1.0, " ms"),
            verdict(
                f"the same with a cap, {concurrency} in flight",
                measured["Ponder, with a cap"].marginal,
                1.0,
                " ms",
            ),
            verdict(
                f"CPU before the first request, {concurrency} in flight",
                ours.first_request_cpu,
                0.5,
                " s",
            ),
        ]
    return verdicts


def growth(client: Client, server: str, lengths: tuple[int, ...]) -> list[str]:
    """Print memory and disk as a run gets longer; returns whether the targets are met."""
    runs = [ask(client, server, 64, n) for n in lengths]
    ratios = [run.stored_bytes / run.seen["body_bytes"] for run in runs]
    rows = [
        (
            f"{run.attempts:,}",
            f"{run.cost.peak_mb:.0f}",
            f"{run.seen['body_bytes'] / 1e6:.1f}",
            f"{run.stored_bytes / 1e6:.1f}",
            f"{ratio:.2f}",
        )
        for run, ratio in zip(runs, ratios, strict=True)
    ]
    heads = ("attempts", "peak MB", "MB of replies", "MB stored", "stored / replies")
    print(f"\nMemory and disk of Ponder\n\n{table(rows, heads)}")
    peaks = [run.cost.peak_mb for run in runs]
    grown = exponent(lengths, [run.cost.cpu_seconds for run in runs])
    between = f"{lengths[-2]:,} to {lengths[-1]:,} attempts"
    record("Runner", f"growth of CPU, {between}", "exponent", grown)
    record("Runner", f"peak memory of a run of {lengths[-1]:,} attempts", "MB", peaks[-1])
    return [
        verdict("peak memory", max(peaks), 60, " MB"),
        verdict(
            f"memory of {lengths[-1]:,} attempts above that of {lengths[0]:,}",
            peaks[-1] - peaks[0],
            10,
            " MB",
        ),
        verdict("bytes stored per byte of replies", max(ratios), 1),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="fewer attempts, each client once")
    parser.add_argument(
        "--concurrency", type=int, nargs="+", default=[64, 256], help="requests in flight"
    )
    told = parser.parse_args()
    quick, compared = told.quick, clients(told.quick)
    ours = next(client for client in compared if client.name == "Ponder")
    with serving(0.05) as server:
        verdicts = compare(compared, server, told.concurrency)
        verdicts += growth(ours, server, (1000, 10_000) if quick else (1000, 10_000, 50_000))
    # With 50 ms per answer, keeping 256 in flight takes a request every 0.2 ms; a slower server
    # makes that possible.
    with serving(1.0) as server:
        idle = 256 - ask(ours, server, 256, 1024).seen["most_in_flight"]
        verdicts.append(
            verdict("connections of 256 that were never used at once, with 1 s per answer", idle, 0)
        )
    print("\n" + "\n".join(verdicts))


if __name__ == "__main__":
    main()
