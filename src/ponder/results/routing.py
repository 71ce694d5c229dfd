"""Reports what routing could save: as sentences, as a table and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from ponder.core import Estimate, Measure, Records
from ponder.core.text import estimate_text, percent_text
from ponder.stats.routing import MIN_ORACLE_SAVING, Route, Routing, Scored

MAX_ROUTES = 5  # in the table, besides the best single setting and the oracle


def routing_sentences(routing: Routing) -> list[str]:
    """Return in one to three sentences whether routing is worth it."""
    best = routing.best
    oracle = routing.oracle
    bound = percent_text(oracle.saving)
    oracle_clause = f"choosing the right setting for each problem would save at most {bound} beside"
    if oracle.saving.value < MIN_ORACLE_SAVING:
        return [f"Routing isn't worth it: even {oracle_clause} `{routing.single}`."]
    sentences = []
    if best.rule.sign == "none":
        sentences.append(
            f"Routing isn't worth it: no rule beats `{best.cheap}` for every problem "
            f"(difference within {100 * routing.margin:g} points allowed)."
        )
    elif routing.worth == "no":
        sentences.append(
            f"Routing isn't shown to be worth it: the best rule, {rule_text(best)}, saves "
            f"{percent_text(best.scored.saving)} beside `{routing.single}`, which may be nothing."
        )
    else:
        points = f"(difference {_points(best.scored.difference)} points)"
        margin = f"{100 * routing.margin:g} {'point' if routing.margin == 0.01 else 'points'}"
        quality = f"is not worse by more than {margin} {points}"
        opening = "Routing is worth it"
        if routing.worth == "unclear":
            quality = f"may be worse by more than {margin} {points}"
            opening = "Routing may be worth it"
        sentences.append(
            f"{opening}: {rule_text(best)} saves {percent_text(best.scored.saving)} beside "
            f"`{routing.single}` and {quality}."
        )
    sentences.append(_oracle_sentence(routing, oracle_clause))
    return sentences


def _oracle_sentence(routing: Routing, clause: str) -> str:
    held_out = routing.held_out_oracle
    sentence = f"{clause[0].upper()}{clause[1:]} `{routing.single}`"
    if held_out is None:
        sentence += ", an upper bound that is inflated by luck: there is one sample per problem"
    else:
        saved = (
            f"{percent_text(held_out.saving)} (difference {_points(held_out.difference)} points)"
        )
        sentence += f"; chosen by other samples of the problem, {saved}"
    if routing.worth == "yes":
        sentence += f"; the rule reaches {percent_text(routing.reached)} of it"
    return f"{sentence}."


def rule_text(route: Route) -> str:
    """Return a route in words."""
    if route.rule.sign == "none":
        return f"`{route.cheap}` alone"
    if route.rule.asks_first:
        first = f"`{route.cheap}` first"
        if route.rule.sign.startswith("disagree"):
            first = f"`{route.cheap}` {route.rule.sign[-1]} times first"
        return f"{first}, then `{route.expensive}` if {_condition(route)}"
    return f"`{route.expensive}` if {_condition(route)}, else `{route.cheap}`"


def _condition(route: Route) -> str:
    sign = route.rule.sign
    if sign.startswith("disagree"):
        return "the answers disagree"
    if sign in ("unparsed", "truncated", "unparsed or truncated"):
        return f"the answer is {sign}"
    return route.rule.text()


def routing_table(routing: Routing, by: Measure, currency: str = "USD") -> list[list[str]]:
    """Return the best single setting, the oracle and the best rules as text, a heading first."""
    unit = currency if by == "cost" else by
    rows = [["policy", "escalated %", "accuracy %", unit, "saving %", "difference"]]
    accuracy = estimate_text(routing.single_accuracy, scale=100)
    single_cost = estimate_text(routing.single_cost)
    rows.append([f"`{routing.single}` alone", "", accuracy, single_cost, "", ""])
    for route in shown_routes(routing):
        escalated = estimate_text(route.escalated, scale=100)
        rows.append([rule_text(route), escalated, *_cells(route.scored)])
    if routing.held_out_oracle is not None:
        rows.append(["oracle, held-out samples", "", *_cells(routing.held_out_oracle)])
    rows.append(["oracle, with luck", "", *_cells(routing.oracle)])
    return rows


def shown_routes(routing: Routing) -> Sequence[Route]:
    """Return the routes that save most, without those that are surely too weak."""
    good = []
    for route in routing.routes:
        if route.scored.difference.high > -routing.margin and route.scored.saving.high > 0:
            good.append(route)
    return good[:MAX_ROUTES]


def routing_json(routing: Routing) -> dict[str, Any]:
    """Return everything as JSON, with the settings of `escalate` that deploy each rule."""
    routes: Records = [_route_json(route) for route in routing.routes]
    held_out = routing.held_out_oracle
    return {
        "worth": routing.worth,
        "verdict": routing_sentences(routing),
        "problems": routing.problems,
        "margin": routing.margin,
        "settings": list(routing.settings),
        "single": routing.single,
        "single_accuracy": asdict(routing.single_accuracy),
        "single_cost": asdict(routing.single_cost),
        "oracle": asdict(routing.oracle),
        "held_out_oracle": asdict(held_out) if held_out else None,
        "reached": asdict(routing.reached),
        "best": _route_json(routing.best),
        "routes": routes,
    }


def _route_json(route: Route) -> dict[str, Any]:
    return {
        "cheap": route.cheap,
        "expensive": route.expensive,
        "rule": route.rule.text(),
        "escalate": route.rule.escalate(),
        "escalated": asdict(route.escalated),
        **asdict(route.scored),
    }


def _cells(scored: Scored) -> list[str]:
    """Return accuracy, cost, saving and difference of a policy as texts."""
    return [
        estimate_text(scored.accuracy, scale=100),
        estimate_text(scored.cost),
        estimate_text(scored.saving, scale=100),
        _points(scored.difference),
    ]


def _points(estimate: Estimate) -> str:
    return estimate_text(estimate, scale=100, signed=True)
