"""Names tasks and models: a title, and the settings that distinguish it from others in its study.

A label names the settings that its table sweeps. Where two would still be called the same, such as
those of two tables that differ in `mode`, both name whatever differs between them. Settings that
are not in an attempt's key are named only where nothing else differs. All training seeds of a chain
of methods have one label without seeds: its variant.
"""

from __future__ import annotations

import dataclasses
import itertools
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
class Component:
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


Chain: TypeAlias = tuple[Component, ...]  # a task alone, or a model and its methods
# The titles of a component and of those before it. Components with the same titles are compared.
Titles: TypeAlias = tuple[str, ...]
# For components with the same titles: the settings to name besides the swept ones, in their order.
NamedSettings: TypeAlias = dict[Titles, dict[str, None]]


@dataclass(frozen=True)
class Names:
    """What a chain is called."""

    base: str  # its first component alone
    full: str
    variant: str  # without training seeds
    methods: str  # the variant without its first component


def labels(chains: Sequence[Chain]) -> list[Names]:
    """Return the names of each chain.

    Two chains have the same name only if nothing that a study can set differs between them. So
    while some do, what differs between these is named too: settings in the key first.
    """
    components: dict[Titles, list[Component]] = {}
    for chain in chains:
        for titles, component in _titled(chain):
            components.setdefault(titles, []).append(component)
    settings: NamedSettings = {titles: {} for titles in components}
    while True:
        names = _names(chains, components, settings)
        same_name = _alike(chains, [name.full for name in names])
        same_variant = _alike(chains, [name.variant for name in names])
        changed = False
        for alike in same_name:
            changed |= _name_differences(alike, settings, keyed=True)
        for alike in same_variant:
            changed |= _name_differences(alike, settings, keyed=True, seeds=False)
        if not changed:
            for alike in same_name:
                changed |= _name_differences(alike, settings, keyed=False)
        if not changed:
            return names


def _titled(chain: Chain) -> Iterator[tuple[Titles, Component]]:
    titles: Titles = ()
    for component in chain:
        titles = (*titles, component.title)
        yield titles, component


def _alike(chains: Sequence[Chain], texts: Sequence[str]) -> list[list[Chain]]:
    """Return groups of chains that have the same text and consist of the same components."""
    groups: dict[tuple[str, Titles], list[Chain]] = {}
    for chain, text in zip(chains, texts, strict=True):
        titles = tuple(component.title for component in chain)
        groups.setdefault((text, titles), []).append(chain)
    return [group for group in groups.values() if len(group) > 1]


def _name_differences(
    alike: Sequence[Chain], settings: NamedSettings, *, keyed: bool, seeds: bool = True
) -> bool:
    """Add to `settings` those that differ between chains; return whether that adds any."""
    added = False
    for index, (titles, first) in enumerate(_titled(alike[0])):
        components = [chain[index] for chain in alike]
        hidden = {"label", DIGEST}
        if first.trains and not seeds:
            hidden.add(SEED)
        for key in _differing_keys(components, keyed):
            if key not in hidden and key not in settings[titles]:
                settings[titles][key] = None
                added = True
    return added


def _differing_keys(components: Sequence[Component], keyed: bool) -> list[str]:
    """Return the settings, in the key or not, whose values differ between components."""
    if keyed:
        tables = [component.keyed for component in components]
    else:
        tables = [component.unkeyed for component in components]
    keys = _differing_names(tables)
    if keyed and "name" in keys:
        return ["name"]  # two plugins have different settings anyway
    return keys


def _differing_names(tables: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the keys whose values differ between tables, or that some of them lack."""
    names: dict[str, None] = {}
    for table in tables:
        names |= dict.fromkeys(table)
    differing_names = []
    for name in names:
        first, *remaining = [table.get(name) for table in tables]
        if any(value != first for value in remaining):
            differing_names.append(name)
    return differing_names


def _names(
    chains: Sequence[Chain],
    components: Mapping[Titles, Sequence[Component]],
    settings: NamedSettings,
) -> list[Names]:
    """Return the names of chains, with the settings that are swept and those in `settings`."""
    writers: dict[tuple[Titles, str], Callable[[Component], str]] = {}
    short_names = {}
    for titles, group in components.items():
        keys = dict.fromkeys(itertools.chain(*(component.swept for component in group)))
        short_names[titles] = _short_settings(_entry_names(group, keys | settings[titles]))
    names = []
    for chain in chains:
        full = []
        variant = []
        for titles, component in _titled(chain):
            words = [component.title]
            seedless = [component.title]
            for key in dict.fromkeys((*component.swept, *settings[titles])):
                if component.value(key) in (None, ""):
                    continue
                if (titles, key) not in writers:
                    writers[titles, key] = _writer(components[titles], key, short_names[titles])
                text = writers[titles, key](component)
                # What is called by one of its settings, such as an eviction policy, says it once.
                if not text or text == f"{key}={component.title}":
                    continue
                words.append(text)
                if not (component.trains and key == SEED):
                    seedless.append(text)
            full.append(" ".join(words))
            variant.append(" ".join(seedless))
        methods = " + ".join(variant[1:])
        names.append(Names(full[0], " + ".join(full), " + ".join(variant), methods))
    return names


def _values(components: Sequence[Component], key: str) -> list[Any]:
    """Return the values of a setting, of the components that have one."""
    values = []
    for component in components:
        value = component.value(key)
        if value is not None:
            values.append(value)
    return values


def _entry_names(components: Sequence[Component], keys: Iterable[str]) -> list[str]:
    """Return the dotted names of what labels with these settings name: `body.top_k` of `body`."""
    names = []
    for key in keys:
        values = _values(components, key)
        if values and all(isinstance(value, Mapping) for value in values):
            for name in _differing_names([flattened(value) for value in values]):
                names.append(f"{key}.{name}")
        else:
            names.append(key)
    return names


def _writer(
    components: Sequence[Component], key: str, short_names: Mapping[str, str]
) -> Callable[[Component], str]:
    """Return a function that writes a setting, just long enough to tell the components apart.

    `short_names` has the names of entries of tables.
    """
    values = _values(components, key)

    if all(isinstance(value, Path) for value in values):
        length = _distinct_length(values)

        def write_path(component: Component) -> str:
            ending = Path(*component.value(key).parts[-length:])
            return f"{key}={ending.as_posix()}"

        return write_path

    if all(isinstance(value, Mapping) or _is_record(value) for value in values):
        differing_names = _differing_names([flattened(value) for value in values])
        names = {}
        for name in differing_names:
            names[name] = short_names.get(f"{key}.{name}", f"{key}.{name}")
        return lambda component: _entries(flattened(component.value(key)), names)

    texts = {component.text(key) for component in components}
    clipped = {_clipped(text) for text in texts}
    if len(clipped) == len(texts):
        return lambda component: f"{key}={_clipped(component.text(key))}"
    return lambda component: f"{key}={component.text(key)}"


def _is_record(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, Plugin)


def _distinct_length(paths: Sequence[Path]) -> int:
    """Return how many trailing parts of paths tell them apart: 1 if the files' names do."""
    distinct = {path.parts for path in paths}
    longest = max(len(names) for names in distinct)
    for length in range(1, longest):
        endings = {names[-length:] for names in distinct}
        if len(endings) == len(distinct):
            return length
    return longest


def flattened(value: Any, prefix: str = "") -> dict[str, Any]:
    """Return a table of tables as one: { a = { b = 1 } } as { "a.b" = 1 }."""
    table = value if isinstance(value, Mapping) else dataclasses.asdict(value)
    entries: dict[str, Any] = {}
    for key, inner in table.items():
        if isinstance(inner, Mapping):
            entries |= flattened(inner, f"{prefix}{key}.")
        else:
            entries[f"{prefix}{key}"] = inner
    return entries


def _entries(table: Mapping[str, Any], names: Mapping[str, str]) -> str:
    """Write the entries of a table that differ from others, by their short names: `min_terms=2`."""
    entries = []
    for name, short_name in names.items():
        if name in table:
            entries.append(f"{short_name}={_clipped(_text(table[name]))}")
    return " ".join(entries)


def _text(value: Any) -> str:
    # a plugin inside a plugin: { name = "qwen", size = "small" } as `qwen small`
    if isinstance(value, Mapping):
        return " ".join(_text(inner) for inner in value.values())
    if isinstance(value, list | tuple):
        return ",".join(_text(item) for item in value) or "none"
    return " ".join(str(described(value)).split())


def _clipped(text: str) -> str:
    if len(text) <= LONGEST:
        return text
    return f"{text[: LONGEST - 1]}…"


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
    """Return the settings that differ between tables that have them, with their sorted values.

    Entries of a table inside, such as `model.body`, are settings by their dotted names.
    """
    values: dict[str, dict[str, Any]] = {}  # by name, then by their text
    tables = list(tables)
    inner_names: dict[str, dict[str, None]] = {}  # of the entries, by the setting that has them
    for table in tables:
        for name, value in table.items():
            if isinstance(value, Mapping):
                inner_names.setdefault(name, {}).update(dict.fromkeys(flattened({name: value})))
    for table in tables:
        flat_table = flattened(table)
        for name, entries in inner_names.items():
            if name in table:
                flat_table = dict.fromkeys(entries) | flat_table
        for name, value in flat_table.items():
            text = json.dumps(value, default=str, sort_keys=True)
            values.setdefault(name, {}).setdefault(text, value)
    varied = {}
    for name in sorted(values, key=_rank):
        if len(values[name]) > 1:
            varied[name] = _sorted(values[name].values())
    return varied


def pooled(groups: Iterable[Iterable[Outcome]], drawn: Collection[str] = ()) -> str:
    """Return the settings that differ within a group: `pooled over mode = answer, cot`, or "".

    A group is what a figure makes one number from. `drawn` has settings that the figure draws.
    Training seeds don't count as a setting; problems of different sizes are pooled too.
    """
    values: dict[str, list[Any]] = {}
    for group in groups:
        cells = list(cells_of(group))
        in_group = differing(_comparable(cell) for cell in cells)
        sizes = sorted({cell.size for cell in cells})
        if len(sizes) > 1:
            in_group["size"] = sizes
        for name, distinct in in_group.items():
            if _is_one_of(name, drawn):
                continue
            listed = values.setdefault(name, [])
            for value in distinct:
                if value not in listed:
                    listed.append(value)
    if not values:
        return ""
    short_names = _short_settings(values)
    clauses = []
    for name in sorted(values, key=_rank):
        clauses.append(f"{short_names[name]} = {_listed(_sorted(values[name]))}")
    return f"pooled over {'; '.join(clauses)}"


def distinctions(
    cells: Iterable[Cell], drawn: Collection[str] = (), of: str = ""
) -> dict[Cell, str]:
    """Name each cell by the settings that differ between the cells: `mode=cot`, or "".

    `drawn` has settings that the figure draws otherwise; `of = "task"` looks at the task's settings
    alone.
    """
    tables = {cell: _comparable(cell) for cell in cells}
    names = []
    for name in differing(tables.values()):
        if name.startswith(of) and not _is_one_of(name, drawn):
            names.append(name)
    short_names = _short_settings(names)
    texts = {}
    for cell, table in tables.items():
        flat_table = flattened(table)
        words = []
        for name, short_name in short_names.items():
            value = flat_table.get(name)
            if value is None:
                continue
            if name == "task.name":
                words.append(value)
            else:
                words.append(f"{short_name}={_shortened(value)}")
        texts[cell] = " ".join(words)
    return texts


def series_labels(outcomes: Sequence[Outcome]) -> dict[tuple[bytes, bytes], tuple[str, str]]:
    """Name each model on each task, by both keys: the model, and both if there are several tasks.

    Outcomes of two studies may have the same labels and different settings, which then name the
    model too.
    """
    cells = cells_of(outcomes)
    several_tasks = len({label.task for label in cells.values()}) > 1
    alike: dict[tuple[str, str], list[Cell]] = {}
    for cell, label in cells.items():
        alike.setdefault((label.model, label.task), []).append(cell)
    names = {}
    for (model, task), group in alike.items():
        texts = distinctions(group)
        for cell in group:
            name = f"{model} {texts[cell]}".rstrip()
            name_with_task = name
            if several_tasks:
                name_with_task = f"{name}, {task}"
            names[cell.model_key, cell.task_key] = (name, name_with_task)
    return names


def task_series_labels(outcomes: Iterable[Outcome], drawn: Collection[str]) -> dict[Cell, str]:
    """Name each cell by its model and the task's settings that differ, but not by drawn ones."""
    outcomes = list(outcomes)
    models = model_labels(outcomes)
    names = {}
    for cell, text in distinctions(cells_of(outcomes), drawn, of="task").items():
        words = [models[cell.model_key], text]
        names[cell] = ", ".join(word for word in words if word)
    return names


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
    """Name groups of attempts, each by its label.

    Groups of two studies may have the same label: then the settings that differ tell them apart, or
    a number where no setting differs.
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
    task: str, size: int | None = None, *, model: str = "", extra: Sequence[str] = ()
) -> str:
    """Name a panel by its model, its task, its size and extra words, each if it has one."""
    if size is not None:
        task = f"{task} {size}"
    return " | ".join(name for name in (model, task, *extra) if name)


class Beneath(NamedTuple):
    """The model that some methods were applied to."""

    key: bytes  # of the model, or of the variant
    name: str


def beneath(
    outcomes: Iterable[Outcome], outer: Callable[[Cell], Collection[str]], *, seeds: bool = True
) -> dict[bytes, Beneath]:
    """Return for each model, by its key, the model that its `outer` methods were applied to.

    `outer` returns methods as `Cell.owners` names them. If the study asks the model beneath too,
    its name is the study's. Without `seeds` it is a variant.
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
        outer_methods = outer(cell)
        methods = []
        for method, owner in zip(cell.methods, cell.owners, strict=True):
            if owner not in outer_methods:
                methods.append(method)
        inner[model] = Cell(
            cell.task, cell.size, cell.model, tuple(methods), cell.memory, cell.seed
        )
    models = {}
    for model, cell in inner.items():
        key = cell.variant_key
        if seeds:
            key = cell.model_key
        name = names.get(key)
        if not name:
            name = _composed(cell, bases[cell.base_key], inner.values(), seeds)
        models[model] = Beneath(key, name)
    return models


def _composed(cell: Cell, base: str, cells: Iterable[Cell], seeds: bool) -> str:
    """Name a model that the study doesn't ask, by the settings that differ between these cells."""
    chain = [use.name for use in cell.chain]
    alike = []
    for candidate in cells:
        candidate_chain = [use.name for use in candidate.chain]
        if candidate.base_key == cell.base_key and candidate_chain == chain:
            alike.append(candidate)
    names = [base]
    for index, use in enumerate(cell.chain):
        words = [use.name]
        for setting, value in use.settings.items():
            values = {str(candidate.chain[index].settings.get(setting)) for candidate in alike}
            if len(values) > 1 and (seeds or setting != SEED):
                words.append(f"{setting}={value}")
        names.append(" ".join(words))
    return " + ".join(names)


def in_words(
    settings: Mapping[Key, Mapping[str, Any]], but: Collection[str] = ()
) -> dict[Key, str]:
    """Name for each table the settings that differ between tables: `budget 64, match length`.

    `but` leaves settings out, with those of a plugin inside: `reward` also leaves out
    `reward.size`.
    """
    names: dict[str, None] = {}
    for table in settings.values():
        names |= dict.fromkeys(table)
    varied = []
    for name in names:
        values = {str(table.get(name)) for table in settings.values()}
        if len(values) > 1 and set(name.split(".")).isdisjoint(but):
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


def setting_label(label: Label) -> str:
    """Name a variant that is asked with one of several prompts, each a task of the study."""
    return f"{label.variant}, {label.task}"


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
    clauses = []
    for noun in ("model", "task"):
        names = list(dict.fromkeys(getattr(cell.label, noun) for cell in cells))
        if len(names) < len({getattr(cell.label, noun) for cell in every}):
            clauses.append(_listed(names))
    sizes = sorted({cell.size for cell in cells})
    if len(sizes) < len({cell.size for cell in every}):
        clauses.append(f"size {_listed(sizes)}")
    if ended:
        clauses.append(_listed(list(ended)))
    return "; ".join(clauses)


def chosen_variant(outcomes: Sequence[Outcome], name: str = "", *, but: bytes = b"") -> bytes:
    """Return the key of the named variant, or of the study's first; `but` is not a candidate."""
    names = variant_labels(outcomes)
    names.pop(but, None)
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
    """Return a sort key: settings of methods first, then the model's, then the task's."""
    if _is_of_method(name):
        return f"method.{name}"
    return name


def _sorted(values: Iterable[Any]) -> list[Any]:
    """Sort numbers by size, then other values by their text, whatever the order of attempts."""

    def sort_key(value: Any) -> tuple[int, float, str]:
        if _is_number(value):
            return (0, value, "")
        return (1, 0, _shortened(value))

    return sorted(values, key=sort_key)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_one_of(name: str, settings: Collection[str]) -> bool:
    """Tell whether a dotted name is one of these, which may be shorter: `task.mode` is `mode`."""
    return any(name == short or name.endswith(f".{short}") for short in settings)


def _short_settings(names: Iterable[str]) -> dict[str, str]:
    """Return the last part of each name, if no other has the same."""
    last_parts = {name: name.rpartition(".")[2] for name in names}
    counts = Counter(last_parts.values())
    short_names = {}
    for name, last_part in last_parts.items():
        if counts[last_part] == 1 and last_part != "name":
            short_names[name] = last_part
        else:
            short_names[name] = name
    return short_names


def _listed(values: Sequence[Any]) -> str:
    if len(values) > MOST_SHOWN and all(map(_is_number, values)):
        return f"{min(values):g}–{max(values):g}"
    texts = [_shortened(value) for value in values[:MOST_SHOWN]]
    if len(values) > MOST_SHOWN:
        texts.append(f"{len(values) - MOST_SHOWN} more")
    return ", ".join(texts)


def _shortened(value: Any) -> str:
    if isinstance(value, Mapping | list | tuple):
        text = json.dumps(value, default=str)
    else:
        text = str(value)
    if len(text) > LONGEST_SHOWN:
        text = f"{text[: LONGEST_SHOWN - 1]}…"
    return text
