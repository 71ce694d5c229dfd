"""The cell: one model with its methods on one task at one size. A study is a list of cells.

A cell is identity only. It travels from the study file to the dot on the page: an attempt has its
cell, a row of a figure's table has the cells that it was computed from, and a page links by them.
The store finds a cell's attempts by its key. Whatever is in the key makes another cell when it
changes, with attempts of its own; whatever is not in the key can change, and the stored attempts
still count.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any, NamedTuple, get_args

from ponder.core.capabilities import Prepared, judge_of_task, training_seed
from ponder.core.contracts import Method, Model, Plugin, Task
from ponder.core.keys import digest, seed_from
from ponder.core.nouns import Bill, Ended, Memory, Problem, TurnLimit, cost_of

ENDINGS: tuple[Ended, ...] = get_args(Ended)
# The endings that estimates count.
ANSWERED: tuple[Ended, ...] = ("right", "wrong", "unparsed", "truncated")
DEFAULT_MEMORY = Memory()
# The setting that `Prepared.training_seed` returns.
SEED = "seed"


class MethodUse(NamedTuple):
    """One method of a cell's chain, with every setting, defaults included."""

    name: str
    settings: Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class Cell:
    """One combination of task, size, model and methods.

    Two cells are equal if they have the same attempts.
    """

    task: Task
    size: int
    model: Model
    methods: tuple[Method, ...] = ()
    memory: Memory = DEFAULT_MEMORY
    seed: int = 0  # of the problems

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Cell) and self.key == other.key)

    def __hash__(self) -> int:
        return hash(self.key)

    @cached_property
    def source(self) -> bytes:
        """Key of the problems: cells with the same source ask the same problems."""
        return digest(self.task.identity(), self.task.version, self.size, self.seed)

    @cached_property
    def key(self) -> bytes:
        """Key of the cell.

        With a problem's position and a sample's index it identifies an attempt.
        """
        return digest(
            self.source.hex(),
            self.model.identity(),
            self._method_identities,
            *self._memory_identity,
        )

    @cached_property
    def task_key(self) -> bytes:
        """Key of the task and of the memory between turns, whatever the size."""
        return digest(self.task.identity(), self.task.version, *self._memory_identity)

    @cached_property
    def base_key(self) -> bytes:
        """Key of the model without its methods."""
        return digest(self.model.identity())

    @cached_property
    def model_key(self) -> bytes:
        """Key of the model with its methods."""
        return digest(self.model.identity(), self._method_identities)

    @cached_property
    def variant_key(self) -> bytes:
        """Key of the model with its methods, equal for all training seeds of one recipe."""
        seedless = []
        for method in self.methods:
            identity = method.identity()
            if training_seed(method) is not None:
                identity.pop(SEED, None)
            seedless.append(identity)
        return digest(self.model.identity(), seedless)

    @property
    def _method_identities(self) -> list[dict[str, Any]]:
        return [method.identity() for method in self.methods]

    @property
    def _memory_identity(self) -> list[dict[str, Any]]:
        if self.memory == DEFAULT_MEMORY:  # left out of the key, as every default is
            return []
        return [asdict(self.memory)]

    def spec(self) -> dict[str, Any]:
        """Return what the key is computed from, as JSON."""
        task = {
            **self.task.identity(),
            "version": self.task.version,
            "size": self.size,
            "seed": self.seed,
        }
        return {
            "task": task,
            "model": self.model.identity(),
            "methods": self._method_identities,
            "memory": asdict(self.memory),
        }

    @cached_property
    def settings(self) -> Mapping[str, Any]:
        """Every setting in the key, defaults included, by its dotted name.

        Names are `task.mode`, `model.temperature`, `vote.n`; the second `vote` of a chain is
        `vote[1].n`.
        """
        table = {f"task.{name}": value for name, value in self.task_settings.items()}
        table |= {f"model.{name}": value for name, value in self.model_settings.items()}
        for owner, use in self.owners.items():
            table |= {f"{owner}.{name}": value for name, value in use.settings.items()}
        return MappingProxyType(table)

    @cached_property
    def owners(self) -> Mapping[str, MethodUse]:
        """The methods in the order of their application, by the prefix of their dotted names."""
        uses: dict[str, MethodUse] = {}
        earlier: Counter[str] = Counter()
        for use in self.chain:
            prefix = use.name
            if earlier[use.name]:
                prefix = f"{use.name}[{earlier[use.name]}]"
            uses[prefix] = use
            earlier[use.name] += 1
        return MappingProxyType(uses)

    @cached_property
    def chain(self) -> tuple[MethodUse, ...]:
        """The methods in the order of their application."""
        return tuple(
            MethodUse(method.plugin_name(), _method_settings(method)) for method in self.methods
        )

    @cached_property
    def task_settings(self) -> Mapping[str, Any]:
        """The task's name and its settings, with `remember` and `window`, as JSON."""
        return MappingProxyType(_plugin_settings(self.task) | asdict(self.memory))

    @cached_property
    def model_settings(self) -> Mapping[str, Any]:
        """The name of the model's plugin and its settings, as JSON."""
        return MappingProxyType(_plugin_settings(self.model))

    @cached_property
    def training_seeds(self) -> tuple[int, ...]:
        """The seed of each method of the chain that trains."""
        seeds = map(training_seed, self.methods)
        return tuple(seed for seed in seeds if seed is not None)

    @cached_property
    def turn_limit(self) -> TurnLimit:
        """An upper bound on what one turn may spend, with every call that the methods make."""
        limit: TurnLimit = self.model.turn_limit
        for method in self.methods:
            limit = method.turn_limit(limit)
        return limit

    @cached_property
    def reply_limit(self) -> int | None:
        """An upper bound on a reply's tokens in later turns; None if there is no limit."""
        turn = self.turn_limit(0, None)  # with all its thinking, also of a call before the last
        asks_another = turn is not None and turn.other_completion_tokens > 0
        if self.memory.remember != "all" and not asks_another:
            return self.model.max_tokens()
        if turn is None:
            return None
        return turn.completion_tokens

    def asks(self) -> list[Model]:
        """Return the other models that the methods ask, such as a judge."""
        return [model for method in self.methods for model in method.asks()]

    def other_models(self) -> list[Model]:
        """Return every model besides its own that a run pays: of methods, tasks, preparations."""
        models = self.asks()
        judge = judge_of_task(self.task)
        if judge is not None:
            models.append(judge)
        return models + self.prepared_by()

    def cost(self, bill: Bill) -> float | None:
        """Return what an attempt cost, with what its methods paid other models; None if unknown.

        A reward that runs on this machine without prices costs nothing, as under a cap.
        """
        cost = cost_of(bill, self.model.prices)
        if self.model.prices is None and bill.cost is None and self.model.server():
            return None  # only what another model cost is known
        reward_tokens = bill.reward_prompt_tokens + bill.reward_completion_tokens
        if cost is None or not reward_tokens or bill.reward_cost:
            return cost
        # The run knew no price of the models that the methods ask, or the price was 0.
        asked = self.asks()
        if any(model.server() and model.prices is None for model in asked):
            return None
        if len(asked) == 1 and asked[0].prices is not None:
            reward_bill = Bill(bill.reward_prompt_tokens, 0, bill.reward_completion_tokens)
            cost += asked[0].prices.cost(reward_bill)
        return cost

    def currencies(self) -> set[str]:
        """Return the currencies of what an attempt costs. Servers report costs in US dollars."""
        prices = self.model.prices
        names = {prices.currency if prices else "USD"}
        for model in self.asks():
            if model.prices:
                names.add(model.prices.currency)
        return names

    def prepared_by(self) -> list[Model]:
        """Return the models that preparations still have to ask, such as teachers."""
        models: list[Model] = []
        for method in self.methods:
            if isinstance(method, Prepared):
                models.extend(method.samplers(self.model))
        return models

    def attempt_seed(self, problem: Problem, sample: int, turn: int) -> int:
        """Return the seed of one request: different for every turn of every attempt."""
        return seed_from(self.key.hex(), problem.id, sample, turn)


class Basis(str):
    """The attempts that a row of a figure's table was computed from: some cells, some endings.

    As text it is a short id, which is all that a chart's data hold of it.
    """

    cells: tuple[Cell, ...]
    ended: tuple[Ended, ...]  # empty for all endings

    def __new__(cls, cells: Iterable[Cell], ended: Iterable[Ended] = ANSWERED) -> Basis:
        distinct = tuple(dict.fromkeys(cells))
        endings = tuple(ended)
        keys = sorted(cell.key.hex() for cell in distinct)
        basis = super().__new__(cls, digest(keys, sorted(endings)).hex()[:10])
        basis.cells = distinct
        basis.ended = endings
        return basis

    def __getnewargs__(self) -> tuple[Any, ...]:  # for copies
        return self.cells, self.ended


def settings_in_key(plugin: Plugin) -> dict[str, Any]:
    """Return the settings of a plugin that are part of an attempt's key, defaults included."""
    fields = dataclasses.fields(plugin)  # type: ignore[arg-type]
    return {f.name: getattr(plugin, f.name) for f in fields if not f.metadata.get("not_in_key")}


def _method_settings(plugin: Plugin) -> dict[str, Any]:
    """Return the settings in the key. A plugin among them is given by its title.

    Its own settings follow as `reward.size`. Of several plugins, such as teachers, each is given by
    its label if it has one.
    """
    settings: dict[str, Any] = {}
    for name, value in settings_in_key(plugin).items():
        if isinstance(value, tuple):
            settings[name] = tuple(getattr(item, "label", "") or described(item) for item in value)
        elif isinstance(value, Plugin):
            settings[name] = value.title()
            settings |= {f"{name}.{key}": inner for key, inner in _method_settings(value).items()}
        else:
            settings[name] = value
    return settings


def _plugin_settings(plugin: Plugin) -> dict[str, Any]:
    """Return what the key holds of a task or model as JSON, defaults included, files by path."""
    fields = dataclasses.fields(plugin)  # type: ignore[arg-type]
    names = {f.metadata.get("was") or f.name for f in fields if not f.metadata.get("not_in_key")}
    # What the key holds besides settings comes first, such as the name and a digest of the weights.
    values = {key: value for key, value in plugin.identity().items() if key not in names}
    for name, value in settings_in_key(plugin).items():
        values[name] = _plain(value)
    return values


def _plain(value: Any) -> Any:
    """Return a setting's value as JSON."""
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(inner) for inner in value]
    value = described(value)
    if isinstance(value, float) and not math.isfinite(value):
        return None  # JSON has no infinity
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return str(value)


def described(value: Any) -> Any:
    """Return a plugin's title with the settings that it doesn't show; other values as they are."""
    if not isinstance(value, Plugin):
        return value
    defaults = {f.name: f.default for f in dataclasses.fields(value)}  # type: ignore[arg-type]
    title = value.title()
    words = [title]
    for name, setting in settings_in_key(value).items():
        if setting == defaults[name]:
            continue
        text = str(_plain(setting))
        if text not in title and title not in text:
            words.append(f"{name}={text}")
    return " ".join(words)
