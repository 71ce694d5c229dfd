"""A reward trained on a model's own samples: what it learns from, what it costs, and that it is
made once.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

pytest.importorskip("torch")

from reward_cases import RlhflowCase

from ponder import Study
from ponder.core import Bill, Completion, Model, Request, TrainingProblems, UserError
from ponder.methods.best_of import BestOf
from ponder.models.pocket import Pocket
from ponder.rewards._weights import SafeTokenizer
from ponder.rewards.oracle import Oracle
from ponder.rewards.pocket import Pocket as PocketReward
from ponder.rewards.trained import Trained
from ponder.run.plan import plan
from ponder.run.prepare import make_reward
from ponder.tasks.chain_sum import ChainSum
from ponder.tasks.execution import Execution
from ponder.training.loop import TokenExample
from ponder.training.reward import OwnSamples, distinct
from ponder.training.rollouts import Sample, TrainingProblem, draw_problems

TASK = Execution(dictionary=6, per_turn=0)
ON = (TrainingProblems(TASK, 10, 0, 4), TrainingProblems(TASK, 12, 0, 4))
STUDENT = Pocket(style="short", temperature=1.0)
OWN = OwnSamples(Trained(problems=8, n=4, training={"epochs": 1, "rate": 1e-4}), ON, "task")


def made(own: OwnSamples, model: Model = STUDENT) -> dict:
    for _ in own.make(model):
        pass
    return json.loads((own.folder(model) / "made.json").read_text("utf-8"))


def test_it_is_made_once_for_each_seed_and_not_for_how_scores_are_summed(models) -> None:
    first = made(OWN)
    assert list(OWN.make(STUDENT)) == []
    assert replace(OWN, reward=replace(OWN.reward, aggregate="min", alpha=0.0)).folder(
        STUDENT
    ) == OWN.folder(STUDENT)
    others = [
        replace(OWN, seed=2).folder(STUDENT),
        replace(OWN, cut="blank").folder(STUDENT),
        replace(OWN, train_on=ON[:1]).folder(STUDENT),
        replace(OWN, reward=replace(OWN.reward, n=5)).folder(STUDENT),
        OWN.folder(replace(STUDENT, temperature=0.9)),
    ]
    assert len({OWN.folder(STUDENT), *others}) == 6
    assert first["notes"]["samples"] == 32
    assert 8 <= first["measures"]["distinct_samples"] < 32
    assert 0 < first["measures"]["distinct_right"] < 1
    assert min(first["cost"][name] for name in ("rollout_tokens", "training_tokens", "seconds")) > 0


def test_its_cost_is_billed_with_the_models_own(models) -> None:
    picking = BestOf(reward=OWN.reward, n=2, cut="task", train_on=ON)
    assert picking.training_seed() == 1
    model = picking.apply(STUDENT)
    assert model.made(TASK) == OWN.cost(STUDENT)
    dear = replace(STUDENT, weights=OWN.folder(STUDENT))  # weights that have a cost themselves
    both = picking.apply(dear).made(TASK)
    assert both["training_tokens"] == 2 * OWN.cost(STUDENT)["training_tokens"]


def test_it_never_trains_on_a_problem_that_is_asked(models) -> None:
    table = {"name": "trained", "problems": 8, "n": 2}
    content = {
        "task": [{"name": "execution", "dictionary": 6, "per_turn": 0, "size": [10, 12]}],
        "model": [{"name": "pocket", "style": "short", "temperature": 1.0}],
        "problems": 5,
        "seed": 3,
    }
    content["model"][0]["method"] = {
        "name": "best_of",
        "n": 2,
        "reward": table,
        "cut": "task",
        "seed": [1, 2],
    }
    study = Study.from_table(content)
    asked = {problem.id for cell in study.cells for problem in cell.asked()}
    for cell in study.cells:
        (method,) = cell.methods
        trained_on = draw_problems(method.train_on, 500, method.seed)
        assert len(asked) == 10
        assert not asked & {one.problem.id for one in trained_on}
    # Seeds are training seeds: one variant, and other problems to train on.
    assert {cell.training_seeds for cell in study.cells} == {(1,), (2,)}
    assert len({cell.label.variant for cell in study.cells}) == 1
    first, second = (draw_problems(ON, 20, seed) for seed in (1, 2))
    assert not {one.problem.id for one in first} & {one.problem.id for one in second}
    # What it is trained on is part of the attempts' key.
    (other, *_) = Study.from_table({**content, "train": [{**content["task"][0], "size": 4}]}).cells
    assert study.cells[0].key != other.key


def test_duplicates_are_dropped_within_a_problem_only() -> None:
    problems = draw_problems(ON, 2, seed=1)
    thinking = "u0 t0 h0 k0"

    def one(answer: int, right: bool) -> Sample:
        return Sample(TokenExample([1], [2]), right, thinking, f"<answer>{answer}</answer>")

    drawn = [[one(1, True), one(2, False), one(1, True)], [one(1, False)] * 3]
    traces = list(distinct(problems, drawn, STUDENT, "task"))
    assert [(t.facts["problem"].id, t.answer, t.facts["correct"]) for t in traces] == [
        (problems[0].problem.id, ("<answer>1</answer>",), True),
        (problems[0].problem.id, ("<answer>2</answer>",), False),
        (problems[1].problem.id, ("<answer>1</answer>",), False),
    ]


def test_no_label_can_be_read() -> None:
    """The tokens that the reward sees are the same for a sample that is called right and for one
    called wrong.
    """
    (one,) = draw_problems(ON[:1], 1, seed=1)
    said = Sample(
        TokenExample([1], [2]),
        True,
        "u0 t0 h0 k0",
        f"<answer>{one.problem.gold['sums'][-1] + 1}</answer>",
    )
    reward, seen = PocketReward(), []
    for right in (True, False):
        (trace,) = distinct([one], [[replace(said, right=right)]], STUDENT, "task")
        blind = replace(one, problem=replace(one.problem, gold={"sums": [0], "start": 0}))
        (without_gold,) = distinct([blind], [[replace(said, right=right)]], STUDENT, "task")
        seen += [reward.read(SafeTokenizer(None), [t])[0] for t in (trace, without_gold)]
    assert all(reading == seen[0] for reading in seen)


def test_steps_are_labelled_in_the_students_own_style(models) -> None:
    samples = json.loads(_samples(OWN, STUDENT).read_text("utf-8"))
    problems = draw_problems(ON, 8, seed=1)
    decoded = [
        [Sample(TokenExample([], []), s["right"], s["thinking"], s["answer"]) for s in row]
        for row in samples
    ]
    traces = list(distinct(problems, decoded, STUDENT, "task"))
    right = [trace for trace in traces if trace.facts["correct"]]
    scores = Oracle().score(right)
    assert len(right) > 3
    # a right answer nearly always has right steps
    assert sum(s.total == 2.0 for s in scores) / len(scores) > 0.8
    wrong = Oracle().score([trace for trace in traces if not trace.facts["correct"]])
    assert all(s.steps[-1] == 0.0 for s in wrong)


def _samples(own: OwnSamples, model: Model) -> Path:
    made(own, model)
    return own.samples_file(model)


@dataclass(kw_only=True)
class Sums(Model):
    """Answers a sum, right half of the time, and says `because` if it is right."""

    always: bool = False

    async def complete(self, request: Request) -> Completion:
        right = self.always or request.seed % 2 == 0
        why = "because 3 + 4 and get 7" if right else "Wait - no. Let me think"
        answer = f"<answer>{request.problem.gold + (not right)}</answer>"
        return Completion(why, answer, "end", Bill(1, 2, 3, counted_by="tokenizer"))


SUMS = (TrainingProblems(ChainSum(), 3, 0, 4),)


def test_any_language_model_learns_from_a_checker_alone(models, tmp_path) -> None:
    RlhflowCase(tmp_path)
    training = {"epochs": 6, "rate": 1e-3, "head_rate": 0.1, "batch": 8}
    own = OwnSamples(Trained(start=str(tmp_path), problems=24, n=2, training=training), SUMS)
    made(own, Sums())
    reward = own.made(Sums())
    problems = [TrainingProblem(ChainSum(), ChainSum().problem(3, seed)) for seed in range(6)]
    said = [
        [Sample(TokenExample([], []), right, *_said(one, right)) for right in (True, False)]
        for one in problems
    ]
    scores = [
        s.trajectory or 0.0 for s in reward.score(list(distinct(problems, said, Sums(), "blank")))
    ]
    assert min(scores[::2]) > max(scores[1::2])
    # The checker knows no steps, so only the trajectory was learned.
    assert {
        step
        for s in reward.score(list(distinct(problems, said, Sums(), "blank")))
        for step in s.steps
    } == {0.5}


def _said(one: TrainingProblem, right: bool) -> tuple[str, str]:
    request = replace(one.request(), seed=0 if right else 1)
    import asyncio

    reply = asyncio.run(Sums().complete(request))
    return reply.thinking, reply.answer


def test_what_cannot_be_trained_is_refused(models, tmp_path) -> None:
    RlhflowCase(tmp_path)
    own = OwnSamples(Trained(start=str(tmp_path), problems=2, n=2), SUMS)
    with pytest.raises(
        UserError, match="all 2 distinct samples are right: there is nothing to learn"
    ):
        made(own, Sums(always=True))
    with pytest.raises(UserError, match="has no local weights") as error:
        made(replace(own, reward=Trained(problems=2)), Sums())
    assert "start" in error.value.hint
    with pytest.raises(UserError, match="needs problems to train on"):
        made(replace(own, train_on=()), Sums())
    with pytest.raises(UserError, match="has no key `epoch`"):
        made(replace(own, reward=replace(own.reward, training={"epoch": 2})), Sums())
    with pytest.raises(UserError, match="already trained"):
        Trained(id="folder", training={"epochs": 2})
    with pytest.raises(UserError, match="has not been trained") as error:
        Trained().score(
            list(
                distinct(
                    draw_problems(SUMS, 1, 1),
                    [[Sample(TokenExample([], []), True, "a", "b")]],
                    Sums(),
                    "blank",
                )
            )
        )
    assert "prepare own_reward" in error.value.hint


def test_a_studys_reward_is_copied_into_a_folder(models, tmp_path) -> None:
    method = {"name": "best_of", "n": 2, "cut": "task", "pick": ["best", "odds"]}
    method["reward"] = {
        "name": "trained",
        "problems": 8,
        "n": 4,
        "training": {"epochs": 1, "rate": 1e-4},
    }
    task = {"name": "execution", "dictionary": 6, "per_turn": 0, "size": [10, 12]}
    content = {
        "task": [task],
        "model": [{"name": "pocket", "style": "short", "temperature": 1.0, "method": method}],
    }
    study = Study.from_table(content)
    list(make_reward(study, "", tmp_path / "out"))  # both ways to pick use one reward
    assert {"heads.safetensors", "made.json", "card.json"} <= {
        path.name for path in (tmp_path / "out").iterdir()
    }
    (trace,) = distinct(
        draw_problems(ON, 1, 1),
        [[Sample(TokenExample([], []), True, "u0 t0", "<answer>1</answer>")]],
        STUDENT,
        "task",
    )
    read = Trained(id=str(tmp_path / "out")).score([trace])[0]
    assert read.trajectory is not None
    # in the student's own tokens
    assert read == PocketReward(id=str(tmp_path / "out")).score([trace])[0]
    with pytest.raises(UserError, match="is not empty"):
        list(make_reward(study, "", tmp_path / "out"))


def test_a_plan_counts_what_is_sampled_to_train_on(models, tmp_path) -> None:
    method = {
        "name": "best_of",
        "n": [2, 4],
        "cut": "task",
        "pick": ["best", "odds"],
        "seed": [1, 2],
    }
    method["reward"] = {
        "name": "trained",
        "problems": 8,
        "n": 4,
        "training": {"epochs": 1, "rate": 1e-4},
    }
    task = {"name": "execution", "dictionary": 6, "per_turn": 0, "size": [10, 12]}
    model = {
        "name": "pocket",
        "style": "short",
        "temperature": 1.0,
        "budget": 100,
        "method": method,
    }
    study = Study.from_table({"task": [task], "model": [model]})
    making = plan(study, tmp_path / "store.db").making
    assert making is not None
    assert making.calls == 2 * 8 * 4  # two rewards, one for each seed, whatever picks by them
    assert making.completion_tokens == 100 * making.calls
    made(study.cells[0].methods[0]._training(), study.cells[0].model)
    left = plan(study, tmp_path / "store.db").making
    assert left is not None
    assert left.calls == 8 * 4
