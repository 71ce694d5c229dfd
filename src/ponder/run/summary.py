"""What a run tells at its end, however it ended: warnings, why attempts failed, a cap, problems
that ran out.
"""

from __future__ import annotations

import textwrap
from typing import Any

from ponder.core.text import count, printable
from ponder.run.progress import short
from ponder.run.run_stats import Tally

MAX_REASONS = 5
WIDTH = 120  # characters of a line
# so that addresses stay whole
AT_SPACES: dict[str, Any] = {"break_long_words": False, "break_on_hyphens": False}


def summary(tally: Tally) -> str:
    """The lines to print beside the result; empty if nothing went wrong."""
    lines = [
        *_warnings(tally),
        *_estimated(tally),
        *_troubles(tally),
        *_too_few(tally),
        *_prepared(tally),
        *cap_reached(tally),
    ]
    return "\n".join(lines)


def _warnings(tally: Tally) -> list[str]:
    lines = [f"warning: {printable(warning)}" for warning in tally.warnings[:MAX_REASONS]]
    rest = len(tally.warnings) - MAX_REASONS
    return [*lines, count(rest, "other warning")] if rest > 0 else lines


def _estimated(tally: Tally) -> list[str]:
    """Return how calls were counted for which the server reported no usage, under a cap."""
    if not (calls := tally.ledger.estimated_calls):
        return []
    counted = "a token per byte of the prompt and of the reply, or the whole budget if that may be too few"
    return [
        f"warning: the server reports no usage of {count(calls, 'call')}; the cap counts {counted}"
    ]


def _troubles(tally: Tally) -> list[str]:
    """Why attempts failed or could not be read, with counts, and what may have been billed without
    an answer.
    """
    lines = []
    for ending, reasons in tally.reasons.items():
        for why, n in reasons.most_common(MAX_REASONS):
            reason = printable(why) or "no reason given"
            lines.append(
                textwrap.fill(
                    f"{ending} {n:,}: {reason}", WIDTH, subsequent_indent="    ", **AT_SPACES
                )
            )
        if (rest := len(reasons) - MAX_REASONS) > 0:
            lines.append(f"{ending}: {count(rest, 'other reason')}")
    if calls := tally.ledger.lost_calls:
        tokens = tally.ledger.lost.tokens
        counted = (
            f"up to {short(tokens)} tokens, counted as spent"
            if tokens
            else "how much, only the server knows"
        )
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


def _prepared(tally: Tally) -> list[str]:
    """Return what preparations have spent, such as the samples of teachers."""
    prepared = tally.ledger.prepared
    if not prepared.tokens:
        return []
    cost = f" and {money_text(prepared.cost)} {tally.currency}" if prepared.cost else ""
    return [f"preparations took {short(prepared.tokens)} tokens{cost} of that"]


def cap_reached(tally: Tally) -> list[str]:
    """Return how far a run came under its caps, and what to do; empty if it didn't stop at a cap."""
    ledger = tally.ledger
    if ledger.overbilled:
        reason = f"stopped: {ledger.overbilled}; no cap can be kept with such a server"
        return [reason, "to go on without a cap, remove it"]
    if not ledger.capped:
        return []
    total = ledger.before.plus(ledger.spent)
    wanted = ledger.refused or total
    limits, keys = [], []
    if ledger.max_tokens is not None:
        limits.append(
            f"{total.tokens:,} of {ledger.max_tokens:,} tokens, and the next turn may take {wanted.tokens:,}"
        )
        keys.append("max_tokens")
    if ledger.max_cost is not None:
        spent, most, more = (money_text(n) for n in (total.cost, ledger.max_cost, wanted.cost))
        limits.append(f"{spent} of {most} {tally.currency}, and the next turn may cost {more}")
        keys.append("max_cost")
    lines = [
        f"stopped at the cap: {'; '.join(limits)}",
        f"to go on, raise {' or '.join(keys)} and run again",
    ]
    if held := ledger.before_held.tokens:
        cost = (
            f" and {money_text(ledger.before_held.cost)} {tally.currency}"
            if ledger.before_held.cost
            else ""
        )
        lines.append(
            f"{held:,} of these tokens{cost} are of calls in flight when earlier runs were killed, and may not have "
            "been billed: if your provider's bill says so, run with --release-lost"
        )
    return lines


def money_text(amount: float) -> str:
    """Money to the cent, and less than one unit to four digits."""
    return f"{amount:.2f}" if amount >= 1 or not amount else f"{amount:.4f}"
