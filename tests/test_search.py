"""The longest turn, found by a run that decides what to ask next from the answers so far."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from ponder import Study
from ponder.core import Estimate
from ponder.store.store import Store

STUDY = """
seed = 3
[[task]]
name = "execution"
per_turn = 0
search = "max"
target = 0.5
largest = 512
[[model]]
name = "oracle"
critical_size = {critical_size}
steepness = 6
[[figure]]
name = "max_turn"
"""


DOWN = """
from dataclasses import dataclass
from ponder.core import Completion, Model, ModelFailure, Request
@dataclass
class Down(Model):
    async def complete(self, request: Request) -> Completion:
        raise ModelFailure("down")
"""


def sizes_asked(study: str) -> dict[int, int]:
    asked: dict[int, int] = {}
    with Store(Path("ponder.db")) as store:
        for outcome in store.outcomes(Study.load(study).cells):
            asked[outcome.size] = asked.get(outcome.size, 0) + 1
    return asked


def estimate(study: str) -> Estimate:
    cells = Study.load(study).cells
    with Store(Path("ponder.db")) as store:
        return cells[0].quota.search.estimate({cell.size: store.score(cell) for cell in cells})  # type: ignore[union-attr]


def test_finds_the_critical_size(write, ponder) -> None:
    write("s.toml", STUDY.format(critical_size=40))
    result = ponder("run", "s.toml", "--json")
    assert result.exit_code == 0, result.stderr
    asked = sizes_asked("s.toml")
    assert sum(asked.values()) == json.loads(result.stdout)["planned"] < 400
    near = sum(n for size, n in asked.items() if 20 <= size <= 80)
    assert near > sum(asked.values()) / 2  # attempts go where they inform
    assert ponder("report", "s.toml").exit_code == 0
    interval = estimate("s.toml")
    assert interval.low < 40 < interval.high <= 1.5 * interval.low
    assert interval.attempts == sum(asked.values())
    assert json.loads(ponder("run", "s.toml", "--json").stdout)["planned"] == 0  # it knows enough


def test_a_search_resumes_as_if_it_had_not_been_interrupted(write, ponder) -> None:
    """One attempt at a time: within a round, what is asked first may be answered last."""
    write(
        "s.toml",
        STUDY.format(critical_size=40).replace(
            "steepness", "concurrency = 1\nbudget = 8000\nsteepness"
        ),
    )
    ponder("run", "s.toml")
    whole = sizes_asked("s.toml")
    for file in Path().glob("ponder.db*"):
        file.unlink()
    for cap in range(20_000, 80_000, 20_000):
        capped = json.loads(ponder("run", "s.toml", "--set", f"max_tokens={cap}", "--json").stdout)
        assert capped["capped"]
    assert 0 < sum(sizes_asked("s.toml").values()) < sum(whole.values())
    assert not json.loads(ponder("run", "s.toml", "--json").stdout)["capped"]
    interval = estimate("s.toml")
    assert interval.low < 40 < interval.high <= 1.5 * interval.low
    assert sizes_asked("s.toml").keys() <= set(Study.load("s.toml").cells[0].quota.search.sizes)  # type: ignore[union-attr]


def test_a_search_that_has_not_ended_is_incomplete(write, ponder) -> None:
    write(
        "s.toml",
        STUDY.format(critical_size=40).replace(
            "steepness", "concurrency = 1\nbudget = 8000\nsteepness"
        ),
    )
    ponder("run", "s.toml", "--set", "max_tokens=20000")
    part = json.loads(ponder("report", "s.toml", "--json").stdout)
    assert not part["complete"]
    assert "a search has not ended" in ponder("report", "s.toml").stderr
    assert json.loads(ponder("plan", "s.toml", "--json").stdout)["total"]["calls"] > 500
    resumed = json.loads(ponder("run", "s.toml", "--json").stdout)
    assert resumed["stored_before"] == part["answered"] > 0
    assert json.loads(ponder("report", "s.toml", "--json").stdout)["complete"]
    assert json.loads(ponder("plan", "s.toml", "--json").stdout)["total"]["calls"] == 0


def test_a_search_takes_one_sample_per_problem(write, ponder) -> None:
    write("s.toml", "samples = 4\n" + STUDY.format(critical_size=40))
    tally = json.loads(ponder("run", "s.toml", "--json").stdout)
    assert tally["done"] == tally["planned"] == sum(sizes_asked("s.toml").values())


def test_a_search_ends_when_every_attempt_fails(write, ponder, folder) -> None:
    write("down.py", DOWN)
    write("s.toml", STUDY.partition("[[model]]")[0] + '[[model]]\nname = "./down.py"\n')
    result = ponder("run", "s.toml", "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["failed"] == 1


def test_a_search_asks_what_comes_without_one_first(write, ponder) -> None:
    write(
        "s.toml", STUDY.format(critical_size=40) + '[[task]]\nname = "execution"\nsize = [3, 5]\n'
    )
    assert ponder("run", "s.toml").exit_code == 0
    asked = sizes_asked("s.toml")
    assert (asked[3], asked[5]) == (20, 20)


@pytest.mark.parametrize(("critical_size", "ends"), [("inf", (512, math.inf)), (0.01, (0, 1))])
def test_open_ends(write, ponder, critical_size, ends) -> None:
    write("s.toml", STUDY.format(critical_size=critical_size))
    assert ponder("run", "s.toml").exit_code == 0
    interval = estimate("s.toml")
    assert math.isnan(interval.value)
    assert (interval.low, interval.high) == ends
    assert ponder("report", "s.toml").exit_code == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (('search = "max"', 'search = "min"'), "task[0].search: there is no choice 'min'"),
        (
            ('search = "max"', 'search = "max"\nsize = 4'),
            "task[0].size: a search chooses its own sizes",
        ),
        (("target = 0.5", "target = 1.5"), "task[0]: target is an accuracy from"),
        (("largest = 512", "largest = 1"), "task[0]: `largest` must be above 1, not 1"),
    ],
)
def test_mistakes(write, ponder, change, message) -> None:
    write("s.toml", STUDY.format(critical_size=40).replace(*change))
    result = ponder("plan", "s.toml")
    assert result.exit_code == 2
    assert message in result.stderr
