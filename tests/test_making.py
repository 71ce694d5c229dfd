"""Models that methods make: trained on the right samples, made once, with their cost, and the same after a kill."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from safetensors.torch import load_file

from ponder.core import Bill, Completion, Model, Request, TrainingProblems, UserError
from ponder.methods.dpo import Dpo
from ponder.methods.length_rl import LengthRl
from ponder.methods.merge import Merge
from ponder.methods.shortest import Shortest
from ponder.models._torch_engine import load
from ponder.models.oracle import Oracle
from ponder.models.pocket import WEIGHTS, Pocket
from ponder.models.transformers import Transformers
from ponder.runner.run import Tally, run
from ponder.runner.store import Store
from ponder.runner.study import Study
from ponder.tasks.execution import Execution
from ponder.tasks.tents import Tents
from ponder.training import weight_methods
from ponder.training.loop import TokenExample, epoch_batch
from ponder.training.made_models import MakingRecord, models_folder, samples_file
from ponder.training.rollouts import Rollouts, Sample, TrainingProblem, draw_problems

TASK = Execution(dictionary=6, per_turn=0)
ON = tuple(TrainingProblems(TASK, size, 0, 4) for size in (2, 5))
BASE = WEIGHTS / "execution"
SMALL = Shortest(train_on=ON, problems=6, n=3, temperature=2.0, batch=3, rate=1e-4)


@pytest.fixture
def models(tmp_path, monkeypatch) -> Path:
    """Where nothing has been made yet."""
    monkeypatch.setenv("PONDER_MODELS", str(tmp_path / "models"))
    return models_folder()


def sample(tokens: int, right: bool, word: int = 7) -> Sample:
    return Sample(TokenExample([3, 4], [word] * tokens), right)


def made(folder: Path) -> dict:
    return json.loads((folder / "made.json").read_text("utf-8"))


def answered(model, problems) -> list:
    async def all_at_once():
        async with model:
            return await asyncio.gather(*(model.complete(TrainingProblem(TASK, p).request()) for p in problems))

    return asyncio.run(all_at_once())


def problems(number: int, size: int = 5) -> list:
    return list(itertools.islice(TASK.problems(size, seed=0), number))


# What is learnt from.


def test_shortest_learns_the_shortest_right_sample_of_each_problem() -> None:
    record, best = MakingRecord(), sample(4, True)
    right = [sample(9, True), best, sample(2, False), sample(4, False)]
    wrong = [sample(1, False), sample(5, False)]
    units = SMALL.units([right, wrong, [sample(6, True)], wrong], record)
    assert [unit.texts for unit in units] == [(best.text,), (sample(6, True).text,)]
    assert record.notes == {"problems without a right sample": 2}
    assert SMALL.over(units) == 10  # a step's loss is the mean over tokens


def test_dpo_prefers_the_shortest_right_sample_to_what_the_paper_rejects() -> None:
    best, other = sample(10, True), sample(10, True, word=8)
    rejected = [sample(15, True), sample(40, True), sample(11, False), sample(30, False)]
    kept = [sample(14, True), other, sample(9, False), sample(10, False), sample(1, False)]
    record, method = MakingRecord(), Dpo(train_on=ON, pairs=9)
    groups = [[*kept, *rejected], [sample(3, False)], [sample(8, True), sample(8, True), sample(8, False)]]
    groups[0].insert(3, best)
    found = method.units(groups, record)
    chosen_text = min((s for s in groups[0] if s.right), key=lambda s: s.tokens).text
    assert all(unit.texts[0] == chosen_text for unit in found)
    assert [len(unit.texts[1].said) for unit in found] == [40, 30, 15, 11]  # the longest first
    assert record.notes == {"problems without a right sample": 1}
    assert [len(u.texts[1].said) for u in replace(method, pairs=2).units(groups, MakingRecord())] == [40, 30]
    assert [len(u.texts[1].said) for u in replace(method, longer=4.0).units(groups, MakingRecord())] == [40, 30, 11]


def test_every_unit_is_learnt_once_an_epoch() -> None:
    units = SMALL.units([[sample(n, True)] for n in range(1, 11)], MakingRecord())
    epochs = [[u for step in steps for u in epoch_batch(units, 4, 1, step)] for steps in (range(3), range(3, 6))]
    assert all(sorted(map(len, epoch)) == sorted(map(len, units)) for epoch in epochs)
    assert epochs[0] != epochs[1]
    assert epoch_batch(units, 4, 2, 0) != epoch_batch(units, 4, 1, 0) == epoch_batch(units, 4, 1, 0)


def test_where_nothing_is_right_nothing_is_learnt(models) -> None:
    few_words = Pocket(budget=3)
    with pytest.raises(UserError, match="nothing to train on: 6 problems × 3 samples gave no usable example"):
        SMALL.apply(few_words)
    assert not (SMALL.folder(few_words)).exists()


def test_rollouts_are_graded_and_taken_as_written(tmp_path) -> None:
    asked, loaded = draw_problems(ON, 6, seed=1), load(Pocket().source(TASK))
    rollouts = Rollouts(Pocket(temperature=2.5), loaded, asked, 4, 1, tmp_path / "kept", budget=50)
    assert list(rollouts)[-1] == {"sampled": 24, "of": 24}
    seen = set()
    for where, some in zip(asked, rollouts.samples, strict=True):
        for one in some:
            assert one.text.prompt == loaded.prompt(where.request())
            words = loaded.tokenizer.convert_ids_to_tokens(one.text.said)
            assert words[-1] == "<eos>" or len(words) == one.tokens == 50
            answer = "".join(words[words.index("</think>") + 1 :]) if "</think>" in words else ""
            digits = re.fullmatch(r"u(\d)t(\d)h(\d)k(\d)<eos>", answer)  # of 10,000 less than it, if it is negative
            said = int("".join(digits.groups()[::-1])) if digits else 0
            right = bool(digits) and [said - 10**4 if said > 5000 else said] == where.problem.gold["sums"]
            assert one.right == right, words
            seen.add(right)
    assert seen == {True, False}
    assert len({tuple(one.text.said) for some in rollouts.samples for one in some}) > 12
    again = Rollouts(Oracle(), loaded, asked, 4, 1, tmp_path / "kept")  # which it need not ask
    assert list(again) == []
    assert (again.samples, again.tokens) == (rollouts.samples, rollouts.tokens)
    assert again.tokens == sum(len(s.text) for some in again.samples for s in some)


@dataclass(kw_only=True)
class Noted(Model):
    """Answers right at its token limit, and notes the seeds of its requests."""

    stop: str = "length"
    seeds: list[int] = field(default_factory=list)

    async def complete(self, request: Request) -> Completion:
        self.seeds.append(request.seed)
        return Completion("", request.task.solve(request.problem), self.stop, Bill(), tokens=(5, 6))


def test_a_sample_that_reached_its_limit_is_wrong_whatever_it_answers(tmp_path) -> None:
    problems, loaded = draw_problems(ON, 2, seed=1), load(Pocket().source(TASK))
    for stop, right in (("length", False), ("end", True)):
        rollouts = Rollouts(Noted(stop=stop), loaded, problems, 2, 1, tmp_path / stop)
        list(rollouts)
        assert {s.right for drawn in rollouts.samples for s in drawn} == {right}


def test_every_sample_has_a_seed_of_its_own(tmp_path) -> None:
    problems, loaded, models = draw_problems(ON, 3, seed=1), load(Pocket().source(TASK)), [Noted() for _ in range(3)]
    for n, model in enumerate(models):
        list(Rollouts(model, loaded, problems, 4, min(n, 1), tmp_path / f"{n}"))
    first, second, again = (set(model.seeds) for model in models)
    assert len(first) == len(second) == 3 * 4
    assert not first & second
    assert second == again


def test_samples_are_shared_only_by_those_who_would_draw_the_same() -> None:
    files = {
        samples_file(Pocket(), ON, 6, 3, 1),
        samples_file(Pocket(temperature=0.5), ON, 6, 3, 1),
        samples_file(Pocket(), ON[:1], 6, 3, 1),
        samples_file(Pocket(), ON, 7, 3, 1),
        samples_file(Pocket(), ON, 6, 4, 1),
        samples_file(Pocket(), ON, 6, 3, 2),
    }
    assert len(files) == 6
    assert samples_file(Pocket(label="x"), ON, 6, 3, 1) in files


def test_a_sampler_draws_in_place_of_the_model(models) -> None:
    model = replace(SMALL, sampler=Pocket(style="short")).apply(Pocket())
    short = samples_file(Pocket(style="short", temperature=2.0), ON, 6, 3, 1)
    assert list(models.glob("samples-*")) == [short]
    assert model.made(TASK)["rollout_tokens"] > 0


def test_problems_come_from_each_size_in_turn_and_never_from_what_is_asked() -> None:
    found = draw_problems(ON, 7, seed=1)
    assert [asked.problem.size for asked in found] == [2, 5, 2, 5, 2, 5, 2]
    assert [a.problem.id for a in draw_problems(ON, 4, seed=1)] == [a.problem.id for a in found[:4]]
    assert not {a.problem.id for a in draw_problems(ON, 7, seed=2)} & {a.problem.id for a in found}
    # Of small Tents there are 240: were it not looked after, some of 200 asked would be among 40.
    small = TrainingProblems(Tents(), 16, 0, 200)
    asked = {p.id for p in itertools.islice(Tents().problems(16, 0), 200)}
    trained = {a.problem.id for a in draw_problems((small,), 400, seed=1)}
    assert 30 <= len(trained) <= 40
    assert not trained & asked


def test_problems_of_several_turns_are_refused() -> None:
    with pytest.raises(UserError, match="problems of one turn") as error:
        draw_problems((TrainingProblems(Execution(dictionary=6), 2, 0, 1),), 3, 1)
    assert "per_turn = 0" in error.value.hint


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
    ours, theirs = (answered(m, some) for m in (model, Transformers(id=str(model.weights), budget=80)))
    assert [(c.thinking, c.answer, c.stop) for c in ours] == [(c.thinking, c.answer, c.stop) for c in theirs]
    assert [c.tokens for c in ours] == [c.tokens for c in theirs]
    assert [c.thinking for c in ours] != [c.thinking for c in answered(base, some)]  # it has learnt something
    assert (BASE / "model.safetensors").read_bytes() == before
    cost = made(model.weights)["cost"]
    assert cost["rollout_tokens"] > cost["training_tokens"] > 0
    assert model.made(TASK) == Transformers(id=str(model.weights)).made(TASK) == cost
    assert not any("made" in measure for c in [*ours, *theirs] for measure in c.measures)


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
    assert SMALL.folder(Pocket(label="x", concurrency=3)) == replace(SMALL, micro_tokens=99).folder(Pocket()) in folders
    wider = tuple(replace(practice, asked=9) for practice in ON)  # of which there are always others
    assert replace(SMALL, train_on=wider).folder(Pocket()) in folders
    assert [p for p in models.iterdir() if p.is_dir()] == [SMALL.folder(Pocket())]
    sampled_alike = Dpo(train_on=ON, problems=6, n=3, temperature=2.0, longer=1.0)
    assert not any("sampled" in report for report in sampled_alike.make(Pocket()))
    first, *_ = replace(sampled_alike, temperature=1.9).make(Pocket())
    assert "sampled" in first
    assert not list(models.glob("*.part")) + list(models.glob("*.lock*"))
    left = {p.name for p in SMALL.folder(Pocket()).iterdir()}
    weights = {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    assert left == {*weights, "card.json", "made.json"}


def test_a_made_model_says_how_it_was_made_and_what_it_cost_with_its_ancestors(models, tmp_path) -> None:
    first = SMALL.apply(Pocket())
    merge = Merge(train_on=ON, other=Pocket(weights=BASE), weight=0.5)
    merged = merge.apply(first)
    last = replace(SMALL, seed=5).apply(merged)
    one, two, three = (made(model.weights) for model in (first, merged, last))
    assert one["recipe"] == SMALL.identity() | {"on": [json.loads(json.dumps(p.identity())) for p in ON]}
    assert one["from"] == Pocket().identity()
    assert one["notes"]["problems without a right sample"] + one["notes"]["units"] == 6
    assert two["from"] == first.identity()
    own = {name: value for name, value in one["cost"].items() if name != "seconds"}
    assert {name: two["cost"][name] for name in own} == own  # an average costs no tokens
    assert all(three["cost"][name] > 1.5 * one["cost"][name] for name in own)
    assert 0 < one["cost"]["seconds"] < two["cost"]["seconds"] < three["cost"]["seconds"]
    rollouts = tmp_path / "again"
    again = Rollouts(Pocket(temperature=2.0), load(Pocket().source(TASK)), draw_problems(ON, 6, 1), 3, 1, rollouts)
    list(again)
    assert one["cost"]["rollout_tokens"] == again.tokens
    right = [[len(s.text) for s in some if s.right] for some in again.samples]
    assert one["cost"]["training_tokens"] == 2 * sum(min(lengths) for lengths in right if lengths)  # two epochs


def test_a_merge_costs_what_both_models_cost(models) -> None:
    one, two = (replace(SMALL, seed=seed).apply(Pocket()) for seed in (1, 2))
    merged = Merge(train_on=ON, other=two).apply(one)
    costs = [model.made(TASK) for model in (one, two, merged)]
    for name in ("rollout_tokens", "training_tokens"):
        assert costs[2][name] == costs[0][name] + costs[1][name]
    assert costs[2]["seconds"] > costs[0]["seconds"] + costs[1]["seconds"]


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
    late, acquire = SMALL.make(Pocket()), weight_methods.acquire

    def meanwhile(path: Path) -> object:
        monkeypatch.setattr(weight_methods, "acquire", acquire)
        SMALL.apply(Pocket())
        return acquire(path)

    monkeypatch.setattr(weight_methods, "acquire", meanwhile)
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
def test_a_killed_training_ends_with_the_same_weights(models, tmp_path, monkeypatch, method, when, goes_on) -> None:
    script = KILLED.format(method=method, when=when)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path]),
        "OMP_NUM_THREADS": "1",
    }
    ended = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    training = eval(method)
    folder = training.folder(Pocket())
    assert not folder.exists()
    reports = [r for r in training.make(Pocket()) if r.keys() & goes_on.keys()]
    assert reports[0].items() >= goes_on.items()
    again, base = made(folder), load_file(BASE / "model.safetensors")
    learnt = load_file(folder / "model.safetensors")
    assert not torch.equal(
        learnt["model.layers.3.mlp.up_proj.weight"], base["model.layers.3.mlp.up_proj.weight"].float()
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


# In a study.


def table(**more) -> dict:
    task = {"name": "execution", "dictionary": 6, "per_turn": 0, "size": [2, 4]}
    method = {"name": "shortest", "problems": 4, "n": 2, "batch": 4}
    return {"task": [task], "model": [{"name": "pocket", "method": method}], "problems": 3, "seed": 9, **more}


def practice(content: dict, folder: Path | None = None) -> tuple[TrainingProblems, ...]:
    study = Study.from_table(content, folder=folder)
    (method,) = study.cells[0].methods
    return method.train_on


def test_methods_train_on_other_problems_of_the_same_tasks() -> None:
    found = practice(table())
    assert [(p.task, p.size, p.seed, p.asked) for p in found] == [(TASK, size, 9, 3) for size in (2, 4)]
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
    plain = {"task": fixed, "model": [{"name": "oracle", "method": {"name": "shortest"}}], "problems": 4}

    def trained(**more) -> set[str]:
        return {a.problem.id for a in draw_problems(practice({**plain, **more}, tmp_path), 99, seed=1)}

    with pytest.raises(UserError, match="no problem to train on") as error:
        trained()
    assert "[[train]]" in error.value.hint
    assert trained(train=fixed) == {"p4", "p5"}  # the first four are asked
    other = [{"name": "execution", "dictionary": 6, "per_turn": 0, "size": 2}]
    assert len(trained(task=other, train=fixed)) == 6
    with pytest.raises(UserError, match="no problem to train on"):
        trained(train=fixed, problems=6)
    # Who asks more of a fixed set than before asks what a model was trained on: it must be another model.
    names = {str(practice({**plain, "train": fixed, "problems": n}, tmp_path)[0].identity()) for n in (3, 4)}
    assert len(names) == 2


def test_an_interrupted_run_does_not_wait_for_its_training(models, tmp_path) -> None:
    method = {"name": "shortest", "problems": 4, "n": 1, "batch": 1, "epochs": 200}
    study, tally = Study.from_table(table(model=[{"name": "pocket", "method": method}])), Tally()

    async def interrupted() -> None:
        with Store(tmp_path / "ponder.db", lock=True) as store:
            running = asyncio.create_task(run(study, store, tally))
            while "step" not in (tally.making or {}):  # noqa: ASYNC110 a thread tells the tally, and no event
                await asyncio.sleep(0.01)
            running.cancel()
            await asyncio.wait({running})

    asyncio.run(interrupted())  # to whose end belong those of its threads
    assert [p.suffix for p in models.iterdir() if p.is_dir()] == [".part"]
    assert tally.making is None


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
    assert [p.name.rpartition("-")[0] for p in found] == ["dpo", "length_rl", "shortest", "shortest"]
    written = {p: p.stat().st_mtime_ns for p in models.rglob("*")}

    def outcomes() -> list:
        with Store(Path("ponder.db")) as store:
            return list(store.outcomes(Study.load(study).cells))

    by_model = {o.model: o for o in outcomes()}
    assert list(by_model) == [
        "pocket",
        "pocket + shortest seed=1",
        "pocket + shortest seed=2",
        "pocket + dpo",
        "pocket + length_rl",
    ]
    for name, outcome in by_model.items():
        assert set(outcome.made) == ({"rollout_tokens", "training_tokens", "seconds"} if "+" in name else set())
        assert all(value > 0 for value in outcome.made.values())
        assert outcome.seeds == ((int(name[-1]) if "=" in name else 1,) if "+" in name else ())
    again = json.loads(ponder("run", study, "--json").stdout)
    assert again["planned"] == 0
    wider = json.loads(ponder("run", study, "--json", "--set", "samples=2").stdout)
    assert wider["planned"] == 30  # each problem once more, of the models that are there
    assert {p: p.stat().st_mtime_ns for p in models.rglob("*")} == written
    assert ponder("export", study, "-o", "attempts.csv").exit_code == 0
