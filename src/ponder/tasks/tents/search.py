"""Finds all solutions of any Tents puzzle, by deduction and backtracking.

Exact for puzzles with several solutions or none. Tents is NP-complete (De Biasi), so the worst case
is exponential. On random camps, with and without two row sums exchanged, it took up to 32 ms at
20×20 and up to 3 s at 30×30.
"""

from __future__ import annotations

from ponder.tasks.tents.deduction import Contradiction, State, deduce


def solutions(start: State, limit: int) -> list[int]:
    """Return the tents of up to `limit` different solutions."""
    solved: list[int] = []
    if not sum(start.rows) == sum(start.columns) == start.lone_trees.bit_count():
        return solved
    stack = [start]
    while stack and len(solved) < limit:
        state = stack.pop()
        try:
            deduce(state, "tricky")
        except Contradiction:
            continue
        if not state.blank:
            # Tents and trees not yet paired form rings, and a ring can always be paired: each of
            # the n trees has at most two tents beside it (three would touch), each of the n tents
            # at least two trees, so all have two.
            solved.append(state.tents)
            continue
        cell = state.blank & -state.blank
        without = state.copy()
        without.rule_out(cell)
        stack.append(without)
        state.pitch(cell)
        stack.append(state)
    return solved
