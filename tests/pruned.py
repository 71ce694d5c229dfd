"""A Llama of a few random weights, ragged prompts for it and every cache policy, for tests of
caches.
"""

from __future__ import annotations

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from ponder.policies.h2o import H2o
from ponder.policies.last_query import LastQuery
from ponder.policies.random import Random
from ponder.policies.rkv import Rkv
from ponder.policies.sepllm import Sepllm
from ponder.policies.snapkv import Snapkv
from ponder.policies.streaming import Streaming

VOCABULARY, PROMPT, NEW = 97, 14, 40
POLICIES = [
    Streaming(),
    Random(),
    H2o(),
    LastQuery(),
    Snapkv(queries=6, pool=3),
    Rkv(queries=4),
    Sepllm((3, 5, 8, 13)),
]


def tiny(attention: str = "sdpa", **settings):
    torch.manual_seed(0)
    config = LlamaConfig(
        **{
            "vocab_size": VOCABULARY,
            "hidden_size": 48,
            "intermediate_size": 64,
            "num_hidden_layers": 3,
            "num_attention_heads": 6,
            "num_key_value_heads": 2,
            "max_position_embeddings": 512,
            "initializer_range": 0.15,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": None,
            **settings,
        }
    )
    model = LlamaForCausalLM(config).eval()
    model.set_attn_implementation(attention)
    return model


def ragged(rows: int = 4) -> dict:
    """Prompts of different lengths, padded on the left."""
    ids = torch.randint(2, VOCABULARY, (rows, PROMPT), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    for row in range(rows):
        pads = [0, 3, 9, 5][row % 4]
        ids[row, :pads], mask[row, :pads] = 0, 0
    return {"input_ids": ids, "attention_mask": mask}
