"""Adaptive runs: a study with `stop` asks in rounds, ends early, and repeats its decisions from the
store.
"""

from __future__ import annotations

import csv
import json
import tomllib
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from ponder import Study
from ponder.core import UserError
from ponder.run.adaptive import Result, _scores, asked_cells, trials
from ponder.store.store import Store

LADDER = """
problems = 30
seed = 3
stop = { decide = true }
[[task]]
name = "execution"
per_turn = 0
size = [4, 6, 9, 13, 20, 30, 45, 68, 100]
[[model]]
name = "oracle"
critical_size = 25
steepness = 6
budget = 4000
[[figure]]
name = "accuracy"
"""

VARIANTS = """
problems = 60
seed = 3
stop = { decide = true, goal = "best" }
[[task]]
name = "execution"
per_turn = 0
size = [20, 30]
[[model]]
name = "oracle"
critical_size = [12, 16, 25, 50]
steepness = 6
budget = 4000
prices = { input = 1.0, output = 2.0 }
[[figure]]
name = "frontier"
"""


def asked(study: str, *settings: str) -> Counter[tuple[str, int]]:
    """By model and size, how many attempts the store has of the full plan."""
    with Store(Path("ponder.db")) as store:
        loaded = Study.load(study, settings)
        return Counter((o.label.model, o.size) for o in store.outcomes(loaded.cells))


def ran(ponder, study: str, *options: str) -> dict:
    result = ponder("run", study, "--json", *options)
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def test_a_ladder_stops_early_and_says_what_it_saved(write, ponder) -> None:
    write("s.toml", LADDER)
    planned = ponder("plan", "s.toml").stdout
    assert (
        "stop: the critical size of oracle on execution, as precisely as the full ladder" in planned
    )
    assert "at most 270 attempts, likely fewer" in planned
    tally = ran(ponder, "s.toml")
    found = tally["adaptive"]
    assert (
        tally["done"]
        == tally["planned"]
        == found["attempts"]
        == sum(asked("s.toml").values())
        < 190
    )
    assert found["full_plan"] == 270
    assert found["saved"]["attempts"] == 270 - tally["done"]
    assert found["saved"]["tokens"] > 0
    (decision,) = found["decisions"]
    assert decision["ended"]
    assert decision["estimate"]["low"] < 25 < decision["estimate"]["high"]
    assert "accuracy falls below 50 % at" in decision["text"]
    again = ran(ponder, "s.toml")
    assert again["planned"] == 0
    assert again["adaptive"]["decisions"] == found["decisions"]
    assert "nothing more to ask" in ponder("plan", "s.toml").stdout
    assert (
        "of the full plan's 270 attempts; the rest would take about"
        in ponder("run", "s.toml").stdout
    )


def test_without_stop_a_later_run_completes_the_ladder(write, ponder) -> None:
    write("s.toml", LADDER)
    first = ran(ponder, "s.toml")
    write("full.toml", LADDER.replace("stop = { decide = true }\n", ""))
    assert ran(ponder, "full.toml")["done"] == 270 - first["done"]
    assert set(asked("full.toml").values()) == {30}
    again = ran(ponder, "s.toml")  # attempts beyond the design change nothing
    assert again["done"] == 0
    assert again["adaptive"]["decisions"] == first["adaptive"]["decisions"]


@pytest.mark.parametrize("text", [LADDER, VARIANTS])
def test_a_run_that_resumes_asks_the_same_as_one_in_one_go(write, ponder, text: str) -> None:
    write("s.toml", text)
    whole = ran(ponder, "s.toml")
    of_whole = asked("s.toml")
    for file in Path().glob("ponder.db*"):
        file.unlink()
    parts = [
        ran(ponder, "s.toml", "--set", f"max_tokens={cap}") for cap in (40_000, 90_000, 140_000)
    ]
    assert all(part["capped"] for part in parts)
    assert 0 < sum(asked("s.toml").values()) < sum(of_whole.values())
    last = ran(ponder, "s.toml")
    assert asked("s.toml") == of_whole
    assert last["adaptive"] == whole["adaptive"]


def test_the_best_variant_is_asked_most_on_shared_problems(write, ponder) -> None:
    write("s.toml", VARIANTS)
    tally = ran(ponder, "s.toml")
    found = tally["adaptive"]
    assert "oracle critical_size=50 is the best: ahead of" in found["decisions"][0]["text"]
    assert found["decisions"][0]["estimate"]["low"] > 0
    assert tally["done"] < 0.5 * found["full_plan"]
    assert found["saved"]["cost"] > 0
    counts = asked("s.toml")
    assert counts["oracle critical_size=12", 20] < counts["oracle critical_size=50", 20]
    with Store(Path("ponder.db")) as store:
        problems: dict[str, list[str]] = {}
        for o in store.outcomes(Study.load("s.toml").cells):
            problems.setdefault(o.label.model, []).append(o.problem)
    assert set(problems["oracle critical_size=12"]) < set(problems["oracle critical_size=50"])


def test_two_variants_are_compared(write, ponder) -> None:
    write("s.toml", VARIANTS.replace("[12, 16, 25, 50]", "[12, 50]").replace(', goal = "best"', ""))
    assert (
        "the difference between oracle critical_size=12 and oracle critical_size=50"
        in ponder("plan", "s.toml").stdout
    )
    found = ran(ponder, "s.toml")["adaptive"]
    assert "the difference is clear" in found["decisions"][0]["text"]
    assert found["decisions"][0]["estimate"]["high"] < 0
    assert found["attempts"] < 0.5 * found["full_plan"]


FRONTIER = """
problems = 60
seed = 3
stop = { decide = true }
[[task]]
name = "execution"
per_turn = 0
size = 20
[[model]]
name = "oracle"
label = "good"
critical_size = 50
[[model]]
name = "oracle"
label = "poor"
critical_size = 15
tokens_per_size = [100, 120]
[[figure]]
name = "frontier"
"""


def test_variants_that_another_dominates_are_dropped(write, ponder) -> None:
    write("s.toml", FRONTIER)
    assert (
        "stop: which of 3 are on the frontier of accuracy and tokens"
        in ponder("plan", "s.toml").stdout
    )
    found = ran(ponder, "s.toml")["adaptive"]
    assert found["decisions"][0]["text"].startswith(
        "1 of 3 may be on the frontier: good; dominated: poor"
    )
    assert found["attempts"] < 0.5 * found["full_plan"]


def test_turn_lengths_of_one_model_are_compared(write, ponder) -> None:
    text = LADDER.replace("per_turn = 0", "per_turn = [1, 2, 4]").replace(
        "[4, 6, 9, 13, 20, 30, 45, 68, 100]", "8"
    )
    write("s.toml", text)
    assert "stop: the best of 3" in ponder("plan", "s.toml").stdout


def test_an_accuracy_to_within_a_margin(write, ponder) -> None:
    text = LADDER.replace("[4, 6, 9, 13, 20, 30, 45, 68, 100]", "[6, 26]").replace(
        "decide = true", "margin = 0.12"
    )
    write("s.toml", text.replace("problems = 30", "problems = 200"))
    tally = ran(ponder, "s.toml")
    counts = asked("s.toml")
    assert counts["oracle", 6] < counts["oracle", 26] < 200
    assert "2 of 2 cells known to within the margin" in tally["adaptive"]["decisions"][0]["text"]


def test_the_report_has_the_attempts_of_the_design_and_says_so(write, ponder) -> None:
    write("s.toml", LADDER)
    found = ran(ponder, "s.toml")["adaptive"]
    write("full.toml", LADDER.replace("stop = { decide = true }\n", ""))
    ran(ponder, "full.toml")
    result = json.loads(ponder("report", "s.toml", "--json").stdout)
    assert result["complete"]
    assert result["answered"] == found["attempts"]  # though the store has the full ladder
    page = Path("reports/s/report.html").read_text("utf-8")
    assert (
        f"Adaptive run: its results decided what to ask, {found['attempts']} of the full plan&#39;s 270"
        in page
    )
    assert "Intervals of critical sizes are valid for such a run" in page
    with Path("reports/s/accuracy-summary.csv").open() as file:
        (row,) = csv.DictReader(file)
    estimate = found["decisions"][0]["estimate"]
    assert float(row["critical_size_low"]) == pytest.approx(estimate["low"])
    assert float(row["critical_size_high"]) == pytest.approx(estimate["high"])
    ponder("report", "full.toml")
    assert "Adaptive run" not in Path("reports/full/report.html").read_text("utf-8")


def test_a_capped_adaptive_run_is_incomplete(write, ponder) -> None:
    write("s.toml", LADDER)
    tally = ran(ponder, "s.toml", "--set", "max_tokens=40000")
    assert tally["adaptive"]["decisions"][0]["text"] == "undecided so far"
    assert not json.loads(ponder("report", "s.toml", "--json").stdout)["complete"]


def test_a_probe_asks_every_cell(write, ponder) -> None:
    write("s.toml", LADDER)
    assert ponder("plan", "s.toml", "--probe", "2").exit_code == 0
    assert set(asked("s.toml").values()) == {2}


@pytest.mark.parametrize(
    ("stop", "said"),
    [
        ("{}", "`stop` needs a `margin` or `decide = true`"),
        ("{ margin = 3 }", "margin must be between 0 and 1"),
        ("{ margn = 0.03 }", "did you mean `margin`?"),
        ('{ decide = true, goal = "bst" }', "did you mean `best`?"),
        (
            '{ decide = true, goal = "difference" }',
            "`difference` compares two models or variants, and the study has 1",
        ),
        (
            '{ margin = 0.03, goal = "frontier" }',
            "compares several models or variants, and the study has 1",
        ),
        ("true", "expected"),
    ],
)
def test_a_wrong_stop_is_refused(write, ponder, stop: str, said: str) -> None:
    write("s.toml", LADDER.replace("{ decide = true }", stop))
    result = ponder("plan", "s.toml")
    assert result.exit_code == 2
    assert "stop" in result.stderr
    assert said in result.stderr


def test_one_size_has_nothing_to_decide(write) -> None:
    write("s.toml", LADDER.replace("[4, 6, 9, 13, 20, 30, 45, 68, 100]", "6"))
    with pytest.raises(UserError, match="nothing to decide"):
        Study.load("s.toml").check()


FLAKY = """
from dataclasses import dataclass
from ponder.core import Completion, ModelFailure, Request
from ponder.models.oracle import Oracle
@dataclass(kw_only=True)
class Flaky(Oracle):
    async def complete(self, request: Request) -> Completion:
        if request.problem.id[-1] in "05":
            raise ModelFailure("busy")
        return await super().complete(request)
"""


def test_failed_attempts_are_left_out_and_retried(write, ponder) -> None:
    write("flaky.py", FLAKY)
    write("s.toml", LADDER.replace('"oracle"', '"./flaky.py"'))
    result = ponder("run", "s.toml", "--json")
    assert result.exit_code == 1
    tally = json.loads(result.stdout)
    assert tally["failed"] > 0
    (decision,) = tally["adaptive"]["decisions"]
    assert decision["ended"]
    assert decision["estimate"]["low"] < 25 < decision["estimate"]["high"]
    assert decision["estimate"]["attempts"] == tally["done"] - tally["failed"]
    again = json.loads(ponder("run", "s.toml", "--json").stdout)
    assert again["done"] == again["failed"] == tally["failed"]


def test_a_problem_counts_only_if_every_size_was_answered() -> None:
    """Or else an arm whose large sizes fail would be compared on small ones."""
    easy, hard = Study.from_table(tomllib.loads(VARIANTS)).cells[:2]
    results = {
        easy.key: {0: Result(1, 1, 1, 10), 1: Result(1, 1, 1, 10)},
        hard.key: {0: Result(0, 1, 1, 30), 1: Result(0, 0, 1, 0)},
    }
    scores = _scores((easy, hard), lambda cell: results[cell.key], 2)
    assert scores[0].tolist() == [0.5, 20.0]
    assert np.isnan(scores[1]).all()


def test_unequal_numbers_of_problems_are_asked_in_proportion(write, ponder) -> None:
    rows = "".join(
        json.dumps({"prompt": f"{n} + 1?", "answer": str(n + 1)}) + "\n" for n in range(12)
    )
    write("twelve.jsonl", rows)
    study = VARIANTS.replace(
        "[[model]]", '[[task]]\nname = "jsonl"\nfile = "twelve.jsonl"\n[[model]]', 1
    )
    write("two.toml", study)
    (trial,) = trials(Study.load("two.toml"))
    assert trial.design.problems == 60 + 60 + 12
    # A tenth of the problems: a tenth of each task and size.
    for arm in trial.arms:
        counts = {(c.label.task, c.size): c.quota.problems for c in trial.asked([13, 0, 0, 0])}
        assert sorted(counts.values()) == [1, 6, 6], arm
    # Every problem is asked once, and the decision is repeated from the store.
    ran(ponder, "two.toml")
    with Store(Path("ponder.db")) as store:
        counts, ended = trial.replay(store)
        assert ended
        planned = sum(cell.quota.problems or 0 for cell in trial.asked(counts))
        assert len(list(store.outcomes(trial.asked(counts)))) == planned


SORTED = f"""
problems = 100
seed = 1
stop = {{ decide = true }}
[[task]]
name = "jsonl"
file = "sorted.jsonl"
[[model]]
name = "{Path(__file__).parent}/data/student.py"
subject = ["algebra", "geometry"]
budget = 2000
concurrency = 1
"""


def sorted_file(write, number: int) -> list[str]:
    """Write a file with problems of one subject before those of the other; returns their ids."""
    names = []
    lines = []
    for n in range(number):
        subject = "algebra" if n < number / 2 else "geometry"
        names.append(f"{subject} {n}")
        facts = {"subject": subject}
        line = {"id": names[-1], "prompt": f"{n} + 1?", "answer": n + 1, "facts": facts}
        lines.append(json.dumps(line) + "\n")
    write("sorted.jsonl", "".join(lines))
    return names


def answered(study: str) -> dict[str, list[str]]:
    """By model, the problems whose attempts the store has of the full plan, in the order in which
    they were made.
    """
    problems: dict[str, list[str]] = {}
    with Store(Path("ponder.db")) as store:
        for cell in Study.load(study).cells:
            rows = store._db.execute(
                "SELECT name FROM attempt JOIN problem ON problem.id = problem JOIN cell ON cell.id = cell"
                " WHERE key = ? ORDER BY attempt.id",
                (cell.key,),
            )
            problems[cell.label.model] = [name for (name,) in rows]
    return problems


@pytest.mark.parametrize("seed", range(1, 7))
def test_the_order_of_a_file_decides_nothing(write, ponder, seed: int) -> None:
    """Both models are equally good on the file; the first half is easier for the first of them."""
    sorted_file(write, 100)
    write("s.toml", SORTED.replace("seed = 1", f"seed = {seed}"))
    (decision,) = ran(ponder, "s.toml")["adaptive"]["decisions"]
    assert decision["ended"]
    assert "no clear difference" in decision["text"]


def test_a_fixed_set_is_asked_in_one_random_order(write, ponder) -> None:
    names = sorted_file(write, 120)
    write("s.toml", SORTED)
    whole = ran(ponder, "s.toml")
    asked_first, asked_second = answered("s.toml").values()
    assert asked_first == asked_second  # problems are shared
    assert set(asked_first) < set(names[:100])  # which the full plan asks
    assert asked_first != sorted(asked_first, key=names.index)
    assert ran(ponder, "s.toml")["adaptive"] == whole["adaptive"]

    for file in Path().glob("ponder.db*"):
        file.unlink()
    for cap in (6_000, 12_000):
        assert ran(ponder, "s.toml", "--set", f"max_tokens={cap}")["capped"]
    last = ran(ponder, "s.toml")
    assert last["adaptive"] == whole["adaptive"]
    assert set(answered("s.toml").popitem()[1]) == set(asked_first)

    write("full.toml", SORTED.replace("stop = { decide = true }\n", ""))
    full = ran(ponder, "full.toml")
    assert full["done"] == 2 * (100 - len(asked_first))
    assert [set(problems) for problems in answered("full.toml").values()] == [set(names[:100])] * 2
    again = ran(ponder, "s.toml")
    assert again["done"] == 0
    assert again["adaptive"]["decisions"] == whole["adaptive"]["decisions"]
    study = Study.load("s.toml")
    with Store(Path("ponder.db")) as store:
        cells = asked_cells(study, store)
        # what a report is drawn from
        assert {o.problem for o in store.outcomes(cells)} == set(asked_first)
        assert {done.attempt.problem.id for done in store.attempts(cells[0])} == set(asked_first)
        assert store.spent(cells)[0] == 2 * len(asked_first)


def test_the_probe_of_an_adaptive_run_is_part_of_it(write, ponder) -> None:
    sorted_file(write, 100)
    write("s.toml", SORTED)
    whole = ran(ponder, "s.toml")
    for file in Path().glob("ponder.db*"):
        file.unlink()
    assert ponder("plan", "s.toml", "--probe", "4").exit_code == 0
    after = ran(ponder, "s.toml")
    assert after["done"] == whole["done"] - 8
    assert after["adaptive"] == whole["adaptive"]
