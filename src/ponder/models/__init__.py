"""Models: whatever answers a request.

One plugin per file or folder; here are the files that Ponder keeps next to local weights.
"""

from __future__ import annotations

import hashlib
import json
import os
from functools import lru_cache
from pathlib import Path
from typing import Any

from ponder.core import UserError


def models_folder() -> Path:
    """Return the folder of trained and converted models."""
    folder = os.environ.get("PONDER_MODELS")
    if folder:
        return Path(folder)
    return Path.home() / ".cache" / "ponder" / "models"


@lru_cache
def making_cost(folder: Path) -> dict[str, float]:
    """Return the cost and the measurements of training the weights in a folder.

    Empty if Ponder didn't train them.
    """
    path = folder / "made.json"
    if not path.is_file():
        return {}
    record = json.loads(path.read_text("utf-8"))
    numbers = record["cost"] | record["measures"]
    return {name: float(value) for name, value in numbers.items()}


def read_card(folder: Path) -> dict[str, Any]:
    """Return the `card.json` that Ponder wrote next to weights, checked against their digest.

    Empty if there is none.
    """
    path = folder / "card.json"
    weights = folder / "model.safetensors"
    if not path.is_file():
        return {}
    try:
        card = json.loads(path.read_text("utf-8"))
        digest = hashlib.sha256(weights.read_bytes()).hexdigest()
    except (OSError, ValueError) as error:
        raise UserError(f"can't read {path} or the weights next to it: {error}") from None
    if not isinstance(card, dict) or "digest" not in card:
        return {}  # another program's
    if digest != card["digest"]:
        message = f"{weights} is damaged: its digest is not the one in card.json"
        raise UserError(message, hint="install Ponder again, or make the folder again")
    return card
