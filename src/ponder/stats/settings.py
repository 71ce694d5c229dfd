"""Which settings differ between attempts, read from their columns: to split by them, or to say what is pooled.

A setting's name is dotted, as with `--set`: `task.mode`, `model.temperature`, `method.vote.n`; if a chain has a method
twice, the second is `method.vote[1].n`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from ponder.core import MethodUse, Outcome

CHAIN = "methods"  # the names of a chain's methods: what differs between a model with a method and one without
LONGEST = 40  # characters of a value
MOST = 4  # values that are listed


def dotted(task: Mapping[str, Any], model: Mapping[str, Any], methods: Sequence[MethodUse]) -> dict[str, Any]:
    """Every setting of a task, a model and its methods, by its dotted name."""
    named = {f"task.{key}": value for key, value in task.items()}
    named |= {f"model.{key}": value for key, value in model.items()}
    before: Counter[str] = Counter()
    for use in methods:
        place = f"[{before[use.name]}]" if before[use.name] else ""
        named |= {f"method.{use.name}{place}.{key}": value for key, value in use.settings.items()}
        before[use.name] += 1
    return named


def differing(tables: Iterable[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """The settings that differ between tables that have them, each with its values, sorted."""
    values: dict[str, dict[str, Any]] = {}
    for table in tables:
        for name, value in table.items():
            values.setdefault(name, {}).setdefault(json.dumps(value, default=str, sort_keys=True), value)
    return {name: _sorted(distinct.values()) for name, distinct in sorted(values.items()) if len(distinct) > 1}


def pooled(groups: Iterable[Sequence[Outcome]], drawn: Collection[str] = ()) -> str:
    """What differs between the attempts of one group, in words: `pooled over mode = answer, cot`; "" if nothing does.

    A group is what a figure makes one number from. `drawn` has settings that the figure draws. Training seeds are no
    setting, and problems of different sizes are pooled too.
    """
    values: dict[str, list[Any]] = {}
    for group in groups:
        of_group = differing(_tables(group))
        if len(sizes := sorted({o.size for o in group})) > 1:
            of_group["size"] = sizes
        for name, distinct in of_group.items():
            if not _is(name, drawn):
                known = values.setdefault(name, [])
                known += [value for value in distinct if value not in known]
    names = _short(values)
    listed = (f"{names[name]} = {_listed(_sorted(values[name]))}" for name in sorted(values))
    return f"pooled over {'; '.join(listed)}" if values else ""


def apart(outcomes: Sequence[Outcome], drawn: Collection[str] = (), of: str = "") -> Callable[[Outcome], str]:
    """Names each outcome by the settings that differ between all of them: `mode=cot`; "" if nothing does.

    `drawn` has settings that the figure draws otherwise; `of = "task"` looks at the task's settings alone.
    """
    names = _short(k for k in differing(_tables(outcomes)) if k.startswith(of) and not _is(k, drawn))
    known: dict[tuple[int, ...], str] = {}

    def name(outcome: Outcome) -> str:
        if (cell := _cell(outcome)) not in known:
            table = _settings(outcome)
            given = {k: table[k] for k in names if table.get(k) is not None}
            known[cell] = " ".join(v if k == "task.name" else f"{names[k]}={_text(v)}" for k, v in given.items())
        return known[cell]

    return name


def _cell(outcome: Outcome) -> tuple[int, ...]:
    # The attempts of a cell share these objects, so 50,000 attempts are told apart without reading 50,000 tables.
    return id(outcome.task_settings), id(outcome.model_settings), id(outcome.methods)


def _tables(outcomes: Iterable[Outcome]) -> list[dict[str, Any]]:
    cells = {_cell(outcome): outcome for outcome in reversed(list(outcomes))}
    return [_settings(outcome) for outcome in reversed(cells.values())]


def _settings(outcome: Outcome) -> dict[str, Any]:
    named = dotted(outcome.task_settings, outcome.model_settings, outcome.methods)
    if outcome.seeds:
        named = {name: value for name, value in named.items() if not (name.startswith("method.") and _is(name, "seed"))}
    return named | {CHAIN: " + ".join(use.name for use in outcome.methods) or "none"}


def _sorted(values: Iterable[Any]) -> list[Any]:
    """Numbers by size, then the rest by its text: the order of the attempts doesn't matter."""
    return sorted(values, key=lambda v: (0, v, "") if _is_number(v) else (1, 0, _text(v)))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is(name: str, drawn: Collection[str]) -> bool:
    """Whether a dotted name is one of these, which may be shorter: `task.mode` is `mode`."""
    given = (drawn,) if isinstance(drawn, str) else drawn
    return any(name == short or name.endswith(f".{short}") for short in given)


def _short(names: Iterable[str]) -> dict[str, str]:
    """The last part of each name, if no other has the same."""
    last = {name: name.rpartition(".")[2] for name in names}
    often = Counter(last.values())
    return {name: short if often[short] == 1 and short != "name" else name for name, short in last.items()}


def _listed(values: Sequence[Any]) -> str:
    if len(values) > MOST and all(map(_is_number, values)):
        return f"{min(values):g}–{max(values):g}"
    shown = [_text(value) for value in values[:MOST]]
    return ", ".join([*shown, f"{len(values) - MOST} more"] if len(values) > MOST else shown)


def _text(value: Any) -> str:
    text = json.dumps(value, default=str) if isinstance(value, Mapping | list | tuple) else str(value)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"
