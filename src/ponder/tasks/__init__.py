"""Tasks: problems of a given size, and the grading of answers to them. One plugin per file."""

import importlib
from typing import Any


def __getattr__(name: str) -> Any:
    """Import a task's module on first use: `ponder.tasks.tents`."""
    if not name.startswith("_"):
        try:
            return importlib.import_module(f"ponder.tasks.{name}")
        except ModuleNotFoundError as missing:
            if missing.name != f"ponder.tasks.{name}":
                raise
    raise AttributeError(f"module 'ponder.tasks' has no attribute {name!r}")
