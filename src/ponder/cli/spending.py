"""What `plan` and adaptive runs print about tokens and money."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from ponder.cli.options import columns
from ponder.core.text import count, printable
from ponder.results.study import Study
from ponder.run.caps import Money, priced_at_most
from ponder.run.plan import Forecast, Plan, Range, saved
from ponder.run.progress import money_text, short
from ponder.store.store import Store


def plan_json(plan: Plan) -> dict[str, Any]:
    def record(forecast: Forecast) -> dict[str, Any]:
        data = dataclasses.asdict(forecast) | {"to_run": forecast.to_run}
        ranges = {
            key: value._asdict()
            for key in ("tokens", "cost", "duration")
            if (value := getattr(forecast, key))
        }
        return data | ranges

    spent = plan.spent._asdict()
    lines = [record(forecast) for forecast in plan.forecasts]
    most = making_at_most(plan)
    making = (
        plan.making
        and most
        and {"calls": plan.making.calls, "tokens": most.tokens, "cost": most.cost}
    )
    told = {"total": record(plan.total), "currency": plan.currency, "spent": spent}
    return {
        "forecasts": lines,
        **told,
        "making": making,
        "trainings": plan.trainings,
        "stop": plan.stop,
    }


def plan_text(plan: Plan, study: Study, probe: str) -> str:
    """The table, a total row, and what the caps leave."""
    lines = [*plan.forecasts, plan.total] if len(plan.forecasts) > 1 else plan.forecasts
    money = plan.total.cost is not None
    head = (
        "model",
        "task",
        "expected from",
        "attempts",
        "stored",
        "to run",
        "calls",
        "tokens: low",
        "expected",
        "at most",
    )
    heads = (*head, f"{plan.currency}: low", "expected", "at most") if money else head
    rows = [
        (
            *(line.model, line.task, line.basis, line.attempts, line.stored, line.to_run),
            None if line.calls is None else short(line.calls),
            *_numbers(line.tokens, short),
            *(_numbers(line.cost, money_text) if money else ()),
        )
        for line in lines
    ]
    notes = [f"stop: {plan.stop}; {_at_most(plan.total)}"] if plan.stop else []
    notes += _caps(plan, study)
    if plan.trainings:
        notes.append(f"making: methods first train {count(plan.trainings, 'model')}")
    if plan.making is None:
        notes.append(
            "making: methods first draw samples to train on, whose number of tokens has no limit"
        )
    elif plan.making.calls:
        most = making_at_most(plan) or Money()
        cost = f" and {money_text(most.cost)} {plan.currency}" if most.cost else ""
        calls, tokens = short(plan.making.calls), f"{short(most.tokens)} tokens{cost}"
        counted = (
            ", which the caps count"
            if study.max_tokens is not None or study.max_cost is not None
            else ""
        )
        notes.append(
            f"making: methods first draw samples to train on: {calls} calls, at most {tokens}{counted}"
        )
    endless = sorted({cell.label.model for cell in study.cells if cell.turn_limit(0, None) is None})
    if endless:
        names = ", ".join(f"`{name}`" for name in endless)
        notes.append(
            f"at most: unknown, because nothing limits a reply of {names}; give its [[model]] a `budget`, in tokens"
        )
    if plan.total.tokens.expected is None and not all(
        line.basis == "the run decides" for line in plan.forecasts
    ):
        notes.append(
            f"expected: unknown before anything is asked; `{probe}` asks 2 per cell and keeps them"
        )
    return "\n".join([columns([heads, *rows], numbers=len(heads) - 3), *notes])


def making_at_most(plan: Plan) -> Money | None:
    """Return the most that preparations still take; None if there is no limit."""
    return None if plan.making is None else priced_at_most(plan.making, None)


def _at_most(total: Forecast) -> str:
    if total.to_run:
        return f"at most {count(total.attempts, 'attempt')}, likely fewer"
    if total.calls or total.calls is None:
        return "the run chooses the sizes"
    return "nothing more to ask"


def adaptive_json(study: Study, path: Path) -> dict[str, Any]:
    """What an adaptive run has found, and what it left out of the full plan."""
    from ponder.run.adaptive import decisions  # imports NumPy

    with Store(path) as store:
        found = decisions(study, store)
    left = saved(study, path)
    savings = None
    if left:
        savings = {
            "attempts": left.to_run,
            "tokens": left.tokens.expected,
            "cost": left.cost and left.cost.expected,
        }
    return {
        "decisions": [dataclasses.asdict(decision) for decision in found],
        "attempts": sum(decision.attempts for decision in found),
        "full_plan": sum(decision.at_most for decision in found),
        "saved": savings,  # None: the run chose the sizes, so there is no full plan
    }


def adaptive_text(data: dict[str, Any], currency: str) -> str:
    """The same in sentences."""
    sentences = [printable(decision["text"]) for decision in data["decisions"]]
    left = data["saved"]
    if left is None:
        return "\n".join(sentences)
    rest = [f"about {short(left['tokens'])} tokens"] if left["tokens"] else []
    rest += [f"{money_text(left['cost'])} {currency}"] if left["cost"] else []
    would = f"; the rest would take {' and '.join(rest)}" if rest else ""
    made = f"{data['attempts']:,} of the full plan's {count(data['full_plan'], 'attempt')}{would}"
    return "\n".join([*sentences, made])


def _numbers(amounts: Range | None, text: Any) -> tuple[str | None, ...]:
    return tuple(None if n is None else text(n) for n in amounts or (None, None, None))


def _caps(plan: Plan, study: Study) -> list[str]:
    """For each cap what is left of it, and whether the study may reach it."""
    notes = []
    making = making_at_most(plan) or Money()
    if study.max_tokens is not None:
        ends = _ends(study.max_tokens - plan.spent.tokens, plan.total.tokens, making.tokens)
        earlier = (
            f", of which earlier runs spent {short(plan.spent.tokens)}" if plan.spent.tokens else ""
        )
        notes.append(f"max_tokens: {short(study.max_tokens)}{earlier}; {ends}")
    if study.max_cost is not None:
        ends = _ends(
            study.max_cost - plan.spent.cost, plan.total.cost or Range(0, 0, 0), making.cost
        )
        earlier = (
            f", of which earlier runs spent {money_text(plan.spent.cost)}"
            if plan.spent.cost
            else ""
        )
        notes.append(f"max_cost: {money_text(study.max_cost)} {plan.currency}{earlier}; {ends}")
    return notes


def _ends(left: float, amounts: Range, making: float) -> str:
    if amounts.at_most is not None and amounts.at_most + making <= left:
        return "the study fits"
    likely = amounts.low if amounts.expected is None else amounts.expected
    return "a run will stop there" if likely > left else "a run may stop there"
