"""What a chart asks for and this renderer does not draw: an error that names it, never a picture without it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any


class Unknown(Exception):
    """Part of Vega-Lite that is not drawn here."""


def only(found: Mapping[str, Any], names: Collection[str], where: str) -> None:
    """Raise if a chart says more at this place than is understood."""
    for name in found:
        if name not in names:
            raise Unknown(f"`{name}` of {where}")


def one_of(value: Any, values: Collection[Any], where: str) -> None:
    if value not in list(values):
        raise Unknown(f"{where} `{value}`")
