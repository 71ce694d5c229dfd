"""Models: whatever answers a request.

One plugin per file; here is what plugins with local weights share.
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
    """Where made and converted models are."""
    return Path(os.environ.get("PONDER_MODELS") or Path.home() / ".cache" / "ponder" / "models")


@lru_cache
def making_cost(folder: Path) -> dict[str, float]:
    """What training the weights in a folder cost, and what was measured meanwhile; empty if Ponder
    didn't make them.
    """
    path = folder / "made.json"
    made = json.loads(path.read_text("utf-8")) if path.is_file() else {"cost": {}, "measures": {}}
    return {name: float(value) for name, value in {**made["cost"], **made["measures"]}.items()}


def read_card(folder: Path) -> dict[str, Any]:
    """The `card.json` that Ponder wrote beside weights, checked against their digest; empty if
    there is none.
    """
    path, weights = folder / "card.json", folder / "model.safetensors"
    if not path.is_file():
        return {}
    try:
        card = json.loads(path.read_text("utf-8"))
        digest = hashlib.sha256(weights.read_bytes()).hexdigest()
    except (OSError, ValueError) as error:
        raise UserError(f"can't read {path} or the weights beside it: {error}") from None
    if not isinstance(card, dict) or "digest" not in card:
        return {}  # another program's
    if digest != card["digest"]:
        what = f"{weights} is damaged: its digest is not the one in card.json"
        raise UserError(what, hint="install Ponder again, or make the folder again")
    return card
