"""The names of the tensors in a checkpoint, without loading it: which head it has is known by them alone."""

from __future__ import annotations

import json
from pathlib import Path

FILES = ("model.safetensors.index.json", "model.safetensors", "pytorch_model.bin.index.json", "pytorch_model.bin")


def tensor_names(id: str, revision: str = "") -> frozenset[str]:  # noqa: A002 the name in every reward
    """The names in the file that transformers would load; empty if there is none."""
    from transformers.utils.hub import cached_file

    for name in FILES:
        path = cached_file(id, name, revision=revision or None, _raise_exceptions_for_missing_entries=False)
        if path is not None:
            return frozenset(_names(Path(path)))
    return frozenset()


def _names(path: Path) -> list[str]:
    if path.suffix == ".json":
        return list(json.loads(path.read_text("utf-8"))["weight_map"])
    if path.suffix == ".safetensors":
        from safetensors import safe_open

        with safe_open(path, "pt") as file:
            return list(file.keys())
    import torch

    return list(torch.load(path, map_location="meta", mmap=True, weights_only=True))
