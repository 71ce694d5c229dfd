"""Writes docs/findings/speed.md from benchmarks/speed.jsonl, the measurements that `make bench`
has kept.

Of a measurement that was made more than once, the last one counts. Nothing on the page is written
by hand.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROWS, PAGE = HERE / "speed.jsonl", HERE.parent / "docs" / "findings" / "speed.md"
HEAD = """# Speed, beside the peers

<!-- Written by `make bench` from benchmarks/speed.jsonl. Don't change this page: measure again. -->

Costs are CPU time, not wall time, so that other work on the machine matters less; a script
measures Ponder and its peers in one run, taking turns. (Drift from the full cache is an error, not
a cost.) In brackets after a peer's value: how many times better Ponder is, which is the peer's cost
divided by Ponder's, or Ponder's speed divided by the peer's. Below 1×, the peer is better. An
*exponent* says how cost grows with size: 1 is linear. *Run* points to the list below the table:
command, date, machine and versions. `--quick` in a command is its short form. What wasn't measured
isn't here; `scripts/bench-peers` installs the peers.
"""
GROUPS = {
    "Runner": "`ponder run` and other clients ask the same server the same prompts.",
    "Decoding": (
        "The pocket model's NumPy engine and others, with the same weights, greedy, on one thread. "
        "The network for Tents has 2 million parameters, that for execution 0.6; vLLM has no CPU "
        "kernel for the heads of the first."
    ),
    "Caches": (
        "Eviction policies prune SmolLM2's cache from 512 columns to 384, on the same texts of "
        "2,048 tokens; [why they differ](compression.md#compared-with-kvpress)."
    ),
    "Training": (
        "An iteration of `length_rl` on the pocket model, rollouts and update, on one thread."
    ),
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
            runs, numbers = _runs(mine)
            parts += [f"## {group}\n\n{about}\n", _table(mine, numbers), _list(runs)]
    return "\n".join(parts)


def _runs(rows: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[int]]:
    """How the rows were measured, without repeating it for each: the runs, and the number of each
    row's run.
    """
    runs: list[dict[str, Any]] = []
    numbers = []
    for row in rows:
        facts = {
            "command": row["command"],
            "date": row["date"].split()[0],
            "machine": row["machine"],
        }
        for number, run in enumerate(runs, 1):
            alike = all(run[name] == value for name, value in facts.items())
            if alike and all(
                run["versions"].get(name, v) == v for name, v in row["versions"].items()
            ):
                run["versions"] |= row["versions"]
                numbers.append(number)
                break
        else:
            runs.append({**facts, "versions": dict(row["versions"])})
            numbers.append(len(runs))
    return runs, numbers


def _list(runs: list[dict[str, Any]]) -> str:
    lines = []
    for number, run in enumerate(runs, 1):
        versions = ", ".join(f"{name} {version}" for name, version in run["versions"].items())
        lines.append(
            f"{number}. `{run['command']}`, {run['date']}, on {run['machine']}: {versions}"
        )
    return "\n".join(lines) + "\n"


def _table(rows: list[dict[str, Any]], numbers: list[int]) -> str:
    """A line per measurement, and a column per peer."""
    peers = list(dict.fromkeys(row["peer"] for row in rows if row["theirs"] is not None))
    lines: dict[tuple[str, str, str, int], dict[str, str]] = {}
    for row, number in zip(rows, numbers, strict=True):
        cells = lines.setdefault((row["what"], row["unit"], _number(row["ours"]), number), {})
        if row["theirs"] is not None:
            cells[row["peer"]] = f"{_number(row['theirs'])} ({_better(row)})"
    table = [
        f"| {' | '.join(['measured', 'unit', 'Ponder', *peers, 'run'])} |",
        f"|---|---|{'---:|' * (len(peers) + 2)}",
    ]
    for (what, unit, ours, number), cells in lines.items():
        of_peers = [cells.get(peer, "") for peer in peers]
        row_text = " | ".join([what, unit, ours, *of_peers, str(number)])
        table.append(f"| {row_text} |")
    return "\n".join(table) + "\n"


def _better(row: dict[str, Any]) -> str:
    ours, theirs = row["ours"], row["theirs"]
    return f"{_number(ours / theirs if row['unit'].endswith('/s') else theirs / ours)}×"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


if __name__ == "__main__":
    PAGE.write_text(page(latest(ROWS.read_text("utf-8"))), "utf-8")
