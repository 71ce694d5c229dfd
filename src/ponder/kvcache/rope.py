"""A model's rotary frequencies: whether they change, and where queries will point after further tokens."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor, nn


def changing(decoder: nn.Module) -> list[nn.Module]:
    """The rotary embeddings that depend on the length of the text: dynamic NTK scaling, LongRoPE."""
    kinds = ((module, str(getattr(module, "rope_type", ""))) for module in decoder.modules())
    return [module for module, kind in kinds if "dynamic" in kind or "longrope" in kind]


def frequencies(decoder: Any) -> Tensor | None:
    """The angle per position of each pair of channels, if a decoder rotates the halves of each head, as Llama does.

    None if it rotates otherwise, or in a way that can't be told: its own function is tried on random numbers.
    """
    rope = getattr(decoder, "rotary_emb", None)
    apply = getattr(sys.modules[type(decoder).__module__], "apply_rotary_pos_emb", None)
    angles = getattr(rope, "inv_freq", None)
    if rope is None or apply is None or not isinstance(angles, Tensor):
        return None
    angles = angles.float()  # `model.half()` rounds them
    config = decoder.config.get_text_config(decoder=True)
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    if 2 * len(angles) != width:
        return None  # only a part of each head rotates
    drawn = torch.Generator().manual_seed(0)
    states = torch.randn(1, 1, 3, 2 * len(angles), generator=drawn).to(angles.device)
    positions = torch.tensor([[0, 1, 7]], device=angles.device)
    try:
        rotated, _ = apply(states, states, *rope(states, positions))
        scale = rope.attention_scaling
    except (AttributeError, RuntimeError, TypeError, ValueError):
        return None  # another interface than Llama's, such as frequencies that differ between layers
    expected = channels(pairs(states) * rotation(positions[0, :, None] * angles)) * scale
    return angles if torch.allclose(rotated, expected, atol=1e-4) else None


def pairs(states: Tensor) -> Tensor:
    """Channels as complex numbers: each of the first half with its partner in the second."""
    first, second = states.float().chunk(2, dim=-1)
    return torch.complex(first, second)


def channels(numbers: Tensor) -> Tensor:
    """The reverse of `pairs`."""
    return torch.cat([numbers.real, numbers.imag], dim=-1)


def rotation(angles: Tensor) -> Tensor:
    """The complex numbers that rotate by these angles."""
    return torch.polar(torch.ones_like(angles), angles)
