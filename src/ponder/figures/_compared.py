"""Two models compared, as tables and in sentences: what `ponder compare` prints and the figure
`compare` draws.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ponder.core import Outcome, Records, Tables
from ponder.core.text import count
from ponder.figures import basis, flat
from ponder.figures._variants import points
from ponder.stats.columns import FEWEST_PAIRS
from ponder.stats.compare import PairComparison, Row
from ponder.stats.corrections import FALSE_RATE


def compared_tables(
    names: tuple[str, str],
    tasks: Mapping[str, tuple[Sequence[Outcome], Sequence[Outcome]]],
    results: Sequence[PairComparison | None],
) -> Tables:
    """One row per task, per quantity of a task, per size, and per quantity that was left out."""
    tables: Tables = {"comparisons": [], "rows": [], "sizes": [], "omitted": [], "panels": []}
    for (task, sides), one in zip(tasks.items(), results, strict=True):
        if one is None:
            continue
        compared = [*sides[0], *sides[1]]
        both = basis(compared)
        tables["comparisons"].append({**_comparison(names, task, one), "basis": both})
        for row in one.rows:
            named = {"task": task, "quantity": row.quantity, "is_ratio": row.ratio}
            tested = {"p_value": row.p_value, "q_value": row.q_value}
            numbers = flat(
                **named, a=row.first, b=row.second, effect=row.effect, **tested, note=row.note
            )
            tables["rows"].append({**numbers, "basis": both})
        for at in one.by_size:
            numbers = {
                "a": at.first,
                "b": at.second,
                "difference": at.difference,
                "ratio": at.tokens,
            }
            counts = {
                "only_a": at.only_first,
                "only_b": at.only_second,
                "problems": at.first.problems,
            }
            record = flat(
                task=task, size=at.size, **numbers, **counts, extrapolated=at.extrapolated
            )
            record["basis"] = basis(o for o in compared if o.size == at.size)
            tables["sizes"].append({"ratio": None, "ratio_low": None, "ratio_high": None} | record)
        for quantity, why in one.omitted:
            tables["omitted"].append(
                {"task": task, "quantity": quantity, "why": why, "basis": both}
            )
    return tables


def _comparison(names: tuple[str, str], task: str, one: PairComparison) -> dict[str, Any]:
    more = None if math.isinf(one.more_problems) else int(one.more_problems)
    return {
        "task": task,
        "a": names[0],
        "b": names[1],
        "problems": one.problems,
        **{
            f"{what}_{side}": getattr(one, what)[i]
            for what in PER_SIDE
            for i, side in enumerate("ab")
        },
        "margin": one.margin,
        "verdict": one.verdict,
        "more_problems": more,
        "variance_between": one.components.between if one.components.separate else None,
        "variance": one.components.total,
        "sentence": sentence(one),
    }


PER_SIDE = ("attempts", "seeds", "left_out", "failed")


def sentence(one: PairComparison) -> str:
    """What the comparison shows of B against A."""
    row = one.rows[0]
    apart, margin = points(flat(effect=row.effect), "effect"), f"{100 * one.margin:g} points"
    tokens = tokens_clause(one.row("tokens"))
    beside = f"; {tokens}" if tokens else ""
    if one.problems < FEWEST_PAIRS:
        return f"Can't tell: {count(one.problems, 'problem')} in common, and an interval needs {FEWEST_PAIRS}"
    if one.verdict == "above":
        return f"B is better than A: {apart}{beside}"
    if one.verdict == "not below":
        return (
            f"B is not worse than A by more than {margin}{_at(one.row('tokens'))}: {apart}{beside}"
        )
    if one.verdict == "slightly below":
        return (
            f"B is worse than A, but by less than {margin}{_at(one.row('tokens'))}: {apart}{beside}"
        )
    if one.verdict == "below":
        return f"B is worse than A: {apart}{beside}"
    if row.p_value <= FALSE_RATE:
        return f"Can't tell: {apart}, which doesn't withstand the correction for all comparisons; {_more(one)}{beside}"
    return f"Can't tell: {apart}, which excludes neither 0 nor a loss of {margin}; {_more(one)}{beside}"


def _at(tokens: Row | None) -> str:
    """`at 44 % fewer tokens`, if that is beyond chance."""
    if tokens is None or not tokens.differs:
        return ""
    return f" at {_change(tokens.effect.value)} tokens"


def _change(ratio: float) -> str:
    return (
        f"{1 - ratio:.0%} fewer"
        if ratio < 1
        else f"{ratio - 1:.0%} more"
        if ratio < 3
        else f"{ratio:.1f} times the"
    )


def tokens_clause(row: Row | None) -> str:
    if row is None:
        return ""
    ends = f"{row.effect.value:.2f} [{row.effect.low:.2f}, {row.effect.high:.2f}]"
    return f"its tokens are {ends} times those of A" + (
        "" if row.differs else ", which chance explains"
    )


def _more(one: PairComparison) -> str:
    if math.isfinite(one.more_problems):
        problems = count(_rounded(one.more_problems), "more problem")
        return f"about {problems} would decide in 80 % of runs, if the difference is as measured"
    if one.components.trained:
        return "no number of problems would decide: training seeds differ too much, so train more of them"
    return "no number of problems would decide, if the difference is as measured"


def _rounded(n: float) -> int:
    """To two digits, upwards."""
    step = int(10 ** max(0, math.floor(math.log10(n)) - 1))
    return math.ceil(n / step) * step


def in_common(record: dict[str, Any]) -> str:
    """How many problems are compared, and, loudly, what is left out."""
    said = (
        f"{count(record['problems'], 'problem')} in common; attempts: A {record['attempts_a']:,}, "
    )
    said += f"B {record['attempts_b']:,}"
    for side in "ab":
        if record[f"seeds_{side}"] > 1:
            said += f"; {side.upper()} has {record[f'seeds_{side}']} training seeds"
        elif record[f"seeds_{side}"] == 1:
            said += f"; {side.upper()} has one training seed, so nothing is known about how training varies"
    seeded = max(record["seeds_a"], record["seeds_b"]) > 1
    left = [
        f"{count(n, 'problem')} of {side} that "
        + (
            "not every seed of both answered"
            if seeded
            else f"{'BA'['AB'.index(side)]} did not answer"
        )
        for side in "AB"
        if (n := record[f"left_out_{side.lower()}"])
    ]
    left += [
        f"{count(record[f'failed_{side}'], 'failed attempt')} of {side.upper()}"
        for side in "ab"
        if record[f"failed_{side}"]
    ]
    return said + (f". LEFT OUT: {', '.join(left)}" if left else "")


def compared_findings(tables: Tables) -> list[str]:
    several = len(tables["comparisons"]) > 1
    sentences = []
    for record in tables["comparisons"]:
        named = f"A is {record['a']}, B is {record['b']}"
        where = f"{record['task']}: " if several else ""
        sentences.append(f"{where}{record['sentence']} ({named}).")
        sentences.append(f"{where}{in_common(record)}.")
        sentences += _others(tables["rows"], record["task"], where)
    return sentences


def _others(rows: Records, task: str, where: str) -> list[str]:
    clear = [
        f"{r['quantity']} × {r['effect']:.2f} [{end(r['effect_low'])}, {end(r['effect_high'])}]"
        for r in rows
        if r["task"] == task and r["is_ratio"] and r["q_value"] <= 0.05
    ]
    return (
        [f"{where}B over A, beyond chance after correction: {', '.join(clear)}."] if clear else []
    )


def end(value: float | None) -> str:
    return "?" if value is None else f"{value:.2f}"
