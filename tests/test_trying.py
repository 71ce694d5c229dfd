"""A quick look at a model: `ponder try`, models and settings on the command line, and the studies
of benchmarks.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from ponder import Study
from ponder.cli.options import model_table
from ponder.core import UserError
from ponder.tasks.gpqa import Gpqa
from ponder.tasks.math500 import Math500

EXAMPLE = Math500.example["file"]
BENCHMARKS = ("aime24", "aime25", "amc23", "gpqa", "math500")
ROWS = [
    {"problem": "1 + 1?", "answer": "2"},
    {"problem": "1 + 2?", "answer": "3"},
    {"problem": "1 + 3?", "answer": "4"},
    {"problem": "1 + 4?", "answer": "5"},
    {"problem": "1 + 5?", "answer": "6"},
]
ANY_MODEL = "hint: --model 'endpoint id=NAME url=http://127.0.0.1:8000/v1'; ponder list models has other kinds"


@pytest.fixture
def sums(write) -> str:
    """Five sums, and replies to four of them: right, wrong, without an answer, truncated."""
    pytest.importorskip("math_verify")
    write("sums.jsonl", "".join(json.dumps(row) + "\n" for row in ROWS))
    ids = [problem.id for problem in Math500(file=Path("sums.jsonl")).problems(0, 0)]
    replies = [
        {"problem": ids[0], "answer": "So \\boxed{2}", "thinking_tokens": 30, "answer_tokens": 10},
        {"problem": ids[1], "answer": "\\boxed{ 7\n }", "answer_tokens": 20},
        {"problem": ids[2], "answer": " \n", "answer_tokens": 3},
        {"problem": ids[3], "answer": "\\boxed{5", "answer_tokens": 25, "stop": "length"},
    ]
    return write("replies.jsonl", "".join(json.dumps(reply) + "\n" for reply in replies))


def test_every_answer_is_shown_as_it_was_read(ponder, sums) -> None:
    words = ("try", "math500", "--model", f"replay file={sums}", "--set", "file=sums.jsonl")
    result = ponder(*words)
    assert result.exit_code == 1  # one failed: it has no reply
    lines = [line.split() for line in result.stdout.splitlines()]
    assert lines[:6] == [
        ["problem", "result", "parsed", "answer", "right", "answer", "output", "tokens"],
        ["1", "right", "2", "2", "40"],
        ["2", "wrong", "7", "3", "20"],
        ["3", "unparsed", "–", "4", "3"],
        ["4", "truncated", "–", "5", "25"],
        ["5", "failed", "–", "6", "0"],
    ]
    assert (
        "problem 3, unparsed: no answer. The reply ends:\n    (an empty reply)\n" in result.stdout
    )
    assert result.stdout.splitlines()[-1].startswith(
        "replies on math500: pass@1 25 % [2, 87], 22 output tokens"
    )
    assert result.stdout.rstrip().endswith(
        "4 attempts at 4 problems, 1 unparsed, 1 truncated, 1 failed"
    )
    assert "replies.jsonl has no answer to this problem" in result.stderr
    told = json.loads(ponder(*words, "--json").stdout)
    assert [a["parsed"] for a in told["attempts"]] == ["2", "7", None, None, None]
    assert told["summary"][0]["pass_at_1"][0] == 0.25


def test_the_end_of_an_unread_reply_is_shown(ponder, serve) -> None:
    """The server answers "?" to what isn't a sum: gpqa finds no letter in it."""
    url = serve(thinking="").url
    many = [f"{n} of {word}?" for n, word in enumerate(["a", "b", "c", "d", "e", "f", "g"])]
    rows = [
        {"problem": p, "answer": "1", "wrong 1": "2", "wrong 2": "3", "wrong 3": "4"} for p in many
    ]
    Path("g.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    result = ponder("try", "gpqa", "--id", "m", "--url", url, "--set", "task.file=g.jsonl")
    assert result.exit_code == 0
    assert result.stdout.count("unparsed: no answer. The reply ends:\n    ?\n") == 5
    assert "\n2 more unparsed: --json has the end of each reply\n" in result.stdout


def test_what_was_tried_is_not_asked_again_by_the_study(ponder, serve) -> None:
    pytest.importorskip("math_verify")
    served = serve()
    result = ponder(
        "try", "math500", "--id", "m", "--url", served.url, "-n", 2, "--set", f"file={EXAMPLE}"
    )
    assert result.exit_code == 0
    body = served.state()["bodies"][0]
    assert (body["model"], body["max_tokens"], body["temperature"]) == ("m", 32768, 0.6)
    run = [
        "math500",
        "--set",
        f"task.file={EXAMPLE}",
        "--set",
        "model.id=m",
        "--set",
        f"model.url={served.url}",
    ]
    assert result.stderr.splitlines()[-1] == f"next: ponder run {' '.join(run)}"
    (forecast,) = json.loads(ponder("plan", *run, "--json").stdout)["forecasts"]
    assert (forecast["attempts"], forecast["stored"]) == (12, 2)
    # The same words, several after one --set.
    short = [run[0], "--set", run[2], run[4], run[6]]
    assert json.loads(ponder("plan", *short, "--json").stdout)["forecasts"] == [forecast]


def test_a_task_of_many_sizes_is_asked_at_its_smallest(ponder) -> None:
    result = ponder(
        "try",
        "chain_sum",
        "--model",
        "oracle",
        "--model",
        "oracle label=other critical_size=99",
        "-n",
        2,
        "--samples",
        2,
    )
    assert result.exit_code == 0
    assert result.stderr.startswith("problems of size 2; --size chooses another, such as ")
    assert "oracle, 2, sample 2  right" in result.stdout
    assert [line.partition(":")[0] for line in result.stdout.splitlines()[-2:]] == [
        "oracle on chain_sum",
        "other on chain_sum",
    ]
    assert "next:" not in result.stderr


def test_a_cap_holds_for_one_command(ponder, serve) -> None:
    served = serve()
    words = ("try", "chain_sum", "--id", "m", "--url", served.url, "--size", 3, "--budget", 100)
    small = ponder(*words, "--max-tokens", 50)
    assert "stopped at the cap: 0 of 50 tokens" in small.stderr
    assert small.stdout == "m on chain_sum: no answers\n"
    assert "requests" not in served.state()
    for n in (1, 2):  # what earlier commands took doesn't count
        assert ponder(*words, "-n", n, "--max-tokens", 400).exit_code == 0
        assert served.state()["requests"] == n


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["math50", "--id", "m"], "TASK: task `math50` is unknown\nhint: did you mean `math500`?"),
        (["effort", "--id", "m"], "`effort` is a study, not a task\nhint: ponder run effort"),
        (["chain_sum"], "which model? --id names it on the server"),
        (["chain_sum", "--model", "pocket", "--id", "m"], "--id is for --id and --url; --model has its own keys\n" + ANY_MODEL),
        (["chain_sum", "--model", "orcle"], "--model: model `orcle` is unknown\nhint: did you mean `oracle`?"),
        (["chain_sum", "--model", "endpoint idd=m"], "--model idd: model `endpoint` has no key `idd`\nhint: did you mean `id`?"),
        (["jsonl", "--model", "oracle"], "task `jsonl` needs the key `file`\nhint: ponder show jsonl has its keys; --set KEY=VALUE"),
        (["chain_sum", "--model", "oracle =3"], "--model: `=3` is not KEY=VALUE"),
        (["chain_sum", "--model", "endpoint"], "--model: model `endpoint` needs the key `id`\nhint: ponder show endpoint has its keys"),
        (["chain_sum", "--model", "endpoint m"], "--model: `m` is not KEY=VALUE\nhint: --model 'endpoint id=NAME'; a value with spaces"),
        (["chain_sum", "--model", "id=m"], "--model: the first word must be a kind of model"),
        (["chain_sum", "--model", "oracle 'x"], "can't be split into words: No closing quotation\n" + ANY_MODEL),
        (["chain_sum", "--model", "oracle error=x"], "--model error: expected a number, not text"),
        (["chain_sum", "--id", "m", "--url", "localhost:8000"], "`localhost:8000` is not an http or https URL"),
        (["chain_sum", "--id", "m", "--key", "sk_secret"], "there is none of that name\nhint: export NAME=…, then --key NAME"),
        (["chain_sum", "--model", "oracle", "--size", "0"], "--size: "),
        (["chain_sum", "--model", "oracle", "--set", "term=3"], "--set term: task `chain_sum` has no key `term`"),
        (["math500", "--model", "oracle", "--set", "file=none.jsonl"], "there is no file none.jsonl\nhint: a path in a study file"),
        (["chain_sum", "--id", "m", "--url", "http://127.0.0.1:9/v1"], "no connection to http://127.0.0.1:9/v1"),
    ],
)  # fmt: skip
def test_mistakes(ponder, words, message) -> None:
    result = ponder("try", *words)
    assert result.exit_code == 2
    assert message in result.stderr
    assert "sk_secret" not in result.stderr
    assert not result.stdout


def test_without_the_hub_the_error_says_how_to_use_a_file(ponder, monkeypatch) -> None:
    pytest.importorskip("math_verify")
    pytest.importorskip("huggingface_hub")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    for words, option in (
        (["try", "math500", "--id", "m"], "file"),
        (["run", "math500"], "task.file"),
    ):
        result = ponder(*words)
        assert result.exit_code == 2
        assert f"and use --set {option}=math500.jsonl (docs/benchmarks.md)" in result.stderr


def test_a_key_is_named(ponder, serve, monkeypatch) -> None:
    served = serve()
    monkeypatch.setenv("MY_KEY", "a-secret-of-mine")
    words = ("try", "chain_sum", "--id", "m", "--url", served.url, "-n", 1)
    for n, name in enumerate(("MY_KEY", "$MY_KEY")):
        assert ponder(*words, "--samples", n + 1, "--key", name).exit_code == 0
    assert {body["authorization"] for body in served.state()["bodies"]} == {
        "Bearer a-secret-of-mine"
    }


def test_a_model_in_words() -> None:
    assert model_table("pocket") == {"name": "pocket"}
    table = model_table("""endpoint id='my model' budget=10 "method=[{ name = 'vote', n = 3 }]" """)
    assert table == {
        "name": "endpoint",
        "id": "my model",
        "budget": 10,
        "method": [{"name": "vote", "n": 3}],
    }


def test_a_model_replaces_those_of_a_study(ponder, write) -> None:
    write("s.toml", 'problems = 2\n[[task]]\nname = "chain_sum"\nsize = 2\n[[model]]\nname = "endpoint"\nid = "m"\n[[figure]]\nname = "accuracy"\n')  # fmt: skip
    models = ("--model", "oracle", "--model", "oracle label=poor error=1")
    assert "to go on, raise" not in ponder("run", "s.toml", *models, "--set", "problems=3").stderr
    result = ponder("report", "s.toml", *models)
    assert result.exit_code == 0
    assert ponder("export", "s.toml", *models).exit_code == 0
    assert {line.split(",")[1] for line in Path("s.csv").read_text().splitlines()[1:]} == {
        "oracle",
        "poor",
    }
    # Hints repeat the options, and an error names the option.
    missing = ponder("report", "s.toml", "--model", "oracle error=0.5")
    assert missing.stderr.endswith(
        "hint: run it first: ponder run s.toml --model 'oracle error=0.5'\n"
    )
    assert (
        "--model erro: model `oracle` has no key `erro`"
        in ponder("plan", "s.toml", "--model", "oracle erro=1").stderr
    )


def test_several_settings_after_one_option(ponder, write) -> None:
    write("s.toml", '[[task]]\nname = "chain_sum"\nsize = 2\n[[model]]\nname = "oracle"\n')
    for words in (
        ("--set", "problems=3", "samples=2", "task.size=[2, 3]", "s.toml"),
        ("s.toml", "--set=problems=3", "samples=2", "--set", "task.size=[2, 3]"),
        ("--set", "problems=3", "s.toml", "--set", "samples=2", "task.size=[2, 3]"),
    ):
        assert json.loads(ponder("plan", *words, "--json").stdout)["total"]["attempts"] == 12, words
    assert ponder("plan", "s.toml", "problems=3").exit_code == 2  # without --set it is no setting


def test_a_path_on_the_command_line_is_relative_to_the_current_folder(
    folder, ponder, write
) -> None:
    (folder / "sub").mkdir()
    (folder / "sub" / "own.jsonl").write_text('{"prompt": "1 + 1?", "answer": "2"}\n')
    write(
        "mine.jsonl", '{"prompt": "1 + 2?", "answer": "3"}\n{"prompt": "1 + 3?", "answer": "4"}\n'
    )
    write(
        "sub/s.toml", '[[task]]\nname = "jsonl"\nfile = "own.jsonl"\n[[model]]\nname = "oracle"\n'
    )

    def asked(*settings: str) -> int:
        return sum(len(list(cell.asked())) for cell in Study.load("sub/s.toml", settings).cells)

    assert asked() == 1
    assert asked("task.file=mine.jsonl") == 2
    assert asked('task.file=["mine.jsonl", "sub/own.jsonl"]') == 3
    with pytest.raises(UserError, match=r"own\.jsonl"):
        asked("task.file=own.jsonl")


def test_options_tell_a_task_from_the_study_of_its_name(ponder) -> None:
    pytest.importorskip("math_verify")
    shown = ponder("show", "math500")
    assert shown.stdout.startswith("# math500\ntitle ")
    assert shown.stderr == "also: task math500: ponder show task math500\n"
    assert ponder("show", "math500", "--set", "samples=9").stdout.count("samples = 9") == 1
    for words in (("--set", f"file={EXAMPLE}"), ("--size", "0")):
        assert ponder("show", "math500", *words).stdout.startswith("task math500\n")


@pytest.mark.parametrize("name", BENCHMARKS)
def test_the_study_of_a_benchmark_takes_a_file_and_a_model(folder, name, monkeypatch) -> None:
    pytest.importorskip("math_verify")
    example = Path((Gpqa if name == "gpqa" else Math500).example["file"])
    (folder / "mine.jsonl").write_bytes(example.read_bytes())
    study = Study.load(
        name, ["task.file=mine.jsonl", "model.id=qwq", "model.url=http://127.0.0.1:8080/v1"]
    )
    study.check()
    (cell,) = study.cells
    assert (cell.task.plugin_name(), cell.label.model) == (name, "qwq")
    assert study.samples >= 4
    assert [figure["name"] for figure in study.figure] == [
        "accuracy",
        "frontier",
        "samples",
        "budget",
    ]
    # What `try` asks by default is what the study asks.
    assert (cell.model.budget, cell.model.temperature, cell.seed, cell.size) == (32768, 0.6, 0, 0)  # type: ignore[attr-defined]


def test_the_report_of_a_benchmark(folder, ponder) -> None:
    pytest.importorskip("math_verify")
    words = ("amc23", "--model", "oracle error=0.4 label=qwq", "--set", f"task.file={EXAMPLE}")
    assert ponder("run", *words).exit_code == 0
    assert ponder("report", *words).exit_code == 0
    page = (folder / "reports" / "amc23" / "report.html").read_text("utf-8")
    assert "amc23: qwq: accuracy " in page
    assert " output tokens per answer, " in page
    assert " per right answer." in page
    assert "amc23: qwq: pass@1 " in page
    assert "of 16 samples pass@16 " in page


REFUSALS = [
    (401, "Incorrect API key", None, "hint: --key NAME names the environment variable"),
    (
        400,
        "Unsupported value: 'temperature' does not support 0.6.",
        "temperature",
        "hint: --temperature default",
    ),
    (
        400,
        "This model's maximum context length is 4096 tokens, but 40 input tokens",
        None,
        "hint: --budget 4056 at most",
    ),
    (
        400,
        "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead.",
        "max_tokens",
        (
            "hint: --model 'endpoint id=m url={url} key=$MY_KEY budget=32768 temperature=0.6 "
            "budget_field=max_completion_tokens'"
        ),
    ),
]


@pytest.mark.parametrize(("status", "message", "param", "hint"), REFUSALS)
def test_a_server_that_refuses_is_told_in_words_of_this_command(
    ponder, serve, monkeypatch, status, message, param, hint
) -> None:
    monkeypatch.setenv("MY_KEY", "a-secret-of-mine")
    text = json.dumps({"error": {"message": message, "param": param}})
    served = serve(always=status, text=text)
    words = ("try", "chain_sum", "--id", "m", "--url", served.url, "-n", 1, "--key", "MY_KEY")
    result = ponder(*words)
    assert result.exit_code == 2
    assert message in result.stderr
    assert hint.format(url=served.url) in result.stderr
    key = hint.split("--")[1].split("'")[0].split()[0]
    if key in ("budget", "key"):
        with_model = ponder(
            "try", "chain_sum", "--model", f"endpoint id=m url={served.url} budget=9000"
        )
        assert f"--model 'endpoint … {key}=" in with_model.stderr


def test_the_hint_of_a_refused_field_works(ponder, serve, monkeypatch) -> None:
    served = serve()
    monkeypatch.setenv("MY_KEY", "a-secret-of-mine")
    model = f"endpoint id=m url={served.url} key=$MY_KEY budget=32768 budget_field=max_completion_tokens"
    assert ponder("try", "chain_sum", "-n", 1, "--model", model).exit_code == 0
    assert served.state()["bodies"][0]["max_completion_tokens"] == 32768


def test_no_temperature_is_sent_if_the_server_is_to_choose(ponder, serve) -> None:
    pytest.importorskip("math_verify")
    served = serve()
    words = (
        "--id",
        "m",
        "--url",
        served.url,
        "-n",
        1,
        "--temperature",
        "default",
        "--set",
        f"file={EXAMPLE}",
    )
    result = ponder("try", "math500", *words)
    assert result.exit_code == 0
    assert "temperature" not in served.state()["bodies"][0]
    # The command that it ends with finds what was tried.
    following = shlex.split(result.stderr.splitlines()[-1])
    assert following[:4] == ["next:", "ponder", "run", "math500"]
    (forecast,) = json.loads(ponder("plan", *following[3:], "--json").stdout)["forecasts"]
    assert forecast["stored"] == 1
    for wrong in ("-1", "hot"):
        assert ponder("try", "math500", "--id", "m", "--temperature", wrong).exit_code == 2


def test_the_next_command_names_the_key(ponder, serve, monkeypatch) -> None:
    pytest.importorskip("math_verify")
    monkeypatch.setenv("MY_KEY", "a-secret-of-mine")
    words = (
        "--id",
        "m",
        "--url",
        serve().url,
        "-n",
        1,
        "--key",
        "MY_KEY",
        "--set",
        f"file={EXAMPLE}",
    )
    following = shlex.split(ponder("try", "math500", *words).stderr.splitlines()[-1])
    assert ponder("plan", *following[3:], "--json").exit_code == 0


def test_why_attempts_failed_is_shown_whole(ponder, serve) -> None:
    message = "no: " + " ".join(f"reason-{n}" for n in range(60)) + " Use 'that' instead."
    served = serve(always=400, text=json.dumps({"error": {"message": message}}))
    result = ponder("try", "chain_sum", "--id", "m", "--url", served.url, "-n", 2)
    assert result.exit_code == 1
    told = result.stderr[result.stderr.index("\nfailed 2:") :]
    assert f"failed 2: HTTP 400: {message}" in " ".join(told.split())
    assert max(map(len, told.splitlines())) <= 120


def test_the_request_is_printed_as_it_is_sent_without_secrets(serve, ponder, monkeypatch) -> None:
    monkeypatch.setenv("MY_KEY", "sk-secret-of-mine")
    served = serve()
    model = f"endpoint id=m url={served.url} key=$MY_KEY provider=vllm think=64 budget=500"
    done = ponder("try", "chain_sum", "-n", "2", "--size", "2", "--model", model)
    assert done.exit_code == 0, done.output
    head, _, rest = done.stderr.partition("\n\n")
    assert head.splitlines() == [
        f"POST {served.url}/chat/completions",
        "Content-Type: application/json",
        "Authorization: Bearer $MY_KEY",
    ]
    shown, _ = json.JSONDecoder().raw_decode(rest)
    sent = served.state()["bodies"][0]
    assert sent.pop("authorization") == "Bearer sk-secret-of-mine"
    assert shown == sent
    assert done.stderr.count("POST ") == 1
    assert "sk-secret" not in done.output


def test_hints_about_dials_name_the_option(ponder) -> None:
    url = "https://api.anthropic.com/v1"
    model = f"endpoint id=m url={url} protocol=chat think=9"
    done = ponder("try", "chain_sum", "--model", model)
    assert "hint: --model 'endpoint … think=1024'" in done.stderr
