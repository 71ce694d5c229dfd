"""The longest turn, found by a run that decides what to ask next from the answers so far."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from ponder import Study
from ponder.core import Estimate
from ponder.run.adaptive import decisions
from ponder.store.store import Store

STUDY = """
seed = 3
stop = {{ goal = "max_size", target = 0.5, largest = 512 }}
[[task]]
name = "execution"
per_turn = 0
[[model]]
name = "oracle"
critical_size = {critical_size}
steepness = 6
[[figure]]
name = "accuracy"
target = 0.8
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
    with Store(Path("ponder.db")) as store:
        (decision,) = decisions(Study.load(study), store)
    assert decision.ended
    assert decision.estimate
    return decision.estimate


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
    assert sizes_asked("s.toml") == whole


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
    assert "the adaptive run has not ended" in ponder("report", "s.toml").stderr
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
    study = STUDY.format(critical_size=40)
    write("s.toml", study.partition("[[model]]")[0] + '[[model]]\nname = "./down.py"\n')
    result = ponder("run", "s.toml", "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["failed"] == 1
    again = json.loads(ponder("run", "s.toml", "--json").stdout)
    assert (again["done"], again["failed"]) == (1, 1)  # the same attempt, once more


def test_a_stored_study_with_a_search_is_read_as_the_goal() -> None:
    """As `ponder view` reads it."""
    task = {"name": "execution", "per_turn": 0}
    searched = {**task, "search": "max", "target": 0.5, "largest": 512}
    model = [{"name": "oracle"}]
    stored = Study.from_table({"task": [searched], "model": model})
    rule = {"goal": "max_size", "target": 0.5, "largest": 512}
    now = Study.from_table({"task": [task], "model": model, "stop": rule})
    assert [cell.key for cell in stored.cells] == [cell.key for cell in now.cells]
    assert stored.stop_rule == now.stop_rule
    renamed = Study.from_table(
        {"task": [task], "model": model, "stop": {"margin": 0.1, "of": "accuracy"}}
    )
    assert renamed.stop_rule is not None
    assert renamed.stop_rule.goal == "accuracy"


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
        (('"max_size"', '"min_size"'), "stop.goal: there is no choice 'min_size'"),
        (
            ("per_turn = 0", "per_turn = 0\nsize = 4"),
            "task[0].size: with the goal `max_size`, the run chooses the sizes",
        ),
        (("target = 0.5", "target = 1.5"), "stop: target is an accuracy from"),
        (("largest = 512", "largest = 1"), "stop: `largest` must be above 1, not 1"),
        (("target = 0.5", "margin = 0.1"), "stop: the goal `max_size` has no `margin`"),
        (
            ('goal = "max_size"', "decide = true"),
            "stop: `target` and `largest` belong to the goal `max_size`",
        ),
        (
            ("goal =", "of ="),
            'stop.of: `of` is now called `goal`\nhint: stop = { decide = true, goal = "max_size" }',
        ),
        (
            ("per_turn = 0", 'search = "max"'),
            "task[0].search: a search is now the goal `max_size` of the study's `stop`\nhint: remove it",
        ),
    ],
)
def test_mistakes(write, ponder, change, message) -> None:
    write("s.toml", STUDY.format(critical_size=40).replace(*change))
    result = ponder("plan", "s.toml")
    assert result.exit_code == 2
    assert message in result.stderr
