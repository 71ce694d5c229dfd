"""`ponder compare` on the command line: what it prints, two stores, and mistakes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from ponder.cli.compare import small

STUDY = """
problems = 20
[[task]]
name = "chain_sum"
size = [2, 4, 8, 16, 32]
[[model]]
name = "oracle"
label = "old"
critical_size = 8
steepness = 3
prices = { input = 0.1, output = 1.0 }
[[model]]
name = "oracle"
label = "new"
critical_size = 12
steepness = 3
tokens_at_zero = 100
prices = { input = 0.1, output = 1.0 }
"""


def test_the_command(ponder, write) -> None:
    study = write("mine.toml", STUDY)
    ponder("run", study)
    told = ponder("compare", study, "--figure", "out/c.png")
    assert told.exit_code == 0
    assert Path("out/c.png").read_bytes().startswith(b"\x89PNG")
    assert "100 problems in common" in told.stdout
    assert "USD per right answer" in told.stdout
    show = next(
        line for line in told.stdout.splitlines() if line.startswith("to see those attempts: ")
    )
    assert show.endswith("ponder compare mine.toml old new --disagree SIZE")
    tables = json.loads(ponder("compare", study, "old", "new", "--json").stdout)
    size = next(r for r in tables["sizes"] if r["only_a"] + r["only_b"])
    shown = json.loads(
        ponder("compare", study, "old", "new", "--disagree", int(size["size"]), "--json").stdout
    )
    assert len(shown) == size["only_a"] + size["only_b"]
    assert sum(one["right"] == "B" for one in shown) == size["only_b"]
    assert all(one["a"][0]["question"] and one["b"][0]["answer"] for one in shown)
    assert (
        f"{len(shown)} problems" in ponder("compare", study, "--disagree", int(size["size"])).stdout
    )
    for row in tables["rows"][:2]:
        line = next(line for line in told.stdout.splitlines() if line.startswith(row["quantity"]))
        assert re.split(" {2,}", line)[-2:] == [small(row["p_value"]), small(row["q_value"])]
    back = json.loads(ponder("compare", study, "new", "old", "--json").stdout)
    assert back["rows"][0]["effect"] == pytest.approx(-tables["rows"][0]["effect"])
    assert back["rows"][1]["effect"] == pytest.approx(1 / tables["rows"][1]["effect"])


@pytest.mark.parametrize(
    ("p_value", "text"),
    [(None, "?"), (0.0, "< 0.001"), (0.00099, "< 0.001"), (0.001, "0.001"), (0.0344, "0.034")],
)
def test_p_values(p_value, text) -> None:
    assert small(p_value) == text


def test_a_run_in_progress(ponder, write) -> None:
    """The largest size has one pair so far."""
    study = write("mine.toml", STUDY.replace("[2, 4, 8, 16, 32]", "[2, 4]"))
    ponder("run", study)
    ponder(
        "run",
        write(
            "more.toml",
            STUDY.replace("problems = 20", "problems = 1").replace("[2, 4, 8, 16, 32]", "32"),
        ),
    )
    whole = write("whole.toml", STUDY.replace("[2, 4, 8, 16, 32]", "[2, 4, 32]"))
    told = ponder("compare", whole).stdout
    assert "no tokens at the largest size: fewer than 3 problems of that size in common" in told
    (row,) = [line for line in told.splitlines() if line.split()[:2] == ["32", "1"]]
    assert "[" not in row
    told = ponder("compare", "more.toml").stdout
    assert "Can't tell: 1 problem in common, and an interval needs 3." in told
    assert "0.001" not in told


def test_two_stores(ponder, write) -> None:
    study = write("mine.toml", STUDY.replace("problems = 20", "problems = 8"))
    other = write(
        "other.toml",
        STUDY.replace("[2, 4, 8, 16, 32]", "[4, 8, 64]").replace("problems = 20", "problems = 5"),
    )
    ponder("run", study)
    ponder("run", other, "--store", "other.db")
    told = ponder("compare", study, "old", "new", "--b-study", other, "--b-store", "other.db")
    assert "10 problems in common" in told.stdout
    assert (
        "Left out: 30 problems of A that B did not answer, 5 problems of B that A did not answer"
        in told.stdout
    )
    there = ("--b-study", other, "--b-store", "other.db")
    assert f"ponder compare mine.toml old new {' '.join(there)} --disagree SIZE" in told.stdout
    tables = json.loads(ponder("compare", study, "old", "new", *there, "--json").stdout)
    differ = sum(r["only_a"] + r["only_b"] for r in tables["sizes"])
    shown = [
        r
        for s in (4, 8)
        for r in json.loads(
            ponder("compare", study, "old", "new", *there, "--disagree", s, "--json").stdout
        )
    ]
    assert len(shown) == differ > 0
    assert {one["model"] for r in shown for one in r["b"]} == {"new"}
    ponder("run", other, "--store", "third.db", "--set", "seed=99", "problems=1")
    missing = ponder(
        "compare", study, "old", "new", "--b-study", other, "--b-store", "third.db"
    ).stderr
    assert "hint: run it first: ponder run other.toml --store third.db\n" in missing
    same = ponder(
        "compare", study, "old", "old", "--b-study", other, "--b-store", "other.db"
    ).stdout
    assert same.startswith("A: old in ponder.db\nB: old in other.db\n")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("old", "nwe"), "this study has no model `nwe`\nhint: did you mean `new`?"),
        (("old",), "name the model to compare `old` with"),
        (("old", "old"), "`old` can't be compared with itself"),
        (("--figure", "x.gif"), "--figure: a figure is a .png, .svg or .pdf file"),
        (("--disagree", "3"), "--disagree: no problem has size 3\nhint: sizes: 2, 4, 8, 16, 32"),
        (("old", "new", "--store", "none.db"), "there is no store none.db"),
        (
            ("old", "new", "--b-study", "far.toml"),
            "answered no problem in common\nhint: give both the same task",
        ),
        (
            ("old", "new", "--b-study", "else.toml"),
            "was asked chain_sum, and `new` tents, execution",
        ),
    ],
)
def test_mistakes(ponder, write, words: tuple[str, ...], said: str) -> None:
    study = write("mine.toml", STUDY.replace("problems = 20", "problems = 2"))
    write("far.toml", STUDY.replace("problems = 20", "problems = 2\nseed = 9"))
    more = '[[task]]\nname = "tents"\nsize = 16\n[[task]]\nname = "execution"\nsize = 4\n'
    write("else.toml", "problems = 1\n" + more + STUDY[STUDY.index("[[model]]") :])
    for name in ("mine", "far", "else"):
        ponder("run", f"{name}.toml")
    told = ponder("compare", study, *words)
    assert told.exit_code == 2
    assert said in told.stderr


def test_a_long_reply_keeps_its_end(ponder, write) -> None:
    """The answer stands there."""
    write("problems.jsonl", '{"id": "p", "prompt": "2 + 2?", "answer": "4", "size": 1}')
    for name, answer in (("a", "First, " + "we think. " * 200 + "So it is 4."), ("b", "It is 5.")):
        write(f"{name}.jsonl", json.dumps({"problem": "p", "answer": answer}))
    models = "".join(
        f'[[model]]\nname = "replay"\nfile = "{n}.jsonl"\nlabel = "{n}"\n' for n in "ab"
    )
    study = write("s.toml", f'[[task]]\nname = "jsonl"\nfile = "problems.jsonl"\n{models}')
    ponder("run", study)
    shown = ponder("compare", study, "a", "b", "--disagree", 1).stdout
    assert "So it is 4." in shown
    assert "First, we think." in shown
    assert "2,018 characters; --json has all" in shown
