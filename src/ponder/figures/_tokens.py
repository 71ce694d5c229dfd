"""Which tokens a figure counts: thinking, answer or both, the same kind for all of its models, and
how it says so.

A model that reasons in its reply reports no thinking tokens: on an axis of thinking tokens all its
attempts are at 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

from ponder.core import Outcome, Records, TokenKind
from ponder.study.labels import model_labels

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


def token_kind(outcomes: Sequence[Outcome], asked: Tokens) -> TokenKind:
    """The tokens to count.

    "auto": thinking tokens if every model reports them, else output tokens for all.
    """
    if asked != "auto":
        return asked
    return "output" if _silent(outcomes) else "thinking"


def counted(outcomes: Sequence[Outcome], asked: Tokens) -> dict[str, Any]:
    """Columns for a figure's table: the tokens that it counts, and why, if that was not asked for."""
    silent = _silent(outcomes) if asked == "auto" else {}
    none = [model for model, fraction in silent.items() if not fraction]
    parts = (
        [f"{_listed(none)} {'report' if len(none) > 1 else 'reports'} no thinking tokens"]
        if none
        else []
    )
    parts += [
        f"{model} reports thinking tokens in only {f:.0%} of its attempts"
        for model, f in silent.items()
        if f
    ]
    return {"token_kind": token_kind(outcomes, asked), "token_kind_why": ", and ".join(parts)}


def token_findings(records: Records) -> list[str]:
    """A sentence if `auto` chose output tokens: nobody asked for them, so the reader should know
    why.
    """
    chosen = next((r for r in records if r["token_kind_why"]), None)
    return (
        [f"Tokens are {TITLES[chosen['token_kind']]} for all models: {chosen['token_kind_why']}."]
        if chosen
        else []
    )


def estimated(outcomes: Sequence[Outcome]) -> str:
    """A note if tokens were not counted by a server or a tokenizer but estimated from the text;
    else "".
    """
    counted_by = Counter(o.counted_by for o in outcomes if o.answered)
    guessed, every = counted_by["estimate"], counted_by.total()
    if not guessed:
        return ""
    return (
        "tokens are estimates"
        if guessed == every
        else f"tokens of {guessed:,} of {every:,} attempts are estimates"
    )


def overlay_notes(published: TokenKind, kind: TokenKind) -> list[str]:
    """A note if published numbers count other tokens than the axis they are drawn on."""
    if published == kind:
        return []
    return [f"published: {TITLES[published]}, on an axis of {TITLES[kind]}"]


def _silent(outcomes: Sequence[Outcome]) -> dict[str, float]:
    """The models that don't report thinking tokens, each with the fraction of its attempts that
    have some.
    """
    answers: Counter[bytes] = Counter()
    thought: Counter[bytes] = Counter()
    for o in outcomes:
        if o.answered:
            answers[o.cell.model_key] += 1
            thought[o.cell.model_key] += o.thinking_tokens > 0
    names = model_labels(outcomes)
    fractions = {names[model]: thought[model] / answers[model] for model in answers}
    return {name: fractions[name] for name in sorted(fractions) if fractions[name] < REPORTS}


def _listed(names: Sequence[str]) -> str:
    shown = list(names[:3]) + ([f"{len(names) - 3} more"] if len(names) > 3 else [])
    return " and ".join([", ".join(shown[:-1]), shown[-1]]) if len(shown) > 1 else shown[0]
