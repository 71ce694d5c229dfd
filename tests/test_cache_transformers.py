"""What `ponder.kvcache` relies on in transformers, and that it relies on nothing else of Ponder but
`core`.
"""

from __future__ import annotations

import ast
import inspect
import tomllib
from pathlib import Path

import pytest

pytest.importorskip("torch")

import transformers
from packaging.requirements import Requirement
from packaging.version import Version
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    LlamaConfig,
    cache_utils,
    masking_utils,
)
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.models.llama import modeling_llama

from ponder import kvcache
from ponder.kvcache.layer import Layer
from ponder.kvcache.tested_architectures import EXACT, TRANSFORMERS

ROOT = Path(__file__).parent.parent
CHANGED = "transformers changed {}, on which src/ponder/kvcache/{} relies: adapt it, then run benchmarks/cache_matrix.py"


def test_the_matrix_was_run_with_the_transformers_that_may_be_installed() -> None:
    extra = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"][
        "optional-dependencies"
    ]["torch"]
    bound = next(r for r in map(Requirement, extra) if r.name == "transformers").specifier
    tested = Version(TRANSFORMERS)
    assert bound.contains(TRANSFORMERS)
    after = f"{tested.major}.{tested.minor + 1}.0"
    assert not bound.contains(after), (
        f"pyproject allows transformers {after}, which the matrix was not run with"
    )
    assert bound.contains(transformers.__version__), (
        f"transformers {transformers.__version__} is installed, and caches were tested with {TRANSFORMERS}: "
        "run benchmarks/cache_matrix.py, then its --docs, then raise the bound in pyproject.toml"
    )
    assert len(EXACT) > 100


def test_layers_of_a_cache_are_as_expected() -> None:
    mixin = cache_utils.CacheLayerMixin
    known = {"lazy_initialization", "update", "get_mask_sizes", "get_seq_length", "get_max_length"}
    assert mixin.__abstractmethods__ <= known, CHANGED.format(
        "what a cache layer must define", "layer.py"
    )
    ours = {name for name in vars(mixin) if not name.startswith("_")} - {*vars(Layer)}
    assert ours <= {"is_compileable", "is_croppable", "supports_early_init", "prefetch"}, (
        CHANGED.format(f"what a cache layer can do ({', '.join(sorted(ours))})", "layer.py")
    )
    kinds = set(cache_utils.DYNAMIC_LAYER_TYPE_MAPPING)
    assert {
        "full_attention",
        "sliding_attention",
        "chunked_attention",
        "conv",
        "linear_attention",
    } <= kinds, CHANGED.format("the kinds of layers", "supported.py")
    layers = transformers.DynamicCache(config=LlamaConfig(num_hidden_layers=2)).layers
    assert [type(layer) for layer in layers] == [cache_utils.DynamicLayer] * 2, CHANGED.format(
        "how a cache is made from a configuration", "supported.py"
    )


def test_attention_is_called_as_expected() -> None:
    first = ["module", "query", "key", "value", "attention_mask"]
    for function in (sdpa_attention_forward, modeling_llama.eager_attention_forward):
        assert list(inspect.signature(function).parameters)[:5] == first, CHANGED.format(
            f"the arguments of {function.__name__}", "attention.py"
        )
    source = inspect.getsource(modeling_llama.LlamaAttention.forward)
    assert "get_interface" in source and "_attn_implementation" in source, CHANGED.format(  # noqa: PT018
        "how a model finds its attention", "attention.py"
    )
    assert hasattr(LlamaConfig(), "_attn_implementation_internal"), CHANGED.format(
        "where a configuration holds its attention", "hooks.py"
    )
    assert {"ponder_sdpa", "ponder_eager"} <= {*AttentionInterface().keys()} & {
        *AttentionMaskInterface().keys()
    }
    sizes = inspect.signature(masking_utils._preprocess_mask_arguments)
    assert "past_key_values" in sizes.parameters, CHANGED.format(
        "how masks get their sizes", "layer.py"
    )
    assert "get_mask_sizes" in inspect.getsource(masking_utils._preprocess_mask_arguments)


def test_the_cache_needs_only_core() -> None:
    for file in Path(kvcache.__path__[0]).rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            names = [node.module] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            for name in names:
                part = (name or "").split(".")
                assert part[0] != "ponder" or part[1:2] in (["core"], ["kvcache"]), (
                    f"{file.name} imports {name}"
                )
