"""Methods that train in a study: on other problems of its tasks, once, and with their cost in every
outcome.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

pytest.importorskip("torch")

from test_making import TASK, made

from ponder import Study
from ponder.core import TrainingProblems, UserError
from ponder.run.progress import Tally
from ponder.run.run import run
from ponder.store.store import Store
from ponder.training.rollouts import draw_problems


def table(**more) -> dict:
    task = {"name": "execution", "dictionary": 6, "per_turn": 0, "size": [2, 4]}
    method = {"name": "shortest", "problems": 4, "n": 2, "batch": 4}
    return {
        "task": [task],
        "model": [{"name": "pocket", "method": method}],
        "problems": 3,
        "seed": 9,
        **more,
    }


def practice(content: dict, folder: Path | None = None) -> tuple[TrainingProblems, ...]:
    study = Study.from_table(content, folder=folder)
    (method,) = study.cells[0].methods
    return method.train_on


def test_methods_train_on_other_problems_of_the_same_tasks() -> None:
    found = practice(table())
    assert [(p.task, p.size, p.seed, p.asked) for p in found] == [
        (TASK, size, 9, 3) for size in (2, 4)
    ]
    asked = {p.id for cell in Study.from_table(table()).cells for p in cell.asked()}
    assert len(asked) == 6
    assert not asked & {a.problem.id for a in draw_problems(found, 200, seed=1)}


def test_a_study_may_say_what_to_train_on() -> None:
    train = [{"name": "execution", "dictionary": 6, "per_turn": 0, "size": [1, 4]}]
    assert [(p.size, p.asked) for p in practice(table(train=train))] == [(1, 0), (4, 3)]
    with pytest.raises(UserError) as error:
        practice(table(train=[{"name": "execution", "sise": 3}]))
    assert "train[0].sise" in error.value.where


def test_a_fixed_set_is_only_trained_on_if_the_study_says_so(models, tmp_path) -> None:
    lines = [json.dumps({"prompt": f"{n} + 1?", "answer": n + 1, "id": f"p{n}"}) for n in range(6)]
    (tmp_path / "sums.jsonl").write_text("\n".join(lines))
    fixed = [{"name": "jsonl", "file": "sums.jsonl"}]
    plain = {
        "task": fixed,
        "model": [{"name": "oracle", "method": {"name": "shortest"}}],
        "problems": 4,
    }

    def trained(**more) -> set[str]:
        return {
            a.problem.id for a in draw_problems(practice({**plain, **more}, tmp_path), 99, seed=1)
        }

    with pytest.raises(UserError, match="no problem to train on") as error:
        trained()
    assert "[[train]]" in error.value.hint
    assert trained(train=fixed) == {"p4", "p5"}  # the first four are asked
    other = [{"name": "execution", "dictionary": 6, "per_turn": 0, "size": 2}]
    assert len(trained(task=other, train=fixed)) == 6
    with pytest.raises(UserError, match="no problem to train on"):
        trained(train=fixed, problems=6)
    # Who asks more of a fixed set than before asks what a model was trained on: it must be another
    # model.
    names = {
        str(practice({**plain, "train": fixed, "problems": n}, tmp_path)[0].identity())
        for n in (3, 4)
    }
    assert len(names) == 2


def test_an_interrupted_run_does_not_wait_for_its_training(models, tmp_path) -> None:
    method = {"name": "shortest", "problems": 4, "n": 1, "batch": 1, "epochs": 5000}
    study, tally = Study.from_table(table(model=[{"name": "pocket", "method": method}])), Tally()

    async def interrupted() -> None:
        with Store(tmp_path / "ponder.db", lock=True) as store:
            running = asyncio.create_task(run(study, store, tally))
            while not any("step" in report for report in list(tally.making.values())):  # noqa: ASYNC110 a thread tells the tally, and no event
                await asyncio.sleep(0.01)
            running.cancel()
            await asyncio.wait({running})

    asyncio.run(interrupted())  # to whose end belong those of its threads
    assert [p.suffix for p in models.iterdir() if p.is_dir()] == [".part"]
    assert tally.making == {}


def test_a_trained_and_then_forced_model_still_says_what_it_cost(models, tmp_path) -> None:
    chain = [
        {"name": "shortest", "problems": 4, "n": 2, "batch": 4},
        {"name": "budget_force", "think": 5, "answer": 40},
    ]
    study = Study.from_table(table(model=[{"name": "pocket", "method": chain}]))
    with Store(tmp_path / "ponder.db", lock=True) as store:
        asyncio.run(run(study, store, Tally()))
        outcomes = list(store.outcomes(study.cells))
    (folder,) = models.glob("shortest-*/")
    assert len(outcomes) == 6
    for outcome in outcomes:
        assert dict(outcome.made) == made(folder)["cost"]
        assert not any("made" in name for name in outcome.details)


STUDY = """
problems = 3
seed = 4
[[task]]
name = "execution"
dictionary = 6
per_turn = 0
size = [2, 4]
[[model]]
name = "pocket"
[[model]]
name = "pocket"
method = { name = "shortest", seed = [1, 2], problems = 4, n = 2, batch = 4, epochs = 1, rate = 1e-4 }
[[model]]
name = "pocket"
method = { name = "dpo", problems = 4, n = 4, longer = 1.0, batch = 4, rate = 1e-4 }
[[model]]
name = "pocket"
method = { name = "length_rl", iterations = 2, problems = 2, n = 3, pool = 4, reward = { name = "truncate", limits = [40, 20] } }
"""


def test_a_whole_study(models, ponder, write) -> None:
    study = write("short.toml", STUDY)
    ended = ponder("run", study, "--json")
    assert ended.exit_code == 0, ended.output
    found = sorted(p for p in models.iterdir() if p.is_dir())
    assert [p.name.rpartition("-")[0] for p in found] == [
        "dpo",
        "length_rl",
        "shortest",
        "shortest",
    ]
    written = {p: p.stat().st_mtime_ns for p in models.rglob("*")}

    def outcomes() -> list:
        with Store(Path("ponder.db")) as store:
            return list(store.outcomes(Study.load(study).cells))

    by_model = {o.label.model: o for o in outcomes()}
    assert list(by_model) == [
        "pocket",
        "pocket + shortest seed=1",
        "pocket + shortest seed=2",
        "pocket + dpo",
        "pocket + length_rl",
    ]
    for name, outcome in by_model.items():
        assert set(outcome.made) == (
            {"rollout_tokens", "training_tokens", "seconds"} if "+" in name else set()
        )
        assert all(value > 0 for value in outcome.made.values())
        assert outcome.cell.training_seeds == (
            (int(name[-1]) if "=" in name else 1,) if "+" in name else ()
        )
    again = json.loads(ponder("run", study, "--json").stdout)
    assert again["planned"] == 0
    wider = json.loads(ponder("run", study, "--json", "--set", "samples=2").stdout)
    assert wider["planned"] == 30  # each problem once more, of the models that are there
    assert {p: p.stat().st_mtime_ns for p in models.rglob("*")} == written
    assert ponder("export", study, "-o", "attempts.csv").exit_code == 0
