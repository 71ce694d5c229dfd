"""A Llama of a few thousand random weights and twenty-four words, and texts in them, for tests of
training.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from ponder.models._torch_engine import Loaded
from ponder.training.loop import (
    LanguageModel,
    Loop,
    Loss,
    Step,
    TokenExample,
    TrainingSettings,
    Unit,
)

WORDS, PAD, END = 24, 0, 1


def tiny(seed: int = 0, folder: Path = Path(), **config: Any) -> Loaded:
    torch.manual_seed(seed)
    sizes = {
        "vocab_size": WORDS,
        "hidden_size": 16,
        "intermediate_size": 32,
        "initializer_range": 0.3,
    }
    shape = {"num_hidden_layers": 2, "num_attention_heads": 2, "max_position_embeddings": 128}
    special = {"pad_token_id": PAD, "bos_token_id": None, "eos_token_id": END}
    model = LlamaForCausalLM(LlamaConfig(**{**sizes, **shape, **special, **config}))
    return Loaded(folder, model.eval(), tokenizer())


def tokenizer() -> PreTrainedTokenizerFast:
    words = {"<pad>": PAD, "<end>": END, **{f"w{n}": n for n in range(2, WORDS)}}
    spoken = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    spoken.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=spoken, pad_token="<pad>", eos_token="<end>")


def texts(number: int, seed: int = 0, longest: int = 20) -> list[TokenExample]:
    """Prompts and what is said to them, of all lengths."""
    rng = random.Random(seed)

    def some() -> list[int]:
        return [rng.randrange(2, WORDS) for _ in range(rng.randint(1, longest))]

    return [TokenExample(some(), [*some(), END]) for _ in range(number)]


def plain_score(model: Any, text: TokenExample) -> torch.Tensor:
    """The log-probability of what a text says, token by token, on its own."""
    logits = model(torch.tensor([[*text.prompt, *text.said]])).logits[0].log_softmax(-1)
    return sum(
        (logits[len(text.prompt) + n - 1, token] for n, token in enumerate(text.said)),
        torch.zeros(()),
    )


def gradients(training: Any) -> list[dict[str, torch.Tensor]]:
    """A list that every step from now on adds its gradient to, before it is taken."""
    found: list[dict[str, torch.Tensor]] = []

    def note(*_: Any) -> None:
        found.append(
            {name: p.grad.clone() for name, p in training.trainable().items() if p.grad is not None}
        )

    training.optimizer.register_step_pre_hook(note)
    return found


def open_loop(
    loaded: Loaded, settings: TrainingSettings, folder: Path | None, temperature: float = 1.0
) -> Loop:
    return Loop(LanguageModel(loaded, settings, temperature), settings, folder)


def learn(loop: Loop, units: list[Unit], loss: Loss, divisor: float, factor: float = 1.0) -> float:
    """Take one step and return its loss."""
    value = loop._backward(units, loss, divisor)
    loop._update(units, factor)
    return value


def steps(number: int, size: int, settings: TrainingSettings) -> list[Step]:
    """Steps over units in their order, `size` at a time."""
    return [
        Step(range(n * size, (n + 1) * size), size, settings.factor(n, number))
        for n in range(number)
    ]


def flat(tensors: dict[str, torch.Tensor]) -> torch.Tensor:
    return torch.cat([tensors[name].flatten() for name in sorted(tensors)])
