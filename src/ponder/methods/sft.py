"""Trains on reasoning traces from a file or from teachers: all of them, or a selection (supervised
fine-tuning).

After ReasonFlux-PRM (arXiv 2506.18896, use a): score every trace, keep the best, train on those.
`by` also names the baselines that such a selection must beat: random, longest, shortest, and random
among right answers. `rule` says how scores are used:

- top: the highest, as published.
- filter: traces that score at least `threshold`, at random.
- filter_shortest: of those, the shortest of each problem, problems at random. With `by = "right"`
  the filter is the
  check of answers, which stands in for a person who keeps right and concise traces.
- per_problem: the highest of each problem, problems at random.
- match_length: the highest among traces of similar length.

The pool of traces is the same for every seed; the seed is that of the training, of a random
selection and of ties. Duplicates are left out.
"""

from __future__ import annotations

import itertools
import json
import os
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, Literal, TypeAlias

import msgspec

from ponder.core import (
    Bill,
    Completion,
    InMemory,
    Model,
    Progress,
    Reward,
    Spend,
    Task,
    UserError,
    digest,
    fingerprint,
)
from ponder.core.scoring import judge_of, scores_by_index, scoring_limit
from ponder.core.wrapped import codec_name, making_cost
from ponder.models import models_folder
from ponder.models._torch_engine import Loaded, load_light
from ponder.rewards.oracle import true_labels
from ponder.traces import Trace, read, request_messages, steps, trace_of
from ponder.traces.score_file import batches
from ponder.traces.selection import By, Choice, Scored, Selection, select
from ponder.training.fit import EpochSettings, fit, weights_to_train
from ponder.training.loop import SUPERVISED, TokenExample, Unit, reply_tokens
from ponder.training.made_models import Input, MakingRecord, WeightMethod, samples_file
from ponder.training.rollouts import Rollouts, draw_problems, sampling_limit

Cut: TypeAlias = Literal["blank", "sentence", "task"]
SCORING = ("reward", "match_length", "cut", "tolerance", "threshold")
FILTERS = ("filter", "filter_shortest")


@dataclass(frozen=True)
class PoolScores:
    """What a reward said of a pool of traces, as it is kept in a file."""

    scores: list[float | None]
    tokens: int  # that the reward read
    pool: str  # identifies the traces
    parameters: int | None = None  # of the reward


@dataclass(frozen=True, kw_only=True)
class Sft(EpochSettings, WeightMethod):
    # a JSONL file of traces; docs/selection.md lists the field names it may use
    data: Path | None = None
    # as in [[model]]: models that write the traces, if there is no file
    teachers: tuple[Model, ...] = ()
    pool: int = 1000  # problems that each teacher is asked
    # how traces are selected
    by: Literal["all", "reward", "random", "longest", "shortest", "right"] = "all"
    number: int | None = None  # traces to train on; left out: all
    tokens: int | None = None  # or the tokens to train on
    reward: Reward | None = None  # `ponder list rewards`; for by = "reward"
    # how scores are used
    rule: Literal["top", "filter", "filter_shortest", "per_problem", "match_length"] = "top"
    threshold: float | None = None  # the lowest score that a filter lets through
    tolerance: float = 0.0  # scores that differ by at most this are ties, broken at random
    match_length: bool = False  # the same as rule = "match_length"
    cut: Cut = "blank"  # where the reward splits steps
    epochs: int = 3  # passes over the examples
    batch: int = 16

    example: ClassVar[dict[str, Any]] = {
        "teachers": [{"name": "pocket"}],
        "pool": 4,
        "number": 2,
        "by": "random",
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.data is None) == (not self.teachers):
            raise UserError(
                "sft needs traces, from a file or from teachers", hint='data = "traces.jsonl"'
            )
        if self.by == "reward" and self.reward is None:
            raise UserError(
                "selecting by reward needs a reward",
                hint='reward = { name = "…" }: ponder list rewards',
            )
        if self.match_length:
            object.__setattr__(self, "rule", "match_length")
        if self.by == "right" and self.rule not in ("top", "filter_shortest"):
            raise UserError(
                f'rule = "{self.rule}" needs a reward',
                hint='by = "reward", or rule = "filter_shortest"',
            )
        if self.by == "reward" and self.rule in FILTERS and self.threshold is None:
            hint = "threshold = 1.9 for a reward whose best score is 2, or another rule"
            raise UserError(f'rule = "{self.rule}" needs the lowest score that passes', hint=hint)

    def identity(self) -> dict[str, Any]:
        # What isn't used doesn't change the model.
        unused: set[str] = set()
        if self.by != "reward":
            unused.update(SCORING)
        if self.by not in ("reward", "right"):
            unused.add("rule")
        if self.rule not in FILTERS:
            unused.add("threshold")
        identity = super().identity()
        identity = {name: value for name, value in identity.items() if name not in unused}
        if identity.get("rule") == "match_length":  # the key of its former name
            del identity["rule"]
            identity["match_length"] = True
        # Ties went by id, and a long trace was taken for a copy of a short one of its problem. One
        # teacher answers each problem once.
        if self.by == "reward" or len(self.teachers) != 1:
            identity["picks"] = 2
        return identity

    def check(self, model: Model, task: Task) -> None:
        super().check(model, task)
        for teacher, problems in itertools.product(self.teachers, self.train_on):
            teacher.check(problems.task, problems.size)

    def uses(self) -> Iterator[Model | Reward]:
        yield from self.teachers
        if self.by == "reward" and self.reward:
            yield self.reward

    def inputs(self, model: Model) -> Iterator[Input]:
        yield from super().inputs(model)
        for teacher in self.teachers:
            limit = partial(sampling_limit, teacher, self.train_on, self.pool, 1, 0)
            yield Input(self._samples_file(teacher), (teacher,), limit)
        if self.by == "reward" and self.reward:
            judge = judge_of(self.reward)
            if judge:
                yield Input(
                    self._scores_file(), (judge,), partial(self._scoring_limit, self.reward)
                )
            else:
                yield Input(self._scores_file())

    def _scoring_limit(self, reward: Reward) -> Spend | None:
        """Return an upper bound on a judge's tokens; None if a teacher's reply has no limit."""
        judge = judge_of(reward)
        prices = judge.prices if judge else None
        total = Spend()
        for trace in read(self.data) if self.data else ():
            tokens = len(f"{trace.question}{trace.thinking}{trace.answer}".encode())
            total = total.plus(scoring_limit(reward, tokens).as_reward(prices))
        for teacher in self.teachers:
            limit = sampling_limit(teacher, self.train_on, 1, 1, 0)
            if limit is None:
                return None
            longest = scoring_limit(reward, limit.tokens + limit.reward_tokens)
            total = total.plus(longest.as_reward(prices).times(self.pool))
        return total

    def _samples_file(self, teacher: Model) -> Path:
        return samples_file(teacher, self.train_on, self.pool, 1, 0)

    def _scores_file(self) -> Path:
        """Return the file of the pool's scores, which other selections from it use too."""
        assert self.reward
        pool: object = [self._samples_file(teacher).name for teacher in self.teachers]
        if self.data:
            pool = fingerprint(self.data)
        key = digest(self.reward.identity(), self.cut, pool).hex()[:20]
        return models_folder() / f"scores-{key}.json"

    def build(self, model: Model, folder: Path, record: MakingRecord) -> Iterator[Progress]:
        source = weights_to_train(model, self.train_on)
        light = load_light(source)
        pool: list[tuple[Trace, TokenExample]] = []
        if self.data:
            pool = [(trace, _tokenized(light, trace)) for trace in read(self.data)]
        for teacher in self.teachers:
            yield from self._ask(teacher, light, pool, record)
        selection = yield from self._select(pool, record)
        record.notes["selection"] = selection.summary()
        selected = [pool[choice.index] for choice in selection.kept]
        verdicts = [trace.correct for trace, _ in selected if trace.correct is not None]
        record.measures["selected"] = len(selected)
        record.measures["selected_tokens"] = selection.tokens
        if verdicts:
            record.measures["selected_right"] = sum(verdicts) / len(verdicts)
        record.measures |= _described([trace for trace, _ in selected], self.cut)
        if selection.scores:
            lowest, highest = selection.scores
            record.measures["score_low"] = lowest
            record.measures["score_high"] = highest
        yield {"selected": len(selected), "of": len(pool)}
        units = [Unit((text,)) for _, text in selected]
        yield from fit(source, units, SUPERVISED, self, folder, record, divisor=reply_tokens)

    def _ask(
        self,
        teacher: Model,
        loaded: Loaded,
        pool: list[tuple[Trace, TokenExample]],
        record: MakingRecord,
    ) -> Iterator[Progress]:
        """Add a teacher's traces to the pool: one per problem."""
        problems = draw_problems(self.train_on, self.pool, seed=0)
        rollouts = Rollouts(teacher, loaded, problems, 1, 0, self._samples_file(teacher))
        yield from rollouts
        record.rollout_tokens += rollouts.tokens
        record.add_cost(making_cost(teacher, self.train_on[0].task))
        name = teacher.label or teacher.title()
        for problem, (sample,) in zip(problems, rollouts.samples, strict=True):
            trace = trace_of(
                problem.request(),
                sample.thinking,
                sample.answer,
                codec_name(teacher, problem.task),
                teacher=name,
                correct=sample.right,
                tokens=sample.tokens,
            )
            pool.append((trace, sample.text))

    def _select(
        self, pool: Sequence[tuple[Trace, TokenExample]], record: MakingRecord
    ) -> Generator[Progress, None, Selection]:
        scores: Sequence[float | None] = [None] * len(pool)
        if self.by == "reward" and self.reward:
            pool_scores = yield from self._scores(self.reward, [trace for trace, _ in pool])
            scores = pool_scores.scores
            record.rollout_tokens += pool_scores.tokens
            # Older files of scores don't have the number of parameters.
            parameters = pool_scores.parameters or _parameters(self.reward)
            if parameters:
                record.measures["reward_parameters"] = parameters
        how = Choice(
            by=self._order(),
            top=self.number,
            budget_tokens=self.tokens,
            threshold=self.threshold if self.by == "reward" and self.rule in FILTERS else None,
            tolerance=self.tolerance,
            per_problem=self.by in ("reward", "right")
            and self.rule in ("filter_shortest", "per_problem"),
            match_length=self.by == "reward" and self.rule == "match_length",
            right=self.by == "right",
            seed=self.seed,
        )
        return select(
            [Scored(trace, score) for (trace, _), score in zip(pool, scores, strict=True)], how
        )

    def _order(self) -> By:
        """Return the order in which traces are selected, after the filter."""
        if self.by == "right" or (self.by == "reward" and self.rule in FILTERS):
            return "shortest" if self.rule == "filter_shortest" else "random"
        return self.by

    def _scores(
        self, reward: Reward, traces: Sequence[Trace]
    ) -> Generator[Progress, None, PoolScores]:
        """Return the scores of a pool, from their file if another selection has written it.

        If interrupted, scoring resumes.
        """
        path = self._scores_file()
        pool = digest([trace.id for trace in traces]).hex()
        if path.is_file():
            stored = msgspec.json.decode(path.read_bytes(), type=PoolScores)
            if stored.pool == pool:  # otherwise the pool was drawn anew
                return stored
        partial_file = path.with_suffix(f".{pool[:16]}.jsonl")
        with partial_file.open("ab+") as file:
            scored = _read_partial_scores(file)
            unscored = [(n, trace) for n, trace in enumerate(traces) if n not in scored]
            for batch in batches(unscored):
                yield {"scored": len(scored), "of": len(traces)}
                split = [steps(trace, self.cut) for _, trace in batch]
                for position, scores in scores_by_index(reward, split):
                    index = batch[position][0]
                    scored[index] = (scores.total, scores.bill.tokens)
                    line = json.dumps([index, scores.total, scores.bill.tokens])
                    file.write(line.encode() + b"\n")
                    file.flush()
        totals = [scored[index][0] for index in range(len(traces))]
        tokens = sum(tokens for _, tokens in scored.values())
        pool_scores = PoolScores(totals, tokens, pool, _parameters(reward))
        if isinstance(reward, InMemory):
            reward.release()  # a student may need its memory
        new = path.with_suffix(f".{os.getpid()}")
        new.write_bytes(msgspec.json.encode(pool_scores))
        new.replace(path)
        partial_file.unlink()
        return pool_scores


def _read_partial_scores(file: BinaryIO) -> dict[int, tuple[float | None, int]]:
    """Return total and tokens by the index of a trace, and cut off an incomplete last line."""
    file.seek(0)
    lines = [line for line in file if line.endswith(b"\n")]
    file.truncate(sum(map(len, lines)))
    scored: dict[int, tuple[float | None, int]] = {}
    for line in lines:
        index, total, tokens = json.loads(line)
        scored[index] = (total, tokens)
    return scored


def _parameters(reward: Reward) -> int | None:
    """Return the number of a reward's weights, or None if they aren't in this process."""
    if isinstance(reward, InMemory):
        return reward.parameters()
    return None


def _described(traces: Sequence[Trace], cut: Cut) -> dict[str, float]:
    """Return which fraction of traces is one teacher's, and which is sound in every step."""
    facts: dict[str, float] = {}
    teachers = Counter(trace.teacher for trace in traces if trace.teacher)
    if teachers:
        facts["selected_one_teacher"] = max(teachers.values()) / len(traces)
    sound: list[bool] = []
    for trace in traces:
        # As the model that wrote it marks its steps, so that each pass is judged by itself.
        trace_cut = "task" if "codec" in trace.extra else cut
        labels = true_labels(steps(trace, trace_cut))
        if labels is not None:
            sound.append(all(labels))
    if sound:
        facts["selected_sound"] = sum(sound) / len(sound)
    return facts


def _tokenized(loaded: Loaded, trace: Trace) -> TokenExample:
    """Return a trace from a file as the student's tokens."""
    if loaded.codec:
        raise UserError(
            f"these weights read and write through the codec of `{loaded.codec}`, "
            "which can't encode a file of traces",
            hint="give `teachers` instead of `data`, or use weights with a chat template",
        )
    cut_off = trace.extra.get("stop") == "length"  # such a reply doesn't teach to stop
    completion = Completion(trace.thinking, trace.answer, "length" if cut_off else "end", Bill())
    return TokenExample(loaded.render(request_messages(trace)), loaded.encode(completion))
