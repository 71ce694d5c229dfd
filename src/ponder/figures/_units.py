"""What a figure's axes count: the tokens (thinking, answer or both), and the unit of problem sizes.

A figure counts the same kind of tokens for all of its models. A model that reasons in its reply
reports no thinking tokens: on an axis of thinking tokens all its attempts would be at 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Literal, TypeAlias

from ponder.core import Outcome, Records, TokenKind
from ponder.core.text import plural
from ponder.figures import Row
from ponder.study.labels import cells_of, model_labels

Tokens: TypeAlias = Literal["auto", "output", "thinking", "answer"]
TITLES: dict[TokenKind, str] = {
    "output": "output tokens (thinking + answer)",
    "thinking": "thinking tokens",
    "answer": "answer tokens",
}
# A model counts as reporting thinking if this fraction of its attempts has some. Not "any": budget
# forcing turns the replies that it cuts into thinking, and only those. Output tokens are right for
# a model that often answers at once.
REPORTS = 0.9
LEVELS = "levels"  # the unit of sizes that are only ranks: level 4 isn't twice level 2


def token_kind(outcomes: Sequence[Outcome], tokens: Tokens) -> TokenKind:
    """Return the tokens to count.

    "auto": thinking tokens if every model reports them, else output tokens for all.
    """
    if tokens != "auto":
        return tokens
    return "output" if _without_thinking(outcomes) else "thinking"


def token_columns(outcomes: Sequence[Outcome], tokens: Tokens) -> Row:
    """Return columns of a figure's table: the tokens that it counts, and why `auto` chose them."""
    fractions = _without_thinking(outcomes) if tokens == "auto" else {}
    never = [model for model, fraction in fractions.items() if not fraction]
    reasons = []
    if never:
        verb = "report" if len(never) > 1 else "reports"
        reasons.append(f"{_listed(never)} {verb} no thinking tokens")
    for model, fraction in fractions.items():
        if fraction:
            reasons.append(
                f"{model} reports thinking tokens in only {fraction:.0%} of its attempts"
            )
    return {"token_kind": token_kind(outcomes, tokens), "token_kind_why": ", and ".join(reasons)}


def token_findings(records: Records) -> list[str]:
    """Return a sentence if `auto` chose output tokens, so that the reader knows why."""
    for record in records:
        if record["token_kind_why"]:
            title = TITLES[record["token_kind"]]
            return [f"Tokens are {title} for all models: {record['token_kind_why']}."]
    return []


def estimated(outcomes: Sequence[Outcome]) -> str:
    """Say how many token counts are estimates from the text, not a server's or a tokenizer's."""
    counted_by = Counter(outcome.counted_by for outcome in outcomes if outcome.answered)
    estimates = counted_by["estimate"]
    if not estimates:
        return ""
    if estimates == counted_by.total():
        return "tokens are estimates"
    return f"tokens of {estimates:,} of {counted_by.total():,} attempts are estimates"


def overlay_notes(published: TokenKind, kind: TokenKind) -> list[str]:
    """Return a note if published numbers count other tokens than the axis they are drawn on."""
    if published == kind:
        return []
    return [f"published: {TITLES[published]}, on an axis of {TITLES[kind]}"]


def _without_thinking(outcomes: Sequence[Outcome]) -> dict[str, float]:
    """Return the fraction of attempts with thinking tokens, of each model that reports none.

    A model reports none if that fraction is below `REPORTS`.
    """
    answered: Counter[bytes] = Counter()
    with_thinking: Counter[bytes] = Counter()
    for outcome in outcomes:
        if outcome.answered:
            answered[outcome.cell.model_key] += 1
            with_thinking[outcome.cell.model_key] += outcome.thinking_tokens > 0
    names = model_labels(outcomes)
    fractions = {names[model]: with_thinking[model] / answered[model] for model in answered}
    return {name: fractions[name] for name in sorted(fractions) if fractions[name] < REPORTS}


def _listed(names: Sequence[str]) -> str:
    listed = list(names[:3])
    if len(names) > 3:
        listed.append(f"{len(names) - 3} more")
    if len(listed) == 1:
        return listed[0]
    return f"{', '.join(listed[:-1])} and {listed[-1]}"


def unit_of(outcomes: Sequence[Outcome], unit: str) -> str:
    """Return what sizes count: `unit`, in the plural, or else the unit of the outcomes' tasks."""
    if unit:
        return unit if unit.endswith("s") else plural(unit)
    by_task = set()
    for cell, label in cells_of(outcomes).items():
        if cell.task.unit:
            by_task.add((label.task, cell.task.unit))
    units = {task_unit for _, task_unit in by_task}
    if len(units) > 1:
        return ", ".join(f"{task}: {task_unit}" for task, task_unit in sorted(by_task))
    return next(iter(units), "")


def singular(unit: str) -> str:
    """Return the singular, as in `tokens per cell`."""
    return unit.removesuffix("s") or "unit of size"


def with_unit(size: str, unit: str) -> str:
    """Write a size: `16 cells`, `1 cell`, `level 3`, or `size 16` if there is no unit."""
    if not unit:
        return f"size {size}"
    if unit == LEVELS:
        return f"{singular(unit)} {size}"
    return f"{size} {singular(unit) if size == '1' else unit}"


def size_title(unit: str, *notes: str) -> str:
    """Return the title of an axis of sizes, such as `problem size (cells, log scale)`."""
    inside = ", ".join(note for note in (unit, *notes) if note)
    return f"problem size ({inside})" if inside else "problem size"
