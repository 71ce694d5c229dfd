"""`ponder baseline`, and `ponder compare --baseline`, with `--run` too."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from ponder import Study
from ponder.core import UserError
from ponder.results.baseline import (
    Baseline,
    BaselineCell,
    BaselineFile,
    BaselineProblem,
    read_baseline,
)
from ponder.store.store import Store

STUDY = """
problems = {problems}
samples = 2
{more}
[[task]]
name = "chain_sum"
size = [4, 8, 16]
[[model]]
name = "oracle"
label = "old"
critical_size = 12
steepness = 3
prices = {{ input = 0.1, output = 1.0 }}
[[model]]
name = "oracle"
label = "new"
critical_size = {critical}
steepness = 3
tokens_per_size = 61.0
prices = {{ input = 0.1, output = 1.0 }}
"""
FILE_STUDY = """
problems = {problems}
samples = 2
seed = 3
[[task]]
name = "jsonl"
file = "questions.jsonl"
[[model]]
name = "oracle"
label = "prod"
error = {error}
"""
RUN = ("--baseline", "baseline.json", "--run", "--fail-if")


def study(problems: int = 60, critical: float = 12, more: str = "") -> str:
    return STUDY.format(problems=problems, critical=critical, more=more)


def only(label: str, text: str) -> str:
    """Return a study with one of its two models, as CI has it."""
    head, old, new = text.split("[[model]]")
    return f"{head}[[model]]{old if label == 'old' else new}"


def attempts(store: str = "ponder.db") -> int:
    """Count the attempts in a store."""
    with Store(Path(store)) as opened:
        return int(opened._db.execute("SELECT COUNT(*) FROM attempt").fetchone()[0])


@pytest.fixture
def baseline(ponder, write) -> str:
    """Write the baseline of `old`, and leave the study of `new` with an empty store."""
    write("both.toml", study())
    ponder("run", "both.toml", "--store", "main.db")
    done = ponder("baseline", "both.toml", "old", "--store", "main.db")
    assert done.stdout.startswith("baseline.json: 360 attempts at 180 problems, ")
    return write("gate.toml", only("new", study()))


def test_a_baseline_stands_for_its_model(ponder, baseline) -> None:
    """The tables are those of the two stored models; tokens and costs are kept exactly."""
    stored = ponder("compare", "both.toml", "old", "new", "--store", "main.db", "--json")
    ponder("run", "gate.toml")
    compared = ponder("compare", "gate.toml", "--baseline", "baseline.json", "--json")
    assert compared.exit_code == 0
    tables = json.loads(compared.stdout)
    for name, rows in json.loads(stored.stdout).items():
        for row, expected in zip(tables[name], rows, strict=True):
            for key in row.keys() - {"basis"}:
                value = expected[key]
                assert row[key] == (pytest.approx(value) if isinstance(value, float) else value)


def test_the_file_has_a_line_per_problem(ponder, baseline) -> None:
    lines = Path("baseline.json").read_text("utf-8").splitlines()
    assert sum('"right"' in line or '"wrong"' in line for line in lines) == 180
    content = read_baseline(Path("baseline.json")).content
    assert content.cells[1].task == {"name": "chain_sum", "version": 2, "size": 8, "seed": 0}
    attempt = content.cells[0].problems[0].attempts[1]
    assert attempt.sample == 1
    assert attempt.cost == pytest.approx(
        (0.1 * attempt.prompt_tokens + attempt.thinking_tokens + attempt.answer_tokens) / 1e6
    )
    attempt.cost = 7.0  # such as what a server charged
    matched = Baseline(Path("x"), content).matched(Study.load("gate.toml").cells)
    assert matched.outcomes[1].bill.cost == 7.0


def test_an_equal_model_passes_early_and_a_second_run_asks_nothing(ponder, baseline) -> None:
    first = ponder("compare", "gate.toml", *RUN, "worse", "--margin", "0.15")
    assert first.exit_code == 0
    assert "The gate passes: `worse`: accuracy " in first.stdout
    asked = attempts()
    assert asked < 180
    assert f"asked {asked} of 360 attempts" in first.stdout
    assert "Left out" not in first.stdout
    again = ponder("compare", "gate.toml", *RUN, "worse", "--margin", "0.15")
    assert (again.stdout, attempts()) == (first.stdout, asked)

    ponder("run", "gate.toml")
    assert attempts() == 360
    beyond = ponder("compare", "gate.toml", *RUN, "worse", "--margin", "0.15")
    assert beyond.stdout == first.stdout  # what the store holds beyond its end changes nothing


def test_a_run_that_is_cut_by_a_cap_resumes(ponder, baseline, write) -> None:
    text = only("new", study()).replace("critical_size", "budget = 5000\ncritical_size")
    write("gate.toml", text)
    command = ("compare", "gate.toml", *RUN, "worse", "--json")
    whole = ponder(*command, "--store", "whole.db")
    none = ponder(*command, "--set", "max_tokens=20000")
    assert none.exit_code == 2
    assert "the run ended before its first analysis\nhint: raise `max_tokens`" in none.stderr
    assert 0 < attempts() < 36
    some = ponder(*command, "--set", "max_tokens=90000")
    assert some.exit_code == 0
    assert "max_tokens" in some.stderr
    (gate,) = json.loads(some.stdout)["gate"]
    assert gate["asked"].startswith("asked 72 of 360 attempts")
    assert 72 < attempts() < attempts("whole.db")
    assert ponder(*command).stdout == whole.stdout


def test_a_worse_model_fails(ponder, baseline, write) -> None:
    write("gate.toml", only("new", study(critical=6)))
    reports = ("--junit", "out/gate.xml", "--markdown", "out/gate.md")
    failed = ponder("compare", "gate.toml", *RUN, "worse", "--fail-if", "cost > 50%", *reports)
    assert failed.exit_code == 1
    last = failed.stdout.splitlines()[-1]
    assert last.startswith("The gate fails: `worse`: accuracy −")
    assert attempts() < 180

    root = ElementTree.parse("out/gate.xml").getroot()
    assert root.tag == "testsuites"
    (suite,) = root
    assert [suite.get(name) for name in ("tests", "failures", "errors")] == ["2", "1", "0"]
    worse, cost = suite.findall("testcase")
    assert (worse.get("classname"), worse.get("name")) == ("gate.chain_sum", "fails if worse")
    (failure,) = worse
    assert failure.get("message") in last
    assert cost.find("failure") is None

    summary = Path("out/gate.md").read_text("utf-8")
    assert summary.startswith("**The gate fails: `worse`: accuracy −")
    assert "| chain\\_sum | cost > 50% | cost " in summary
    assert "`ponder compare gate.toml new --baseline baseline.json --disagree SIZE`" in summary
    printed = ponder("compare", "gate.toml", *RUN, "worse", "--markdown", "-")
    assert printed.exit_code == 1
    assert printed.stdout.startswith("**The gate fails: ")
    tables = json.loads(ponder("compare", "gate.toml", *RUN, "worse", "--json").stdout)
    (gate,) = tables["gate"]
    assert not gate["passes"]
    assert gate["checks"][0]["effect_high"] < 0

    shown = ponder("compare", "gate.toml", "--baseline", "baseline.json", "--disagree", 16)
    assert "a baseline has no texts" in shown.stdout
    assert "Work step by step" in shown.stdout


def test_what_cannot_be_told_passes_unless_it_may_not(ponder, write) -> None:
    write("few.toml", study(problems=10))
    ponder("run", "few.toml")
    command = ("compare", "few.toml", "old", "new", "--fail-if", "worse", "--junit", "gate.xml")
    passed = ponder(*command)
    assert passed.exit_code == 0
    assert "The gate passes, but can't tell about `worse`: accuracy " in passed.stdout
    (case,) = ElementTree.parse("gate.xml").getroot().iter("testcase")
    assert case.find("skipped") is not None
    failed = ponder(*command, "--fail-if", "inconclusive")
    assert failed.exit_code == 1
    assert "The gate fails: `worse`: " in failed.stdout
    assert "which excludes neither 0 nor a loss of 3 points" in failed.stdout
    (case,) = ElementTree.parse("gate.xml").getroot().iter("testcase")
    assert case[0].get("type") == "inconclusive"


def write_questions(write, number: int) -> None:
    lines = []
    for n in range(number):
        line = {"id": f"q{n}", "prompt": f"{n} + 1?", "answer": n + 1}
        lines.append(json.dumps(line) + "\n")
    write("questions.jsonl", "".join(lines))


def test_of_a_fixed_set_only_the_problems_of_the_baseline_are_asked(ponder, write) -> None:
    write_questions(write, 90)
    write("main.toml", FILE_STUDY.format(problems=40, error=0.2))
    ponder("run", "main.toml", "--store", "main.db")
    ponder("baseline", "main.toml", "--store", "main.db")
    write("gate.toml", FILE_STUDY.format(problems=90, error=0.1))
    done = ponder("compare", "gate.toml", *RUN, "worse", "--fail-if", "inconclusive")
    assert " of 80 attempts " in done.stdout
    with Store(Path("ponder.db")) as store:
        (cell,) = Study.load("gate.toml").cells
        asked = {outcome.problem for outcome in store.outcomes([cell])}
    assert asked <= {f"q{n}" for n in range(40)}
    assert len(asked) * 2 == attempts()

    write_questions(write, 91)
    changed = ponder("compare", "gate.toml", *RUN, "worse")
    assert changed.exit_code == 2
    assert "baseline.json: its task `jsonl` has other problems than the study's: `file` is" in (
        changed.stderr
    )


def test_training_seeds_are_kept(ponder, baseline) -> None:
    content = read_baseline(Path("baseline.json")).content
    recorded = content.cells[0]
    problems = [BaselineProblem(each.id, each.attempts) for each in recorded.problems]
    cells = []
    for seed in (1, 2):
        cells.append(
            BaselineCell(recorded.task, recorded.memory, [seed], recorded.counted_by, problems)
        )
    fields = {name: getattr(content, name) for name in BaselineFile.__struct_fields__}
    read = Baseline(Path("x"), BaselineFile(**fields | {"cells": cells}))
    matched = read.matched(Study.load("gate.toml").cells)
    assert {outcome.cell.training_seeds for outcome in matched.outcomes} == {(1,), (2,)}
    assert len({outcome.cell.key for outcome in matched.outcomes}) == 2
    assert len({outcome.cell.variant_key for outcome in matched.outcomes}) == 1


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda text: text[:5000], "this is not a baseline, or it is damaged"),
        (lambda text: "[1, 2]", "this is not a baseline, or it is damaged"),
        (lambda text: text.replace('"right"', '"wrong"', 1), "it was changed or damaged"),
        (lambda text: text.replace('"right"', '"fine"', 1), "cells[0].problems[0][1]"),
        (lambda text: text.replace('baseline": 1', 'baseline": 7'), "a newer Ponder wrote this"),
        (lambda text: text.replace('"study"', '"studies"'), "the field `study` is missing"),
    ],
)
def test_a_damaged_baseline_is_refused(ponder, baseline, damage, message: str) -> None:
    path = Path("baseline.json")
    path.write_text(damage(path.read_text("utf-8")), "utf-8")
    with pytest.raises(UserError) as raised:
        read_baseline(path)
    assert message in raised.value.in_terminal()
    assert "hint: " in raised.value.in_terminal()
    result = ponder("compare", "gate.toml", *RUN, "worse")
    assert result.exit_code == 2
    assert not Path("ponder.db").exists()  # nothing was asked


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("gate.toml", "nwe", *RUN, "worse"), "no model `nwe`\nhint: did you mean `new`?"),
        (("gate.toml", "old", "new", *RUN, "worse"), "A is the baseline, so only B is named"),
        (("both.toml", *RUN, "worse"), "name one of the study's models: ponder compare"),
        (("gate.toml", *RUN, "worse", "--set", "seed=9"), "`seed` is 0 in the baseline and 9 in"),
        (
            ("gate.toml", *RUN, "worse", "--set", "task.digits=3"),
            "`digits` is its default in the baseline and 3 in the study",
        ),
        (
            ("gate.toml", *RUN, "worse", "--set", "task.size=[5]"),
            "of the study `both` has `chain_sum` of size 4, 8, 16, and this study asks `chain_sum`",
        ),
        (("gate.toml", *RUN, "worse", "--set", "stop={decide=true}"), "the study has `stop`"),
        (("free.toml", *RUN, "cost > 5%"), "`cost > 5%` needs the prices of both models, and"),
        (("gate.toml", *RUN, "seconds > 5%"), "no seconds were recorded of `old`"),
        (("gate.toml", "--run", "--fail-if", "worse"), "--run needs --baseline and --fail-if"),
        (("gate.toml", "--baseline", "none.json"), "can't read none.json: No such file"),
        (("gate.toml", *RUN, "worse", "--disagree", "4"), "--disagree prints attempts"),
        (("gate.toml", "--junit", "x.xml"), "--junit needs a condition"),
    ],
)
def test_mistakes(ponder, baseline, write, words, message: str) -> None:
    write("free.toml", only("new", study()).replace("prices", "#"))
    result = ponder("compare", *words)
    assert result.exit_code == 2
    assert message in result.stderr
    assert not Path("ponder.db").exists()  # nothing was asked
