"""What a run counts: answers of every kind, and why there were none."""

from __future__ import annotations

from ponder.core import Attempt, Bill, Completion
from ponder.run.attempt import graded
from ponder.run.progress import Tally
from ponder.tasks.chain_sum import ChainSum
from ponder.tasks.execution import Execution


def test_a_tally_counts_endings_and_their_reasons() -> None:
    tally = Tally()
    problem = ChainSum().problem(2, 1)
    for ended, why in (
        ("failed", "down"),
        ("failed", "down"),
        ("right", ""),
        ("wrong", "wrong sum"),
        ("unparsed", "empty reply"),
        ("truncated", ""),
    ):
        tally.count(Attempt(problem, 0, ended, why, ()))  # type: ignore[arg-type]
    assert (
        tally.right,
        tally.wrong,
        tally.unparsed,
        tally.truncated,
        tally.failed,
        tally.done,
    ) == (1, 1, 1, 1, 2, 6)
    assert tally.summary()["reasons"] == {"failed": {"down": 2}, "unparsed": {"empty reply": 1}}


def test_reasons_from_outside_don_t_fill_the_memory() -> None:
    tally = Tally()
    problem = ChainSum().problem(2, 1)
    for n in range(1000):
        tally.count(Attempt(problem, 0, "failed", f"request {n} " + "x" * 5000, ()))
    assert len(tally.reasons["failed"]) <= 101
    assert sum(tally.reasons["failed"].values()) == 1000
    assert max(map(len, tally.reasons["failed"])) <= 2500


def test_measurements_are_averaged_over_turns() -> None:
    task = Execution()
    turns = [
        Completion("", "<answer>1</answer>", "end", Bill(), {"cache_bytes": n})
        for n in (10.0, 30.0)
    ]
    attempt = Attempt(task.problem(2, 1), 0, "open", "", tuple(turns))
    assert graded(task, attempt).details["cache_bytes"] == 20
