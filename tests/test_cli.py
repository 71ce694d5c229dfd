"""The command line: every verb's happy path and a mistake, data on stdout and the rest on stderr,
exit codes.
"""

from __future__ import annotations

import json
import math
import tomllib
from pathlib import Path

import pytest

from ponder import Study, cli
from ponder.cli import describe
from ponder.cli.output import watch
from ponder.core import plugins
from ponder.study.study import built_in

VERBS = [
    "list",
    "show",
    "try",
    "plan",
    "run",
    "regrade",
    "report",
    "view",
    "tune",
    "compare",
    "baseline",
    "export",
    "import",
    "prepare",
    "store",
    "score",
    "select",
    "serve",
    "new",
    "check",
    "completion",
]
SUM = '[[task]]\nname = "chain_sum"\nsize = 2\n'
STUDY = f'problems = 3\n{SUM}[[model]]\nname = "oracle"\n[[figure]]\nname = "accuracy"\n'
SHORTEST = '[[task]]\nname = "execution"\ndictionary = 16\nper_turn = 0\nsize = 2\n[[model]]\nname = "pocket"\ntemperature = 1.0\n'
SHORTEST += 'method = [{ name = "shortest", problems = 2, n = 2, epochs = 1 }]\n'
TRACE = {
    "question": "What is 1 + 1?",
    "thinking": "One and one.\n\nThat is 2.",
    "answer": "2",
    "correct": True,
}


@pytest.fixture
def study(write) -> str:
    return write("s.toml", STUDY)


@pytest.fixture
def traces(write) -> str:
    rows = [
        {**TRACE, "id": f"t{n}", "labels": [1, n % 2, 1], "question": f"What is {n} + 1?"}
        for n in range(6)
    ]
    return write("traces.jsonl", "\n".join(map(json.dumps, rows)))


def test_verbs_stand_in_the_order_of_a_study_s_life(ponder) -> None:
    commands = ponder("--help").stdout.partition("Commands:")[2]
    assert [text.split()[0] for text in commands.strip().splitlines()] == VERBS
    assert "..." not in commands  # no summary is cut off


@pytest.mark.parametrize(
    "module", ["check", "describe", "plugin", "prepare", "store", "study", "trace", "trying"]
)
def test_no_command_hides_a_module(module) -> None:
    from importlib import import_module

    assert getattr(cli, module, import_module(f"ponder.cli.{module}")) is import_module(
        f"ponder.cli.{module}"
    )


@pytest.mark.parametrize(
    "words",
    [["list"], ["show", "tents"], ["show", "effort"], ["plan", "effort"], ["check", "chain_sum"]],
)
def test_json(ponder, words) -> None:
    result = ponder(*words, "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout)
    assert ponder(*words).stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["list", "taks"], "hint: did you mean `tasks`?"),
        (["list", "lengths"], "hint: did you mean `length_rewards`?"),
        (["show", "tens"], "hint: did you mean `tents`?"),
        (["show", "scaling"], "hint: it is now `selection`"),
        (["show", "oracle"], "hint: say which: model oracle, policy oracle, reward oracle"),
        (["show", "kimi", "--size", "3"], "hint: --size and --set are for tasks"),
        (["show", "tents", "--size", "37"], "hint: the nearest sizes are 36, 35, 40"),
        (["show", "tents", "--set", "difficulty=hard"], "there is no choice 'hard'"),
        (["plan", "efort"], "hint: did you mean `effort`?"),
        (["run", "effort", "--set", "modle.id=x"], "hint: did you mean `model`?"),
        (["regrade", "effort"], "there is no store ponder.db"),
        (["report", "effort"], "there is no store ponder.db"),
        (["export", "effort"], "there is no store ponder.db"),
        (["prepare", "efort"], "hint: did you mean `effort`?"),
        (
            ["prepare", "model", "effort", "-o", "x"],
            "hint: add a method that changes weights: ponder list methods",
        ),
        (["prepare", "pocket", "-o", "x", "--task", "chess"], "hint: there are --task"),
        (
            ["make", "model", "effort", "-o", "my dir"],
            "hint: use `ponder prepare model effort -o 'my dir'`",
        ),
        (
            ["score", "none.jsonl", "--reward", "orcle"],
            "--reward: reward `orcle` is unknown\nhint: did you mean `oracle`?",
        ),
        (
            ["score", "none.jsonl", "--reward", "qwen", "--set", "idd=3"],
            "--set idd: reward `qwen` has no key `idd`",
        ),
        (["check", "nothing"], "there is no plugin `nothing`\nhint: ponder list shows them all"),
        (
            ["check", "./d.toml"],
            "./d.toml is a study, not a plugin\nhint: ponder plan ./d.toml checks it",
        ),
        (["check", "study", "effort"], "effort is a study, not a plugin"),
        (["check", "oracle"], "hint: say which: model oracle, policy oracle, reward oracle"),
        (
            ["show", "polciy", "oracle"],
            "there is no kind of plugin `polciy`\nhint: did you mean `policy`?",
        ),
        (["show", "policy", "tents"], "policy `tents` is unknown"),
        (["show", "a", "b", "c"], "expected a name, or a kind and a name, not 3 words"),
        (["show", "effort", "--size", "3"], "effort is a study, which has no size"),
        (
            ["prepare", "reward", "x.jsonl", "--from", "nofolder", "-o", "x"],
            "--from: there is no folder nofolder",
        ),
        (
            ["prepare", "reward", "x.jsonl", "--from", "./nofolder", "-o", "x"],
            "--from: there is no folder ./nofolder",
        ),
        (["select", "none.jsonl"], "hint: --top 1000, --threshold 0.8, or --by all"),
        (["serve", "none.gguf"], "hint: smollm2, or the path of a .gguf file"),
        (["new", "task", "my-task"], "hint: use lower-case letters"),
        (["new", "task", "My_task"], "hint: use lower-case letters"),
        (["new", "tsk", "mine"], "hint: did you mean `task`?"),
        (["check", "./none.py"], "there is no file"),
        (["fit", "effort"], "hint: use `ponder prepare STUDY`"),
        (["grade", "effort"], "hint: use `ponder regrade STUDY`"),
        (["train-reward", "x"], "hint: use `ponder prepare reward TRACES --from MODEL -o DIR`"),
        (["rn", "effort"], "hint: did you mean `run`?"),
    ],
)
def test_mistakes(ponder, words, message) -> None:
    result = ponder(*words)
    assert result.exit_code == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert not result.stdout
    assert not Path("ponder.db").exists()
    assert not Path("x").exists()


def test_a_study_from_plan_to_export(ponder, study) -> None:
    assert json.loads(ponder("plan", study, "--json").stdout)["forecasts"][0]["to_run"] == 3
    done = ponder("run", study, "--json")
    assert (done.exit_code, json.loads(done.stdout)["right"]) == (0, 3)
    assert "next: ponder report s.toml" in done.stderr
    assert (
        "next: ponder report s.toml --store ponder2.db"
        in ponder("run", study, "--store", "ponder2.db").stderr
    )
    assert json.loads(ponder("plan", study, "--json").stdout)["forecasts"][0]["to_run"] == 0
    assert ponder("regrade", study).stdout == "0 grades changed\n"
    reported = ponder("report", study)
    assert reported.exit_code == 0
    assert all(Path(name).is_file() for name in reported.stdout.split())
    exported = ponder("export", study, "--format", "jsonl")
    assert len(Path(exported.stdout.strip()).read_text().splitlines()) == 3


def test_prepare_a_study_then_one_model(ponder, write) -> None:
    write("t.toml", SHORTEST)
    done = ponder("prepare", "t.toml", "--json")
    assert done.exit_code == 0, done.output
    reports = [json.loads(row) for row in done.stdout.splitlines()]
    assert reports[-1] == {"ready": "pocket + shortest"}
    assert any("step" in report for report in reports)
    # nothing is made again
    assert len(ponder("prepare", "t.toml", "--json").stdout.splitlines()) == 1
    made = ponder("prepare", "model", "t.toml", "-o", "out")
    assert (made.exit_code, made.stdout) == (0, "out\n"), made.output
    assert 'id = "out"' in made.stderr
    assert (Path("out") / "model.safetensors").is_file()
    assert "is not empty" in ponder("prepare", "model", "t.toml", "-o", "out").stderr


def test_recipes_are_commands(ponder) -> None:
    listed = ponder("prepare", "--help").stdout
    assert [
        row.split()[0]
        for row in listed.partition("Commands:")[2].partition("\n\n")[0].strip().splitlines()
    ] == [
        "study",
        "model",
        "own_reward",
        "reward",
        "pocket",
        "pocket_reward",
    ]
    text = ponder("prepare", "pocket", "--help").stdout
    assert "--seed INTEGER  Of the training.  [default: 1]" in text
    assert "--style TEXT" in text
    assert "Missing option '-o'" in ponder("prepare", "pocket").stderr


def test_a_recipe_s_parameters_are_options(ponder, folder, monkeypatch) -> None:
    (folder / "mine.py").write_text(
        'def make(folder, steps: int,  # to train\n         note="#"):\n    """Train mine."""\n'
    )
    (folder / "other.py").write_text("def made(folder): ...\n")
    monkeypatch.setattr("ponder.cli.prepare.RECIPES", folder)
    text = ponder("prepare", "mine", "--help").stdout
    assert "--steps INTEGER  To train.  [required]" in text
    assert "Train mine." in text
    assert "Missing option '--steps'" in ponder("prepare", "mine", "-o", "x").stderr
    assert "there is no study `zzz`" in ponder("prepare", "zzz").stderr


def test_score_then_select(ponder, traces) -> None:
    scored = ponder("score", traces, "--reward", "oracle")
    assert (scored.exit_code, scored.stdout) == (0, "traces.scored.jsonl\n"), scored.output
    chosen = ponder("select", "traces.scored.jsonl", "--top", "2", "--keep-duplicates", "--json")
    assert chosen.exit_code == 0, chosen.output
    best = [json.loads(row)["id"] for row in Path("traces.chosen.jsonl").read_text().splitlines()]
    assert len(best) == 2
    assert set(best) < {"t1", "t3", "t5"}  # the sound ones, which tie
    assert "read 6  kept 2" in chosen.stderr


def test_select_by_overlap(ponder, traces, write) -> None:
    asked = "one two three four five six seven eight nine ten"
    write("asked.jsonl", json.dumps({"question": asked, "answer": "1"}))
    rows = [
        {**TRACE, "id": "half", "question": f"{asked[:23]} and more words"},
        {**TRACE, "id": "other"},
    ]
    write("pool.jsonl", "\n".join(map(json.dumps, rows)))
    words = [
        "select",
        "pool.jsonl",
        "--by",
        "all",
        "--keep-duplicates",
        "--without",
        "asked.jsonl",
        "--json",
    ]
    counts = [
        json.loads(ponder(*words, *more).stdout)
        for more in ((), ("--min-run", "3", "--overlap", "0.4"))
    ]
    assert [found["kept"] for found in counts] == [2, 1]


def test_interrupted_work_says_how_to_resume(capsys) -> None:
    from click.exceptions import Exit

    def work():
        yield {"step": 1}
        raise KeyboardInterrupt

    with pytest.raises(Exit) as ended:
        watch(work())
    assert ended.value.exit_code == 130
    assert "step 1" in (said := capsys.readouterr().err)
    assert "interrupted; run the same command again to resume" in said


def test_progress_as_json_is_data(capsys) -> None:
    watch([{"step": 1}, {"step": 2, "loss": 0.5}], as_json=True)
    said = capsys.readouterr()
    assert [json.loads(row) for row in said.out.splitlines()] == [
        {"step": 1},
        {"step": 2, "loss": 0.5},
    ]
    assert "loss 0.5" in said.err


def test_list_has_headings_for_people(ponder) -> None:
    text = ponder("list").stdout
    headings = [row for row in text.splitlines() if row and not row.startswith(" ")]
    assert "policies" in headings
    assert "length rewards (length_rewards)" in headings
    assert headings[0] == "tasks"
    assert set(json.loads(ponder("list", "policies", "--json").stdout)) == {"policies"}


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        (["policies"], "policies"),
        (["policy"], "policies"),
        (["length_reward"], "length_rewards"),
        (["length-rewards"], "length_rewards"),
        (["study"], "studies"),
        (["Tasks"], "tasks"),
    ],
)
def test_list_a_kind_in_other_words(ponder, words, kind) -> None:
    assert set(json.loads(ponder("list", *words, "--json").stdout)) == {kind}


@pytest.mark.parametrize(
    "words", [["policy", "oracle"], ["policies", "oracle"], ["policies/oracle"]]
)
def test_a_kind_says_which_of_several_is_meant(ponder, words) -> None:
    assert ponder("show", *words).stdout.startswith("policy oracle\n")


def test_a_study_and_a_figure_of_one_name(ponder) -> None:
    shown = ponder("show", "effort")
    assert shown.stdout.startswith("# effort\n")
    assert shown.stderr == "also: figure effort: ponder show figure effort\n"
    assert ponder("show", "study", "effort").stdout == shown.stdout
    assert ponder("show", "study", "effort").stderr == ""
    assert ponder("show", "figure", "effort").stdout.startswith("figure effort\n")
    assert ponder("check", "figure", "effort").stdout == "figure effort: passed\n"


def test_a_study_is_shown_with_its_comments(ponder, write) -> None:
    shown = ponder("show", "study", "long2short-smollm2").stdout
    assert "# First: ponder prepare model effort-smollm2 -o smollm2-sums\n" in shown
    write("mine.toml", shown)
    assert Study.load("mine.toml").cells == Study.load("long2short-smollm2").cells
    changed = ponder("show", "study", "long2short-smollm2", "--set", "problems=5").stdout
    assert "problems = 5\n" in changed
    assert "# First" not in changed


def test_show_a_puzzle(ponder) -> None:
    shown = json.loads(
        ponder("show", "tents", "--size", "36", "--set", "difficulty=tricky", "--json").stdout
    )
    assert shown["size"] == 36
    assert len(json.loads(shown["answer"])) == 6
    assert ponder("show", "policies/oracle").stdout.startswith("policy oracle\n")
    assert ponder("show", "tents", "--seed", "1").stdout != ponder("show", "tents").stdout


@pytest.mark.parametrize("name", built_in())
def test_a_study_is_shown_as_toml_that_is_the_same_study(ponder, name) -> None:
    shown = Study.from_table(tomllib.loads(ponder("show", name).stdout), name=name)
    assert shown.resolved() == Study.load(name).resolved()


def test_settings_are_read_as_python_reads_them(folder: Path) -> None:
    (folder / "settings_of_all_kinds.py").write_text('''"""Does nothing."""
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal
from pathlib import Path

from ponder.core import EnvVar, Method, Model, TrainingProblems, not_in_key

@dataclass(frozen=True, kw_only=True)
class _Base(Method):
    inherited: int = 1  # from the base
    colour: str = "none"  # replaced below

@dataclass(frozen=True, kw_only=True)
class Mine(_Base):
    needed: float  # must be given
    colour: str = "#1f6fb4"  # of the # marks
    bare: str = "a # b"
    long: tuple[
        int, ...
    ] = (1, 2)  # over three lines
    quiet: int = 3  # noqa: E501
    kind: Literal["a", "b"] | None = None
    other: Model | None = None
    others: tuple[Model, ...] = ()
    key: EnvVar | None = None
    file: Path = Path("x")
    table: dict[str, Any] = field(default_factory=dict)
    train_on: tuple[TrainingProblems, ...] = not_in_key(())  # set by Ponder
    loaded: Any = None  # set by Ponder
    example: ClassVar[dict[str, Any]] = {"needed": 1.0}
    def apply(self, model): return model
''')
    _, plugin = describe.find("", "./settings_of_all_kinds.py")
    rows = {
        row["key"]: (row["type"], row["default"], row["about"]) for row in describe.schema(plugin)
    }
    assert list(rows)[-1] == "inherited"
    assert rows == {
        "needed": ("float", "required", "must be given"),
        "colour": ("str", '"#1f6fb4"', "of the # marks"),
        "bare": ("str", '"a # b"', ""),
        "long": ("list of ints", "[1, 2]", "over three lines"),
        "quiet": ("int", "3", ""),
        "kind": ('"a" | "b"', "not set", ""),
        "other": ("model", "not set", ""),
        "others": ("list of models", "[]", ""),
        "key": ('"$NAME"', "not set", ""),
        "file": ("path", '"x"', ""),
        "table": ("table", "{}", ""),
        "inherited": ("int", "1", "from the base"),
    }


def test_what_can_be_shown_can_be_written() -> None:
    """No plugin lists a setting that TOML can't hold, such as the problems to train on."""
    for kind in plugins.KINDS:
        for name in plugins.files(kind):
            for row in describe.schema(plugins.load(kind, name)):
                assert row["key"] not in ("train_on", "predictor", "importance"), (kind, name)
                assert "Any" not in row["type"]


def test_values_as_toml() -> None:
    value = {"a": [1, 2.5, math.inf, True], "b": {"c": 'say "no" \\ é'}, "d": []}
    assert tomllib.loads(f"value = {describe.toml(value)}")["value"] == value


def test_new_never_overwrites(ponder) -> None:
    assert ponder("new", "task", "mine").stdout == "mine.py\n"
    before = Path("mine.py").read_text()
    assert "exists already" in ponder("new", "model", "mine").stderr
    assert Path("mine.py").read_text() == before
    assert ponder("check", "./mine.py").stdout == "task ./mine.py: passed\n"


def test_a_study_with_a_task_of_its_own(ponder, write) -> None:
    ponder("new", "task", "own_task")
    write("s.toml", 'problems = 3\n[[task]]\nname = "./own_task.py"\n[[model]]\nname = "oracle"\n')
    assert json.loads(ponder("run", "s.toml", "--json").stdout)["right"] == 9


def test_the_next_command_is_about_the_same_study_and_store(ponder) -> None:
    settings = ["--set", "problems=1", "--set", "task.size=[16, 20]", "--store", "mine.db"]
    ended = ponder("run", "effort", *settings)
    assert ended.exit_code == 0
    assert (
        "next: ponder report effort --set problems=1 --set 'task.size=[16, 20]' --store mine.db"
        in ended.stderr
    )
