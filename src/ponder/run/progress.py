"""What a run has done so far: its counts, the line of progress, and the summary at its end.

The line is redrawn in place on a terminal and in a notebook, and written every ten seconds to a log
file. Written by hand: a progress-bar library would do no more than these few lines.
"""

from __future__ import annotations

import shutil
import sys
import textwrap
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING, Any

from ponder.core import Attempt, Progress, Retry
from ponder.core.text import count, printable
from ponder.run.caps import Ledger
from ponder.run.interrupt import Stop

if TYPE_CHECKING:
    from ponder.store.writer import Writer

MOST_WARNINGS = 100  # they may be texts from outside
LONGEST_REASON = 2500  # characters of why an attempt failed, which may be a server's whole message
ENDINGS = ("right", "wrong", "unparsed", "truncated", "failed")


@dataclass
class Tally:
    """Counts of one run."""

    planned: int = 0
    stored_before: int = 0
    right: int = 0
    wrong: int = 0
    unparsed: int = 0
    truncated: int = 0
    failed: int = 0
    ledger: Ledger = field(default_factory=Ledger)  # tokens and money
    writer: Writer | None = None  # stores the attempts
    currency: str = ""
    retries: Counter[str] = field(default_factory=Counter)  # by kind: rate limit, timeout, error
    last_trouble: str = ""  # why the last try gave no answer, or the last warning
    warnings: list[str] = field(default_factory=list)  # of models, each once
    # of failed and unparsed attempts
    reasons: dict[str, Counter[str]] = field(default_factory=dict)
    # task, size: problems had, wanted
    too_few: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    stop: Stop | None = None  # whether the run was asked to stop
    started: float = field(default_factory=monotonic)
    # the last report of each preparation, by model
    making: dict[str, Progress] = field(default_factory=dict)
    made_seconds: float = 0.0  # in which models were made and nothing was answered
    # while models are made: when that began, or the last answer came
    silent_since: float | None = None

    @property
    def done(self) -> int:
        return sum(getattr(self, ending) for ending in ENDINGS)

    @property
    def stored(self) -> int:
        """Attempts of this run that are committed to the store."""
        return self.writer.stored if self.writer else 0

    @property
    def tokens(self) -> int:
        """Spent by this run, tries without an answer and preparations included."""
        return self.ledger.spent.tokens

    @property
    def cost(self) -> float:
        return self.ledger.spent.cost

    def asking_seconds(self, now: float) -> float:
        """Seconds since the start, without those in which models were made and nothing was
        answered.
        """
        return (
            (now if self.silent_since is None else self.silent_since)
            - self.started
            - self.made_seconds
        )

    def count(self, attempt: Attempt) -> None:
        if self.silent_since is not None:
            self.silent_since = monotonic()
        ending = attempt.ended
        setattr(self, ending, getattr(self, ending) + 1)
        if ending in ("failed", "unparsed"):
            # Texts from outside: only a few different ones are kept.
            reasons = self.reasons.setdefault(ending, Counter())
            why = " ".join(attempt.why.split())[:LONGEST_REASON]
            reasons[why if why in reasons or len(reasons) < 100 else "other reasons"] += 1

    def report(self, label: str, progress: Progress | None) -> None:
        """How the preparation of a model goes; None: it has ended."""
        if progress is not None:
            self.making[label] = progress
            self.silent_since = self.silent_since or monotonic()
        elif (
            self.making.pop(label, None) is not None
            and not self.making
            and self.silent_since is not None
        ):
            self.made_seconds += monotonic() - self.silent_since
            self.silent_since = None

    def ran_out(self, task: str, size: int, different: int, wanted: int, samples: int) -> None:
        """Note that a task has fewer different problems of a size than a cell asks for."""
        self.too_few[task, size] = different, wanted
        self.planned -= (wanted - different) * samples

    def retried(self, retry: Retry) -> None:
        self.retries[retry.kind] += retry.wait > 0  # the last try of an attempt isn't repeated
        self.last_trouble = " ".join(retry.why.split())[:200]

    def warn(self, warning: str) -> None:
        """Note what a model has noticed; the progress line shows it at once, and the summary at the
        end.
        """
        if warning not in self.warnings and len(self.warnings) < MOST_WARNINGS:
            self.warnings.append(warning)
            self.last_trouble = warning

    def summary(self) -> dict[str, Any]:
        """The counts as JSON."""
        counts = {ending: getattr(self, ending) for ending in ENDINGS}
        lost = {"lost_tokens": self.ledger.lost.tokens, "lost_calls": self.ledger.lost_calls}
        prepared = {
            "preparation_tokens": self.ledger.prepared.tokens,
            "preparation_cost": self.ledger.prepared.cost,
        }
        spent = {"tokens": self.tokens, **lost, "cost": self.cost, **prepared}
        return {
            "planned": self.planned,
            "stored_before": self.stored_before,
            "done": self.done,
            **counts,
            **spent,
            "currency": self.currency,
            "capped": self.ledger.capped,
            "retries": dict(self.retries),
            "warnings": self.warnings,
            "reasons": {
                ending: dict(reasons.most_common()) for ending, reasons in self.reasons.items()
            },
        }


BAR = 16  # characters
NOTEBOOK = 120  # characters of the line in a notebook


@contextmanager
def shown(tally: Tally) -> Iterator[None]:
    """Redraw the line while the block runs, and leave its last state on the screen."""
    notebook = _Notebook(tally) if _in_notebook() else None
    redrawn = notebook.redraw if notebook else lambda: write(tally)
    seconds = 0.5 if notebook else 0.2 if sys.stderr.isatty() else 10
    ended = threading.Event()

    def redraw() -> None:
        while not ended.wait(seconds):
            redrawn()

    thread = threading.Thread(target=redraw, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        redrawn()
        if sys.stderr.isatty():
            sys.stderr.write("\n")


def _in_notebook() -> bool:
    ipython = sys.modules.get("IPython")
    return hasattr(ipython and ipython.get_ipython(), "kernel")


class _Notebook:
    """The line as an output that is replaced, so that a saved notebook holds only its last state."""

    def __init__(self, tally: Tally) -> None:
        from IPython.display import display

        self.tally = tally
        self.output = display(self, display_id=True)

    def redraw(self) -> None:
        self.output.update(self)

    def __repr__(self) -> str:
        return line(self.tally, NOTEBOOK)


def write(tally: Tally) -> None:
    """Write the line now."""
    if sys.stderr.isatty():
        width = shutil.get_terminal_size().columns
        sys.stderr.write(f"\r{line(tally, width - 1)}\x1b[K")
    else:
        sys.stderr.write(f"{line(tally)}\n")
    sys.stderr.flush()


def line(tally: Tally, width: int = 10_000) -> str:
    """The state of a run as one line of at most `width` characters; what matters least is left out
    first.
    """
    making = dict(tally.making)
    if len(making) == 1 and not tally.done:
        (report,) = making.values()
        return _fitted([f"{key} {value}".replace("_", " ") for key, value in report.items()], width)
    if making and not tally.done:
        return _fitted([f"making {len(making)}:", *(_made(*one) for one in making.items())], width)
    seconds = tally.asking_seconds(monotonic())
    done, left = tally.done, max(0, tally.planned - tally.done)
    rate = (
        f"{done / seconds:.0f}/s" if done > seconds else f"{60 * done / max(seconds, 1e-9):.1f}/min"
    )
    tokens = f"{short(tally.tokens)} tokens" + (
        f", {tally.cost:.2f} {tally.currency}" if tally.cost else ""
    )
    parts = [f"{done:,}/{tally.planned:,}"]
    if tally.stop and tally.stop.asked:
        again = ", Ctrl-C again drops them" if tally.stop.signal else ""
        parts += (
            [f"stopping: waiting for {count(calls, 'call')}{again}"]
            if (calls := tally.ledger.calls)
            else []
        )
    elif done and left and not making:  # how long that takes, nobody knows
        parts.append(f"{_clock(left * seconds / done)} left")
    parts += [
        tokens,
        *(f"{ending} {n:,}" for ending in ENDINGS if (n := getattr(tally, ending))),
        rate,
    ]
    if tally.retries.total():
        parts.append(
            "retries: " + ", ".join(count(n, kind) for kind, n in tally.retries.items() if n)
        )
    parts += [f"making {_made(*one)}" for one in making.items()]
    if tally.last_trouble:
        parts.append(f"last: {tally.last_trouble}")
    bar = round(done / tally.planned * BAR) if tally.planned else BAR
    return _fitted([f"{'█' * bar}{'░' * (BAR - bar)} {parts[0]}", *parts[1:]], width)


def _made(label: str, report: Progress) -> str:
    """One of several preparations, in few words: `sft seed=2: step 50/400`."""
    news = [
        (key.replace("_", " "), value)
        for key, value in report.items()
        if key not in ("model", "method")
    ]
    said = " ".join(
        f"/{value}" if key == "of" else f"{key} {value}" for key, value in news[:2]
    ).replace(" /", "/")
    return f"{label}: {said}"


def _fitted(parts: list[str], width: int) -> str:
    """The parts that fit, in their order; of the first that doesn't, the words that do, if enough
    remain to be read.
    """
    text = printable(parts[0])
    for part in map(printable, parts[1:]):
        room = width - len(text) - 2
        if len(part) > room:
            words = part[: max(0, room)].rpartition(" ")[0].rstrip(" ,:")
            return f"{text}  {words}…" if len(words) >= 20 else text[:width]
        text += f"  {part}"
    return text[:width]


def short(number: float) -> str:
    """A number with three significant digits and a unit: 950, 12.3k, 4.56M."""
    for unit, name in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= unit:
            return f"{number / unit:.3g}{name}"
    return f"{number:.0f}"


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


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
