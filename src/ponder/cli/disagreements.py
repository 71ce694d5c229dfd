"""The attempts at problems that only one of two models got right, as `ponder compare --disagree`
shows them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ponder.core import UserError
from ponder.core.text import count

if TYPE_CHECKING:
    from ponder.cli.compare import Model
    from ponder.core import Attempt, Outcome

LONGEST = 600  # characters of a text that are shown; --json has all of it


def disagreements(
    first: Model, second: Model, tasks: dict[str, tuple[list[Outcome], list[Outcome]]], size: int
) -> list[dict[str, Any]]:
    """One record per problem of this size that one model got right more often than the other."""
    found = []
    for task, sides in tasks.items():
        rates = [_rates(part, size) for part in sides]
        differing = [
            p for p in sorted(rates[0].keys() & rates[1].keys()) if rates[0][p] != rates[1][p]
        ]
        texts = []
        for model, outcomes in zip((first, second), sides, strict=True):
            texts.append(_attempts(model, outcomes, size, set(differing)))
        for problem in differing:
            record: dict[str, Any] = {"task": task, "size": size, "problem": problem}
            record |= {"right": "A" if rates[0][problem] > rates[1][problem] else "B"}
            found.append(record | {"a": texts[0][problem], "b": texts[1][problem]})
    if not found and not any(o.size == size for part in tasks.values() for o in part[0]):
        sizes = sorted({o.size for part in tasks.values() for o in part[0]})
        raise UserError(
            f"no problem has size {size}",
            where="--disagree",
            hint=f"sizes: {', '.join(map(str, sizes))}",
        )
    return found


def _rates(outcomes: list[Outcome], size: int) -> dict[str, float]:
    answers: dict[str, list[bool]] = {}
    for o in outcomes:
        if o.size == size and o.answered:
            answers.setdefault(o.problem, []).append(o.correct)
    return {problem: sum(right) / len(right) for problem, right in answers.items()}


def _attempts(
    model: Model, outcomes: list[Outcome], size: int, problems: set[str]
) -> dict[str, list[dict[str, Any]]]:
    from ponder.store.store import Store

    texts: dict[str, list[dict[str, Any]]] = {problem: [] for problem in problems}
    cells_of_task = {outcome.cell for outcome in outcomes}
    with Store(model.store) as opened:
        for cell in model.cells:
            if cell.size != size or cell not in cells_of_task:
                continue
            for done in opened.attempts(cell):
                if done.attempt.problem.id in problems and done.attempt.ended != "failed":
                    texts[done.attempt.problem.id].append(_text(done.attempt, cell.label.model))
    return texts


def _text(attempt: Attempt, model: str) -> dict[str, Any]:
    return {
        "model": model,
        "sample": attempt.sample,
        "ended": attempt.ended,
        "why": attempt.why,
        "thinking_tokens": attempt.bill.thinking_tokens,
        "answer_tokens": attempt.bill.answer_tokens,
        "question": attempt.problem.turns[-1],
        "thinking": "\n".join(c.thinking for c in attempt.completions if c.thinking),
        "answer": attempt.completions[-1].answer if attempt.completions else "",
    }


def disagreements_text(found: list[dict[str, Any]], size: int) -> str:
    parts = [
        f"{count(len(found), 'problem')} of size {size} on which one is right more often than the other"
    ]
    for record in found:
        first = record["a"][0] if record["a"] else record["b"][0]
        lines = [
            f"{record['task']}, problem {record['problem']}: {record['right']} is right",
            _cut(first["question"]),
        ]
        for side in "ab":
            for one in record[side]:
                why = f": {one['why']}" if one["why"] else ""
                tokens = f"{one['thinking_tokens'] + one['answer_tokens']:,} tokens"
                lines.append(
                    f"{side.upper()} {one['model']}, {one['ended']}{why}, {tokens}\n{_cut(one['answer'])}"
                )
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def _cut(text: str) -> str:
    """Return a text that fits on a screen. A long one keeps its end, where an answer stands."""
    if len(text) > LONGEST:
        begins = text[: LONGEST // 3]
        ends = text[-(LONGEST - len(begins)) :]
        text = f"{begins} … ({len(text):,} characters; --json has all) … {ends}"
    return "\n".join(f"    {line}" for line in text.splitlines())
