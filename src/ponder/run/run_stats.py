"""What a run has done so far: counts for the progress line and for the summary at its end."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING, Any

from ponder.core import Attempt, Progress, Retry
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
