"""Looks up settings of the methods that a model was put under, and names the model beneath a method.

Two methods of a chain may have a setting of the same name, so a figure that is asked for `window` refuses to guess:
`compress.window` says which one is meant. A name that is no setting is looked up among an attempt's details.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from ponder.core import MethodUse, Outcome, UserError


def setting(outcome: Outcome, name: str) -> Any:
    """A setting of a method (`window` or `compress.window`), or else a detail of the attempt; else None."""
    use, key = _owner(outcome, name)
    return use.settings[key] if use else outcome.details.get(name)


def setting_reader(name: str) -> Callable[[Outcome], Any]:
    """As `setting`, for many outcomes: those of a cell share their methods, which are searched once."""
    known: dict[int, tuple[MethodUse | None, str]] = {}

    def read(outcome: Outcome) -> Any:
        if (cell := id(outcome.methods)) not in known:
            known[cell] = _owner(outcome, name)
        use, key = known[cell]
        return use.settings[key] if use else outcome.details.get(name)

    return read


def owners(outcome: Outcome, *names: str) -> list[MethodUse]:
    """The methods of the chain that have these settings."""
    return list({id(use): use for use, _ in (_owner(outcome, name) for name in names) if use}.values())


def beside(outcome: Outcome, *names: str) -> dict[str, Any]:
    """The other settings of the methods that have these; with several methods the keys are as in `compress.budget`."""
    taken = {(id(use), key) for use, key in (_owner(outcome, name) for name in names)}
    uses = owners(outcome, *names)
    others = [(use, key, value) for use in uses for key, value in use.settings.items() if (id(use), key) not in taken]
    return {key if len(uses) == 1 else f"{use.name}.{key}": value for use, key, value in others}


def _owner(outcome: Outcome, name: str) -> tuple[MethodUse | None, str]:
    method, _, key = name.rpartition(".")
    having = [use for use in outcome.methods if key in use.settings and method in ("", use.name)]
    if not method and len(having) > 1:
        methods = list(dict.fromkeys(use.name for use in having))
        raise UserError(
            f"`{name}` is a setting of {len(having)} methods of `{outcome.model}`: {', '.join(methods)}",
            hint=f"write {' or '.join(f'`{method}.{key}`' for method in methods)}",
        )
    return (having[-1] if having else None), key


def in_words(settings: Mapping[str, Mapping[str, Any]], but: Collection[str] = ()) -> dict[str, str]:
    """For each model's settings, those that differ between the models: `budget 64, match length`.

    `but` leaves settings out, with those of a plugin inside: `reward` also leaves out `reward.size`.
    """
    keys = dict.fromkeys(key for model in sorted(settings) for key in settings[model])
    tables = settings.values()
    varied = [k for k in keys if not {*k.split(".")} & {*but} and len({str(t.get(k)) for t in tables}) > 1]
    return {
        model: ", ".join(_words(k, table[k]) for k in varied if table.get(k) is not None and table[k] is not False)
        for model, table in settings.items()
    }


def _words(name: str, value: Any) -> str:
    name = name.replace("_", " ")
    return name if value is True else f"{name} {value}"


def beneath(
    outcomes: Sequence[Outcome], outer: Callable[[Outcome], Sequence[MethodUse]], *, pooled: bool = False
) -> dict[str, str]:
    """For each model, by its label: the label of the model that its `outer` methods were applied to.

    If the study asks that model too, the label is the study's own. `pooled` gives all training seeds one label.
    """
    first = {o.model: o for o in reversed(outcomes)}
    chains = {}
    for label, o in first.items():
        left_out = [id(use) for use in outer(o)]
        chains[label] = (o.base, [use for use in o.methods if id(use) not in left_out])
    known = {_identity(o.base, o.methods, pooled): o.variant if pooled else o.model for o in first.values()}
    every = list(chains.values())
    return {
        label: known.get(_identity(base, uses, pooled)) or _composed(base, uses, every, pooled)
        for label, (base, uses) in chains.items()
    }


def _identity(base: str, uses: Sequence[MethodUse], pooled: bool) -> str:
    return str([base, *([use.name, sorted(_strings(use, pooled).items())] for use in uses)])


def _strings(use: MethodUse, pooled: bool) -> dict[str, str]:
    return {key: str(value) for key, value in use.settings.items() if not (pooled and key == "seed")}


def _composed(
    base: str, uses: Sequence[MethodUse], every: Sequence[tuple[str, Sequence[MethodUse]]], pooled: bool
) -> str:
    """A label for a model that the study doesn't ask by itself, with the settings that tell it from others."""
    names = [use.name for use in uses]
    alike = [other for of, other in every if of == base and [use.name for use in other] == names]
    parts = [base]
    for place, use in enumerate(uses):
        tables = [_strings(other[place], pooled) for other in alike]
        own = _strings(use, pooled)
        varied = [f"{key}={own[key]}" for key in own if len({table.get(key) for table in tables}) > 1]
        parts.append(" ".join([use.name, *varied]))
    return " + ".join(parts)
