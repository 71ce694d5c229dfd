"""A tiny random model of every architecture in transformers that generates text, for tests of
caches.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
)

from ponder.core import CacheBudget, Policy
from ponder.kvcache import SelectCache, SlotCache
from ponder.kvcache.exactness import (
    Exactness,
    WatchedCache,
    ragged_prompts,
    recomputed,
)

LAYERS, WINDOW = 4, 8
# Whatever of these a configuration has is set. Sizes are the smallest that keep heads, groups and
# experts apart.
SMALL: dict[str, Any] = {
    **dict.fromkeys(("vocab_size", "vocab_size_per_layer_input", "speech_vocab_size"), 97),
    **dict.fromkeys(
        (
            "hidden_size",
            "n_embd",
            "d_model",
            "hidden_dim",
            "word_embed_proj_dim",
            "dim",
            "dim_model",
        ),
        64,
    ),
    **dict.fromkeys(
        ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size", "decoder_ffn_dim", "dim_ff"),
        64,
    ),
    **dict.fromkeys(
        ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers"), LAYERS
    ),
    **dict.fromkeys(
        ("num_attention_heads", "n_head", "n_heads", "num_heads", "decoder_attention_heads"), 4
    ),
    **dict.fromkeys(
        (
            "num_key_value_heads",
            "num_kv_heads",
            "multi_query_group_num",
            "num_global_key_value_heads",
        ),
        2,
    ),
    **dict.fromkeys(
        (
            "head_dim",
            "global_head_dim",
            "kv_channels",
            "dim_head",
            "attention_head_dim",
            "swa_head_dim",
        ),
        16,
    ),
    **dict.fromkeys(
        ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "max_sequence_length"),
        512,
    ),
    **dict.fromkeys(
        ("sliding_window", "attention_chunk_size", "window_size", "attention_window_size"), WINDOW
    ),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(
        ("num_experts_per_tok", "num_experts_per_token", "moe_k", "moe_topk", "top_k_experts"), 2
    ),
    **dict.fromkeys(
        ("moe_intermediate_size", "shared_expert_intermediate_size", "expert_ffn_hidden_size"), 32
    ),
    **dict.fromkeys(("shared_intermediate_size", "intermediate_size_mlp", "moe_latent_size"), 32),
    **dict.fromkeys(
        ("n_group", "topk_group", "n_shared_experts", "first_k_dense_replace", "zero_expert_num"), 1
    ),
    "kv_lora_rank": 16,
    "q_lora_rank": 24,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
    "index_n_heads": 2,
    "index_head_dim": 16,
    "index_topk": 64,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "mamba_n_heads": 4,
    "mamba_d_head": 32,
    "mamba_d_state": 16,
    "mamba_num_heads": 4,
    "mamba_head_dim": 16,
    "mamba_n_groups": 1,
    "mamba_d_ssm": 128,
    "mamba_expand": 2,
    "n_mamba_heads": 4,
    "n_groups": 1,
    "lru_width": 64,
    "mamba_dt_rank": 4,
    "ssm_state_size": 16,
    "chunk_size": 8,
    "mamba_chunk_size": 8,
    "hidden_size_per_layer_input": 8,
    "laurel_rank": 8,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 96,
    "tie_word_embeddings": False,
    "num_kv_shared_layers": 0,
    "attn_layer_period": 2,
    "attn_layer_offset": 1,
    "num_nextn_predict_layers": 0,
    "rotary_dim": 8,
    "is_decoder": True,
    "ffn_config": {"hidden_size": 64, "ffn_hidden_size": 32, "moe_num_experts": 4, "moe_top_k": 2},
    "attn_config": {"kv_n_heads": 2, "rope_theta": 10000.0, "clip_qkv": 8.0},
    "mtp_num_layers": 0,
    "initializer_range": 0.1,
    "dropout": 0.0,
    "attention_dropout": 0.0,
    "num_mem_blocks": 1,
    "adapter_rank": 8,
    "layer_norm_eps": 1e-5,
    "ngram_vocab_size_ratio": 4,
    "emb_neighbor_num": 3,
    "emb_split_num": 2,
}
# Settings that change how attention or the cache works, each a variant of its own.
VARIANTS: dict[str, dict[str, dict[str, Any]]] = {
    "mistral": {"": {"sliding_window": None}, "sliding window": {"sliding_window": WINDOW}},
    "mixtral": {"": {"sliding_window": None}, "sliding window": {"sliding_window": WINDOW}},
    "phi3": {"": {"sliding_window": None}, "sliding window": {"sliding_window": WINDOW}},
    "starcoder2": {"": {"sliding_window": None}, "sliding window": {"sliding_window": WINDOW}},
    "phimoe": {"": {"sliding_window": None}, "sliding window": {"sliding_window": WINDOW}},
    "falcon": {
        "": {"alibi": False, "new_decoder_architecture": False, "multi_query": True},
        "new decoder": {"alibi": False, "new_decoder_architecture": True},
        "alibi": {
            "alibi": True,
            "new_decoder_architecture": False,
            "multi_query": False,
            "num_kv_heads": 4,
        },
    },
    "mistral3": {"": {"text_config": {"sliding_window": None}}},
    "qwen2_5_vl": {
        "": {"text_config": {"rope_parameters": {"rope_theta": 1e4, "mrope_section": [2, 3, 3]}}}
    },
    "opt": {"": {}, "norm after": {"do_layer_norm_before": False}},
    "gpt_bigcode": {"multi-query": {"multi_query": True}, "multi-head": {"multi_query": False}},
    "gpt_neo": {
        "": {"attention_types": [[["global", "local"], 2]], "num_layers": 4},
        "global": {"attention_types": [[["global"], 4]], "num_layers": 4},
    },
    "gemma3n_text": {"": {}, "shared keys": {"num_kv_shared_layers": 2}},
    "gemma4_text": {"": {}, "shared keys": {"num_kv_shared_layers": 2}},
    "deepseek_v2": {"": {"num_experts_per_tok": 2}},
    "dots1": {"": {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2}},
    "lfm2": {"": {"layer_types": ["conv", "full_attention"] * 2}},
    "lfm2_moe": {"": {"layer_types": ["conv", "full_attention"] * 2}},
    "granitemoehybrid": {"": {"layer_types": ["mamba", "attention"] * 2}},
    "bamba": {"": {"attn_layer_indices": [1, 3]}},
    "qwen2": {"": {}, "sliding window": {"use_sliding_window": True, "max_window_layers": 2}},
}
LARGE = ("blt", "got_ocr2", "phi4_multimodal", "roc_bert")  # parts of them can't be made small
MULTIMODAL = (
    "gemma3",
    "llava",
    "qwen2_5_vl",
    "qwen3_vl",
    "mistral3",
    "idefics3",
    "internvl",
    "smolvlm",
)


def architectures() -> Iterator[tuple[str, str]]:
    """Model types and their variants."""
    for kind in sorted({*MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, *MULTIMODAL} - {*LARGE}):
        for variant in VARIANTS.get(kind, {"": {}}):
            yield kind, variant


def tiny_model(kind: str, variant: str = "") -> Any:
    """A model with random weights; raises what transformers raises where its configuration can't be
    made small.
    """
    torch.manual_seed(0)
    config = tiny_config(CONFIG_MAPPING[kind], VARIANTS.get(kind, {}).get(variant, {}))
    multimodal = kind in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES and kind in MULTIMODAL
    auto = AutoModelForImageTextToText if multimodal else AutoModelForCausalLM
    model = auto.from_config(config).eval()
    generator = torch.Generator().manual_seed(0)
    for name, weight in model.named_parameters():
        # attention that prefers some tokens, so that a lost one shows
        if weight.ndim >= 2 or "sink" in name:
            spread = 1.5 / math.sqrt(weight.shape[-1]) if weight.ndim >= 2 else 1.0
            weight.data.copy_(torch.randn(weight.shape, generator=generator) * spread)
    model.generation_config.eos_token_id = None
    return model


def tiny_config(kind: Any, more: dict[str, Any]) -> Any:
    default = kind()
    settings = {name: value for name, value in SMALL.items() if _settable(default, name)} | more
    if "qk_rope_head_dim" in settings:  # the width that is rotated
        settings |= {
            "head_dim": settings["qk_rope_head_dim"],
            "num_key_value_heads": SMALL["num_attention_heads"],
        }
    for name in ("layer_types", "mlp_layer_types"):
        if (
            isinstance(_value(default, name), list)
            and _settable(default, name)
            and name not in more
        ):
            kinds = list(dict.fromkeys(_value(default, name)))
            settings[name] = [kinds[n % len(kinds)] for n in range(LAYERS)]
    for name in kind.sub_configs:
        if (inner := _value(default, name)) is not None:
            settings[name] = tiny_config(type(inner), more.get(name, {})).to_dict()
    return kind(**settings)


def _value(config: Any, name: str) -> Any:
    try:
        return getattr(config, name, None)
    except Exception:
        return True


def _settable(config: Any, name: str) -> bool:
    of_class = getattr(type(config), getattr(config, "attribute_map", {}).get(name, name), None)
    if isinstance(of_class, property) and of_class.fset is None:
        return False
    forced = name in ("head_dim", "num_key_value_heads") and name in vars(config) | getattr(
        type(config), "__annotations__", {}
    )
    return forced or _value(config, name) is not None


def second_turn(model: Any, policy: Policy, budget: CacheBudget) -> Exactness:
    """Prompts of two turns, each padded on the left: the padding of the second is in the middle of
    the text.
    """
    inputs = ragged_prompts(model)
    turn, mask = torch.arange(2, 34).view(4, 8), torch.ones(4, 8, dtype=torch.long)
    mask[1, :3] = mask[2, :6] = mask[3, :1] = 0
    one = torch.ones(4, 1, dtype=torch.long)
    texts = [inputs["input_ids"], *turn[:, :3].split(1, 1), turn, *turn[:, 2:].split(1, 1)]
    masks = [inputs["attention_mask"], *[one] * 3, mask, *[one] * 6]
    cache = WatchedCache(model, policy, budget, untested=True)
    logits = []
    with torch.no_grad():
        for n, text in enumerate(texts):
            whole = torch.cat(masks[: n + 1], 1)
            positions = (whole.cumsum(1) - 1).clamp(min=0)[:, -text.shape[1] :]
            given = {
                "attention_mask": whole,
                "position_ids": positions,
                "past_key_values": cache,
                "use_cache": True,
            }
            logits.append(model(text, **given).logits)
    real = torch.cat(masks, 1).bool()
    full, pruned = (
        recomputed(model, torch.cat(texts, 1), real.long(), c)[real] for c in (None, cache)
    )
    error, effect = (
        float((pruned - other).abs().max() / full.std())
        for other in (torch.cat(logits, 1)[real], full)
    )
    return Exactness(error, effect, cache.prunings)


@torch.no_grad()
def rows_that_join(model: Any, policy: Policy, budget: CacheBudget) -> Exactness:
    """Two rows of different lengths, one of which joins later: logits beside those of each row
    alone.
    """
    slots = SlotCache(model, policy, budget, untested=True)
    prompts = [torch.arange(5, 12)[None], torch.arange(30, 42)[None]]
    tokens = [torch.full((1, 1), 11 + n) for n in range(20)]
    alone, together = [], []
    for row, prompt in enumerate(prompts):
        cache = SelectCache(model, policy, budget, untested=True)
        model(prompt, past_key_values=cache, use_cache=True)
        alone.append(
            [
                model(t, past_key_values=cache, use_cache=True).logits[0, -1]
                for t in tokens[4 * row :]
            ]
        )
    for step, token in enumerate(tokens):
        if step in (0, 4):
            cache = SelectCache(model, policy, budget, untested=True)
            model(prompts[step // 4], past_key_values=cache, use_cache=True)
            slots.join(cache, seed=0)
        ids, positions = (
            token.expand(len(slots.lengths), 1),
            torch.tensor(slots.seen_tokens)[:, None],
        )
        given = {
            "attention_mask": slots.mask(),
            "position_ids": positions,
            "past_key_values": slots,
            "use_cache": True,
        }
        together.append(model(ids, **given).logits[:, -1])
    pairs = [
        (logits[row], alone[row][n - 4 * row])
        for n, logits in enumerate(together)
        for row in range(len(logits))
    ]
    ours, theirs = (torch.stack(each) for each in zip(*pairs, strict=True))
    return Exactness(float((ours - theirs).abs().max() / theirs.std()), 1.0, 1)
