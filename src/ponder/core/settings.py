"""Builds plugins from TOML tables: keys must be fields of the plugin, and values must have the
fields' types.

Also expands sweeps (a list where a single value is expected gives one variant per value) and
applies `--set key=value`. An error names its place in the file and, for an unknown key or name, the
nearest known one.

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
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from ponder.core import plugins
from ponder.core.contracts import Plugin
from ponder.core.errors import Location, UserError, error_at
from ponder.core.secrets import EnvVar, check_texts
from ponder.core.text import plain

Table: TypeAlias = Mapping[str, Any]
# What other libraries call a setting.
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
INSTEAD = {"steps": "epochs", "max_steps": "epochs"}  # settings that say the same in another unit
_BARE = re.compile(r"[A-Za-z0-9_-]+")  # a key that TOML takes without quotes


class Typed(str):
    """Text that was typed on the command line: if it is a path, it is relative to where the command
    is run.
    """

    __slots__ = ()


T = TypeVar("T")


# Returns the hint for a key that belongs into another table; "" if it belongs nowhere.
Elsewhere: TypeAlias = Callable[[str], str]


def build(
    kind: str,
    table: Table,
    where: str,
    folder: Path | None,
    also: Sequence[str] = (),
    elsewhere: Elsewhere | None = None,
) -> Any:
    """Build a plugin from its table.

    For the hint on an unknown key: `also` names further keys that are allowed.
    """
    name = table["name"]
    settings = {key: value for key, value in table.items() if key != "name"}
    owner = f"{plugins.KINDS[kind].noun} `{name}`"
    return from_table(
        load(kind, name, where, folder), settings, owner, where, folder, also, elsewhere
    )


def from_table(
    cls: type[T],
    table: Table,
    owner: str,
    where: str,
    folder: Path | None = None,
    also: Sequence[str] = (),
    elsewhere: Elsewhere | None = None,
) -> T:
    """An instance of a dataclass from a table of its fields. Errors call it `owner`."""
    hints = get_type_hints(cls)
    known = {f.name: f for f in dataclasses.fields(cls) if f.init}  # type: ignore[arg-type]
    bases = [base for base in cls.__mro__ if dataclasses.is_dataclass(base)]
    former = {
        f.metadata["was"]: f.name
        for base in bases
        for f in dataclasses.fields(base)
        if f.metadata.get("was")
    }
    required = [
        k for k, f in known.items() if f.default is f.default_factory is dataclasses.MISSING
    ]
    show = f"ponder show {cls.plugin_name()}" if issubclass(cls, Plugin) else ""
    check_keys(
        table,
        known,
        required,
        owner,
        where,
        also=also,
        former=former,
        show=show,
        elsewhere=elsewhere,
    )
    values = {
        key: convert(value, hints[key], Location.of(where) / key, folder)
        for key, value in table.items()
    }
    for key, value in table.items():
        with error_at(Location.of(where) / key):
            check_texts(value)
    try:
        with error_at(where), plugins.files_from(folder):
            return cls(**values)
    except ValueError as error:  # how a plugin's `__post_init__` may refuse a value
        raise UserError(f"{owner}: {error}", where=where) from error


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
    """Raise `UserError` for a key that `owner` doesn't have, and for one that it needs."""
    for key in table:
        if key not in known:
            now = (former or {}).get(key)
            hint = plugins.nearest(key, [*known, *also])
            if elsewhere is not None:
                hint = elsewhere(key) or hint
            if INSTEAD.get(key) in (*known, *also):
                hint = f"it has `{INSTEAD[key]}` instead"
            if SYNONYMS.get(key) in (*known, *also):
                hint = f"here it is called `{SYNONYMS[key]}`"
            hint = f"it is now called `{now}`" if now else hint
            raise UserError(
                f"{owner} has no key `{key}`", where=Location.of(where) / key, hint=hint
            )
    for key in required:
        if key not in table:
            what, in_python = (
                f"{owner} needs the key `{key}`",
                f'add it to the table: {{…, "{key}": …}}',
            )
            raise UserError(what, where=where, hint=show, in_python=in_python)


def load(kind: str, name: str, where: str, folder: Path | None) -> type[Any]:
    """The class of a plugin; `where` is its table's place in the file, for errors."""
    with error_at(Location.of(where) / "name"):
        return plugins.load(kind, name, base(name, folder))


def convert(value: Any, kind: Any, where: str, folder: Path | None) -> Any:
    """A TOML value converted to the type of a setting.

    Paths in a study file are relative to its folder.
    """

    def special(wanted: type, given: Any) -> Any:
        if wanted is Path:
            return _path(folder, given)
        if wanted is EnvVar:
            return EnvVar(given)
        raise TypeError(f"no setting can be a {wanted.__name__}")

    # a plugin inside a plugin, such as the other model in a merge
    for of, (contract, _, _) in plugins.KINDS.items():
        if contract in (kind, *get_args(kind)):
            if isinstance(value, list | tuple) and _takes_list(kind):
                return tuple(
                    convert(v, contract, Location.of(where) / n, folder)
                    for n, v in enumerate(value)
                )
            table = {"name": value} if isinstance(value, str) else value
            check_name(of, table, where)
            return build(of, table, where, folder)
    _check_table(value, kind, where)
    try:
        with error_at(where):
            return _texts(msgspec.convert(value, kind, dec_hook=special), str)
    except UnicodeError:  # after --set
        raise UserError("this is not UTF-8", where=where) from None
    except msgspec.ValidationError as error:
        choices = [c for c in get_args(kind) if isinstance(c, str) and c]
        hint = plugins.nearest(str(value), choices) if choices else ""
        raise UserError(plain(error), where=where, hint=hint) from None


def _check_table(value: Any, kind: Any, where: str) -> None:
    """Check the keys of a table inside a table, such as `prices`: msgspec would ignore an unknown
    one.
    """
    for wanted in (kind, *get_args(kind)):
        if dataclasses.is_dataclass(wanted) and isinstance(value, Mapping):
            fields = dataclasses.fields(wanted)
            required = [
                f.name for f in fields if f.default is f.default_factory is dataclasses.MISSING
            ]
            table = Location("", *Location.of(where).parts).rpartition(".")[2]
            check_keys(value, [f.name for f in fields], required, f"`{table}`", where)


def base(given: Any, folder: Path | None) -> Path | None:
    """What a path is relative to: the study's folder, or the current one if it was typed on the
    command line.
    """
    return Path() if isinstance(given, Typed) else folder


def _path(folder: Path | None, given: Any) -> Path:
    """Return the path of a file of the user's own study. Raise `UserError` for a stored study.

    A stored study may be somebody else's: it must not choose which files are opened here.
    """
    parent = base(given, folder)
    if parent is None:
        what = f"the file {str(given)!r:.80} is not read, because only a store names it"
        hint = "if you trust it, name its study, as in `ponder view STUDY.toml`"
        raise UserError(what, hint=hint)
    path: Path = parent / given
    try:
        path.resolve()
    except (OSError, ValueError) as error:  # too long, or with a NUL
        raise UserError(f"{given!r:.40} can't be a path: {error.args[-1]}") from None
    return path


def check_name(kind: str, table: Any, where: str) -> None:
    """Raise `UserError` unless this is a table that names a plugin."""
    if not isinstance(table, Mapping):
        hint, known = (
            f'{{ name = "…" }}: ponder list {kind}',
            f'{{"name": "…"}}, with {_known(kind)}',
        )
        if isinstance(table, str):
            hint, known = f"write {{ name = {toml(table)} }}", f'write {{"name": {table!r}}}'
        raise UserError(f"expected a table, got {table!r}", where=where, hint=hint, in_python=known)
    if not isinstance(table.get("name"), str):
        what = f"a {plugins.KINDS[kind].noun} needs a name"
        raise UserError(
            what, where=where, hint=f"ponder list {kind}", in_python=f'"name": {_known(kind)}'
        )


def _known(kind: str) -> str:
    return f"one of {', '.join(plugins.names(kind))}"


def sweep(kind: str, table: Any, where: str, folder: Path | None) -> Iterator[tuple[Table, Table]]:
    """Each variant of a plugin's table, with the values that distinguish it: those from lists of
    more than one.
    """
    check_name(kind, table, where)
    hints = get_type_hints(load(kind, table["name"], where, folder))
    yield from variants(table, where, hints)


def variants(table: Table, where: str, hints: Mapping[str, Any]) -> Iterator[tuple[Table, Table]]:
    """All combinations of one value from each list, except for keys whose type is a list."""
    swept = _swept(table, hints)
    for key in swept:
        if not table[key]:
            raise UserError(
                "this list is empty, so there is nothing to ask",
                where=Location.of(where) / key,
                hint=f"remove `{key}`, or list values",
            )
    for values in itertools.product(*(table[k] for k in swept)):
        chosen = dict(zip(swept, values, strict=True))
        yield {**table, **chosen}, {k: v for k, v in chosen.items() if len(table[k]) > 1}


def sweep_size(kind: str, table: Any, where: str, folder: Path | None) -> int:
    """Return how many variants `sweep` yields."""
    check_name(kind, table, where)
    hints = get_type_hints(load(kind, table["name"], where, folder))
    return math.prod(len(table[key]) for key in _swept(table, hints))


def _swept(table: Table, hints: Mapping[str, Any]) -> list[str]:
    return [k for k, v in table.items() if isinstance(v, list) and not _takes_list(hints.get(k))]


def _takes_list(hint: Any) -> bool:
    return any(get_origin(h) in (list, tuple) for h in (hint, *get_args(hint)))


def assign(content: dict[str, Any], setting: str) -> None:
    """Apply one `--set key=value`, such as `model.id=qwq`, `model[1].method.ratio=0.5` or
    `task.size=[16, 25]`.

    A table that is named without an index stands for all of that name.
    """
    path, equals, text = setting.partition("=")
    path = path.strip()
    if not equals or not re.fullmatch(r"\w+(\[\d{1,9}\])*(\.\w+(\[\d{1,9}\])*)*", path):
        hint = "--set problems=5, --set model.id=qwq, or --set model[1].method.n=8"
        raise UserError(f"`{setting}` is not KEY=VALUE", where="--set", hint=hint)
    try:
        value = _texts(tomllib.loads(f"value = {text}")["value"], Typed)
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


def _texts(value: Any, kind: type[str]) -> Any:
    """A value with all its texts as this kind of text: typed, or plain again."""
    if isinstance(value, str) and type(value) in (str, Typed):
        return kind(value)
    if type(value) in (list, tuple):
        return type(value)(_texts(one, kind) for one in value)
    return {key: _texts(one, kind) for key, one in value.items()} if type(value) is dict else value


def _inside(tables: Sequence[dict[str, Any]], step: str, where: str) -> list[dict[str, Any]]:
    """The tables that one step of a path leads to, such as `method` or `method[1]`."""
    key, *indices = re.findall(r"\w+", step)
    having = [table[key] for table in tables if table.get(key)]
    if not having:
        known = {
            name
            for table in tables
            for name, value in table.items()
            if isinstance(value, list | dict)
        }
        hint = (
            plugins.nearest(key, known)
            if known
            else "the file must have it before --set can change it"
        )
        raise UserError(
            f"there is no `{key}` in the study to set anything in", where=where, hint=hint
        )
    for index in map(int, indices):
        short = [
            values for values in having if not isinstance(values, list) or index >= len(values)
        ]
        if short:
            number = len(short[0]) if isinstance(short[0], list) else 1
            raise UserError(
                f"there is no {key}[{index}]: the study has {number}, counted from 0", where=where
            )
        having = [values[index] for values in having]
    return list(_tables(having, key, where))


def _tables(values: Any, key: str, where: str) -> Iterator[dict[str, Any]]:
    """Every table in nested lists."""
    if isinstance(values, dict):
        yield values
    elif isinstance(values, list):
        for value in values:
            yield from _tables(value, key, where)
    else:
        raise UserError(
            f"`{key}` is no table, so nothing in it can be set", where=where, hint=f"--set {key}=…"
        )


def toml(value: Any) -> str:
    """A value as TOML writes it."""
    if isinstance(value, Plugin):
        return toml(value.plugin_name())
    if isinstance(value, Mapping):
        return (
            "{}"
            if not value
            else "{ "
            + ", ".join(f"{_key(key)} = {toml(inner)}" for key, inner in value.items())
            + " }"
        )
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(toml, value))}]"
    if isinstance(value, float):
        return repr(value)  # JSON would say Infinity
    return json.dumps(value, ensure_ascii=False, default=str)


def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) else toml(key)
