"""All solutions of any Tents puzzle, by deduction, and where that gets stuck, by trying both values of a cell.

Exact for puzzles with several solutions or none. Tents is NP-complete (De Biasi), so the time has no gentle bound; on
the sizes used here it is milliseconds.
"""

from __future__ import annotations

from ponder.tasks.tents.board import matching
from ponder.tasks.tents.deduction import Contradiction, State, deduce


def solutions(start: State, limit: int) -> list[int]:
    """The tents of up to `limit` different solutions."""
    found: list[int] = []
    trees = start.lone_trees
    if not sum(start.rows) == sum(start.columns) == trees.bit_count():
        return found
    stack = [start]
    while stack and len(found) < limit:
        state = stack.pop()
        try:
            deduce(state, "tricky")
        except Contradiction:
            continue
        if not state.blank:
            # Links are left open where tents and trees form a ring, which can be linked in two ways.
            if matching(state.board, state.tents, trees) is not None:
                found.append(state.tents)
            continue
        cell = state.blank & -state.blank
        without = state.copy()
        without.rule_out(cell)
        stack.append(without)
        state.pitch(cell)
        stack.append(state)
    return found
