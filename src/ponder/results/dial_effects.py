"""Finds settings of a model that have no effect, such as an effort that a server ignores.

Two settings that differ in one dial alone and whose replies don't differ are one variant: figures
draw the first of them, and a sentence says so.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from ponder.core import Cell, Label, Outcome
from ponder.core.text import count
from ponder.study.labels import cells_of, flattened, task_labels

if TYPE_CHECKING:
    from ponder.stats.no_effect import Effect, Shown

DIALS = ("effort", "think", "thinking")
DIAL_TABLES = ("body.", "template.")
FROM_LOG = "settings."  # of a model that was imported from a log
# Fields of a request that change what is sampled, not how long a model thinks: two of their values
# with replies of the same length are still two variants.
SAMPLING = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "stop",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
)


class DialPair(NamedTuple):
    """Two variants of a study that differ in one dial, the first as the study has them."""

    dial: str
    first: Cell
    second: Cell
    labels: tuple[Label, Label]
    # of the dial, as a label names them: `effort=low`
    names: tuple[str, str]


@dataclass(frozen=True)
class DialEffect:
    """What was found about a pair."""

    pair: DialPair
    shown: Shown
    text: str  # as a sentence without a full stop; "" if there is nothing to say


def dial_pairs(cells: dict[Cell, Label]) -> list[DialPair]:
    """Return the pairs of variants that differ in one dial and in nothing else."""
    variants: dict[bytes, Cell] = {}
    for cell in cells:
        variants.setdefault(cell.variant_key, cell)
    if len(variants) < 2:
        return []
    any_model = next(iter(variants.values())).model
    equal_but_for_dials: dict[str, list[Cell]] = {}
    for cell in variants.values():
        # With one model in place of each cell's own, the variants' keys differ by their methods.
        methods = Cell(cell.task, cell.size, any_model, cell.methods).variant_key
        identity = json.dumps([_without_dials(cell), methods.hex()], sort_keys=True, default=str)
        equal_but_for_dials.setdefault(identity, []).append(cell)
    pairs = []
    for group in equal_but_for_dials.values():
        for first, second in itertools.combinations(group, 2):
            first_settings = flattened(first.model_settings)
            second_settings = flattened(second.model_settings)
            setting = _only_difference(first_settings, second_settings)
            if setting is None:
                continue
            dial = setting.rpartition(".")[2]
            names = (
                _name(dial, first_settings.get(setting)),
                _name(dial, second_settings.get(setting)),
            )
            pairs.append(DialPair(dial, first, second, (cells[first], cells[second]), names))
    return pairs


def _without_dials(cell: Cell) -> dict[str, Any]:
    """Return the model's settings that are not dials."""
    settings = {}
    for name, value in flattened(cell.model_settings).items():
        if not _is_dial(name):
            settings[name] = value
    return settings


def _only_difference(first: dict[str, Any], second: dict[str, Any]) -> str | None:
    """Return the setting in which two models differ; None if they differ in several or in none."""
    differing = []
    for name in dict.fromkeys((*first, *second)):
        if first.get(name) != second.get(name):
            differing.append(name)
    if len(differing) != 1:
        return None
    return differing[0]


def _is_dial(name: str) -> bool:
    if name.startswith(DIAL_TABLES):
        return name.rpartition(".")[2] not in SAMPLING
    return name.removeprefix(FROM_LOG) in DIALS


def _name(dial: str, value: Any) -> str:
    if value is None:
        return f"no {dial}"
    return f"{dial}={value}"


def dial_effects(outcomes: Sequence[Outcome], pairs: Sequence[DialPair]) -> list[DialEffect]:
    """Test each pair; a variant that equals an earlier one is not compared with further ones."""
    by_variant: dict[bytes, dict[bytes, list[Outcome]]] = {}  # by the task's key inside
    for outcome in outcomes:
        tasks = by_variant.setdefault(outcome.cell.variant_key, {})
        tasks.setdefault(outcome.cell.task_key, []).append(outcome)
    task_names = task_labels(outcomes)
    redundant = set[bytes]()
    undecided = set[bytes]()  # one sentence about each is enough
    effects = []
    for dial_pair in pairs:
        first, second = dial_pair.first.variant_key, dial_pair.second.variant_key
        if redundant & {first, second}:
            continue
        by_task = _by_task(
            by_variant.get(first, {}), by_variant.get(second, {}), task_names, len(pairs)
        )
        shown = _shown(by_task.values())
        if shown == "none":
            redundant.add(second)
        text = ""
        if shown != "open" or second not in undecided:
            text = _sentence(dial_pair, shown, by_task)
        if shown == "open":
            undecided.add(second)
        effects.append(DialEffect(dial_pair, shown, text))
    return effects


def _by_task(
    first: dict[bytes, list[Outcome]],
    second: dict[bytes, list[Outcome]],
    task_names: dict[bytes, str],
    comparisons: int,
) -> dict[str, Effect]:
    """Return the effect on each task that both answered, by the task's name; "" if there is one."""
    from ponder.stats.no_effect import effect  # imports NumPy

    effects = {}
    for task, name in task_names.items():
        if task in first and task in second:
            on_task = effect(first[task], second[task], comparisons)
            if on_task is not None:
                effects[name if len(task_names) > 1 else ""] = on_task
    return effects


def _shown(effects: Iterable[Effect]) -> Shown:
    """Return what several tasks show: no effect only if each of them shows none."""
    shown = {effect.shown for effect in effects}
    if "some" in shown:
        return "some"
    if shown == {"none"}:
        return "none"
    return "open"


def _sentence(pair: DialPair, shown: Shown, by_task: dict[str, Effect]) -> str:
    """Say that a dial has no effect, or that none was seen yet; "" if it has one."""
    if shown == "some" or not by_task:
        return ""
    model = pair.first.model.label or pair.first.model.title()
    methods = pair.labels[0].methods
    if methods:
        model = f"{model} + {methods}"
    settings = f"{pair.names[0]} and {pair.names[1]}"
    numbers = []
    for task, effect in by_task.items():
        text = _numbers(effect)
        if task:
            text = f"on {task} {text}"
        numbers.append(text)
    listed = ", ".join(numbers)
    if shown == "none":
        return (
            f"`{pair.dial}` has no effect on {model}: {settings} wrote {listed}; "
            f"only {pair.names[0]} is drawn"
        )
    return (
        f"no effect of `{pair.dial}` on {model} is seen yet: {settings} wrote {listed}; "
        "more problems or samples would tell"
    )


def _numbers(effect: Effect) -> str:
    if effect.identical:
        return f"the same {count(effect.identical, 'reply')}, token for token"
    tokens = f"{effect.tokens[0]:,.0f} and {effect.tokens[1]:,.0f} tokens per reply"
    ratio = effect.ratio
    return f"{tokens} (ratio {ratio.value:.2f} [{ratio.low:.2f}, {ratio.high:.2f}])"


def drawn(outcomes: Sequence[Outcome], effects: Iterable[DialEffect]) -> Sequence[Outcome]:
    """Return the outcomes without those of settings that equal another one among them."""
    present = {cell.variant_key for cell in cells_of(outcomes)}
    redundant = set[bytes]()
    for found in effects:
        if found.shown == "none" and found.pair.first.variant_key in present:
            redundant.add(found.pair.second.variant_key)
    if redundant.isdisjoint(present):
        return outcomes
    return [outcome for outcome in outcomes if outcome.cell.variant_key not in redundant]
