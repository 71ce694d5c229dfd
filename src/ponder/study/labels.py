"""Names tasks and models: a title, and the settings that tell one from the others of its study.

A label names the settings that its table sweeps. Where two would still be called the same, such as
those of two tables that differ in `mode`, both name whatever differs between them. Settings that
are not in an attempt's key are named only where nothing else differs. All training seeds of a chain
of methods have one label without seeds: its variant.
"""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, TypeVar

from ponder.core import Cell, Label, Outcome, Plugin, UserError
from ponder.core.cell import SEED, described, settings_in_key
from ponder.core.plugins import nearest
from ponder.core.settings import Table
from ponder.study.cell import StudyCell

LONGEST = 60  # characters of a value, unless more are needed to tell two apart
DIGEST = "digest"  # the setting of a benchmark that only says what its problems are


@dataclass(frozen=True)
class Part:
    """A plugin in a label: a task, a model, or one method of the model's chain."""

    title: str
    plugin: Plugin
    written: Table  # its table in the study: a label repeats what the user wrote
    swept: Sequence[str] = ()  # the keys whose list has more than one value
    # further settings in the key: `remember` and `window`
    also: Mapping[str, Any] = field(default_factory=dict)
    trains: bool = False

    @cached_property
    def keyed(self) -> dict[str, Any]:
        """Its settings that are in an attempt's key."""
        return {"name": self.plugin.plugin_name(), **settings_in_key(self.plugin), **self.also}

    @cached_property
    def unkeyed(self) -> dict[str, Any]:
        """Its settings that are not in an attempt's key."""
        fields = dataclasses.fields(self.plugin)  # type: ignore[arg-type]
        names = [field.name for field in fields if field.name not in self.keyed]
        return {name: getattr(self.plugin, name) for name in names}

    def value(self, key: str) -> Any:
        """Return the value of a setting; None if it has no such setting."""
        if key in self.keyed:
            return self.keyed[key]
        return self.unkeyed.get(key)

    def text(self, key: str) -> str:
        """Return the value of a setting as text, as the user wrote it."""
        if key in self.also or key not in self.written:
            return _text(self.value(key))
        return _text(self.written[key])


Chain: TypeAlias = tuple[Part, ...]  # a task alone, or a model and its methods
# The titles of a part and of those before it. Parts with the same titles are compared.
Titles: TypeAlias = tuple[str, ...]
# For parts with the same titles: the settings to name besides the swept ones, in their order.
Named: TypeAlias = dict[Titles, dict[str, None]]


@dataclass(frozen=True)
class Names:
    """What a chain is called."""

    base: str  # its first part alone
    whole: str
    variant: str  # without training seeds
    methods: str  # the variant without its first part


def labels(chains: Sequence[Chain]) -> list[Names]:
    """Return the names of each chain.

    Two chains have the same name only if nothing that a study can set differs between them. So
    while some do, what differs between these is named too: settings in the key first.
    """
    parts: dict[Titles, list[Part]] = {}
    for chain in chains:
        for titles, part in _titled(chain):
            parts.setdefault(titles, []).append(part)
    named: Named = {titles: {} for titles in parts}
    while True:
        names = _names(chains, parts, named)
        same_name = _alike(chains, [name.whole for name in names])
        same_variant = _alike(chains, [name.variant for name in names])
        changed = False
        for alike in same_name:
            changed |= _name_differences(alike, named, keyed=True)
        for alike in same_variant:
            changed |= _name_differences(alike, named, keyed=True, seeds=False)
        if not changed:
            for alike in same_name:
                changed |= _name_differences(alike, named, keyed=False)
        if not changed:
            return names


def _titled(chain: Chain) -> Iterator[tuple[Titles, Part]]:
    titles: Titles = ()
    for part in chain:
        titles = (*titles, part.title)
        yield titles, part


def _alike(chains: Sequence[Chain], texts: Sequence[str]) -> list[list[Chain]]:
    """Return groups of chains that have the same text and consist of the same parts."""
    groups: dict[tuple[str, Titles], list[Chain]] = {}
    for chain, text in zip(chains, texts, strict=True):
        titles = tuple(part.title for part in chain)
        groups.setdefault((text, titles), []).append(chain)
    return [group for group in groups.values() if len(group) > 1]


def _name_differences(
    alike: Sequence[Chain], named: Named, *, keyed: bool, seeds: bool = True
) -> bool:
    """Add to `named` what differs between chains; return whether that adds anything."""
    added = False
    for index, (titles, first) in enumerate(_titled(alike[0])):
        parts = [chain[index] for chain in alike]
        hidden = {"label", DIGEST}
        if first.trains and not seeds:
            hidden.add(SEED)
        for key in _differing_keys(parts, keyed):
            if key not in hidden and key not in named[titles]:
                named[titles][key] = None
                added = True
    return added


def _differing_keys(parts: Sequence[Part], keyed: bool) -> list[str]:
    """Return the settings, in the key or not, whose values differ between parts."""
    tables = [part.keyed if keyed else part.unkeyed for part in parts]
    if keyed and _differ(table["name"] for table in tables):
        return ["name"]  # two plugins have different settings anyway
    keys = dict.fromkeys(key for table in tables for key in table)
    return [key for key in keys if _differ(table.get(key) for table in tables)]


def _differ(values: Iterable[Any]) -> bool:
    first, *others = values
    return any(value != first for value in others)


def _names(
    chains: Sequence[Chain], parts: Mapping[Titles, Sequence[Part]], named: Named
) -> list[Names]:
    """Return the names of chains, with the settings that are swept and those in `named`."""
    writers: dict[tuple[Titles, str], Callable[[Part], str]] = {}
    names = []
    for chain in chains:
        whole = []
        variant = []
        for titles, part in _titled(chain):
            words = [part.title]
            seedless = [part.title]
            for key in dict.fromkeys((*part.swept, *named[titles])):
                if part.value(key) in (None, ""):
                    continue
                if (titles, key) not in writers:
                    writers[titles, key] = _writer(parts[titles], key)
                text = writers[titles, key](part)
                # What is called by one of its settings, such as an eviction policy, says it once.
                if not text or text == f"{key}={part.title}":
                    continue
                words.append(text)
                if not (part.trains and key == SEED):
                    seedless.append(text)
            whole.append(" ".join(words))
            variant.append(" ".join(seedless))
        methods = " + ".join(variant[1:])
        names.append(Names(whole[0], " + ".join(whole), " + ".join(variant), methods))
    return names


def _writer(parts: Sequence[Part], key: str) -> Callable[[Part], str]:
    """Return a function that writes a setting no longer than it takes to tell these parts apart."""
    values = [part.value(key) for part in parts]
    values = [value for value in values if value is not None]
    if all(isinstance(value, Path) for value in values):
        length = _distinct_length(values)
        return lambda part: f"{key}={Path(*part.value(key).parts[-length:]).as_posix()}"
    if all(isinstance(value, Mapping) or _is_record(value) for value in values):
        tables = [_flat(value) for value in values]
        names = dict.fromkeys(name for table in tables for name in table)
        differing = [name for name in names if _differ(table.get(name) for table in tables)]
        return lambda part: _entries(key, _flat(part.value(key)), differing)
    texts = {part.text(key) for part in parts}
    clipped = {_clipped(text) for text in texts}
    if len(clipped) == len(texts):
        return lambda part: f"{key}={_clipped(part.text(key))}"
    return lambda part: f"{key}={part.text(key)}"


def _is_record(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, Plugin)


def _distinct_length(paths: Sequence[Path]) -> int:
    """Return how many of the last parts of paths tell them apart: 1 if the files' names do."""
    distinct = {path.parts for path in paths}
    longest = max(len(parts) for parts in distinct)
    for length in range(1, longest):
        endings = {parts[-length:] for parts in distinct}
        if len(endings) == len(distinct):
            return length
    return longest


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    """Return a table of tables as one: { a = { b = 1 } } as { "a.b" = 1 }."""
    table = value if isinstance(value, Mapping) else dataclasses.asdict(value)
    flat: dict[str, Any] = {}
    for key, inner in table.items():
        if isinstance(inner, Mapping):
            flat |= _flat(inner, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = inner
    return flat


def _entries(key: str, table: Mapping[str, Any], differing: Iterable[str]) -> str:
    """Write the entries of a table that differ from others: `options.min_terms=2`."""
    entries = []
    for name in differing:
        if name in table:
            entries.append(f"{key}.{name}={_clipped(_text(table[name]))}")
    return " ".join(entries)


def _text(value: Any) -> str:
    # a plugin inside a plugin: { name = "qwen", size = "small" } as `qwen small`
    if isinstance(value, Mapping):
        return " ".join(_text(inner) for inner in value.values())
    if isinstance(value, list | tuple):
        return ",".join(_text(item) for item in value) or "none"
    return " ".join(str(described(value)).split())


def _clipped(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


# Names of groups of attempts, for figures and tables.

# the names of a chain's methods: what differs between a model with a method and one without
CHAIN = "methods"
LONGEST_SHOWN = 40  # characters of a value in a sentence
MOST_SHOWN = 4  # values that are listed
Key = TypeVar("Key", bound=Hashable)


def cells_of(outcomes: Iterable[Outcome]) -> dict[Cell, Label]:
    """Return the cells of attempts with their labels, in the order of the attempts."""
    cells: dict[Cell, Label] = {}
    for outcome in outcomes:
        if outcome.cell not in cells:
            cells[outcome.cell] = outcome.label
    return cells


def differing(tables: Iterable[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Return the settings that differ between tables that have them, each with its values, sorted."""
    values: dict[str, dict[str, Any]] = {}
    for table in tables:
        for name, value in table.items():
            values.setdefault(name, {}).setdefault(
                json.dumps(value, default=str, sort_keys=True), value
            )
    several = {name: distinct for name, distinct in values.items() if len(distinct) > 1}
    return {name: _sorted(several[name].values()) for name in sorted(several, key=_rank)}


def pooled(groups: Iterable[Iterable[Outcome]], drawn: Collection[str] = ()) -> str:
    """Say what differs between the attempts of one group: `pooled over mode = answer, cot`; "" if
    nothing does.

    A group is what a figure makes one number from. `drawn` has settings that the figure draws.
    Training seeds are no setting, and problems of different sizes are pooled too.
    """
    values: dict[str, list[Any]] = {}
    for group in groups:
        cells = list(cells_of(group))
        in_group = differing(_comparable(cell) for cell in cells)
        sizes = sorted({cell.size for cell in cells})
        if len(sizes) > 1:
            in_group["size"] = sizes
        for name, distinct in in_group.items():
            if not _is_one_of(name, drawn):
                listed = values.setdefault(name, [])
                listed += [value for value in distinct if value not in listed]
    if not values:
        return ""
    names = _short_settings(values)
    clauses = [
        f"{names[name]} = {_listed(_sorted(values[name]))}" for name in sorted(values, key=_rank)
    ]
    return f"pooled over {'; '.join(clauses)}"


def distinctions(
    cells: Iterable[Cell], drawn: Collection[str] = (), of: str = ""
) -> dict[Cell, str]:
    """Name each cell by the settings that differ between all of them: `mode=cot`; "" if nothing
    does.

    `drawn` has settings that the figure draws otherwise; `of = "task"` looks at the task's settings
    alone.
    """
    tables = {cell: _comparable(cell) for cell in cells}
    varied = differing(tables.values())
    names = _short_settings(
        name for name in varied if name.startswith(of) and not _is_one_of(name, drawn)
    )
    texts = {}
    for cell, table in tables.items():
        parts = []
        for name, short in names.items():
            value = table.get(name)
            if value is not None:
                parts.append(value if name == "task.name" else f"{short}={_shown(value)}")
        texts[cell] = " ".join(parts)
    return texts


def series_labels(outcomes: Sequence[Outcome]) -> dict[tuple[bytes, bytes], tuple[str, str]]:
    """Name each model on each task, by both keys: the model, and both if there are several tasks.

    Outcomes of two studies may have the same labels and different settings, which then name the
    model too.
    """
    cells = cells_of(outcomes)
    several = len({label.task for label in cells.values()}) > 1
    alike: dict[tuple[str, str], list[Cell]] = {}
    for cell, label in cells.items():
        alike.setdefault((label.model, label.task), []).append(cell)
    names = {}
    for (model, task), group in alike.items():
        texts = distinctions(group)
        for cell in group:
            name = f"{model} {texts[cell]}".rstrip()
            names[cell.model_key, cell.task_key] = (name, f"{name}, {task}" if several else name)
    return names


def task_series_labels(outcomes: Iterable[Outcome], drawn: Collection[str]) -> dict[Cell, str]:
    """Name each cell by its model and by the task's settings that differ, without those that a
    figure draws.
    """
    outcomes = list(outcomes)
    models = model_labels(outcomes)
    texts = distinctions(cells_of(outcomes), drawn, of="task")
    return {
        cell: ", ".join(filter(None, (models[cell.model_key], text)))
        for cell, text in texts.items()
    }


def task_labels(outcomes: Iterable[Outcome]) -> dict[bytes, str]:
    """Name each task, by its key."""
    return _distinct_labels(outcomes, lambda cell: cell.task_key, lambda label: label.task)


def model_labels(outcomes: Iterable[Outcome]) -> dict[bytes, str]:
    """Name each model with its methods, by its key."""
    return _distinct_labels(outcomes, lambda cell: cell.model_key, lambda label: label.model)


def variant_labels(outcomes: Iterable[Outcome]) -> dict[bytes, str]:
    """Name each variant, by its key."""
    return _distinct_labels(outcomes, lambda cell: cell.variant_key, lambda label: label.variant)


def _distinct_labels(
    outcomes: Iterable[Outcome], key: Callable[[Cell], bytes], text: Callable[[Label], str]
) -> dict[bytes, str]:
    """Name groups of attempts. Those of two studies may have one label: then the settings that
    differ tell them apart.

    Where no setting does, they are numbered.
    """
    cells: dict[bytes, Cell] = {}
    names: dict[bytes, str] = {}
    for cell, label in cells_of(outcomes).items():
        if key(cell) not in cells:
            cells[key(cell)] = cell
            names[key(cell)] = text(label)
    alike: dict[str, list[bytes]] = {}
    for group, name in names.items():
        alike.setdefault(name, []).append(group)
    for name, groups in alike.items():
        if len(groups) > 1:
            texts = distinctions(cells[group] for group in groups)
            for number, group in enumerate(groups, 1):
                names[group] = f"{name} {texts[cells[group]] or number}"
    return names


def short_variant_labels(outcomes: Iterable[Outcome], reference: bytes) -> dict[bytes, str]:
    """Name each variant by its methods alone, if it has the same base model as the reference."""
    outcomes = list(outcomes)
    names = variant_labels(outcomes)
    cells = cells_of(outcomes)
    bases = {cell.base_key for cell in cells if cell.variant_key == reference}
    for cell, label in cells.items():
        if cell.base_key in bases and label.methods and names[cell.variant_key] == label.variant:
            names[cell.variant_key] = label.methods
    return names


def panel_label(
    task: str, size: int | None = None, *, model: str = "", more: Sequence[str] = ()
) -> str:
    """Name a panel: its model if there are several, its task, its size if sizes have panels of
    their own, and more.
    """
    place = task if size is None else f"{task} {size}"
    return " | ".join(name for name in (model, place, *more) if name)


class Beneath(NamedTuple):
    """The model that some methods were applied to."""

    key: bytes  # of the model, or of the variant
    name: str


def beneath(
    outcomes: Iterable[Outcome], outer: Callable[[Cell], Collection[str]], *, seeds: bool = True
) -> dict[bytes, Beneath]:
    """Return for each model, by its key, the one that its `outer` methods, named as in
    `Cell.owners`, were applied to.

    If the study asks that model too, its name is the study's. Without `seeds` it is a variant.
    """
    cells: dict[bytes, Cell] = {}
    bases: dict[bytes, str] = {}
    names: dict[bytes, str] = {}  # of the models that the study asks
    for cell, label in cells_of(outcomes).items():
        cells.setdefault(cell.model_key, cell)
        bases.setdefault(cell.base_key, label.base)
        if seeds:
            names.setdefault(cell.model_key, label.model)
        else:
            names.setdefault(cell.variant_key, label.variant)
    inner = {}
    for model, cell in cells.items():
        left_out = outer(cell)
        methods = [
            method
            for method, owner in zip(cell.methods, cell.owners, strict=True)
            if owner not in left_out
        ]
        inner[model] = Cell(
            cell.task, cell.size, cell.model, tuple(methods), cell.memory, cell.seed
        )
    models = {}
    for model, cell in inner.items():
        key = cell.model_key if seeds else cell.variant_key
        name = names.get(key) or _composed(cell, bases[cell.base_key], inner.values(), seeds)
        models[model] = Beneath(key, name)
    return models


def _composed(cell: Cell, base: str, others: Iterable[Cell], seeds: bool) -> str:
    """Name a model that the study doesn't ask by itself, with the settings that tell it from
    others.
    """
    chain = [use.name for use in cell.chain]
    alike = [
        other
        for other in others
        if other.base_key == cell.base_key and [u.name for u in other.chain] == chain
    ]
    parts = [base]
    for place, use in enumerate(cell.chain):
        words = [use.name]
        for name, value in use.settings.items():
            values = {str(other.chain[place].settings.get(name)) for other in alike}
            if len(values) > 1 and (seeds or name != SEED):
                words.append(f"{name}={value}")
        parts.append(" ".join(words))
    return " + ".join(parts)


def in_words(
    settings: Mapping[Key, Mapping[str, Any]], but: Collection[str] = ()
) -> dict[Key, str]:
    """Name for each table of settings those that differ between the tables: `budget 64, match
    length`.

    `but` leaves settings out, with those of a plugin inside: `reward` also leaves out
    `reward.size`.
    """
    varied = []
    for name in dict.fromkeys(name for table in settings.values() for name in table):
        values = {str(table.get(name)) for table in settings.values()}
        if len(values) > 1 and not {*name.split(".")} & {*but}:
            varied.append(name)
    texts = {}
    for key, table in settings.items():
        words = []
        for name in varied:
            value = table.get(name)
            if value is True:
                words.append(name.replace("_", " "))
            elif value is not None and value is not False:
                words.append(f"{name.replace('_', ' ')} {value}")
        texts[key] = ", ".join(words)
    return texts


def cells_called(cells: Iterable[StudyCell], noun: str, name: str) -> list[StudyCell]:
    """Return the cells that a user means by the name of a model, a variant or a task."""
    return [cell for cell in cells if getattr(cell.label, noun) == name]


def unknown_name(cells: Iterable[StudyCell], noun: str, name: str) -> UserError:
    """Return the error for a name that `cells_called` finds nothing for."""
    names: dict[str, None] = {}
    for cell in cells:
        if noun == "model":
            names[cell.label.variant] = None
        names[getattr(cell.label, noun)] = None
    return UserError(f"this study has no {noun} `{name}`", hint=nearest(name, names))


def group_label(
    cells: Collection[StudyCell], every: Collection[StudyCell], ended: Collection[str] = ()
) -> str:
    """Describe some of a study's cells, for the head of a list of their attempts."""
    parts = []
    for noun in ("model", "task"):
        names = list(dict.fromkeys(getattr(cell.label, noun) for cell in cells))
        if len(names) < len({getattr(cell.label, noun) for cell in every}):
            parts.append(_listed(names))
    sizes = sorted({cell.size for cell in cells})
    if len(sizes) < len({cell.size for cell in every}):
        parts.append(f"size {_listed(sizes)}")
    if ended:
        parts.append(_listed(list(ended)))
    return "; ".join(parts)


def chosen_variant(outcomes: Sequence[Outcome], name: str = "", *, but: bytes = b"") -> bytes:
    """Return the key of the variant that the user has named, or of the study's first; `but` leaves
    one out.
    """
    names = {key: text for key, text in variant_labels(outcomes).items() if key != but}
    if not name:
        return next(iter(names))
    for key, text in names.items():
        if text == name:
            return key
    raise UserError(f"this study has no model `{name}`", hint=nearest(name, names.values()))


def _comparable(cell: Cell) -> dict[str, Any]:
    """Return a cell's settings and the names of its methods, without training seeds."""
    table = dict(cell.settings)
    if cell.training_seeds:
        for name in cell.settings:
            if _is_of_method(name) and _is_one_of(name, (SEED,)):
                del table[name]
    table[CHAIN] = " + ".join(use.name for use in cell.chain) or "none"
    return table


def _is_of_method(name: str) -> bool:
    return "." in name and not name.startswith(("task.", "model."))


def _rank(name: str) -> str:
    """Sort settings of methods before those of the model, and those before the task's."""
    return f"method.{name}" if _is_of_method(name) else name


def _sorted(values: Iterable[Any]) -> list[Any]:
    """Sort numbers by size, then the rest by its text: the order of the attempts doesn't matter."""
    return sorted(
        values, key=lambda value: (0, value, "") if _is_number(value) else (1, 0, _shown(value))
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_one_of(name: str, settings: Collection[str]) -> bool:
    """Tell whether a dotted name is one of these, which may be shorter: `task.mode` is `mode`."""
    return any(name == short or name.endswith(f".{short}") for short in settings)


def _short_settings(names: Iterable[str]) -> dict[str, str]:
    """Return the last part of each name, if no other has the same."""
    last = {name: name.rpartition(".")[2] for name in names}
    often = Counter(last.values())
    return {
        name: short if often[short] == 1 and short != "name" else name
        for name, short in last.items()
    }


def _listed(values: Sequence[Any]) -> str:
    if len(values) > MOST_SHOWN and all(map(_is_number, values)):
        return f"{min(values):g}–{max(values):g}"
    shown = [_shown(value) for value in values[:MOST_SHOWN]]
    if len(values) > MOST_SHOWN:
        shown.append(f"{len(values) - MOST_SHOWN} more")
    return ", ".join(shown)


def _shown(value: Any) -> str:
    text = (
        json.dumps(value, default=str) if isinstance(value, Mapping | list | tuple) else str(value)
    )
    return text if len(text) <= LONGEST_SHOWN else f"{text[: LONGEST_SHOWN - 1]}…"
