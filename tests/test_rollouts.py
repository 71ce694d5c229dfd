"""What methods learn from: the right samples, graded and seeded, of problems that are never asked."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass, field, replace

import pytest

pytest.importorskip("torch")

from test_making import ON, SMALL, TASK

from ponder.core import Bill, Completion, Model, Request, TrainingProblems, UserError
from ponder.methods.dpo import Dpo
from ponder.models._torch_engine import load
from ponder.models.oracle import Oracle
from ponder.models.pocket import Pocket
from ponder.tasks.execution import Execution
from ponder.tasks.tents import Tents
from ponder.training.loop import TokenExample, epoch_steps, reply_tokens
from ponder.training.made_models import MakingRecord, samples_file
from ponder.training.rollouts import Rollouts, Sample, draw_problems


def sample(tokens: int, right: bool, word: int = 7) -> Sample:
    return Sample(TokenExample([3, 4], [word] * tokens), right)


def test_shortest_learns_the_shortest_right_sample_of_each_problem() -> None:
    record, best = MakingRecord(), sample(4, True)
    right = [sample(9, True), best, sample(2, False), sample(4, False)]
    wrong = [sample(1, False), sample(5, False)]
    units = SMALL.units([right, wrong, [sample(6, True)], wrong], record)
    assert [unit.texts for unit in units] == [(best.text,), (sample(6, True).text,)]
    assert record.notes == {"problems without a right sample": 2}
    assert reply_tokens(units) == 10  # a step's loss is the mean over tokens


def test_dpo_prefers_the_shortest_right_sample_to_what_the_paper_rejects() -> None:
    best, other = sample(10, True), sample(10, True, word=8)
    rejected = [sample(15, True), sample(40, True), sample(11, False), sample(30, False)]
    kept = [sample(14, True), other, sample(9, False), sample(10, False), sample(1, False)]
    record, method = MakingRecord(), Dpo(train_on=ON, pairs=9)
    groups = [
        [*kept, *rejected],
        [sample(3, False)],
        [sample(8, True), sample(8, True), sample(8, False)],
    ]
    groups[0].insert(3, best)
    found = method.units(groups, record)
    chosen_text = min((s for s in groups[0] if s.right), key=lambda s: s.tokens).text
    assert all(unit.texts[0] == chosen_text for unit in found)
    assert [len(unit.texts[1].said) for unit in found] == [40, 30, 15, 11]  # the longest first
    assert record.notes == {"problems without a right sample": 1}
    assert [
        len(u.texts[1].said) for u in replace(method, pairs=2).units(groups, MakingRecord())
    ] == [40, 30]
    assert [
        len(u.texts[1].said) for u in replace(method, longer=4.0).units(groups, MakingRecord())
    ] == [40, 30, 11]


def test_every_unit_is_learnt_once_an_epoch() -> None:
    units = SMALL.units([[sample(n, True)] for n in range(1, 11)], MakingRecord())
    steps = epoch_steps(units, 4, 6, SMALL, reply_tokens)
    assert [len(step.units) for step in steps] == [4, 4, 2, 4, 4, 2]
    epochs = [[index for step in part for index in step.units] for part in (steps[:3], steps[3:])]
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(10))
    assert epochs[0] != epochs[1]
    assert [step.factor for step in steps] == [SMALL.factor(n, 6) for n in range(6)]
    assert steps[0].divisor == sum(index + 1 for index in steps[0].units)  # tokens of the replies
    assert epoch_steps(units, 4, 6, SMALL, reply_tokens) == steps
    assert epoch_steps(units, 4, 6, replace(SMALL, seed=9), reply_tokens) != steps
    assert epoch_steps(units, 4, 2, SMALL)[0].units == steps[0].units


def test_where_nothing_is_right_nothing_is_learnt(models) -> None:
    few_words = Pocket(budget=3)
    with pytest.raises(
        UserError, match="nothing to train on: 6 problems × 3 samples gave no usable example"
    ):
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
            # of 10,000 less than it, if it is negative
            digits = re.fullmatch(r"u(\d)t(\d)h(\d)k(\d)<eos>", answer)
            said = int("".join(digits.groups()[::-1])) if digits else 0
            right = (
                bool(digits)
                and [said - 10**4 if said > 5000 else said] == where.problem.gold["sums"]
            )
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
    problems, loaded, models = (
        draw_problems(ON, 3, seed=1),
        load(Pocket().source(TASK)),
        [Noted() for _ in range(3)],
    )
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
