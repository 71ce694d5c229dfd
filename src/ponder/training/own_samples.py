"""Trains a reward on samples of the model whose answers it will pick: drawn, labelled by the task,
then learned.

A reward that was trained on other errors than a model makes can't find them. So this one sees the
model's own: several samples of each training problem, without duplicates. The task says whether an
answer is right, and the codec of the model, if it has one, which steps are. Without step labels
only the trajectory's head is trained. Training starts from the model's own weights (or from
`start`), which already know which token should come next.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from ponder.core import (
    Limit,
    Model,
    Progress,
    Source,
    Steps,
    Task,
    TrainingProblems,
    UserError,
    WithWeights,
    digest,
    require,
)
from ponder.core.settings import from_table
from ponder.core.wrapped import codec_name
from ponder.models import making_cost, models_folder
from ponder.models._torch_engine import load_light
from ponder.rewards._weights import Weighted
from ponder.rewards.trained import Trained, reader
from ponder.traces import steps, trace_of
from ponder.traces.split import By
from ponder.training.made_models import (
    MakingRecord,
    local_weights,
    make_once,
    samples_file,
    weights_folder,
    write_card,
)
from ponder.training.reward import RewardSettings, check_engine, train
from ponder.training.rollouts import (
    Rollouts,
    Sample,
    TrainingProblem,
    draw_problems,
    sampling_limit,
)

DEFAULTS: Mapping[str, Any] = {"targets": "labels", "loss": "cross-entropy"}  # labels are exact


@dataclass(frozen=True)
class OwnSamples:
    """The training of a reward on a model's own samples."""

    reward: Trained
    train_on: tuple[TrainingProblems, ...]
    cut: By = "blank"
    seed: int = 1  # of the samples

    def identity(self) -> dict[str, Any]:
        return self.reward.trained_on(self.train_on, self.cut, self.seed)

    def folder(self, model: Model) -> Path:
        """Where the reward for a model's samples is, or will be."""
        return models_folder() / f"reward-{digest(self.identity(), model.identity()).hex()[:20]}"

    def settings(self) -> RewardSettings:
        table = {**DEFAULTS, **self.reward.training, "seed": self.seed}
        return from_table(RewardSettings, table, "training a reward", "reward.training")

    def check(self, model: Model, task: Task) -> None:
        """Raise `UserError` for settings, or for a model, that it can't train with."""
        if "seed" in self.reward.training:
            hint = "write seed = 1 beside `reward`"
            raise UserError("the seed is the method's own", where="reward.training", hint=hint)
        check_engine(self.settings(), self.reward.device)
        if not self.reward.start:
            try:
                require(model, WithWeights).source(task)
            except UserError as error:
                hint = 'start = "org/name": a small language model to train'
                raise UserError(
                    f"{error.what}, which a reward could be trained from", hint=hint
                ) from None

    def sampling_limits(self, model: Model) -> dict[Path, Limit]:
        """The most that its samples may take, as `Prepared.sampling_limits`."""
        sampler = self.reward.sampler or model
        kept = self._kept(sampler)
        if (self.folder(model) / "made.json").is_file() or kept.is_file():
            return {}
        return {
            kept: partial(
                sampling_limit,
                sampler,
                self.train_on,
                self.reward.problems,
                self.reward.n,
                self.seed,
            )
        }

    def samplers(self, model: Model) -> tuple[Model, ...]:
        """Return the model that its samples are drawn from, as `Prepared.samplers`."""
        made = (self.folder(model) / "made.json").is_file()
        return () if made or not self.train_on else (self.reward.sampler or model,)

    def missing_outputs(self, model: Model) -> tuple[Path, ...]:
        """What making it still has to write, as `Prepared.missing_outputs`."""
        if (self.folder(model) / "made.json").is_file() or not self.train_on:
            return ()
        kept = self._kept(self.reward.sampler or model)
        weights = () if self.reward.start else (weights_folder(model, self.train_on[0].task),)
        return self.folder(model), *(path for path in (kept, *weights) if not path.exists())

    def make(self, model: Model) -> Iterator[Progress]:
        """Draw the samples and train, unless that is done."""
        if not self.train_on:
            raise UserError(
                "a reward needs problems to train on", hint="add a [[train]] to the study"
            )
        self.check(model, self.train_on[0].task)
        sources = {str(self._start(model, problems.task)[0]) for problems in self.train_on}
        if len(sources) > 1:
            what = f"{model.title()} has different weights for its tasks, and one reward is trained"
            raise UserError(what, hint="give [[train]] one task only")
        for progress in make_once(
            self.folder(model), partial(self._build, model), partial(self._complete, model)
        ):
            yield {"reward": self.reward.title(), **progress}

    def made(self, model: Model) -> Trained:
        """The reward, once it is made."""
        return replace(self.reward, start="", sampler=None, training={}, id=str(self.folder(model)))

    def cost(self, model: Model) -> dict[str, float]:
        """What making it took: `rollout_tokens`, `training_tokens` and `seconds` of CPU, and what
        was measured.
        """
        return making_cost(self.folder(model))

    def _start(self, model: Model, task: Task) -> tuple[Path | str, str]:
        """The weights to train, and the codec that they read and write through, if any."""
        if self.reward.start:
            return self.reward.start, ""
        return local_weights(model, task), require(model, WithWeights).source(task).codec

    def _kept(self, sampler: Model) -> Path:
        return samples_file(sampler, self.train_on, self.reward.problems, self.reward.n, self.seed)

    def _build(self, model: Model, folder: Path, record: MakingRecord) -> Iterator[Progress]:
        weights, codec = self._start(model, self.train_on[0].task)
        reading = reader(self.reward, str(weights), codec) or _plain(self.reward, str(weights))
        problems = draw_problems(self.train_on, self.reward.problems, self.seed)
        sampler = self.reward.sampler or model
        source = Source(
            Path(weights), reading.revision, reading.dtype, reading.device, reading.threads, codec
        )
        rollouts = Rollouts(
            sampler, load_light(source), problems, self.reward.n, self.seed, self._kept(sampler)
        )
        yield from rollouts
        record.rollout_tokens += rollouts.tokens
        traces = list(distinct(problems, rollouts.samples, sampler, self.cut))
        self._note(rollouts.samples, traces, record)
        yield {"samples": len(problems) * self.reward.n, "distinct": len(traces)}
        yield from train(reading, traces, folder, self.settings(), record=record)

    def _note(
        self, samples: Sequence[Sequence[Sample]], traces: Sequence[Steps], record: MakingRecord
    ) -> None:
        right = sum(bool(trace.facts["correct"]) for trace in traces)
        if right in (0, len(traces)):
            what = f"all {len(traces)} distinct samples are {'right' if right else 'wrong'}: there is nothing to learn"
            raise UserError(
                what, hint="train on other sizes ([[train]]), or sample at a higher temperature"
            )
        record.measures |= {"distinct_samples": len(traces), "distinct_right": right / len(traces)}
        record.notes["samples"] = sum(map(len, samples))

    def _complete(self, model: Model, folder: Path, record: MakingRecord) -> None:
        if not self.reward.start:
            write_card(Path(self._start(model, self.train_on[0].task)[0]), folder)
        record.write(folder, self.identity(), model.identity())


def distinct(
    problems: Sequence[TrainingProblem],
    samples: Sequence[Sequence[Sample]],
    sampler: Model,
    cut: By,
) -> Iterator[Steps]:
    """The samples as labelled traces, each text once per problem: what is written most often would
    count most.
    """
    for one, drawn in zip(problems, samples, strict=True):
        seen = set[tuple[str, str]]()
        for sample in drawn:
            if (text := (sample.thinking, sample.answer)) not in seen:
                seen.add(text)
                codec = codec_name(sampler, one.task)
                yield steps(trace_of(one.request(), *text, codec, correct=sample.right), cut)


def _plain(reward: Trained, weights: str) -> Weighted:
    """A reward that reads text, with the settings of another."""
    return replace(reward, id=weights, start="", sampler=None, training={})
