"""Builds plugins from the tables of a study file, expands sweeps, and applies `--set key=value`.

A key must be a field of the plugin's dataclass, and its value must have the field's type. A list
where a single value is expected is a sweep: one variant per value. An error names its location in
the file and, for an unknown key or name, the nearest known one.

`folder` is that of the user's study file. It is None for a study that is read from a store, whose
plugins can't be files; its paths are relative to the current folder.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import re
import tomllib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from ponder.core import plugins
from ponder.core.contracts import Plugin
from ponder.core.errors import Location, UserError, error_at
from ponder.core.secrets import EnvVar, check_texts
from ponder.core.text import plain

Table: TypeAlias = Mapping[str, Any]
# What other libraries call a setting, for the hint.
SYNONYMS = {
    "max_new_tokens": "budget",
    "max_tokens": "budget",
    "max_completion_tokens": "budget",
    "max_length": "budget",
    "base_url": "url",
    "api_base": "url",
    "api_key": "key",
    "reasoning_effort": "effort",
    "max_retries": "retries",
    "learning_rate": "rate",
    "num_train_epochs": "epochs",
}
# Settings that mean the same in another unit, for the hint.
INSTEAD = {"steps": "epochs", "max_steps": "epochs"}
_BARE = re.compile(r"[A-Za-z0-9_-]+")  # a key that TOML takes without quotes
_PATH = re.compile(r"\w+(\[\d{1,9}\])*(\.\w+(\[\d{1,9}\])*)*")  # model[1].method.ratio
T = TypeVar("T")
# Returns the hint for a key that belongs in another table; "" if it belongs nowhere.
Elsewhere: TypeAlias = Callable[[str], str]


class Typed(str):
    """Text from the command line: as a path, it is relative to the current folder."""

    __slots__ = ()


def build(
    kind: str,
    table: Table,
    where: str,
    folder: Path | None,
    also: Sequence[str] = (),
    elsewhere: Elsewhere | None = None,
) -> Any:
    """Build a plugin from its table, at the location `where` of the study.

    `also` names keys to suggest for an unknown key besides the plugin's own.
    """
    name = table["name"]
    settings = {key: value for key, value in table.items() if key != "name"}
    owner = f"{plugins.KINDS[kind].noun} `{name}`"
    cls = load(kind, name, where, folder)
    return from_table(cls, settings, owner, where, folder, also, elsewhere)


def from_table(
    cls: type[T],
    table: Table,
    owner: str,
    where: str,
    folder: Path | None = None,
    also: Sequence[str] = (),
    elsewhere: Elsewhere | None = None,
) -> T:
    """Build an instance of a dataclass from a table of its fields. Errors call it `owner`."""
    hints = get_type_hints(cls)
    fields = [field for field in dataclasses.fields(cls) if field.init]  # type: ignore[arg-type]
    check_keys(
        table,
        [field.name for field in fields],
        _required(fields),
        owner,
        where,
        also=also,
        former=_former_names(cls),
        show=f"ponder show {cls.plugin_name()}" if issubclass(cls, Plugin) else "",
        elsewhere=elsewhere,
    )
    values = {}
    for key, value in table.items():
        values[key] = convert(value, hints[key], Location.of(where) / key, folder)
    for key, value in table.items():
        with error_at(Location.of(where) / key):
            check_texts(value)
    try:
        with error_at(where), plugins.files_from(folder):
            return cls(**values)
    except ValueError as error:  # how a plugin's `__post_init__` may refuse a value
        raise UserError(f"{owner}: {error}", where=where) from error


def _required(fields: Iterable[dataclasses.Field[Any]]) -> list[str]:
    """Return the names of the fields without a default."""
    required = []
    for field in fields:
        if field.default is field.default_factory is dataclasses.MISSING:
            required.append(field.name)
    return required


def _former_names(cls: type[Any]) -> dict[str, str]:
    """Return the present name of each key of a dataclass that was `renamed`, by its former name."""
    former = {}
    for base_class in cls.__mro__:
        if not dataclasses.is_dataclass(base_class):
            continue
        for field in dataclasses.fields(base_class):
            if field.metadata.get("was"):
                former[field.metadata["was"]] = field.name
    return former


def check_keys(
    table: Table,
    known: Collection[str],
    required: Sequence[str],
    owner: str,
    where: str,
    *,
    also: Sequence[str] = (),
    former: Mapping[str, str] | None = None,
    show: str = "",
    elsewhere: Elsewhere | None = None,
) -> None:
    """Raise `UserError` for a key that `owner` doesn't have, and for one that it needs.

    `former` maps former names of keys to present ones; `show` is a command that shows the keys.
    """
    allowed = [*known, *also]
    for key in table:
        if key in known:
            continue
        hint = plugins.nearest(key, allowed)
        if elsewhere is not None:
            hint = elsewhere(key) or hint
        if INSTEAD.get(key) in allowed:
            hint = f"it has `{INSTEAD[key]}` instead"
        if SYNONYMS.get(key) in allowed:
            hint = f"here it is called `{SYNONYMS[key]}`"
        if former and key in former:
            hint = f"it is now called `{former[key]}`"
        raise UserError(f"{owner} has no key `{key}`", where=Location.of(where) / key, hint=hint)
    for key in required:
        if key not in table:
            raise UserError(
                f"{owner} needs the key `{key}`",
                where=where,
                hint=show,
                in_python=f'add it to the table: {{…, "{key}": …}}',
            )


def load(kind: str, name: str, where: str, folder: Path | None) -> type[Any]:
    """Return the class of a plugin; `where` is the location of its table, for errors."""
    with error_at(Location.of(where) / "name"):
        return plugins.load(kind, name, base(name, folder))


def convert(value: Any, kind: Any, where: str, folder: Path | None) -> Any:
    """Convert a TOML value to the type of a setting.

    Paths in a study file are relative to its folder.
    """

    def convert_special(cls: type, special: Any) -> Any:
        if cls is Path:
            return _path(folder, special)
        if cls is EnvVar:
            return EnvVar(special)
        raise TypeError(f"no setting can be a {cls.__name__}")

    # A plugin inside a plugin, such as the other model in a merge.
    for plugin_kind, (contract, _, _) in plugins.KINDS.items():
        if contract not in (kind, *get_args(kind)):
            continue
        if isinstance(value, list | tuple) and _takes_list(kind):
            items = []
            for index, item in enumerate(value):
                items.append(convert(item, contract, Location.of(where) / index, folder))
            return tuple(items)
        table = {"name": value} if isinstance(value, str) else value
        check_name(plugin_kind, table, where)
        return build(plugin_kind, table, where, folder)
    _check_table(value, kind, where)
    try:
        with error_at(where):
            return _with_texts(msgspec.convert(value, kind, dec_hook=convert_special), str)
    except UnicodeError:  # after --set
        raise UserError("this is not UTF-8", where=where) from None
    except msgspec.ValidationError as error:
        choices = list[str]()
        for alternative in (kind, *get_args(kind)):  # of a union: `Literal["a", "b"] | None`
            choices += [choice for choice in get_args(alternative) if isinstance(choice, str)]
        choices = [choice for choice in choices if choice]
        hint = plugins.nearest(str(value), choices) if choices else ""
        raise UserError(plain(error), where=where, hint=hint) from None


def _check_table(value: Any, kind: Any, where: str) -> None:
    """Check the keys of an inner table such as `prices`: msgspec would ignore an unknown one."""
    if not isinstance(value, Mapping):
        return
    for cls in (kind, *get_args(kind)):
        if dataclasses.is_dataclass(cls):
            fields = dataclasses.fields(cls)
            key = Location("", *Location.of(where).parts).rpartition(".")[2]
            names = [field.name for field in fields]
            check_keys(value, names, _required(fields), f"`{key}`", where)


def base(value: Any, folder: Path | None) -> Path | None:
    """Return what a path is relative to: the study's folder, or the current one if `Typed`."""
    return Path() if isinstance(value, Typed) else folder


def _path(folder: Path | None, value: Any) -> Path:
    """Return the path that a setting names. Raise `UserError` for a study read from a store.

    Such a study may be somebody else's: it must not choose which files are opened here.
    """
    parent = base(value, folder)
    if parent is None:
        what = f"the file {str(value)!r:.400} is not read, because only a store names it"
        hint = "if you trust it, name its study, as in `ponder view STUDY.toml`"
        raise UserError(what, hint=hint)
    path: Path = parent / value
    try:
        path.resolve()
    except (OSError, ValueError) as error:  # too long, or with a NUL
        raise UserError(f"{value!r:.40} can't be a path: {error.args[-1]}") from None
    return path


def check_name(kind: str, table: Any, where: str) -> None:
    """Raise `UserError` unless this is a table that names a plugin."""
    if not isinstance(table, Mapping):
        hint = f'{{ name = "…" }}: ponder list {kind}'
        in_python = f'{{"name": "…"}}, with {_one_of(kind)}'
        if isinstance(table, str):
            hint = f"write {{ name = {toml(table)} }}"
            in_python = f'write {{"name": {table!r}}}'
        raise UserError(
            f"expected a table, got {table!r}", where=where, hint=hint, in_python=in_python
        )
    if not isinstance(table.get("name"), str):
        raise UserError(
            f"a {plugins.KINDS[kind].noun} needs a name",
            where=where,
            hint=f"ponder list {kind}",
            in_python=f'"name": {_one_of(kind)}',
        )


def _one_of(kind: str) -> str:
    return f"one of {', '.join(plugins.names(kind))}"


def sweep(kind: str, table: Any, where: str, folder: Path | None) -> Iterator[tuple[Table, Table]]:
    """Yield each variant of a plugin's table, with the values that distinguish it."""
    check_name(kind, table, where)
    hints = get_type_hints(load(kind, table["name"], where, folder))
    yield from variants(table, where, hints)


def variants(table: Table, where: str, hints: Mapping[str, Any]) -> Iterator[tuple[Table, Table]]:
    """Yield every combination of one value from each list, as (table, distinguishing values).

    A list stays whole if the key's type is a list. A list of one value distinguishes nothing.
    """
    swept = _swept(table, hints)
    for key in swept:
        if not table[key]:
            raise UserError(
                "this list is empty, so there is nothing to ask",
                where=Location.of(where) / key,
                hint=f"remove `{key}`, or list values",
            )
    for values in itertools.product(*(table[key] for key in swept)):
        combination = dict(zip(swept, values, strict=True))
        distinguishing = {key: combination[key] for key in swept if len(table[key]) > 1}
        yield {**table, **combination}, distinguishing


def sweep_size(kind: str, table: Any, where: str, folder: Path | None) -> int:
    """Return how many variants `sweep` yields."""
    check_name(kind, table, where)
    hints = get_type_hints(load(kind, table["name"], where, folder))
    return math.prod(len(table[key]) for key in _swept(table, hints))


def _swept(table: Table, hints: Mapping[str, Any]) -> list[str]:
    """Return the keys of a table that are swept: those with a list for a type that isn't one."""
    swept = []
    for key, value in table.items():
        if isinstance(value, list) and not _takes_list(hints.get(key)):
            swept.append(key)
    return swept


def _takes_list(hint: Any) -> bool:
    alternatives = (hint, *get_args(hint))  # of a union
    return any(get_origin(alternative) in (list, tuple) for alternative in alternatives)


def assign(content: dict[str, Any], setting: str) -> None:
    """Apply one `--set key=value` to the content of a study file.

    Examples are `model.id=qwq`, `model[1].method.ratio=0.5` and `task.size=[16, 25]`. A table that
    is named without an index stands for all of that name.
    """
    path, equals, text = setting.partition("=")
    path = path.strip()
    if not equals or not _PATH.fullmatch(path):
        hint = "--set problems=5, --set model.id=qwq, or --set model[1].method.n=8"
        raise UserError(f"`{setting}` is not KEY=VALUE", where="--set", hint=hint)
    try:
        value = _with_texts(tomllib.loads(f"value = {text}")["value"], Typed)
    except (ValueError, RecursionError):
        value = Typed(text)  # a bare word needs no quotes on a command line
    *steps, key = path.split(".")
    if "[" in key:
        raise UserError(
            "a value in a list can't be set alone",
            where=f"--set {path}",
            hint=f"--set {path.partition('[')[0]}=[…]",
        )
    tables = [content]
    for step in steps:
        tables = _inside(tables, step, f"--set {path}")
    for table in tables:
        table[key] = value


def _with_texts(value: Any, kind: type[str]) -> Any:
    """Return a value with all its texts converted to `Typed`, or back to `str`."""
    if isinstance(value, str) and type(value) in (str, Typed):
        return kind(value)
    if type(value) in (list, tuple):
        return type(value)(_with_texts(item, kind) for item in value)
    if type(value) is dict:
        return {key: _with_texts(item, kind) for key, item in value.items()}
    return value


def _inside(tables: Sequence[dict[str, Any]], step: str, where: str) -> list[dict[str, Any]]:
    """Return the tables that one step of a path leads to, such as `method` or `method[1]`."""
    key, *indices = re.findall(r"\w+", step)
    values = [table[key] for table in tables if table.get(key)]
    if not values:
        inner_tables = set()
        for table in tables:
            for name, value in table.items():
                if isinstance(value, list | dict):
                    inner_tables.add(name)
        hint = "the file must have it before --set can change it"
        if inner_tables:
            hint = plugins.nearest(key, inner_tables)
        raise UserError(f"the study has no `{key}` to set a key in", where=where, hint=hint)
    for index in map(int, indices):
        for value in values:
            length = len(value) if isinstance(value, list) else 1
            if not isinstance(value, list) or index >= length:
                raise UserError(
                    f"there is no {key}[{index}]: the study has {length}, counted from 0",
                    where=where,
                )
        values = [value[index] for value in values]
    return list(_tables(values, key, where))


def _tables(values: Any, key: str, where: str) -> Iterator[dict[str, Any]]:
    """Yield every table in nested lists."""
    if isinstance(values, dict):
        yield values
    elif isinstance(values, list):
        for value in values:
            yield from _tables(value, key, where)
    else:
        raise UserError(
            f"`{key}` is not a table, so no key of it can be set",
            where=where,
            hint=f"--set {key}=…",
        )


def toml(value: Any) -> str:
    """Return a value as TOML writes it."""
    if isinstance(value, Plugin):
        return toml(value.plugin_name())
    if isinstance(value, Mapping):
        if not value:
            return "{}"
        keys = [f"{_key(key)} = {toml(inner)}" for key, inner in value.items()]
        return f"{{ {', '.join(keys)} }}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(toml, value))}]"
    if isinstance(value, float):
        return repr(value)  # JSON would say Infinity
    return json.dumps(value, ensure_ascii=False, default=str)


def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) else toml(key)
