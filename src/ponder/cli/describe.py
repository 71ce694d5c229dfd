"""What `ponder show` prints about a plugin or a study.

A plugin's settings are its dataclass fields; the comment beside a field is its documentation.
Fields that Ponder sets itself, whose type no TOML value has, are not listed.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from ponder.cli.comments import comments
from ponder.cli.options import columns
from ponder.core import EnvVar, Plugin, Prices, Task, UserError, plugins
from ponder.core.settings import assign, build, toml
from ponder.study.study import BUILT_IN, StudySpec, built_in

# types that have another name in a study than in Python
NAMES = {Path: "path", EnvVar: '"$NAME"', Prices: "table"}


def named(words: Sequence[str], verb: str) -> tuple[str, str]:
    """The kind ("" if it isn't given) and name in `NAME`, `KIND NAME` or `KIND/NAME`."""
    if len(words) > 2:
        raise UserError(
            f"expected a name, or a kind and a name, not {len(words)} words",
            hint=f"ponder {verb} policy oracle",
        )
    word, name = words if len(words) == 2 else words[0].rpartition("/")[::2]
    if len(words) == 1 and (name.endswith((".py", ".toml")) or not word):
        return "", words[0]  # a file, or a name alone
    kind = plugins.kind_of(word)
    if kind is None:
        kinds = [kind.singular for kind in plugins.KINDS.values()]
        hint = plugins.nearest(word, [*kinds, "study"])
        raise UserError(f"there is no kind of plugin `{word}`", hint=hint)
    return kind, name


def anything(
    kind: str, name: str, size: int | None = None, seed: int = 0, settings: Sequence[str] = ()
) -> dict[str, Any]:
    """Describe a plugin by its name or file, or a study."""
    if kind == "studies" or (not kind and _is_study(name, size, settings)):
        if size is not None:
            raise UserError(f"{name} is a study, which has no size", hint="--size is for tasks")
        return StudySpec.load(name, settings).resolved()
    kind, plugin = find(kind, name, [*built_in()])
    data = {
        "kind": plugins.KINDS[kind].noun,
        "name": plugin.plugin_name(),
        "about": inspect.getdoc(inspect.getmodule(plugin)),
        "settings": schema(plugin),
    }
    if issubclass(plugin, Task):
        return data | _problem(name, plugin, size, seed, settings)
    if size is not None or settings:
        raise UserError(
            f"{data['kind']} `{name}` has no problems to show",
            hint="--size and --set are for tasks",
        )
    return data


def _is_study(name: str, size: int | None, settings: Sequence[str]) -> bool:
    """Whether a name without a kind means a study.

    If a task has that name too, options that only tasks have decide.
    """
    if name not in built_in() or name not in plugins.names("tasks"):
        return name in built_in() or name.endswith(".toml")
    keys = {f.name for f in dataclasses.fields(StudySpec)}
    return size is None and all(
        re.split(r"\W", setting, maxsplit=1)[0] in keys for setting in settings
    )


def others(name: str) -> list[str]:
    """The plugins that share a built-in study's name, each with the command that shows it."""
    kinds = [kind for kind in plugins.KINDS if name in built_in() and name in plugins.names(kind)]
    return [
        f"{plugins.KINDS[kind].noun} {name}: ponder show {plugins.KINDS[kind].singular} {name}"
        for kind in kinds
    ]


def find(kind: str, name: str, studies: Sequence[str] = ()) -> tuple[str, type[Any]]:
    """The kind and class of a plugin, by its name or its file.

    `studies` are names to suggest as well.
    """
    if name.endswith(".py"):
        return (kind, plugins.load(kind, name, Path())) if kind else _kind_of_file(name)
    kinds = [k for k in plugins.KINDS if name in plugins.names(k) and kind in ("", k)]
    if len(kinds) == 1:
        return kinds[0], plugins.load(kinds[0], name)
    if kinds:
        hint = "say which: " + ", ".join(f"{plugins.KINDS[kind].singular} {name}" for kind in kinds)
        raise UserError(f"there are {len(kinds)} plugins called `{name}`", hint=hint)
    renamed = next((k for k, old in plugins.RENAMED if old == name and kind in ("", k)), None)
    if kind or renamed:
        raise plugins.unknown(renamed or kind, name)
    known = {*studies, *(n for k in plugins.KINDS for n in plugins.names(k))}
    close = plugins.closest(name, known)
    hint = (
        f"did you mean `{close}`?"
        if close
        else "ponder list shows them all; a file is given as ./mine.py"
    )
    raise UserError(f"there is no plugin{' or study' if studies else ''} `{name}`", hint=hint)


def _kind_of_file(name: str) -> tuple[str, type[Any]]:
    for kind in plugins.KINDS:
        try:
            return kind, plugins.load(kind, name, Path())
        except UserError as error:
            if "must define" not in error.what:
                raise
    kinds = ", ".join(c.contract.__name__ for c in plugins.KINDS.values())
    raise UserError(
        f"{name} must define exactly one subclass of one of {kinds}",
        hint="ponder new task NAME writes a file to start from",
    )


def schema(cls: type[Any]) -> list[dict[str, str]]:
    """A dataclass's keys in a study: name, type, default, and what each is for."""
    hints, about = get_type_hints(cls), _comments(cls)
    own = sorted(
        dataclasses.fields(cls), key=lambda f: f.name not in vars(cls).get("__annotations__", {})
    )
    return [
        {
            "key": f.name,
            "type": _type_name(hints[f.name]),
            "default": _default(f),
            "about": about.get(f.name, ""),
        }
        for f in own  # before those that it inherits
        if f.init and _in_toml(hints[f.name])
    ]


def _comments(cls: type[Any]) -> dict[str, str]:
    """Return each field's comment, above or beside it, from the nearest class that declares it."""
    about: dict[str, str] = {}
    for base in reversed([base for base in cls.__mro__ if dataclasses.is_dataclass(base)]):
        source = textwrap.dedent(inspect.getsource(base))
        lines = source.splitlines()
        by_line = comments(source)
        definition = ast.parse(source).body[0]
        assert isinstance(definition, ast.ClassDef)
        for node in definition.body:
            if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
                continue
            first = node.lineno
            while lines[first - 2].lstrip().startswith("# "):
                first -= 1
            last = node.end_lineno or node.lineno  # later than the first if the value is wrapped
            text = " ".join(by_line[i] for i in range(first, last + 1) if i in by_line)
            if text:
                about[node.target.id] = text
    return about


def _default(field: dataclasses.Field[Any]) -> str:
    factory = field.default_factory
    value = field.default if factory is dataclasses.MISSING else factory()
    if value is dataclasses.MISSING:
        return "required"
    # where it is on this machine helps nobody
    if isinstance(value, Path) and value.is_relative_to(plugins.HERE):
        return "in the package"
    return (
        "not set"
        if value is None or value == ""
        else textwrap.shorten(toml(value), 40, placeholder=" …")
    )


def _in_toml(hint: Any, inside: bool = False) -> bool:
    """Whether a TOML value can have this type; `inside` a dataclass, no plugin is built."""
    if get_origin(hint) is Literal or hint in (Ellipsis, NoneType):
        return True
    if arguments := get_args(hint):
        return all(_in_toml(a, inside) for a in arguments) or get_origin(hint) in (
            dict,
            Mapping,
            Sequence,
        )
    if isinstance(hint, type) and issubclass(hint, Plugin):
        return not inside
    if dataclasses.is_dataclass(hint):
        return all(_in_toml(field, inside=True) for field in get_type_hints(hint).values())
    return isinstance(hint, type) and issubclass(hint, str | int | float | Path)


def _type_name(hint: Any) -> str:
    """A type as one would say what to write in a study."""
    origin, arguments = (
        get_origin(hint),
        [a for a in get_args(hint) if a not in (NoneType, Ellipsis)],
    )
    if origin is Literal:
        # "" is the default: not set
        return " | ".join(toml(choice) for choice in arguments if choice != "")
    if origin in (list, tuple, Sequence) and arguments:
        return f"list of {_type_name(arguments[0])}s"
    if origin in (dict, Mapping):
        return "table"
    if arguments:  # a union; what is left out of a study is None, so None is no type there
        return " | ".join(map(_type_name, arguments))
    for kind in plugins.KINDS.values():
        if hint is kind.contract:
            return kind.noun
    return NAMES.get(hint) or str(hint.__name__)


def _problem(
    name: str, plugin: type[Task], size: int | None, seed: int, settings: Sequence[str]
) -> dict[str, Any]:
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


def text(data: Mapping[str, Any]) -> str:
    """A description as text; a study as TOML."""
    if "kind" not in data:
        return study_text(data)
    parts = [f"{data['kind']} {data['name']}", data["about"] or ""]
    if data["settings"]:
        rows = [
            (f"  {row['key']}", row["type"], row["default"], row["about"])
            for row in data["settings"]
        ]
        parts.append(columns([("settings", "type", "default", ""), *rows]))
    if "turns" in data:
        sizes = ", ".join(map(str, data["sizes"]))
        parts += [
            f"sizes, if a study names none: {sizes}",
            f"problem {data['problem']} (size {data['size']})",
        ]
        prompt = "\n\n".join(part for part in (data["system"], *data["turns"]) if part)
        parts += [f"prompt\n------\n{prompt}", f"a right answer\n--------------\n{data['answer']}"]
    return "\n\n".join(part.strip("\n") for part in parts if part)


def study_file(name: str) -> str:
    """A study as it was written, with its comments."""
    path = BUILT_IN / f"{name}.toml" if name in built_in() else Path(name)
    return f"# {path.stem}\n{path.read_text('utf-8-sig').strip()}"


def study_text(study: Mapping[str, Any]) -> str:
    """A resolved study as TOML: its own keys first, then its tables."""
    own = {
        key: value
        for key, value in study.items()
        if key != "name" and not isinstance(value, list | tuple)
    }
    lines = [
        f"# {study['name']}",
        *(_line(key, value) for key, value in own.items() if value not in (None, "")),
    ]
    for key, rows in study.items():
        for row in rows if isinstance(rows, list | tuple) else ():
            lines += ["", f"[[{key}]]", *(_line(*setting) for setting in row.items())]
    return "\n".join(lines)


def _line(key: str, value: Any) -> str:
    """A key and its value; a long array has one element per line."""
    line = f"{key} = {toml(value)}"
    if len(line) <= 100 or not isinstance(value, list | tuple):
        return line
    return "\n".join([f"{key} = [", *(f"  {toml(element)}," for element in value), "]"])
