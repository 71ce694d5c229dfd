"""Keys of stored attempts never change: a store that was paid for yesterday is found again today.

`data/attempt_keys.json` holds keys that Ponder 0.1 gave to cells of the built-in studies and of
`data/keys.toml`, which has one of each kind of setting. A change of a key here means that every
user pays again for what is already stored.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from ponder import Study
from ponder.study.cell import Cell

DATA = Path(__file__).parent / "data"
GOLDEN: dict[str, list[list[str]]] = json.loads((DATA / "attempt_keys.json").read_text("utf-8"))


def cells_of(name: str) -> list[Cell]:
    return list(Study.load(str(DATA / "keys.toml") if name == "keys" else name).cells)


def keys_of(cell: Cell) -> list[str]:
    """Return a cell's key, the id of its first problem, and the seed of that problem's second
    attempt.
    """
    problem = next(iter(cell.asked()))
    return [cell.key.hex(), problem.id, str(cell.attempt_seed(problem, 1, 0))]


def sampled(cells: list[Cell]) -> Iterator[Cell]:
    """Yield at most twelve cells, spread evenly."""
    step = max(1, len(cells) // 12)
    yield from cells[::step][:12]


@pytest.mark.parametrize("name", sorted(GOLDEN))
def test_a_stored_attempt_is_found_again(name: str) -> None:
    assert [keys_of(cell) for cell in sampled(cells_of(name))] == GOLDEN[name]


def test_there_are_at_least_two_hundred_keys() -> None:
    assert sum(map(len, GOLDEN.values())) >= 200
