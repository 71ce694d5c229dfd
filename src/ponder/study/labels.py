"""Labels: the name of a task or a model, and the settings that tell it from the others of its study.

A label names the settings that its table sweeps. Where two would still be called the same, such as those of two tables
that differ in `mode`, both name whatever differs between them. Settings that are not in an attempt's key are named only
where nothing else differs. All training seeds of a chain of methods have one label without seeds: its variant.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any, TypeAlias

from ponder.core import Plugin
from ponder.core.settings import Table
from ponder.study.cell import described, in_key

LONGEST = 60  # characters of a value, unless more are needed to tell two apart
DIGEST = "digest"  # the setting of a benchmark that only says what its problems are
SEED = "seed"  # the setting that `Prepared.training_seed` returns


@dataclass(frozen=True)
class Part:
    """A plugin in a label: a task, a model, or one method of the model's chain."""

    title: str
    plugin: Plugin
    written: Table  # its table in the study: a label repeats what the user wrote
    swept: Sequence[str] = ()  # the keys whose list has more than one value
    also: Mapping[str, Any] = field(default_factory=dict)  # further settings in the key: `remember` and `window`
    beside: Mapping[str, Any] = field(default_factory=dict)  # and further ones that are not in the key
    trains: bool = False

    @cached_property
    def keyed(self) -> dict[str, Any]:
        """Its settings that are in an attempt's key."""
        return {"name": self.plugin.plugin_name(), **in_key(self.plugin), **self.also}

    @cached_property
    def unkeyed(self) -> dict[str, Any]:
        fields = dataclasses.fields(self.plugin)  # type: ignore[arg-type]
        return {f.name: getattr(self.plugin, f.name) for f in fields if f.name not in self.keyed} | dict(self.beside)

    def value(self, key: str) -> Any:
        return self.keyed[key] if key in self.keyed else self.unkeyed.get(key)

    def text(self, key: str) -> str:
        return _text(self.value(key) if key in self.also else self.written.get(key, self.value(key)))


Chain: TypeAlias = tuple[Part, ...]  # a task alone, or a model and its methods
Place: TypeAlias = tuple[str, ...]  # the titles of a part and of those before it


@dataclass(frozen=True)
class Label:
    base: str  # of the first part alone
    whole: str
    variant: str  # without training seeds


def labels(chains: Sequence[Chain]) -> list[Label]:
    """A label for each; two are the same only if nothing that a study can set differs between them."""
    parts: dict[Place, list[Part]] = {}
    for chain in chains:
        for place, part in _places(chain):
            parts.setdefault(place, []).append(part)
    named: dict[Place, dict[str, None]] = {place: {} for place in parts}
    while True:
        given = _labels(chains, parts, named)
        wholes = _alike(chains, [label.whole for label in given])
        variants = _alike(chains, [label.variant for label in given])
        # Lists, because a generator would stop at the first that names something.
        new = [_name(alike, named, keyed=True) for alike in wholes]
        new += [_name(alike, named, keyed=True, seeds=False) for alike in variants]
        if not any(new) and not any([_name(alike, named, keyed=False) for alike in wholes]):
            return given


def _places(chain: Chain) -> Iterator[tuple[Place, Part]]:
    titles = tuple(part.title for part in chain)
    yield from ((titles[: i + 1], part) for i, part in enumerate(chain))


def _alike(chains: Sequence[Chain], texts: Sequence[str]) -> list[list[Chain]]:
    """The chains that have the same text and consist of the same parts."""
    groups: dict[tuple[str, Place], list[Chain]] = {}
    for chain, text in zip(chains, texts, strict=True):
        groups.setdefault((text, tuple(part.title for part in chain)), []).append(chain)
    return [group for group in groups.values() if len(group) > 1]


def _name(alike: Sequence[Chain], named: dict[Place, dict[str, None]], *, keyed: bool, seeds: bool = True) -> bool:
    """Note what differs between chains, to be named; whether that is more than what is named already."""
    before = sum(map(len, named.values()))
    for i, (place, _) in enumerate(_places(alike[0])):
        parts = [chain[i] for chain in alike]
        tables = [part.keyed if keyed else part.unkeyed for part in parts]
        if keyed and len({table["name"] for table in tables}) > 1:
            differing = ["name"]  # two plugins have different settings anyway
        else:
            differing = [k for k in dict.fromkeys(k for t in tables for k in t) if _differ(t.get(k) for t in tables)]
        hidden = {"label", DIGEST} if seeds or not parts[0].trains else {"label", DIGEST, SEED}
        named[place].update(dict.fromkeys(k for k in differing if k not in hidden))
    return sum(map(len, named.values())) > before


def _differ(values: Iterable[Any]) -> bool:
    first, *rest = values
    return any(value != first for value in rest)


def _labels(
    chains: Sequence[Chain], parts: Mapping[Place, Sequence[Part]], named: Mapping[Place, Iterable[str]]
) -> list[Label]:
    short = cache(lambda place, key: _short(parts[place], key))
    given = []
    for chain in chains:
        whole, variant = [], []
        for place, part in _places(chain):
            keys = dict.fromkeys((*part.swept, *named[place]))
            texts = {key: short(place, key)(part) for key in keys if part.value(key) not in (None, "")}
            # What is called by one of its settings, such as an eviction policy, says it once.
            shown = {key: text for key, text in texts.items() if text != f"{key}={part.title}"}
            whole.append(" ".join([part.title, *filter(None, shown.values())]))
            seedless = (text for key, text in shown.items() if not (part.trains and key == SEED))
            variant.append(" ".join([part.title, *filter(None, seedless)]))
        given.append(Label(whole[0], " + ".join(whole), " + ".join(variant)))
    return given


def _short(parts: Sequence[Part], key: str) -> Callable[[Part], str]:
    """How to write a setting of these parts: no longer than it takes to tell their values apart."""
    values = [value for part in parts if (value := part.value(key)) is not None]
    if all(isinstance(value, Path) for value in values):
        folders = _folders(values)
        return lambda part: f"{key}={Path(*part.value(key).parts[-folders:]).as_posix()}"
    if all(isinstance(value, Mapping) or _is_record(value) for value in values):
        tables = [_flat(value) for value in values]
        every = dict.fromkeys(name for table in tables for name in table)
        differing = [name for name in every if _differ(table.get(name) for table in tables)]
        return lambda part: _entries(key, _flat(part.value(key)), differing)
    texts = {part.text(key) for part in parts}
    clear = len({_clipped(text) for text in texts}) == len(texts)
    return lambda part: f"{key}={_clipped(part.text(key)) if clear else part.text(key)}"


def _is_record(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, Plugin)


def _folders(paths: Sequence[Path]) -> int:
    """How many of the last parts of paths tell them apart: 1 if the files' names do."""
    distinct = {path.parts for path in paths}
    longest = max(map(len, distinct))
    return next((n for n in range(1, longest) if len({parts[-n:] for parts in distinct}) == len(distinct)), longest)


def _flat(value: Any, before: str = "") -> dict[str, Any]:
    """A table in a table as one: { a = { b = 1 } } as { "a.b" = 1 }."""
    flat: dict[str, Any] = {}
    for key, inner in (value if isinstance(value, Mapping) else dataclasses.asdict(value)).items():
        flat |= _flat(inner, f"{before}{key}.") if isinstance(inner, Mapping) else {f"{before}{key}": inner}
    return flat


def _entries(key: str, table: Mapping[str, Any], differing: Iterable[str]) -> str:
    """The entries of a table that others have otherwise: `options.min_terms=2`."""
    return " ".join(f"{key}.{name}={_clipped(_text(table[name]))}" for name in differing if name in table)


def _text(value: Any) -> str:
    if isinstance(value, Mapping):  # a plugin inside a plugin: { name = "qwen", size = "small" } as `qwen small`
        return " ".join(map(_text, value.values()))
    if isinstance(value, list | tuple):
        return ",".join(map(_text, value)) or "none"
    return " ".join(str(described(value)).split())


def _clipped(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"
