"""What `ponder plan` and adaptive runs print about attempts, tokens and money."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ponder.cli.output import table, wrap
from ponder.core import Batched
from ponder.core.text import count, printable
from ponder.results.study import Study
from ponder.run.caps import Money, priced_at_most
from ponder.run.plan import Forecast, Plan, Range, saved
from ponder.run.progress import money_text, short
from ponder.store.store import Store

HEADING = ("model", "task", "expected from", "attempts", "stored", "to run", "calls")


def plan_json(plan: Plan) -> dict[str, Any]:
    """Return a plan as JSON."""
    preparation = None
    limit = preparation_limit(plan)
    if plan.making is not None and limit is not None:
        preparation = {"calls": plan.making.calls, "tokens": limit.tokens, "cost": limit.cost}
    return {
        "forecasts": [_forecast_json(forecast) for forecast in plan.forecasts],
        "total": _forecast_json(plan.total),
        "currency": plan.currency,
        "spent": plan.spent._asdict(),
        "making": preparation,
        "trainings": plan.trainings,
        "stop": plan.stop,
        "prices": list(plan.prices),
    }


def _forecast_json(forecast: Forecast) -> dict[str, Any]:
    data = dataclasses.asdict(forecast) | {"to_run": forecast.to_run}
    for key in ("tokens", "cost", "duration"):
        amounts = getattr(forecast, key)
        if amounts:
            data[key] = amounts._asdict()
    return data


def plan_text(plan: Plan, study: Study, probe: str) -> str:
    """Return the table of forecasts with a total, and notes on caps and preparations.

    `probe` is the command that asks a few attempts to plan from.
    """
    forecasts = list(plan.forecasts)
    if len(forecasts) > 1:
        forecasts.append(plan.total)
    priced = plan.total.cost is not None
    heading = [*HEADING, "tokens: low", "expected", "at most"]
    if priced:
        heading += [f"{plan.currency}: low", "expected", "at most"]
    rows: list[list[Any]] = [heading]
    for forecast in forecasts:
        row: list[Any] = [forecast.model, forecast.task, forecast.basis]
        row += [forecast.attempts, forecast.stored, forecast.to_run]
        row.append(None if forecast.calls is None else short(forecast.calls))
        row += _range(forecast.tokens, short)
        if priced:
            row += _range(forecast.cost, money_text)
        rows.append(row)
    notes = [wrap(note, indent="  ") for note in _notes(plan, study, probe)]
    return "\n".join([table(rows, numbers=len(heading) - 3), *notes])


def _range(amounts: Range | None, text: Callable[[float], str]) -> list[str | None]:
    if amounts is None:
        return [None, None, None]
    return [None if amount is None else text(amount) for amount in amounts]


def _notes(plan: Plan, study: Study, probe: str) -> list[str]:
    """Return what a reader must know besides the numbers, one line each."""
    notes = []
    if plan.stop:
        notes.append(f"stop: {plan.stop}; {_attempts_at_most(plan.total)}")
    notes += [f"prices: {line}" for line in plan.prices]
    notes += _batch_prices(plan, study)
    notes += _caps(plan, study)
    if plan.trainings:
        notes.append(f"preparation: methods first train {count(plan.trainings, 'model')}")
    if plan.making is None:
        notes.append(
            "preparation: methods first draw samples to train on; nothing limits their tokens"
        )
    elif plan.making.calls:
        limit = preparation_limit(plan) or Money()
        amount = f"{short(limit.tokens)} tokens"
        if limit.cost:
            amount += f" and {money_text(limit.cost)} {plan.currency}"
        if study.max_tokens is not None or study.max_cost is not None:
            amount += ", which the caps count"
        calls = short(plan.making.calls)
        notes.append(
            f"preparation: methods first draw samples to train on: {calls} calls, at most {amount}"
        )
    unlimited = {cell.label.model for cell in study.cells if cell.turn_limit(0, None) is None}
    if unlimited:
        names = ", ".join(f"`{name}`" for name in sorted(unlimited))
        notes.append(
            f"at most: unknown, because nothing limits a reply of {names}; "
            "give its [[model]] a `budget`, in tokens"
        )
    names = ", ".join(f"`{f.model}`" for f in plan.forecasts if f.exceeds_budget)
    if names:
        notes.append(f"at most: unknown, because {names} was billed above its budget")
    run_decides = all(forecast.basis == "the run decides" for forecast in plan.forecasts)
    if plan.total.tokens.expected is None and not run_decides:
        notes.append(
            f"expected: unknown before anything is asked; `{probe}` asks 2 per cell and keeps them"
        )
    return notes


def _batch_prices(plan: Plan, study: Study) -> list[str]:
    """Return what models cost with and without batch jobs, where their servers take them.

    Variants of one model share a line.
    """
    labels_by_model: dict[str, list[str]] = {}
    models: dict[str, Batched] = {}
    for label, model in {cell.label.model: cell.model for cell in study.cells}.items():
        if isinstance(model, Batched) and model.can_batch():
            labels_by_model.setdefault(model.title(), []).append(label)
            models[label] = model
    notes = []
    for title, labels in labels_by_model.items():
        note = f"batch jobs: `{title}` costs half with batch = true; answers within 24 hours"
        ordinary = 0.0
        in_jobs = 0.0
        is_known = True
        for forecast in plan.forecasts:
            if forecast.model not in labels:
                continue
            if forecast.cost is None or forecast.cost.at_most is None:
                is_known = False
                break
            cost = forecast.cost.at_most
            variant = models[forecast.model]
            if variant.sends_batches():
                cost /= 1 - variant.batch_discount
            ordinary += cost
            in_jobs += cost * (1 - variant.batch_discount)
        if is_known and ordinary:
            amounts = f"{money_text(in_jobs)} {plan.currency} instead of {money_text(ordinary)}"
            note += f": at most {amounts}"
        notes.append(note)
    return notes


def preparation_limit(plan: Plan) -> Money | None:
    """Return an upper bound on what preparations still spend; None if there is no limit."""
    if plan.making is None:
        return None
    return priced_at_most(plan.making, None)


def _attempts_at_most(total: Forecast) -> str:
    if total.to_run:
        return f"at most {count(total.attempts, 'attempt')}, likely fewer"
    if total.calls or total.calls is None:
        return "the run chooses the sizes"
    return "nothing more to ask"


def _caps(plan: Plan, study: Study) -> list[str]:
    """Return for each cap what earlier runs spent of it, and whether the study may reach it."""
    notes = []
    preparation = preparation_limit(plan) or Money()
    if study.max_tokens is not None:
        cap = short(study.max_tokens)
        if plan.spent.tokens:
            cap += f", of which earlier runs spent {short(plan.spent.tokens)}"
        remaining = study.max_tokens - plan.spent.tokens
        outlook = _outlook(remaining, plan.total.tokens, preparation.tokens)
        notes.append(f"max_tokens: {cap}; {outlook}")
    if study.max_cost is not None:
        cap = f"{money_text(study.max_cost)} {plan.currency}"
        if plan.spent.cost:
            cap += f", of which earlier runs spent {money_text(plan.spent.cost)}"
        remaining_money = study.max_cost - plan.spent.cost
        outlook = _outlook(remaining_money, plan.total.cost or Range(0, 0, 0), preparation.cost)
        notes.append(f"max_cost: {cap}; {outlook}")
    return notes


def _outlook(remaining: float, amounts: Range, preparation: float) -> str:
    """Return whether a study fits under what remains of a cap."""
    if amounts.at_most is not None and amounts.at_most + preparation <= remaining:
        return "the study fits"
    likely = amounts.low if amounts.expected is None else amounts.expected
    if likely > remaining:
        return "a run will stop there"
    return "a run may stop there"


def adaptive_json(study: Study, path: Path) -> dict[str, Any]:
    """Return what an adaptive run has decided, and what it saved of the full plan."""
    from ponder.run.adaptive import decisions  # imports NumPy

    with Store(path) as store:
        decided = decisions(study, store)
    unused = saved(study, path)
    savings = None
    if unused:
        savings = {
            "attempts": unused.to_run,
            "tokens": unused.tokens.expected,
            "cost": unused.cost and unused.cost.expected,
        }
    return {
        "decisions": [dataclasses.asdict(decision) for decision in decided],
        "attempts": sum(decision.attempts for decision in decided),
        "full_plan": sum(decision.at_most for decision in decided),
        "saved": savings,  # None: the run chose the sizes, so there is no full plan
    }


def adaptive_text(data: dict[str, Any], currency: str) -> str:
    """Return what `adaptive_json` returned, in sentences."""
    sentences = [printable(decision["text"]) for decision in data["decisions"]]
    savings = data["saved"]
    if savings is None:
        return "\n".join(sentences)
    amounts = []
    if savings["tokens"]:
        amounts.append(f"about {short(savings['tokens'])} tokens")
    if savings["cost"]:
        amounts.append(f"{money_text(savings['cost'])} {currency}")
    full_plan = count(data["full_plan"], "attempt")
    last = f"{data['attempts']:,} of the full plan's {full_plan}"
    if amounts:
        last += f"; the rest would take {' and '.join(amounts)}"
    return "\n".join([*sentences, last])
