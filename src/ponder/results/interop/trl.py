"""A reward for TRL's trainers: 1 for a right reply to a problem that `ponder export --format trl`
has written, else 0.

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
    """Return 1 for each right reply, else 0.

    TRL passes completions as texts or as chats, and each column of the dataset by its name.
    """
    replies = [
        completion if isinstance(completion, str) else str(completion[-1]["content"])
        for completion in completions
    ]
    return [
        float(decode(text).grade([reply]).correct)
        for text, reply in zip(problem, replies, strict=True)
    ]
