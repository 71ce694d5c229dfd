"""Looks up settings of the methods that a model was put under.

Two methods of a chain may have a setting of the same name, so a figure that is asked for `window`
refuses to guess: `compress.window` says which one is meant. A name that is no setting is looked up
among an attempt's details.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ponder.core import Cell, Outcome, UserError


def setting(outcome: Outcome, name: str) -> Any:
    """Return a setting of a method (`window` or `compress.window`), or else a detail of the
    attempt; else None.
    """
    dotted = dotted_name(outcome.cell, name)
    if dotted:
        return outcome.cell.settings[dotted]
    return outcome.details.get(name)


def setting_reader(name: str) -> Callable[[Outcome], Any]:
    """Return `setting` for many outcomes: the methods of a cell are searched once."""
    names: dict[Cell, str] = {}

    def read(outcome: Outcome) -> Any:
        cell = outcome.cell
        if cell not in names:
            names[cell] = dotted_name(cell, name)
        dotted = names[cell]
        return cell.settings[dotted] if dotted else outcome.details.get(name)

    return read


def dotted_name(cell: Cell, name: str) -> str:
    """Return the full name of a method's setting in `Cell.settings`; "" if no method has it."""
    method, _, key = name.rpartition(".")
    having = [
        owner
        for owner, use in cell.owners.items()
        if key in use.settings and (not method or use.name == method)
    ]
    if not having:
        return ""
    if not method and len(having) > 1:
        methods = list(dict.fromkeys(cell.owners[owner].name for owner in having))
        raise UserError(
            f"`{name}` is a setting of {len(having)} methods of the chain {' + '.join(cell.owners)}",
            hint=f"write {' or '.join(f'`{method}.{key}`' for method in methods)}",
        )
    return f"{having[-1]}.{key}"


def owners(cell: Cell, *names: str) -> list[str]:
    """Return the methods of the chain that have these settings, named as in `Cell.owners`."""
    found = dict.fromkeys(_owner(cell, name) for name in names)
    return [owner for owner in found if owner]


def beside(cell: Cell, *names: str) -> dict[str, Any]:
    """Return the other settings of the methods that have these; of several methods, as in
    `compress.budget`.
    """
    taken = {dotted_name(cell, name) for name in names}
    methods = owners(cell, *names)
    others = {}
    for owner in methods:
        use = cell.owners[owner]
        for key, value in use.settings.items():
            if f"{owner}.{key}" not in taken:
                others[key if len(methods) == 1 else f"{use.name}.{key}"] = value
    return others


def _owner(cell: Cell, name: str) -> str:
    dotted = dotted_name(cell, name)
    key = name.rpartition(".")[2]
    return dotted.removesuffix(f".{key}")
