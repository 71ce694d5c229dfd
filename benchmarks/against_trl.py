"""Compares losses and gradients with those of TRL's own trainers, on the same texts.

`dpo` is compared with `DPOTrainer`, and the first step of `length_rl` with `dr_grpo` of
`GRPOTrainer`, which divides every text by the largest number of tokens. Fails if they differ.
`pip install trl` first.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import TrainerCallback
from trl import DPOConfig, DPOTrainer, GRPOConfig, GRPOTrainer

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from tiny import END, flat, gradients, learn, open_loop, texts, tiny, tokenizer

from ponder.methods.dpo import Dpo
from ponder.methods.length_rl import LengthRl, Surrogate
from ponder.training.loop import TokenExample, Unit, with_reference
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
LONGEST = 24  # tokens of a reply


class Gradients(TrainerCallback):
    """Keeps the gradients of all steps, before they are taken."""

    def __init__(self) -> None:
        self.steps: list[dict[str, Any]] = []

    def on_pre_optimizer_step(
        self,
        args: Any,  # noqa: ARG002 the signature of transformers
        state: Any,  # noqa: ARG002
        control: Any,  # noqa: ARG002
        model: Any = None,
        **_: Any,
    ) -> None:
        self.steps.append(
            {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
        )


def words(tokens: list[int]) -> str:
    return " ".join(tokenizer().convert_ids_to_tokens(tokens))


def compare_dpo(folder: Path) -> None:
    pairs = []
    rows = []
    for chosen, other in zip(texts(6, seed=1), texts(6, seed=2), strict=True):
        pairs.append(Unit((chosen, TokenExample(chosen.prompt, other.said))))
        rows.append(
            {
                "prompt": words(chosen.prompt),
                "chosen": " " + words(chosen.said),
                "rejected": " " + words(other.said),
            }
        )
    theirs = Gradients()
    trainer = DPOTrainer(
        model=tiny(seed=4).model,
        ref_model=tiny(seed=3).model,
        args=DPOConfig(str(folder), beta=0.1, per_device_train_batch_size=6, **COMMON),
        processing_class=tokenizer(),
        train_dataset=Dataset.from_list(rows),
        callbacks=[theirs],
    )
    trainer.train()
    (their_loss,) = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]

    method = Dpo(beta=0.1, clip=0.0)
    reference = open_loop(tiny(seed=3), method, folder).score(pairs)
    training = open_loop(tiny(seed=4), method, folder)
    ours = gradients(training)
    loss = learn(training, with_reference(pairs, reference), method.objective().loss, len(pairs))
    print(f"dpo: loss {loss:.5f}, TRL's {their_loss:.5f}")
    assert abs(loss - their_loss) < 2e-4  # which TRL rounds
    assert abs(loss - 0.6931) > 0.02  # not the loss of a model that is its own reference
    torch.testing.assert_close(flat(ours[0]), flat(theirs.steps[0]), rtol=1e-3, atol=1e-5)


def is_right(reply: list[int]) -> bool:
    return sum(reply) % 2 == 0


def compare_length_rl(folder: Path, temperature: float) -> None:
    rollouts: list[tuple[list[int], list[int]]] = []

    def reward(prompts: list[str], completion_ids: list[list[int]], **_: Any) -> list[float]:
        for prompt, reply in zip(prompts, completion_ids, strict=True):
            rollouts.append((tokenizer()(prompt)["input_ids"], reply))
        rewards = []
        for start in range(0, len(completion_ids), 4):
            group = completion_ids[start : start + 4]
            shortest = min(map(len, group))
            longest = max(map(len, group))
            for reply in group:
                length = 0.0
                if longest > shortest:
                    length = 0.5 - (len(reply) - shortest) / (longest - shortest)
                if not is_right(reply):
                    length = min(0.0, length)
                rewards.append(is_right(reply) + 0.5 * length)
        return rewards

    theirs = Gradients()
    padded_left = tokenizer()
    padded_left.padding_side = "left"
    args = GRPOConfig(
        str(folder),
        loss_type="dr_grpo",
        scale_rewards="none",
        beta=0.0,
        num_generations=4,
        max_completion_length=LONGEST,
        per_device_train_batch_size=12,
        temperature=temperature,
        seed=5,
        **COMMON,
    )
    dull = {"initializer_range": 0.15}  # its texts end by chance, some sooner and some later
    GRPOTrainer(
        model=tiny(**dull).model,
        reward_funcs=reward,
        args=args,
        processing_class=padded_left,
        train_dataset=Dataset.from_list([{"prompt": words([*range(2, 4 + n)])} for n in range(3)]),
        callbacks=[theirs],
    ).train()
    assert len(rollouts) == 12
    assert {is_right(reply) for _, reply in rollouts} == {True, False}
    assert any(reply[-1] == END for _, reply in rollouts)

    method = LengthRl(inner=1, clip=0.0)
    training = open_loop(tiny(**dull), method, folder, temperature)
    units = []
    for start in range(0, 12, 4):
        group = [
            Sample(TokenExample(prompt, reply), is_right(reply))
            for prompt, reply in rollouts[start : start + 4]
        ]
        units += method.units(group, 0)
    ours = gradients(training)
    learn(training, units, Surrogate(method.tau), 12)
    our_step = flat(ours[0])
    their_step = flat(theirs.steps[0])
    cosine = float(torch.cosine_similarity(our_step, their_step, 0))
    ratio = float(our_step.norm() / their_step.norm())
    print(f"length_rl at temperature {temperature}: cosine {cosine:.7f}, ratio {ratio:.3f}")
    assert abs(cosine - 1) < 1e-6
    assert abs(ratio / LONGEST - 1) < 1e-4


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        compare_dpo(Path(name))
        for temperature in (1.0, 1.7):
            compare_length_rl(Path(name), temperature)
