"""A study file says what it means, or says what is wrong with it, where, and what to do."""

from __future__ import annotations

import pytest

from ponder.core import UserError
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


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("problems = 3", "problem = 3"), "s.toml: problem: a study has no key `problem`\nhint: did you mean `problems`?"),
        (('"chain_sum"', '"chain_sun"'), "s.toml: task[0].name: task `chain_sun` is unknown\nhint: did you mean `chain_sum`?"),
        (("size = [2, 4]", "size = [2, 1]"), "s.toml: task[0].size: chain_sum adds at least 2 numbers, not 1\nhint: size = [2, 4, 8]"),
        (("size = [2, 4]", 'size = ["a"]'), "s.toml: task[0].size: Expected `int`, got `str`"),
        (("size = [2, 4]", "digit = 3"), "s.toml: task[0].digit: task `chain_sum` has no key `digit`\nhint: did you mean `digits`?"),
        (("size = [2, 4]", "digits = 0"), "s.toml: task[0]: digits must be from 1 to 100, not 0"),
        (('"oracle"', '"oracle"\nerror = 2'), "s.toml: model[0]: error is a fraction from 0 to 1, not 2"),
        (('"oracle"', '"endpoint"'), "s.toml: model[0]: model `endpoint` needs the key `id`\nhint: ponder show endpoint"),
        (('"oracle"', '"endpoint"\nid = "m"\nbudget = "x"'), "s.toml: model[0].budget: Expected `int | null`, got `str`"),
        (('"oracle"', '"endpoint"\nid = "m"\nkey = "sk-abc123"'), "s.toml: model[0].key: a key is never written into a study"),
        (('"oracle"', '"endpoint"\nid = "m"\nurl = "ftp://x"'), "s.toml: model[0]: `ftp://x` is not an http or https URL"),
        (('"oracle"', '"oracle"\nmethod = [{name = "budget_forc", think = 3}]'), "hint: did you mean `budget_force`?"),
        (('"oracle"', '"oracle"\nmethod = ["x"]'), "s.toml: model[0].method[0]: expected a table, got 'x'"),
        (('"oracle"', '"oracle"\n[[figure]]\nname = "effert"'), "s.toml: figure[0].name: figure `effert` is unknown"),
        (('name = "oracle"', ""), "s.toml: model[0]: a model needs a name\nhint: ponder list models"),
        (("problems = 3", "problems = 0"), "s.toml: problems: problems must be at least 1, not 0"),
        (('[[model]]\nname = "oracle"', ""), "s.toml: a study needs at least one [[model]]\nhint: ponder list models"),
        (("problems = 3", "problems ="), "s.toml: this is not TOML"),
    ],
)  # fmt: skip
def test_mistakes(write, ponder, change, message) -> None:
    assert change[0] in GOOD
    write("s.toml", GOOD.replace(*change))
    result = ponder("plan", "s.toml")
    assert result.exit_code == 2
    assert message in result.stderr
    assert "sk-abc123" not in result.stderr
    assert "Traceback" not in result.output


def test_a_study_that_is_not_there(ponder) -> None:
    result = ponder("run", "efort")
    assert result.exit_code == 2
    assert "did you mean `effort`?" in result.stderr


def test_lists_are_sweeps() -> None:
    study = Study(
        task=[{"name": "chain_sum", "size": [2, 4], "digits": [1, 2]}],
        model=[{"name": "oracle", "error": [0.0, 0.5], "method": [{"name": "budget_force", "think": [10, 20]}]}],
    )
    assert len(study.cells) == 2 * 2 * 2 * 2
    assert len({c.key for c in study.cells}) == 16
    assert study.cells[0].model_label == "oracle error=0.0 + budget_force think=10"
    assert study.cells[0].task_label == "chain_sum digits=1"


def test_two_models_of_one_name_are_refused() -> None:
    study = Study(task=[{"name": "chain_sum"}], model=[{"name": "oracle"}, {"name": "oracle", "error": 0.5}])
    with pytest.raises(UserError, match="two models would share the name"):
        _ = study.cells


def test_set(write) -> None:
    write("s.toml", GOOD)
    study = Study.load("s.toml", ["model.error=0.25", "problems=7", "task.size=[8]", "model[0].label=two words"])
    assert study.problems == 7
    (cell,) = study.cells
    assert (cell.size, cell.model.error, cell.model_label) == (8, 0.25, "two words")  # type: ignore[attr-defined]


@pytest.mark.parametrize("setting", ["problems", "model.x.y=1", "models.id=1", "model[3].id=1", "=1"])
def test_set_mistakes(write, ponder, setting) -> None:
    write("s.toml", GOOD)
    result = ponder("plan", "s.toml", "--set", setting)
    assert result.exit_code == 2
    assert "--set" in result.stderr or "no key" in result.stderr


def test_plumbing_and_defaults_are_no_part_of_the_key() -> None:
    def key(**model: object) -> bytes:
        return (
            Study(task=[{"name": "chain_sum", "size": 2}], model=[{"name": "endpoint", "id": "m", **model}])
            .cells[0]
            .key
        )

    assert key() == key(concurrency=7, timeout=3.0, key="$K", send_seed=True)
    assert key() != key(temperature=0.5)
    assert key() != key(url="http://127.0.0.1:9/v1")


def test_a_file_is_known_by_what_it_says(write, folder) -> None:
    def key(file: str) -> bytes:
        task = [{"name": "jsonl", "file": file}]
        return Study(task=task, model=[{"name": "oracle"}], folder=folder).cells[0].key

    write("a.jsonl", '{"prompt": "1+1?", "answer": 2}')
    write("b.jsonl", '{"prompt": "1+1?", "answer": 2}')
    write("c.jsonl", '{"prompt": "1+2?", "answer": 3}')
    assert key("a.jsonl") == key("b.jsonl") != key("c.jsonl")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is empty"),
        ('{"prompt": "x"}', "a.jsonl:1: Object missing required field `answer`"),
        ('{"prompt": "x", "answer": 1}\n\n{"prompt": 1}', "a.jsonl:3"),
        ('{"prompt": "x", "answer": 1}\n{"prompt": "x", "answer": 1}', "occurs twice"),
        ('{"prompt": "x", "answer": 1, "sise": 3}', "unknown field `sise`"),
    ],
)
def test_jsonl_mistakes(write, ponder, content, message) -> None:
    write("a.jsonl", content)
    write("s.toml", '[[task]]\nname = "jsonl"\nfile = "a.jsonl"\n[[model]]\nname = "oracle"\n')
    result = ponder("plan", "s.toml")
    assert result.exit_code == 2
    assert message in result.stderr


def test_ids_file(write, ponder) -> None:
    write("ids.txt", "4x4:_cia,1,1,0,1,1,0,1,1\n8x8:ae__ijcecgbcd,3,1,2,1,1,1,2,1,2,1,2,1,1,1,1,3\n")
    write("s.toml", '[[task]]\nname = "tents"\nids = "ids.txt"\n[[model]]\nname = "oracle"\n')
    assert ponder("run", "s.toml", "--json").exit_code == 0
    assert "2 were in" in ponder("run", "s.toml").stdout
    write("ids.txt", "4x4:_cia,1,1,0,1,1,0,1\n")
    result = ponder("run", "s.toml")
    assert result.exit_code == 2
    assert "ids.txt:1: not a game id: expected 8 sums, got 7" in result.stderr
