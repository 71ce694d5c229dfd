"""A list is a sweep, also inside a model's tables; `--set` changes any key of a study for one
command, and a mistake in it blames the option, not the file.
"""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from ponder import Study
from ponder.core import UserError
from ponder.core.errors import Location
from ponder.core.settings import sweep, sweep_size, toml
from ponder.study.study import StudySpec

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
    study = Study.load(
        "s.toml", ["model.error=0.25", "problems=7", "task.size=[8]", "model[0].label=two words"]
    )
    assert study.problems == 7
    (cell,) = study.cells
    assert study.cells[0].label.variant == "two words"
    assert (cell.size, cell.model.error, cell.label.model) == (8, 0.25, "two words")  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "setting", ["problems", "model.x.y=1", "models.id=1", "model[3].id=1", "=1"]
)
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
    named = [
        [f"vote {m.n}" if m.plugin_name() == "vote" else m.plugin_name() for m in c.methods]
        for c in cells
    ]  # type: ignore[attr-defined]
    assert named == chains


def test_set_without_an_index_means_every_table(write) -> None:
    second = (
        '[[model]]\nname = "oracle"\nlabel = "second"\nmethod = [[], [{ name = "vote", n = 4 }]]\n'
    )
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
        ("model.prices.input=x", "--set model.prices.input: the study has no `prices`"),
        ("model.method.n=3", "--set model.method.n: the study has no `method`"),
        ("model.error.x=3", "--set model.error.x: the study has no `error`"),
        ("task.size[0]=3", "--set task.size[0]: a value in a list can't be set alone\nhint: --set task.size=[…]"),
        ("problems.x=3", "--set problems.x: `problems` is not a table, so no key of it can be set"),
        ("task[2].size=3", "--set task[2].size: there is no task[2]: the study has 1, counted from 0"),
        ("taks.size=3", "--set taks.size: the study has no `taks` to set a key in\nhint: did you mean `task`?"),
        ("model.errr=1", "--set model.errr: model `oracle` has no key `errr`\nhint: did you mean `error`?"),
    ],
)  # fmt: skip
def test_an_error_in_a_setting_blames_the_option_not_the_file(
    write, ponder, setting, message
) -> None:
    result = ponder("plan", write("s.toml", GOOD), "--set", "title=x", "--set", setting)
    assert result.exit_code == 2
    assert message in result.stderr
    assert "s.toml" not in result.stderr


def test_an_error_in_the_file_blames_the_file(write, ponder) -> None:
    result = ponder(
        "plan",
        write("s.toml", GOOD.replace('"oracle"', '"oracle"\nerror = "x"')),
        "--set",
        "problems=5",
    )
    assert "s.toml: model[0].error: expected a number, not text" in result.stderr


ENDPOINT = GOOD.replace('name = "oracle"', 'name = "endpoint"\nid = "m"')


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("max_new_tokens = 9", "model[0].max_new_tokens: model `endpoint` has no key `max_new_tokens`\nhint: here it is called `budget`"),
        ('base_url = "x"', "hint: here it is called `url`"),
        ("prices = { input = 1, output = 2, chached_input = 1 }", "model[0].prices.chached_input: `prices` has no key `chached_input`\nhint: did you mean `cached_input`?"),
        ("prices = { inptu = 1, output = 2 }", "hint: did you mean `input`?"),
        ("prices = { output = 2 }", "model[0].prices: `prices` needs the key `input`"),
    ],
)  # fmt: skip
def test_a_wrong_key_is_answered_with_the_right_one(write, ponder, line, message) -> None:
    result = ponder("plan", write("s.toml", ENDPOINT + line + "\n"))
    assert result.exit_code == 2
    assert message in result.stderr


def test_a_key_that_is_an_option_is_answered_with_the_command(write, ponder) -> None:
    result = ponder("plan", write("s.toml", 'track = "mlflow"\n' + GOOD))
    assert "s.toml: track: a study has no key `track`\n" in result.stderr
    assert "ponder report s.toml --track mlflow, or wandb\n" in result.stderr


def test_another_name_is_no_hint_where_there_is_no_such_key(write, ponder) -> None:
    assert (
        "here it is called" not in ponder("plan", write("s.toml", GOOD + "base_url = 9\n")).stderr
    )


def test_a_search_over_sizes_that_a_task_lacks_is_said(write, ponder) -> None:
    searched = GOOD.replace('"chain_sum"\nsize = [2, 4]', '"math500"').replace(
        "problems = 3\n", 'stop = { goal = "max_size" }\n'
    )
    result = ponder("plan", write("s.toml", searched))
    assert (
        "s.toml: task[0]: the goal `max_size` can't ask for size 1: math500 has no sizes\nhint: name sizes"
        in result.stderr
    )


def test_a_file_that_is_not_toml_is_answered_with_a_command_that_shows_one(write, ponder) -> None:
    result = ponder("plan", write("s.toml", "a = ["))
    assert "`ponder show study effort` prints a study to compare with" in result.stderr
    assert ponder("show", "study", "effort").exit_code == 0


def test_a_location_reads_as_a_path_and_keeps_its_parts() -> None:
    place = Location("study.toml", "task", 0) / "size" / 2
    assert place == "study.toml: task[0].size[2]"
    assert (place.file, place.parts) == ("study.toml", ("task", 0, "size", 2))
    assert Location.of("--set") / "n" == "--set.n"
    again = pickle.loads(pickle.dumps(place))
    assert (again, again.parts) == (place, place.parts)


def bodies(body: Any, **more: Any) -> list[dict[str, Any]]:
    """The body of each model that a study makes of one table."""
    model = {"name": "endpoint", "id": "m", "body": body, **more}
    cells = Study(task={"name": "chain_sum", "size": 2}, model=model).cells
    return [cell.model.body for cell in cells]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("body", "swept"),
    [
        ({"x": [1, 2]}, [{"x": 1}, {"x": 2}]),
        ({"a": {"x": [1, 2], "y": 3}}, [{"a": {"x": 1, "y": 3}}, {"a": {"x": 2, "y": 3}}]),
        ({"x": [1, 2], "y": ["a", "b"]}, [{"x": x, "y": y} for x in (1, 2) for y in ("a", "b")]),
        ({"stop": [["a", "b"]]}, [{"stop": ["a", "b"]}]),
        ({"stop": [["a", "b"], "c"]}, [{"stop": ["a", "b"]}, {"stop": "c"}]),
        ({"stop": [[]]}, [{"stop": []}]),
        ({"tools": [[{"x": [1, 2]}]]}, [{"tools": [{"x": [1, 2]}]}]),
        ([{"x": [1, 2]}, {"y": 3}], [{"x": 1}, {"x": 2}, {"y": 3}]),
        ({"a": [{"x": [1, 2]}, {"y": 3}]}, [{"a": {"x": 1}}, {"a": {"x": 2}}, {"a": {"y": 3}}]),
        ({}, [{}]),
    ],
)
def test_a_list_inside_a_body_is_a_sweep_and_a_list_in_a_list_a_value(
    monkeypatch, body: Any, swept: list[dict[str, Any]]
) -> None:
    assert bodies(body) == swept
    # It is counted without being made.
    table = {"name": "endpoint", "id": "m", "body": body}
    assert sweep_size("models", table, "model", None) == len(swept)
    monkeypatch.setattr("ponder.study.study.MAX_CELLS", len(swept) - 1)
    with pytest.raises(UserError, match=f"it has {len(swept)} cells"):
        bodies(body)


def test_an_empty_list_inside_a_body_is_an_error_that_says_how_to_send_one() -> None:
    with pytest.raises(UserError, match="this list is empty") as error:
        bodies({"a": {"stop": []}})
    assert error.value.where == "study: model[0].body.a.stop"
    assert error.value.hint == "remove `stop`, or write stop = [[]] to send an empty list"


@pytest.mark.parametrize(
    ("name", "values"), [("effort", ["low", "high"]), ("think", [9, 99]), ("thinking", [True, False])]
)  # fmt: skip
def test_a_dial_is_swept_in_a_file_and_on_the_command_line(write, name: str, values) -> None:
    text = '[[task]]\nname = "chain_sum"\nsize = 2\n[[model]]\nname = "endpoint"\nid = "m"\n'
    file = write("dials.toml", f'{text}provider = "vllm"\n{name} = {toml(values)}\n')
    write("one.toml", f'{text}provider = "vllm"\n')
    for study in (
        StudySpec.load(str(file)),
        StudySpec.load("one.toml", [f"model.{name}={toml(values)}"]),
    ):
        assert [getattr(cell.model, name) for cell in study.cells] == values


def test_lists_in_tables_of_tasks_stay_lists_and_those_of_vllm_are_swept() -> None:
    options = {"operators": ["+", "-"]}
    task = {"name": "gym", "dataset": "chain_sum", "size": 0, "options": options}
    table = {"name": "vllm", "id": "pocket", "template": {"enable_thinking": [True, False]}}
    assert [variant["options"] for variant, _ in sweep("tasks", task, "task", None)] == [options]
    templates = [variant["template"] for variant, _ in sweep("models", table, "model", None)]
    assert templates == [{"enable_thinking": True}, {"enable_thinking": False}]
