"""A model's rotary frequencies: what they are, and whether they change with the text's length.

A pair of channels is a complex number, so that a rotation is a product with exp(i · angle).
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor, nn


def length_dependent(decoder: nn.Module) -> list[nn.Module]:
    """Return the rotary embeddings that depend on the text's length: dynamic NTK, LongRoPE."""
    embeddings = []
    for module in decoder.modules():
        rope_type = str(getattr(module, "rope_type", ""))
        if "dynamic" in rope_type or "longrope" in rope_type:
            embeddings.append(module)
    return embeddings


def frequencies(decoder: Any) -> Tensor | None:
    """Return the angle per position of each pair of channels, (head_dim / 2,).

    Return None unless the decoder rotates the halves of each head as Llama does, which is tested
    with its own function on random numbers.
    """
    rotary = getattr(decoder, "rotary_emb", None)
    apply_rotary = getattr(sys.modules[type(decoder).__module__], "apply_rotary_pos_emb", None)
    angles = getattr(rotary, "inv_freq", None)
    if rotary is None or apply_rotary is None or not isinstance(angles, Tensor):
        return None
    angles = angles.float()  # `model.half()` rounds them
    config = decoder.config.get_text_config(decoder=True)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    if 2 * len(angles) != head_dim:
        return None  # only some channels of each head rotate

    generator = torch.Generator().manual_seed(0)
    states = torch.randn(1, 1, 3, head_dim, generator=generator).to(angles.device)
    positions = torch.tensor([[0, 1, 7]], device=angles.device)
    try:
        rotated, _ = apply_rotary(states, states, *rotary(states, positions))
        scale = rotary.attention_scaling
    except (AttributeError, RuntimeError, TypeError, ValueError):
        return None  # another interface than Llama's, such as frequencies by layer
    expected = channels(pairs(states) * rotation(positions[0, :, None] * angles)) * scale
    if not torch.allclose(rotated, expected, atol=1e-4):
        return None
    return angles


def pairs(states: Tensor) -> Tensor:
    """Return channels as complex numbers, each of the first half with its partner in the second.

    (…, head_dim) becomes (…, head_dim / 2).
    """
    first, second = states.float().chunk(2, dim=-1)
    return torch.complex(first, second)


def channels(numbers: Tensor) -> Tensor:
    """Undo `pairs`: (…, head_dim / 2) becomes (…, head_dim)."""
    return torch.cat([numbers.real, numbers.imag], dim=-1)


def rotation(angles: Tensor) -> Tensor:
    """Return exp(i · angle), the complex numbers that rotate by these angles."""
    return torch.polar(torch.ones_like(angles), angles)
