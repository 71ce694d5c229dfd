"""A reward function for TRL's trainers, for problems written by `ponder export --format trl`.

from datasets import load_dataset
from ponder.results.interop.trl import correct

data = load_dataset("json", data_files={"train": "effort-trl/train.jsonl"})
GRPOTrainer(..., reward_funcs=[correct], train_dataset=data["train"])
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ponder.results.interop.environment import decode


def correct(completions: Sequence[Any], problem: Sequence[str], **_: Any) -> list[float]:
    """Return 1 for each completion that the problem's task grades as correct, else 0.

    TRL passes completions as texts or as lists of messages, and each column of the dataset by its
    name: `problem` has a problem and its task as JSON.
    """
    rewards = []
    for completion, record in zip(completions, problem, strict=True):
        reply = completion if isinstance(completion, str) else str(completion[-1]["content"])
        rewards.append(float(decode(record).grade([reply]).correct))
    return rewards
