"""Scores steps with Skywork-o1-Open-PRM: a value at the line break after each step.

Skywork o1 team 2024. The head on Qwen2's hidden states is built here, in the form that the
checkpoint's file holds: one linear layer (`v_head.summary`, as the weights are published), or two
with a ReLU between them (`score.0` and `score.2`, as the `Qwen2ForRewardModel` that their config
names). The model was trained with one step per line, so line breaks within a paragraph look to it
like ends of steps; only those that end a step of the trace are read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ponder.core import Steps, UserError
from ponder.rewards._weights import Reading, SafeTokenizer, Weighted, begin_tokens, tokenized

if TYPE_CHECKING:
    from torch import Tensor

FILES = (
    "model.safetensors.index.json",
    "model.safetensors",
    "pytorch_model.bin.index.json",
    "pytorch_model.bin",
)


@dataclass(frozen=True, kw_only=True)
class Skywork(Weighted):
    def network(self, tokenizer: SafeTokenizer) -> tuple[Any, Callable[[Tensor], Tensor]]:  # noqa: ARG002 not needed
        from torch import nn
        from transformers import Qwen2Model, Qwen2PreTrainedModel

        names = tensor_names(self.id, self.revision)
        value_head = "v_head.summary.weight" in names
        if names and not value_head and "score.2.weight" not in names:
            heads = "`v_head.summary` and `score.0` with `score.2`"
            message = f"{self.id} has neither of Skywork's heads, {heads}"
            extra = [name for name in names if not name.startswith(("model.", "lm_head."))]
            has = ", ".join(sorted(extra)) or "no weights"
            hint = f"besides the language model it has {has}: ponder list rewards"
            raise UserError(message, hint=hint)

        class Network(Qwen2PreTrainedModel):
            _keys_to_ignore_on_load_unexpected = [r"lm_head\..*"]  # noqa: RUF012 published with them

            def __init__(self, config: Any) -> None:
                super().__init__(config)
                self.model = Qwen2Model(config)
                width = config.hidden_size
                if value_head:
                    self.v_head = nn.ModuleDict({"summary": nn.Linear(width, 1)})
                else:
                    self.score = nn.Sequential(
                        nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1)
                    )
                self.post_init()  # type: ignore[no-untyped-call]

        network = self.load(Network)
        head = network.v_head["summary"] if value_head else network.score
        return network.model, lambda hidden: head(hidden).squeeze(-1).float().sigmoid()

    def read(self, tokenizer: SafeTokenizer, traces: Sequence[Steps]) -> list[Reading]:
        start = begin_tokens(tokenizer)
        line_break = tokenizer.token("\n")
        texts = [(trace.question + "\n", trace.part(self.of)) for trace in traces]
        readings = list[Reading]()
        for question, steps in tokenized(tokenizer, texts):
            readings.append(Reading([*start, *question], [[*step, line_break] for step in steps]))
        return readings


def tensor_names(id: str, revision: str = "") -> frozenset[str]:  # noqa: A002 the name in every reward
    """Return the names in the file that transformers would load; empty if there is none."""
    from transformers.utils.hub import cached_file

    for name in FILES:
        path = cached_file(
            id, name, revision=revision or None, _raise_exceptions_for_missing_entries=False
        )
        if path is not None:
            return frozenset(_names(Path(path)))
    return frozenset()


def _names(path: Path) -> list[str]:
    if path.suffix == ".json":
        return list(json.loads(path.read_text("utf-8"))["weight_map"])
    if path.suffix == ".safetensors":
        from safetensors import safe_open

        with safe_open(path, "pt") as file:
            return list(file.keys())
    import torch

    return list(torch.load(path, map_location="meta", mmap=True, weights_only=True))
