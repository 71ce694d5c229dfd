"""What a run tells at its end, however it ended: warnings, why attempts failed, a cap, problems that ran out."""

from __future__ import annotations

from ponder.core.text import count, printable
from ponder.runner.progress import short
from ponder.runner.tally import Tally

MAX_REASONS = 5


def summary(tally: Tally) -> str:
    """The lines to print beside the result; empty if nothing went wrong."""
    lines = [
        *_warnings(tally),
        *_troubles(tally),
        *_too_few(tally),
        *([_cap_reached(tally)] if tally.ledger.capped else []),
    ]
    return "\n".join(lines)


def _warnings(tally: Tally) -> list[str]:
    lines = [f"warning: {printable(warning)}" for warning in tally.warnings[:MAX_REASONS]]
    rest = len(tally.warnings) - MAX_REASONS
    return [*lines, count(rest, "other warning")] if rest > 0 else lines


def _troubles(tally: Tally) -> list[str]:
    """Why attempts failed or could not be read, with counts, and what may have been billed without an answer."""
    lines = []
    for ending, reasons in tally.reasons.items():
        for why, n in reasons.most_common(MAX_REASONS):
            lines.append(f"{ending} {n:,}: {printable(why) or 'no reason given'}")
        if (rest := len(reasons) - MAX_REASONS) > 0:
            lines.append(f"{ending}: {count(rest, 'other reason')}")
    if calls := tally.ledger.lost_calls:
        tokens = tally.ledger.lost.tokens
        counted = f"up to {short(tokens)} tokens, counted as spent" if tokens else "how much, only the server knows"
        lines.append(f"{count(calls, 'call')} without an answer may have been billed: {counted}")
    return lines


def _too_few(tally: Tally) -> list[str]:
    """Sizes of which a task has fewer different problems than the study asks for."""
    lines = []
    for (task, size), (different, wanted) in tally.too_few.items():
        why = ": does the task use its seed?" if different == 1 else ""
        had = f"{count(different, 'different problem')} of size {size}, where the study asks for {wanted:,}"
        lines.append(f"task `{task}` has only {had}{why}")
    return lines


def _cap_reached(tally: Tally) -> str:
    """How far a run came under its caps, what it lacks for more, and what to do."""
    ledger = tally.ledger
    total = ledger.before.plus(ledger.spent)
    wanted = ledger.refused or total
    limits, keys = [], []
    if ledger.max_tokens is not None:
        limits.append(f"{total.tokens:,} of {ledger.max_tokens:,} tokens, and the next turn may take {wanted.tokens:,}")
        keys.append("max_tokens")
    if ledger.max_cost is not None:
        spent, most, more = (money_text(n) for n in (total.cost, ledger.max_cost, wanted.cost))
        limits.append(f"{spent} of {most} {tally.currency}, and the next turn may cost {more}")
        keys.append("max_cost")
    return f"stopped at the cap: {'; '.join(limits)}\nto go on, raise {' or '.join(keys)} and run again"


def money_text(amount: float) -> str:
    """Money to the cent, and less than one unit to four digits."""
    return f"{amount:.2f}" if amount >= 1 or not amount else f"{amount:.4f}"
