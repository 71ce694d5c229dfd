"""The engines that tests use: vLLM in the environment that `make engines` makes, or a stand-in for it."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
FAKE = HERE / "fake_vllm"
VLLM = HERE.parent / ".venv-vllm/bin/python"


def fake_vllm(folder: Path) -> str:
    """An interpreter that has the stand-in for vLLM."""
    path = folder / "python"
    path.write_text(f'#!/bin/sh\nPYTHONPATH={FAKE} exec {sys.executable} "$@"\n')
    path.chmod(0o755)
    return str(path)
