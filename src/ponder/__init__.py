"""Ponder measures what a right answer costs in thinking tokens, and makes it cost less."""

from typing import Any

__version__ = "0.1.0"


def show(chart: Any) -> Any:
    """An Altair chart, such as `figure.draw(tables)`, for display in a notebook: offline, with tooltips and zoom."""
    from ponder.report.notebook import Shown

    return Shown(chart)
