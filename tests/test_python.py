"""`import ponder`: studies that run themselves, their results, and functions as plugins."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import types
from pathlib import Path

import pytest
from click.testing import CliRunner

import ponder
from ponder.cli import main
from ponder.core import Bill, Completion, ModelFailure, UserError, plugins
from ponder.store.store import Store

SUMS = {"task": {"name": "chain_sum", "size": [2, 8]}, "figure": "accuracy", "problems": 3}


@pytest.fixture(autouse=True)
def no_plugins_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins, "_registered", {})


def sums(**settings: object) -> ponder.Study:
    return ponder.Study(**{**SUMS, "model": "oracle", **settings})  # type: ignore[arg-type]


def test_a_name_a_table_and_a_list_of_them_are_the_same_study() -> None:
    forms = ["oracle", {"name": "oracle"}, [{"name": "oracle"}], ["oracle"]]
    assert len({sums(model=form).cells[0].key for form in forms}) == 1


def test_everything_that_ponder_offers_can_be_loaded() -> None:
    assert set(ponder.__all__) <= set(dir(ponder))
    assert all(getattr(ponder, name).__doc__ for name in ponder.__all__)
    assert ponder.tasks.tents.Puzzle
    with pytest.raises(AttributeError, match="no attribute 'tentz'"):
        _ = ponder.tasks.tentz
    with pytest.raises(AttributeError, match="no attribute 'studdy'"):
        _ = ponder.studdy


def test_import_loads_nothing_else() -> None:
    code = "import sys; before = set(sys.modules); import ponder; print(*sorted(set(sys.modules) - before))"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert not {
        name
        for name in loaded
        if name.partition(".")[0] in ("numpy", "altair", "msgspec", "asyncio")
    }
    assert [name for name in loaded if name.startswith("ponder")] == ["ponder"]


def test_a_run_resumes_and_a_change_asks_only_what_is_new(folder: Path) -> None:
    assert len(sums().run(progress=False).outcomes) == 6
    asked = []

    @ponder.model
    def count(prompt: str) -> str:
        asked.append(prompt)
        return "<answer>1</answer>"

    study = sums(model=count)
    assert len(study.run(progress=False).outcomes) == 6
    assert len(study.run(progress=False, problems=4).outcomes) == 8
    assert len(asked) == len(set(asked)) == 8
    assert len(study.results().outcomes) == 6  # the study itself is as it was
    with Store(folder / "ponder.db") as store:
        assert sum(1 for _ in store.outcomes(sums().cells)) == 6


def test_it_runs_inside_an_event_loop(folder: Path) -> None:
    async def both() -> tuple[int, int]:
        here = await sums().run_async(store=folder / "a.db", progress=False)
        blocking = sums().run(store=folder / "b.db", progress=False)  # as in a notebook's cell
        return len(here.outcomes), len(blocking.outcomes)

    assert asyncio.run(both()) == (6, 6)


def test_a_mistake_is_told_where_it_is(folder: Path) -> None:
    with pytest.raises(UserError, match="oracl"):
        sums(model="oracl").run(progress=False)
    with pytest.raises(UserError, match="no store"):
        _ = sums().results(folder / "none.db").outcomes
    with pytest.raises(UserError, match="did you mean `problems`"):
        sums().run(problem=3)
    with pytest.raises(UserError, match="needs at least one model"):
        sums(model=[])
    with pytest.raises(UserError, match="stop: expected a table"):
        sums(stop=True)
    for wrong in (0, -1, "3"):  # an endpoint would be paid for the default number
        with pytest.raises(UserError, match="problems"):
            sums().run(problems=wrong)
    with pytest.raises(UserError, match="a name or a table"):
        sums(task=len)
    with pytest.raises(UserError, match="results are compared"):
        ponder.compare(sums())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        (
            lambda: ponder.Study(task="chain_sum", modell="oracle"),
            "no argument `modell`\nhint: did you mean `model`?",
        ),
        (
            lambda: ponder.Study(task="chain_sum"),
            "a study needs at least one model\nhint: model= one of endpoint",
        ),
        (ponder.Study, "a study needs at least one task\nhint: task= one of"),
        (
            lambda: sums(size=3),
            "a study has no argument `size`\nhint: `size` belongs in the [[task]] `chain_sum`",
        ),
        (
            lambda: sums().run(stor="x.db"),
            "a study has no argument `stor`\nhint: did you mean `store`?",
        ),
        (
            lambda: sums(task={"name": "chain_sum", "problems": 3}).plan(),
            "hint: `problems` is an argument of Study",
        ),
        (
            lambda: sums(model="openai").plan(),
            "model={'name': 'endpoint', 'id': 'NAME', 'url': 'https://api.openai",
        ),
        (
            lambda: sums().run(jobs=2, ray="auto"),
            "give jobs= or ray=, not both\nhint: with ray=, as much",
        ),
        (lambda: ponder.Study.load(Path("sumz.toml")), "there is no file sumz.toml"),
    ],
)
def test_a_mistake_in_python_is_told_in_python_s_words(folder: Path, mistake, message: str) -> None:
    with pytest.raises(ponder.UserError) as error:
        mistake()
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("hint", "in_python"),
    [
        ("`ponder run STUDY` creates one; use --store for another path", "`study.run()` creates one; use store= for another path"),
        ("ponder prepare STUDY trains one", "study.run() trains one"),
        ("run it first: ponder report STUDY", "run it first: study.results().report(FOLDER)"),
        ("add a method: ponder list methods", f"add a method: one of {', '.join(plugins.names('methods'))}"),
        ("`ponder store repair` saves the rest", "`ponder store repair` saves the rest (in a terminal)"),
        ("did you mean `tents`?", "did you mean `tents`?"),
    ],
)  # fmt: skip
def test_a_hint_of_the_command_line_in_python_s_words(hint: str, in_python: str) -> None:
    error = UserError("no", hint=hint)
    assert str(error) == f"no\nhint: {in_python}"
    assert error.in_terminal() == f"no\nhint: {hint}"


def test_failed_attempts_are_told_with_a_reason(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    @ponder.model
    def broken(prompt: str) -> str:
        raise ModelFailure("out of ink")

    sums(model=broken).run(progress=False)
    assert capsys.readouterr().err.splitlines() == [
        "failed 6: out of ink",
        "6 attempts failed and left out; run again to retry",
    ]


def test_hints_are_for_python_and_on_the_command_line_for_that(folder: Path) -> None:
    mistakes = {
        "study.run()": lambda: sums().results("none.db").outcomes,
        '{…, "id": …}': lambda: sums(model="endpoint").run(),
        '"name": one of endpoint': lambda: sums(model={"budget": 3}).run(),
        "built-in studies: aime24": lambda: ponder.Study.load("none.toml"),
        '"budget": 4096': lambda: sums(model={"name": "endpoint", "id": "x"}, max_tokens=9).run(),
        "study.run() asks": lambda: sums(seed=9).run(progress=False, max_tokens=1).chart(),
    }
    for hint, mistake in mistakes.items():
        with pytest.raises(UserError) as told:
            mistake()
        assert hint in str(told.value)
        assert not {"--", "STUDY", "ponder list"} & set(str(told.value).split())
    told = CliRunner().invoke(main, ["report", "effort", "--store", "none.db"]).output
    assert "hint: `ponder run effort --store none.db` creates one" in told


def test_a_run_says_that_it_stopped_at_its_cap(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert not sums().run(progress=False, max_tokens=10).outcomes
    assert "stopped at the cap: 0 of 10 tokens" in capsys.readouterr().err


def test_an_interrupt_keeps_what_was_answered(folder: Path) -> None:
    code = """
import os, signal, time, ponder
answered = 0
@ponder.model
def slow(prompt):
    global answered
    answered += 1
    if answered == 3:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.5)
    return "1"
study = ponder.Study(task={"name": "chain_sum", "size": 2}, model=slow, problems=50)
try:
    study.run(progress=False)
except KeyboardInterrupt:
    print(answered, len(study.results().outcomes))
"""
    told = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=folder
    ).stdout
    answered, stored = map(int, told.split())
    assert 3 <= answered == stored < 50


def test_a_notebook_shows_one_line_that_is_replaced(folder: Path, monkeypatch, capsys) -> None:
    shown: list[str] = []

    class Output:
        def update(self, state: object) -> None:
            shown.append(repr(state))

    def display(state: object, *, display_id: bool) -> Output:
        shown.append(repr(state))
        return Output()

    shell = types.SimpleNamespace(kernel=None)
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.setitem(sys.modules, "IPython.display", types.SimpleNamespace(display=display))
    sums().run()
    assert shown[0].startswith("░░░░░░░░░░░░░░░░ 0/6")
    assert shown[-1].startswith("████████████████ 6/6")
    assert not capsys.readouterr().err
    assert UserError("wrong", hint="right")._render_traceback_() == [
        "UserError: wrong",
        "hint: right",
    ]


def test_an_interrupt_while_a_study_is_checked_asks_nothing(folder: Path) -> None:
    code = """
import os, signal, time, ponder
@ponder.model
def asked(prompt):
    print("asked")
    return "1"
class Slow(ponder.Study):
    def check(self):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.5)
try:
    Slow(task={"name": "chain_sum", "size": 2}, model=asked, problems=50).run(progress=False)
except KeyboardInterrupt:
    print("interrupted")
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=folder
    )
    assert done.stdout == "interrupted\n"


def test_an_error_tells_what_was_done_before_it(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answered = []

    @ponder.model(concurrency=1)
    def wrong_settings(prompt: str) -> str:
        answered.append(prompt)
        if len(answered) == 3:
            raise UserError("no such model")
        return "<answer>1</answer>"

    with pytest.raises(UserError, match="no such model"):
        sums(model=wrong_settings).run(progress=False)
    assert "2 attempts made and stored" in capsys.readouterr().err


def test_a_run_opens_its_store_once_before_the_first_request(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, before_first_request = [], []
    real = Store.__init__

    def counted(self: Store, path: Path, *, lock: bool = False) -> None:
        opened.append(lock)
        real(self, path, lock=lock)

    @ponder.model
    def counting(prompt: str) -> str:
        before_first_request.append(list(opened))
        return "1"

    monkeypatch.setattr(Store, "__init__", counted)
    sums(model=counting).run(progress=False)
    assert before_first_request[0] == [True]
    opened.clear()
    Path("s.toml").write_text(
        'problems = 2\n[[task]]\nname = "chain_sum"\nsize = 2\n[[model]]\nname = "oracle"\n'
    )
    assert CliRunner().invoke(main, ["run", "s.toml"]).exit_code == 0
    assert opened[0] is True
    assert opened.count(True) == 1


def test_a_second_interrupt_drops_the_calls_in_progress(folder: Path) -> None:
    code = """
import asyncio, os, signal, ponder
from ponder.run.interrupt import Stop
Stop.__init__.__defaults__ = (600, bool)  # the first interrupt alone would wait that long
@ponder.model
async def stuck(prompt):
    for _ in range(2):
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.sleep(0.3)
    await asyncio.sleep(600)
try:
    ponder.Study(task={"name": "chain_sum", "size": 2}, model=stuck).run()
except KeyboardInterrupt as told:
    print(told)
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=folder,
        timeout=300,
    )
    assert done.stdout == "what was answered is stored; run it again to resume\n"


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> ponder.Results:
    study = sums(model={"name": "oracle", "critical_size": 4, "steepness": 50})
    return study.run(store=tmp_path_factory.mktemp("results") / "ponder.db", progress=False)


class TestResults:
    def test_summary_and_text(self, results: ponder.Results) -> None:
        (row,) = results.summary()
        assert (row["attempts"], row["right"], row["wrong"]) == (6, 3, 3)
        head, line = repr(results).splitlines()
        assert head.split()[:3] == ["model", "attempts", "right"]
        assert line.split()[1:3] == ["6", "3"]

    def test_frame_has_a_row_per_attempt(self, results: ponder.Results) -> None:
        frame = results.frame("polars")
        assert len(frame) == 6
        assert frame["correct"].sum() == 3
        assert "task.size" not in frame.columns or frame["size"].to_list() == [
            o.size for o in results.outcomes
        ]

    def test_a_frame_without_its_library_says_what_to_install(self, results, monkeypatch) -> None:
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
        with pytest.raises(UserError, match="needs the package pandas or polars"):
            results.frame()

    def test_estimates_of_any_figure(self, results: ponder.Results) -> None:
        assert results.estimates() == results.estimates("accuracy")
        assert {"summary", "fits"} <= set(results.estimates("effort"))
        with pytest.raises(UserError, match="`acuracy` is unknown"):
            results.estimates("acuracy")

    def test_findings_and_chart_are_the_figure_s(self, results: ponder.Results) -> None:
        assert results.findings() == results.study.figures[0].findings(results.estimates())
        assert (
            results.chart().to_dict()
            == results.study.figures[0].draw(results.estimates()).to_dict()
        )

    def test_html_has_the_table_the_figure_and_the_findings(self, results: ponder.Results) -> None:
        html = results._repr_html_()
        assert html.count("<iframe") == 1
        assert "<td>6</td><td>3</td>" in html

    def test_attempts_are_found_by_problem_model_and_sample(self, results: ponder.Results) -> None:
        last = results.outcomes[-1]
        found = results.attempt(last.problem, model=last.label.model, sample=0)
        assert found.attempt.problem.id == last.problem
        assert results.attempt(found.attempt.problem).attempt == found.attempt
        assert str(found).startswith(f"{last.label.model} on chain_sum, size 8: wrong: ")
        assert found.attempt.problem.turns[0] in str(found)
        with pytest.raises(UserError, match="no model `orakel`"):
            results.attempt(model="orakel")
        with pytest.raises(UserError, match="no such attempt"):
            results.attempt(last.problem, sample=7)

    def test_a_transcript_escapes_what_a_model_wrote(self, folder: Path) -> None:
        @ponder.model
        def hostile(prompt: str) -> str:
            return "<think><script>alert(1)</script></think><b>1</b>"

        html = sums(model=hostile).run(progress=False).attempt()._repr_html_()
        assert "<script>" not in html
        assert "&lt;script&gt;" in html


def test_two_models_are_compared_on_the_same_problems(folder: Path) -> None:
    models = [
        {"name": "oracle", "label": "whole"},
        {"name": "oracle", "label": "broken", "error": 1.0},
    ]
    results = sums(model=models, problems=20).run(progress=False)
    found = ponder.compare(results, "broken", "whole")
    accuracy = next(row for row in found.rows if row["quantity"] == "accuracy")
    assert accuracy["effect"] == 1
    assert ponder.compare(results, "whole", "broken").rows[0]["effect"] == -1
    assert "whole" in repr(found)
    assert "better" in repr(found)
    assert found._repr_html_().count("<iframe") == 1
    with pytest.raises(UserError, match="this study has no model `brokn`"):
        ponder.compare(results, "brokn", "whole")


class TestFunctions:
    def test_settings_are_parameters_after_the_star(self, folder: Path) -> None:
        @ponder.task(sizes=(1, 2), unit="marks")
        def marks(size: int, seed: int, *, mark: str = "x") -> tuple[str, str]:
            return f"Repeat: {mark * size} {seed}", mark * size

        @ponder.model
        def repeat(prompt: str, *, most: int = 9) -> str:
            return prompt.split()[1][:most]

        study = ponder.Study(
            task={"name": marks, "mark": ["x", "y"]},
            model={"name": "repeat", "most": 1},
            problems=2,
        )
        outcomes = study.run(progress=False).outcomes
        assert {(o.size, o.correct, o.cell.task.unit) for o in outcomes} == {
            (1, True, "marks"),
            (2, False, "marks"),
        }
        assert {o.label.task for o in outcomes} == {"marks mark=x", "marks mark=y"}
        assert outcomes[0].counted_by == "estimate"

    def test_a_changed_function_is_asked_anew(self, folder: Path) -> None:
        def study(text: str) -> ponder.Study:
            names = {"ponder": ponder}
            exec(f"@ponder.model\ndef constant(prompt):\n    return '{text}'\n", names)
            return sums(model=names["constant"])

        assert study("1").cells[0].key != study("2").cells[0].key
        assert study("1").cells[0].key == study("1").cells[0].key

    def test_a_grader_of_its_own(self, folder: Path) -> None:
        @ponder.task(grade=lambda answer, right: right in answer.split())
        def word(size: int, seed: int) -> tuple[str, str]:
            return f"Say something with {seed}.", str(seed)

        @ponder.model
        def chatter(prompt: str) -> str:
            return f"well {prompt.rsplit(maxsplit=1)[-1][:-1]} well"

        assert all(
            o.correct
            for o in ponder.Study(task=word, model=chatter, problems=3).run(progress=False).outcomes
        )

    def test_an_async_model_sees_the_whole_conversation_and_may_bill_itself(
        self, folder: Path
    ) -> None:
        seen = []

        @ponder.model
        async def careful(messages: list[dict[str, str]]) -> Completion:
            seen.append([m["role"] for m in messages])
            return Completion("", "0", "end", Bill(7, 0, 5, 0.0, "tokenizer"))

        study = ponder.Study(
            task={"name": "execution", "size": 2, "per_turn": 1}, model=careful, problems=1
        )
        (outcome,) = study.run(progress=False).outcomes
        assert max(map(len, seen)) > 2
        assert (outcome.answer_tokens, outcome.counted_by) == (10, "tokenizer")

    def test_mistakes(self, folder: Path) -> None:
        with pytest.raises(UserError, match="built-in model `oracle`"):
            ponder.model(name="oracle")(str.upper)

        with pytest.raises(UserError, match="setting `most` of `cut` needs a default"):

            @ponder.model
            def cut(prompt: str, *, most: int) -> str:
                return prompt[:most]

        @ponder.task
        def bare(size: int, seed: int) -> str:
            return "What?"

        with pytest.raises(UserError, match="must return a prompt and the right answer"):
            ponder.Study(task=bare, model="oracle").run(progress=False)

        @ponder.model
        def silent(prompt: str) -> None:
            return None

        with pytest.raises(UserError, match="must return text, not NoneType"):
            sums(model=silent).run(progress=False)

    @pytest.mark.parametrize(
        ("decorate", "told"),
        [
            (lambda: ponder.task(lambda size: ("", "")), "takes size; it is called with 2 values"),
            (
                lambda: ponder.task(lambda size, seed, mark: ("", "")),
                "takes size, seed, mark; it is called with 2",
            ),
            (lambda: ponder.task(3), "must be a function, not 3"),  # type: ignore[call-overload]
            (lambda: ponder.task(sizes=5)(len), "takes obj; it is called with 2"),
            (
                lambda: ponder.task(sizes=5)(lambda size, seed: ("", "")),
                r"not 5\nhint: sizes=\(2, 4, 8\)",
            ),
            (
                lambda: ponder.task(grade=lambda answer: True)(lambda size, seed: ("", "")),
                "grader of .* takes answer;",
            ),
            (lambda: ponder.model(lambda: ""), "takes no parameters; it is called with 1 value"),
            (
                lambda: ponder.model(concurency=3),
                "has no option `concurency`\nhint: did you mean `concurrency`",
            ),
            (
                lambda: ponder.model(lambda prompt, *, words=[]: ""),
                "default of `words` can be changed",
            ),
        ],
    )
    def test_a_wrong_signature_is_told_with_the_right_one(self, decorate, told: str) -> None:
        with pytest.raises(UserError, match=told):
            decorate()

    def test_a_task_that_ignores_its_seed_is_told(
        self, folder: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        @ponder.task(sizes=(2,))
        def fixed(size: int, seed: int) -> tuple[str, str]:
            return "What?", "that"

        study = ponder.Study(task=fixed, model="oracle", problems=5, samples=2)
        for _ in range(2):  # the second run asks nothing, and says it again
            assert len(study.run().outcomes) == 2
            told = capsys.readouterr().err
            assert (
                "task `fixed` has only 1 different problem of size 2, where the study asks for 5: does"
                in told
            )
            assert "/10" not in told  # the line of progress ends full

    def test_a_task_that_makes_other_problems_of_the_same_seed_is_refused(
        self, folder: Path
    ) -> None:
        @ponder.task(sizes=(2,))
        def restless(size: int, seed: int) -> tuple[str, str]:
            return str(random.random()), ""

        with pytest.raises(UserError, match="different problems of the same size and seed"):
            ponder.Study(task=restless, model="oracle").run(progress=False)


def test_a_puzzle_prints_as_a_grid() -> None:
    puzzle = ponder.tasks.tents.Puzzle.from_id("4x4:_cia,1,1,0,1,1,0,1,1")
    assert str(puzzle).splitlines() == [
        "T . . .  1",
        "T . . .  0",
        ". . . .  1",
        ". . T .  1",
        "",
        "1 1 0 1",
    ]
    assert puzzle.text(puzzle.solve()).count("A") == 3
