"""Trains on reasoning traces from a file or from teachers: all of them, or a selection (supervised fine-tuning).

After ReasonFlux-PRM (arXiv 2506.18896, use a): score every trace, keep the best, train on those. `by` also names the
baselines that such a selection must beat: random, longest, shortest, and random among right answers. The pool of traces
is the same for every seed; the seed is that of the training and of a random selection. Duplicates are left out.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from ponder.core import Bill, Completion, Model, Progress, Reward, UserError, digest
from ponder.models._torch_engine import Loaded
from ponder.traces import Trace, read, steps, trace_of
from ponder.traces.selection import Choice, Scored, Selection, select
from ponder.training.loop import TokenExample, Unit, likelihood, reply_tokens
from ponder.training.made_models import MakingRecord, models_folder, samples_file
from ponder.training.rollouts import Rollouts, draw_problems
from ponder.training.weight_methods import EpochMethod


@dataclass(frozen=True, kw_only=True)
class Sft(EpochMethod):
    data: Path | None = None  # a JSONL file of traces; docs/selection.md lists the field names it may use
    teachers: tuple[Model, ...] = ()  # as in [[model]]: models that write the traces, if there is no file
    pool: int = 1000  # problems that each teacher is asked
    by: Literal["all", "reward", "random", "longest", "shortest", "right"] = "all"  # how traces are selected
    number: int | None = None  # traces to train on; left out: all
    tokens: int | None = None  # or the tokens to train on
    reward: Reward | None = None  # `ponder list rewards`; for by = "reward"
    match_length: bool = False  # rank each trace among traces of similar length
    cut: Literal["blank", "sentence", "task"] = "blank"  # where the reward splits steps
    epochs: int = 3
    batch: int = 16

    example: ClassVar[dict[str, Any]] = {"teachers": [{"name": "pocket"}], "pool": 4, "number": 2, "by": "random"}

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.data is None) == (not self.teachers):
            raise UserError("sft needs traces, from a file or from teachers", hint='data = "traces.jsonl"')
        if self.by == "reward" and self.reward is None:
            raise UserError("selecting by reward needs a reward", hint='reward = { name = "…" }: ponder list rewards')

    def identity(self) -> dict[str, Any]:
        # A reward that isn't used doesn't change the model.
        unused = () if self.by == "reward" else ("reward", "match_length", "cut")
        return {name: value for name, value in super().identity().items() if name not in unused}

    def over(self, units: Sequence[Unit]) -> float:
        return reply_tokens(units)

    def build(self, model: Model, folder: Path, record: MakingRecord) -> Iterator[Progress]:
        loaded = self.load(model)
        pool: list[tuple[Trace, TokenExample]] = []
        if self.data:
            pool = [(trace, _tokenized(loaded, trace)) for trace in read(self.data)]
        for teacher in self.teachers:
            yield from self._ask(teacher, loaded, pool, record)
        selection = self._select(pool, record)
        record.notes["selection"] = selection.summary()
        selected = [pool[kept.index] for kept in selection.kept]
        right = [trace.correct for trace, _ in selected if trace.correct is not None]
        record.measures |= {"selected": len(selected), "selected_tokens": selection.tokens}
        record.measures |= {"selected_right": sum(right) / len(right)} if right else {}
        yield {"selected": len(selected), "of": len(pool)}
        units = [Unit((text,)) for _, text in selected]
        yield from self.train(self.trainer(loaded, folder), units, likelihood, folder, record)

    def _ask(
        self, teacher: Model, loaded: Loaded, pool: list[tuple[Trace, TokenExample]], record: MakingRecord
    ) -> Iterator[Progress]:
        """Add a teacher's traces to the pool: one per problem."""
        problems = draw_problems(self.train_on, self.pool, seed=0)
        kept = samples_file(teacher, self.train_on, self.pool, 1, 0)
        rollouts = Rollouts(teacher, loaded, problems, 1, 0, kept)
        yield from rollouts
        record.rollout_tokens += rollouts.tokens
        record.add_cost(teacher.made(self.train_on[0].task))
        name = teacher.label or teacher.title()
        for one, (sample,) in zip(problems, rollouts.samples, strict=True):
            known = {"teacher": name, "correct": sample.right, "tokens": sample.tokens}
            codec = teacher.codec_name(one.task)
            pool.append((trace_of(one.request(), sample.thinking, sample.answer, codec, **known), sample.text))

    def _select(self, pool: Sequence[tuple[Trace, TokenExample]], record: MakingRecord) -> Selection:
        scores: Sequence[float | None] = [None] * len(pool)
        if self.by == "reward" and self.reward:
            scores, read_tokens = self._scores(self.reward, [trace for trace, _ in pool])
            record.rollout_tokens += read_tokens
            if parameters := self.reward.parameters():
                record.measures["reward_parameters"] = parameters
        by: Any = "random" if self.by == "right" else self.by
        how = Choice(
            by=by,
            top=self.number,
            budget_tokens=self.tokens,
            match_length=self.match_length,
            right=self.by == "right",
            seed=self.seed,
        )
        return select([Scored(trace, score) for (trace, _), score in zip(pool, scores, strict=True)], how)

    def _scores(self, reward: Reward, traces: Sequence[Trace]) -> tuple[list[float | None], int]:
        """Every trace's score, and the tokens that the reward read; kept for other selections from the same pool."""
        key = digest(reward.identity(), self.cut, [trace.id for trace in traces]).hex()
        kept = models_folder() / f"scores-{key[:20]}.json"
        if not kept.is_file():
            scored = list(reward.scored(steps(trace, self.cut) for trace in traces))
            new = kept.with_suffix(f".{os.getpid()}")
            new.write_text(json.dumps([[s.total for s in scored], sum(s.bill.tokens for s in scored)]), "utf-8")
            new.replace(kept)
        scores, read_tokens = json.loads(kept.read_text("utf-8"))
        return scores, read_tokens


def _tokenized(loaded: Loaded, trace: Trace) -> TokenExample:
    """A trace from a file as the student's tokens."""
    if loaded.codec:
        what = (
            f"these weights read and write through the codec of `{loaded.codec}`, which can't encode a file of traces"
        )
        raise UserError(what, hint="give `teachers` instead of `data`, or use weights with a chat template")
    completion = Completion(trace.thinking, trace.answer, "end", Bill())
    return TokenExample(loaded.asked([{"role": "user", "content": trace.question}]), loaded.encode(completion))
