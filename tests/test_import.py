"""Logs of Inspect and lm-eval become stores.

The logs in `data/logs` were written by these programs: see make.py.
"""

from __future__ import annotations

import json
import zipfile
from contextlib import closing
from pathlib import Path

import pytest

from ponder import Study
from ponder.results.interop import inspect_log
from ponder.store.store import Store

LOGS = Path(__file__).parent / "data" / "logs"
EVAL, JSON = LOGS / "sums.eval", LOGS / "sums.json"
[SAMPLES] = LOGS.glob("samples_*.jsonl")


def outcomes(study: str, store: str = "ponder.db"):
    with Store(Path(store)) as opened:
        return list(opened.outcomes(Study.load(study).cells))


def attempts(study: str):
    with Store(Path("ponder.db")) as opened:
        return [done.attempt for cell in Study.load(study).cells for done in opened.attempts(cell)]


def imported(ponder, *words):
    result = ponder("import", *words, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_an_inspect_log(ponder) -> None:
    told = imported(ponder, EVAL, "--size", "level")
    assert told["endings"] == {"right": 3, "truncated": 2, "wrong": 2, "failed": 1}
    assert (told["scorers"], told["others"]) == ({"sums": "match"}, {"sums": ["steps"]})
    found = {(o.problem, o.sample): o for o in outcomes("sums.toml")}
    assert {(k, o.ended) for k, o in found.items()} == {
        (("1", 0), "right"), (("1", 1), "right"),
        (("3", 0), "truncated"), (("3", 1), "truncated"),
        (("4", 0), "failed"), (("4", 1), "right"),
        (("5", 0), "wrong"), (("5", 1), "wrong"),
    }  # fmt: skip
    assert {o.problem: o.size for o in found.values()} == {"1": 1, "3": 2, "4": 2, "5": 2}
    tokens = {
        k: (o.prompt_tokens, o.thinking_tokens, o.answer_tokens, o.counted_by)
        for k, o in found.items()
    }
    assert tokens["1", 0] == (20, 5, 7, "server")
    assert tokens["3", 1] == (20, 60, 4, "server")
    assert found["4", 0].why == "RuntimeError('the sandbox died')"
    assert found["3", 0].why == "token limit"
    [first, *_] = attempts("sums.toml")
    assert (first.problem.turns, first.problem.gold) == (("What is 1 + 1?",), ["2"])
    assert (first.completions[0].thinking, first.completions[0].answer) == (
        "double 1 is 2",
        "1 + 1 = 2",
    )


def test_another_scorer_and_what_it_leaves_unscored(ponder) -> None:
    result = ponder("import", EVAL, "--scorer", "steps")
    assert "4 scores between wrong and right count as wrong" not in result.stderr
    assert "3 scores between wrong and right count as wrong" in result.stderr
    found = outcomes("sums.toml")
    # the scorer accepts a reply that was cut
    assert [o.problem for o in found if o.correct] == ["3", "3"]
    assert [(o.problem, o.ended) for o in found if "not scored" in o.why] == [
        ("5", "failed"),
        ("5", "failed"),
    ]
    ponder("import", EVAL, "--scorer", "steps", "--right", "0.5")
    assert sum(o.correct for o in outcomes("sums.toml")) == 5


def test_importing_again_changes_nothing_and_another_run_adds_samples(ponder) -> None:
    assert imported(ponder, EVAL)["new"] == 8
    before = outcomes("sums.toml")
    assert imported(ponder, EVAL, EVAL)["new"] == 0
    assert outcomes("sums.toml") == before
    log = json.loads(JSON.read_text())
    log["eval"] |= {"task_id": "another run", "created": "2030-01-01T00:00:00"}
    Path("second.json").write_text(json.dumps(log))
    imported(ponder, JSON, "second.json")
    assert [(o.problem, o.sample) for o in outcomes("sums.toml")] == [
        ("1", 0),
        ("1", 1),
        ("5", 0),
        ("5", 1),
    ]
    assert len({o.label.model for o in outcomes("sums.toml")}) == 1


def test_another_run_that_is_imported_alone_leaves_the_first_as_it_was(ponder) -> None:
    log = json.loads(JSON.read_text())
    log["eval"]["task_id"] = "another run"
    log["samples"][0]["scores"]["match"]["value"] = "I"
    Path("second.json").write_text(json.dumps(log))
    imported(ponder, JSON, "-o", "one.toml")
    assert imported(ponder, "second.json", "-o", "two.toml")["new"] == 2
    assert [o.correct for o in outcomes("one.toml")] == [True, False]
    assert [o.correct for o in outcomes("two.toml")] == [False, False]


def test_a_retry_replaces_what_had_failed(ponder) -> None:
    log = json.loads(JSON.read_text())
    log["eval"]["created"] = "2000-01-01T00:00:00"
    log["samples"][0] |= {"error": {"message": "down"}, "scores": {}}
    Path("before.json").write_text(json.dumps(log))
    imported(ponder, "before.json")
    assert [o.ended for o in outcomes("sums.toml")] == ["failed", "wrong"]
    # together, alone, and the old one after the new
    for logs in (("before.json", JSON), (JSON,), ("before.json",)):
        told = imported(ponder, *logs)
        assert told["endings"] == (
            {"wrong": 1} if logs == ("before.json",) else {"right": 1, "wrong": 1}
        )
        assert [o.ended for o in outcomes("sums.toml")] == ["right", "wrong"]


def test_two_ways_of_asking_are_two_models_on_the_same_problems(ponder) -> None:
    imported(ponder, EVAL, JSON)
    models = {o.label.model for o in outcomes("sums.toml")}
    assert {m.split(" ids=")[0] for m in models} <= {
        "mockllm/model temperature=0.6",
        "mockllm/model temperature=1.0",
    }
    assert len(models) == 2
    one, other = sorted(models)
    result = ponder("compare", "sums.toml", one, other)
    assert result.exit_code == 0, result.output
    assert "2 problems" in result.output


def test_lm_eval(ponder) -> None:
    told = imported(ponder, LOGS, "-o", "all.toml")
    assert set(told["scorers"]) == {"sums", "tiny_sums"}
    imported(ponder, SAMPLES, "--size", "level", "--scorer", "exact_match,last-number")
    found = outcomes("tiny_sums.toml")
    assert {o.label.model for o in found} == {"tiny-chat"}
    assert [(o.problem, o.size, o.ended) for o in found] == [
        ("0", 1, "right"), ("1", 1, "right"), ("2", 2, "wrong"), ("3", 2, "unparsed")
    ]  # fmt: skip
    assert {o.counted_by for o in found} == {"estimate"}
    second = attempts("tiny_sums.toml")[1]
    assert (second.completions[0].thinking, second.completions[0].answer) == (
        "Two and three.",
        "It is 5",
    )
    assert second.problem.turns == ("What is 2 + 3?",)
    imported(ponder, SAMPLES)
    assert [o.correct for o in outcomes("tiny_sums.toml")] == [True, False, False, False]


def test_examples_and_the_system_message_of_lm_eval(ponder) -> None:
    chat = [("system", "Be brief."), ("user", "1?"), ("assistant", "One."), ("user", "2?")]
    messages = [{"role": role, "content": content} for role, content in chat]
    line = json.loads(SAMPLES.read_text().splitlines()[0])
    line["arguments"] = {"gen_args_0": {"arg_0": [json.dumps(messages)], "arg_1": {}}}
    Path(SAMPLES.name).write_text(json.dumps(line) + "\n")
    imported(ponder, SAMPLES.name)
    [first] = attempts("tiny_sums.toml")
    assert (first.problem.system, first.problem.turns) == ("Be brief.", ("2?",))
    assert [(m.role, m.content) for m in first.problem.history] == [
        ("user", "1?"),
        ("assistant", "One."),
    ]


def test_report_view_and_the_verbs_that_ask(ponder) -> None:
    imported(ponder, EVAL)
    result = ponder("report", "sums.toml")
    assert result.exit_code == 0, result.output
    assert "7 of 8 attempts answered; 1 attempt failed" in result.stderr
    assert "ponder run" not in result.stderr
    from ponder.results.view.stores import ViewedStore
    from ponder.results.view.studies import studies

    with closing(ViewedStore(Path("ponder.db"), "")) as store:
        [viewed] = studies(store, [Study.load("sums.toml")])
        assert (viewed.error, viewed.answered, viewed.asked) == ("", 7, 8)
    for verb, what in (
        ("run", "come from a log"),
        ("plan", "come from a log"),
        ("regrade", "were graded by the program"),
    ):
        result = ponder(verb, "sums.toml")
        assert (result.exit_code, what in result.stderr) == (2, True), verb


def test_round_trip(ponder, write) -> None:
    """Ponder's own log, imported, has the same outcomes: also what is unparsed, truncated, or
    without thinking.
    """
    models = '[[model]]\nname = "oracle"\ncritical_size = 6\nbudget = 400\n[[model]]\nname = "oracle"\nlabel = "b"\n'
    write(
        "s.toml",
        f'samples = 2\nproblems = 4\n[[task]]\nname = "chain_sum"\nsize = [2, 6, 40]\n{models}',
    )
    assert ponder("run", "s.toml").exit_code == 0
    assert ponder("export", "s.toml", "--format", "inspect").exit_code == 0
    imported(ponder, *sorted(Path().glob("s-*.json")), "--size", "size")
    whole = [
        {
            (o.label.model, o.size, o.problem, o.sample): (
                o.ended,
                o.prompt_tokens,
                o.thinking_tokens,
                o.answer_tokens,
            )
            for o in outcomes(study)
        }
        for study in ("s.toml", "chain_sum.toml")
    ]
    assert whole[0] == whole[1]
    assert len(whole[0]) == 48
    assert {status for status, *_ in whole[0].values()} == {"right", "truncated"}


def test_an_unfinished_log_and_one_that_is_deflated(ponder, folder) -> None:
    """Of a run that was killed, the samples that it wrote can be read."""
    from ponder.results.interop.inspect_log import _member

    with (
        zipfile.ZipFile(EVAL) as file,
        zipfile.ZipFile("cut.eval", "w", zipfile.ZIP_DEFLATED) as cut,
    ):
        for name in file.namelist():
            if name != "header.json" and not name.startswith("samples/5"):
                cut.writestr(name, _member(file, name, EVAL))
    assert imported(ponder, "cut.eval")["attempts"] == 6


def test_agents_keep_what_was_said_before_the_answer(ponder) -> None:
    log = json.loads(JSON.read_text())
    sample = log["samples"][0]
    sample["attachments"] = {"abc": "a long result"}
    call = {"role": "assistant", "content": [{"type": "reasoning", "reasoning": "I ask the tool"}]}
    sample["messages"][1:1] = [call, {"role": "tool", "content": "attachment://abc"}]
    sample["model_usage"]["grader/model"] = {
        "input_tokens": 999,
        "output_tokens": 999,
        "total_tokens": 1998,
    }
    Path("agent.json").write_text(json.dumps(log))
    imported(ponder, "agent.json")
    first = attempts("sums.toml")[0]
    assert (
        first.completions[0].thinking == "I ask the tool\n\n[tool] a long result\n\ndouble 1 is 2"
    )
    assert first.bill.tokens == 32


def test_a_conversation_keeps_its_roles_and_only_the_reply_is_the_model_s(ponder) -> None:
    log = json.loads(JSON.read_text())
    sample = log["samples"][0]
    question = {"role": "user", "content": "Go on."}
    earlier = {"role": "assistant", "content": "One."}
    sample["input"] = [{"role": "system", "content": "Count."}, question, earlier, question]
    sample["messages"][:1] = [{"role": "system", "content": "Count."}, question, earlier, question]
    Path("chat.json").write_text(json.dumps(log))
    imported(ponder, "chat.json")
    first = attempts("sums.toml")[0]
    assert [(message.role, message.content) for message in first.problem.history] == [
        ("user", "Go on."),
        ("assistant", "One."),
    ]
    assert (first.problem.system, first.problem.turns) == ("Count.", ("Go on.",))
    assert (first.completions[0].thinking, first.completions[0].answer) == (
        "double 1 is 2",
        "1 + 1 = 2",
    )


def test_scores_above_1_need_a_threshold(ponder) -> None:
    log = json.loads(JSON.read_text())
    log["samples"][0]["scores"]["match"]["value"] = 7
    log["samples"][1]["scores"]["match"]["value"] = {"style": 1, "sense": "I"}
    Path("ten.json").write_text(json.dumps(log))
    result = ponder("import", "ten.json")
    assert (result.exit_code, "hint: --right N" in result.stderr) == (2, True)
    assert imported(ponder, "ten.json", "--right", "6")["endings"] == {"right": 1, "failed": 1}
    assert imported(ponder, "ten.json", "--scorer", "match.sense")["endings"] == {
        "failed": 1,
        "wrong": 1,
    }


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["none.eval"], "there is no file none.eval"),
        (["bad.eval"], "bad.eval: this is not a log of Inspect, or it is damaged"),
        (["bad.json"], "bad.json: this log can't be read"),
        (["bad.jsonl"], "bad.jsonl:1: this log can't be read"),
        (["samples_line.jsonl"], "samples_line.jsonl:1: this is not a line of a samples file"),
        (["zip.eval"], "zip.eval: this is a zip file, but not a log of Inspect"),
        (["notes.txt"], "notes.txt: this is not a log that can be imported"),
        (["empty"], "empty: there is no log in this folder"),
        (
            [str(EVAL), "--scorer", "mach"],
            "no log of sums has a scorer `mach`\nhint: did you mean `match`?",
        ),
        ([str(EVAL), "--size", "depth"], "there is no `depth`"),
        ([str(JSON), "--size", "words"], "which is not a size"),
        ([str(EVAL), "-o", "mine.toml"], "mine.toml wasn't written by an import"),
        ([str(EVAL), "-o", "mine.txt"], "mine.txt must end in .toml"),
    ],
)
def test_bad_input(ponder, write, words: list[str], says: str) -> None:
    for name in ("bad.eval", "bad.json", "bad.jsonl", "notes.txt", "mine.toml"):
        write(name, "not a log")
    write("samples_line.jsonl", '{"a": 1}')
    Path("empty").mkdir()
    with zipfile.ZipFile("zip.eval", "w") as file:
        file.writestr("a.txt", "a")
    if "words" in words:
        log = json.loads(JSON.read_text())
        log["samples"][0]["metadata"]["words"] = "many"
        words = [write("words.json", json.dumps(log)), *words[1:]]
    result = ponder("import", *words)
    assert result.exit_code == 2
    assert says in result.stderr
    assert not Path("ponder.db").exists()


INSIDE = {"output_tokens": 115, "reasoning_tokens": 94, "total_tokens": 135}
BESIDE = {"output_tokens": 21, "reasoning_tokens": 94, "total_tokens": 135}
CACHE = {"input_tokens": 5, "input_tokens_cache_read": 10, "input_tokens_cache_write": 5}
CACHE_INSIDE = {"input_tokens": 20, "input_tokens_cache_read": 10}  # as older logs count


@pytest.mark.parametrize(
    ("usage", "counted"),
    [
        ({"input_tokens": 20, **INSIDE}, (20, 94, 21, 0)),
        ({"input_tokens": 20, **BESIDE}, (20, 94, 21, 0)),
        (
            {"input_tokens": 20, "output_tokens": 100, "reasoning_tokens": 15, "total_tokens": 135},
            (20, 15, 100, 0),
        ),
        ({"input_tokens": 20, "output_tokens": 100, "total_tokens": 135}, (20, 15, 100, 0)),
        ({"input_tokens": 20, "output_tokens": 21, "reasoning_tokens": 94}, (20, 94, 21, 0)),
        ({**CACHE, **INSIDE}, (20, 94, 21, 10)),
        ({**CACHE, **BESIDE}, (20, 94, 21, 10)),
        ({**CACHE_INSIDE, **INSIDE}, (20, 94, 21, 10)),
        ({**CACHE_INSIDE, **BESIDE}, (20, 94, 21, 10)),
    ],
)
def test_tokens_of_a_log_are_counted_once(
    tmp_path: Path, usage: dict[str, int], counted: tuple[int, ...]
) -> None:
    log = json.loads(JSON.read_text())
    log["samples"] = log["samples"][:1]
    log["samples"][0]["model_usage"] = {log["eval"]["model"]: usage}
    (tmp_path / "log.json").write_text(json.dumps(log))
    (sample,) = inspect_log.read(tmp_path / "log.json").samples()
    bill = sample.completion.bill
    assert (
        bill.prompt_tokens,
        bill.thinking_tokens,
        bill.answer_tokens,
        bill.cached_tokens,
    ) == counted
