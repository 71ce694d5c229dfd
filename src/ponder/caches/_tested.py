"""The architectures on which pruned caches were found exact. Written by benchmarks/cache_matrix.py."""

from __future__ import annotations

TRANSFORMERS = "5.22.2"
EXACT = frozenset(
    [
        "llama",
        "gemma2",
        "gpt_oss",
        "mistral",
        "gpt2",
        "opt",
        "llama4_text",
        "lfm2",
        "qwen2",
        "gemma3",
        "deepseek_v3",
        "gptj",
    ]
)
