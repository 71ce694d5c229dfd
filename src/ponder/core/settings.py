"""Builds plugins from TOML tables: keys must be fields of the plugin, and values must have the fields' types.

Also expands sweeps (a list where a single value is expected gives one variant per value) and applies `--set
key=value`. An error names its place in the file and, for an unknown key or name, the nearest known one.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from ponder.core import plugins
from ponder.core.contracts import Plugin
from ponder.core.errors import EnvVar, UserError, error_at

Table: TypeAlias = Mapping[str, Any]
T = TypeVar("T")


def build(kind: str, table: Table, where: str, folder: Path, also: Sequence[str] = ()) -> Any:
    """A plugin from its table. `also` names further keys that are allowed there, for the hint on an unknown key."""
    name = table["name"]
    settings = {key: value for key, value in table.items() if key != "name"}
    owner = f"{plugins.KINDS[kind].noun} `{name}`"
    return from_table(load(kind, name, where, folder), settings, owner, where, folder, also)


def from_table(
    cls: type[T], table: Table, owner: str, where: str, folder: Path | None = None, also: Sequence[str] = ()
) -> T:
    """An instance of a dataclass from a table of its fields. Errors call it `owner`."""
    hints = get_type_hints(cls)
    known = {f.name: f for f in dataclasses.fields(cls) if f.init}  # type: ignore[arg-type]
    bases = [base for base in cls.__mro__ if dataclasses.is_dataclass(base)]
    former = {f.metadata["was"]: f.name for base in bases for f in dataclasses.fields(base) if f.metadata.get("was")}
    values = {}
    for key, value in table.items():
        if key not in known:
            now = f"it is now called `{former[key]}`" if key in former else plugins.nearest(key, [*known, *also])
            raise UserError(f"{owner} has no key `{key}`", where=f"{where}.{key}", hint=now)
        values[key] = convert(value, hints[key], f"{where}.{key}", folder or Path())
    for key, setting in known.items():
        if key not in values and setting.default is setting.default_factory is dataclasses.MISSING:
            hint = f"ponder show {cls.plugin_name()}" if issubclass(cls, Plugin) else ""
            raise UserError(f"{owner} needs the key `{key}`", where=where, hint=hint)
    with error_at(where):
        return cls(**values)


def load(kind: str, name: str, where: str, folder: Path) -> type[Any]:
    """The class of a plugin; `where` is its table's place in the file, for errors."""
    with error_at(f"{where}.name"):
        return plugins.load(kind, name, folder)


def convert(value: Any, kind: Any, where: str, folder: Path) -> Any:
    """A TOML value converted to the type of a setting. Paths are relative to the study's folder."""

    def special(wanted: type, given: Any) -> Any:
        if wanted is Path:
            return folder / given
        if wanted is EnvVar:
            return EnvVar(given)
        raise TypeError(f"no setting can be a {wanted.__name__}")

    for of, (contract, _, _) in plugins.KINDS.items():  # a plugin inside a plugin, such as the other model in a merge
        if contract in (kind, *get_args(kind)):
            if isinstance(value, list | tuple):
                return tuple(convert(v, contract, f"{where}[{n}]", folder) for n, v in enumerate(value))
            table = {"name": value} if isinstance(value, str) else value
            check_name(of, table, where)
            return build(of, table, where, folder)
    try:
        with error_at(where):
            return msgspec.convert(value, kind, dec_hook=special)
    except msgspec.ValidationError as error:
        choices = [c for c in get_args(kind) if isinstance(c, str)]
        hint = plugins.nearest(str(value), choices) if choices else ""
        raise UserError(f"{error}".replace(" - at `$`", ""), where=where, hint=hint) from None


def check_name(kind: str, table: Any, where: str) -> None:
    """Raise `UserError` unless this is a table that names a plugin."""
    if not isinstance(table, Mapping):
        raise UserError(f"expected a table, got {table!r}", where=where, hint=f'{{ name = "…" }}: ponder list {kind}')
    if not isinstance(table.get("name"), str):
        raise UserError(f"a {plugins.KINDS[kind].noun} needs a name", where=where, hint=f"ponder list {kind}")


def sweep(kind: str, table: Any, where: str, folder: Path) -> Iterator[tuple[Table, Table]]:
    """Each variant of a plugin's table, with the values that distinguish it: those from lists of more than one."""
    check_name(kind, table, where)
    hints = get_type_hints(load(kind, table["name"], where, folder))
    yield from variants(table, [k for k, hint in hints.items() if _takes_list(hint)])


def variants(table: Table, lists: Sequence[str] = ()) -> Iterator[tuple[Table, Table]]:
    """All combinations of one value from each list. The keys in `lists` are not swept: a list is their value."""
    swept = [k for k, v in table.items() if isinstance(v, list) and k not in lists]
    for values in itertools.product(*(table[k] for k in swept)):
        chosen = dict(zip(swept, values, strict=True))
        yield {**table, **chosen}, {k: v for k, v in chosen.items() if len(table[k]) > 1}


def _takes_list(hint: Any) -> bool:
    return any(get_origin(h) in (list, tuple) for h in (hint, *get_args(hint)))


def assign(content: dict[str, Any], setting: str) -> None:
    """Apply one `--set key=value`, such as `model.id=qwq`, `model[1].budget=4096` or `task.size=[16, 25]`."""
    path, equals, text = setting.partition("=")
    if not equals or not re.fullmatch(r"\w+(\[\d+\])?(\.\w+)?", path.strip()):
        raise UserError(f"`{setting}` is not KEY=VALUE", where="--set", hint="--set model.id=qwq, or --set problems=5")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        value = text  # a bare word needs no quotes on a command line
    table, _, key = path.strip().partition(".")
    if not key:
        content[table] = value
        return
    table, _, index = table.rstrip("]").partition("[")
    tables = content.get(table)
    if not isinstance(tables, list) or not all(isinstance(each, dict) for each in tables):
        raise UserError(f"the study has no [[{table}]]", where=f"--set {path}", hint=plugins.nearest(table, content))
    if index and (len(index) > 9 or int(index) >= len(tables)):
        raise UserError(f"the study has {len(tables)} [[{table}]], counted from 0", where=f"--set {path}")
    for each in [tables[int(index)]] if index else tables:
        each[key] = value
