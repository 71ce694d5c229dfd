"""The architectures on which pruned caches were found exact.

Written by benchmarks/cache_matrix.py.
"""

from __future__ import annotations

TRANSFORMERS = "5.22.2"
# fmt: off
EXACT = frozenset({
    "afmoe", "apertus", "arcee", "aria_text", "axk1", "bailing_hybrid", "bamba", "bart", "beam",
    "bert", "bert-generation", "big_bird", "bigbird_pegasus", "biogpt", "bitnet", "blenderbot",
    "blenderbot-small", "codegen", "cohere", "cohere2", "cohere2_moe", "ctrl", "cwm", "deepseek_v2",
    "deepseek_v3", "dots1", "electra", "emu3", "ernie", "ernie4_5", "ernie4_5_moe", "exaone4",
    "exaone_moe", "falcon", "flex_olmo", "flint", "fuyu", "gemma", "gemma2", "gemma3",
    "gemma3_text", "gemma3n_text", "gemma4", "gemma4_text", "gemma4_unified", "gemma4_unified_text",
    "glm", "glm4", "glm4_moe", "glm4_moe_lite", "gpt-sw3", "gpt2", "gpt_bigcode", "gpt_neox",
    "gpt_neox_japanese", "gpt_oss", "gptj", "granite", "granite_swa", "granitemoe",
    "granitemoe_swa", "granitemoehybrid", "granitemoeshared", "helium", "hunyuan_v1_dense",
    "hunyuan_v1_moe", "hy_v3", "hyperclovax", "idefics3", "internvl", "jais2", "jamba",
    "kimi_linear", "kolibri1", "laguna", "lfm2", "lfm2_moe", "llama", "llama4", "llama4_text",
    "llava", "marian", "mbart", "megatron-bert", "mellum", "mimo_v2_flash", "minicpm3",
    "minimax_m2", "minimax_m3_vl_text", "ministral3", "mistral", "mistral3", "mixtral",
    "modernbert-decoder", "moss_transcribe_diarize", "mvp", "nanochat", "nemotron", "olmo", "olmo2",
    "olmo3", "olmo_hybrid", "olmoe", "opt", "pegasus", "persimmon", "phi", "phi3", "phimoe",
    "plbart", "qwen2", "qwen2_5_vl", "qwen2_moe", "qwen3", "qwen3_5", "qwen3_5_moe",
    "qwen3_5_moe_text", "qwen3_5_text", "qwen3_moe", "qwen3_next", "qwen3_vl", "rembert",
    "roformer", "seed_oss", "smollm3", "smolvlm", "solar_open", "stablelm", "starcoder2", "trocr",
    "vaultgemma", "xglm", "youtu",
})
# fmt: on
