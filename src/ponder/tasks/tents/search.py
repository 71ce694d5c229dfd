"""All solutions of any Tents puzzle, by deduction, and where that gets stuck, by trying both values of a cell.

Exact for puzzles with several solutions or none. Tents is NP-complete (De Biasi), so the time has no gentle bound.
Measured on random camps, with and without two row sums exchanged: up to 32 ms at 20×20, up to 3 s at 30×30.
"""

from __future__ import annotations

from ponder.tasks.tents.deduction import Contradiction, State, deduce


def solutions(start: State, limit: int) -> list[int]:
    """The tents of up to `limit` different solutions."""
    found: list[int] = []
    if not sum(start.rows) == sum(start.columns) == start.lone_trees.bit_count():
        return found
    stack = [start]
    while stack and len(found) < limit:
        state = stack.pop()
        try:
            deduce(state, "tricky")
        except Contradiction:
            continue
        if not state.blank:
            # Links still open form rings, and a ring can be linked: n trees have at most two tents beside them each
            # (three would touch), the n tents at least two trees, so all have two.
            found.append(state.tents)
            continue
        cell = state.blank & -state.blank
        without = state.copy()
        without.rule_out(cell)
        stack.append(without)
        state.pitch(cell)
        stack.append(state)
    return found
