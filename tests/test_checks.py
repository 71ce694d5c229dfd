"""What can be refused before anything is spent is refused, and says what to do; the built-in
studies pass.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from engines import fake_vllm

import ponder as ponder_api
from ponder import Study
from ponder.core import Request, UserError
from ponder.study import check
from ponder.study.study import BUILT_IN, built_in
from ponder.training import launch

SUM = '[[task]]\nname = "chain_sum"\nsize = 2\n'
STEPS = '[[task]]\nname = "execution"\nsize = 12\n'
ORACLE = '[[model]]\nname = "oracle"\n'
FORCED = '[[model]]\nname = "oracle"\nmethod = [{ name = "budget_force", think = [10, 20], answer = [10, 20] }]\n'
POCKET = '[[model]]\nname = "transformers"\nid = "pocket"\n'
COMPRESS = (
    'method = [{ name = "compress", policy = "random", budget = 64, window = 8, ratio = 0.5 }]\n'
)
BENCHMARKS = ("aime24", "aime25", "amc23", "gpqa", "math500")
# their problems are not here
ON_HUB = ("compression-paper", "long2short-paper", "selection-paper", *BENCHMARKS)


def figure(name: str, *settings: str) -> str:
    return "\n".join(["[[figure]]", f'name = "{name}"', *settings, ""])


def refusal(write, text: str) -> str:
    with pytest.raises(UserError) as caught:
        Study.load(write("s.toml", text)).check()
    return str(caught.value)


@pytest.mark.parametrize("name", [name for name in built_in() if name not in ON_HUB])
def test_built_in_studies_pass(name, folder, monkeypatch) -> None:
    monkeypatch.setenv("PONDER_VLLM", fake_vllm(folder))
    for made in ("smollm2-sums", "smollm2-reward"):  # docs/real-models.md makes them first
        (folder / made).mkdir()
        (folder / made / "config.json").write_text('{"model_type": "llama"}')
        (folder / made / "model.safetensors").touch()
    for provider in ("OPENROUTER", "OPENAI", "ANTHROPIC", "GEMINI"):
        monkeypatch.setenv(f"{provider}_API_KEY", "x")
    Study.load(name).check()


@pytest.mark.parametrize("name", ["compression-paper", "long2short-paper", "selection-paper"])
def test_studies_at_paper_scale_pass_on_a_machine_that_has_what_they_need(
    name, folder, monkeypatch
) -> None:
    """Eight GPUs, vLLM, the problems and the traces; here only their names are checked."""
    monkeypatch.setenv("PONDER_VLLM", fake_vllm(folder))
    monkeypatch.setattr(launch, "devices", lambda: 8)
    maths, gpqa = folder / "maths.jsonl", folder / "gpqa.jsonl"
    rows = [{"problem": f"{n} + 1?", "answer": str(n + 1)} for n in range(4)]
    maths.write_text("".join(json.dumps(row) + "\n" for row in rows))
    choices = {f"Incorrect Answer {n}": f"not {n}" for n in (1, 2, 3)}
    gpqa.write_text(json.dumps({"Question": "Which?", "Correct Answer": "this", **choices}) + "\n")
    (folder / "s1.jsonl").write_text(
        json.dumps({"question": "1 + 1?", "thinking": "2", "response": "2"}) + "\n"
    )
    content = tomllib.loads((BUILT_IN / f"{name}.toml").read_text())
    files = [
        f"task[{n}].file={gpqa if task['name'] == 'gpqa' else maths}"
        for n, task in enumerate(content["task"])
    ]
    files += [f"train[{n}].file={maths}" for n in range(len(content.get("train", ())))]
    files += [f"model.method.data={folder / 's1.jsonl'}"] if name == "selection-paper" else []
    study = Study.load(name, files)
    study.check()
    trained = [
        method for cell in study.cells for method in cell.methods if hasattr(method, "engine")
    ]
    assert all(method.engine == "trainer" and method.launch.is_file() for method in trained)
    assert {cell.model.plugin_name() for cell in study.cells} == {
        "transformers" if "compr" in name else "vllm"
    }


@pytest.mark.parametrize(
    ("study", "message"),
    [
        (SUM + figure("accuracy", 'overlay = "tents_sucess"'), "figure[0].overlay: there is no choice 'tents_sucess'\nhint: did you mean `tents_success`?"),
        (SUM + figure("effort", 'overlay = "tents_success"'), "figure[0].overlay: there is no choice 'tents_success'"),
        (SUM + figure("selection", 'overlay_size = "x"'), "figure[0].overlay_size: there is no choice 'x'"),
        (SUM + FORCED + figure("heatmap", 'x = "thnk"', 'y = "answer"'), "figure `heatmap` draws `thnk`, which no attempt of this study records\nhint: did you mean `think`?"),
        (SUM + figure("effort", "unlt = 3"), "figure[0].unlt: figure `effort` has no key `unlt`\nhint: did you mean `unit`?"),
        (SUM + figure("frontier", 'margin = "x"'), "figure[0].margin: expected a number, not text"),
        (SUM + figure("frontier", 'reference = "orcle"'), "figure[0].reference: there is no choice 'orcle'\nhint: did you mean `oracle`?"),
        (SUM + figure("accuracy", "target = []"), "figure[0].target: this list is empty"),
        (SUM + figure("horizon"), "figure[0]: figure `horizon` draws `per_turn`, which no attempt of this study records\nhint: use the task `execution`"),
        (SUM + figure("tradeoff"), "draws `per_turn`"),
        (SUM + figure("self_conditioning"), "draws `history_turns`"),
        (SUM + figure("cache"), "draws `cache_bytes`"),
        (SUM + figure("heatmap"), "draws `ratio`"),
        (SUM + figure("heatmap", 'x = "n"', 'y = "temperature"'), "draws `n`"),
        (SUM + figure("fidelity"), "draws `kl`"),
        (SUM + figure("selection"), 'hint: method = [{ name = "sft"'),
        (SUM + figure("./none.py"), "figure[0].name: there is no file"),
    ],
)  # fmt: skip
def test_figures_that_can_t_be_drawn(write, study, message) -> None:
    assert message in refusal(write, study + ORACLE)


@pytest.mark.parametrize(
    "study",
    [
        STEPS + ORACLE + figure("horizon") + figure("tradeoff") + figure("self_conditioning"),
        STEPS + ORACLE + SUM + figure("horizon"),  # one task of two is enough
        STEPS + ORACLE + figure("heatmap", 'x = "error_rate"', 'y = "history_turns"'),
        SUM + ORACLE + figure("frontier", 'reference = "oracle"') + figure("accuracy", "target = [0.5, 0.8]"),
        STEPS + "per_turn = 0\ndictionary = 8\n" + POCKET + figure("cache"),
        STEPS + "per_turn = 0\ndictionary = 8\n" + POCKET + COMPRESS + figure("heatmap") + figure("heatmap", 'x = "compress.ratio"'),
    ],
)  # fmt: skip
def test_figures_that_can_be_drawn(write, study) -> None:
    Study.load(write("s.toml", study)).check()


def test_a_setting_that_is_left_out_can_t_be_drawn(write) -> None:
    study = (
        STEPS + "per_turn = 0\ndictionary = 8\n" + POCKET + COMPRESS.replace(", ratio = 0.5", "")
    )
    assert "draws `ratio`" in refusal(write, study + figure("heatmap"))


def test_a_model_from_elsewhere_may_record_anything(ponder, write) -> None:
    ponder("new", "model", "recorder")
    Study.load(
        write("s.toml", SUM + '[[model]]\nname = "./recorder.py"\n' + figure("cache"))
    ).check()


def test_a_figure_of_one_s_own(ponder, write) -> None:
    ponder("new", "figure", "own_figure")
    study = SUM + ORACLE + figure("./own_figure.py")
    Study.load(write("s.toml", study)).check()
    assert "figure `./own_figure.py` has no key `x`" in refusal(write, study + "x = 1\n")
    write("broken.py", "class Broken(Figure:\n")
    assert "broken.py:1: it can't be imported: SyntaxError" in refusal(
        write, SUM + ORACLE + figure("./broken.py")
    )


def test_a_figure_that_is_no_plain_subclass_is_built(write) -> None:
    write(
        "based.py",
        '"""Draws."""\nfrom ponder.figures.effort import Effort\n\nclass Based(Effort):\n    pass\n',
    )
    study = SUM + ORACLE + figure("./based.py")
    Study.load(write("s.toml", study)).check()
    assert "has no key `x`" in refusal(write, study + "x = 1\n")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("size = 2", "size = []"), "task[0].size: there is no size, so nothing to ask"),
        (("size = 2", "digits = []"), "task[0].digits: this list is empty, so there is nothing to ask"),
        (("size = 2", "remember = []"), "task[0].remember: this list is empty"),
        (("size = 2", "size = 100_000_000"), "chain_sum adds at most 100,000 numbers, not 100,000,000"),
        (('"chain_sum"\nsize = 2', '"execution"\nsize = 1_000_000_000'), "execution has at most 100,000 steps"),
        (('"chain_sum"\nsize = 2', '"tents"\nsize = 100_000'), "tents can be made with at most 6,400 cells"),
        (('"oracle"', '"oracle"\nerror = []'), "model[0].error: this list is empty"),
        (('"oracle"', '"oracle"\nmethod = [{ name = "vote", n = [] }]'), "model[0].method[0].n: this list is empty"),
        (("size = 2", "size = [[2]]"), "task[0].size: expected a whole number, not a list"),
        (("size = 2", "size = 2.0"), "task[0].size: expected a whole number, not a decimal number"),
        (("size = 2", "size = 2026-11-17"), "task[0].size: expected a whole number, not a date"),
        (('"chain_sum"', '"\\u0000.py"'), "task[0].name: there is no file"),
        (('"accuracy"', "3"), "figure[0]: a figure needs a name"),
        (('"oracle"', '"oracle"\nconcurrency = 0'), "model `oracle`: concurrency must be at least 1, not 0"),
        (('"oracle"', '"oracle"\nmethod = [{ name = "merge", other = { name = "oracle" } }]'), "has no local weights that could be changed"),
        (('"oracle"', f'"oracle"\n{COMPRESS}'), "a KV cache can be pruned only in local weights"),
        (('"oracle"', '"transformers"\nid = "./none"'), "model `none (transformers)`: there are no weights at ./none"),
        (("[[task]]", 'max_cost = nan\n[[task]]'), "max_cost must be greater than 0, not nan"),
        (("[[task]]", '[[train]]\nname = "chain_sun"\n[[task]]'), "train[0].name: task `chain_sun` is unknown"),
        (("[[model]]", "[model]"), "s.toml: model: a study may have several model tables, so each is written [[model]]\nhint: write [[model]] instead of [model]"),
        (("[[task]]", "[task]"), "hint: write [[task]] instead of [task]"),
        (("[[figure]]", "[figure]"), "hint: write [[figure]] instead of [figure]"),
        (("[[task]]", 'track = "mlflow"\n[[task]]'), "a study has no key `track`\nhint: it is an option of a command: ponder report STUDY --track mlflow"),
        (("[[figure]]", "[[method]]"), "a study has no key `method`\nhint: write it in a [[model]]"),
    ],
)  # fmt: skip
def test_studies_that_ask_nothing_or_too_much(write, change, message) -> None:
    text = SUM + ORACLE + figure("accuracy")
    assert change[0] in text
    assert message in refusal(write, text.replace(*change))


TENTS = '[[task]]\nname = "tents"\nsize = 16\n'


def test_a_cache_without_room_for_the_prompt_is_refused_before_a_run(write, ponder) -> None:
    """The second size, of a later model: its turn would come after minutes."""
    pytest.importorskip("torch")
    task = TENTS.replace("16", "[16, 36]")
    fits = COMPRESS.replace("64", "80")
    write("s.toml", task + ORACLE + POCKET + fits)
    study = Study.load("s.toml")
    study.check()
    tokens = [
        cell.model.prompt_tokens(Request.first_turn(cell.task, next(cell.asked())))
        for cell in study.cells[2:]
    ]
    assert tokens[0] < tokens[1] < 72
    tight = tokens[1] + 8  # as many as are never evicted
    write("s.toml", task + ORACLE + POCKET + COMPRESS.replace("64", str(tight)))
    for verb in ("plan", "run"):
        result = ponder(verb, "s.toml")
        assert result.exit_code == 2
        assert "size 36: " in result.stderr
        assert (
            f"{tokens[1]} tokens of the prompt are protected and the window holds 8"
            in result.stderr
        )
    assert not Path("ponder.db").exists()
    Study.load(write("s.toml", task + POCKET + COMPRESS.replace("64", str(tight + 1)))).check()
    # no limit, and nothing protected
    for change in (('"random"', '"full"'), ("budget", "question = false, budget")):
        method = COMPRESS.replace("64", str(tight)).replace(*change)
        Study.load(write("s.toml", task + POCKET + method)).check()


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "weights isn't a model: it has no config.json that names a `model_type`"),
        (
            {"config.json": '{"hello": 1}', "model.safetensors": "x"},
            "weights isn't a model: it has no config.json",
        ),
        (
            {"config.json": '{"model_type": "llama"}'},
            "there are no weights in weights, only settings",
        ),
    ],
)
@pytest.mark.parametrize("name", ["transformers", "vllm"])
def test_a_folder_that_is_no_model_is_refused_before_a_run(
    write, folder, monkeypatch, name, files, message
) -> None:
    pytest.importorskip("torch")
    monkeypatch.setenv("PONDER_VLLM", fake_vllm(folder))
    (folder / "weights").mkdir()
    for file, text in files.items():
        (folder / "weights" / file).write_text(text)
    assert message in refusal(write, SUM + f'[[model]]\nname = "{name}"\nid = "weights"\n')
    (folder / "x.gguf").write_text("nothing")
    assert "x.gguf isn't a GGUF file" in refusal(
        write, SUM + f'[[model]]\nname = "{name}"\nid = "x.gguf"\n'
    )


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ('name = "sft", teachers = ["oracle"], by = "reward", reward = { name = "qwen", id = "./none" }', "no folder ./none"),
        ('name = "sft", teachers = [{ name = "transformers", id = "./none" }]', "there are no weights at ./none"),
        ('name = "merge", other = { name = "transformers", id = "./none" }', "there are no weights at ./none"),
        ('name = "length_rl", sampler = { name = "vllm", id = "pocket", python = "/none" }', "can't run /none"),
        ('name = "length_rl", process = { name = "qwen", id = "./none" }', "no folder ./none"),
    ],
)  # fmt: skip
def test_what_making_a_model_needs_is_missed_before_a_run(write, ponder, method, message) -> None:
    pytest.importorskip("torch")
    write("s.toml", TENTS + f'[[model]]\nname = "pocket"\nmethod = [{{ {method} }}]\n')
    for verb in ("plan", "run"):
        result = ponder(verb, "s.toml")
        assert result.exit_code == 2
        assert f"s.toml: model `pocket + {method.split(chr(34))[1]}" in result.stderr
        assert message in result.stderr


def test_what_a_model_or_a_method_lacks_is_said_once_for_each(write, monkeypatch) -> None:
    from ponder.methods.vote import Vote
    from ponder.models.oracle import Oracle

    asked = []
    monkeypatch.setattr(Oracle, "ready", lambda self: asked.append(self.error), raising=False)
    write(
        "s.toml",
        'problems = 1\n[[task]]\nname = "chain_sum"\nsize = [2, 4]\n'
        + ORACLE
        + 'error = [0.1, 0.2]\nmethod = [{ name = "vote", n = 2 }]\n',
    )
    Study.load("s.toml").check()
    assert asked == [0.1, 0.2]

    def lacking(self: Vote) -> None:
        raise UserError("the variable K is not set")

    monkeypatch.setattr(Vote, "ready", lacking, raising=False)
    with pytest.raises(
        UserError, match=r"s.toml: model `oracle error=0.1 \+ vote`: the variable K is not set"
    ):
        Study.load("s.toml").check()


def test_a_problem_that_takes_too_long_is_refused(ponder, folder, write, monkeypatch) -> None:
    ponder("new", "task", "endless")
    path = folder / "endless.py"
    path.write_text(
        path.read_text().replace(
            "rng = random", "__import__('time').sleep(3600)\n        rng = random"
        )
    )
    monkeypatch.setattr(check, "SECONDS", 0.05)
    message = refusal(write, '[[task]]\nname = "./endless.py"\n' + ORACLE)
    assert "s.toml: task `endless`: making one problem of size 8 takes more than 0.05 s" in message


def test_a_check_imports_no_drawing_library(write) -> None:
    write("s.toml", SUM + ORACLE + figure("frontier", 'overlay = "long2short"') + figure("effort"))
    code = """
import sys
from ponder import Study
Study.load("s.toml").check()
loaded = {"altair", "numpy", "torch"} & set(sys.modules)
sys.exit(f"loaded {loaded}" if loaded else 0)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_teacher_that_can_t_solve_the_training_problems_is_refused(write) -> None:
    teach = 'method = [{ name = "sft", teachers = ["text_tutor"] }]\n'
    assert "tents isn't a sum" in refusal(
        write, f'[[task]]\nname = "tents"\nsize = 16\n[[model]]\nname = "pocket"\n{teach}'
    )


HOT = '[[model]]\nname = "endpoint"\nid = "m"\nurl = "http://127.0.0.1:9/v1"\nbudget = 9\nprobe = false\n'


def problems_file(write, name: str, number: int) -> None:
    write(
        name,
        "".join(
            json.dumps({"prompt": f"{n} + 1?", "answer": f"{n + 1}"}) + "\n" for n in range(number)
        ),
    )


@pytest.mark.parametrize(
    ("text", "warning"),
    [
        ('problems = 6\n[[task]]\nname = "jsonl"\nfile = "four.jsonl"\n' + ORACLE,
         "warning: s.toml: problems = 6, but task `jsonl` has 4 problems; all of them are asked"),
        ('problems = 4\n[[task]]\nname = "jsonl"\nfile = "four.jsonl"\n' + ORACLE, ""),
        ('[[task]]\nname = "jsonl"\nfile = "four.jsonl"\n' + ORACLE, ""),
        ('problems = 60\n' + SUM + ORACLE, ""),
        ('[[task]]\nname = "math500"\nfile = "four.jsonl"\n' + ORACLE,
         'warning: s.toml: task `math500`: four.jsonl has 4 problems, where math500 has 500\nhint: name = "jsonl"'),
        ('[[task]]\nname = "aime24"\nfile = "AIME-25.jsonl"\n' + ORACLE,
         "warning: s.toml: task `aime24` reads AIME-25.jsonl, which is named like the task `aime25`"),
        ('[[task]]\nname = "aime25"\nfile = "AIME-25.jsonl"\n' + ORACLE, ""),
        (SUM + HOT + "temperature = 3.5\n", "warning: s.toml: model `m` samples at temperature 3.5; most servers refuse"),
        (SUM + HOT + "temperature = 2.0\n", ""),
        (SUM + ORACLE + 'label = "a"\n' + ORACLE + 'label = "b"\nerror = 0.5\n', ""),
    ],
)  # fmt: skip
def test_what_looks_like_a_mistake_is_said_before_a_run(write, ponder, text, warning) -> None:
    problems_file(write, "four.jsonl", 4)
    problems_file(write, "AIME-25.jsonl", 30)
    result = ponder("plan", write("s.toml", text))
    assert result.exit_code == 0
    assert warning in result.stderr
    assert ("warning" in result.stderr) == bool(warning)


def test_a_run_says_it_too_from_the_command_line_and_from_python(write, ponder, capsys) -> None:
    problems_file(write, "four.jsonl", 4)
    text = 'problems = 6\n[[task]]\nname = "jsonl"\nfile = "four.jsonl"\n' + ORACLE
    warning = (
        "warning: s.toml: problems = 6, but task `jsonl` has 4 problems; all of them are asked"
    )
    assert warning in ponder("run", write("s.toml", text)).stderr
    ponder_api.Study.load("s.toml").run(progress=False)
    assert warning in capsys.readouterr().err


def test_a_file_with_more_problems_than_the_benchmark_is_another_set(write, ponder) -> None:
    problems_file(write, "many.jsonl", 31)
    result = ponder(
        "plan", write("s.toml", '[[task]]\nname = "aime24"\nfile = "many.jsonl"\n' + ORACLE)
    )
    assert result.exit_code == 2
    assert "many.jsonl: 31 problems, but aime24 has 30: this is another set" in result.stderr
    assert 'hint: name = "jsonl"' in result.stderr


@pytest.mark.parametrize("name", [name for name in built_in() if name not in ON_HUB])
def test_no_built_in_study_looks_like_a_mistake(name) -> None:
    assert Study.load(name).warnings() == []
