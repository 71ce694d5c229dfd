"""A study: tasks × models × methods, and the figures to draw from them; read from TOML and checked key by key.

A list is a sweep, except where a plugin's setting is itself a list. Every mistake is named with its place in the file
and the nearest thing that would have been right.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args, get_origin, get_type_hints

import msgspec

from ponder import plugins
from ponder.core import (
    Figure,
    Memory,
    Method,
    Model,
    Plugin,
    Practice,
    Problem,
    Report,
    Task,
    UserError,
    Variable,
    digest,
    seed_from,
)

if TYPE_CHECKING:
    from ponder.stats.longest import Search

Table: TypeAlias = Mapping[str, Any]
BUILT_IN = Path(__file__).parent / "studies"
DEFAULT_PROBLEMS = 20
TASK_KEYS = ("size", "remember", "window", "search", "target", "largest")  # of every [[task]], beside its own settings


@dataclass(frozen=True)
class Cell:
    """What one model, under its methods, is asked of one task at one size."""

    task: Task
    task_label: str
    size: int
    model: Model
    methods: tuple[Method, ...]
    model_label: str
    problems: int | None  # None: all that the task has
    samples: int
    seed: int
    memory: Memory
    search: Search | None = None  # finds the sizes to ask; this one is only asked if it says so

    @cached_property
    def source(self) -> bytes:
        """Names the problems: cells of one source share them."""
        return digest(self.task.identity(), self.task.version, self.size, self.seed)

    @cached_property
    def key(self) -> bytes:
        """Names the attempts, together with a problem's position and a sample's index."""
        memory = [asdict(self.memory)] if self.memory != Memory() else []
        return digest(self.source.hex(), self.model.identity(), [m.identity() for m in self.methods], *memory)

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The methods' settings by name, defaults too, for figures that draw against one of them."""
        return {
            f.name: _plain(getattr(m, f.name))
            for m in self.methods
            for f in dataclasses.fields(m)  # type: ignore[arg-type]
            if not f.metadata.get("plumbing")
        }

    def spec(self) -> dict[str, Any]:
        """The cell in words, as the store keeps it."""
        task = {**self.task.identity(), "version": self.task.version, "size": self.size, "seed": self.seed}
        methods = [m.identity() for m in self.methods]
        return {"task": task, "model": self.model.identity(), "methods": methods, "memory": asdict(self.memory)}

    def asked(self) -> Iterator[Problem]:
        return itertools.islice(self.task.problems(self.size, self.seed), self.problems)

    def attempt_seed(self, problem: Problem, sample: int, turn: int) -> int:
        return seed_from(self.key.hex(), problem.id, sample, turn)

    def method_model(self, tell: Callable[[Report], object] = bool) -> Model:
        """The model with its methods applied, in the order in which the study names them; made first if they train."""
        model = self.model
        for method in self.methods:
            for report in method.make(model):
                tell(report)
            model = method.apply(model)
        return model


@dataclass(frozen=True)
class Study:
    """A study file's content. Tables keep the shape they have in TOML, so that Python and TOML say the same."""

    task: Sequence[Table]
    model: Sequence[Table]
    figure: Sequence[Table] = ()
    train: Sequence[Table] = ()  # what methods train on, as in [[task]]; if not given, other problems of the same tasks
    title: str = ""  # of the report
    question: str = ""  # that the study answers
    samples: int = 1  # attempts at each problem
    problems: int | None = None  # of each size; if not given 20, or all that a fixed set has
    seed: int = 0  # of the problems
    max_tokens: int | None = None  # a run stops before it spends more, prompt tokens included
    max_cost: float | None = None  # the same in money, by the models' `prices`
    name: str = "study"
    where: str = "study"
    folder: Path = Path()

    @classmethod
    def load(cls, name: str, settings: Sequence[str] = ()) -> Study:
        """Read a built-in study by its name, or a study file by its path."""
        path = BUILT_IN / f"{name}.toml" if name in built_in() else Path(name)
        if path.suffix != ".toml" or not path.is_file():
            raise UserError(
                f"there is no study `{name}`",
                hint=plugins.nearest(name, built_in()) + " (or give a path ending in .toml)",
            )
        where = path.name if path.parent == BUILT_IN else str(path)
        try:
            content = tomllib.loads(path.read_text("utf-8"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise UserError(
                f"this is not TOML: {error}", where=where, hint="see docs/study.md for an example"
            ) from None
        for setting in settings:
            assign(content, setting)
        return cls.from_table(content, name=path.stem, where=where, folder=path.parent)

    @classmethod
    def from_table(
        cls, content: Table, *, name: str = "study", where: str = "study", folder: Path | None = None
    ) -> Study:
        known = {f.name for f in dataclasses.fields(cls)} - {"name", "where", "folder"}
        hints = get_type_hints(cls)
        for key, value in content.items():
            if key not in known:
                raise UserError(
                    f"a study has no key `{key}`", where=f"{where}: {key}", hint=plugins.nearest(key, known)
                )
            convert(value, hints[key], f"{where}: {key}", Path())
        for key in ("task", "model"):
            if not content.get(key):
                raise UserError(f"a study needs at least one [[{key}]]", where=where, hint=f"ponder list {key}s")
        for i, table in enumerate(content.get("figure", ())):  # by name only: drawing is slow to load
            figure = str(table.get("name"))
            with placed(f"{where}: figure[{i}].name"):
                if not figure.endswith(".py") and figure not in plugins.names("figures"):
                    raise plugins.unknown("figures", figure)
        study = cls(**content, name=name, where=where, folder=folder or Path())
        for key in ("samples", "problems", "max_tokens", "max_cost"):
            if (number := getattr(study, key)) is not None and number <= 0:
                raise UserError(f"{key} must be at least 1, not {number}", where=f"{where}: {key}")
        return study

    def resolved(self) -> dict[str, Any]:
        """The study as it is after defaults and `--set`, for the record."""
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name not in ("where", "folder")}

    @cached_property
    def cells(self) -> tuple[Cell, ...]:
        """Everything to run, one model after the other."""
        tasks = list(self._tasks(self.task, "task"))
        cells = []
        labels = set[str]()
        for model, methods, label in self._models():
            if label in labels:
                raise UserError(
                    f"two models would share the name `{label}`",
                    where=f"{self.where}: model",
                    hint="give each [[model]] a `label`",
                )
            labels.add(label)
            for task, size, memory, task_label, search in tasks:
                with placed(f"{self.where}: model `{label}`"):
                    model.check(task, size)
                problems = search.most if search else self._problems(task)
                counts = (problems, self.samples, self.seed)
                cells.append(Cell(task, task_label, size, model, methods, label, *counts, memory, search))
        return tuple(cells)

    @cached_property
    def figures(self) -> tuple[Figure, ...]:
        """The figures that the study asks for."""
        return tuple(
            build("figures", variant, f"{self.where}: figure[{i}]", self.folder)
            for i, table in enumerate(self.figure)
            for variant, _ in self._sweep("figures", table, f"{self.where}: figure[{i}]")
        )

    def _tasks(self, tables: Sequence[Table], key: str) -> Iterator[tuple[Task, int, Memory, str, Search | None]]:
        for i, table in enumerate(tables):
            where = f"{self.where}: {key}[{i}]"
            settings = {k: v for k, v in table.items() if k not in TASK_KEYS}
            memories = list(self._memories({k: v for k, v in table.items() if k in ("remember", "window")}, where))
            for variant, swept in self._sweep("tasks", settings, where):
                task: Task = build("tasks", variant, where, self.folder)
                search = self._search(table, where)
                sizes = self._sizes(task, table, where, search)
                for (memory, remembered), size in itertools.product(memories, sizes):
                    yield task, size, memory, _label(task.plugin_name(), {**swept, **remembered}), search

    def _search(self, table: Table, where: str) -> Search | None:
        """How to look for the longest size, where the table asks for that instead of naming sizes."""
        if "search" not in table:
            return None
        from ponder.stats.longest import Search  # numpy, which nothing else here needs

        convert(table["search"], Literal["max"], f"{where}.search", self.folder)
        if "size" in table:
            raise UserError("a search finds its own sizes", where=f"{where}.size", hint="leave out size, or search")
        target = convert(table.get("target", 0.8), float, f"{where}.target", self.folder)
        largest = convert(table.get("largest", 4096), int, f"{where}.largest", self.folder)
        with placed(where):
            return Search(target=target, high=largest)

    def _sizes(self, task: Task, table: Table, where: str, search: Search | None) -> list[int]:
        asked = search.sizes if search else table.get("size", task.sizes())
        sizes = list(dict.fromkeys(asked if isinstance(asked, list | tuple) else [asked]))
        for size in sizes:
            with placed(f"{where}.size"):
                task.check_size(convert(size, int, f"{where}.size", self.folder))
        return sizes

    def _memories(self, table: Table, where: str) -> Iterator[tuple[Memory, Table]]:
        hints = get_type_hints(Memory)
        for variant, swept in _variants(table, []):
            settings = {k: convert(v, hints[k], f"{where}.{k}", self.folder) for k, v in variant.items()}
            with placed(f"{where}.window"):
                yield Memory(**settings), swept

    def _models(self) -> Iterator[tuple[Model, tuple[Method, ...], str]]:
        for i, table in enumerate(self.model):
            where = f"{self.where}: model[{i}]"
            settings = {k: v for k, v in table.items() if k != "method"}
            chains = [links for chain in _chains(table) for links in self._links(chain, where)]
            for variant, swept in self._sweep("models", settings, where):
                model: Model = build("models", variant, where, self.folder)
                for links in chains:
                    methods = tuple(self._method(m, f"{where}.method[{j}]") for j, (m, _) in enumerate(links))
                    label = _label(model.label or model.title(), swept)
                    for method, (_, swept_method) in zip(methods, links, strict=True):
                        label += " + " + _label(method.title(), swept_method)
                    yield model, methods, label

    def _links(self, chain: Sequence[Table], where: str) -> Iterator[tuple[tuple[Table, Table], ...]]:
        """Each variant of a chain of methods."""
        yield from itertools.product(
            *(self._sweep("methods", method, f"{where}.method[{j}]") for j, method in enumerate(chain))
        )

    def _method(self, table: Table, where: str) -> Method:
        method: Method = build("methods", table, where, self.folder)
        return dataclasses.replace(method, on=self.practice) if hasattr(method, "on") else method  # type: ignore[type-var]

    @cached_property
    def practice(self) -> tuple[Practice, ...]:
        """What methods may train on."""
        asked = [
            (task, size, search.most if search else self._problems(task))
            for task, size, _, _, search in self._tasks(self.task, "task")
        ]
        found: list[Practice] = []
        for task, size, _, _, _ in self._tasks(self.train or self.task, "train" if self.train else "task"):
            number = next((n for t, s, n in asked if (t, s) == (task, size)), 0)
            if not self.train and task.fixed() is not None:
                number = None  # whoever trains on a benchmark must say so
            practice = Practice(task, size, self.seed, number)
            found += [practice] if practice not in found else []
        return tuple(found)

    def _problems(self, task: Task) -> int | None:
        return self.problems or (DEFAULT_PROBLEMS if task.fixed() is None else None)

    def _sweep(self, kind: str, table: Table, where: str) -> Iterator[tuple[Table, Table]]:
        """Each variant of a table whose lists are sweeps, with the keys that were swept."""
        if not isinstance(table, Mapping):
            raise UserError(
                f"expected a table, got {table!r}", where=where, hint=f'{{ name = "…" }}: ponder list {kind}'
            )
        if not isinstance(table.get("name"), str):
            raise UserError(f"a {kind[:-1]} needs a name", where=where, hint=f"ponder list {kind}")
        hints = get_type_hints(_load(kind, table["name"], where, self.folder))
        yield from _variants(table, [k for k, hint in hints.items() if _takes_list(hint)])


def _chains(table: Table) -> Sequence[Sequence[Table]]:
    """The methods that a model is put under, one after the other; or several such chains, a list each."""
    given = table.get("method", [])
    given = given if isinstance(given, list | tuple) else [given]
    return given if given and all(isinstance(chain, list | tuple) for chain in given) else [given]


def _variants(table: Table, lists: Sequence[str]) -> Iterator[tuple[Table, Table]]:
    """Each choice of one value from every list that is a sweep and no value itself, and what was chosen."""
    swept = [k for k, v in table.items() if isinstance(v, list) and k not in lists]
    for values in itertools.product(*(table[k] for k in swept)):
        chosen = dict(zip(swept, values, strict=True))
        yield {**table, **chosen}, {k: v for k, v in chosen.items() if len(table[k]) > 1}


def build(kind: str, table: Table, where: str, folder: Path) -> Any:
    """A plugin with its settings from a table."""
    name = table["name"]
    plugin = _load(kind, name, where, folder)
    hints = get_type_hints(plugin)
    known = {f.name: f for f in dataclasses.fields(plugin) if f.init}
    settings = {}
    for key, value in table.items():
        if key == "name":
            continue
        if key not in known:
            more = {"tasks": TASK_KEYS, "models": ("method",)}.get(kind, ())
            what = f"{kind[:-1]} `{name}` has no key `{key}`"
            raise UserError(what, where=f"{where}.{key}", hint=plugins.nearest(key, [*known, *more]))
        settings[key] = convert(value, hints[key], f"{where}.{key}", folder)
    for key, setting in known.items():
        if key not in settings and setting.default is setting.default_factory is dataclasses.MISSING:
            raise UserError(f"{kind[:-1]} `{name}` needs the key `{key}`", where=where, hint=f"ponder show {name}")
    with placed(where):
        return plugin(**settings)


def _load(kind: str, name: str, where: str, folder: Path) -> type[Any]:
    with placed(f"{where}.name"):
        return plugins.load(kind, name, folder)


@contextmanager
def placed(where: str) -> Iterator[None]:
    """Errors from within say where in the study they arose."""
    try:
        yield
    except UserError as error:
        raise UserError(error.what, where=error.where or where, hint=error.hint) from error


def built_in() -> dict[str, str]:
    """The built-in studies with their titles."""
    return {p.stem: tomllib.loads(p.read_text("utf-8"))["title"] for p in sorted(BUILT_IN.glob("*.toml"))}


def convert(value: Any, kind: Any, where: str, folder: Path) -> Any:
    """A TOML value as the type that a setting declares; paths are relative to the study's folder."""

    def special(wanted: type, given: Any) -> Any:
        if wanted is Path:
            return folder / given
        if wanted is Variable:
            return Variable(given)
        raise TypeError(f"no setting can be a {wanted.__name__}")

    for of, contract in plugins.CONTRACTS.items():  # a plugin within a plugin, such as the other model of a merge
        if contract in (kind, *get_args(kind)):
            if isinstance(value, list | tuple):
                return tuple(convert(v, contract, f"{where}[{n}]", folder) for n, v in enumerate(value))
            return _inner(of, value, where, folder)
    try:
        with placed(where):
            return msgspec.convert(value, kind, dec_hook=special)
    except msgspec.ValidationError as error:
        choices = [c for c in get_args(kind) if isinstance(c, str)]
        hint = plugins.nearest(str(value), choices) if choices else ""
        raise UserError(f"{error}".replace(" - at `$`", ""), where=where, hint=hint) from None


def _inner(kind: str, value: Any, where: str, folder: Path) -> Any:
    table = {"name": value} if isinstance(value, str) else value
    if not isinstance(table, Mapping) or not isinstance(table.get("name"), str):
        raise UserError(f"a {kind[:-1]} needs a name", where=where, hint=f"ponder list {kind}")
    return build(kind, table, where, folder)


def assign(content: dict[str, Any], setting: str) -> None:
    """Carry out one `--set key=value`, such as `model.id=qwq`, `model[1].budget=4096` or `task.size=[16, 25]`."""
    path, equals, text = setting.partition("=")
    if not equals or not re.fullmatch(r"\w+(\[\d+\])?(\.\w+)?", path.strip()):
        raise UserError(f"`{setting}` sets nothing", where="--set", hint="--set model.id=qwq, or --set problems=5")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text  # a bare word needs no quotes on a command line
    table, _, key = path.strip().partition(".")
    if not key:
        content[table] = value
        return
    table, _, index = table.rstrip("]").partition("[")
    rows = content.get(table)
    if not isinstance(rows, list):
        raise UserError(f"the study has no [[{table}]]", where=f"--set {path}", hint=plugins.nearest(table, content))
    if index and int(index) >= len(rows):
        raise UserError(f"the study has {len(rows)} [[{table}]], counted from 0", where=f"--set {path}")
    for row in [rows[int(index)]] if index else rows:
        row[key] = value


def _takes_list(hint: Any) -> bool:
    return any(get_origin(h) in (list, tuple) for h in (hint, *get_args(hint)))


def _label(name: str, swept: Table) -> str:
    # A plugin's table is known by what it says: { name = "pocket", size = "small" } as `pocket small`.
    said = {k: " ".join(map(str, v.values())) if isinstance(v, Mapping) else v for k, v in swept.items()}
    return name + "".join(f" {k}={v}" for k, v in said.items())


def _plain(value: Any) -> Any:
    return getattr(value, "title", value.plugin_name)() if isinstance(value, Plugin) else value
