"""A study file becomes the cells that it describes; a mistake in it says where, what, and what to
do.
"""

from __future__ import annotations

from itertools import islice
from typing import Any

import pytest

from ponder import Study
from ponder.core import UserError
from ponder.study.cell import Cell

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
        (("size = [2, 4]", 'size = ["a"]'), "s.toml: task[0].size: expected a whole number, not text"),
        (("size = [2, 4]", "digit = 3"), "s.toml: task[0].digit: task `chain_sum` has no key `digit`\nhint: did you mean `digits`?"),
        (("size = [2, 4]", "digits = 0"), "s.toml: task[0]: digits must be from 1 to 100, not 0"),
        (('"oracle"', '"oracle"\nerror = 2'), "s.toml: model[0]: error is a fraction from 0 to 1, not 2"),
        (('"oracle"', '"endpoint"'), "s.toml: model[0]: model `endpoint` needs the key `id`\nhint: ponder show endpoint"),
        (('"oracle"', '"endpoint"\nid = "m"\nbudget = "x"'), "s.toml: model[0].budget: expected a whole number, not text"),
        (('"oracle"', '"endpoint"\nid = "m"\nkey = "sk-abc123"'), "s.toml: model[0].key: a study must not contain an API key"),
        (('"oracle"', '"endpoint"\nid = "m"\nurl = "ftp://x"'), "s.toml: model[0]: `ftp://x` is not an http or https URL"),
        (('"oracle"', '"oracle"\nmethod = [{name = "budget_forc", think = 3}]'), "hint: did you mean `budget_force`?"),
        (('"oracle"', '"oracle"\nmethod = ["x"]'), "s.toml: model[0].method[0]: expected a table, got 'x'"),
        (('"oracle"', '"oracle"\n[[figure]]\nname = "effert"'), "s.toml: figure[0].name: figure `effert` is unknown"),
        (('name = "oracle"', ""), "s.toml: model[0]: a model needs a name\nhint: ponder list models"),
        (("problems = 3", "problems = 0"), "s.toml: problems: problems must be greater than 0, not 0"),
        (('[[model]]\nname = "oracle"', ""), "s.toml: a study needs at least one [[model]]\nhint: ponder list models"),
        (("problems = 3", "problems ="), "s.toml: this is not TOML"),
        (("problems = 3", "max_cost = 0.0"), "s.toml: max_cost: max_cost must be greater than 0, not 0.0"),
        (("problems = 3", 'problems = "x"'), "s.toml: problems: expected a whole number, not text"),
        (('"oracle"', '"endpoint"\nid = "m"\nin_flight = 3'), "s.toml: model[0].in_flight: model `endpoint` has no key `in_flight`\nhint: it is now called `concurrency`"),
        (('"oracle"', '"oracle"\ngives_out = 3'), "hint: it is now called `critical_size`"),
        (('"oracle"', '"oracle"\n[[figure]]\nname = "longest"'), "figure `longest` is unknown\nhint: it is now `accuracy` with `target = 0.8`"),
        (('"oracle"', '"oracle"\n[[figure]]\nname = "max_turn"'), "figure `max_turn` is unknown\nhint: it is now `accuracy` with `target = 0.8`"),
        (("size = [2, 4]", "sizes = [2, 4]"), "hint: did you mean `size`?"),
        (("problems = 3", "title = tents"), 's.toml: this is not TOML: Invalid value (at line 3, column 9)\nhint: text needs quotes: name = "tents"'),
        (('"oracle"', '"oracle"\nmethod = "vote"'), """expected a table, got 'vote'\nhint: write { name = "vote" }"""),
        (('[[model]]\nname = "oracle"', ""), 'needs at least one [[model]]\nhint: ponder list models shows them; write [[model]] and below it name = "…"'),
        (("size = [2, 4]", "problems = 3"), "s.toml: task[0].problems: task `chain_sum` has no key `problems`\nhint: `problems` belongs at the top of the study, above the first [[…]]"),
        (("size = [2, 4]", "samples = 3"), "hint: `samples` belongs at the top of the study, above the first [[…]]"),
        (("size = [2, 4]", "error = 0.1"), "hint: `error` belongs in the [[model]] `oracle`"),
        (('"oracle"', '"oracle"\nsize = 3'), "model `oracle` has no key `size`\nhint: `size` belongs in the [[task]] `chain_sum`"),
        (('"oracle"', '"oracle"\nn = 3\nmethod = { name = "vote" }'), 'hint: `n` belongs in the method: { name = "vote", n = … }'),
        (('"oracle"', '"oracle"\nmethod = { name = "vote", n = 3, error = 0.1 }'), "hint: `error` belongs in the [[model]] `oracle`"),
        (('"oracle"', '"oracle"\n[[figure]]\nname = "accuracy"\nseed = 3'), "s.toml: figure[0].seed: figure `accuracy` has no key `seed`\nhint: `seed` belongs at the top of the study"),
        (("problems = 3", "digits = 3"), "s.toml: digits: a study has no key `digits`\nhint: `digits` belongs in the [[task]] `chain_sum`"),
        (("problems = 3", "size = 3"), "hint: `size` belongs in the [[task]] `chain_sum`"),
        (("problems = 3", "critical_size = 3"), "hint: `critical_size` belongs in the [[model]] `oracle`"),
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


def test_a_study_that_is_not_there(write, ponder) -> None:
    write("mine.toml", GOOD)
    assert (
        "there is no study `mine`\nhint: did you mean `mine.toml`?" in ponder("run", "mine").stderr
    )
    result = ponder("run", "efort")
    assert result.exit_code == 2
    assert "did you mean `effort`?" in result.stderr


def test_lists_are_sweeps() -> None:
    study = Study(
        task=[{"name": "chain_sum", "size": [2, 4], "digits": [1, 2]}],
        model=[
            {
                "name": "oracle",
                "error": [0.0, 0.5],
                "method": [{"name": "budget_force", "think": [10, 20]}],
            }
        ],
    )
    assert len(study.cells) == 2 * 2 * 2 * 2
    assert len({c.key for c in study.cells}) == 16
    assert study.cells[0].label.model == "oracle error=0.0 + budget_force think=10"
    assert study.cells[0].label.task == "chain_sum digits=1"


def test_a_list_of_one_is_no_sweep() -> None:
    def cell(error: Any, digits: Any, think: Any) -> Cell:
        (cell,) = Study(
            task=[{"name": "chain_sum", "size": [2], "digits": digits}],
            model=[
                {
                    "name": "oracle",
                    "error": error,
                    "method": [{"name": "budget_force", "think": think}],
                }
            ],
        ).cells
        return cell

    listed = cell([0.5], [3], [10])
    assert (listed.label.model, listed.label.task) == ("oracle + budget_force", "chain_sum")
    assert listed.key == cell(0.5, 3, 10).key


def test_training_seeds_are_columns() -> None:
    other = [{"name": "pocket", "style": style} for style in ("short", "plain")]
    shortest = {"name": "shortest", "problems": 4, "seed": [1, 2, 3]}
    study = Study(
        task=[{"name": "execution", "size": 4, "dictionary": 8, "per_turn": 0}],
        model=[
            {
                "name": "pocket",
                "label": "gpt + tools",
                "style": "long",
                "method": [
                    [],
                    [shortest, {"name": "dpo", "problems": 4, "seed": 7, "rate": [1e-4, 2e-4]}],
                    [{"name": "merge", "other": other}],
                ],
            }
        ],
    )
    bare, *trained, short, plain = study.cells
    assert {cell.label.base for cell in study.cells} == {"gpt + tools"}
    assert (bare.label.model, bare.label.variant, bare.training_seeds) == (
        "gpt + tools",
        "gpt + tools",
        (),
    )
    assert [cell.training_seeds for cell in trained] == [
        (1, 7),
        (1, 7),
        (2, 7),
        (2, 7),
        (3, 7),
        (3, 7),
    ]
    assert trained[0].label.model == "gpt + tools + shortest seed=1 + dpo rate=0.0001"
    assert [cell.label.variant for cell in trained] == [
        "gpt + tools + shortest + dpo rate=0.0001",
        "gpt + tools + shortest + dpo rate=0.0002",
    ] * 3
    assert [use.name for use in trained[0].chain] == ["shortest", "dpo"]
    assert trained[0].chain[0].settings["seed"] == 1
    assert trained[1].chain[1].settings["rate"] == 2e-4
    assert (short.label.model, short.training_seeds) == (
        "gpt + tools + merge other=pocket short",
        (),
    )
    assert plain.label.variant == "gpt + tools + merge other=pocket plain"
    assert len({cell.key for cell in study.cells}) == 9


def test_a_seed_that_trains_nothing_stays_in_the_label() -> None:
    study = Study(
        task=[{"name": "chain_sum", "size": 2}],
        model=[{"name": "oracle", "method": [{"name": "budget_force", "think": [1, 2]}]}],
    )
    assert [c.label.variant for c in study.cells] == [
        "oracle + budget_force think=1",
        "oracle + budget_force think=2",
    ]
    assert {c.training_seeds for c in study.cells} == {()}


def test_chains_of_methods() -> None:
    force = {"name": "budget_force", "think": 10}
    for given, labels in (
        ([], ["oracle"]),
        (force, ["oracle + budget_force"]),
        ([force, {"name": "vote", "n": 2}], ["oracle + budget_force + vote"]),
        ([[], [force]], ["oracle", "oracle + budget_force"]),
    ):
        model = [{"name": "oracle", "method": given}]
        assert [
            c.label.model for c in Study(task=[{"name": "chain_sum", "size": 2}], model=model).cells
        ] == labels


def test_sizes() -> None:
    def sizes(**task: Any) -> list[int]:
        return [
            c.size
            for c in Study(task=[{"name": "chain_sum", **task}], model=[{"name": "oracle"}]).cells
        ]

    assert sizes() == [2, 4, 8, 16, 32]
    assert sizes(size=[4, 2, 4]) == [4, 2]
    assert sizes(size=3) == [3]


def test_how_many_problems(folder, write) -> None:
    write("a.jsonl", '{"prompt": "1+1?", "answer": 2}\n{"prompt": "1+2?", "answer": 3}')
    tasks = [{"name": "chain_sum", "size": 2}, {"name": "jsonl", "file": "a.jsonl"}]
    study = Study(task=tasks, model=[{"name": "oracle"}], folder=folder)
    assert [(c.quota.problems, len(list(c.asked()))) for c in study.cells] == [(20, 20), (None, 2)]
    assert [
        c.quota.problems
        for c in Study(task=tasks, model=[{"name": "oracle"}], folder=folder, problems=1).cells
    ] == [
        1,
        1,
    ]


def test_problems_depend_on_the_seed_and_nothing_else() -> None:
    def ids(seed: int, problems: int = 5, **model: Any) -> list[str]:
        study = Study(
            task=[{"name": "chain_sum", "size": 4}],
            model=[{"name": "oracle", **model}],
            seed=seed,
            problems=problems,
        )
        return [p.id for p in study.cells[0].asked()]

    assert ids(1) == ids(1, error=0.5) == ids(1, problems=9)[:5]
    assert not set(ids(1)) & set(ids(2))


def test_what_methods_train_on(folder, write) -> None:
    write("a.jsonl", '{"prompt": "1+1?", "answer": 2}\n{"prompt": "1+2?", "answer": 3}')
    fixed = {"name": "jsonl", "file": "a.jsonl"}
    model = [{"name": "oracle"}]
    study = Study(
        task=[{"name": "chain_sum", "size": [2, 4]}, fixed],
        model=model,
        seed=3,
        problems=6,
        folder=folder,
    )
    assert [(p.size, p.seed, p.asked) for p in study.training_problems] == [
        (2, 3, 6),
        (4, 3, 6),
        (0, 3, None),
    ]
    asked = {problem.id for problem in study.cells[0].asked()}
    assert not asked & {p.id for p in islice(study.training_problems[0].problems(1), 50)}
    assert list(study.training_problems[2].problems(1)) == []
    other = Study(
        task=[{"name": "chain_sum", "size": 2}],
        train=[{"name": "chain_sum", "size": [2, 8]}, fixed],
        model=model,
        folder=folder,
    )
    assert [(p.size, p.asked) for p in other.training_problems] == [(2, 20), (8, 0), (0, 0)]
    assert len(list(other.training_problems[2].problems(1))) == 2


def test_the_resolved_study_is_what_was_run(write) -> None:
    write("s.toml", GOOD)
    resolved = Study.load("s.toml", ["problems=7"]).resolved()
    assert (resolved["problems"], resolved["name"], resolved["samples"]) == (7, "s", 1)
    assert resolved["model"] == [{"name": "oracle"}]
    assert not {"where", "folder"} & set(resolved)


def test_figures_are_swept_too() -> None:
    study = Study(
        task=[{"name": "chain_sum"}],
        model=[{"name": "oracle"}],
        figure=[{"name": "accuracy", "target": [0.5, 0.8]}],
    )
    assert [figure.target for figure in study.figures] == [0.5, 0.8]  # type: ignore[attr-defined]


def test_settings_that_change_no_answer_are_not_in_the_key() -> None:
    def key(**model: object) -> bytes:
        return (
            Study(
                task=[{"name": "chain_sum", "size": 2}],
                model=[{"name": "endpoint", "id": "m", **model}],
            )
            .cells[0]
            .key
        )

    assert key() == key(concurrency=7, timeout=3.0, key="$K", send_seed=True)
    assert key() != key(temperature=0.5)
    assert key() != key(url="http://127.0.0.1:9/v1")
    assert key() != key(method=[{"name": "vote", "n": 2}])


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
        ('{"prompt": "x"}', "a.jsonl:1: the field `answer` is missing"),
        ('{"prompt": "x", "answer": 1}\n\n{"prompt": 1}', "a.jsonl:3"),
        ('{"prompt": "x", "answer": 1}\n{"prompt": "x", "answer": 1}', "occurs twice"),
        ('{"prompt": "x", "answer": 1, "sise": 3}', "there is no field `sise`"),
    ],
)
def test_jsonl_mistakes(write, ponder, content, message) -> None:
    write("a.jsonl", content)
    write("s.toml", '[[task]]\nname = "jsonl"\nfile = "a.jsonl"\n[[model]]\nname = "oracle"\n')
    result = ponder("plan", "s.toml")
    assert result.exit_code == 2
    assert message in result.stderr


def test_ids_file(write, ponder) -> None:
    write(
        "ids.txt", "4x4:_cia,1,1,0,1,1,0,1,1\n8x8:ae__ijcecgbcd,3,1,2,1,1,1,2,1,2,1,2,1,1,1,1,3\n"
    )
    write("s.toml", '[[task]]\nname = "tents"\nids = "ids.txt"\n[[model]]\nname = "oracle"\n')
    assert ponder("run", "s.toml", "--json").exit_code == 0
    assert "2 were already in" in ponder("run", "s.toml").stdout
    write("ids.txt", "4x4:_cia,1,1,0,1,1,0,1\n")
    result = ponder("run", "s.toml")
    assert result.exit_code == 2
    assert "ids.txt:1: not a game id: expected 8 sums, got 7" in result.stderr


def test_plugins_in_a_list_enter_the_key_by_identity_not_by_their_settings_in_python() -> None:
    sft = {
        "name": "sft",
        "teachers": [
            {"name": "pocket", "concurrency": 3, "label": "x"},
            {"name": "pocket", "style": "long"},
        ],
    }
    train = [{"name": "execution", "dictionary": 6, "per_turn": 0, "size": 2}]
    study = Study(task=train, model=[{"name": "pocket", "style": "short", "method": [sft]}])
    teachers = study.cells[0].methods[0].identity()["teachers"]
    assert [t["name"] for t in teachers] == ["pocket", "pocket"]
    assert [t.get("style") for t in teachers] == [None, "long"]
    assert not {"concurrency", "label"} & teachers[0].keys()


def test_a_label_doesn_t_repeat_what_a_method_is_called_by() -> None:
    compress = {"name": "compress", "policy": ["random", "snapkv"], "budget": 64, "window": [8, 16]}
    study = Study(
        task=[{"name": "tents", "size": 16}],
        model=[{"name": "transformers", "id": "pocket", "method": [compress]}],
    )
    assert [cell.label.model.partition(" + ")[2] for cell in study.cells] == [
        f"{policy} window={window}" for policy in ("random", "snapkv") for window in (8, 16)
    ]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("folder.toml", "folder.toml is a folder, not a study"),
        (".", ". is a folder, not a study\nhint: it holds folder.toml, s.toml"),
        ("s2.toml", "there is no file s2.toml\nhint: did you mean `s.toml`?"),
        ("away/s.toml", "there is no file away/s.toml"),
        ("notes", "notes is not a study: its name must end in .toml\nhint: mv notes notes.toml"),
        ("latin.toml", "latin.toml: this is not TOML"),
    ],
)
def test_a_file_that_is_no_study(write, folder, ponder, name, message) -> None:
    write("s.toml", GOOD)
    write("notes", "")
    (folder / "folder.toml").mkdir()
    if name == "latin.toml":
        (folder / name).write_bytes("title = 'é'".encode("latin-1"))
    result = ponder("run", name)
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr


def test_a_file_from_a_windows_editor(folder) -> None:
    (folder / "s.toml").write_bytes(b"\xef\xbb\xbf" + GOOD.replace("\n", "\r\n").encode())
    assert Study.load("s.toml").problems == 3


def test_a_model_may_be_asked_more_often_than_the_others() -> None:
    task = [{"name": "chain_sum", "size": 2}]
    models = [
        {"name": "oracle", "samples": 8},
        {"name": "oracle", "method": {"name": "vote", "n": 2}},
    ]
    one, other = Study.from_table({"task": task, "model": models, "samples": 3}).cells
    assert (one.quota.samples, other.quota.samples) == (8, 3)
    (plain, _) = Study.from_table({"task": task, "model": [{"name": "oracle"}, models[1]]}).cells
    assert plain.key == one.key  # attempts that are stored stay valid
    for wrong in (0, "many"):
        with pytest.raises(UserError) as error:
            Study.from_table({"task": task, "model": [{"name": "oracle", "samples": wrong}]}).cells  # noqa: B018
        assert "model[0].samples" in error.value.where
