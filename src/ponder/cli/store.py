"""Verbs for store files: `ponder store check`, `repair` and `merge`."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from ponder.cli.options import FILE, JSON, STORE, Verbs, say

SHOWN = 20  # damages, unless --json asks for all
NEW = click.option(
    "-o", "--out", type=FILE, required=True, help="The new store. It must not exist yet."
)


@click.group(cls=Verbs)
def store() -> None:
    """Check, repair and merge the files that hold attempts."""


@store.command()
@click.argument("path", metavar="[STORE]", type=FILE, default=STORE)
@JSON
def check(path: Path, as_json: bool) -> None:
    """Verify STORE: its file, its texts, and that nothing is missing.

    Every row is compared with the digest that was stored with it. Exits with code 1 if anything is
    damaged.
    """
    from ponder.store.file import DamagedStore
    from ponder.store.maintenance import Scan

    counts, undigested = (
        dict.fromkeys(("cell", "problem", "attempt", "turn", "failed", "open"), 0),
        0,
    )
    try:
        with Scan(path) as scan:
            damage = scan.damage + scan.integrity()
            counts, undigested = {name: scan.counts[name] for name in counts}, scan.undigested
    except DamagedStore as error:  # its tables can't be found
        damage = [error.what]
    data = {"store": str(path), **counts, "without_digest": undigested, "damage": damage}
    say(data, as_json, lambda: _checked(path, counts, undigested, damage))
    if damage:
        click.echo(f"next: ponder store repair {shlex.quote(str(path))} -o NEW", err=True)
        raise click.exceptions.Exit(1)


def _checked(path: Path, counts: dict[str, int], undigested: int, damage: list[str]) -> str:
    attempts = (
        f"{counts['attempt']:,} attempts ({counts['failed']:,} failed, {counts['open']:,} open)"
    )
    lines = [
        f"{path}: {counts['cell']:,} cells, {counts['problem']:,} problems, {attempts}, {counts['turn']:,} turns"
    ]
    if undigested:
        lines.append(
            f"{undigested:,} rows were written by an older version without a digest: they can be read"
        )
    lines += _shortened(damage) or ["whole"]
    return "\n".join(lines)


def _shortened(damage: list[str]) -> list[str]:
    more = [f"… and {len(damage) - SHOWN:,} more"] if len(damage) > SHOWN else []
    return [f"damaged: {line}" for line in damage[:SHOWN]] + more


@store.command()
@click.argument("path", metavar="STORE", type=FILE)
@NEW
@JSON
def repair(path: Path, out: Path, as_json: bool) -> None:
    """Copy what is whole in a damaged STORE into a new file.

    Rows that have changed since they were written are left out. STORE is not changed. Attempts that
    can't be saved are asked again by the next run.
    """
    from ponder.store.maintenance import repair as repaired

    copied = repaired(path, out)
    data = {
        "store": str(out),
        "saved": copied.attempts,
        "lost": copied.lost,
        "lost_by_cell": copied.lost_by_cell,
    }

    def text() -> str:
        lines = [f"{out}: {copied.attempts:,} attempts saved, {copied.lost:,} lost"]
        if len(copied.lost_by_cell) <= SHOWN:
            lines += [f"lost: {n:,} of {cell}" for cell, n in copied.lost_by_cell.most_common()]
        return "\n".join(lines)

    say({**data, "damage": copied.damage}, as_json, text)


@store.command()
@click.argument("paths", metavar="STORE STORE…", type=FILE, nargs=-1, required=True)
@NEW
@JSON
def merge(paths: tuple[Path, ...], out: Path, as_json: bool) -> None:
    """Join several stores into a new one.

    Where two of them hold the same attempt, a finished one wins over one that failed or was
    interrupted; if both are finished, the first wins. The stores given are not changed.
    """
    from ponder.store.maintenance import merge as merged

    copied = merged(paths, out)
    say(
        {"store": str(out), "attempts": copied.attempts},
        as_json,
        lambda: f"{out}: {copied.attempts:,} attempts",
    )
