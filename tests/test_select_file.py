"""`ponder select` writes the best first, leaves out what is asked, and names mistakes in its files
and words.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from scored_traces import lines_of, read_json, records, text

from ponder.tasks.chain_sum import ChainSum
from ponder.traces import read
from ponder.traces.score_file import Selecting
from ponder.traces.selection import Choice


def test_select_from_a_file(ponder, write) -> None:
    rows = records()
    write("traces.jsonl", lines_of([*rows, {**rows[4], "id": "t4 again"}]))
    ponder("score", "traces.jsonl", "--reward", "oracle")
    write("asked.jsonl", lines_of([{"problem": rows[2]["problem"]}]))
    result = ponder(
        "select",
        "traces.scored.jsonl",
        "--top",
        "2",
        "--right",
        "--without",
        "asked.jsonl",
        "--json",
    )
    assert result.exit_code == 0
    summary = json.loads(result.stdout)
    assert summary["dropped"] == {
        "wrong": 2,
        "in the evaluation set": 1,
        "duplicate": 1,
        "beyond the top 2": 1,
    }
    assert "1  dropped: duplicate (t4 again of t4)" in result.stderr
    found = read_json("traces.chosen.jsonl")
    # 1 + (1 + 1 + 0.4) / 3, then 1 + (1 + 0 + 0.5) / 3
    assert [row["id"] for row in found] == ["t4", "t5"]
    assert found[1]["chosen"] == {
        "rank": 2, "score": pytest.approx(1.5), "tokens": summary["tokens"] - found[0]["chosen"]["tokens"],
        "reason": "score ranks 3 of 4",
    }  # fmt: skip
    assert found[1]["thinking"] == rows[5]["response"].partition("</think>")[0].removeprefix(
        "<think>"
    )
    # a selection can be chosen from
    again = ponder("select", "traces.chosen.jsonl", "--top", "1", "-o", "one.jsonl")
    assert again.stdout == "one.jsonl\n"
    assert [row["id"] for row in read_json("one.jsonl")] == ["t4"]


def test_the_shortest_of_each_problem_that_passes_a_filter(ponder, write) -> None:
    """The filter and the order of `by` are options; without --per-problem the easiest problems
    would come first.
    """
    rows = [
        {
            "id": f"{n}{kind}",
            "question": f"Problem {n}?",
            "answer": "so",
            "thinking": text(f"{n}{kind}", size),
            "score": s,
        }
        for n in range(4)
        for kind, size, s in (("long", 90, 1.999), ("short", 30, 1.95), ("wrong", 10, 0.4))
    ]
    write("scored.jsonl", lines_of(rows))
    shortest = ("--by", "shortest", "--threshold", "1.9", "--per-problem")
    assert ponder("select", "scored.jsonl", *shortest, "-o", "short.jsonl").exit_code == 0
    assert sorted(row["id"] for row in read_json("short.jsonl")) == [f"{n}short" for n in range(4)]
    assert ponder("select", "scored.jsonl", "--per-problem", "-o", "best.jsonl").exit_code == 0
    assert sorted(row["id"] for row in read_json("best.jsonl")) == [f"{n}long" for n in range(4)]
    kinds = set()
    for seed in range(6):
        ties = ("--top", "2", "--tolerance", "0.1", "--seed", str(seed), "-o", f"{seed}.jsonl")
        assert ponder("select", "scored.jsonl", *ties).exit_code == 0
        kinds |= {row["id"][1:] for row in read_json(f"{seed}.jsonl")}
    assert kinds == {"long", "short"}


def test_select_leaves_out_what_a_study_asks(ponder, write) -> None:
    asked = next(ChainSum().problems(4, 7))
    rows = [
        {
            "id": "asked",
            "question": "In pocket words.",
            "answer": "so",
            "score": 1.0,
            "problem_id": asked.id,
        }
    ]
    rows += [{"id": "other", "question": "Another?", "answer": "yes", "score": 0.5}]
    write("scored.jsonl", lines_of(rows))
    write(
        "mine.toml",
        'seed = 7\nproblems = 3\n[[task]]\nname = "chain_sum"\nsize = 4\n[[model]]\nname = "oracle"\n',
    )
    result = ponder("select", "scored.jsonl", "--by", "all", "--without", "mine.toml")
    assert result.exit_code == 0
    assert [row["id"] for row in read_json("scored.chosen.jsonl")] == ["other"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["score", "traces.jsonl", "--reward", "orakle"], "did you mean `oracle`?"),
        (
            ["score", "traces.jsonl", "--reward", "oracle", "--set", "alhpa=1"],
            "did you mean `alpha`?",
        ),
        (["score", "none.jsonl", "--reward", "oracle"], "can't read none.jsonl"),
        (
            ["score", "traces.jsonl", "--reward", "oracle", "-o", "traces.jsonl"],
            "would be overwritten",
        ),
        (
            ["score", "traces.jsonl", "--reward", "oracle", "-o", "no/where.jsonl"],
            "can't write no/where.jsonl",
        ),
        (["score", "empty.jsonl", "--reward", "oracle"], "there are no traces in empty.jsonl"),
        (["select", "traces.jsonl"], "nothing limits how many traces to keep"),
        (["select", "traces.jsonl", "--top", "2"], "no trace has a score"),
        (
            ["select", "two.jsonl", "--top", "2"],
            "scores of two rewards can't be ranked together: `a 1` and `b 2`",
        ),
        (["select", "odd.jsonl", "--top", "2"], "trace x: score must be a number, not 'high'"),
        (["select", "two.jsonl", "--by", "random", "--threshold", "7"], "scores of two rewards"),
        (["select", "one.jsonl", "--threshold", "7"], "no trace is left"),
        (
            ["select", "traces.jsonl", "--by", "all", "--without", "broken.jsonl"],
            "broken.jsonl:1: there is no question",
        ),
    ],
)
def test_mistakes_on_the_command_line(ponder, write, words, message) -> None:
    trace = {"question": "?", "answer": "a", "id": "x"}
    write("traces.jsonl", lines_of(records(2)))
    write("empty.jsonl", "\n")
    write("two.jsonl", lines_of([{**trace, "score": 1, "scored_by": by} for by in ("a 1", "b 2")]))
    write("one.jsonl", lines_of([{**trace, "score": 1}]))
    write("odd.jsonl", lines_of([{**trace, "score": "high"}, {**trace, "score": 1, "answer": "b"}]))
    write("broken.jsonl", '{"text": "no question"}\n')
    result = ponder(*words)
    assert result.exit_code == 2
    assert message in result.stderr
    assert not result.stdout
    assert not list(Path().glob("*.chosen.jsonl"))


def test_the_best_are_written_first(folder) -> None:
    rows = [
        {"id": f"t{n}", "question": f"{text(n)}?", "answer": text(n + 9), "score": n % 4}
        for n in range(7)
    ]
    Path("scored.jsonl").write_text(lines_of(rows))
    progress = list(Selecting(read(Path("scored.jsonl")), Choice(top=4), Path("out.jsonl")))
    assert progress == [{"read": "0"}, {"read": "7", "kept": "4"}]
    assert [(row["id"], row["chosen"]["rank"]) for row in read_json("out.jsonl")] == [
        ("t3", 1), ("t2", 2), ("t6", 3), ("t1", 4)
    ]  # fmt: skip


def test_selecting_reports_progress(folder, monkeypatch) -> None:
    monkeypatch.setattr("ponder.traces.score_file.READ", 3)
    Path("scored.jsonl").write_text(lines_of(records(7)))
    progress = list(Selecting(read(Path("scored.jsonl")), Choice(by="all"), Path("out.jsonl")))
    assert [report["read"] for report in progress] == ["0", "3", "6", "7"]


def test_an_odd_score_can_be_passed_over(folder) -> None:
    trace = {"question": "?", "answer": "a"}
    Path("odd.jsonl").write_text(
        lines_of([{**trace, "score": "high"}, {**trace, "score": 1, "answer": "b"}])
    )
    selecting = Selecting(read(Path("odd.jsonl"), bad="skip"), Choice(top=5), Path("out.jsonl"))
    assert list(selecting)[-1] == {"read": "2", "kept": "1"}
    assert selecting.selection.counts == {"unscored": 1}
    assert len(read_json("out.jsonl")) == 1
