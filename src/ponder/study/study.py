"""Reads a study: a TOML file with the tasks, models and methods to ask, and the figures to draw.

A list is a sweep, except where a plugin's setting is itself a list; so are lists inside a model's
`body` and the like. An error names its place in the file and, for an unknown key or name, the
nearest known one.
"""

from __future__ import annotations

import dataclasses
import itertools
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self, TypeVar, get_args, get_type_hints

from ponder.core import (
    Figure,
    Label,
    Memory,
    Method,
    Model,
    Prepared,
    Task,
    TrainingProblems,
    UserError,
    WithWeights,
    error_at,
    plugins,
)
from ponder.core.capabilities import changes_weights, training_seed
from ponder.core.errors import Location
from ponder.core.secrets import check_texts
from ponder.core.settings import (
    Table,
    assign,
    base,
    build,
    check_name,
    convert,
    load,
    sweep,
    sweep_size,
    toml,
    variants,
)
from ponder.study.cell import Hosting, Quota, Resources, StudyCell
from ponder.study.labels import Chain, Component, Names, labels
from ponder.study.stop import EXAMPLE, StopRule

T = TypeVar("T", bound=Resources)
BUILT_IN = plugins.HERE / "studies"
DEFAULT_PROBLEMS = 20
MAX_CELLS = 100_000
MAX_COUNT = 10_000_000  # problems, or samples of each
TABLES = ("task", "model", "figure", "train")
TASK_KEYS = ("size", "remember", "window")  # that every [[task]] has, besides its settings

ELSEWHERE = {  # hints for keys that don't belong at the top of a study
    "method": 'write it in a [[model]]: method = [{ name = "vote", n = 8 }]',
    "track": "it is an option of a command: ponder report STUDY --track mlflow, or wandb",
}
MODEL_KEYS = ("method", "samples", "ray")  # that every [[model]] has, besides its settings
METHOD_KEYS = ("ray",)  # that every method has


class _SizedTask(NamedTuple):
    """A task at one size, as a [[task]] describes it."""

    task: Task
    size: int
    memory: Memory
    component: Component  # for its label

    def repeats(self, earlier: _SizedTask) -> bool:
        return self[:3] == earlier[:3]


class _ModelVariant(NamedTuple):
    """A model with a chain of methods, as a [[model]] describes it."""

    model: Model
    methods: tuple[Method, ...]
    chain: Chain  # for its label
    samples: int  # attempts per problem
    hosting: Hosting  # what it needs on a cluster
    making: tuple[Resources, ...]  # what each method needs there


@dataclass(frozen=True)
class StudySpec:
    """What a study asks: the content of a study file, and the cells that it describes.

    Everything below `results` takes this; `ponder.Study` is one that also runs itself and reads its
    results.
    """

    task: Sequence[Table]
    model: Sequence[Table]
    figure: Sequence[Table] = ()
    # what methods train on, as in [[task]]; by default other problems of the same tasks
    train: Sequence[Table] = ()
    title: str = ""  # title of the report
    question: str = ""  # the question that the study answers
    samples: int = 1  # attempts per problem, unless a [[model]] says otherwise
    problems: int | None = None  # problems per size; by default 20, or all of a fixed set
    seed: int = 0  # seed of the problems
    # cap on tokens, prompt tokens included: a call that might exceed it isn't made
    max_tokens: int | None = None
    max_cost: float | None = None  # cap on money, computed from the models' `prices`
    # what the caps limit: all runs of the study together, or each run
    cap_per: Literal["study", "run"] = "study"
    # ends the run when its question is answered: { margin = 0.03 }, { decide = true } or
    # { goal = "max_size", target = 0.8 }
    stop: Table | None = None
    name: str = "study"
    where: str = "study"
    # of its file; None: it was read from a store, so its plugins can't be files
    folder: Path | None = Path()

    @classmethod
    def load(cls, name: str, settings: Sequence[str] = (), models: Sequence[Table] = ()) -> Self:
        """Read a built-in study by its name, or a study file by its path.

        `models`, if given, replace its own.
        """
        name = str(name)  # in Python it may be a `Path`
        path = Path(name)
        if name in built_in():
            path = BUILT_IN / f"{name}.toml"
        if path.suffix != ".toml" or not path.is_file():
            raise _no_study(name, path)
        where = str(path)
        if path.parent == BUILT_IN:
            where = path.name
        try:
            content = tomllib.loads(path.read_text("utf-8-sig"))  # Windows editors put a mark first
        except (ValueError, RecursionError) as error:  # ValueError: also a number of 5,000 digits
            hint = (
                'text needs quotes: name = "tents"; '
                "`ponder show study effort` prints a study to compare with"
            )
            raise UserError(f"this is not TOML: {error}", where=where, hint=hint) from None
        if models:
            content["model"] = [dict(model) for model in models]
        for setting in settings:
            assign(content, setting)
        return cls.from_table(content, name=path.stem, where=where, folder=path.parent)

    @classmethod
    def from_table(
        cls,
        content: Table,
        *,
        name: str = "study",
        where: str = "study",
        folder: Path | None = None,
    ) -> Self:
        """Check the content of a study file and build the study. `where` names the file in errors.

        Without a folder it can't name files: it is read from a store, which may be somebody else's.
        """
        if folder is None:
            content = _from_store(content)
        keys = _top_level_keys()
        hints = get_type_hints(cls)
        for key, value in content.items():
            if key not in keys:
                elsewhere = ELSEWHERE.get(key) or place_of(key, content, folder)
                hint = elsewhere or plugins.nearest(key, keys)
                raise UserError(
                    f"a study has no key `{key}`", where=Location(where, key), hint=hint
                )
            if isinstance(value, Mapping) and key in TABLES:
                message = f"a study may have several {key} tables, so each is written [[{key}]]"
                raise UserError(
                    message, where=Location(where, key), hint=f"write [[{key}]] instead of [{key}]"
                )
            convert(value, hints[key], Location(where, key), Path())
        for key in ("task", "model"):
            if not content.get(key):
                message = f"a study needs at least one [[{key}]]"
                names = f"{key}s: {', '.join(plugins.names(f'{key}s'))}"
                hint = f'ponder list {key}s shows them; write [[{key}]] and below it name = "…"'
                raise UserError(message, where=where, hint=hint, in_python=names)
        # by name only, because figures are slow to import
        for i, table in enumerate(content.get("figure", ())):
            check_name("figures", table, Location(where, "figure", i))
            figure = table["name"]
            with error_at(Location(where, "figure", i, "name")):
                is_file = plugins.is_file(figure, base(figure, folder))
                if not is_file and figure not in plugins.names("figures"):
                    raise plugins.unknown("figures", figure)
        return cls(**content, name=name, where=where, folder=folder)

    def __post_init__(self) -> None:
        for key in ("title", "question"):
            with error_at(f"{self.where}: {key}"):
                check_texts(getattr(self, key))
        self._check_numbers()
        self.stop_rule  # noqa: B018 checks the key `stop`

    def _check_numbers(self) -> None:
        for key in ("samples", "problems", "max_tokens", "max_cost"):
            number = getattr(self, key)
            if number is not None and not number > 0:
                raise UserError(
                    f"{key} must be greater than 0, not {number}", where=Location(self.where, key)
                )
            if key in ("samples", "problems") and (number or 0) > MAX_COUNT:
                raise UserError(
                    f"{key} must be at most {MAX_COUNT:,}, not {number:,}",
                    where=Location(self.where, key),
                )

    @cached_property
    def stop_rule(self) -> StopRule | None:
        """Return the key `stop`, checked; None if the study has none."""
        if self.stop is None:
            return None
        location = Location(self.where, "stop")
        if "of" in self.stop:
            hint = f'stop = {{ decide = true, goal = "{self.stop["of"]}" }}'
            raise UserError("`of` is now called `goal`", where=location / "of", hint=hint)
        goals = get_type_hints(StopRule)["goal"]
        convert(
            self.stop.get("goal", ""), goals, location / "goal", self.folder
        )  # names the choices
        with error_at(location):
            rule: StopRule = convert(self.stop, StopRule, location, self.folder)
            return rule

    @property
    def chooses_sizes(self) -> bool:
        """Whether the run chooses the sizes: the goal of `stop` is `max_size`."""
        return self.stop_rule is not None and self.stop_rule.goal == "max_size"

    def check(self) -> None:
        """Raise `UserError` for whatever can be refused before anything is spent."""
        from ponder.study.check import check

        check(self)

    def warnings(self) -> list[str]:
        """Return a line about each setting that is allowed but looks like a mistake."""
        from ponder.study.check import warnings

        return warnings(self)

    def resolved(self) -> dict[str, Any]:
        """Return the study with defaults and `--set` applied, for the record."""
        content = {}
        for field in dataclasses.fields(self):
            if field.name not in ("where", "folder"):
                content[field.name] = getattr(self, field.name)
        return content

    @cached_property
    def cells(self) -> tuple[StudyCell, ...]:
        """Every cell of the study, model by model."""
        self._check_cell_count()
        tasks: list[_SizedTask] = []
        for task in self._tasks(self.task, "task"):
            if not any(task.repeats(earlier) for earlier in tasks):  # tables may overlap
                tasks.append(task)
        task_names = labels([(task.component,) for task in tasks])
        models = list(self._models())
        model_names = self._model_names([model.chain for model in models])
        cells = []
        for model, names in zip(models, model_names, strict=True):
            for task, task_name in zip(tasks, task_names, strict=True):
                with error_at(f"{self.where}: model `{names.full}`"):
                    model.model.check(task.task, task.size)
                cells.append(self._cell(task, task_name, model, names))
        return tuple(cells)

    def _cell(
        self, task: _SizedTask, task_name: Names, model: _ModelVariant, names: Names
    ) -> StudyCell:
        samples = model.samples
        if self.chooses_sizes:
            samples = 1
        return StudyCell(
            task=task.task,
            size=task.size,
            model=model.model,
            methods=model.methods,
            memory=task.memory,
            seed=self.seed,
            label=Label(task_name.full, names.base, names.full, names.variant, names.methods),
            quota=Quota(self._problems(task.task), samples, adaptive=self.stop is not None),
            hosting=model.hosting,
            making=model.making,
        )

    def _check_cell_count(self) -> None:
        """Raise `UserError` if the lists of values make too many cells, before any is built."""
        tasks = 0
        for i, table in enumerate(self.task):
            location = Location(self.where, "task", i)
            combinations = sweep_size("tasks", _without(table, TASK_KEYS), location, self.folder)
            for key in TASK_KEYS:
                if isinstance(table.get(key), list):
                    combinations *= len(table[key])
            tasks += combinations
        models = 0
        for i, table in enumerate(self.model):
            location = Location(self.where, "model", i)
            chains = 0
            for chain in _chains(table):
                combinations = 1
                for j, method in enumerate(chain):
                    method_location = location / "method" / j
                    settings = _without(method, METHOD_KEYS)
                    combinations *= sweep_size("methods", settings, method_location, self.folder)
                chains += combinations
            settings = _without(table, MODEL_KEYS)
            models += sweep_size("models", settings, location, self.folder) * chains
        if tasks * models > MAX_CELLS:
            product = f"{tasks:,} tasks and sizes × {models:,} models and methods"
            raise UserError(
                f"it has {tasks * models:,} cells: {product}",
                where=self.where,
                hint=f"at most {MAX_CELLS:,}: list fewer values, or split the study",
            )

    def _model_names(self, chains: Sequence[Chain]) -> list[Names]:
        """Return the names of models; raise `UserError` if two are the same."""
        names = labels(chains)
        full_names = set[str]()
        for name in names:
            if name.full in full_names:
                message = f"two models are both called `{name.full}`"
                hint = "give each [[model]] a `label`"
                raise UserError(message, where=Location(self.where, "model"), hint=hint)
            full_names.add(name.full)
        return names

    @cached_property
    def figures(self) -> tuple[Figure, ...]:
        """The figures to draw."""
        figures: list[Figure] = []
        for i, table in enumerate(self.figure):
            location = Location(self.where, "figure", i)
            for variant, _ in sweep("figures", table, location, self.folder):
                figures.append(build("figures", variant, location, self.folder))
        return tuple(figures)

    def _tasks(self, tables: Sequence[Table], key: str) -> Iterator[_SizedTask]:
        """Yield each task at each size, of [[task]] or [[train]] tables."""
        for i, table in enumerate(tables):
            location = Location(self.where, key, i)
            if "search" in table:
                message = "a search is now the goal `max_size` of the study's `stop`"
                hint = f"remove it with `target` and `largest`, and write at the top: {EXAMPLE}"
                raise UserError(message, where=location / "search", hint=hint)
            memories = list(self._memories(table, location))
            settings = _without(table, TASK_KEYS)
            for variant, swept in sweep("tasks", settings, location, self.folder):
                task: Task = build("tasks", variant, location, self.folder, TASK_KEYS, self.place)
                sizes = self._sizes(task, table, location, key)
                written = {**table, **variant}
                for memory, swept_memory in memories:
                    names = (*swept, *swept_memory)
                    component = Component(task.title(), task, written, names, asdict(memory))
                    for size in sizes:
                        yield _SizedTask(task, size, memory, component)

    def _sizes(self, task: Task, table: Table, location: Location, key: str) -> list[int]:
        """Return the sizes of a [[task]], or every size that a run which chooses them may ask."""
        chosen_by_run = key == "task" and self.chooses_sizes
        if chosen_by_run and "size" in table:
            raise UserError(
                "with the goal `max_size`, the run chooses the sizes",
                where=location / "size",
                hint="remove `size`, or `stop`",
            )
        if chosen_by_run and self.stop_rule:
            sizes = list(self.stop_rule.search().sizes)
            self._check_chosen_sizes(task, sizes, location)
            return sizes
        values = table.get("size", task.sizes())
        if not isinstance(values, list | tuple):
            values = [values]
        sizes = []
        for value in values:
            size = convert(value, int, location / "size", self.folder)
            if size not in sizes:
                sizes.append(size)
        if not sizes:
            hint = "name a size, or remove `size` to use the task's own"
            raise UserError(
                "there is no size, so nothing to ask", where=location / "size", hint=hint
            )
        for size in sizes:
            with error_at(location / "size"):
                task.check_size(size)
        return sizes

    def _check_chosen_sizes(self, task: Task, sizes: Sequence[int], location: Location) -> None:
        for size in sizes:
            try:
                task.check_size(size)
            except UserError as error:
                raise UserError(
                    f"the goal `max_size` can't ask for size {size}: {error.what}",
                    where=location,
                    hint="name sizes and another goal, or set `largest` in `stop`",
                ) from None

    def _memories(self, table: Table, location: Location) -> Iterator[tuple[Memory, Table]]:
        """Yield what a conversation shows of earlier turns, with the settings that are swept."""
        hints = get_type_hints(Memory)
        settings = {key: table[key] for key in ("remember", "window") if key in table}
        for variant, swept in variants(settings, location, hints):
            values = {}
            for key, value in variant.items():
                values[key] = convert(value, hints[key], location / key, self.folder)
            with error_at(location / "window"):
                yield Memory(**values), swept

    def _models(self) -> Iterator[_ModelVariant]:
        """Yield each model with each chain of methods."""
        for i, table in enumerate(self.model):
            location = Location(self.where, "model", i)
            samples = self._samples(table, location)
            hosting = self._ray(table, Hosting, location)
            settings = _without(table, MODEL_KEYS)
            for variant, swept in sweep("models", settings, location, self.folder):
                model: Model = build(
                    "models", variant, location, self.folder, MODEL_KEYS, self.place
                )
                title = model.label or model.title()
                base = Component(title, model, variant, tuple(swept))
                for chain in _chains(table):
                    making = []
                    for j, method_table in enumerate(chain):
                        making.append(self._ray(method_table, Resources, location / "method" / j))
                    for swept_chain in self._swept_chains(chain, location):
                        tables = [method_table for method_table, _ in swept_chain]
                        methods = self._methods(tables, model, variant, location)
                        components = [base]
                        for method, (written, names) in zip(methods, swept_chain, strict=True):
                            component = Component(
                                method.title(),
                                method,
                                written,
                                tuple(names),
                                trains=training_seed(method) is not None,
                            )
                            components.append(component)
                        yield _ModelVariant(
                            model, methods, tuple(components), samples, hosting, tuple(making)
                        )

    def _ray(self, table: Table, kind: type[T], location: Location) -> T:
        """Return what a model or a method needs on a cluster."""
        with error_at(location / "ray"):
            needs: T = convert(table.get("ray", {}), kind, location / "ray", self.folder)
            return needs

    def _samples(self, table: Table, location: Location) -> int:
        """Return the attempts per problem of a model: its own number, or the study's."""
        samples: int = convert(
            table.get("samples", self.samples), int, location / "samples", self.folder
        )
        if not 0 < samples <= MAX_COUNT:
            raise UserError(
                f"samples must be from 1 to {MAX_COUNT:,}, not {samples}",
                where=location / "samples",
            )
        return samples

    def _swept_chains(
        self, chain: Sequence[Table], location: Location
    ) -> Iterator[tuple[tuple[Table, Table], ...]]:
        """Yield each variant of a chain: per method its table, and the settings that are swept."""
        variants_of_each = []
        for j, method in enumerate(chain):
            settings = _without(method, METHOD_KEYS)
            variants_of_each.append(
                sweep("methods", settings, location / "method" / j, self.folder)
            )
        yield from itertools.product(*variants_of_each)

    def _methods(
        self, tables: Sequence[Table], model: Model, model_table: Table, location: Location
    ) -> tuple[Method, ...]:
        """Build a chain of methods, each with the problems that it may train on."""
        methods: list[Method] = []
        for j, table in enumerate(tables):
            method_location = location / "method" / j
            method: Method = build(
                "methods",
                self._with_models(table, model_table, method_location),
                method_location,
                self.folder,
                METHOD_KEYS,
                self.place,
            )
            train_on = self.training_problems
            ships = isinstance(model, WithWeights) and model.ships()
            if not ships or any(changes_weights(earlier) for earlier in methods):
                # what a policy has learned for these weights depends on who trained it
                train_on = tuple(
                    dataclasses.replace(problems, in_key=True) for problems in train_on
                )
            if isinstance(method, Prepared):
                method = method.with_training(train_on)
            methods.append(method)
        return tuple(methods)

    def _with_models(self, table: Table, model_table: Table, location: Location) -> Table:
        """Return a method's table in which a model without a name is its [[model]], changed.

        So `to = { effort = "high" }` needn't repeat the id, the url and the key.
        """
        hints = get_type_hints(load("methods", table["name"], location, self.folder))
        completed = dict(table)
        for key, value in table.items():
            hint = hints.get(key)
            if Model not in (hint, *get_args(hint)):
                continue
            if isinstance(value, Mapping) and value and "name" not in value:
                changes = [f"{name}={_plain_text(setting)}" for name, setting in value.items()]
                label = {"label": " ".join(changes)}
                completed[key] = {**model_table, **label, **value}
        return completed

    @cached_property
    def training_problems(self) -> tuple[TrainingProblems, ...]:
        """What methods may train on: problems that the study doesn't ask."""
        tests = list(self._tasks(self.task, "task"))
        trained_on = tests
        if self.train:
            trained_on = list(self._tasks(self.train, "train"))
        sets: list[TrainingProblems] = []
        for task, size, _, _ in trained_on:
            reserved: int | None = 0  # problems that the study asks; None: all
            for test in tests:
                if (test.task, test.size) == (task, size):
                    reserved = self._problems(test.task)
                    break
            if not self.train and task.fixed() is not None:
                reserved = None  # training on a benchmark needs an explicit [[train]]
            training = TrainingProblems(task, size, self.seed, reserved, bool(self.train))
            if training not in sets:
                sets.append(training)
        return tuple(sets)

    def place(self, key: str) -> str:
        """Return a hint that says where in a study a key belongs; "" if nowhere."""
        return place_of(key, self.resolved(), self.folder)

    def _problems(self, task: Task) -> int | None:
        """Return how many problems of a size the study asks at most; None: all of a fixed set."""
        if self.chooses_sizes and self.stop_rule:
            return self.stop_rule.search().most
        if self.problems or task.fixed() is not None:
            return self.problems
        return DEFAULT_PROBLEMS


def _from_store(content: Table) -> Table:
    """Return the content of a stored study with the keys that this version of Ponder has.

    A search used to stand in its [[task]], and the goal of `stop` was called `of`.
    """
    content = dict(content)
    tasks = content.get("task")
    if not isinstance(tasks, list | tuple):
        return content
    searches = []
    for table in tasks:
        if isinstance(table, Mapping) and table.get("search") == "max":
            searches.append(table)
    if searches and len(searches) == len(tasks):
        rule = {"goal": "max_size"}
        for key in ("target", "largest"):
            if key in searches[0]:
                rule[key] = searches[0][key]
        content["stop"] = rule
        content["task"] = [_without(table, ("search", "target", "largest")) for table in searches]
    stop = content.get("stop")
    if isinstance(stop, Mapping) and "of" in stop:
        rule = dict(stop)
        rule["goal"] = rule.pop("of")
        content["stop"] = rule
    return content


def _top_level_keys() -> set[str]:
    """Return the keys that a study file may have at its top, tables included."""
    names = {field.name for field in dataclasses.fields(StudySpec)}
    return names - {"name", "where", "folder"}


def place_of(key: str, content: Table, folder: Path | None) -> str:
    """Return a hint that says where in a study a key belongs; "" if nowhere."""
    if key in _top_level_keys() - set(TABLES):
        return f"`{key}` belongs at the top of the study, above the first [[…]]"
    for noun, kind, common_keys in (
        ("task", "tasks", TASK_KEYS),
        ("model", "models", MODEL_KEYS),
        ("figure", "figures", ()),
    ):
        tables = content.get(noun)
        if not isinstance(tables, list | tuple):
            continue
        for table in tables:
            if _has_key(key, table, kind, common_keys, folder):
                return f"`{key}` belongs in the [[{noun}]] `{table['name']}`"
            if noun != "model" or not isinstance(table, Mapping):
                continue
            for method in itertools.chain.from_iterable(_chains(table)):
                if _has_key(key, method, "methods", (), folder):
                    example = f'{{ name = "{method["name"]}", {key} = … }}'
                    return f"`{key}` belongs in the method: {example}"
    return ""


def _has_key(key: str, table: Any, kind: str, common: Sequence[str], folder: Path | None) -> bool:
    """Return whether a plugin, named by its table, has a setting of this name."""
    if not isinstance(table, Mapping) or not isinstance(table.get("name"), str):
        return False
    try:
        fields = dataclasses.fields(plugins.load(kind, table["name"], folder))
    except UserError:  # reported when the table is built
        return False
    return key in common or any(f.name == key and f.init for f in fields)


def _chains(table: Table) -> Sequence[Sequence[Table]]:
    """Return the chains of methods in a model's table, which may hold one or a list of them."""
    methods = table.get("method", [])
    if not isinstance(methods, list | tuple):
        return [[methods]]
    if methods and all(isinstance(chain, list | tuple) for chain in methods):
        return methods
    return [methods]


def _plain_text(value: Any) -> str:
    """Return a setting's value as a label writes it."""
    return value if isinstance(value, str) else toml(value)


def _without(table: Any, keys: Sequence[str]) -> Any:
    """Return a table without these keys; anything else as it is, to be refused later."""
    if not isinstance(table, Mapping):
        return table
    return {key: value for key, value in table.items() if key not in keys}


def _no_study(name: str, path: Path) -> UserError:
    """Return the error for a study that isn't there, with what the user may have meant."""
    list_command = "ponder list studies shows the built-in ones"
    list_in_python = f"built-in studies: {', '.join(built_in())}"
    if path.is_dir():
        files = _toml_files(path)
        hint = ""
        if files:
            hint = f"it holds {', '.join(files[:5])}"
        return UserError(
            f"{name} is a folder, not a study",
            hint=hint or list_command,
            in_python=hint or list_in_python,
        )
    if path.suffix == ".toml":
        files = _toml_files(path.parent)
        hint = ""
        if files:
            hint = plugins.nearest(name, files)
        return UserError(
            f"there is no file {name}", hint=hint or list_command, in_python=hint or list_in_python
        )
    if path.is_file():
        message = f"{name} is not a study: its name must end in .toml"
        return UserError(message, hint=f"mv {name} {path.stem}.toml")
    hint = f"{plugins.nearest(name, built_in())} (or give a path that ends in .toml)"
    if path.with_name(f"{path.name}.toml").is_file():
        hint = f"did you mean `{name}.toml`?"
    return UserError(f"there is no study `{name}`", hint=hint)


def _toml_files(folder: Path) -> list[str]:
    if not folder.is_dir():
        return []
    return sorted(str(file) for file in folder.glob("*.toml"))


def built_in() -> dict[str, str]:
    """Return the titles of the built-in studies by their names."""
    titles = {}
    for path in sorted(BUILT_IN.glob("*.toml")):
        titles[path.stem] = tomllib.loads(path.read_text("utf-8"))["title"]
    return titles
