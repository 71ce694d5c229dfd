"""A Llama in PyTorch for training the pocket models, saved so that transformers loads it unchanged.

During training, a word's embedding is the sum of one vector per part of its meaning (`b3?` = column b + row 3 + open)
and a vector of its own, and so is its row of the output matrix: what is learned about one cell applies to all. Saved
are the sums, so the saved model is an ordinary Llama.
"""

from __future__ import annotations

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
    kv_heads: int = 1  # heads of keys and values, shared by the query heads: a smaller cache, which decoding reads
    head_width: int = 40
    inner: int = 432
    positions: int = 2048
    theta: float = 10_000.0
    eps: float = 1e-5

    def config(self, codec: PocketCodec) -> dict[str, Any]:
        """`config.json` as transformers reads it."""
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
    """One vector per word: the sum of its parts' vectors and a vector of its own."""

    has: Tensor  # words × parts

    def __init__(self, codec: PocketCodec, width: int, std: float) -> None:
        super().__init__()
        names = sorted({part for parts in codec.parts for part in parts})
        has = torch.zeros(len(codec.words), len(names))
        for word, parts in enumerate(codec.parts):
            has[word, [names.index(part) for part in parts]] = 1
        self.register_buffer("has", has)
        self.parts = nn.Parameter(torch.randn(len(names), width) * std)
        self.own = nn.Parameter(torch.zeros(len(codec.words), width))

    def forward(self) -> Tensor:
        table: Tensor = self.has @ self.parts + self.own
        return table


Groups = Sequence[tuple[int, int]]  # rows and length of each batch of equally long sequences, laid end to end


class Block(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        w, inner, asking, asked = (
            shape.width,
            shape.inner,
            *(n * shape.head_width for n in (shape.heads, shape.kv_heads)),
        )
        self.norm1, self.norm2 = nn.Parameter(torch.ones(w)), nn.Parameter(torch.ones(w))
        self.q, self.k, self.value = (nn.Parameter(torch.randn(n, w) * w**-0.5) for n in (asking, asked, asked))
        self.out = nn.Parameter(torch.zeros(w, asking))
        self.gate, self.up = (nn.Parameter(torch.randn(inner, w) * w**-0.5) for _ in range(2))
        self.down = nn.Parameter(torch.zeros(w, inner))

    def heads(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values: tokens × heads × head width, before rotary positions."""
        y = functional.rms_norm(x, (self.shape.width,), self.norm1, self.shape.eps)
        qkv = y @ torch.cat([self.q, self.k, self.value]).T
        heads, kv = self.shape.heads, self.shape.kv_heads
        q, k, value = qkv.view(len(x), -1, self.shape.head_width).tensor_split((heads, heads + kv), 1)
        return q, k, value

    def feed(self, x: Tensor) -> Tensor:
        y = functional.rms_norm(x, (self.shape.width,), self.norm2, self.shape.eps)
        return x + (functional.silu(y @ self.gate.T) * (y @ self.up.T)) @ self.down.T

    def forward(self, x: Tensor, rope: tuple[Tensor, Tensor], groups: Groups) -> Tensor:
        q, k, value = self.heads(x)
        q, k = _rotated(q, rope), _rotated(k, rope)
        mixed, start = [], 0
        for rows, length in groups:
            part = slice(start, start + rows * length)
            queries, keys, values = (
                t[part].reshape(rows, length, -1, self.shape.head_width).transpose(1, 2) for t in (q, k, value)
            )
            y = functional.scaled_dot_product_attention(queries, keys, values, is_causal=True, enable_gqa=True)
            mixed.append(y.transpose(1, 2).reshape(rows * length, -1))
            start = part.stop
        return self.feed(x + torch.cat(mixed) @ self.out.T)


class Llama(nn.Module):
    rope: Tensor  # cosines and sines by position

    def __init__(self, codec: PocketCodec, shape: Shape) -> None:
        super().__init__()
        self.codec, self.shape = codec, shape
        self.embed, self.head = Table(codec, shape.width, 0.3), Table(codec, shape.width, 0.01)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.Parameter(torch.ones(shape.width))
        half = shape.head_width // 2
        angles = torch.outer(torch.arange(shape.positions), shape.theta ** (-torch.arange(half) / half))
        self.register_buffer("rope", torch.stack([angles.cos(), angles.sin()]), persistent=False)

    def forward(self, tokens: Tensor, groups: Groups, wanted: Tensor) -> Tensor:
        """Logits at the wanted positions of sequences laid end to end."""
        positions = torch.cat([torch.arange(length).repeat(rows) for rows, length in groups])
        cos, sin = self.rope[:, positions, None]
        x = functional.embedding(tokens, self.embed())
        for block in self.blocks:
            x = block(x, (cos, sin), groups)
        logits: Tensor = functional.rms_norm(x[wanted], (self.shape.width,), self.norm, self.shape.eps) @ self.head().T
        return logits

    def weights(self) -> dict[str, Tensor]:
        """The weights by the names that transformers gives them."""
        weights = {
            "model.embed_tokens.weight": self.embed(),
            "lm_head.weight": self.head(),
            "model.norm.weight": self.norm,
        }
        for n, block in enumerate(self.blocks):
            weights |= {f"model.layers.{n}.{theirs}.weight": getattr(block, ours) for ours, theirs in _NAMES.items()}
        return {name: tensor.detach() for name, tensor in weights.items()}

    @torch.no_grad()
    def load(self, folder: Path) -> None:
        """Load saved weights; the parts' vectors are then zero, and each word's own vector is its whole embedding."""
        saved = load_file(folder / "model.safetensors")
        for table, name in ((self.embed, "model.embed_tokens"), (self.head, "lm_head")):
            table.parts.zero_()
            table.own.copy_(saved[f"{name}.weight"])
        self.norm.copy_(saved["model.norm.weight"])
        for n, block in enumerate(self.blocks):
            for ours, theirs in _NAMES.items():
                getattr(block, ours).copy_(saved[f"model.layers.{n}.{theirs}.weight"])

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        half = {name: tensor.half().contiguous() for name, tensor in self.weights().items()}
        save_file(half, folder / "model.safetensors", metadata={"format": "pt"})
        (folder / "config.json").write_text(json.dumps(self.shape.config(self.codec), indent=1) + "\n", "utf-8")
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
    """Rotary position embedding, first half against second half as in transformers."""
    (cos, sin), (a, b) = rope, x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)
