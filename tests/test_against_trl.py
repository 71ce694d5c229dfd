"""Losses and gradients beside TRL's: the same on the same texts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("trl")

from datasets import Dataset
from tiny import END, flat, gradients, texts, tiny, tokenizer
from transformers import TrainerCallback
from trl import DPOConfig, DPOTrainer, GRPOConfig, GRPOTrainer

from ponder.core import Grade, Problem, Source, Task, UserError
from ponder.methods.dpo import Dpo
from ponder.methods.length_rl import LengthRl
from ponder.methods.shortest import Shortest
from ponder.models._torch_engine import load_anew
from ponder.models.transformers import Transformers
from ponder.rewards._weights import Row
from ponder.rewards.trained import Trained
from ponder.training import trl_engine, trl_trainers, trl_worker
from ponder.training.fresh_sampler import FreshSampler
from ponder.training.loop import (
    TokenExample,
    Trainer,
    TrainingSettings,
    Unit,
    check_first_dpo_loss,
    epoch_batch,
    likelihood,
    reply_tokens,
)
from ponder.training.reward import RewardSettings, RewardTrainer, RowTarget, Scorer, joint_loss
from ponder.training.rollouts import Sample, TrainingProblem
from ponder.training.trl_engine import Rl, on_samples

COMMON = {
    "use_cpu": True,
    "bf16": False,
    "gradient_checkpointing": False,
    "report_to": "none",
    "save_strategy": "no",
    "max_steps": 1,
    "max_grad_norm": 0.0,
    "logging_steps": 1,
    "disable_tqdm": True,
}


class Noted(TrainerCallback):
    """The gradients of all steps, before they are taken."""

    def __init__(self) -> None:
        self.gradients: list[dict[str, Any]] = []

    def on_pre_optimizer_step(
        self, args: Any, state: Any, control: Any, model: Any = None, **more: Any
    ) -> None:
        self.gradients.append(
            {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
        )


def words(tokens: list[int]) -> str:
    return " ".join(tokenizer().convert_ids_to_tokens(tokens))


def test_dpo(tmp_path: Path) -> None:
    pairs = [
        (a, TokenExample(a.prompt, b.said))
        for a, b in zip(texts(6, seed=1), texts(6, seed=2), strict=True)
    ]
    rows = [
        {"prompt": words(a.prompt), "chosen": " " + words(a.said), "rejected": " " + words(b.said)}
        for a, b in pairs
    ]
    noted, before, now = Noted(), tiny(seed=3), tiny(seed=4)
    args = DPOConfig(str(tmp_path), beta=0.1, per_device_train_batch_size=6, **COMMON)
    more = {
        "processing_class": tokenizer(),
        "train_dataset": Dataset.from_list(rows),
        "callbacks": [noted],
    }
    trainer = DPOTrainer(model=now.model, ref_model=before.model, args=args, **more)
    trainer.train()
    (loss,) = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]

    method = Dpo(beta=0.1, clip=0.0)
    training = Trainer(tiny(seed=3), method, tmp_path)
    units, preference = method.loss(training, [Unit(pair) for pair in pairs])
    with torch.no_grad():
        for name, p in tiny(seed=4).model.named_parameters():
            training.plain.get_parameter(name).copy_(p)
    training.step = 1  # at the first step, policy and reference must be equal
    seen = gradients(training)
    ours = training.learn(units, preference, len(units))
    assert ours == pytest.approx(loss, abs=2e-4)  # which TRL rounds
    assert abs(ours - 0.6931) > 0.02  # not the loss of a model that is its own reference
    torch.testing.assert_close(flat(seen[0]), flat(noted.gradients[0]), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("temperature", [1.0, 1.7])
def test_the_first_step_of_length_rl_is_that_of_dr_grpo(tmp_path: Path, temperature: float) -> None:
    rolled: list[tuple[list[int], list[int]]] = []

    def right(said: list[int]) -> bool:
        return sum(said) % 2 == 0

    def reward(prompts: list[str], completion_ids: list[list[int]], **_: Any) -> list[float]:
        rolled.extend(
            zip((tokenizer()(p)["input_ids"] for p in prompts), completion_ids, strict=True)
        )
        earned = []
        for start in range(0, len(completion_ids), 4):
            lengths = [len(said) for said in completion_ids[start : start + 4]]
            low, high = min(lengths), max(lengths)
            for said in completion_ids[start : start + 4]:
                length = 0.5 - (len(said) - low) / (high - low) if high > low else 0.0
                earned.append(right(said) + 0.5 * (length if right(said) else min(0.0, length)))
        return earned

    most, noted, spoken = 24, Noted(), tokenizer()
    spoken.padding_side = "left"
    prompts = [{"prompt": words(list(range(2, 4 + n)))} for n in range(3)]
    args = GRPOConfig(
        str(tmp_path), loss_type="dr_grpo", scale_rewards="none", beta=0.0, num_generations=4, max_completion_length=most,
        per_device_train_batch_size=12, temperature=temperature, seed=5, **COMMON,
    )  # fmt: skip
    dull = {"initializer_range": 0.15}  # its texts end by chance, some sooner and some later
    more = {
        "processing_class": spoken,
        "train_dataset": Dataset.from_list(prompts),
        "callbacks": [noted],
    }
    GRPOTrainer(model=tiny(**dull).model, reward_funcs=reward, args=args, **more).train()
    assert len(rolled) == 12
    assert len({len(said) for _, said in rolled}) > 4
    assert {right(said) for _, said in rolled} == {True, False}
    assert any(said[-1] == END for _, said in rolled)

    method = LengthRl(inner=1, clip=0.0)
    training = Trainer(tiny(**dull), method, tmp_path, temperature)
    groups = [
        [Sample(TokenExample(p, s), right(s)) for p, s in rolled[start : start + 4]]
        for start in range(0, 12, 4)
    ]
    seen = gradients(training)
    method._learn(training, [u for some in groups for u in method._units(some, 0)], 12)
    ours, theirs = flat(seen[0]), flat(noted.gradients[0])
    assert torch.cosine_similarity(ours, theirs, 0) == pytest.approx(1.0, abs=1e-6)
    # by which TRL divides every text
    assert float(ours.norm() / theirs.norm()) == pytest.approx(most, rel=1e-4)
    assert theirs.norm() > 1e-3


def written_job(
    kind: str, settings: TrainingSettings, units: list[Unit], folder: Path, steps: int, **more: Any
) -> trl_engine.Job:
    """Write a tiny model and the rows to train it on, as the engine's processes find them."""
    tiny().model.save_pretrained(folder / "model")
    tokenizer().save_pretrained(folder / "model")
    training = trl_engine.on_units(
        kind, settings, Source(folder / "model"), folder, units, steps=steps, **more
    )
    training.job.folder.mkdir()
    trl_engine._write_rows(training.rows, training.job.folder / "rows.arrow")
    return training.job


def stepped(
    kind: str, settings: TrainingSettings, units: list[Unit], folder: Path, steps: int, **more: Any
) -> tuple[list[float], list[dict[str, Any]]]:
    """The losses and gradients of the engine's steps, in this process."""
    job = written_job(kind, settings, units, folder, steps, **more)
    trainer = trl_worker.trainer(job, load_anew(job.source), trl_worker.arguments(job))
    trainer.add_callback(noted := Noted())
    trainer.train()
    return [
        entry["loss"] for entry in trainer.state.log_history if "loss" in entry
    ], noted.gradients


def agree(ours: list[dict[str, Any]], theirs: list[dict[str, Any]], rtol: float = 2e-3) -> None:
    """Step by step the same gradients, though every step's weights come from the steps before it."""
    assert len(ours) == len(theirs)
    for one, other in ((flat(a), flat(b)) for a, b in zip(ours, theirs, strict=True)):
        assert other.norm() > 1e-3
        assert torch.cosine_similarity(one, other, 0) > 0.9999
        torch.testing.assert_close(one, other, rtol=rtol, atol=2e-3 * float(other.abs().max()))


HOW = {"rate": 3e-3, "warm_up": 0.5, "clip": 0.5, "seed": 5, "batch": 4}


@pytest.mark.parametrize("rows", [1, 2])
def test_the_engine_takes_the_steps_of_our_loop_in_supervised_training(
    tmp_path: Path, rows: int
) -> None:
    method = Shortest(**HOW, steps=3, engine="trl", args={"per_device_train_batch_size": rows})
    units = [Unit((text,)) for text in texts(8)]  # so that the third step begins another epoch
    losses, theirs = stepped("sft", method.settings(), units, tmp_path, 3, batch=4)
    training = Trainer(tiny(), method, tmp_path)
    seen = gradients(training)
    reports = training.run(3, lambda step: epoch_batch(units, 4, 5, step), likelihood, reply_tokens)
    assert [report["loss"] for report in reports] == pytest.approx(losses, abs=1e-3)
    agree(seen, theirs)


def test_the_engine_takes_the_steps_of_our_loop_in_preference_training(tmp_path: Path) -> None:
    method = Dpo(**HOW, steps=3, beta=0.3, engine="trl", args={"per_device_train_batch_size": 2})
    both = zip(texts(8, seed=1), texts(8, seed=2), strict=True)
    units = [Unit((a, TokenExample(a.prompt, b.said))) for a, b in both]
    losses, theirs = stepped(
        "dpo", method.settings(), units, tmp_path, 3, batch=4, **method.trl_job()
    )
    training = Trainer(tiny(), method, tmp_path)
    prepared, loss = method.loss(training, units)
    seen = gradients(training)
    reports = training.run(3, lambda step: epoch_batch(prepared, 4, 5, step), loss, len)
    assert [report["loss"] for report in reports] == pytest.approx(losses, abs=1e-3)
    # the reference is the model before training, not the one that is trained
    assert abs(losses[-1] - 0.6931) > 0.005
    agree(seen, theirs)


@pytest.mark.parametrize("args", [{}, {"loss_weights": [2.0]}])
def test_another_reference_than_the_model_before_training_is_refused(
    tmp_path: Path, args: dict[str, Any]
) -> None:
    """As under FSDP, where processes other than the first may have a reference without weights."""
    method = Dpo(**HOW, steps=2, engine="trl", args=args)
    both = zip(texts(4, seed=1), texts(4, seed=2), strict=True)
    units = [Unit((a, TokenExample(a.prompt, b.said))) for a, b in both]
    assert (
        len(stepped("dpo", method.settings(), units, tmp_path, 2, batch=4, **method.trl_job())[0])
        == 2
    )

    job = trl_engine.on_units(
        "dpo",
        method.settings(),
        Source(tmp_path / "model"),
        tmp_path,
        units,
        batch=4,
        steps=2,
        **method.trl_job(),
    ).job
    trainer = trl_worker.trainer(job, load_anew(job.source), trl_worker.arguments(job))
    with torch.no_grad():
        for name, p in tiny(seed=4).model.named_parameters():
            trainer.model.get_parameter(name).copy_(p)  # after the reference was asked
    with pytest.raises(
        UserError, match=r"the first loss of dpo is .* must be 0\.6931 \(ln 2\)"
    ) as error:
        trainer.train()
    assert "fsdp_cpu_ram_efficient_loading: false" in error.value.hint

    plain = Dpo(**HOW, steps=2)
    training = Trainer(tiny(), plain, tmp_path)
    prepared, loss = plain.loss(training, units)
    with torch.no_grad():
        for name, p in tiny(seed=4).model.named_parameters():
            training.plain.get_parameter(name).copy_(p)
    with pytest.raises(UserError, match=r"must be 0\.6931 \(ln 2\)"):
        training.learn(prepared, loss, len(prepared))


def test_bfloat16_may_round_the_first_loss() -> None:
    exact = TrainingSettings()
    rounded = TrainingSettings(precision="bfloat16")
    adapter = TrainingSettings(lora=4)
    for settings, dtype in ((exact, "torch.float32"), (rounded, "float32"), (adapter, "bfloat16")):
        check_first_dpo_loss(0.6940, settings, dtype, "")
    for settings, dtype in ((rounded, "float32"), (adapter, "bfloat16")):
        check_first_dpo_loss(0.75, settings, dtype, "")
    with pytest.raises(UserError, match=r"is 0\.75"):
        check_first_dpo_loss(0.75, exact, "float32", "")
    with pytest.raises(UserError, match=r"is 3\.6,"):
        check_first_dpo_loss(3.6, rounded, "float32", "")


def judged_units() -> list[Unit]:
    """Eight texts with labels of two steps each."""
    units = []
    for n, text in enumerate(texts(8)):
        row = Row([*text.prompt, *text.said], [len(text.prompt), len(text) - 1])
        known = torch.tensor([1.0, float(n % 2)]), torch.tensor([0.5, 0.5])
        units.append(
            Unit(
                (TokenExample(row.tokens, ()),),
                RowTarget(row, *known, float("nan") if n % 3 else 1.0),
            )
        )
    return units


def test_the_engine_takes_the_steps_of_our_loop_in_training_a_reward(tmp_path: Path) -> None:
    settings = RewardSettings(
        **HOW, head_rate=0.03, engine="trl", args={"per_device_train_batch_size": 2}
    )
    units = judged_units()
    scorer = Trained(id=str(tmp_path / "model"))
    losses, theirs = stepped("reward", settings, units, tmp_path, 3, batch=4, scorer=scorer)
    loaded = tiny()
    training = RewardTrainer(
        Scorer(scorer.states(loaded.model), loaded.model.device), settings, tmp_path
    )
    seen = gradients(training)
    reports = training.run(
        3, lambda step: epoch_batch(units, 4, 5, step), joint_loss(settings), len
    )
    assert [report["loss"] for report in reports] == pytest.approx(losses, abs=1e-3)
    agree(seen, theirs)


def test_a_resumed_training_of_a_reward_counts_the_tokens_before_it(tmp_path: Path) -> None:
    settings = RewardSettings(**HOW, engine="trl", args={"save_steps": 2, "save_total_limit": 3})
    scorer = Trained(id=str(tmp_path / "model"))
    job = written_job("reward", settings, judged_units(), tmp_path, 3, batch=4, scorer=scorer)

    def train(checkpoint: Path | None) -> list[int]:
        """Return the tokens that each step reports."""
        (job.folder / "steps.jsonl").unlink(missing_ok=True)
        trainer = trl_worker.trainer(job, load_anew(job.source), trl_worker.arguments(job))
        trainer.train(resume_from_checkpoint=checkpoint and str(checkpoint))
        lines = (job.folder / "steps.jsonl").read_text("utf-8").splitlines()
        return [json.loads(line)["num_tokens"] for line in lines]

    tokens = train(None)
    assert len(tokens) == 3
    assert train(job.folder / "checkpoints" / "checkpoint-2") == tokens[2:]


@dataclass(frozen=True)
class Parity(Task):
    """An answer is right if it has an even number of words."""

    def problem(self, size: int, seed: int) -> Problem:
        prompt = words([2 + (seed + n) % 20 for n in range(size)])
        return Problem(prompt, size, (prompt,))

    def solve(self, problem: Problem) -> str:
        return "w2 w3"

    def grade(self, problem: Problem, answer: str) -> Grade:
        return Grade(correct=len(answer.split()) % 2 == 0)


@dataclass(frozen=True, kw_only=True)
class Spy(LengthRl):
    """Remembers what it was asked to reward."""

    asked: list[Any] = field(default_factory=list)

    def group_rewards(self, problem: Any, samples: Any, iteration: int, codec: str) -> Any:
        self.asked.append((iteration, problem, samples))
        return super().group_rewards(problem, samples, iteration, codec)


@pytest.mark.parametrize(("temperature", "sampled"), [(1.0, False), (1.7, False), (1.7, True)])
def test_the_engine_takes_the_steps_of_our_loop_in_reinforcement_learning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, temperature: float, sampled: bool
) -> None:
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    args = {"per_device_train_batch_size": 4}  # a problem in each forward pass
    how = {
        "n": 4,
        "problems": 3,
        "iterations": 2,
        "inner": 2,
        "tau": 0.4,
        "clip": 0.0,
        "rate": 2e-3,
        "limit": 20,
    }
    method = Spy(**how, second=1, temperature=temperature, engine="trl", args=args)
    dull = {"initializer_range": 0.15}  # its texts end by chance, some sooner and some later
    tiny(**dull).model.save_pretrained(tmp_path / "model")
    tokenizer().save_pretrained(tmp_path / "model")
    pool = [TrainingProblem(Parity(), Parity().problem(2 + n % 3, n)) for n in range(6)]
    loaded = load_anew(Source(tmp_path / "model"))
    sampler = Transformers(id=str(tmp_path / "model"), budget=30) if sampled else None
    rl = Rl(method, pool, 24, temperature, sampler)
    source = Source(tmp_path / "model")
    training = on_samples(method.settings(), source, tmp_path, loaded, rl, problems=3, iterations=2)
    assert training.job.accumulation == 3
    training.job.folder.mkdir()
    trainer = trl_worker.trainer(training.job, loaded, trl_worker.arguments(training.job))
    trainer.add_callback(noted := Noted())
    trainer.train()

    draws = [
        [pool.index(problem) for at, problem, _ in method.asked if at == iteration]
        for iteration in (0, 1)
    ]
    rates = [(0, 0)] * 6
    assert draws[0] == method.drawn(pool, rates, 0)
    for at, problem, samples in method.asked:
        if at == 0:
            rates[pool.index(problem)] = sum(s.right for s in samples), 4
    assert draws[1] == method.drawn(pool, rates, 1)  # by how often each was answered right
    most = [
        max(s.tokens for at, _, samples in method.asked if at == n for s in samples) for n in (0, 1)
    ]
    assert most == [24, 20]  # the second phase has a limit
    ours = Trainer(tiny(**dull), replace(method, engine="ponder", args={}), tmp_path, temperature)
    seen = gradients(ours)
    for iteration in (0, 1):
        groups = [samples for at, _, samples in method.asked if at == iteration]
        assert {s.right for group in groups for s in group} == {True, False}
        method._learn(
            ours, [unit for group in groups for unit in method._units(group, iteration)], 12
        )
    agree(seen, noted.gradients)
    counted = [entry["num_tokens"] for entry in trainer.state.log_history if "num_tokens" in entry]
    assert counted[-1] == sum(len(s.text) for _, _, samples in method.asked for s in samples)


@pytest.mark.parametrize("lora", [0, 4])
def test_a_sampler_gets_the_weights_of_each_iteration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lora: int
) -> None:
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    method = LengthRl(n=2, problems=2, iterations=2, inner=1, rate=1e-2, engine="trl", lora=lora)
    tiny().model.save_pretrained(tmp_path / "model")
    tokenizer().save_pretrained(tmp_path / "model")
    source, pool = (
        Source(tmp_path / "model"),
        [TrainingProblem(Parity(), Parity().problem(2, n)) for n in range(4)],
    )
    rl = Rl(method, pool, 8, 1.0, Transformers(id=str(tmp_path / "model"), budget=8))
    loaded = load_anew(source)
    training = on_samples(method.settings(), source, tmp_path, loaded, rl, problems=2, iterations=2)
    training.job.folder.mkdir()
    trainer = trl_worker.trainer(training.job, loaded, trl_worker.arguments(training.job))
    given, trained = [], []
    refreshed = FreshSampler.refreshed

    def note(fresh: FreshSampler, iteration: int, temperature: float) -> Any:
        sampler = refreshed(fresh, iteration, temperature)
        given.append(
            load_anew(Source(Path(sampler.id))).model.get_parameter(
                "model.layers.0.mlp.up_proj.weight"
            )
        )
        layer = loaded.model.get_submodule("model.layers.0.mlp.up_proj")
        now = layer.base_layer.weight + layer.get_delta_weight("default") if lora else layer.weight
        trained.append(now.detach().clone())
        return sampler

    @contextmanager
    def kept_open(_: Transformers) -> Iterator[None]:
        open_blocks.append("open")
        try:
            yield
        finally:
            open_blocks.clear()

    open_blocks: list[str] = []
    monkeypatch.setattr(trl_trainers, "kept_open", kept_open)
    monkeypatch.setattr(FreshSampler, "refreshed", note)
    trainer.train()
    assert open_blocks == ["open"]  # a server isn't stopped between iterations
    assert len(given) == 2
    for ours, theirs in zip(given, trained, strict=True):
        assert torch.allclose(ours, theirs, atol=1e-6)
    assert not torch.allclose(given[0], given[1], atol=1e-6)


def test_private_functions_of_trl_are_as_they_were() -> None:
    assert version("trl").startswith(f"{trl_engine.TRL}."), (
        "check training/trl_trainers.py against the new TRL"
    )
    assert trl_trainers.changed_hooks() == [], (
        "training/trl_trainers.py overrides what TRL has changed"
    )
