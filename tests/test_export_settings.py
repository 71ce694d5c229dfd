"""Exports name the settings of tasks, models and methods; each that differs has a column of its
own.
"""

from __future__ import annotations

import csv
import json
from pathlib import Path

import polars
import pytest

from ponder.results.export import COLUMNS

SETTINGS = """
problems = 2
[[task]]
name = "execution"
mode = "answer"
size = 2
[[task]]
name = "execution"
mode = "cot"
size = 2
window = 1
shared = true
[[model]]
name = "oracle"
method = [[], [{ name = "vote", n = 3 }], [{ name = "vote", n = 4 }, { name = "vote", n = 5 }]]
[[model]]
name = "oracle"
error = 1
spread = 0.5
"""


@pytest.fixture
def settings(write, ponder):
    write("s.toml", SETTINGS)
    assert ponder("run", "s.toml").exit_code == 0
    return lambda form: json.loads(ponder("export", "s.toml", "--format", form, "--json").stdout)


def test_settings_that_differ_have_columns(settings) -> None:
    settings("csv")
    settings("parquet")
    rows = polars.read_parquet("s.parquet")
    added = rows.columns[len((*COLUMNS, "parsed", "gold")) :]
    # A second vote is asked in one chain only, so its n differs from no other.
    assert added == [
        "vote.n",
        "model.error",
        "model.spread",
        "task.mode",
        "task.shared",
        "task.window",
    ]
    kinds = {"task.mode": polars.String, "task.window": polars.Int64, "model.error": polars.Float64}
    assert {name: rows.schema[name] for name in kinds} == kinds
    for row in rows.to_dicts():
        tables = [json.loads(row[name]) for name in ("task_settings", "model_settings")]
        assert [row["task.mode"], row["task.window"]] == [tables[0]["mode"], tables[0]["window"]]
        assert [row["model.error"], row["model.spread"]] == [
            tables[1]["error"],
            tables[1]["spread"],
        ]
        assert row["vote.n"] == {0: None, 1: 3, 2: 4}[len(json.loads(row["methods"]))]
        assert f"mode={row['task.mode']}" in row["task"]
        assert row["model.error"] == (0.0 if row["correct"] else 1.0)
    with Path("s.csv").open(newline="") as file:
        read = list(csv.DictReader(file))
    assert list(read[0]) == rows.columns
    assert {(r["task.mode"], r["task.shared"]) for r in read} == {
        ("answer", "False"),
        ("cot", "True"),
    }
    assert [(r["task.mode"], r["task.window"]) for r in read] == [
        (r["task.mode"], str(r["task.window"] or "")) for r in rows.to_dicts()
    ]


def test_jsonl_lines_and_inspect_logs_name_the_settings(settings) -> None:
    settings("jsonl")
    lines = [json.loads(line) for line in Path("s.jsonl").read_text().splitlines()]
    assert {line["task_settings"]["mode"] for line in lines} == {"answer", "cot"}
    assert all(f"mode={line['task_settings']['mode']}" in line["task"] for line in lines)
    assert {len(line["methods"]) for line in lines} == {0, 1, 2}
    logs = [json.loads(Path(file).read_text()) for file in settings("inspect")["files"]]
    assert sorted((log["eval"]["model_args"]["error"], len(log["eval"]["metadata"]["methods"])) for log in logs) == [
        (0.0, 0), (0.0, 1), (0.0, 2), (1, 0)
    ]  # fmt: skip
    for log in logs:
        assert [args["mode"] for args in log["eval"]["task_args"].values()] == ["answer", "cot"]
        for sample in log["samples"]:
            assert (
                sample["metadata"]["task_settings"]
                == log["eval"]["task_args"][sample["metadata"]["task"]]
            )
