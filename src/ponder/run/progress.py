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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
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
MOST_REASONS = 100  # different ones that are counted
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
    in_jobs: dict[str, int] = field(default_factory=dict)  # requests in batch jobs, by model
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

    def asking_seconds(self, until: float) -> float:
        """Return the seconds since the start in which models were asked, not only prepared."""
        if self.silent_since is not None:
            until = self.silent_since
        return until - self.started - self.made_seconds

    def count(self, attempt: Attempt) -> None:
        """Count an attempt that has ended, and why it failed or could not be read."""
        if self.silent_since is not None:
            self.silent_since = monotonic()
        ending = attempt.ended
        setattr(self, ending, getattr(self, ending) + 1)
        if ending in ("failed", "unparsed"):
            # Texts from outside: only a few different ones are kept.
            reasons = self.reasons.setdefault(ending, Counter())
            why = " ".join(attempt.why.split())[:LONGEST_REASON]
            if why not in reasons and len(reasons) >= MOST_REASONS:
                why = "other reasons"
            reasons[why] += 1

    def report(self, label: str, progress: Progress | None) -> None:
        """Note the last report of a model's preparation; None: it has ended."""
        if progress is not None:
            self.making[label] = progress
            self.silent_since = self.silent_since or monotonic()
            return
        ended = self.making.pop(label, None) is not None
        if ended and not self.making and self.silent_since is not None:
            self.made_seconds += monotonic() - self.silent_since
            self.silent_since = None

    def ran_out(self, task: str, size: int, different: int, planned: int, samples: int) -> None:
        """Note that a task has fewer different problems of a size than a cell asks for."""
        self.too_few[task, size] = different, planned
        self.planned -= (planned - different) * samples

    def retried(self, retry: Retry) -> None:
        """Count a try that gave no answer; the last one of an attempt isn't repeated."""
        if retry.wait > 0:
            self.retries[retry.kind] += 1
        self.last_trouble = " ".join(retry.why.split())[:200]

    def warn(self, warning: str) -> None:
        """Note a model's warning, for the line of progress and for the summary."""
        if warning not in self.warnings and len(self.warnings) < MOST_WARNINGS:
            self.warnings.append(warning)
            self.last_trouble = warning

    def summary(self) -> dict[str, Any]:
        """Return the counts as JSON."""
        reasons = {}
        for ending, counter in self.reasons.items():
            reasons[ending] = dict(counter.most_common())
        return {
            "planned": self.planned,
            "stored_before": self.stored_before,
            "done": self.done,
            **{ending: getattr(self, ending) for ending in ENDINGS},
            "tokens": self.tokens,
            "lost_tokens": self.ledger.lost.tokens,
            "lost_calls": self.ledger.lost_calls,
            "cost": self.cost,
            "preparation_tokens": self.ledger.prepared.tokens,
            "preparation_cost": self.ledger.prepared.cost,
            "currency": self.currency,
            "capped": self.ledger.capped,
            "retries": dict(self.retries),
            "warnings": self.warnings,
            "reasons": reasons,
        }


BAR = 16  # characters
NOTEBOOK = 120  # characters of the line in a notebook


@contextmanager
def shown(tally: Tally) -> Iterator[None]:
    """Redraw the line while the block runs, and leave its last state on the screen."""
    redraw_line: Callable[[], None] = partial(write, tally)
    seconds = 0.2 if sys.stderr.isatty() else 10
    if _in_notebook():
        redraw_line = _Notebook(tally).redraw
        seconds = 0.5
    ended = threading.Event()

    def redraw() -> None:
        while not ended.wait(seconds):
            redraw_line()

    thread = threading.Thread(target=redraw, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        if tally.planned or tally.tokens or tally.making:  # else there was nothing to do
            redraw_line()
            if sys.stderr.isatty():
                sys.stderr.write("\n")


def _in_notebook() -> bool:
    ipython = sys.modules.get("IPython")
    return hasattr(ipython and ipython.get_ipython(), "kernel")


class _Notebook:
    """The line as an output that is replaced: a saved notebook holds only its last state."""

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
    """Return the state of a run in at most `width` characters; what matters least goes first."""
    making = dict(tally.making)
    if len(making) == 1 and not tally.done:
        (progress,) = making.values()
        facts = [f"{key} {value}".replace("_", " ") for key, value in progress.items()]
        return _fitted(facts, width)
    preparations = [_preparation(label, progress) for label, progress in making.items()]
    if making and not tally.done:
        return _fitted([f"making {len(making)}:", *preparations], width)
    done = tally.done
    filled = round(done / tally.planned * BAR) if tally.planned else BAR
    bar = "█" * filled + "░" * (BAR - filled)
    facts = [f"{bar} {done:,}/{tally.planned:,}"]
    seconds = tally.asking_seconds(monotonic())
    unanswered = max(0, tally.planned - done)
    in_jobs = sum(tally.in_jobs.values())
    if in_jobs:
        facts.append(f"{count(in_jobs, 'request')} in batch jobs")
    if tally.stop and tally.stop.asked:
        calls = tally.ledger.calls - in_jobs  # nobody waits for those in jobs
        if calls > 0:
            again = ", Ctrl-C again drops them" if tally.stop.signal else ""
            facts.append(f"stopping: waiting for {count(calls, 'call')}{again}")
    elif done and unanswered and not making and not in_jobs:
        # How long a preparation or a batch job takes, nobody knows.
        facts.append(f"{_clock(unanswered * seconds / done)} left")
    tokens = f"{short(tally.tokens)} tokens"
    if tally.cost:
        tokens += f", {money_text(tally.cost)} {tally.currency}"
    facts.append(tokens)
    for ending in ENDINGS:
        attempts = getattr(tally, ending)
        if attempts:
            facts.append(f"{ending} {attempts:,}")
    if in_jobs:
        pass  # the answers of a job come all at once
    elif done > seconds:
        facts.append(f"{done / seconds:.0f}/s")
    else:
        facts.append(f"{60 * done / max(seconds, 1e-9):.1f}/min")
    if tally.retries.total():
        retries = [count(n, kind) for kind, n in tally.retries.items() if n]
        facts.append(f"retries: {', '.join(retries)}")
    facts += [f"making {preparation}" for preparation in preparations]
    if tally.last_trouble:
        facts.append(f"last: {tally.last_trouble}")
    return _fitted(facts, width)


def _preparation(label: str, progress: Progress) -> str:
    """Describe one of several preparations in few words: `sft seed=2: step 50/400`."""
    facts = {key: value for key, value in progress.items() if key not in ("model", "method")}
    text = ""
    for key, value in list(facts.items())[:2]:
        if key == "of":
            text += f"/{value}"
        else:
            text += f" {key.replace('_', ' ')} {value}"
    return f"{label}:{text}" if text.startswith(" ") else f"{label}: {text}"


def _fitted(facts: list[str], width: int) -> str:
    """Join the facts that fit; of the first that doesn't, the words that do, if they are enough."""
    text = printable(facts[0])
    for fact in map(printable, facts[1:]):
        room = width - len(text) - 2
        if len(fact) > room:
            words = fact[: max(0, room)].rpartition(" ")[0].rstrip(" ,:")
            return f"{text}  {words}…" if len(words) >= 20 else text[:width]
        text += f"  {fact}"
    return text[:width]


def short(number: float) -> str:
    """Format a number with three significant digits and a unit: 950, 12.3k, 4.56M."""
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
    """Return the lines to print beside the result; "" if nothing went wrong."""
    lines = _warnings(tally)
    if tally.ledger.above_budget:
        lines.append(f"warning: {tally.ledger.above_budget}; no cap would hold with such a server")
    lines += _calls_without_usage(tally)
    lines += _troubles(tally)
    lines += _sizes_with_few_problems(tally)
    lines += _preparation_spend(tally)
    lines += cap_reached(tally)
    return "\n".join(lines)


def _warnings(tally: Tally) -> list[str]:
    lines = [f"warning: {printable(warning)}" for warning in tally.warnings[:MAX_REASONS]]
    omitted = len(tally.warnings) - MAX_REASONS
    if omitted > 0:
        lines.append(count(omitted, "other warning"))
    return lines


def _calls_without_usage(tally: Tally) -> list[str]:
    """Return how calls were counted whose output the server didn't report, under a cap."""
    calls = tally.ledger.estimated_calls
    if not calls:
        return []
    counted = (
        "a token per byte of the prompt and of the reply, "
        "or the whole budget if that may be too few"
    )
    reports = f"the server reports no usage of {count(calls, 'call')}, or less than the text has"
    return [f"warning: {reports}; the cap counts {counted}"]


def _troubles(tally: Tally) -> list[str]:
    """Return why attempts failed or could not be read, and what was billed without an answer."""
    lines = []
    for ending, reasons in tally.reasons.items():
        for why, attempts in reasons.most_common(MAX_REASONS):
            reason = printable(why) or "no reason given"
            text = f"{ending} {attempts:,}: {reason}"
            lines.append(textwrap.fill(text, WIDTH, subsequent_indent="    ", **AT_SPACES))
        omitted = len(reasons) - MAX_REASONS
        if omitted > 0:
            lines.append(f"{ending}: {count(omitted, 'other reason')}")
    calls = tally.ledger.lost_calls
    if calls:
        tokens = tally.ledger.lost.tokens
        amount = "how much, only the server knows"
        if tokens:
            amount = f"up to {short(tokens)} tokens, counted as spent"
        lines.append(f"{count(calls, 'call')} without an answer may have been billed: {amount}")
    return lines


def _sizes_with_few_problems(tally: Tally) -> list[str]:
    """Return sizes of which a task has fewer different problems than the study asks for."""
    lines = []
    for (task, size), (different, planned) in tally.too_few.items():
        problems = f"{count(different, 'different problem')} of size {size}"
        text = f"task `{task}` has only {problems}, where the study asks for {planned:,}"
        if different == 1:
            text += ": does the task use its seed?"
        lines.append(text)
    return lines


def _preparation_spend(tally: Tally) -> list[str]:
    """Return what preparations have spent, such as the samples of teachers."""
    prepared = tally.ledger.prepared
    if not prepared.tokens:
        return []
    cost = f" and {money_text(prepared.cost)} {tally.currency}" if prepared.cost else ""
    return [f"preparations took {short(prepared.tokens)} tokens{cost} of that"]


def cap_reached(tally: Tally) -> list[str]:
    """Return how far a run came under its caps, and what to do; nothing if no cap stopped it."""
    ledger = tally.ledger
    if ledger.overbilled:
        reason = f"stopped: {ledger.overbilled}; no cap can be kept with such a server"
        return [reason, "to go on without a cap, remove it"]
    if not ledger.capped:
        return []
    total = ledger.before.plus(ledger.jobs).plus(ledger.spent)
    next_turn = ledger.refused or total
    limits = []
    keys = []
    if ledger.max_tokens is not None:
        spent = f"{total.tokens:,} of {ledger.max_tokens:,} tokens"
        limits.append(f"{spent}, and the next turn may take {next_turn.tokens:,}")
        keys.append("max_tokens")
    if ledger.max_cost is not None:
        spent = f"{money_text(total.cost)} of {money_text(ledger.max_cost)} {tally.currency}"
        limits.append(f"{spent}, and the next turn may cost {money_text(next_turn.cost)}")
        keys.append("max_cost")
    lines = [
        f"stopped at the cap: {'; '.join(limits)}",
        f"to go on, raise {' or '.join(keys)} and run again",
    ]
    if ledger.jobs.tokens:
        lines.append(
            f"{ledger.jobs.tokens:,} of these tokens are of requests in batch jobs, "
            "at the most that they may take"
        )
    held = ledger.before_held
    if held.tokens:
        cost = f" and {money_text(held.cost)} {tally.currency}" if held.cost else ""
        in_flight = "are of calls in flight when earlier runs were killed"
        lines.append(
            f"{held.tokens:,} of these tokens{cost} {in_flight}, and may not have been billed: "
            "if your provider's bill says so, run with --release-lost"
        )
    return lines


def money_text(amount: float) -> str:
    """Format money to the cent, and less than one unit to four digits."""
    return f"{amount:.2f}" if amount >= 1 or not amount else f"{amount:.4f}"
