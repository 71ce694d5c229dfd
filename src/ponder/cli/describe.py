"""What `ponder show` says of a plugin or a study."""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_type_hints

from ponder.core import Plugin, Task, UserError, plugins
from ponder.core.settings import assign, build
from ponder.runner.study import Study, built_in


def anything(name: str, size: int | None = None, seed: int = 0, settings: Sequence[str] = ()) -> dict[str, Any]:
    """Describe a plugin of any kind, a plugin's file, or a study."""
    if name in built_in() or name.endswith(".toml"):
        return Study.load(name, settings).resolved()
    kind, plugin = find(name)
    data = {
        "kind": kind[:-1],
        "name": name,
        "about": inspect.getdoc(inspect.getmodule(plugin)),
        "settings": schema(plugin),
    }
    if issubclass(plugin, Task):
        data |= _problem(name, plugin, size, seed, settings)
    return data


def find(name: str) -> tuple[str, type[Any]]:
    """The kind and class of a plugin by its name alone, or by its file."""
    if name.endswith(".py"):
        return _kind_of_file(name)
    wanted, _, rest = name.rpartition("/")  # `figures/effort` where the name alone could mean two things
    for kind in plugins.KINDS:
        if rest in plugins.names(kind) and wanted in ("", kind):
            return kind, plugins.load(kind, rest)
    known = [n for kind in plugins.KINDS for n in plugins.names(kind)]
    raise UserError(f"there is no plugin or study `{name}`", hint=plugins.nearest(name, [*known, *built_in()]))


def _kind_of_file(name: str) -> tuple[str, type[Any]]:
    for kind in plugins.KINDS:
        try:
            return kind, plugins.load(kind, name)
        except UserError as error:
            if "must define" not in error.what:
                raise
    kinds = ", ".join(c.contract.__name__ for c in plugins.KINDS.values())
    raise UserError(
        f"{name} must define one subclass of {kinds}", hint="ponder new task NAME writes a file to start from"
    )


def schema(plugin: type[Plugin]) -> list[dict[str, str]]:
    """A plugin's keys in a study: name, type, default, and what it is for."""
    hints, comments = get_type_hints(plugin), _comments(plugin)
    rows = []
    for f in dataclasses.fields(plugin):  # type: ignore[arg-type]
        if f.default_factory is not dataclasses.MISSING:
            default = repr(f.default_factory())
        else:
            default = "required" if f.default is dataclasses.MISSING else repr(f.default)
        if isinstance(f.default, Path):  # where it lies on this machine says nothing elsewhere
            default = repr(f.default.name)
        row = {"key": f.name, "type": _type_name(hints[f.name]), "default": default}
        rows.append(row | {"about": comments.get(f.name, "")})
    return rows


def _comments(plugin: type[Plugin]) -> dict[str, str]:
    """What the comment beside each setting says of it: written once, in the code, and shown everywhere."""
    found: dict[str, str] = {}
    for cls in reversed(plugin.__mro__[:-1]):
        if dataclasses.is_dataclass(cls):
            found |= re.findall(r"^    (\w+): [^#\n]*#\s*(.+)$", inspect.getsource(cls), re.MULTILINE)
    return found


def _type_name(hint: Any) -> str:
    name = hint.__name__ if isinstance(hint, type) and not hasattr(hint, "__args__") else str(hint)
    for prefix in ("typing.", "ponder.core.", "pathlib."):
        name = name.replace(prefix, "")
    return name


def _problem(name: str, plugin: type[Task], size: int | None, seed: int, settings: Sequence[str]) -> dict[str, Any]:
    table: dict[str, Any] = {"name": name, **plugin.example}
    content = {"task": [table]}
    for setting in settings:
        assign(content, f"task.{setting}")
    task: Task = build("tasks", table, "--set", Path())
    sizes = task.sizes()
    size = sizes[0] if size is None else size
    task.check_size(size)
    problem = next(task.problems(size, seed))
    return {
        "sizes": list(sizes),
        "problem": problem.id,
        "size": size,
        "system": problem.system,
        "turns": list(problem.turns),
        "answer": task.solve(problem),
    }


def text(data: dict[str, Any]) -> str:
    """The same for a reader."""
    if "kind" not in data:
        return json.dumps(data, indent=1, default=str)
    lines = [f"{data['kind']} {data['name']}", "", data["about"] or "", ""]
    if data["settings"]:
        width = max(len(row["key"]) for row in data["settings"])
        lines.append("settings")
        for row in data["settings"]:
            about = f"  # {row['about']}" if row["about"] else ""
            lines.append(f"  {row['key']:{width}}  {row['type']}, {row['default']}{about}")
        lines.append("")
    if "turns" in data:
        system = [data["system"], ""] if data["system"] else []
        prompt = ["prompt", "------", *system, *data["turns"], ""]
        lines += [
            f"problem {data['problem']} (size {data['size']})",
            "",
            *prompt,
            "a right answer",
            "--------------",
            data["answer"],
        ]
    return "\n".join(lines).rstrip()
