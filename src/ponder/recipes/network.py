"""A Llama in PyTorch for training the pocket models, saved so that transformers loads it unchanged.

During training, a word's embedding is the sum of one vector per feature (`b3?` = column b + row 3 +
open) and a vector that only this word has, and so is its row of the output matrix: what is learned
about one cell applies to all. The sums are saved, so the saved model is an ordinary Llama.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional

from ponder.models.pocket.codec import BOS, EOS, PAD, PocketCodec


@dataclass(frozen=True)
class Shape:
    width: int = 160
    layers: int = 6
    heads: int = 4
    # Heads of keys and values, shared by the query heads: a smaller cache, which decoding reads.
    kv_heads: int = 1
    head_width: int = 40
    inner: int = 432
    positions: int = 2048
    theta: float = 10_000.0
    eps: float = 1e-5

    def config(self, codec: PocketCodec) -> dict[str, Any]:
        """Return `config.json` as transformers reads it."""
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_size": self.width,
            "intermediate_size": self.inner,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_width,
            "max_position_embeddings": self.positions,
            "rope_theta": self.theta,
            "rms_norm_eps": self.eps,
            "hidden_act": "silu",
            "attention_bias": False,
            "mlp_bias": False,
            "tie_word_embeddings": False,
            "vocab_size": len(codec.words),
            "pad_token_id": codec.index[PAD],
            "bos_token_id": codec.index[BOS],
            "eos_token_id": codec.index[EOS],
            "torch_dtype": "float16",
        }


class Table(nn.Module):
    """One vector per word: its features' vectors (`parts`) plus one for it alone (`own`)."""

    has: Tensor  # (words, features): 1 where a word has a feature

    def __init__(self, codec: PocketCodec, width: int, std: float) -> None:
        super().__init__()
        names = sorted(set(itertools.chain.from_iterable(codec.parts)))
        has = torch.zeros(len(codec.words), len(names))
        for row, features in enumerate(codec.parts):
            for feature in features:
                has[row, names.index(feature)] = 1
        self.register_buffer("has", has)
        self.parts = nn.Parameter(torch.randn(len(names), width) * std)
        self.own = nn.Parameter(torch.zeros(len(codec.words), width))

    def forward(self) -> Tensor:
        """Return the table, (words, width)."""
        table: Tensor = self.has @ self.parts + self.own
        return table


# Rows and length of each batch of equally long sequences, laid end to end.
Groups = Sequence[tuple[int, int]]


class Block(nn.Module):
    """A layer of the Llama. Activations `x` are (tokens, width)."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        width = shape.width
        query_width = shape.heads * shape.head_width
        kv_width = shape.kv_heads * shape.head_width
        self.norm1 = nn.Parameter(torch.ones(width))
        self.norm2 = nn.Parameter(torch.ones(width))
        self.q = _random(query_width, width)
        self.k = _random(kv_width, width)
        self.value = _random(kv_width, width)
        self.out = nn.Parameter(torch.zeros(width, query_width))
        self.gate = _random(shape.inner, width)
        self.up = _random(shape.inner, width)
        self.down = nn.Parameter(torch.zeros(width, shape.inner))

    def heads(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values before rotary positions, (tokens, heads, head width)."""
        normed = functional.rms_norm(x, (self.shape.width,), self.norm1, self.shape.eps)
        qkv = normed @ torch.cat([self.q, self.k, self.value]).T
        qkv = qkv.view(len(x), -1, self.shape.head_width)
        first_key = self.shape.heads
        first_value = first_key + self.shape.kv_heads
        q, k, value = qkv.tensor_split((first_key, first_value), 1)
        return q, k, value

    def feed(self, x: Tensor) -> Tensor:
        """Return activations after the gated feed-forward layer."""
        normed = functional.rms_norm(x, (self.shape.width,), self.norm2, self.shape.eps)
        hidden = functional.silu(normed @ self.gate.T) * (normed @ self.up.T)
        return x + hidden @ self.down.T

    def forward(self, x: Tensor, rope: tuple[Tensor, Tensor], groups: Groups) -> Tensor:
        """Return the activations after this layer."""
        q, k, value = self.heads(x)
        q = _rotated(q, rope)
        k = _rotated(k, rope)
        attended = []
        start = 0
        for rows, length in groups:
            end = start + rows * length
            queries, keys, values = (
                self._sequences(t[start:end], rows, length) for t in (q, k, value)
            )
            mixed = functional.scaled_dot_product_attention(
                queries, keys, values, is_causal=True, enable_gqa=True
            )
            attended.append(mixed.transpose(1, 2).reshape(rows * length, -1))
            start = end
        x = x + torch.cat(attended) @ self.out.T
        return self.feed(x)

    def _sequences(self, states: Tensor, rows: int, length: int) -> Tensor:
        """Reorder (rows · length, heads, head width) to (rows, heads, length, head width)."""
        return states.reshape(rows, length, -1, self.shape.head_width).transpose(1, 2)


def _random(outputs: int, inputs: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(outputs, inputs) * inputs**-0.5)


class Llama(nn.Module):
    """The network of a pocket model."""

    rope: Tensor  # cosines and sines, (2, positions, head width / 2)

    def __init__(self, codec: PocketCodec, shape: Shape) -> None:
        super().__init__()
        self.codec = codec
        self.shape = shape
        self.embed = Table(codec, shape.width, 0.3)
        self.head = Table(codec, shape.width, 0.01)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.Parameter(torch.ones(shape.width))
        half = shape.head_width // 2
        frequencies = shape.theta ** (-torch.arange(half) / half)
        angles = torch.outer(torch.arange(shape.positions), frequencies)
        self.register_buffer("rope", torch.stack([angles.cos(), angles.sin()]), persistent=False)

    def forward(self, tokens: Tensor, groups: Groups, predicting: Tensor) -> Tensor:
        """Return logits at some positions of sequences laid end to end, (predicting, words)."""
        positions = torch.cat([torch.arange(length).repeat(rows) for rows, length in groups])
        cos, sin = self.rope[:, positions, None]
        x = functional.embedding(tokens, self.embed())
        for block in self.blocks:
            x = block(x, (cos, sin), groups)
        normed = functional.rms_norm(x[predicting], (self.shape.width,), self.norm, self.shape.eps)
        logits: Tensor = normed @ self.head().T
        return logits

    def weights(self) -> dict[str, Tensor]:
        """Return the weights by the names that transformers gives them."""
        weights = {
            "model.embed_tokens.weight": self.embed(),
            "lm_head.weight": self.head(),
            "model.norm.weight": self.norm,
        }
        for n, block in enumerate(self.blocks):
            for ours, theirs in _NAMES.items():
                weights[f"model.layers.{n}.{theirs}.weight"] = getattr(block, ours)
        return {name: tensor.detach() for name, tensor in weights.items()}

    @torch.no_grad()
    def load(self, folder: Path) -> None:
        """Load saved weights.

        The features' vectors are then zero, and each word's `own` vector is all of its embedding.
        """
        saved = load_file(folder / "model.safetensors")
        for table, name in ((self.embed, "model.embed_tokens"), (self.head, "lm_head")):
            table.parts.zero_()
            table.own.copy_(saved[f"{name}.weight"])
        self.norm.copy_(saved["model.norm.weight"])
        for n, block in enumerate(self.blocks):
            for ours, theirs in _NAMES.items():
                getattr(block, ours).copy_(saved[f"model.layers.{n}.{theirs}.weight"])

    def save(self, folder: Path) -> None:
        """Save weights, config and tokenizer as transformers loads them."""
        folder.mkdir(parents=True, exist_ok=True)
        half = {name: tensor.half().contiguous() for name, tensor in self.weights().items()}
        save_file(half, folder / "model.safetensors", metadata={"format": "pt"})
        (folder / "config.json").write_text(
            json.dumps(self.shape.config(self.codec), indent=1) + "\n", "utf-8"
        )
        self.codec.write_tokenizer(folder)


_NAMES = {
    "norm1": "input_layernorm",
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "value": "self_attn.v_proj",
    "out": "self_attn.o_proj",
    "norm2": "post_attention_layernorm",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}


def _rotated(x: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
    """Apply rotary positions, first half against second half as in transformers."""
    cos, sin = rope
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)
