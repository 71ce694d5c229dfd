"""Reasoning-gym's scorers get any answer of a model, but can't run it, hang the run or end it."""

from __future__ import annotations

import os
import re
import signal
import threading
from importlib import import_module
from pathlib import Path

import pytest
import reasoning_gym

from ponder.core import UserError
from ponder.tasks import gym
from ponder.tasks.gym import EVALUATE, PARSE, Gym
from ponder.tasks.subprocess_call import SubprocessFunction

EVALUATORS = [
    "string_insertion", "spiral_matrix", "binary_matrix", "n_queens",
    "countdown", "puzzle24", "simple_integration", "intermediate_integration", "polynomial_multiplication",
]  # fmt: skip


@pytest.mark.parametrize("dataset", EVALUATORS)
def test_code_in_an_answer_does_not_run(tmp_path: Path, dataset: str) -> None:
    task, ran = Gym(dataset), tmp_path / "ran"
    problem = task.problem(0, seed=3)
    code = f"__import__('pathlib').Path({str(ran)!r}).touch()"
    for answer in (
        code,
        f"[{code}]",
        f"exec({'+'.join(f'chr({ord(c)})' for c in code)})",
        f"x.subs(x, {code!r})",
    ):
        grade = task.grade(problem, f"<answer>{answer}</answer>")
        assert not grade.correct
        assert not ran.exists(), answer
    assert task.grade(problem, task.solve(problem)).correct


def test_every_scorer_that_evaluates_is_known() -> None:
    """A new version may have more of them: then `EVALUATE` or `PARSE` needs their module."""
    folder = Path(reasoning_gym.__file__).parent
    modules = {path: path.read_text("utf-8") for path in folder.rglob("*.py")}
    evaluate = {
        p for p, text in modules.items() if re.search(r"\b(?:eval|exec)\([^)]*answer(?!\"\])", text)
    }
    parse = {
        p for p, text in modules.items() if re.search(r"import.*\b(?:parse_expr|sympify)\b", text)
    }
    for found, known in (evaluate, EVALUATE), (parse, PARSE):
        assert found == {
            Path(import_module(f"reasoning_gym.{name}").__file__ or "") for name in known
        }


def test_a_scorer_that_raises_or_runs_away_gives_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        gym, "_scorer", scorer := SubprocessFunction("ponder.tasks.gym", cpu_seconds=2)
    )
    for dataset, answer, why in (
        ("prime_factorization", "two times three", "raised ValueError: invalid literal for int"),
        ("countdown", "9**9**9**9", "took too long"),
    ):
        task = Gym(dataset)
        grade = task.grade(task.problem(0, seed=3), f"<answer>{answer}</answer>")
        assert (grade.correct, grade.parsed) == (False, None)
        assert grade.why.startswith(f"the scorer of reasoning-gym {why}")
    scorer.close()


def test_settings_that_reasoning_gym_refuses() -> None:
    with pytest.raises(UserError, match="refuses the settings of knight_swap: min_nodes"):
        Gym("knight_swap").problem(0, seed=1)


def test_an_interrupted_call_does_not_answer_the_next() -> None:
    scorer = SubprocessFunction("ponder.tasks.gym", cpu_seconds=600)
    sums, countdown = (
        (name, "", {}, 0, Gym(name).problem(0, seed=3).gold) for name in ("chain_sum", "countdown")
    )
    assert scorer.call(*sums, sums[-1]["answer"]) == 1.0
    assert scorer._process is not None
    stat = Path(f"/proc/{scorer._process.pid}/stat")

    def busy() -> int:
        return int(stat.read_text().rsplit(")", 1)[1].split()[11])  # ticks of CPU time

    def interrupt(before: int) -> None:
        while busy() < before + 20:
            pass
        os.kill(os.getpid(), signal.SIGINT)

    waiting = threading.Thread(target=interrupt, args=(busy(),))
    waiting.start()
    with pytest.raises(KeyboardInterrupt):
        scorer.call(*countdown, "9**9**9**9")
    waiting.join()
    assert scorer.call(*sums, sums[-1]["answer"]) == 1.0
    assert scorer.close() == 0


def test_a_misspelt_dataset_is_refused_with_the_nearest() -> None:
    with pytest.raises(UserError, match="no dataset `chain_sun`") as error:
        Gym("chain_sun")
    assert error.value.hint == "did you mean `chain_sum`?"
