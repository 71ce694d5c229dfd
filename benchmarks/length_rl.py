"""CPU time of an iteration of `length_rl`, rollouts and update, beside TRL's GRPOTrainer on the
same model and prompts.

Both sample 8 texts for each of 16 prompts at temperature 1 and take as many steps on all of them,
one thread each. The prompts ask the pocket model of the long style for 1 to 16 steps of execution,
so lengths are ragged. The rewards only tell samples apart, so that ours has none to leave out. Ours
is timed from loading to the written model; TRL's without loading. `--quick` takes only one step on
the samples of an iteration, not also two.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from dataclasses import dataclass

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from datasets import Dataset
from measured import record, table, verdict
from transformers import AutoModelForCausalLM, AutoTokenizer, PrinterCallback
from trl import GRPOConfig, GRPOTrainer

from ponder.core import LengthReward, TrainingProblems
from ponder.methods.length_rl import LengthRl
from ponder.models.pocket import Pocket, codec_for
from ponder.tasks.execution import Execution
from ponder.training.rollouts import draw_problems

PROMPTS, SAMPLES, ITERATIONS, LONGEST, SEED = 16, 8, 2, 512, 1
MODEL = Pocket(style="long", budget=LONGEST)
TASK = Execution(dictionary=6, per_turn=0)
ON = tuple(TrainingProblems(TASK, size, 0) for size in range(1, 17))


@dataclass(frozen=True)
class Apart(LengthReward):
    """Another reward for each sample."""

    def rewards(self, right: list[bool], tokens: list[int], progress: float) -> list[float]:  # noqa: ARG002
        return [n / len(tokens) for n in range(len(tokens))]


def ours(inner: int) -> tuple[float, float]:
    """Tokens per rollout, and CPU seconds per iteration."""
    settings = {
        "problems": PROMPTS,
        "pool": PROMPTS,
        "n": SAMPLES,
        "prioritised": False,
        "seed": SEED,
    }
    method = LengthRl(
        train_on=ON, iterations=ITERATIONS, inner=inner, limit=LONGEST, reward=Apart(), **settings
    )
    began = time.process_time()
    lengths = [report["tokens"] for report in method.make(MODEL) if "tokens" in report]
    return sum(lengths) / ITERATIONS, (time.process_time() - began) / ITERATIONS


def theirs(inner: int) -> tuple[float, float]:
    folder, codec, lengths = MODEL.source(TASK).folder, codec_for("execution"), []

    def apart(completion_ids: list[list[int]], **_: object) -> list[float]:
        lengths.extend(map(len, completion_ids))
        return [n % SAMPLES / SAMPLES for n in range(len(completion_ids))]

    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
    asked = [codec.prompt(one.request()) for one in draw_problems(ON, PROMPTS, SEED)]
    prompts = [" ".join(words) for words in asked]
    assert [tokenizer(text)["input_ids"] for text in prompts] == [
        codec.encode(words) for words in asked
    ]
    with tempfile.TemporaryDirectory() as scratch:
        config = GRPOConfig(
            scratch,
            loss_type="dr_grpo",
            scale_rewards="none",
            beta=0.0,
            num_iterations=inner,
            learning_rate=1e-6,
            num_generations=SAMPLES,
            per_device_train_batch_size=PROMPTS * SAMPLES,
            max_steps=ITERATIONS * inner,
            max_completion_length=LONGEST,
            temperature=1.0,
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            report_to="none",
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
        )
        trainer = GRPOTrainer(
            model=AutoModelForCausalLM.from_pretrained(folder, dtype="float32"),
            reward_funcs=apart,
            args=config,
            train_dataset=Dataset.from_list([{"prompt": text} for text in prompts]),
            processing_class=tokenizer,
        )
        trainer.remove_callback(PrinterCallback)
        began = time.process_time()
        trainer.train()
    assert len(lengths) == PROMPTS * SAMPLES * ITERATIONS
    return sum(lengths) / len(lengths), (time.process_time() - began) / ITERATIONS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="one step per iteration only")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)
    rows, ratios = [], []
    for inner in (1,) if quick else (1, 2):
        with tempfile.TemporaryDirectory() as models:
            os.environ["PONDER_MODELS"] = models
            (tokens, seconds), (other_tokens, other_seconds) = ours(inner), theirs(inner)
        ratios.append(seconds / other_seconds)
        counts = f"{tokens:.0f}", f"{other_tokens:.0f}"
        steps = "1 step" if inner == 1 else f"{inner} steps"
        what = f"CPU per iteration, rollouts of {PROMPTS} × {SAMPLES} and {steps}"
        record(
            "Training",
            what,
            "s",
            seconds,
            "TRL GRPOTrainer",
            other_seconds,
            packages=["trl", "transformers", "torch"],
        )
        rows.append(
            (
                inner,
                *counts,
                f"{seconds:.2f}",
                f"{other_seconds:.2f}",
                f"{other_seconds / seconds:.1f}×",
            )
        )
    heads = "steps", "tokens per rollout", "TRL's", "CPU s per iteration", "TRL's", "ratio"
    print(table(rows, heads))
    print()
    print(verdict("CPU of length_rl, of GRPOTrainer's", max(ratios), 0.5))


if __name__ == "__main__":
    main()
