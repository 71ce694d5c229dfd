"""What a study needs is made once, reports its progress, resumes, and is billed to every variant
made from it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ponder import Study
from ponder.core import UserError
from ponder.run.interrupt import Stop
from ponder.run.prepare import Preparations, make_model, prepare
from ponder.run.processes import Processes
from ponder.run.progress import Tally
from ponder.run.run import run
from ponder.store.store import Store

SHARED = str(Path(__file__).parent / "data/shared_training.py")
METHOD = str(Path(__file__).parent / "data/slow_training.py")
FAILING = """from dataclasses import dataclass
from ponder.core import Method, Prepared, UserError
@dataclass(frozen=True)
class Failing(Method, Prepared):
    def make(self, model):
        raise UserError("can't train")
    def apply(self, model):
        return model
"""


def study_with(tmp_path: Path, *chains: list[dict[str, Any]], size: Any = (2, 4)) -> Study:
    model = {"name": "oracle", "tokens_at_zero": 500, "method": [[], *chains]}
    return Study(task=[{"name": "chain_sum", "size": list(size)}], model=[model], problems=2)


def training(tmp_path: Path, **settings: Any) -> dict[str, Any]:
    return {"name": METHOD, "folder": str(tmp_path), **settings}


def test_prepare_makes_everything_once(tmp_path) -> None:
    study = study_with(tmp_path, [training(tmp_path, seed=[1, 2])])
    first = "oracle + slow_training seed=1"
    assert list(prepare(study)) == [
        *({"model": first, "step": n, "of": 3} for n in (1, 2, 3)),
        {"ready": first},
        *({"model": "oracle + slow_training seed=2", "step": n, "of": 3} for n in (1, 2, 3)),
        {"ready": "oracle + slow_training seed=2"},
    ]
    assert list(prepare(study)) == [{"ready": first}, {"ready": "oracle + slow_training seed=2"}]
    for seed in (1, 2):
        assert (tmp_path / f"made-{seed}/steps.txt").read_text().split() == ["1", "2", "3"]


def test_an_error_says_which_model_of_which_study(tmp_path) -> None:
    (tmp_path / "failing.py").write_text(FAILING)

    def where(work: Callable[[Study], Any]) -> str:
        with pytest.raises(UserError, match="can't train") as error:
            work(
                replace(
                    study_with(tmp_path, [{"name": str(tmp_path / "failing.py")}]), where="s.toml"
                )
            )
        return error.value.where

    def ran(study: Study) -> None:
        with Store(tmp_path / "s.db", lock=True) as store:
            asyncio.run(run(study, store, Tally()))

    label = "s.toml: model `oracle + failing`"
    assert where(lambda study: list(prepare(study))) == label
    assert where(lambda study: list(prepare(study, Processes(2)))) == label
    assert where(ran) == label


def test_prepare_resumes(tmp_path) -> None:
    study = study_with(tmp_path, [{"name": SHARED, "path": str(tmp_path), "fault": "refused"}])
    with pytest.raises(UserError, match="nothing to train on"):  # after the second step
        list(prepare(study))
    assert [p["step"] for p in prepare(study) if "step" in p] == [3]


def test_a_preparation_that_nobody_waits_for_ends(tmp_path) -> None:
    study = study_with(tmp_path, [training(tmp_path, seed=1, steps=10_000_000)])
    threads = threading.active_count()
    preparing = prepare(study)
    assert next(preparing)["step"] == 1
    preparing.close()
    steps = len((tmp_path / "made-1/steps.txt").read_text().split())
    assert steps < 10_000_000
    assert threading.active_count() == threads


def test_a_run_makes_what_was_not_prepared(tmp_path) -> None:
    study = study_with(tmp_path, [training(tmp_path, seed=1)])
    tally = Tally()
    with Store(tmp_path / "s.db", lock=True) as store:
        asyncio.run(run(study, store, tally))
    assert (tally.right, tally.making) == (8, {})
    assert [p for p in prepare(study) if "step" in p] == []


def test_a_run_that_has_all_answers_makes_nothing(tmp_path) -> None:
    study = study_with(tmp_path, [training(tmp_path, seed=1)])
    for _ in range(2):
        with Store(tmp_path / "s.db", lock=True) as store:
            asyncio.run(run(study, store, Tally()))
        for file in tmp_path.glob("made-1/*"):
            file.unlink()
    assert not (tmp_path / "made-1/steps.txt").exists()


def test_interrupting_a_run_stops_the_training_at_its_next_report(tmp_path) -> None:
    study = study_with(tmp_path, [training(tmp_path, seed=1, steps=100_000)])
    reported, go_on = threading.Event(), threading.Event()

    class Watched(Tally):
        def report(self, label: str, progress: Any) -> None:
            super().report(label, progress)
            if progress:
                reported.set()
                go_on.wait()

    async def interrupted(store: Store) -> None:
        running = asyncio.create_task(run(study, store, Watched()))
        await asyncio.to_thread(reported.wait)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        go_on.set()

    with Store(tmp_path / "s.db", lock=True) as store:
        asyncio.run(interrupted(store))
    assert (tmp_path / "made-1/steps.txt").read_text().split() == ["1"]


def test_what_making_cost_reaches_every_variant_made_from_it(tmp_path) -> None:
    chain = [training(tmp_path, seed=1), {"name": "budget_force", "think": 50}]
    study = study_with(tmp_path, chain[:1], chain)
    with Store(tmp_path / "s.db", lock=True) as store:
        asyncio.run(run(study, store, Tally()))
        outcomes = list(store.outcomes(study.cells))
    cost = {"training_tokens": 300.0, "seconds": 1.5}
    made = {
        (tuple(m.plugin_name() for m in o.cell.methods), o.size): dict(o.made) for o in outcomes
    }
    assert made == {
        **{((), size): {} for size in (2, 4)},
        **{(("slow_training",), size): cost for size in (2, 4)},
        **{(("slow_training", "budget_force"), size): cost for size in (2, 4)},
    }
    forced = next(o.cell for o in outcomes if len(o.cell.methods) == 2)
    trained, cut = forced.chain
    assert (trained.name, cut.name) == ("slow_training", "budget_force")
    assert cut.settings == {"think": 50, "answer": 2048}
    assert set(trained.settings) == {"folder", "seed", "steps"}  # not what is not in the key
    assert forced.training_seeds == (1,)
    assert not any("training_tokens" in o.details for o in outcomes)


def test_methods_are_applied_in_the_order_of_the_study(tmp_path) -> None:
    study = study_with(tmp_path, [training(tmp_path, seed=1), training(tmp_path, seed=2)])
    list(prepare(study))

    async def chain() -> list:
        return await Preparations(None, Stop(), lambda *_: None).chain(study.cells[-1])

    outer = asyncio.run(chain())[-1]
    assert (outer.method.seed, outer.inner.method.seed, outer.inner.inner.plugin_name()) == (
        2,
        1,
        "oracle",
    )


def test_make_model_copies_the_weights(tmp_path) -> None:
    study = study_with(tmp_path, [training(tmp_path, seed=1)])
    out = tmp_path / "out"
    assert [*make_model(study, "", out)][-1] == {"made": str(out)}
    assert (out / "steps.txt").read_text().split() == ["1", "2", "3"]
    with pytest.raises(UserError, match="is not empty"):
        list(make_model(study, "", out))


def test_make_model_needs_to_know_which(tmp_path) -> None:
    study = study_with(
        tmp_path, [training(tmp_path, seed=[1, 2])], [{"name": "budget_force", "think": 50}]
    )
    out = tmp_path / "out"
    with pytest.raises(UserError, match="several models") as error:
        list(make_model(study, "", out))
    assert (
        error.value.hint
        == "--model 'oracle + slow_training seed=1', --model 'oracle + slow_training seed=2'"
    )
    with pytest.raises(UserError, match="no model `oracle` with new weights"):
        list(make_model(study, "oracle", out))
    with pytest.raises(UserError, match="no model with new weights"):
        list(make_model(study_with(tmp_path), "", out))
    list(make_model(study, "oracle + slow_training seed=2", out))
    assert not (tmp_path / "made-1").exists()
