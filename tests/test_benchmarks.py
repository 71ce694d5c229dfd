"""Benchmarks are read from the hub's cache or a user's file, known by what they say, and graded as
mathematics.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from viewed import attempt, get

from ponder import Study
from ponder.core import UserError, plugins
from ponder.core.settings import build
from ponder.store.store import Done, Store
from ponder.tasks import reading
from ponder.tasks.reading.maths import MathVerify

MATHS = ["math500", "aime24", "aime25", "amc23"]


def write(path: Path, *rows: dict) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def task(name: str, file: Path | None = None, **settings):
    return plugins.load("tasks", name)(file=file, **settings)


def only(found):
    (problem,) = found.problems(0, 0)
    return problem


@pytest.mark.parametrize(
    "row",
    [
        {"problem": "Half of 54?", "answer": "27"},
        {"prompt": "Half of 54?", "answer": 27},
        {"question": "Half of 54?", "answer": 27.0, "url": None},
        {"Problem": " Half of 54? ", "Answer": "27", "solution": "54 / 2"},
    ],
)
def test_the_ways_to_write_a_problem(tmp_path: Path, row: dict) -> None:
    found = task("amc23", write(tmp_path / "a.jsonl", row))
    problem = only(found)
    assert problem.turns == (
        "Half of 54?\n\nPlease reason step by step, and put your final answer within \\boxed{}.",
    )
    assert problem.gold == "27"
    assert found.grade(problem, "So it is \\boxed{27}.").correct
    assert found.grade(problem, "\\boxed{27.0}").correct
    assert found.grade(problem, "\\boxed{28}").why == "wrong answer"
    assert found.grade(problem, "").parsed is None


def test_a_set_is_known_by_what_it_says(tmp_path: Path) -> None:
    polars = pytest.importorskip("polars")
    rows = [{"problem": "1 + 1?", "answer": "2"}, {"problem": "1 + 2?", "answer": "3"}]
    jsonl = task("aime24", write(tmp_path / "a.jsonl", *rows))
    (tmp_path / "b.csv").write_text('problem,answer\n1 + 1?,2\n"1 + 2?",3\n')
    polars.DataFrame(rows).write_parquet(tmp_path / "c.parquet")
    same = [task("aime24", tmp_path / name) for name in ("b.csv", "c.parquet")]
    assert [t.identity() for t in same] == [jsonl.identity()] * 2
    assert [list(t.fixed()) for t in same] == [list(jsonl.fixed())] * 2
    other = task("aime24", write(tmp_path / "d.jsonl", *reversed(rows)))
    assert other.identity() != jsonl.identity()
    known = jsonl.identity()["problems"]
    assert len(task("aime24", tmp_path / "b.csv", digest=known).fixed()) == 2
    with pytest.raises(UserError, match=f"digest is {known}, not x"):
        task("aime24", tmp_path / "b.csv", digest="x").identity()


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        (
            "a.jsonl",
            '{"problem": "1 + 1?", "answer": "2"}\n\n{"problem": ',
            "a.jsonl:3: Input data was truncated",
        ),
        ("a.jsonl", '{"problem": "1 + 1?", "solution": "2"}', "a.jsonl:1: `answer` is missing"),
        ("a.jsonl", '{"answer": "2"}', "a.jsonl:1: `problem` or `prompt` or `question` is missing"),
        (
            "a.jsonl",
            '{"problem": "1 + 1?", "answer": [2]}',
            "a.jsonl:1: `answer` is missing, or is not text",
        ),
        (
            "a.jsonl",
            '{"problem": "1?", "answer": 1}\n{"problem": "1?", "answer": 1}',
            "a.jsonl:2: this problem occurs twice",
        ),
        ("a.jsonl", "", "a.jsonl is empty"),
        ("a.jsonl", "[1]", "a.jsonl:1: expected an object, not a list"),
        ("a.csv", 'problem,answer\n1?,"1', "a.csv:2: unexpected end of data"),
        ("a.csv", "problem,answer\n", "a.csv: no problems"),
        ("a.parquet", "no", "a.parquet: can't read it as Parquet: "),
        ("a.txt", "no", "a.txt is not .jsonl, .csv, .parquet"),
    ],
)
def test_a_wrong_file_is_an_error_with_its_place(
    tmp_path: Path, name: str, content: str, said: str
) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(UserError) as error:
        list(task("aime24", tmp_path / name).problems(0, 0))
    assert said in str(error.value)


def test_a_missing_file_is_found_when_the_study_loads(tmp_path: Path) -> None:
    content = {"task": [{"name": "aime24", "file": "nix.jsonl"}], "model": [{"name": "oracle"}]}
    with pytest.raises(UserError, match=r"study: task\[0\]: there is no file .*nix.jsonl"):
        _ = Study.from_table(content, folder=tmp_path).cells


def test_a_study_loads_without_the_sets() -> None:
    tables = [{"name": name} for name in (*MATHS, "gpqa")]
    study = Study.from_table({"task": tables, "model": [{"name": "oracle"}]})
    assert [(c.size, c.quota.problems) for c in study.cells] == [(0, None)] * 5
    with pytest.raises(UserError, match="math500 has no sizes"):
        _ = Study.from_table(
            {"task": [{"name": "math500", "size": 3}], "model": [{"name": "oracle"}]}
        ).cells


def from_hub(home: Path, name: str) -> str:
    """What asking for the problems says where there is no network, in a process of its own, as the
    hub wants it.
    """
    code = f"""
from ponder.core import plugins
from ponder.core import UserError
task = plugins.load("tasks", "{name}")()
try:
    print(len(list(task.fixed())), task.identity()["problems"])
except UserError as error:
    print(error)
"""
    env = {**os.environ, "HF_HOME": str(home), "HF_HUB_OFFLINE": "1"}
    env = {k: v for k, v in env.items() if k not in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE")}
    return subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
    ).stdout


def cache(home: Path, dataset: str) -> Path:
    """The folder in which the hub keeps what it gave of a dataset."""
    folder = home / "hub" / f"datasets--{dataset.replace('/', '--')}"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text("0" * 40)
    snapshot = folder / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    return snapshot


def test_from_the_hub(tmp_path: Path) -> None:
    pytest.importorskip("huggingface_hub")
    assert "can't get opencompass/AIME2025 from the hub: " in from_hub(tmp_path, "aime25")
    assert 'set file = "aime25.jsonl"' in from_hub(tmp_path, "aime25")
    there = cache(tmp_path, "opencompass/AIME2025")
    rows = [{"question": f"{n} + 1?", "answer": str(n + 1)} for n in range(30)]
    write(there / "aime2025-I.jsonl", *rows[:15])
    assert "opencompass/AIME2025 on the hub: 15 problems, not 30" in from_hub(tmp_path, "aime25")
    write(there / "aime2025-II.jsonl", *rows[15:])
    whole = task("aime25", write(tmp_path / "whole.jsonl", *rows))
    assert from_hub(tmp_path, "aime25").split() == ["30", whole.identity()["problems"]]


def test_without_the_packages(monkeypatch, tmp_path: Path) -> None:
    found = task("math500", write(tmp_path / "a.jsonl", {"problem": "1?", "answer": "1"}))
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(UserError) as error:
        task("aime24").fixed()[0]
    assert "pip install huggingface_hub" in str(error.value)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert found.grade(only(found), "\\boxed{1}").correct
    with pytest.raises(UserError, match=r"ponder-lab\[maths\]"):
        found.grade(only(found), "\\boxed{one}")
    with pytest.raises(UserError, match=r"ponder-lab\[maths\]"):
        task("aime24")
    assert task("gpqa")


@pytest.mark.parametrize(
    ("said", "gold", "why"),
    [
        ("\\frac{3}{4}", "0.75", ""),
        ("\\dfrac{3}{4}", "3/4", ""),
        ("1{,}000", "1000", ""),
        ("x = 5", "5", ""),
        ("5\\text{ cm}", "5", ""),
        ("(1, \\pi/2)", "\\left( 1, \\frac{\\pi}{2} \\right)", ""),
        ("3,1,2", "1,2,3", ""),
        ("\\text{East}", "east", ""),
        ("2\\sqrt{3}", "\\sqrt{12}", ""),
        ("(x+1)^2", "x^2+2x+1", ""),
        (".0000672", ".0000673", "wrong answer"),
        ("0.333333", "\\frac{1}{3}", "wrong answer"),
        ("2\\sqrt{3}", "\\sqrt{13}", "wrong answer"),
        ("(2,1)", "(1,2)", "wrong answer"),
        ("no idea", "5", "wrong answer"),
        ("}{", "5", "wrong answer"),
        ("\ud800", "5", "wrong answer"),
        ("x" * 5000, "5", "wrong answer"),
    ],
)
def test_mathematics_is_compared(said: str, gold: str, why: str) -> None:
    assert reading.differs(said, gold) == why


def test_an_answer_in_a_sentence_votes_with_the_same_answer_alone() -> None:
    task = build(
        "tasks", {"name": "math500", **plugins.load("tasks", "math500").example}, "task", Path()
    )
    assert task.same_answer("The length is $2\\sqrt{3}$", "\\sqrt{12}")
    assert not task.same_answer("The length is 3", "4")


def test_a_comparison_that_runs_away_is_stopped() -> None:
    mathematician = MathVerify(cpu_seconds=0.3)
    assert mathematician.differs("9^{9^{9^{9}}}", "5") == "took too long"
    assert mathematician.differs("x=5", "5") == ""  # and the next one is answered
    assert mathematician.close() == 0


GPQA = {
    "Question": "Which?",
    "Correct Answer": "this\n",
    "Incorrect Answer 1": "that",
    "Incorrect Answer 2": "the other",
}


def test_choices_keep_their_order(tmp_path: Path) -> None:
    one = only(task("gpqa", write(tmp_path / "a.jsonl", GPQA | {"Incorrect Answer 3": "none"})))
    two = only(
        task(
            "gpqa",
            write(
                tmp_path / "b.jsonl",
                {
                    "problem": "Which?",
                    "answer": "this",
                    "wrong 1": "none",
                    "wrong 2": "the other",
                    "wrong 3": "that",
                },
            ),
        )
    )
    assert one == two
    assert f"\n{one.gold}) this\n" in one.turns[0]
    rows = [
        {"problem": f"{n}?", "answer": "yes", "wrong 1": "1", "wrong 2": "2", "wrong 3": "3"}
        for n in range(40)
    ]
    assert {p.gold for p in task("gpqa", write(tmp_path / "c.jsonl", *rows)).fixed()} == set("ABCD")
    with pytest.raises(UserError, match="`wrong 3` or `incorrect answer 3` is missing"):
        only(task("gpqa", write(tmp_path / "d.jsonl", GPQA)))


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("\\boxed{A}, no: \\boxed{B}", "B"),
        ("\\boxed{\\text{(C)}}", "C"),
        ("\\boxed{\\mathrm{D}}", "D"),
        ("\\boxed{B) 20 m}", "B"),
        ("Answer: A\n\n**Answer:** (C)", "C"),
        ("The answer is **D**.", "D"),
        ("ANSWER: B", "B"),
        ("Answer: Bor", None),
        ("Answer: Boron", "B"),
        ("\\boxed{20 m}", None),
        ("\\boxed{d}", "D"),
        ("\\boxed{\\frac{1}{16}}", "D"),
        ("It is **neon**.", "C"),
        ("\\boxed{A \\text{ or } B}", None),
        ("The answer is B, not A or C.", "B"),
        ("\\boxed{B}\n\nEdit: that's incorrect. My final answer is A.", "A"),
        ("Die richtige Antwort ist **A**.", "A"),
        ("the answer is a mystery", None),
        ("\\boxed{B, C}", None),
        ("Answer: A & B", None),
        ("\\boxed{A gas}", None),
        ("\\boxed{C}. Wait, it is actually D.", "D"),
        ("Option A is wrong. Option C is wrong.", None),
        ("I would not pick B.", None),
        ("Answer: A is incorrect", None),
        ("A) helium\nB) neon\nC) argon", None),
        ("C is the correct answer.", "C"),
        ("A", "A"),
        ("**B)** helium", "B"),
        ("C) neon\n\nIt is noble, and A) is not.", "C"),
        ("<answer>D</answer>", "D"),
        ("The correct option is (B).", "B"),
        ("A gas is needed.", None),
        ("A.I. is no gas", None),
        ("I'd say B's reasoning is off.", None),
        ("", None),
    ],
)
def test_choice(text: str, letter: str | None) -> None:
    options = {"A": "20 km", "B": "boron", "C": "neon", "D": "1/16"}
    assert reading.choice(text, options) == letter


NO_NETWORK = """
import socket

def refused(*words, **named):
    open({log!r}, "a").write(f"{{words}}\\n")
    raise OSError("there is no network here")

def connect(self, address, connect=socket.socket.connect):
    if self.family == socket.AF_UNIX or address[0] == "127.0.0.1":
        return connect(self, address)
    return refused(address)

socket.getaddrinfo = refused
socket.socket.connect = connect
"""
HUB_STUDY = """
problems = 4
[[task]]
name = "math500"
[[model]]
name = "oracle"
label = "a"
[[model]]
name = "oracle"
label = "b"
critical_size = 10
[[figure]]
name = "accuracy"
"""


@pytest.fixture
def hub_study(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A study of a benchmark on the hub, run before, where there is neither a network nor a copy of
    the benchmark.

    Attempts at other problems under the same name, by another model, are in the store too, and are
    newer.
    """
    (folder / "hub.toml").write_text(HUB_STUDY)
    rows = [{"problem": f"{n} + 1?", "answer": str(n + 1)} for n in range(500)]
    local = write(folder / "local.jsonl", *rows)
    other = write(folder / "other.jsonl", *rows[:7])
    study = Study.load("hub.toml")
    ran = Study.load("hub.toml", [f"task.file={local}"])
    assert [cell.count for cell in ran.cells] == [4, 4]
    with Store(folder / "ponder.db", lock=True) as store:
        run = store.record_study(study)
        for cell in ran.cells:
            store.add([Done(cell, n, attempt(cell, p, n)) for n, p in enumerate(cell.asked())], run)
        for cell in Study.load("hub.toml", [f"task.file={other}", "model.budget=7"]).cells:
            store.add([Done(cell, n, attempt(cell, p, n)) for n, p in enumerate(cell.asked())])
    local.unlink()
    other.unlink()
    sandbox = folder / "sandbox"
    sandbox.mkdir()
    (sandbox / "sitecustomize.py").write_text(NO_NETWORK.format(log=str(folder / "asked")))
    monkeypatch.setenv("PYTHONPATH", f"{sandbox}:{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.setenv("HF_HOME", str(folder / "empty"))
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    return folder


def test_stored_attempts_at_a_benchmark_are_shown_without_the_hub(hub_study: Path, running) -> None:
    with running("view", "hub.toml", "--port", "0", "--no-open") as process:
        address, _, token = process.stderr.readline().strip().partition("/?token=")
        admitted = {"Cookie": f"ponder-{address.rpartition(':')[2]}={token}"}
        assert "8</b> of 8 attempts" in get(address, "/", **admitted)[2]
        assert "complete" in get(address, "/ponder/hub", **admitted)[2]
        assert "Accuracy" in get(address, "/ponder/hub/figures", **admitted)[2]
        assert "8 attempts" in get(address, "/ponder/hub/attempts", **admitted)[2]
        assert "3 + 1?" in get(address, "/ponder/hub/attempt/4", **admitted)[2]
    with running("view", "--port", "0", "--no-open") as process:  # as it was last run
        address, _, token = process.stderr.readline().strip().partition("/?token=")
        admitted = {"Cookie": f"ponder-{address.rpartition(':')[2]}={token}"}
        assert "8</b> of 8 attempts" in get(address, "/", **admitted)[2]
        assert "Accuracy" in get(address, "/ponder/hub/figures", **admitted)[2]
    assert not (hub_study / "asked").exists()


@pytest.mark.parametrize(
    ("words", "printed"),
    [
        (("report", "hub.toml"), "reports/hub/report.html"),
        (("export", "hub.toml", "--format", "jsonl", "-o", "-"), "3 + 1?"),
        (("compare", "hub.toml", "a", "b"), "4 problems"),
        (("regrade", "hub.toml"), "0 grades changed"),
    ],
)
def test_stored_attempts_at_a_benchmark_are_read_without_the_hub(
    hub_study: Path, words, printed: str
) -> None:
    command = [sys.executable, "-c", "from ponder.cli import main; main()", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "incomplete" not in done.stderr
    assert printed in done.stdout
    assert not (hub_study / "asked").exists()


def test_results_of_a_benchmark_are_read_without_the_hub(hub_study: Path) -> None:
    code = "import ponder; print(len(ponder.Study.load('hub.toml').results().outcomes))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "8", done.stderr
    assert not (hub_study / "asked").exists()


def test_a_benchmark_that_was_never_asked_is_looked_at_without_the_hub(hub_study: Path) -> None:
    (hub_study / "new.toml").write_text(HUB_STUDY.replace("math500", "aime24"))
    command = [sys.executable, "-c", "from ponder.cli import main; main()", "report", "new.toml"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "no answers" in done.stderr or "no attempts" in done.stderr
    assert not (hub_study / "asked").exists()
