"""An unknown name gets a suggestion only if it is nearly a known one or another word for it; else
the known names.
"""

from __future__ import annotations

import pytest

from ponder.core import plugins
from ponder.study.study import built_in

STUDY_KEYS = (
    "figure",
    "max_cost",
    "max_tokens",
    "model",
    "problems",
    "question",
    "samples",
    "seed",
    "stop",
    "task",
)


def known(kind: str) -> list[str]:
    if kind == "studies":
        return list(built_in())
    return list(STUDY_KEYS) if kind == "keys" else list(plugins.names(kind))


@pytest.mark.parametrize(
    ("kind", "typo", "meant"),
    [
        ("tasks", "tens", "tents"),
        ("tasks", "tetns", "tents"),
        ("tasks", "Tents", "tents"),
        ("tasks", "MATH-500", "math500"),
        ("tasks", "math", "math500"),
        ("tasks", "aime2024", "aime24"),
        ("tasks", "gpqa_diamond", "gpqa"),
        ("tasks", "chain-sum", "chain_sum"),
        ("models", "orcle", "oracle"),
        ("models", "trasnformer", "transformers"),
        ("models", "vlm", "vllm"),
        ("methods", "best-of-n", "best_of"),
        ("methods", "budget_forcing", "budget_force"),
        ("methods", "dop", "dpo"),
        ("policies", "snap_kv", "snapkv"),
        ("policies", "StreamingLLM", "streaming"),
        ("figures", "acuracy", "accuracy"),
        ("figures", "heat_map", "heatmap"),
        ("studies", "efort", "effort"),
        ("keys", "modell", "model"),
        ("keys", "problem", "problems"),
        ("keys", "n_samples", "samples"),
        ("keys", "seeds", "seed"),
    ],
)
def test_typos_are_corrected(kind, typo, meant) -> None:
    assert plugins.nearest(typo, known(kind)) == f"did you mean `{meant}`?"


@pytest.mark.parametrize(
    ("kind", "stranger"),
    [
        ("tasks", "gsm8k"),
        ("tasks", "mmlu"),
        ("tasks", "sudoku"),
        ("tasks", "hellaswag"),
        ("models", "bert"),
        ("models", "mock"),
        ("methods", "prune"),
        ("methods", "quantize"),
        ("policies", "pyramidkv"),
        ("figures", "scatter"),
        ("figures", "histogram"),
        ("studies", "benchmarks"),
        ("studies", "latency"),
        ("keys", "temperature"),
        ("keys", "size"),
        ("keys", "steps"),
        ("keys", "max"),
        ("keys", "budget"),
        ("keys", "description"),
        ("keys", "n"),
    ],
)
def test_strangers_get_the_known_names_instead(kind, stranger) -> None:
    assert plugins.nearest(stranger, known(kind)) == f"known: {', '.join(sorted(known(kind)))}"


def test_a_kind_that_is_not_there(ponder) -> None:
    assert "hint: known: " in ponder("list", "benchmarks").stderr
    assert "hint: did you mean `length_rewards`?" in ponder("list", "lengths").stderr


@pytest.mark.parametrize(
    ("kind", "alias", "plugin"),
    [("methods", "self-consistency", "vote"), ("methods", "GRPO", "length_rl"), ("policies", "tova", "last_query"),
     ("figures", "pass@k", "samples"), ("figures", "pareto", "frontier"), ("tasks", "reasoning_gym", "gym")],
)  # fmt: skip
def test_other_words_for_a_plugin(kind, alias, plugin) -> None:
    assert plugins.unknown(kind, alias).hint == f"here it is called `{plugin}`"


def test_aliases_name_plugins_and_are_not_plugins() -> None:
    for kind, aliases in plugins.ALIASES.items():
        assert set(aliases.values()) <= set(plugins.names(kind))
        assert not set(aliases) & set(plugins.names(kind))
    assert not {*plugins.SERVERS, *plugins.LOCAL} & set(plugins.names("models"))


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("openai", 'name = "endpoint"\nid = "NAME"\nurl = "https://api.openai.com/v1"'),
        ("gpt-4", 'name = "endpoint"\nid = "gpt-4"\nurl = "https://api.openai.com/v1"'),
        ("anthropic", 'name = "endpoint"\nid = "NAME"\nurl = "https://api.anthropic.com/v1"'),
        ("claude", 'name = "endpoint"\nid = "NAME"\nurl = "https://api.anthropic.com/v1"'),
        ("ollama", 'name = "endpoint"\nid = "NAME"\nurl = "http://127.0.0.1:11434/v1"'),
        ("llama.cpp", 'name = "endpoint"\nid = "NAME"\nurl = "http://127.0.0.1:8080/v1"'),
        ("sglang", 'name = "endpoint"\nid = "NAME"\nurl = "http://127.0.0.1:30000/v1"'),
        ("hf", 'name = "transformers"\nid = "NAME"'),
        ("HuggingFace", 'name = "transformers"\nid = "NAME"'),
        ("Qwen/Qwen3-8B", 'name = "transformers"\nid = "Qwen/Qwen3-8B"'),
        ("deepseek-ai/DeepSeek-R1", 'name = "transformers"\nid = "deepseek-ai/DeepSeek-R1"'),
    ],
)
def test_a_provider_or_a_model_s_own_name_gets_the_lines_to_write(
    write, ponder, name, lines
) -> None:
    write("s.toml", f'[[task]]\nname = "chain_sum"\n[[model]]\nname = "{name}"\n')
    stderr = ponder("plan", "s.toml").stderr
    assert f"s.toml: model[0].name: model `{name}` is unknown" in stderr
    assert lines in stderr
