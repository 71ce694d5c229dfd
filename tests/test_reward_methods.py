"""Methods that use a process reward: `best_of`, `sft` on chosen traces, and the blend in
`length_rl`.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, replace

import numpy as np
import pytest

from ponder.core import (
    Bill,
    Completion,
    InMemory,
    LengthReward,
    Message,
    Model,
    Request,
    Reward,
    Scores,
    TrainingProblems,
    UserError,
    not_in_key,
)
from ponder.methods.best_of import BestOf, step_scores
from ponder.methods.length_rl import LengthRl, _reward_hacking
from ponder.methods.sft import Sft, _described
from ponder.models._torch_engine import load_light
from ponder.models.pocket import Pocket
from ponder.rewards.oracle import Oracle
from ponder.tasks.execution import Execution
from ponder.traces import Trace, trace_of
from ponder.training.fit import weights_to_train
from ponder.training.loop import TokenExample
from ponder.training.made_models import MakingRecord
from ponder.training.rollouts import Sample

TASK = Execution(dictionary=6, per_turn=0)
ON = (TrainingProblems(TASK, 3, 0, 4),)


@dataclass(kw_only=True)
class Scripted(Model):
    """Says one thing after the other."""

    said: tuple[Completion, ...] = ()

    async def complete(self, request: Request) -> Completion:
        self.asked = getattr(self, "asked", -1) + 1
        return self.said[self.asked]


@dataclass(frozen=True, kw_only=True)
class Read(Reward):
    """The number that the thinking is; a second one is the trajectory's."""

    def rate(self, traces) -> list[Scores]:
        def one(trace) -> Scores:
            text, _, sure = trace.thinking[0].partition(" ")
            bill = Bill(prompt_tokens=7, counted_by="tokenizer")
            right = float(sure) if sure else None
            return (
                Scores(why="can't say", bill=bill)
                if text == "?"
                else Scores((float(text),) * 2, right, bill=bill)
            )

        return [one(trace) for trace in traces]


def said(score: str, answer: int, stop: str = "end") -> Completion:
    return Completion(
        score, f"<answer>{answer}</answer>", stop, Bill(1, 2, 3, counted_by="tokenizer")
    )


def picked(pick: str, *samples: Completion) -> Completion:
    problem = TASK.problem(3, 1)
    request = Request(TASK, problem, (Message("user", problem.turns[0]),), seed=1)
    model = BestOf(reward=Read(), n=len(samples), pick=pick).apply(Scripted(said=samples))

    async def ask() -> Completion:
        async with model:
            return await model.complete(request)

    return asyncio.run(ask())


def test_the_best_sample_is_picked_and_all_are_billed() -> None:
    found = picked("best", said(".2", 1), said(".9", 2), said(".4", 1))
    assert found.answer == "<answer>2</answer>"
    assert found.bill == Bill(3, 6, 9, counted_by="tokenizer", reward_prompt_tokens=3 * 7)


def test_the_picked_reply_has_its_steps_scores() -> None:
    # thinking; not the answer's step
    assert picked("best", said(".2", 1), said(".9", 2)).step_scores == ((2, 0.9),)
    assert step_scores("a\n\nb a", ("a", "b a"), (0.25, 0.5)) == ((1, 0.25), (6, 0.5))
    assert step_scores("a\n\nb", ("a", "b"), (0.25,)) == ()  # scores of other steps


def test_a_vote_adds_up_the_rewards() -> None:
    samples = said(".3", 1), said(".5", 2), said(".3", 1), said("?", 3), said("1", 4, stop="length")
    assert picked("vote", *samples).answer == "<answer>1</answer>"
    assert picked("best", *samples).answer == "<answer>2</answer>"


def test_a_vote_by_odds_adds_up_odds_of_the_trajectory() -> None:
    """Odds 9 for one answer, 1.5 + 1.5 for the other, whose totals and probabilities have the
    larger sum.
    """
    samples = said(".9 .6", 1), said(".1 .9", 2), said(".9 .6", 1)
    assert picked("odds", *samples).answer == "<answer>2</answer>"
    assert (
        picked("vote", *samples).answer == picked("best", *samples).answer == "<answer>1</answer>"
    )
    # 4 + 4 against 7 1/3: odds are added, not compared.
    assert (
        picked("odds", said(".5 .8", 1), said(".5 .88", 2), said(".5 .8", 1)).answer
        == "<answer>1</answer>"
    )
    # A sample without a trajectory's score counts by its worst step, and certainty is limited: 999,
    # not infinity.
    assert picked("odds", said(".5", 1), said(".8", 2)).answer == "<answer>2</answer>"
    sure = [said(".5 1.0", 1), *[said(".5 .999", 2)] * 2]
    assert picked("odds", *sure).answer == "<answer>2</answer>"


def test_each_attempt_says_how_its_samples_were_scored() -> None:
    problem = TASK.problem(3, 1)
    true = problem.gold["sums"][-1]
    samples = (
        said(".2 .3", true),
        said(".2 .3", true + 1),
        said(".9 .4", 7),
        said("?", 8),
        said(".1 .1", true, "length"),
    )
    known = picked("best", *samples).measures
    assert (known["distinct_thinkings"], known["wrong_samples"]) == (4, 4)
    assert known["wrong_in_answer"] == 1  # the second: the right one's thinking, another answer
    # a truncated sample is wrong
    assert [known[f"right_{n}"] for n in (0, 1, 2, 4)] == [1, 0, 0, 0]
    assert [known[f"probability_{n}"] for n in (0, 1, 2, 4)] == [0.3, 0.3, 0.4, 0.1]
    assert known["total_2"] == pytest.approx(1.3)
    assert "right_3" not in known  # it has no score


def test_where_nothing_can_be_scored_the_first_sample_answers() -> None:
    assert picked("best", said("?", 1), said("?", 2)).answer == "<answer>1</answer>"


def test_n_must_be_a_number_of_samples() -> None:
    with pytest.raises(UserError, match="at least 1"):
        BestOf(reward=Read(), n=0)


SFT = Sft(
    train_on=ON,
    teachers=(Pocket(label="good"), Pocket(temperature=3.0, label="faulty")),
    pool=6,
    steps=2,
    rate=1e-4,
)


def made(method, model=None) -> dict:
    folder = method.folder(model or Pocket(style="short"))
    method.apply(model or Pocket(style="short"))
    return json.loads((folder / "made.json").read_text("utf-8"))


def test_a_reward_chooses_what_a_student_learns_from() -> None:
    chosen = made(replace(SFT, by="reward", reward=Oracle(), cut="task", number=3))
    assert chosen["measures"]["selected"] == 3
    assert chosen["measures"]["selected_right"] == 1.0
    everything = made(SFT)
    assert set(everything["notes"]["selection"]["dropped"]) <= {"duplicate", "near-duplicate"}
    assert 8 <= everything["measures"]["selected"] <= 12
    assert everything["measures"]["selected_right"] < 1.0
    right = made(replace(SFT, by="right"))
    assert right["measures"]["selected"] < everything["measures"]["selected"]
    assert right["measures"]["selected_right"] == 1.0
    # The pool is drawn once, and everyone is billed for it.
    assert right["cost"]["rollout_tokens"] == everything["cost"]["rollout_tokens"] > 0
    assert everything["notes"]["steps"] == 2


@dataclass(frozen=True, kw_only=True)
class Flat(Reward):
    """The same for every step, for seven tokens per trace."""

    def rate(self, traces) -> list[Scores]:
        bill = Bill(prompt_tokens=7, counted_by="tokenizer")
        return [Scores((0.5,) * len(trace.part(self.of)), bill=bill) for trace in traces]


def test_a_student_costs_what_its_teachers_cost_and_what_the_reward_read() -> None:
    plain = made(SFT)["cost"]
    by_reward = made(replace(SFT, by="reward", reward=Flat()))["cost"]
    # two teachers, six problems each
    assert by_reward["rollout_tokens"] == plain["rollout_tokens"] + 7 * 12
    alone = [
        made(replace(SFT, teachers=(teacher,)))["cost"]["rollout_tokens"]
        for teacher in SFT.teachers
    ]
    assert plain["rollout_tokens"] == sum(alone)
    trained = replace(SFT, teachers=SFT.teachers[:1], seed=3).apply(Pocket())
    taught = made(replace(SFT, teachers=(trained,)))["cost"]
    cost = trained.made(TASK)
    assert taught["training_tokens"] > cost["training_tokens"] > 0
    assert taught["rollout_tokens"] > cost["rollout_tokens"] > 0
    assert taught["seconds"] > cost["seconds"]


@dataclass(frozen=True, kw_only=True)
class Interrupted(Flat, InMemory):
    """Is interrupted at its third batch, once; says how many traces it has scored, and that it was
    released.
    """

    seen: list = not_in_key(())

    def rate(self, traces) -> list[Scores]:
        self.seen.append(len(traces))
        if len(self.seen) == 3:
            raise KeyboardInterrupt
        return super().rate(traces)

    def parameters(self) -> int:
        return 1

    def release(self) -> None:
        self.seen.append("released")


def test_interrupted_scoring_resumes(models) -> None:
    reward, student = Interrupted(seen=[]), Pocket(style="short")
    method = replace(SFT, by="reward", reward=reward)
    with pytest.raises(KeyboardInterrupt):
        method.apply(student)
    (part,) = models.glob("scores-*")
    assert part.read_bytes().count(b"\n") == 3  # batches of one, two, four
    part.write_bytes(part.read_bytes() + b"[0.5,")  # as a kill leaves it
    reports = [report for report in method.make(student) if "scored" in report]
    assert [report["scored"] for report in reports] == [3, 4, 6, 10]
    assert reward.seen == [1, 2, 4, 1, 2, 4, 2, "released"]
    assert made(method)["cost"]["rollout_tokens"] == made(SFT)["cost"]["rollout_tokens"] + 7 * 12
    assert [path.suffix for path in models.glob("scores-*")] == [".json"]


def test_a_reward_that_is_not_used_makes_no_other_model() -> None:
    student = Pocket(style="short")
    assert replace(SFT, reward=Flat(), cut="task").folder(student) == SFT.folder(student)
    chosen = replace(SFT, by="reward", reward=Flat())
    assert (
        len(
            {
                chosen.folder(student),
                replace(chosen, cut="task").folder(student),
                SFT.folder(student),
            }
        )
        == 3
    )


@dataclass(frozen=True, kw_only=True)
class Long(Reward):
    """Almost the same for every right answer, a little more for a longer one; half for a wrong one."""

    def rate(self, traces) -> list[Scores]:
        def one(trace) -> Scores:
            steps = (1.0 if trace.facts["correct"] else 0.5,) * len(trace.part(self.of))
            return Scores(steps, trajectory=len(" ".join(trace.thinking)) / 1e6)

        return [one(trace) for trace in traces]


def selecting(method, pool):
    yield (yield from method._select(pool, MakingRecord()))


WORDY = replace(
    SFT,
    teachers=(Pocket(label="good"), Pocket(style="wordy", label="wordy"), SFT.teachers[1]),
    pool=12,
)


@pytest.mark.parametrize(
    ("settings", "teachers", "right"),
    [
        ({"number": 4}, {"wordy"}, 1.0),  # differences in length decide
        ({"number": 4, "rule": "filter_shortest", "threshold": 0.9}, {"good"}, 1.0),
        ({"number": 4, "rule": "per_problem"}, {"wordy"}, 1.0),
        ({"by": "right", "rule": "filter_shortest", "number": 4}, {"good"}, 1.0),
        ({"rule": "filter", "threshold": 0.9}, {"good", "wordy"}, 1.0),
        ({"rule": "top", "tolerance": 0.1}, {"good", "wordy", "faulty"}, None),
    ],
)
def test_rules_select_what_they_say(settings, teachers, right) -> None:
    method = replace(WORDY, **{"by": "reward", "reward": Long(), **settings})
    pool = []
    loaded = load_light(weights_to_train(Pocket(style="short"), method.train_on))
    for teacher in method.teachers:
        for _ in method._ask(teacher, loaded, pool, MakingRecord()):
            pass
    *_, selection = selecting(method, pool)
    kept = [pool[one.index][0] for one in selection.kept]
    good = {"good"} if teachers == {"good"} else teachers
    # A careless teacher's trace may be right, and shorter than the good one's by a step.
    assert {trace.teacher for trace in kept} - {"faulty"} == good - {"faulty"}
    if "number" in settings:
        assert len(kept) == 4
    if settings.get("rule") in ("filter_shortest", "per_problem"):
        assert len({trace.extra["problem"].id for trace in kept}) == len(kept)
    if right is not None:
        assert np.mean([bool(trace.correct) for trace in kept]) == right


def test_ties_and_filters_go_by_the_seed() -> None:
    def picks(**settings):
        return made(replace(WORDY, by="reward", reward=Long(), number=4, **settings))["measures"]

    exact = [picks(seed=seed) for seed in (1, 2)]
    assert exact[0]["selected_tokens"] == exact[1]["selected_tokens"]
    assert (exact[0]["selected_one_teacher"], exact[0]["selected_sound"]) == (1.0, 1.0)
    assert exact[0]["score_high"] - exact[0]["score_low"] < 0.001
    tied = [picks(seed=seed, tolerance=0.1) for seed in (1, 2, 3)]
    assert len({one["selected_tokens"] for one in tied}) > 1
    assert max(one["selected_tokens"] for one in tied) < exact[0]["selected_tokens"]


def test_every_pass_of_a_trace_is_judged_by_itself() -> None:
    """However the reward splits steps: otherwise a second pass would be words that don't follow."""
    problem = next(TASK.problems(3, 1))
    request = Request.first_turn(TASK, problem)
    words = Pocket.codec("execution").lesson(request).reply
    once = " ".join(words[: words.index("</think>")])
    traces = [
        trace_of(request, thinking, TASK.solve(problem), "pocket", teacher=teacher)
        for thinking, teacher in (
            (f"{once} <again> {once}", "long"),
            (once, "plain"),
            (f"{once} <again> u1", "long"),
        )
    ]
    facts = _described(traces, "blank")
    assert facts == {
        "selected_sound": pytest.approx(2 / 3),
        "selected_one_teacher": pytest.approx(2 / 3),
    }
    assert _described([Trace("?", "so", "7")], "blank") == {}  # nobody knows


def test_stored_students_stay_valid_where_the_same_traces_are_selected() -> None:
    """Near-duplicates among several teachers, and ties of scores, were decided otherwise."""
    alone = replace(SFT, teachers=SFT.teachers[:1])
    for by in ("all", "random", "right", "longest", "shortest"):
        assert "picks" not in replace(alone, by=by).identity()
        assert replace(SFT, by=by).identity()["picks"] == 2
    rewarded = replace(alone, by="reward", reward=Flat())
    assert rewarded.identity()["picks"] == 2
    # Settings that have no effect are no part of the key, and a rule has the key of its former
    # name.
    assert (
        replace(alone, by="random", rule="filter", threshold=1.0, tolerance=0.1).identity()
        == replace(alone, by="random").identity()
    )
    assert replace(rewarded, threshold=1.0).identity() == rewarded.identity()
    named = [replace(rewarded, rule="match_length"), replace(rewarded, match_length=True)]
    assert (
        named[0].identity() == named[1].identity() == rewarded.identity() | {"match_length": True}
    )
    assert replace(rewarded, rule="per_problem").identity() == rewarded.identity() | {
        "rule": "per_problem"
    }


def test_seeds_choose_other_traces_at_random_from_the_same_pool() -> None:
    one, two = (made(replace(SFT, by="random", number=4, seed=seed)) for seed in (1, 2))
    assert one["cost"]["rollout_tokens"] == two["cost"]["rollout_tokens"]
    assert one["measures"]["selected_tokens"] != two["measures"]["selected_tokens"]


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"teachers": ()}, "needs traces"),
        ({"by": "reward"}, "needs a reward"),
        (
            {"by": "reward", "reward": Oracle(), "rule": "filter"},
            "needs the lowest score that passes",
        ),
        ({"by": "right", "rule": "per_problem"}, 'rule = "per_problem" needs a reward'),
        ({"steps": 0}, "at least 1"),
    ],
)
def test_wrong_settings(settings, what) -> None:
    with pytest.raises(UserError, match=what):
        replace(SFT, **settings)


class Nothing(LengthReward):
    def rewards(self, right, tokens, progress) -> list[float]:
        return [0.0] * len(tokens)


def test_a_process_reward_is_blended_with_the_outcome() -> None:
    method = LengthRl(train_on=ON, reward=Nothing(), process=Read(), blend=0.25)
    samples = [Sample(TokenExample([1], [2]), right) for right in (True, False)]
    mean = (0.75 * 1 + 0.25 * 0.2 + 0.25 * 0.8) / 2
    assert method.advantages(samples, 0, [0.2, 0.8]) == pytest.approx([0.8 - mean, 0.2 - mean])
    assert method.advantages(samples, 0) == [0.5, -0.5]


def test_what_a_process_reward_reads_is_billed() -> None:
    plain = LengthRl(train_on=ON, iterations=2, problems=2, n=3, pool=4, inner=1, blend=0.0, seed=4)
    costs = [made(method)["cost"] for method in (plain, replace(plain, process=Flat()))]
    assert costs[1]["rollout_tokens"] == costs[0]["rollout_tokens"] + 2 * 2 * 3 * 7


def test_training_with_a_process_reward_says_how_it_went() -> None:
    method = LengthRl(
        train_on=ON, iterations=3, problems=2, n=2, pool=4, inner=1, process=Oracle(), cut="task"
    )
    notes = made(method, Pocket(style="long"))["notes"]
    assert [set(row) for row in notes["iterations"]] == [
        {"accuracy", "tokens", "answered", "process"}
    ] * 3
    assert all(0 < row["process"] <= 1 for row in notes["iterations"])


def test_a_reward_that_rises_while_accuracy_falls_is_named() -> None:
    rows = [{"accuracy": 1 - n / 10, "process": n / 10} for n in range(6)]
    assert _reward_hacking(rows) == "the process reward rose by 0.40 while accuracy fell by 0.40"
    assert _reward_hacking(rows[::-1]) is None
    assert _reward_hacking([{"accuracy": 1.0}] * 6) is None
