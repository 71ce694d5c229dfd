"""Stores with known attempts, and the page's server in a thread, for the tests of `ponder view`."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ponder import Study
from ponder.core import Attempt, Bill, Completion, Problem
from ponder.core.capabilities import solve_turn
from ponder.results.view.app import View
from ponder.results.view.server import bound, page_server
from ponder.results.view.stores import opened
from ponder.run.attempt import graded
from ponder.run.caps import Recorded
from ponder.store.store import Done, Store
from ponder.study.cell import Cell

EVIL = "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\"> \x1b[31m \u202e {{7*7}}"
TABLE: dict[str, Any] = {
    "title": "Which is cheaper?",
    "question": "Does the short one lose accuracy?",
    "problems": 6,
    "task": [
        {"name": "tents", "size": [16, 20]},
        {"name": "execution", "size": 4, "dictionary": 8},
    ],
    "model": [
        {"name": "oracle", "label": "long", "budget": 2000},
        {
            "name": "oracle",
            "label": "short",
            "budget": 300,
            "prices": {"input": 1.0, "output": 2.0},
        },
    ],
    "figure": [{"name": "effort"}, {"name": "accuracy"}],
}


def study(name: str = "cheaper", **changes: Any) -> Study:
    return Study.from_table({**TABLE, **changes}, name=name, where=f"{name}.toml")


def mapped() -> Study:
    """A study with a heat map of eight cells."""
    method = {
        "name": "compress",
        "policy": ["random", "streaming"],
        "window": [2, 4],
        "ratio": [0.1, 0.2],
        "budget": 16,
    }
    models = [{"name": "transformers", "id": "pocket", "budget": 300, "method": [method]}]
    return study(
        "map",
        title="A map",
        task=[{"name": "tents", "size": 16}],
        model=models,
        figure=[{"name": "heatmap"}],
    )


def attempt(cell: Cell, problem: Problem, position: int, sample: int = 0) -> Attempt:
    """Right at even positions for the first model, at multiples of three for the second; one of
    them failed.
    """
    step = 2 if cell.label.model == "long" else 3
    if (cell.label.model, position) == ("short", 5):
        return Attempt(problem, sample, "failed", f"timeout {EVIL}", ())
    replies = []
    for turn in range(len(problem.turns)):
        right = solve_turn(cell.task, problem, turn)
        wrong = (
            "[[2, 2], [0, 0]]"
            if position == 1
            else right.replace("3", "2", 1)
            if right.startswith("[")
            else "<answer>99999</answer>"
        )
        thinking = (
            f"{EVIL} step {turn}, attempt at {position}: zebra{position}" if position < 5 else ""
        )
        tokens = (100 + 10 * position + cell.size) * (1 if cell.label.model == "short" else 3)
        bill = Bill(50, tokens, 7, 0.5 + position, "tokenizer")
        replies.append(Completion(thinking, right if position % step == 0 else wrong, "end", bill))
    return graded(cell.task, Attempt(problem, sample, "open", "", tuple(replies)))


def fill(path: Path, of: Study, cells: Sequence[Cell] | None = None) -> None:
    """Store every attempt of a study, or of some cells."""
    with Store(path, lock=True) as store:
        run = store.record_study(of)
        for cell in of.cells if cells is None else cells:
            problems = enumerate(cell.asked())
            store.add(
                [Done(cell, n, attempt(cell, problem, n)) for n, problem in problems],
                run,
                Recorded(1000, 0.5, 0, 0, 0.0),
            )


TOKEN = "secret"


@contextmanager
def served(
    *stores: Path, given: Sequence[Study] = (), host: str = "127.0.0.1", **limits: Any
) -> Iterator[str]:
    """The page's server; yields its address."""
    listening, view = bound("127.0.0.1", 0), View(opened(stores), given)
    server = page_server(view, host, TOKEN, **limits)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
        view.close()
        listening.close()


def cookie(address: str) -> str:
    """The cookie of a browser that has opened the printed address."""
    return f"ponder-{address.rpartition(':')[2]}={TOKEN}"


def get(
    address: str, path: str = "/", method: str = "GET", **headers: str
) -> tuple[int, dict[str, str], str]:
    """Status, headers and text of a page, asked for with the token's cookie unless the headers say
    otherwise.
    """
    connection = http.client.HTTPConnection(address.removeprefix("http://"), timeout=120)
    try:
        connection.request(method, path, headers={"Cookie": cookie(address)} | headers)
        answer = connection.getresponse()
        return answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read().decode()
    finally:
        connection.close()
