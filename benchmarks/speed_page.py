"""Writes docs/benchmarks-speed.md from benchmarks/speed.jsonl, the measurements that `make bench` has kept.

Of a measurement that was made more than once, the last one counts. Nothing on the page is written by hand.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROWS, PAGE = HERE / "speed.jsonl", HERE.parent / "docs" / "benchmarks-speed.md"
HEAD = """# Speed, beside the peers

<!-- Written by `make bench` from benchmarks/speed.jsonl. Don't change this page: measure again. -->

Costs are CPU time, not wall time, so that other work on the machine matters little; a script measures Ponder and its
peers in one run, taking turns. *Times better* is the peer's cost divided by Ponder's, or Ponder's speed divided by the
peer's: below 1, the peer is better. An *exponent* says how cost grows with size: 1 is linear. `--quick` in a command is
its short form. What wasn't measured isn't here; `scripts/bench-peers` installs the peers.
"""
GROUPS = {
    "Runner": "`ponder run` and other clients ask the same server the same prompts.",
    "Decoding": "The pocket model's NumPy engine and others, with the same weights, greedy, on one thread.",
    "Caches": "Eviction policies prune SmolLM2's cache from 512 columns to 384, on the same texts of 2,048 tokens; "
    "[why they differ](caches.md#compared-with-kvpress).",
    "Training": "An iteration of `length_rl` on the pocket model, rollouts and update, on one thread.",
    "Tents": "Puzzles with one solution, of a given difficulty.",
    "Report": "`ponder report` on a store of simulated attempts.",
}


def latest(lines: str) -> list[dict[str, Any]]:
    """The last row of each measurement, in the order in which they were first made."""
    rows: dict[tuple[str, str, str], dict[str, Any]] = {}
    for line in lines.splitlines():
        row = json.loads(line)
        rows[row["group"], row["what"], row["peer"]] = row
    return list(rows.values())


def page(rows: list[dict[str, Any]]) -> str:
    parts = [HEAD]
    for group, about in GROUPS.items():
        mine = [row for row in rows if row["group"] == group]
        if mine:
            parts += [f"## {group}\n\n{about}\n", _table(mine)]
    return "\n".join(parts)


def _table(rows: list[dict[str, Any]]) -> str:
    heads = ["measured", "unit", "Ponder", "peer", "peer's", "times better", "versions", "machine", "command", "date"]
    lines = [f"| {' | '.join(heads)} |", f"|---|---|{'---:|---|---:|---:|'}---|---|---|---|"]
    for row in rows:
        theirs = row["theirs"]
        versions = ", ".join(f"{name} {version}" for name, version in row["versions"].items())
        peers = [row["peer"], _number(theirs), _better(row)] if theirs is not None else ["", "", ""]
        command = f"`{row['command']}`"
        cells = [row["what"], row["unit"], _number(row["ours"]), *peers, versions, row["machine"], command, row["date"]]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _better(row: dict[str, Any]) -> str:
    ours, theirs = row["ours"], row["theirs"]
    return f"{ours / theirs if row['unit'].endswith('/s') else theirs / ours:.2f}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


if __name__ == "__main__":
    PAGE.write_text(page(latest(ROWS.read_text("utf-8"))), "utf-8")
