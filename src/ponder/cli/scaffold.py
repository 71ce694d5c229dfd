"""Writes a plugin to start from: whole, small, and passing `ponder check` as it is."""

from __future__ import annotations

import keyword
from pathlib import Path

from ponder.core import UserError, plugins

SCAFFOLDS = Path(__file__).parent / "scaffolds"


def scaffold(kind: str, name: str, folder: Path) -> Path:
    """Write NAME.py and return its path. An existing file is never overwritten."""
    kinds = [k.singular for k in plugins.KINDS.values()]
    found = plugins.kind_of(kind)
    if found not in plugins.KINDS:
        raise UserError(f"there is no kind of plugin `{kind}`", hint=plugins.nearest(kind, kinds))
    kind = plugins.KINDS[found].singular
    if not name.isidentifier() or keyword.iskeyword(name) or name != name.lower():
        raise UserError(
            f"`{name}` can't be the name of a plugin", hint="use lower-case letters, digits and _, such as my_task"
        )
    path = folder / f"{name}.py"
    if path.exists():
        raise UserError(f"{path} exists already", hint="choose another name, or move the file away")
    cls = name.replace("_", " ").title().replace(" ", "")
    text = (SCAFFOLDS / f"{kind}.py").read_text("utf-8")
    path.write_text(text.replace("Mine", cls).replace("`mine`", f"`{name}`"), "utf-8")
    return path
