"""The command line: data on stdout, talk on stderr, exit codes, and docs that say what the code does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ponder.runner.progress import line, short
from ponder.runner.run import Tally


@pytest.mark.parametrize(
    "words", [["list"], ["show", "tents"], ["show", "effort"], ["plan", "effort"], ["check", "chain_sum"]]
)
def test_json(ponder, words) -> None:
    result = ponder(*words, "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout)
    assert ponder(*words).stdout


def test_show_a_puzzle(ponder) -> None:
    shown = json.loads(ponder("show", "tents", "--size", "36", "--set", "difficulty=tricky", "--json").stdout)
    assert shown["size"] == 36
    assert len(json.loads(shown["answer"])) == 6
    result = ponder("show", "tents", "--size", "37")
    assert result.exit_code == 2
    assert "the nearest sizes are" in result.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["list", "taks"], "did you mean `tasks`?"),
        (["show", "tens"], "did you mean `tents`?"),
        (["show", "tents", "--set", "difficulty=hard"], "Invalid enum value 'hard'"),
        (["check", "./none.py"], "there is no file"),
        (["report", "effort"], "there is no store ponder.db"),
        (["grade", "effort"], "there is no store ponder.db"),
        (["export", "effort"], "there is no store ponder.db"),
        (["new", "task", "my-task"], "can't be a plugin's name"),
    ],
)
def test_mistakes(ponder, words, message) -> None:
    result = ponder(*words)
    assert result.exit_code == 2
    assert message in result.stderr
    assert not result.stdout
    assert not Path("ponder.db").exists()


def test_new_never_overwrites(ponder) -> None:
    assert ponder("new", "task", "mine").exit_code == 0
    assert ponder("check", "./mine.py").exit_code == 0
    assert "is there already" in ponder("new", "model", "mine").stderr


def test_a_study_with_a_task_of_its_own(ponder, write) -> None:
    ponder("new", "task", "own_task")
    write("s.toml", 'problems = 3\n[[task]]\nname = "./own_task.py"\n[[model]]\nname = "oracle"\n')
    assert json.loads(ponder("run", "s.toml", "--json").stdout)["right"] == 9


def test_progress_line() -> None:
    tally = Tally(planned=200, right=40, wrong=5, truncated=3, failed=2, tokens=1_234_567)
    tally.started -= 10
    text = line(tally)
    for part in ("50/200", "5/s", "0:30 left", "1.23M tokens", "right 40", "wrong 5", "truncated 3", "failed 2"):
        assert part in text
    assert short(999) == "999"
