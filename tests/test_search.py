"""The longest single turn, found by a run that decides as it goes what to ask."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ponder.runner.store import Store
from ponder.runner.study import Study

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


def sizes_asked(study: str) -> dict[int, int]:
    asked: dict[int, int] = {}
    with Store(Path("ponder.db")) as store:
        for outcome in store.outcomes(Study.load(study).cells):
            asked[outcome.size] = asked.get(outcome.size, 0) + 1
    return asked


def test_finds_where_the_model_critical_size(write, ponder) -> None:
    write("s.toml", STUDY.format(critical_size=40))
    result = ponder("run", "s.toml", "--json")
    assert result.exit_code == 0, result.stderr
    asked = sizes_asked("s.toml")
    assert sum(asked.values()) == json.loads(result.stdout)["planned"] < 400
    near = sum(n for size, n in asked.items() if 20 <= size <= 80)
    assert near > sum(asked.values()) / 2  # attempts go where they inform
    assert ponder("report", "s.toml").exit_code == 0
    (row,) = Path("reports/s/longest-summary.csv").read_text().splitlines()[1:]
    assert "oracle" in row
    assert json.loads(ponder("run", "s.toml", "--json").stdout)["planned"] == 0  # it knows enough


def test_a_search_that_was_broken_off_goes_on(write, ponder) -> None:
    write("s.toml", STUDY.format(critical_size=40))
    write("t.toml", "max_tokens = 60000\n" + STUDY.format(critical_size=40))
    capped = json.loads(ponder("run", "t.toml", "--json").stdout)
    assert capped["capped"]
    ponder("run", "s.toml")
    pieces = sizes_asked("s.toml")
    Path("ponder.db").unlink()
    ponder("run", "s.toml")
    assert sizes_asked("s.toml").keys() <= set(Study.load("s.toml").cells[0].search.sizes)  # type: ignore[union-attr]
    assert abs(sum(pieces.values()) - sum(sizes_asked("s.toml").values())) < 200


@pytest.mark.parametrize(("critical_size", "says"), [("inf", "beyond"), (0.01, "below")])
def test_open_ends(write, ponder, critical_size, says) -> None:
    write("s.toml", STUDY.format(critical_size=critical_size))
    assert ponder("run", "s.toml").exit_code == 0
    assert ponder("report", "s.toml").exit_code == 0
    assert says in Path("reports/s/report.html").read_text()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (('search = "max"', 'search = "min"'), "task[0].search: Invalid enum value 'min'"),
        (('search = "max"', 'search = "max"\nsize = 4'), "task[0].size: a search finds its own sizes"),
        (("target = 0.5", "target = 1.5"), "task[0]: target is a chance from"),
        (("largest = 512", "largest = 1"), "task[0]: the search goes from low to a higher size"),
    ],
)
def test_mistakes(write, ponder, change, message) -> None:
    write("s.toml", STUDY.format(critical_size=40).replace(*change))
    result = ponder("plan", "s.toml")
    assert result.exit_code == 2
    assert message in result.stderr
