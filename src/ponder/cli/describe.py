"""What `ponder show` prints about a plugin or a study, and docs/reference about every plugin.

A plugin's settings are its dataclass fields; the comment above or beside a field is its
documentation. Fields that Ponder sets itself, whose type no TOML value has, are not listed.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import io
import re
import textwrap
import tokenize
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from ponder.cli.output import bold, reflow, table
from ponder.core import EnvVar, Plugin, Prices, Task, UserError, plugins
from ponder.core.settings import assign, build, toml
from ponder.study.study import BUILT_IN, StudySpec, built_in

# Types that have another name in a study than in Python.
NAMES = {Path: "path", EnvVar: '"$NAME"', Prices: "table"}


def named(words: Sequence[str], verb: str) -> tuple[str, str]:
    """Return the kind and the name in `NAME`, `KIND NAME` or `KIND/NAME`; "" for no kind."""
    if len(words) > 2:
        raise UserError(
            f"expected a name, or a kind and a name, not {len(words)} words",
            hint=f"ponder {verb} policy oracle",
        )
    if len(words) == 2:
        noun, name = words
    else:
        noun, _, name = words[0].rpartition("/")
        if not noun or name.endswith((".py", ".toml")):
            return "", words[0]  # a name alone, or a file
    kind = plugins.kind_of(noun)
    if kind is None:
        nouns = [kind.singular for kind in plugins.KINDS.values()]
        hint = plugins.nearest(noun, [*nouns, "study"])
        raise UserError(f"there is no kind of plugin `{noun}`", hint=hint)
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
    """Return whether a name without a kind means a study.

    If a task has that name too, options that only tasks have decide.
    """
    if name not in built_in():
        return name.endswith(".toml")
    if name not in plugins.names("tasks"):
        return True
    study_keys = {field.name for field in dataclasses.fields(StudySpec)}
    first_keys = [re.split(r"\W", setting, maxsplit=1)[0] for setting in settings]
    return size is None and all(key in study_keys for key in first_keys)


def namesakes(name: str) -> list[str]:
    """Return the plugins that share a built-in study's name, with the command that shows each."""
    lines = []
    for kind_name, kind in plugins.KINDS.items():
        if name in built_in() and name in plugins.names(kind_name):
            lines.append(f"{kind.noun} {name}: ponder show {kind.singular} {name}")
    return lines


def find(kind: str, name: str, studies: Sequence[str] = ()) -> tuple[str, type[Any]]:
    """Return the kind and the class of a plugin, by its name or its file.

    `studies` are names to suggest as well.
    """
    if name.endswith(".py"):
        if kind:
            return kind, plugins.load(kind, name, Path())
        return _find_file(name)
    possible = [kind] if kind else list(plugins.KINDS)
    kinds = [of_kind for of_kind in possible if name in plugins.names(of_kind)]
    if len(kinds) == 1:
        return kinds[0], plugins.load(kinds[0], name)
    if kinds:
        choices = [f"{plugins.KINDS[of_kind].singular} {name}" for of_kind in kinds]
        raise UserError(
            f"there are {len(kinds)} plugins called `{name}`",
            hint=f"say which: {', '.join(choices)}",
        )
    for of_kind in possible:
        if kind or (of_kind, name) in plugins.RENAMED:
            raise plugins.unknown(of_kind, name)
    names = set(studies)
    for of_kind in plugins.KINDS:
        names |= plugins.names(of_kind).keys()
    close = plugins.closest(name, names)
    hint = "ponder list shows them all; a file is given as ./mine.py"
    if close:
        hint = f"did you mean `{close}`?"
    noun = "plugin or study" if studies else "plugin"
    raise UserError(f"there is no {noun} `{name}`", hint=hint)


def _find_file(name: str) -> tuple[str, type[Any]]:
    """Return the kind and the class of the plugin in a file."""
    for kind in plugins.KINDS:
        try:
            return kind, plugins.load(kind, name, Path())
        except UserError as error:
            if "must define" not in error.what:
                raise
    interfaces = ", ".join(kind.contract.__name__ for kind in plugins.KINDS.values())
    raise UserError(
        f"{name} must define exactly one subclass of one of {interfaces}",
        hint="ponder new task NAME writes a file to start from",
    )


def schema(cls: type[Any]) -> list[dict[str, str]]:
    """Return a dataclass's keys in a study: name, type, default, and what each is for.

    Its own keys come before those that it inherits.
    """
    hints = get_type_hints(cls)
    about = _field_comments(cls)
    declared = vars(cls).get("__annotations__", {})
    rows = []
    for field in sorted(dataclasses.fields(cls), key=lambda field: field.name not in declared):
        if field.init and _in_toml(hints[field.name]):
            rows.append(
                {
                    "key": field.name,
                    "type": _type_name(hints[field.name]),
                    "default": _default(field),
                    "about": about.get(field.name, ""),
                }
            )
    return rows


def comments(source: str) -> dict[int, str]:
    """Return the comment on each line of source code, without those that are for tools."""
    texts = {}
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            text = token.string.lstrip("# ").strip()
            if not text.startswith(("noqa", "type:")):
                texts[token.start[0]] = text
    return texts


def _field_comments(cls: type[Any]) -> dict[str, str]:
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
            numbers = range(first, last + 1)
            text = " ".join(by_line[number] for number in numbers if number in by_line)
            if text:
                about[node.target.id] = text
    return about


def _default(field: dataclasses.Field[Any]) -> str:
    """Return a field's default as a study would write it."""
    value = field.default
    if field.default_factory is not dataclasses.MISSING:
        value = field.default_factory()
    if value is dataclasses.MISSING:
        return "required"
    if value is None or value == "":
        return "not set"
    if isinstance(value, Path) and value.is_relative_to(plugins.HERE):
        return "in the package"  # the path on this machine helps nobody
    return textwrap.shorten(toml(value), 40, placeholder=" …")


def _in_toml(hint: Any, inside: bool = False) -> bool:
    """Return whether a TOML value can have this type; `inside` a dataclass, no plugin is built."""
    if get_origin(hint) is Literal or hint in (Ellipsis, NoneType):
        return True
    arguments = get_args(hint)
    if arguments:
        if get_origin(hint) in (dict, Mapping, Sequence):
            return True
        return all(_in_toml(argument, inside) for argument in arguments)
    if isinstance(hint, type) and issubclass(hint, Plugin):
        return not inside
    if dataclasses.is_dataclass(hint):
        return all(_in_toml(field, inside=True) for field in get_type_hints(hint).values())
    return isinstance(hint, type) and issubclass(hint, str | int | float | Path)


def _type_name(hint: Any) -> str:
    """Return a type in words, as what to write in a study."""
    origin = get_origin(hint)
    arguments = [argument for argument in get_args(hint) if argument not in (NoneType, Ellipsis)]
    if origin is Literal:
        # "" is the default: not set
        return " | ".join(toml(choice) for choice in arguments if choice != "")
    if origin in (list, tuple, Sequence) and arguments:
        return f"list of {_type_name(arguments[0])}s"
    if origin in (dict, Mapping):
        return "table"
    if arguments:  # a union, without None: a key that is left out of a study is None
        return " | ".join(map(_type_name, arguments))
    for kind in plugins.KINDS.values():
        if hint is kind.contract:
            return kind.noun
    return NAMES.get(hint) or str(hint.__name__)


def _problem(
    name: str, plugin: type[Task], size: int | None, seed: int, settings: Sequence[str]
) -> dict[str, Any]:
    """Return a problem of a task with a correct answer, as JSON."""
    task_table: dict[str, Any] = {"name": name, **plugin.example}
    content = {"task": [task_table]}
    for setting in settings:
        assign(content, f"task.{setting}")
    task: Task = build("tasks", task_table, "--set", Path())
    sizes = task.sizes()
    size = sizes[0] if size is None else size
    task.check_size(size)
    problem = next(task.problems(size, seed))
    answer = ""
    with suppress(UserError):  # not every task knows a right reply to each problem
        answer = task.solve(problem)
    return {
        "sizes": list(sizes),
        "problem": problem.id,
        "size": size,
        "system": problem.system,
        "turns": list(problem.turns),
        "answer": answer,
    }


def text(data: Mapping[str, Any]) -> str:
    """Return a description as text; a study as TOML."""
    if "kind" not in data:
        return study_text(data)
    paragraphs = [bold(f"{data['kind']} {data['name']}"), reflow(data["about"] or "")]
    if data["settings"]:
        rows = [("settings", "type", "default", "")]
        for row in data["settings"]:
            rows.append((f"  {row['key']}", row["type"], row["default"], row["about"]))
        paragraphs.append(table(rows))
    if "turns" in data:
        sizes = ", ".join(map(str, data["sizes"]))
        prompt = "\n\n".join(text for text in (data["system"], *data["turns"]) if text)
        paragraphs += [
            f"sizes, if a study names none: {sizes}",
            f"problem {data['problem']} (size {data['size']})",
            f"prompt\n------\n{prompt}",
        ]
        if data["answer"]:
            paragraphs.append(f"a right answer\n--------------\n{data['answer']}")
    return "\n\n".join(paragraph.strip("\n") for paragraph in paragraphs if paragraph)


def study_file(name: str) -> str:
    """Return a study as it was written, with its comments."""
    path = BUILT_IN / f"{name}.toml" if name in built_in() else Path(name)
    return f"# {path.stem}\n{path.read_text('utf-8-sig').strip()}"


def study_text(study: Mapping[str, Any]) -> str:
    """Return a resolved study as TOML: its own keys first, then its tables."""
    lines = [f"# {study['name']}"]
    for key, value in study.items():
        if isinstance(value, list | tuple) or key == "name":
            continue
        if value not in (None, ""):
            lines.append(_line(key, value))
    for key, value in study.items():
        if not isinstance(value, list | tuple):
            continue
        for row in value:
            lines += ["", f"[[{key}]]"]
            lines += [_line(*setting) for setting in row.items()]
    return "\n".join(lines)


def _line(key: str, value: Any) -> str:
    """Return a key and its value in TOML; a long array has one element per line."""
    line = f"{key} = {toml(value)}"
    if len(line) <= 100 or not isinstance(value, list | tuple):
        return line
    return "\n".join([f"{key} = [", *(f"  {toml(element)}," for element in value), "]"])
