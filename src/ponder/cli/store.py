"""Commands for store files: `ponder store check`, `repair` and `merge`."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from ponder.cli.options import FILE, JSON, STORE, Verbs
from ponder.cli.output import bold, red, say, tell, wrap

MAX_LINES = 20  # damaged rows that are printed; --json has all
COUNTED = ("cell", "problem", "attempt", "turn", "failed", "open")
NEW = click.option(
    "-o", "--out", type=FILE, required=True, help="New store. It must not exist yet."
)


@click.group(cls=Verbs)
def store() -> None:
    """Check, repair and merge the files that hold attempts."""


@store.command(epilog="Example: ponder store check ponder.db")
@click.argument("path", metavar="[STORE]", type=FILE, default=STORE)
@JSON
def check(path: Path, as_json: bool) -> None:
    """Verify STORE: its file, its texts, and that nothing is missing.

    Every row is compared with the digest that was stored with it. The exit code is 1 if anything is
    damaged.
    """
    from ponder.store.file import DamagedStore
    from ponder.store.maintenance import Scan

    counts = dict.fromkeys(COUNTED, 0)
    undigested = 0
    try:
        with Scan(path) as scan:
            damage = scan.damage + scan.integrity()
            counts = {name: scan.counts[name] for name in COUNTED}
            undigested = scan.undigested
    except DamagedStore as error:  # its tables can't be found
        damage = [error.what]
    data = {"store": str(path), **counts, "without_digest": undigested, "damage": damage}
    say(data, as_json, lambda: _check_text(path, counts, undigested, damage))
    if damage:
        tell(f"next: ponder store repair {shlex.quote(str(path))} -o NEW")
        raise click.exceptions.Exit(1)


def _check_text(path: Path, counts: dict[str, int], undigested: int, damage: list[str]) -> str:
    """Return what a store holds, and what of it is damaged."""
    contents = (
        f"{path}: {counts['cell']:,} cells, {counts['problem']:,} problems, "
        f"{counts['attempt']:,} attempts ({counts['failed']:,} failed, {counts['open']:,} open), "
        f"{counts['turn']:,} turns"
    )
    lines = [wrap(contents, indent="  ")]
    if undigested:
        lines.append(
            f"{undigested:,} rows were written by an older version without a digest: "
            "they can be read"
        )
    lines += [f"{red('damaged:')} {row}" for row in damage[:MAX_LINES]]
    if len(damage) > MAX_LINES:
        lines.append(f"… and {len(damage) - MAX_LINES:,} more")
    if not damage:
        lines.append(bold("no damage"))
    return "\n".join(lines)


@store.command(epilog="Example: ponder store repair ponder.db -o repaired.db")
@click.argument("path", metavar="STORE", type=FILE)
@NEW
@JSON
def repair(path: Path, out: Path, as_json: bool) -> None:
    """Copy what is intact in a damaged STORE into a new file.

    Rows that have changed since they were written are left out. STORE is not changed. Attempts that
    can't be saved are asked again by the next run.
    """
    from ponder.store.maintenance import repair as copy_intact

    copied = copy_intact(path, out)
    data = {
        "store": str(out),
        "saved": copied.attempts,
        "lost": copied.lost,
        "lost_by_cell": copied.lost_by_cell,
        "damage": copied.damage,
    }
    lines = [f"{out}: {copied.attempts:,} attempts saved, {copied.lost:,} lost"]
    if len(copied.lost_by_cell) <= MAX_LINES:
        for cell, lost in copied.lost_by_cell.most_common():
            lines.append(f"lost: {lost:,} of {cell}")
    say(data, as_json, lambda: "\n".join(lines))


@store.command(epilog="Example: ponder store merge laptop.db cluster.db -o all.db")
@click.argument("paths", metavar="STORE STORE…", type=FILE, nargs=-1, required=True)
@NEW
@JSON
def merge(paths: tuple[Path, ...], out: Path, as_json: bool) -> None:
    """Join several stores into a new one.

    Where two of them hold the same attempt, a finished one wins over one that failed or was
    interrupted; if both are finished, the first wins. The stores given are not changed.
    """
    from ponder.store.maintenance import merge as merge_stores

    copied = merge_stores(paths, out)
    data = {"store": str(out), "attempts": copied.attempts}
    say(data, as_json, lambda: f"{out}: {copied.attempts:,} attempts")
