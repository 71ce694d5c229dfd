"""What a run counts: answers of every kind, tokens and money, and when it may start one more attempt."""

from __future__ import annotations

from ponder.core import Attempt, Bill, Completion, Prices
from ponder.models.oracle import Oracle
from ponder.runner.run import Tally, graded
from ponder.tasks.chain_sum import ChainSum
from ponder.tasks.execution import Execution


def test_a_cap_counts_what_is_in_flight() -> None:
    tally = Tally(max_tokens=1000, right=5, tokens=500)
    assert tally.may_start(4)  # ten attempts at a hundred tokens each
    assert not tally.capped
    assert not tally.may_start(5)
    assert tally.capped
    assert Tally(right=5, tokens=500).may_start(1000)
    costly = Tally(max_cost=10.0, right=5, cost=5.0)
    assert costly.may_start(4)
    assert not costly.may_start(5)


def test_a_tally_counts_failures_in_a_row() -> None:
    tally, model = Tally(), Oracle(prices=Prices(1e6, 1e6))
    problem = ChainSum().problem(2, 1)
    reply = (Completion("", "1", "end", Bill(1, 2, 3)),)
    failed, right, wrong = (
        Attempt(problem, 0, "failed", False, "down", ()),
        Attempt(problem, 0, "graded", True, "", reply),
        Attempt(problem, 0, "graded", False, "wrong sum", reply),
    )
    for attempt in (failed, failed, right, wrong, failed):
        tally.count(attempt, model)
    assert tally.failures_in_a_row == 1
    assert (tally.right, tally.wrong, tally.failed, tally.done) == (1, 1, 3, 5)
    assert (tally.tokens, tally.cost) == (12, 12.0)


def test_measurements_are_averaged_over_turns() -> None:
    task = Execution()
    turns = [Completion("", "<answer>1</answer>", "end", Bill(), {"cache_bytes": n}) for n in (10.0, 30.0)]
    attempt = Attempt(task.problem(2, 1), 0, "open", False, "", tuple(turns))
    assert graded(task, attempt).details["cache_bytes"] == 20
