"""`ponder score` writes what the reward says, says where a line is broken, and resumes where it
stopped.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from scored_traces import lines_of, read_json, records

from ponder.core import RatesEach
from ponder.rewards.oracle import Oracle
from ponder.traces import read
from ponder.traces.score_file import Scoring

REWARD = '''
"""A reward for a test: the share of steps that stand before a long word."""
from pathlib import Path
from dataclasses import dataclass
from ponder.core import Bill, Reward, Scores

@dataclass(frozen=True, kw_only=True)
class Mine(Reward):
    def rate(self, traces):
        with Path("asked.txt").open("a") as file:
            file.writelines(trace.id + "\\n" for trace in traces)
        down = Path("down.txt").exists()
        return [
            Scores(why="the judge is down") if down and trace.id in ("t1", "t3")
            else Scores(tuple(len(step) % 7 / 7 for step in trace.part(self.of)), bill=Bill(3))
            for trace in traces
        ]
'''


def test_score_writes_what_the_reward_says(ponder, write) -> None:
    write("traces.jsonl", lines_of(records()))
    result = ponder("score", "traces.jsonl", "--reward", "oracle", "--set", "alpha=0.5")
    assert result.exit_code == 0
    assert result.stdout == "traces.scored.jsonl\n"
    assert "6  scored" in result.stderr
    for given, found in zip(records(), read_json("traces.scored.jsonl"), strict=True):
        labels = [float(label) for label in given["labels"]]
        assert found["step_scores"] == labels
        assert found["trajectory"] == float(given["correct"])
        assert found["score"] == pytest.approx(sum(labels) / 3 + 0.5 * given["correct"])
        assert found["scored_by"].startswith("oracle ")
        assert found["question"] == given["problem"]
        assert found["source"] == "s1"
        assert "score_why" not in found


def test_score_says_where_a_line_is_broken(ponder, write) -> None:
    rows = (
        lines_of(records(3))
        + '{"id": 1, \n{"question": "?"}\n'
        + lines_of([{"question": "a?", "answer": "b"}])
    )
    write("traces.jsonl", rows)
    result = ponder("score", "traces.jsonl", "--reward", "oracle")
    assert result.exit_code == 2
    assert "traces.jsonl:4: " in result.stderr
    assert not Path("traces.scored.jsonl").exists()
    result = ponder("score", "traces.jsonl", "--reward", "oracle", "--bad", "skip", "--json")
    assert json.loads(result.stdout) == {
        "file": "traces.scored.jsonl", "traces": 4, "scored": 3, "scored_before": 0,
        "unscored": {"it has no labels": 1}, "skipped": 2, "tokens": 0,
        "formats": {"named columns": 4},
    }  # fmt: skip
    assert "skipped traces.jsonl:5: it has neither thinking nor an answer" in result.stderr
    assert "1  not scored: it has no labels" in result.stderr
    last = read_json("traces.scored.jsonl")[-1]
    assert last["score"] is None
    assert last["score_why"] == "it has no labels"


def test_scoring_resumes_where_it_stopped(ponder, write) -> None:
    write("traces.jsonl", lines_of(records()))
    write("reward_that_counts.py", REWARD)
    words = ("score", "traces.jsonl", "--reward", "./reward_that_counts.py", "--json")
    assert json.loads(ponder(*words).stdout)["tokens"] == 6 * 3
    whole = Path("traces.scored.jsonl").read_bytes()
    Path("asked.txt").unlink()
    # Killed in the middle of the fourth line.
    lines = whole.splitlines(keepends=True)
    Path("traces.scored.jsonl").write_bytes(b"".join(lines[:3]) + lines[3][:40])
    summary = json.loads(ponder(*words).stdout)
    assert (summary["scored"], summary["scored_before"]) == (3, 3)
    assert Path("asked.txt").read_text().split() == ["t3", "t4", "t5"]
    assert Path("traces.scored.jsonl").read_bytes() == whole
    assert json.loads(ponder(*words).stdout)["scored_before"] == 6
    assert Path("traces.scored.jsonl").read_bytes() == whole


@pytest.mark.parametrize(
    "content", ["my notes", "my notes\n", '{"question": "Who?"}', "{}\n", "[1]\n"]
)
def test_a_file_that_is_something_else_is_left_alone(ponder, write, content) -> None:
    write("traces.jsonl", lines_of(records()))
    write("notes.txt", content)
    result = ponder("score", "traces.jsonl", "--reward", "oracle", "-o", "notes.txt")
    assert result.exit_code == 2
    assert "notes.txt:1: this line was not written by the same reward" in result.stderr
    assert Path("notes.txt").read_text() == content


def test_traces_without_a_score_are_scored_again(ponder, write) -> None:
    write("traces.jsonl", lines_of(records()))
    write("reward_that_fails.py", REWARD)
    words = ("score", "traces.jsonl", "--reward", "./reward_that_fails.py", "--json")
    write("down.txt", "")
    assert json.loads(ponder(*words).stdout)["unscored"] == {"the judge is down": 2}
    half = Path("traces.scored.jsonl").read_bytes().splitlines(keepends=True)
    Path("traces.scored.jsonl").write_bytes(b"".join(half[:5]))
    Path("down.txt").unlink()
    Path("asked.txt").unlink()
    summary = json.loads(ponder(*words).stdout)
    assert (summary["scored"], summary["scored_before"], summary["unscored"]) == (3, 3, {})
    assert Path("asked.txt").read_text().split() == ["t1", "t3", "t5"]
    found = read_json("traces.scored.jsonl")
    assert [row["id"] for row in found] == [f"t{n}" for n in range(6)]
    assert all(row["score"] is not None for row in found)
    assert sorted(p.name for p in Path().glob("*scored*")) == ["traces.scored.jsonl"]


@pytest.mark.parametrize("change", ["settings", "steps", "file", "shorter", "source"])
def test_scoring_does_not_resume_from_other_scores(ponder, write, change) -> None:
    rows = records()
    write("traces.jsonl", lines_of(rows))
    write(f"reward_for_{change}.py", REWARD)
    words = ["score", "traces.jsonl", "--reward", f"./reward_for_{change}.py"]
    assert ponder(*words).exit_code == 0
    before = Path("traces.scored.jsonl").read_bytes()
    if change == "file":
        rows[2]["response"] = "something else"
    write("traces.jsonl", lines_of(rows[:4] if change == "shorter" else rows))
    if change == "source":
        write(f"reward_for_{change}.py", REWARD + "# another\n")
    more = {"settings": ["--set", "alpha=2.0"], "steps": ["--by", "sentence"]}.get(change, [])
    result = ponder(*words, *more)
    assert result.exit_code == 2
    where = {"file": 3, "shorter": 5}.get(change, 1)
    assert (
        f"traces.scored.jsonl:{where}: this line was not written by the same reward from the same file"
        in result.stderr
    )
    assert Path("traces.scored.jsonl").read_bytes() == before


def test_a_file_scored_by_another_reward_is_scored_again(ponder, write) -> None:
    write(
        "traces.jsonl", lines_of([{**row, "score": 0.123, "step_scores": [9]} for row in records()])
    )
    assert ponder("score", "traces.jsonl", "--reward", "oracle").exit_code == 0
    first = ponder(
        "score",
        "traces.scored.jsonl",
        "--reward",
        "oracle",
        "--set",
        "alpha=0.0",
        "-o",
        "again.jsonl",
    )
    assert first.exit_code == 0
    for given, found in zip(records(), read_json("again.jsonl"), strict=True):
        assert found["score"] == pytest.approx(sum(map(float, given["labels"])) / 3)


class Batches(Oracle, RatesEach):
    """Notes the size of each batch, and gives the scores of a batch from its end."""

    sizes: list[int] = []  # noqa: RUF012

    def rate_each(self, traces):
        self.sizes.append(len(traces))
        return reversed(list(enumerate(self.rate(traces))))


def test_the_first_trace_is_scored_alone_and_the_order_is_kept(folder, monkeypatch) -> None:
    Path("traces.jsonl").write_text(lines_of(records(25)))
    monkeypatch.setattr("ponder.traces.score_file.BATCH", 10)
    monkeypatch.setattr(Batches, "sizes", [])
    reports = list(Scoring(read(Path("traces.jsonl")), Batches(), Path("out.jsonl")))
    assert [report["scored"] for report in reports] == [f"{n} of 25" for n in range(26)]
    assert Batches.sizes == [1, 2, 4, 8, 10]
    assert [row["id"] for row in read_json("out.jsonl")] == [f"t{n}" for n in range(25)]
    monkeypatch.setattr("ponder.traces.score_file.CHARACTERS", 1)
    list(Scoring(read(Path("traces.jsonl")), Batches(), Path("one.jsonl")))
    assert Batches.sizes[5:] == [1] * 25
    assert Path("one.jsonl").read_bytes() == Path("out.jsonl").read_bytes()


def test_a_scoring_that_is_stopped_loses_no_score(folder, monkeypatch) -> None:
    Path("traces.jsonl").write_text(lines_of(records(25)))
    monkeypatch.setattr(Batches, "sizes", [])
    whole = Scoring(read(Path("traces.jsonl")), Batches(), Path("whole.jsonl"))
    list(whole)
    work = iter(Scoring(read(Path("traces.jsonl")), Batches(), Path("out.jsonl")))
    # the start, the first batches, and three of the next, which come from its end
    for _ in range(1 + 1 + 2 + 3):
        next(work)
    work.close()
    assert [row["id"] for row in read_json("out.jsonl")] == ["t0", "t2", "t1", "t6", "t5", "t4"]
    again = Scoring(read(Path("traces.jsonl")), Batches(), Path("out.jsonl"))
    list(again)
    assert (again.scored_before, again.scored + again.unscored.total()) == (6, 19)
    assert Path("out.jsonl").read_bytes() == Path("whole.jsonl").read_bytes()


def test_copies_are_scored_once_and_new_traces_anywhere_are_added(ponder, write) -> None:
    rows = records()
    write("traces.jsonl", lines_of([*rows[:3], rows[1]]))
    write("reward_once.py", REWARD)
    words = ("score", "traces.jsonl", "--reward", "./reward_once.py", "--json")
    assert json.loads(ponder(*words).stdout)["scored"] == 4
    assert Path("asked.txt").read_text().split() == ["t0", "t1", "t2"]
    assert [row["id"] for row in read_json("traces.scored.jsonl")] == ["t0", "t1", "t2", "t1"]
    write("traces.jsonl", lines_of([rows[4], *rows[:3], rows[1], rows[5]]))
    summary = json.loads(ponder(*words).stdout)
    assert (summary["scored"], summary["scored_before"]) == (2, 4)
    assert Path("asked.txt").read_text().split()[3:] == ["t4", "t5"]
    assert [row["id"] for row in read_json("traces.scored.jsonl")] == [
        "t4",
        "t0",
        "t1",
        "t2",
        "t1",
        "t5",
    ]


def test_a_file_without_any_score_exits_with_1(ponder, write) -> None:
    write("traces.jsonl", lines_of([{"question": "?", "answer": "a"}]))
    result = ponder("score", "traces.jsonl", "--reward", "oracle")
    assert result.exit_code == 1
    assert "1  not scored: it has no labels" in result.stderr
