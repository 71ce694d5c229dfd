"""A study's problems for RL libraries. verifiers itself is asked if `.venv-verifiers` is there
(scripts/bench-peers).
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from ponder import Study
from ponder.core import plugins
from ponder.core.settings import build
from ponder.results.interop.environment import _record
from ponder.results.interop.trl import correct

VERIFIERS = Path(__file__).parent.parent / ".venv-verifiers" / "bin" / "python"
STUDY = 'problems = 3\n[[task]]\nname = "chain_sum"\nsize = [2, 3]\n[[model]]\nname = "oracle"\n'
TURNS = 'problems = 2\n[[task]]\nname = "execution"\nsize = 6\n[[model]]\nname = "oracle"\n'
CODE = """
import asyncio, json, sys
from types import SimpleNamespace as Some
from ponder.core.capabilities import solve_turns
from verifiers.v1.utils.loaders import environment_class, load_taskset, taskset_config_type
tasks = [t for name in sys.argv[1:] for t in load_taskset(taskset_config_type(name)(id=name, split="test"))]
def reward(task, replies, cut=False):
    trace = Some(assistant_messages=[Some(content=reply) for reply in replies], is_truncated=cut)
    return asyncio.run(task.correct(trace))
solutions = [solve_turns(t.record._task, t.record.problem) for t in tasks]
print(json.dumps({
    "env": environment_class(sys.argv[1]).__name__, "ids": [t.key for t in tasks],
    "solved": [reward(t, s) for t, s in zip(tasks, solutions)],
    "thinking": [reward(t, ["<think>9</think>" + r for r in s]) for t, s in zip(tasks, solutions)],
    "cut": [reward(t, s, True) for t, s in zip(tasks, solutions)],
    "short": [reward(t, s[:-1]) for t, s in zip(tasks, solutions)],
    "other": [reward(t, s) for t, s in zip(tasks, solutions[1:] + solutions[:1])],
    "valid": [asyncio.run(t.validate(None)) for t in tasks],
}))
"""


def exported(ponder, write, study: str, form: str) -> list[Path]:
    result = ponder("export", write("s.toml", study), "--format", form, "-n", "4", "--json")
    assert result.exit_code == 0, result.output
    return [Path(file) for file in json.loads(result.stdout)["files"]]


def test_a_dataset_for_trl(ponder, write) -> None:
    from datasets import load_dataset

    train, test = exported(ponder, write, STUDY, "trl")
    data = load_dataset(
        "json", data_files={"train": str(train), "test": str(test)}, cache_dir="cache"
    )
    assert (data["train"].num_rows, data["test"].num_rows) == (8, 6)
    asked = {problem.id for cell in Study.load("s.toml").cells for problem in cell.asked()}
    assert {*data["test"]["id"]} == asked
    assert not asked & {*data["train"]["id"]}
    row = data["train"][0]
    assert row["prompt"][-1]["role"] == "user"
    answer = str(sum(int(n) for n in row["id"].replace("- ", "-").replace("+ ", "").split()))
    replies = [
        f"<answer>{answer}</answer>",
        "<answer>7777</answer>",
        f"<think><answer>{answer}</answer></think>no",
    ]
    chats = [[{"role": "assistant", "content": reply}] for reply in replies]
    for completions in (replies, chats):  # as TRL passes them for plain and for chat prompts
        assert correct(completions=completions, problem=[row["problem"]] * 3, prompts=[]) == [
            1.0,
            0.0,
            0.0,
        ]


def test_what_trl_has_no_row_for(ponder, write) -> None:
    result = ponder("export", write("s.toml", TURNS), "--format", "trl")
    assert (result.exit_code, "have several turns" in result.stderr) == (2, True)
    fixed = STUDY.replace('"chain_sum"\nsize = [2, 3]', '"math500"\nfile = "m.jsonl"')
    write("m.jsonl", '{"problem": "1 + 1", "answer": "2", "level": 1}\n')
    result = ponder("export", write("s.toml", fixed), "--format", "trl")
    assert (result.exit_code, "there are no training problems" in result.stderr) == (0, True), (
        result.output
    )
    assert [file.name for file in Path("s-trl").iterdir()] == ["test.jsonl"]
    result = ponder("export", write("s.toml", STUDY), "--format", "trl", "-o", "s.toml")
    assert (result.exit_code, "s.toml is a file" in result.stderr) == (2, True)


@pytest.mark.skipif(not VERIFIERS.exists(), reason="scripts/bench-peers makes .venv-verifiers")
def test_verifiers_loads_and_grades(ponder, write) -> None:
    # one process for both: importing verifiers takes 20 s
    for name, study in (("sums", STUDY), ("turns", TURNS)):
        result = ponder("export", write(f"{name}.toml", study), "--format", "verifiers", "-n", "4")
        assert result.exit_code == 0, result.output
    told = subprocess.run(
        [VERIFIERS, "-c", CODE, "ponder_sums", "ponder_turns"], capture_output=True, text=True, check=False,
        env={"PYTHONPATH": "sums-verifiers:turns-verifiers"},
    )  # fmt: skip
    assert told.returncode == 0, told.stderr
    found = json.loads(told.stdout)
    n = len(found["ids"])
    assert n == len({*found["ids"]}) == 6 + 2
    assert found["env"] == "Environment"
    assert found["solved"] == found["thinking"] == [1.0] * n
    assert found["valid"] == [True] * n
    assert found["cut"] == found["short"] == [0.0] * n
    assert sum(found["other"]) == 0


@pytest.mark.parametrize("name", plugins.files("tasks"))
def test_a_record_builds_an_equal_task(name: str) -> None:
    """Every task can be built from what a record holds of it, and grades the problem as before."""
    pytest.importorskip("reasoning_gym")
    task = build("tasks", {"name": name, **plugins.load("tasks", name).example}, name, Path())
    problem = next(task.problems(task.sizes()[0], 0))
    record = _record(task, problem)
    assert record._task == task
    assert record.solution().correct
