"""Losses and gradients beside TRL's: the same on the same texts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("trl")

from datasets import Dataset
from tiny import END, flat, gradients, texts, tiny, tokenizer
from transformers import TrainerCallback
from trl import DPOConfig, DPOTrainer, GRPOConfig, GRPOTrainer

from ponder.methods.dpo import Dpo
from ponder.methods.length_rl import LengthRl
from ponder.training.loop import TokenExample, Trainer, Unit
from ponder.training.rollouts import Sample

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
    """The gradient of the last step, before it is taken."""

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, model: Any = None, **more: Any) -> None:
        self.gradient = {name: p.grad.clone() for name, p in model.named_parameters()}


def words(tokens: list[int]) -> str:
    return " ".join(tokenizer().convert_ids_to_tokens(tokens))


def test_dpo(tmp_path: Path) -> None:
    pairs = [(a, TokenExample(a.prompt, b.said)) for a, b in zip(texts(6, seed=1), texts(6, seed=2), strict=True)]
    rows = [
        {"prompt": words(a.prompt), "chosen": " " + words(a.said), "rejected": " " + words(b.said)} for a, b in pairs
    ]
    noted, before, now = Noted(), tiny(seed=3), tiny(seed=4)
    args = DPOConfig(str(tmp_path), beta=0.1, per_device_train_batch_size=6, **COMMON)
    more = {"processing_class": tokenizer(), "train_dataset": Dataset.from_list(rows), "callbacks": [noted]}
    trainer = DPOTrainer(model=now.model, ref_model=before.model, args=args, **more)
    trainer.train()
    (loss,) = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]

    method = Dpo(beta=0.1, clip=0.0)
    training = Trainer(tiny(seed=3), method, tmp_path)
    units, preference = method.loss(training, [Unit(pair) for pair in pairs])
    with torch.no_grad():
        for name, p in tiny(seed=4).model.named_parameters():
            training.plain.get_parameter(name).copy_(p)
    seen = gradients(training)
    ours = training.learn(units, preference, method.over(units))
    assert ours == pytest.approx(loss, abs=2e-4)  # which TRL rounds
    assert abs(ours - 0.6931) > 0.02  # not the loss of a model that is its own reference
    torch.testing.assert_close(flat(seen[0]), flat(noted.gradient), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("temperature", [1.0, 1.7])
def test_the_first_step_of_length_rl_is_that_of_dr_grpo(tmp_path: Path, temperature: float) -> None:
    rolled: list[tuple[list[int], list[int]]] = []

    def right(said: list[int]) -> bool:
        return sum(said) % 2 == 0

    def reward(prompts: list[str], completion_ids: list[list[int]], **_: Any) -> list[float]:
        rolled.extend(zip((tokenizer()(p)["input_ids"] for p in prompts), completion_ids, strict=True))
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
    more = {"processing_class": spoken, "train_dataset": Dataset.from_list(prompts), "callbacks": [noted]}
    GRPOTrainer(model=tiny(**dull).model, reward_funcs=reward, args=args, **more).train()
    assert len(rolled) == 12
    assert len({len(said) for _, said in rolled}) > 4
    assert {right(said) for _, said in rolled} == {True, False}
    assert any(said[-1] == END for _, said in rolled)

    method = LengthRl(inner=1, clip=0.0)
    training = Trainer(tiny(**dull), method, tmp_path, temperature)
    groups = [[Sample(TokenExample(p, s), right(s)) for p, s in rolled[start : start + 4]] for start in range(0, 12, 4)]
    seen = gradients(training)
    method._learn(training, [u for some in groups for u in method._units(some, 0)], 12)
    ours, theirs = flat(seen[0]), flat(noted.gradient)
    assert torch.cosine_similarity(ours, theirs, 0) == pytest.approx(1.0, abs=1e-6)
    assert float(ours.norm() / theirs.norm()) == pytest.approx(most, rel=1e-4)  # by which TRL divides every text
    assert theirs.norm() > 1e-3
