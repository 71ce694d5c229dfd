"""The verb `import`: logs of other evaluation programs into a store."""

from __future__ import annotations

from pathlib import Path

import click

from ponder.cli.options import FILE, JSON, STORE, command, say, tell
from ponder.core.text import count


@click.command("import")
@click.argument("logs", metavar="LOG…", type=FILE, nargs=-1, required=True)
@click.option(
    "--store", default=STORE, show_default=True, type=FILE, help="The file that holds attempts."
)
@click.option("-o", "--out", type=FILE, help="The study file to write.  [default: TASK.toml]")
@click.option(
    "--scorer",
    default="",
    metavar="NAME",
    help="The scorer that says what is right.  [default: the log's first]",
)
@click.option(
    "--right",
    type=float,
    metavar="SCORE",
    help="The lowest score of a right attempt.  [default: 1, the highest]",
)
@click.option(
    "--size",
    default="",
    metavar="KEY",
    help="What in a sample's metadata is its size.  [default: nothing]",
)
@JSON
def import_(
    logs: tuple[Path, ...],
    store: Path,
    out: Path | None,
    scorer: str,
    right: float | None,
    size: str,
    as_json: bool,
) -> None:
    """Read logs of Inspect or lm-eval into a store and a study.

    LOG is an .eval or .json file of Inspect, a samples_*.jsonl file of lm-eval, or a folder with
    such files. Then `ponder report`, `compare`, `view` and `export` work on the study. Give all
    logs of an evaluation at once: models are compared on the same problems, and several runs of one
    model are its samples. Importing a log again changes nothing.
    """
    from ponder.results.interop.importing import import_logs

    result = import_logs(logs, store, out, scorer, right, size)
    made = sum(result.endings.values())
    read = f"{count(made, 'attempt')} read from {count(result.logs, 'log')}, {result.new:,} of them new in {store}"
    endings = ", ".join(f"{n:,} {ending}" for ending, n in result.endings.most_common())
    data = vars(result) | {"attempts": made, "store": str(store)}
    say(data, as_json, lambda: f"{read}: {endings}\n{result.study}")
    for note in result.notes():
        tell(note)
    tell(f"next: {command('report', str(result.study), (), store)}")
