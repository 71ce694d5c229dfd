"""Models that methods make: made once, with their cost, and the same after a kill."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from safetensors.torch import load_file

from ponder.core import TrainingProblems, UserError
from ponder.methods.dpo import Dpo
from ponder.methods.length_rl import LengthRl
from ponder.methods.merge import Merge
from ponder.methods.shortest import Shortest
from ponder.models._torch_engine import load
from ponder.models.oracle import Oracle
from ponder.models.pocket import WEIGHTS, Pocket
from ponder.models.transformers import Transformers
from ponder.tasks.execution import Execution
from ponder.tasks.tents import Tents
from ponder.training import fit, made_models
from ponder.training.loop import Loop
from ponder.training.made_models import MakingRecord, samples_file
from ponder.training.rollouts import Rollouts, TrainingProblem, draw_problems

TASK = Execution(dictionary=6, per_turn=0)
ON = tuple(TrainingProblems(TASK, size, 0, 4) for size in (2, 5))
BASE = WEIGHTS / "execution"
SMALL = Shortest(train_on=ON, problems=6, n=3, temperature=2.0, batch=3, rate=1e-4)


def made(folder: Path) -> dict:
    return json.loads((folder / "made.json").read_text("utf-8"))


def answered(model, problems) -> list:
    async def all_at_once():
        async with model:
            return await asyncio.gather(
                *(model.complete(TrainingProblem(TASK, p).request()) for p in problems)
            )

    return asyncio.run(all_at_once())


def problems(number: int, size: int = 5) -> list:
    return list(itertools.islice(TASK.problems(size, seed=0), number))


# What is made.


@pytest.mark.parametrize("lora", [0, 4])
def test_a_made_model_reads_alike_in_numpy_and_in_transformers(models, lora) -> None:
    before = (BASE / "model.safetensors").read_bytes()
    base, method = Pocket(budget=80), replace(SMALL, lora=lora, rate=0.2 if lora else 3e-3)
    model = method.apply(base)
    assert isinstance(model, Pocket)
    assert model.weights == method.folder(base)
    assert model.identity() != base.identity()
    some = problems(8)
    ours, theirs = (
        answered(m, some) for m in (model, Transformers(id=str(model.weights), budget=80))
    )
    assert [(c.thinking, c.answer, c.stop) for c in ours] == [
        (c.thinking, c.answer, c.stop) for c in theirs
    ]
    assert [c.tokens for c in ours] == [c.tokens for c in theirs]
    # it has learnt something
    assert [c.thinking for c in ours] != [c.thinking for c in answered(base, some)]
    assert (BASE / "model.safetensors").read_bytes() == before
    cost = made(model.weights)["cost"]
    assert cost["rollout_tokens"] > cost["training_tokens"] > 0
    assert model.made(TASK) == Transformers(id=str(model.weights)).made(TASK) == cost
    assert not any("made" in measure for c in [*ours, *theirs] for measure in c.measures)


@pytest.mark.parametrize("lora", [0, 4])
def test_weights_are_trained_in_float32_and_kept_in_the_dtype_of_the_model(
    models, monkeypatch, lora
) -> None:
    """In bfloat16 most updates would be smaller than the distance to the next number."""
    settings = {"problems": 4, "n": 2, "temperature": 2.0, "batch": 2, "rate": 1e-5, "train_on": ON}
    method, model = (
        Shortest(**settings, lora=lora),
        Transformers(id="pocket", budget=80, dtype="bfloat16"),
    )
    observed = []

    class Observed(Loop):
        def __init__(self, network, settings, folder):
            super().__init__(network, settings, folder)
            drawn = bool(list(folder.parent.glob("samples-*.json")))
            observed.append(
                (drawn, network.loaded.model.dtype, {p.dtype for p in self.trainable().values()})
            )

    monkeypatch.setattr(fit, "Loop", Observed)
    folder = method.apply(model).source(TASK).folder
    base = torch.bfloat16 if lora else torch.float32
    # and samples are drawn before there are weights in memory
    assert observed == [(True, base, {torch.float32})]
    assert {weight.dtype for weight in load_file(folder / "model.safetensors").values()} == {
        torch.bfloat16
    }
    assert json.loads((folder / "config.json").read_text())["dtype"] == "bfloat16"


def test_a_model_is_made_once(models) -> None:
    reports = list(SMALL.make(Pocket()))
    assert {"method", "step", "of", "loss", "seconds_left"} <= reports[-1].keys()
    assert reports[-1]["step"] == reports[-1]["of"] == 4
    assert list(SMALL.make(Pocket())) == []
    folders = {SMALL.folder(Pocket())}
    for other in (
        replace(SMALL, seed=2),
        replace(SMALL, rate=2e-4),
        replace(SMALL, train_on=ON[:1]),
        replace(SMALL, train_on=(replace(ON[0], seed=5), ON[1])),
        Dpo(train_on=ON, problems=6, n=3, batch=3, rate=1e-4),
    ):
        folders.add(other.folder(Pocket()))
    folders |= {SMALL.folder(Pocket(budget=99)), SMALL.folder(SMALL.apply(Pocket()))}
    assert len(folders) == 8
    assert (
        SMALL.folder(Pocket(label="x", concurrency=3))
        == replace(SMALL, micro_tokens=99).folder(Pocket())
        in folders
    )
    wider = tuple(replace(practice, asked=9) for practice in ON)  # of which there are always others
    assert replace(SMALL, train_on=wider).folder(Pocket()) in folders
    assert [p for p in models.iterdir() if p.is_dir()] == [SMALL.folder(Pocket())]
    sampled_alike = Dpo(train_on=ON, problems=6, n=3, temperature=2.0, longer=1.0)
    assert not any("sampled" in report for report in sampled_alike.make(Pocket()))
    first, *_ = replace(sampled_alike, temperature=1.9).make(Pocket())
    assert "sampled" in first
    assert not list(models.glob("*.part")) + list(models.glob("*.lock*"))
    left = {p.name for p in SMALL.folder(Pocket()).iterdir()}
    weights = {
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    assert left == {*weights, "card.json", "made.json"}


def test_a_made_model_says_how_it_was_made_and_what_it_cost_with_its_ancestors(
    models, tmp_path
) -> None:
    first = SMALL.apply(Pocket())
    merge = Merge(train_on=ON, other=Pocket(weights=BASE), weight=0.5)
    merged = merge.apply(first)
    last = replace(SMALL, seed=5).apply(merged)
    one, two, three = (made(model.weights) for model in (first, merged, last))
    assert one["recipe"] == SMALL.identity() | {
        "on": [json.loads(json.dumps(p.identity())) for p in ON]
    }
    assert one["from"] == Pocket().identity()
    assert one["notes"]["problems without a right sample"] + one["notes"]["units"] == 6
    assert two["from"] == first.identity()
    own = {name: value for name, value in one["cost"].items() if name != "seconds"}
    assert {name: two["cost"][name] for name in own} == own  # an average costs no tokens
    assert all(three["cost"][name] > 1.5 * one["cost"][name] for name in own)
    assert 0 < one["cost"]["seconds"] < two["cost"]["seconds"] < three["cost"]["seconds"]
    rollouts = tmp_path / "again"
    again = Rollouts(
        Pocket(temperature=2.0),
        load(Pocket().source(TASK)),
        draw_problems(ON, 6, 1),
        3,
        1,
        rollouts,
    )
    list(again)
    assert one["cost"]["rollout_tokens"] == again.tokens
    right = [[len(s.text) for s in some if s.right] for some in again.samples]
    # two epochs
    assert one["cost"]["training_tokens"] == 2 * sum(min(lengths) for lengths in right if lengths)


def test_a_merge_costs_what_both_models_cost(models) -> None:
    one, two = (replace(SMALL, seed=seed).apply(Pocket()) for seed in (1, 2))
    merged = Merge(train_on=ON, other=two).apply(one)
    costs = [model.made(TASK) for model in (one, two, merged)]
    for name in ("rollout_tokens", "training_tokens"):
        assert costs[2][name] == costs[0][name] + costs[1][name]
    assert costs[2]["seconds"] > costs[0]["seconds"] + costs[1]["seconds"]


def test_another_way_of_merging_is_never_an_average(
    models, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "mergekit", None)
    merge = Merge(train_on=ON, other=Pocket(weights=BASE), how="slerp")
    with pytest.raises(UserError, match="slerp needs mergekit"):
        list(merge.make(Pocket()))


def test_dpo_is_billed_for_its_reference(models) -> None:
    """Once to score each pair before training, and once per epoch."""
    method = Dpo(train_on=ON, problems=6, n=3, temperature=2.0, longer=1.0, rate=1e-4)
    cost = method.apply(Pocket()).made(TASK)
    rollouts = Rollouts(
        Pocket(temperature=2.0),
        load(Pocket().source(TASK)),
        draw_problems(ON, 6, 1),
        3,
        1,
        samples_file(Pocket(temperature=2.0), ON, 6, 3, 1),
    )
    assert list(rollouts) == []
    pairs = method.units(rollouts.samples, MakingRecord())
    assert cost["training_tokens"] == 2 * sum(len(text) for pair in pairs for text in pair.texts)


def test_the_time_of_interrupted_builds_counts(models) -> None:
    work = SMALL.folder(Pocket()).with_suffix(".part")
    work.mkdir(parents=True)
    (work / "spent.json").write_text("5000.0")
    assert 5000 < SMALL.apply(Pocket()).made(TASK)["seconds"] < 9000


def test_another_version_of_a_method_makes_another_model(models) -> None:
    class Later(Shortest):
        version = 2

        @classmethod
        def plugin_name(cls) -> str:
            return "shortest"

    assert Later(train_on=ON).folder(Pocket()) != Shortest(train_on=ON).folder(Pocket())


def test_a_second_process_is_refused(models) -> None:
    making = SMALL.make(Pocket())
    next(making)
    with pytest.raises(UserError, match="another process is making shortest-") as error:
        next(SMALL.make(Pocket()))
    assert "wait" in error.value.hint
    assert len(list(making)) >= 4
    assert list(SMALL.make(Pocket())) == []


def test_who_waited_for_the_lock_does_not_make_it_again(models, monkeypatch) -> None:
    late, acquire = SMALL.make(Pocket()), made_models.acquire

    def meanwhile(path: Path) -> object:
        monkeypatch.setattr(made_models, "acquire", acquire)
        SMALL.apply(Pocket())
        return acquire(path)

    monkeypatch.setattr(made_models, "acquire", meanwhile)
    assert list(late) == []


@pytest.mark.parametrize("second", [{}, {"id": "pocket"}])
def test_weights_of_two_tasks_are_not_trained_as_one(models, second) -> None:
    both = (*ON, TrainingProblems(Tents(), 16, 0, 1))
    model = Transformers(**second) if second else Pocket()
    with pytest.raises(UserError, match="has different weights for execution and tents"):
        replace(SMALL, train_on=both).apply(model)


def test_what_has_no_weights_here_can_not_be_trained(models) -> None:
    with pytest.raises(UserError, match="has no local weights") as error:
        SMALL.apply(Oracle())
    assert "transformers" in error.value.hint


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        (Shortest, {"rate": 0.0}),
        (Shortest, {"warm_up": 2.0}),
        (Shortest, {"n": 0}),
        (Shortest, {"temperature": 0.0}),
        (Dpo, {"beta": 0.0}),
        (Dpo, {"longer": 0.9}),
        (Dpo, {"clip": -1.0}),
        (LengthRl, {"n": 1}),
        (LengthRl, {"limit": 0}),
        (LengthRl, {"lora": -1}),
        (LengthRl, {"tau": -0.1}),
    ],
)
def test_settings_that_make_no_sense_are_refused(method, settings) -> None:
    with pytest.raises(UserError):
        method(**settings)


# Killed, and run again.

KILLED = """
import os, signal
from test_making import *
from ponder.training import loop
loop.SAVE_SECONDS = -1.0
method, when = {method}, {when}
for report in method.make(Pocket()):
    if report.items() >= when.items():
        os.kill(os.getpid(), signal.SIGKILL)
"""
RL = "LengthRl(train_on=ON, iterations=3, problems=3, n=3, pool=8, temperature=2.0, rate=1e-4, lora=2)"


@pytest.mark.parametrize(
    ("method", "when", "goes_on"),
    [
        ("replace(SMALL, lora=2)", {"step": 3}, {"step": 3}),
        (RL, {"iteration": 2, "sampled": 9}, {"iteration": 2}),
    ],
)
def test_a_killed_training_ends_with_the_same_weights(
    models, tmp_path, monkeypatch, method, when, goes_on
) -> None:
    script = KILLED.format(method=method, when=when)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path]),
        "OMP_NUM_THREADS": "1",
    }
    ended = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False
    )
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    training = eval(method)
    folder = training.folder(Pocket())
    assert not folder.exists()
    reports = [r for r in training.make(Pocket()) if r.keys() & goes_on.keys()]
    assert reports[0].items() >= goes_on.items()
    again, base = made(folder), load_file(BASE / "model.safetensors")
    learnt = load_file(folder / "model.safetensors")
    assert not torch.equal(
        learnt["model.layers.3.mlp.up_proj.weight"],
        base["model.layers.3.mlp.up_proj.weight"].float(),
    )
    monkeypatch.setenv("PONDER_MODELS", str(tmp_path / "others"))
    list(training.make(Pocket()))
    whole = training.folder(Pocket())
    assert whole != folder
    for name in ("model.safetensors", "config.json", "card.json"):
        assert (folder / name).read_bytes() == (whole / name).read_bytes(), name
    for part in ("recipe", "from", "notes"):
        assert again[part] == made(whole)[part]
    assert {**again["cost"], "seconds": 0} == {**made(whole)["cost"], "seconds": 0}
