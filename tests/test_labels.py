"""Labels tell apart whatever differs between the cells of a study, in one table or in two, and name
nothing else.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ponder import Study
from ponder.core import UserError
from ponder.study.labels import differing, distinctions

EXECUTION = {"name": "execution", "size": 4}
ORACLE = {"name": "oracle"}
SERVED = {"name": "endpoint", "id": "m"}
POCKET = {"name": "pocket", "style": "long"}
# what the pocket model can read
READ = {"name": "execution", "size": 4, "dictionary": 8, "per_turn": 0}


def tasks(*tables: dict[str, Any]) -> list[str]:
    return list(dict.fromkeys(cell.label.task for cell in Study(task=tables, model=[ORACLE]).cells))


def models(*tables: dict[str, Any], task: dict[str, Any] = EXECUTION) -> list[tuple[str, str, str]]:
    """Labels of the base model, of the model with its methods, and of its variant."""
    cells = Study(task=[task], model=tables).cells
    return [(cell.label.base, cell.label.model, cell.label.variant) for cell in cells]


def whole(*tables: dict[str, Any]) -> list[str]:
    return [label for _, label, _ in models(*tables)]


@pytest.mark.parametrize(
    ("tables", "labels"),
    [
        ([{"mode": "answer"}, {"mode": "cot"}], ["mode=answer", "mode=cot"]),
        ([{}, {"mode": "cot"}], ["mode=thinking", "mode=cot"]),
        ([{"dictionary": 16}, {"dictionary": 100}], ["dictionary=16", "dictionary=100"]),
        ([{"mode": "cot"}], [""]),
        ([{"mode": "cot"}, {"mode": "cot", "size": 8}], [""]),  # sizes are no settings
        (
            [{}, {"remember": "all"}, {"window": 2}],
            ["remember=visible", "remember=all", "remember=visible window=2"],
        ),
        # A label that is clear today stays: what the second table doesn't sweep is not named.
        (
            [{}, {"history_turns": 3, "error_rate": [0.0, 1.0]}],
            ["", "error_rate=0.0", "error_rate=1.0"],
        ),
        (
            [{"mode": "answer", "per_turn": [1, 2]}, {"mode": "cot", "per_turn": [1, 4]}],
            [
                "per_turn=1 mode=answer",
                "per_turn=2 mode=answer",
                "per_turn=1 mode=cot",
                "per_turn=4 mode=cot",
            ],
        ),
    ],
)
def test_tasks(tables: list[dict[str, Any]], labels: list[str]) -> None:
    assert tasks(*(EXECUTION | table for table in tables)) == [
        f"execution {label}".strip() for label in labels
    ]


def test_equal_tables_ask_once() -> None:
    assert len(Study(task=[EXECUTION, EXECUTION], model=[ORACLE]).cells) == 1


def test_options_of_a_dataset_are_named_one_by_one() -> None:
    gym = {"name": "gym", "dataset": "chain_sum", "size": 0}
    few, many = ({"min_terms": 2, "max_terms": n} for n in (4, 6))
    assert tasks({**gym, "options": few}, {**gym, "options": many}) == [
        "gym max_terms=4",
        "gym max_terms=6",
    ]
    assert tasks({**gym, "options": [few, many]}) == [
        "gym max_terms=4",
        "gym max_terms=6",
    ]


@pytest.mark.parametrize(
    ("files", "labels"),
    [
        (["a/one.jsonl", "a/two.jsonl"], ["one.jsonl", "two.jsonl"]),
        (
            ["a/one.jsonl", "b/one.jsonl", "b/two.jsonl"],
            ["a/one.jsonl", "b/one.jsonl", "b/two.jsonl"],
        ),
    ],
)
# a benchmark's file is not in the key, but its content is
@pytest.mark.parametrize("name", ["jsonl", "aime24"])
def test_files_are_named_by_as_little_of_their_path_as_needed(
    tmp_path: Path, name: str, files, labels
) -> None:
    for file in files:
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text(json.dumps({"prompt": file, "answer": 1, "size": 1}))
    tables = [{"name": name, "file": str(tmp_path / file)} for file in files]
    assert tasks(*tables) == [f"{name} file={label}" for label in labels]
    assert tasks({"name": name, "file": [str(tmp_path / file) for file in files]}) == tasks(*tables)


@pytest.mark.parametrize(
    ("tables", "labels"),
    [
        ([SERVED | {"temperature": 0}, SERVED | {"temperature": 1}], ["m temperature=0", "m temperature=1"]),
        ([SERVED, SERVED | {"temperature": 1}], ["m", "m temperature=1"]),
        ([SERVED | {"label": "cool"}, SERVED | {"label": "warm", "temperature": 1}], ["cool", "warm"]),
        ([ORACLE, ORACLE | {"error": [0.25, 0.5]}], ["oracle", "oracle error=0.25", "oracle error=0.5"]),
        # Settings that can't change an answer are named only if nothing else differs.
        ([ORACLE | {"concurrency": 2}, ORACLE | {"error": 0.5}], ["oracle error=0.0", "oracle error=0.5"]),
        ([ORACLE, ORACLE | {"concurrency": 2}], ["oracle concurrency=64", "oracle concurrency=2"]),
        ([SERVED | {"label": "oracle"}, ORACLE], ["oracle name=endpoint", "oracle"]),
        (
            [SERVED | {"body": {"chat": {"think": True}, "top_k": 2}}, SERVED | {"body": {"chat": {"think": False}, "top_k": 2}}],
            ["m think=True", "m think=False"],
        ),
        (
            [SERVED | {"body": {"chat_template_kwargs": {"enable_thinking": [True, False]}}}],
            ["m enable_thinking=True", "m enable_thinking=False"],
        ),
        # Longer where the last part alone would mean two things.
        (
            [SERVED | {"effort": ["low", "high"], "body": {"reasoning": {"effort": [1, 2]}}}],
            [f"m effort={e} body.reasoning.effort={n}" for e in ("low", "high") for n in (1, 2)],
        ),
        (
            [SERVED | {"body": {"a": {"x": [1, 2]}, "b": {"x": 5, "y": [3, 4]}}}],
            [f"m x={x} y={y}" for x in (1, 2) for y in (3, 4)],
        ),
        ([SERVED | {"body": {"a": {"x": 1}}}, SERVED | {"body": {"b": {"x": 1}}}], ["m body.a.x=1", "m body.b.x=1"]),
        ([SERVED | {"think": [1024, 8192], "provider": "vllm"}], ["m think=1024", "m think=8192"]),
        ([SERVED | {"thinking": [True, False], "provider": "vllm"}], ["m thinking=True", "m thinking=False"]),
        # What a price is of says its path.
        (
            [SERVED | {"prices": {"input": 1, "output": n}} for n in (2, 3)],
            ["m prices.output=2.0", "m prices.output=3.0"],
        ),
        ([SERVED | {"key": "$MINE"}, SERVED | {"key": "$YOURS"}], ["m key=$MINE", "m key=$YOURS"]),
        ([SERVED | {"body": {"stop": "\n" * 5 + "x" * 99}}, SERVED], [f"m stop={'x' * 59}…", "m"]),
        ([SERVED | {"effort": "x" * 99}, SERVED | {"effort": "x" * 98}], [f"m effort={'x' * n}" for n in (99, 98)]),
    ],
)  # fmt: skip
def test_models(monkeypatch, tables: list[dict[str, Any]], labels: list[str]) -> None:
    monkeypatch.setenv("MINE", "sk-secret-of-mine")
    assert whole(*tables) == labels


def test_models_that_nothing_tells_apart_are_refused() -> None:
    with pytest.raises(UserError, match=r"two models are both called `oracle error=0\.5`") as error:
        whole(ORACLE, ORACLE | {"error": 0.5}, ORACLE | {"error": 0.5})
    assert error.value.hint == "give each [[model]] a `label`"


def test_chains_of_two_tables_and_of_one() -> None:
    votes = [[{"name": "vote", "n": n}] for n in (2, 8)]
    named = [("oracle", f"oracle + vote n={n}", f"oracle + vote n={n}") for n in (2, 8)]
    assert models(*(ORACLE | {"method": vote} for vote in votes)) == named
    assert models(ORACLE | {"method": votes}) == named
    # Model and method differ: both are named, and the model is called the same in all its chains.
    assert models(
        ORACLE | {"error": 0.5, "method": votes[0]}, ORACLE | {"method": [[], votes[1]]}
    ) == [
        ("oracle error=0.5", "oracle error=0.5 + vote n=2", "oracle error=0.5 + vote n=2"),
        ("oracle error=0.0", "oracle error=0.0", "oracle error=0.0"),
        ("oracle error=0.0", "oracle error=0.0 + vote n=8", "oracle error=0.0 + vote n=8"),
    ]


def test_a_base_model_keeps_its_name_where_its_chains_are_clear() -> None:
    """A heat map finds the model without the method by the name of its base, also if that has
    another budget.
    """
    force = {"name": "budget_force", "think": [10, 20]}
    labels = models(ORACLE, ORACLE | {"budget": 500, "method": [force]})
    assert [label for label, _, _ in labels] == ["oracle"] * 3


def trained(*chains: dict[str, Any]) -> list[tuple[str, str]]:
    made = models(
        *(POCKET | {"method": [{"name": "shortest", **chain}]} for chain in chains), task=READ
    )
    return [
        (label.removeprefix("pocket + "), variant.removeprefix("pocket + "))
        for _, label, variant in made
    ]


def test_training_seeds_of_two_tables_are_one_variant() -> None:
    assert trained({"seed": 1}, {"seed": 2}) == [
        ("shortest seed=1", "shortest"),
        ("shortest seed=2", "shortest"),
    ]
    # The label of a seed that is not swept is clear without it.
    assert trained({"seed": [1, 2]}, {"seed": 5})[2] == ("shortest", "shortest")
    # Seeds that are all different would hide that the two recipes are.
    assert trained({"seed": [1, 2]}, {"seed": [3, 4], "rate": 0.5}) == [
        ("shortest seed=1 rate=1e-05", "shortest rate=1e-05"),
        ("shortest seed=2 rate=1e-05", "shortest rate=1e-05"),
        ("shortest seed=3 rate=0.5", "shortest rate=0.5"),
        ("shortest seed=4 rate=0.5", "shortest rate=0.5"),
    ]


def test_a_model_inside_a_method() -> None:
    others = [{"name": "pocket", "style": "short"}, "pocket"]
    made = [POCKET | {"method": [{"name": "merge", "other": other}]} for other in others]
    labels = models(*made, task=READ)
    assert [label for _, label, _ in labels] == [
        "pocket + merge other=pocket short",
        "pocket + merge other=pocket",
    ]
    cells = Study(task=[READ], model=made).cells
    used = [cell.chain[0].settings for cell in cells]
    assert [(settings["other"], settings["other.style"]) for settings in used] == [
        ("pocket", "short"),
        ("pocket", "plain"),
    ]


def test_settings_of_a_cell_are_plain_and_read_only(monkeypatch) -> None:
    monkeypatch.setenv("MINE", "sk-secret-of-mine")
    task = EXECUTION | {"mode": "answer", "window": 2}
    [cell] = Study(
        task=[task],
        model=[SERVED | {"key": "$MINE", "url": "http://$MINE@h/v1", "body": {"a": [[1]]}}],
    ).cells
    assert dict(cell.task_settings) == {
        "name": "execution", "per_turn": 1, "mode": "answer", "dictionary": 100, "values": 99, "shared": False,
        "history_turns": 0, "error_rate": 0.0, "remember": "visible", "window": 2,
    }  # fmt: skip
    assert cell.model_settings["temperature"] is None
    assert cell.model_settings["body"] == {"a": [1]}
    assert "concurrency" not in cell.model_settings  # not in the key
    assert "sk-secret" not in json.dumps(dict(cell.model_settings))
    with pytest.raises(TypeError):
        cell.task_settings["mode"] = "cot"  # type: ignore[index]
    [oracle] = Study(task=[task], model=[ORACLE]).cells
    assert oracle.model_settings["critical_size"] is None  # infinite, which JSON can't say
    [pocket] = Study(task=[READ], model=[POCKET]).cells
    # in the key by its digest, though the folder is not
    assert "execution" in pocket.model_settings["weights"]


def test_a_plugin_inside_another_is_named_without_repeating_what_its_title_says() -> None:
    teachers = [{"name": "text_tutor", "style": "parts", "slip": "carry", "fraction": 0.5}]
    model = {
        "name": "transformers",
        "id": "pocket",
        "budget": 300,
        "method": [{"name": "sft", "teachers": teachers}],
    }
    [cell] = Study(task=[READ], model=[model]).cells
    assert cell.chain[0].settings["teachers"] == (
        "text_tutor (parts, carry forgotten in 50%) fraction=0.5",
    )


def test_figures_name_entries_of_a_table_by_their_last_part() -> None:
    body = {"chat_template_kwargs": {"enable_thinking": [True, False]}, "top_k": 20}
    cells = Study(task=[EXECUTION], model=[SERVED | {"body": body}, SERVED]).cells
    assert list(distinctions(cells).values()) == [
        "enable_thinking=True top_k=20",
        "enable_thinking=False top_k=20",
        "",
    ]
    assert differing(cell.settings for cell in cells) == {
        "model.body.chat_template_kwargs.enable_thinking": [False, None, True],
        "model.body.top_k": [20, None],
    }
