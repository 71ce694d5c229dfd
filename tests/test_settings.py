"""`--set` changes any key of a study for one command; a mistake in it blames the option, not the file."""

from __future__ import annotations

import pytest

from ponder.runner.study import Study

GOOD = """
title = "t"
problems = 3
[[task]]
name = "chain_sum"
size = [2, 4]
[[model]]
name = "oracle"
"""
METHODS = (
    GOOD
    + 'method = [[], [{ name = "vote", n = 2 }], [{ name = "budget_force", think = 9 }, { name = "vote", n = 4 }]]\n'
)


def test_set(write) -> None:
    write("s.toml", GOOD)
    study = Study.load("s.toml", ["model.error=0.25", "problems=7", "task.size=[8]", "model[0].label=two words"])
    assert study.problems == 7
    (cell,) = study.cells
    assert study.cells[0].variant_label == "two words"
    assert (cell.size, cell.model.error, cell.model_label) == (8, 0.25, "two words")  # type: ignore[attr-defined]


@pytest.mark.parametrize("setting", ["problems", "model.x.y=1", "models.id=1", "model[3].id=1", "=1"])
def test_set_mistakes(write, ponder, setting) -> None:
    write("s.toml", GOOD)
    result = ponder("plan", "s.toml", "--set", setting)
    assert result.exit_code == 2
    assert "--set" in result.stderr or "no key" in result.stderr


def test_set_one_table_of_several(write) -> None:
    write("s.toml", GOOD + '[[model]]\nname = "oracle"\nlabel = "second"\n')
    study = Study.load("s.toml", ["model[1].error=0.5", "task.digits=3"])
    assert [c.model.error for c in study.cells[::2]] == [0.0, 0.5]  # type: ignore[attr-defined]
    assert {c.task.digits for c in study.cells} == {3}  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("setting", "chains"),
    [
        ("model.method[1].n=8", [[], ["vote 8"], ["budget_force", "vote 4"]]),
        ("model.method[2][1].n=8", [[], ["vote 2"], ["budget_force", "vote 8"]]),
        ("model[0].method[1][0].n=8", [[], ["vote 8"], ["budget_force", "vote 4"]]),
        ('model.method=[{ name = "vote", n = 3 }]', [["vote 3"]]),
    ],
)
def test_set_reaches_methods(write, setting, chains) -> None:
    write("s.toml", METHODS)
    cells = Study.load("s.toml", [setting, "task.size=2"]).cells
    named = [[f"vote {m.n}" if m.plugin_name() == "vote" else m.plugin_name() for m in c.methods] for c in cells]  # type: ignore[attr-defined]
    assert named == chains


def test_set_without_an_index_means_every_table(write) -> None:
    second = '[[model]]\nname = "oracle"\nlabel = "second"\nmethod = [[], [{ name = "vote", n = 4 }]]\n'
    write("s.toml", GOOD + 'method = { name = "vote", n = 2 }\n' + second)
    cells = Study.load("s.toml", ["model.method.n=7", "task.size=2"]).cells
    assert [[m.n for m in c.methods] for c in cells] == [[7], [], [7]]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("problems=x", "--set problems: expected a whole number, not text\n"),
        ("model.error=x", "--set model.error: expected a number, not text\n"),
        ("model[0].error=[0.1, true]", "--set model[0].error: expected a number, not true or false\n"),
        ("task.size=[2, 1]", "--set task.size: chain_sum adds at least 2 numbers, not 1\n"),
        ("model.prices.input=x", "--set model.prices.input: there is no `prices` in the study"),
        ("model.method.n=3", "--set model.method.n: there is no `method` in the study"),
        ("model.error.x=3", "--set model.error.x: there is no `error` in the study"),
        ("task.size[0]=3", "--set task.size[0]: a value in a list can't be set alone\nhint: --set task.size=[…]"),
        ("problems.x=3", "--set problems.x: `problems` is no table, so nothing in it can be set"),
        ("task[2].size=3", "--set task[2].size: there is no task[2]: the study has 1, counted from 0"),
        ("taks.size=3", "--set taks.size: there is no `taks` in the study to set anything in\nhint: did you mean `task`?"),
        ("model.errr=1", "--set model.errr: model `oracle` has no key `errr`\nhint: did you mean `error`?"),
    ],
)  # fmt: skip
def test_an_error_in_a_setting_blames_the_option_not_the_file(write, ponder, setting, message) -> None:
    result = ponder("plan", write("s.toml", GOOD), "--set", "title=x", "--set", setting)
    assert result.exit_code == 2
    assert message in result.stderr
    assert "s.toml" not in result.stderr


def test_an_error_in_the_file_blames_the_file(write, ponder) -> None:
    result = ponder("plan", write("s.toml", GOOD.replace('"oracle"', '"oracle"\nerror = "x"')), "--set", "problems=5")
    assert "s.toml: model[0].error: expected a number, not text" in result.stderr
