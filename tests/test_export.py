"""What is exported is what was measured: columns, statuses, tokens and stop reasons, in every
format.
"""

from __future__ import annotations

import csv
import itertools
import json
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import made_up
import polars
import pytest

from ponder import Study
from ponder.core import Outcome
from ponder.results.export import COLUMNS, write_attempts
from ponder.rewards.oracle import Oracle
from ponder.store.store import Store
from ponder.traces import Trace, read, request_messages, steps

# One attempt of every ending, each with its own numbers of tokens; `e` has no answer in the file,
# so it fails.
ANSWERS = [
    {
        "problem": "a",
        "answer": "1",
        "thinking": "so 1",
        "prompt_tokens": 11,
        "thinking_tokens": 7,
        "answer_tokens": 3,
    },
    {"problem": "b", "answer": "2", "prompt_tokens": 13, "answer_tokens": 5, "seconds": 1.5},
    {"problem": "c", "answer": "", "prompt_tokens": 17},
    {
        "problem": "d",
        "answer": "",
        "thinking": "hm",
        "stop": "length",
        "prompt_tokens": 19,
        "thinking_tokens": 23,
    },
]
PROBLEMS = [{"id": n, "prompt": f"what is {n}?", "answer": "1", "size": 1} for n in "abcde"]
STUDY = """
samples = 1
[[task]]
name = "jsonl"
file = "problems.jsonl"
[[model]]
name = "replay"
file = "answers.jsonl"
label = "m"
"""


@pytest.fixture
def exported(write, ponder):
    """Run the study, then export it in a format and return the file."""
    write("answers.jsonl", "\n".join(json.dumps(line) for line in ANSWERS))
    write("problems.jsonl", "\n".join(json.dumps(p) for p in PROBLEMS))
    write("s.toml", STUDY)
    ponder("run", "s.toml")

    def export(form: str) -> Path:
        result = json.loads(ponder("export", "s.toml", "--format", form, "--json").stdout)
        assert result["rows"] == {"inspect": 4, "traces": 3}.get(form, 5)
        return Path(result["file"])

    return export


def outcomes() -> list[Outcome]:
    with Store(Path("ponder.db")) as store:
        return list(store.outcomes(Study.load("s.toml").cells))


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_rows_are_the_outcomes(exported, form) -> None:
    path = exported(form)
    rows = rows_of(path) if form == "csv" else polars.read_parquet(path).to_dicts()
    # No setting differs, so none has a column of its own.
    assert list(rows[0]) == [*COLUMNS, "parsed", "gold"]
    assert path.name == f"s.{form}"
    for row, outcome in zip(rows, outcomes(), strict=True):
        names = ("details", "methods", "seeds", "made", "task_settings", "model_settings")
        nested = {name: json.loads(row[name]) for name in names}
        assert nested == {
            "details": dict(outcome.details), "methods": [], "seeds": [], "made": {},
            "task_settings": dict(outcome.cell.task_settings), "model_settings": dict(outcome.cell.model_settings),
        }  # fmt: skip
        assert (nested["task_settings"]["file"], nested["model_settings"]["file"]) == (
            "problems.jsonl",
            "answers.jsonl",
        )
        plain = {k: v for k, v in outcome._asdict().items() if k not in (*nested, "cell", "label")}
        plain |= {"size": outcome.size, "correct": outcome.correct, "unit": outcome.cell.task.unit}
        plain |= {
            name: getattr(outcome.label, name) for name in ("task", "model", "base", "variant")
        }
        assert {k: row[k] for k in plain} == (
            {k: str(v) for k, v in plain.items()} if form == "csv" else plain
        )
    by_problem = {row["problem"]: row for row in rows}
    assert [by_problem[n]["ended"] for n in "abcde"] == [
        "right",
        "wrong",
        "unparsed",
        "truncated",
        "failed",
    ]
    assert [by_problem[n]["parsed"] or None for n in "abcde"] == ["1", "2", None, None, None]
    assert {row["gold"] for row in rows} == {"1"}
    assert {(row["cost"] or None, row["currency"]) for row in rows} == {(None, "")}
    assert len({row["attempt"] for row in rows}) == 5
    assert {(row["base"], row["variant"]) for row in rows} == {("m", rows[0]["model"])}


class Stored:
    """A store with one outcome of a model that was trained twice, and no texts."""

    def attempt(self, row):
        return None

    def outcomes(self, cells):
        methods = [("shortest", {"seed": 1}), ("dpo", {"seed": 4, "beta": 0.1, "at": "x"})]
        made = MappingProxyType({"training_tokens": 9.0})
        label = {"base": "base", "variant": "v"}
        yield made_up.outcome(
            methods=methods, label=label, details={"parsed": [1]}, attempt=7, made=made
        )


FORMULAS = ["=1+1", "+cmd", "-1+1", "@SUM(A1)", "\t=1", "\r=1", '=HYPERLINK("http://x")']
PLAIN = ["-0.5", "+7", "-inf", "a=b", "", "'=1", "é"]


def test_no_text_of_a_csv_is_a_formula(folder) -> None:
    """A spreadsheet runs text that starts like a formula, and text comes from models and servers."""

    class Hostile(Stored):
        def outcomes(self, cells):
            for outcome in super().outcomes(cells):
                yield from (
                    outcome._replace(
                        why=text, label=replace(outcome.label, model=text), seconds=-0.5
                    )
                    for text in FORMULAS + PLAIN
                )

    study = Study(task=[{"name": "chain_sum", "size": 2}], model=[{"name": "oracle"}])
    write_attempts(study, Hostile(), "csv", folder / "x.csv")
    rows = rows_of(folder / "x.csv")
    assert [row["why"] for row in rows] == [f"'{text}" for text in FORMULAS] + PLAIN
    assert [row["model"] for row in rows] == [row["why"] for row in rows]
    assert {row["seconds"] for row in rows} == {"-0.5"}
    write_attempts(study, Hostile(), "parquet", folder / "x.parquet")
    assert polars.read_parquet(folder / "x.parquet")["why"].to_list() == FORMULAS + PLAIN


def test_no_label_in_the_table_of_a_figure_is_a_formula(write, ponder) -> None:
    model = '[[model]]\nname = "oracle"\n'
    write(
        "s.toml",
        f'[[task]]\nname = "chain_sum"\nsize = 2\n{model}label = "=1+1"\n[[figure]]\nname = "accuracy"\n',
    )
    ponder("run", "s.toml", "--set", "problems=3")
    assert ponder("report", "s.toml", "--set", "problems=3").exit_code == 0
    tables = [rows_of(path) for path in Path("reports/s").glob("*.csv")]
    texts = {text for rows in tables for row in rows for text in row.values()}
    assert "'=1+1" in texts
    assert "=1+1" not in texts


@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet", "inspect"])
def test_more_rows_than_are_held_together(monkeypatch, write, ponder, form) -> None:
    monkeypatch.setattr("ponder.results.export.BATCH", 3)
    write("s.toml", '[[task]]\nname = "chain_sum"\nsize = 2\n[[model]]\nname = "oracle"\n')
    ponder("run", "s.toml", "--set", "problems=10")
    result = json.loads(
        ponder("export", "s.toml", "--set", "problems=10", "--format", form, "--json").stdout
    )
    assert result["rows"] == 10
    with Store(Path("ponder.db")) as store:
        numbers = [o.attempt for o in store.outcomes(Study.load("s.toml", ["problems=10"]).cells)]
    if form == "parquet":
        assert polars.read_parquet(result["file"])["attempt"].to_list() == numbers


@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet", "inspect"])
def test_a_damaged_row_is_named(exported, ponder, form) -> None:
    with closing(sqlite3.connect("ponder.db", isolation_level=None)) as db:
        db.execute("UPDATE attempt SET seconds = 99 WHERE id = 2")
    result = ponder("export", "s.toml", "--format", form)
    assert result.exit_code == 2
    assert "ponder.db is damaged: attempt 2 has changed since it was written" in result.stderr


def test_an_inspect_log_is_of_one_moment(exported, folder) -> None:
    """A run may add attempts while it is written: the counts at its head are those of its samples."""
    study = Study.load("s.toml")

    class Growing(Store):
        def attempts(self, cell, limit=-1):
            with closing(sqlite3.connect("ponder.db", isolation_level=None)) as run:
                run.execute("DELETE FROM attempt WHERE id = 1")
            return super().attempts(cell, limit)

    with Growing(Path("ponder.db")) as store:
        assert write_attempts(study, store, "inspect", folder / "x.json")[1] == 4
    log = json.loads((folder / "x.json").read_text())
    assert len(log["samples"]) == log["results"]["total_samples"] == 4


def test_the_chain_of_methods_is_in_the_columns(folder) -> None:
    study = Study(task=[{"name": "chain_sum", "size": 2}], model=[{"name": "oracle"}])
    assert write_attempts(study, Stored(), "csv", folder / "x.csv") == ([folder / "x.csv"], 1)
    [row] = rows_of(folder / "x.csv")
    assert json.loads(row["methods"]) == [
        {"name": "shortest", "settings": {"seed": 1}},
        {"name": "dpo", "settings": {"seed": 4, "beta": 0.1, "at": "x"}},
    ]
    nested = [json.loads(row[name]) for name in ("seeds", "made", "details")]
    assert nested == [[1, 4], {"training_tokens": 9.0}, {"parsed": [1]}]
    assert (row["attempt"], row["base"], row["variant"]) == ("7", "base", "v")


def test_jsonl_has_a_line_per_turn(exported) -> None:
    lines = {
        line["problem"]: line
        for line in map(json.loads, exported("jsonl").read_text().splitlines())
    }
    assert set(lines) == set("abcd")
    for given in ANSWERS:
        line = lines[given["problem"]]
        assert {k: line[k] for k in given} == given
        assert line["prompt"] == f"what is {given['problem']}?"
        assert (line["turn"], line["sample"], line["size"], line["task"]) == (0, 0, 1, "jsonl")
    assert [(lines[n]["parsed"], lines[n]["gold"]) for n in "abcd"] == [
        ("1", "1"),
        ("2", "1"),
        (None, "1"),
        (None, "1"),
    ]
    assert [(lines[n]["ended"], lines[n]["correct"], lines[n]["stop"]) for n in "abcd"] == [
        ("right", True, "end"), ("wrong", False, "end"), ("unparsed", False, "end"), ("truncated", False, "length")
    ]  # fmt: skip


def test_jsonl_is_what_replay_reads(write, ponder) -> None:
    """A conversation, exported and replayed, gives the same outcomes; only the model and the clock
    differ.
    """
    task = '[[task]]\nname = "execution"\nsize = [3, 5]\n'
    write(
        "first.toml", f'problems = 3\nsamples = 2\n{task}[[model]]\nname = "oracle"\nerror = 0.3\n'
    )
    write(
        "again.toml",
        f'problems = 3\nsamples = 2\n{task}[[model]]\nname = "replay"\nfile = "first.jsonl"\n',
    )
    kept = []
    for study in ("first", "again"):
        assert ponder("run", f"{study}.toml").exit_code == 0
        ponder("export", f"{study}.toml", "--format", "jsonl")
        lines = [json.loads(line) for line in Path(f"{study}.jsonl").read_text().splitlines()]
        kept.append(
            [
                {k: v for k, v in line.items() if k not in ("model", "model_settings", "seconds")}
                for line in lines
            ]
        )
    assert kept[0] == kept[1]
    assert {line["turn"] for line in kept[0]} == {0, 1, 2, 3, 4}


@pytest.mark.parametrize("form", ["csv", "jsonl", "traces"])
def test_a_dash_is_standard_output(exported, ponder, form) -> None:
    written = exported(form).read_bytes()
    assert ponder("export", "s.toml", "--format", form, "-o", "-").stdout_bytes == written
    assert not Path("-").exists()


@pytest.mark.parametrize("options", [["parquet"], ["inspect"], ["trl"], ["csv", "--json"]])
def test_what_standard_output_has_no_room_for(exported, ponder, options) -> None:
    result = ponder("export", "s.toml", "-o", "-", "--format", *options)
    assert result.exit_code == 2
    assert (
        "csv, jsonl and traces can be written to standard output, without --json" in result.stderr
    )
    assert not Path("-").exists()


@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet", "traces", "inspect"])
def test_an_export_of_a_part_says_so(write, ponder, form) -> None:
    write(
        "s.toml",
        'problems = 50\n[[task]]\nname = "chain_sum"\nsize = [2, 4]\n[[model]]\nname = "oracle"\n',
    )
    assert ponder("run", "s.toml", "--set", "problems=3").exit_code == 0
    whole = ponder("export", "s.toml", "--format", form, "--set", "problems=3")
    assert "attempts" not in whole.stderr
    part = ponder("export", "s.toml", "--format", form)
    assert "incomplete: 6 of 100 attempts answered; to resume: ponder run s.toml" in part.stderr
    assert "attempts" not in part.stdout


def test_jsonl_has_what_the_model_measured_in_each_turn(write, ponder) -> None:
    class Measured(Store):
        def attempts(self, cell, limit=-1):
            for done in super().attempts(cell, limit):
                turns = done.attempt.completions
                measured = tuple(
                    replace(turn, measures={"cache_bytes": 100.0 + n})
                    for n, turn in enumerate(turns)
                )
                yield done._replace(attempt=replace(done.attempt, completions=measured))

    task = '[[task]]\nname = "execution"\nsize = 4\nper_turn = 2\n'
    write("s.toml", f'problems = 1\n{task}[[model]]\nname = "oracle"\n')
    ponder("run", "s.toml")
    with Measured(Path("ponder.db")) as store:
        write_attempts(Study.load("s.toml"), store, "jsonl", Path("s.jsonl"))
    lines = [json.loads(line) for line in Path("s.jsonl").read_text().splitlines()]
    assert [line["details"] for line in lines] == [{"cache_bytes": 100.0}, {"cache_bytes": 101.0}]


def test_jsonl_has_the_details_of_a_task_that_judges_the_whole(write, ponder) -> None:
    write(
        "s.toml",
        'problems = 2\n[[task]]\nname = "tents"\nsize = 16\n[[model]]\nname = "oracle"\nerror = 1.0\n',
    )
    ponder("run", "s.toml")
    for form in ("csv", "jsonl"):
        ponder("export", "s.toml", "--format", form)
    lines = [json.loads(line) for line in Path("s.jsonl").read_text().splitlines()]
    assert [line["details"] for line in lines] == [
        json.loads(row["details"]) for row in rows_of(Path("s.csv"))
    ]


def test_traces_are_what_rewards_and_training_read(exported) -> None:
    """Every reply with a text, with its own tokens; what it was asked and whether it is right."""
    traces = list(read(exported("traces")))
    assert [(t.question, t.thinking, t.answer) for t in traces][:2] == [
        ("what is a?", "so 1", "1"),
        ("what is b?", "", "2"),
    ]
    assert [(t.correct, t.tokens, t.teacher) for t in traces[:2]] == [
        (True, 10, "m"),
        (False, 5, "m"),
    ]
    assert [t.question for t in traces][2:] == ["what is d?"]
    assert [t.extra["stop"] for t in traces] == ["end", "end", "length"]


def test_the_task_checks_the_steps_of_exported_traces(write, ponder) -> None:
    models = '[[model]]\nname = "text_tutor"\nslip = ["", "carry"]\n'
    write("sums.toml", 'problems = 6\n[[task]]\nname = "chain_sum"\nsize = 4\n' + models)
    ponder("run", "sums.toml")
    ponder("export", "sums.toml", "--format", "traces")
    traces = [steps(trace) for trace in read(Path("sums.traces.jsonl"))]
    scores = Oracle().rate(traces)
    assert all(len(one.steps) == 4 for one in scores)  # three additions and the answer
    right = {trace.question: trace.answer for trace in traces[:6]}
    sound = [all(one.steps) for one in scores]
    assert sound == [trace.answer == right[trace.question] for trace in traces]
    assert set(sound) == {True, False}


def test_a_trace_has_all_that_was_asked_and_the_tokens_of_one_reply(write, ponder) -> None:
    task = '[[task]]\nname = "execution"\nsize = 4\nper_turn = 2\nhistory_turns = 1\n'
    models = '[[model]]\nname = "oracle"\nmethod = [[], [{ name = "vote", n = 3 }]]\n'
    write("plan.toml", f"problems = 1\n{task}{models}")
    ponder("run", "plan.toml")
    ponder("export", "plan.toml", "--format", "traces")
    one, voted = read(Path("plan.traces.jsonl"))
    asked = request_messages(one)
    assert [m["role"] for m in asked] == ["system", "user", "assistant", "user"]
    assert "The dictionary is" in asked[0]["content"]
    assert one.tokens > 0
    assert voted.tokens is None  # the bill is that of three replies
    for other in ({}, {"problem": "text"}, {"problem": {"text": "of another file"}}):
        assert request_messages(Trace("why?", "", "so", extra=other)) == [
            {"role": "user", "content": "why?"}
        ]


def test_a_conversation_is_no_trace(write, ponder) -> None:
    write(
        "plan.toml",
        '[[task]]\nname = "execution"\nsize = 4\nper_turn = 2\n[[model]]\nname = "oracle"\n',
    )
    ponder("run", "plan.toml", "--set", "problems=2")
    result = ponder("export", "plan.toml", "--format", "traces")
    assert result.exit_code == 2
    assert "several turns" in result.stderr
    assert not Path("plan.traces.jsonl").exists()


def test_a_turn_has_its_own_grade_and_the_true_sum(write, ponder) -> None:
    task = '[[task]]\nname = "execution"\nsize = 12\nper_turn = 2\ndictionary = 8\n'
    write("s.toml", f'problems = 6\n{task}[[model]]\nname = "oracle"\nerror = 0.3\n')
    assert ponder("run", "s.toml").exit_code == 0
    ponder("export", "s.toml", "--format", "jsonl")
    lines = [json.loads(line) for line in Path("s.jsonl").read_text().splitlines()]
    assert len(lines) == 36
    table, total = {}, 0
    for line in lines:
        if line["turn"] == 0:
            table, total = line["dictionary"], line["start"]
        else:
            assert not {"dictionary", "start", "plan"} & set(line)
        total += sum(table[key] for key in line["prompt"].split(", "))
        assert line["true"] == total
        assert (
            line["correct"]
            == (line["parsed"] == total)
            == (line["answer"] == f"<answer>{total}</answer>")
        )
        assert line["why"] == ("" if line["correct"] else "wrong sum")
    for outcome in outcomes():
        own = [line for line in lines if line["problem"] == outcome.problem]
        assert (
            {line["attempt_correct"] for line in own}
            == {outcome.correct}
            == {all(t["correct"] for t in own)}
        )
    assert len({line["correct"] for line in lines if not line["attempt_correct"]}) == 2


def test_an_inspect_log(exported) -> None:
    path = exported("inspect")
    log = json.loads(path.read_text())
    assert path.name == "s.json"
    assert (
        log["version"],
        log["status"],
        log["eval"]["task"],
        log["eval"]["dataset"]["samples"],
    ) == (
        2,
        "success",
        "jsonl",
        4,
    )
    assert (
        log["eval"]["model"]
        == log["samples"][0]["output"]["model"]
        == next(iter(log["samples"][0]["model_usage"]))
    )
    assert log["eval"]["metadata"]["study"]["task"][0]["name"] == "jsonl"
    assert log["results"]["total_samples"] == 4
    assert log["results"]["scores"][0]["metrics"]["accuracy"]["value"] == 0.25
    samples = {sample["id"]: sample for sample in log["samples"]}
    ends = {
        n: (s["output"]["choices"][0]["stop_reason"], s["scores"]["ponder"]["value"])
        for n, s in samples.items()
    }
    assert ends == {
        "a": ("stop", "C"),
        "b": ("stop", "I"),
        "c": ("stop", "I"),
        "d": ("max_tokens", "I"),
    }
    statuses = {n: s["metadata"]["ended"] for n, s in samples.items()}
    assert statuses == {"a": "right", "b": "wrong", "c": "unparsed", "d": "truncated"}
    assert samples["b"]["scores"]["ponder"]["explanation"]
    assert samples["a"]["scores"]["ponder"]["explanation"] is None
    assert samples["a"]["output"]["usage"] == samples["a"]["model_usage"]["m"] == {
        "input_tokens": 11, "output_tokens": 10, "reasoning_tokens": 7, "total_tokens": 21
    }  # fmt: skip
    thinking = [{"type": "reasoning", "reasoning": "so 1"}, {"type": "text", "text": "1"}]
    assert samples["a"]["messages"] == [
        {"role": "user", "content": "what is a?"}, {"role": "assistant", "content": thinking}
    ]  # fmt: skip
    assert samples["b"]["messages"][-1] == {"role": "assistant", "content": "2"}
    assert (samples["a"]["input"], samples["a"]["epoch"], samples["a"]["metadata"]["size"]) == (
        "what is a?",
        1,
        1,
    )


def test_a_conversation(write, ponder) -> None:
    """Every message is there, in its turn; a conversation that was cut short is no sample of
    Inspect's.
    """
    task = '[[task]]\nname = "execution"\nsize = 7\nhistory_turns = 4\n'
    write("s.toml", f'problems = 1\nsamples = 2\n{task}[[model]]\nname = "oracle"\n')
    assert ponder("run", "s.toml").exit_code == 0
    ponder("export", "s.toml", "--format", "inspect")
    ponder("export", "s.toml", "--format", "jsonl")
    first, second = json.loads(Path("s.json").read_text())["samples"]
    lines = [json.loads(line) for line in Path("s.jsonl").read_text().splitlines()]
    assert (first["epoch"], second["epoch"]) == (1, 2)
    assert [o.prompt_tokens for o in outcomes()] == [
        s["output"]["usage"]["input_tokens"] for s in (first, second)
    ]
    [problem] = Study.load("s.toml").cells[0].asked()
    assert len(problem.opening()) >= 8
    asked = [{"role": m.role, "content": m.content} for m in problem.opening()]
    assert first["messages"][: len(asked)] == asked
    turns = first["messages"][len(asked) :]
    assert [m["role"] for m in turns] == ["user", "assistant"] * 3
    assert (
        [m["content"] for m in turns[::2]]
        == [line["prompt"] for line in lines[:3]]
        == list(problem.turns)
    )

    write(
        "cut.jsonl",
        "\n".join(json.dumps(line) for line in lines if (line["sample"], line["turn"]) != (1, 2)),
    )
    write(
        "s.toml",
        f'problems = 1\nsamples = 2\n{task}[[model]]\nname = "replay"\nfile = "cut.jsonl"\n',
    )
    assert ponder("run", "s.toml").exit_code == 1
    result = ponder("export", "s.toml", "--format", "inspect", "--json")
    assert json.loads(result.stdout)["rows"] == 1


def test_each_model_has_an_inspect_log(write, ponder) -> None:
    labels = ("a/../b", "a:..:B", "c")
    models = "".join(
        f'[[model]]\nname = "oracle"\nlabel = "{label}"\ntokens_at_zero = {n}\n'
        for n, label in enumerate(labels, 1)
    )
    write("s.toml", f'[[task]]\nname = "chain_sum"\nsize = [2, 3]\n{models}')
    ponder("run", "s.toml", "--set", "problems=3")
    done = ponder("export", "s.toml", "--format", "inspect", "--set", "problems=3", "--json")
    result = json.loads(done.stdout)
    assert result["rows"] == 18
    assert result["files"] == ["s-a-..-b.json", "s-a-..-B-2.json", "s-c.json"]
    for label, name in zip(("a/../b", "a:..:B", "c"), result["files"], strict=True):
        log = json.loads(Path(name).read_text())
        assert log["eval"]["model"] == label
        assert {sample["output"]["model"] for sample in log["samples"]} == {label}
        assert log["results"]["total_samples"] == len(log["samples"]) == 6
        usages = [sample["model_usage"][label] for sample in log["samples"]]
        assert log["stats"]["model_usage"] == {
            label: {k: sum(u[k] for u in usages) for k in usages[0]}
        }
        assert usages[0]["total_tokens"] > 0
    named = ponder(
        "export", "s.toml", "--format", "inspect", "--set", "problems=3", "-o", "x.log"
    ).stdout
    assert named.splitlines() == ["x-a-..-b.log", "x-a-..-B-2.log", "x-c.log"]


def test_a_score_of_inspect_holds_the_parsed_answer(write, ponder) -> None:
    write(
        "s.toml",
        STUDY.replace("jsonl", "chain_sum", 1).replace('file = "problems.jsonl"', "size = 2"),
    )
    write("answers.jsonl", "")
    [problem] = itertools.islice(Study.load("s.toml").cells[0].asked(), 1)
    long = f"Let me see. I add them up, and so <answer>{problem.gold}</answer>"
    lines = [
        {"problem": problem.id, "answer": long},
        {"problem": problem.id, "answer": "?", "sample": 1},
    ]
    write("answers.jsonl", "\n".join(map(json.dumps, lines)))
    few = ("--set", "problems=1", "--set", "samples=2")
    assert ponder("run", "s.toml", *few).exit_code == 0
    assert ponder("export", "s.toml", "--format", "inspect", *few).exit_code == 0
    scores = [
        sample["scores"]["ponder"] for sample in json.loads(Path("s.json").read_text())["samples"]
    ]
    assert [(score["value"], score["answer"]) for score in scores] == [
        ("C", json.dumps(problem.gold)),
        ("I", None),
    ]


def test_a_file_that_can_not_be_written_is_the_users_to_name(exported, ponder) -> None:
    done = ponder("export", "s.toml", "-o", "no/such/folder.csv")
    assert done.exit_code == 2
    assert "can't write no/such/folder.csv" in done.stderr
    assert "hint: name another file with -o" in done.stderr
