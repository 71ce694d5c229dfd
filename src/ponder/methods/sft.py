"""Supervised fine-tuning on traces: those of a file, or what teachers write; all of them, or some that are chosen.

After ReasonFlux-PRM (arXiv 2506.18896, use a): score every trace, keep the best, train on those. `by` also names the
baselines that such a choice must beat: random, longest, shortest, and right answers at random. The pool is the same for
every seed; the seed is that of the training and of a random choice. Copies in the pool are left out.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from ponder.core import Bill, Completion, Model, Progress, Reward, UserError, digest
from ponder.models.transformers import Loaded
from ponder.traces import Trace, read, steps, trace_of
from ponder.traces.selection import Choice, Scored, Selection, select
from ponder.training.loop import Example, Unit, likelihood, said
from ponder.training.making import EpochMethod, Record, made_models, samples_file
from ponder.training.rollouts import Rollouts, chosen


@dataclass(frozen=True, kw_only=True)
class Sft(EpochMethod):
    data: Path | None = None  # traces in JSONL, whatever the fields are called
    teachers: tuple[Model, ...] = ()  # as in [[model]]: they write the traces, if there is no file
    pool: int = 1000  # problems asked of each teacher
    by: Literal["all", "reward", "random", "longest", "shortest", "right"] = "all"  # which traces come first
    number: int | None = None  # of traces to train on; left out: all
    tokens: int | None = None  # or so many tokens of them
    reward: Reward | None = None  # `ponder list rewards`
    match_length: bool = False  # rank each trace among those of its length
    cut: Literal["blank", "sentence", "task"] = "blank"  # where a step begins, for the reward
    epochs: int = 3
    batch: int = 16

    example: ClassVar[dict[str, Any]] = {"teachers": [{"name": "pocket"}], "pool": 4, "number": 2, "by": "random"}

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.data is None) == (not self.teachers):
            raise UserError("it needs traces: a file, or teachers", hint='data = "traces.jsonl"')
        if self.by == "reward" and self.reward is None:
            raise UserError("choosing by reward needs one", hint='reward = { name = "…" }: ponder list rewards')

    def identity(self) -> dict[str, Any]:
        # Who isn't asked has no part in what is made.
        found = super().identity()
        idle = () if self.by == "reward" else ("reward", "match_length", "cut")
        return {name: value for name, value in found.items() if name not in idle}

    def over(self, units: Sequence[Unit]) -> float:
        return said(units)

    def build(self, model: Model, folder: Path, record: Record) -> Iterator[Progress]:
        loaded = self.open(model)
        pile: list[tuple[Trace, Example]] = []
        if self.data:
            pile = [(trace, _example(loaded, trace)) for trace in read(self.data)]
        for teacher in self.teachers:
            asked = chosen(self.train_on, self.pool, seed=0)
            kept = samples_file(teacher, self.train_on, self.pool, 1, 0)
            rollouts = Rollouts(teacher, loaded, asked, 1, 0, kept)
            yield from rollouts
            record.rollout_tokens += rollouts.tokens
            name = teacher.label or teacher.title()
            for one, (sample,) in zip(asked, rollouts.samples, strict=True):
                known = {"teacher": name, "correct": sample.right, "tokens": sample.tokens}
                pile.append(
                    (
                        trace_of(one.request(), sample.thinking, sample.answer, teacher.codec_name(one.task), **known),
                        sample.text,
                    )
                )
        selection = self._selected(pile, record)
        record.notes["selection"] = selection.summary()
        texts = [pile[kept.index] for kept in selection.kept]
        right = [trace.correct for trace, _ in texts if trace.correct is not None]
        record.measures |= {"selected": len(texts), "selected_tokens": selection.tokens}
        record.measures |= {"selected_right": sum(right) / len(right)} if right else {}
        yield {"chosen": len(texts), "of": len(pile)}
        units = [Unit((text,)) for _, text in texts]
        yield from self.teach(self.training(loaded, folder), units, likelihood, folder, record)

    def _selected(self, pile: Sequence[tuple[Trace, Example]], record: Record) -> Selection:
        scores: Sequence[float | None] = [None] * len(pile)
        if self.by == "reward" and self.reward:
            scores, read = self._scores(self.reward, [trace for trace, _ in pile])
            record.rollout_tokens += read
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
        return select([Scored(trace, score) for (trace, _), score in zip(pile, scores, strict=True)], how)

    def _scores(self, reward: Reward, traces: Sequence[Trace]) -> tuple[list[float | None], int]:
        """Every trace's score, and the tokens that the reward read; kept, as others choose from the same pile."""
        known = digest(reward.identity(), self.cut, [trace.id for trace in traces]).hex()
        kept = made_models() / f"scores-{known[:20]}.json"
        if not kept.is_file():
            found = list(reward.scored(steps(trace, self.cut) for trace in traces))
            new = kept.with_suffix(f".{os.getpid()}")
            new.write_text(json.dumps([[s.total for s in found], sum(s.bill.tokens for s in found)]), "utf-8")
            new.replace(kept)
        scores, read = json.loads(kept.read_text("utf-8"))
        return scores, read


def _example(loaded: Loaded, trace: Trace) -> Example:
    """A trace from a file, in the student's tokens."""
    if loaded.codec:
        raise UserError(
            "weights with a codec of their own can't be trained on traces from a file", hint="name `teachers` instead"
        )
    completion = Completion(trace.thinking, trace.answer, "end", Bill())
    return Example(loaded.asked([{"role": "user", "content": trace.question}]), loaded.encode(completion))
