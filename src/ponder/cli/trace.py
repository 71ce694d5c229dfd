"""Verbs that take a file of reasoning traces: score and select."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ponder.cli import complete
from ponder.cli.options import (
    BAD_LINES,
    COLUMNS,
    FILE,
    JSON,
    SPLIT,
    columns,
    named_columns,
    plugin_settings,
    say,
    tell,
    watch,
)
from ponder.core import UserError
from ponder.core.text import count

if TYPE_CHECKING:
    from ponder.core import Problem
    from ponder.traces import TraceFile, Understood
    from ponder.traces.split import By

LIMITS = ("top", "threshold", "budget_tokens", "per_topic", "per_teacher", "per_problem")
HEAD, TAIL = 60, 30  # characters of a text that --show prints


@click.command()
@click.argument("traces", type=FILE)
@click.option(
    "--reward",
    "name",
    shell_complete=complete.rewards,
    help="A reward's name (ponder list rewards), or a file: ./mine.py.",
)
@plugin_settings("reward")
@SPLIT
@COLUMNS
@BAD_LINES
@click.option(
    "--show", type=click.IntRange(1), help="Show how the first traces are read, and score nothing."
)
@click.option("-o", "--out", type=FILE, help="The file to write.  [default: NAME.scored.jsonl]")
@JSON
def score(
    traces: Path,
    name: str | None,
    settings: tuple[str, ...],
    by: Any,
    named: tuple[str, ...],
    bad: Any,
    show: int | None,
    out: Path | None,
    as_json: bool,
) -> None:
    """Score the steps of reasoning traces with a reward.

    TRACES is a file (JSONL, JSON or Parquet), a folder of these, or a dataset on the hub:
    org/name[/config][:split]. If interrupted, run it again to resume; traces that got no score are
    tried again.
    """
    from ponder.core.settings import assign, build
    from ponder.traces import read
    from ponder.traces.score_file import Scoring

    source = read(traces, bad, named_columns(named))
    if show:
        _show(source, show, by, as_json)
        return
    if name is None:
        raise UserError(
            "no reward is named",
            hint="--reward NAME (ponder list rewards); or --show 3 to look first",
        )
    table: dict[str, Any] = {"name": name}
    for setting in settings:
        assign({"reward": [table]}, f"reward.{setting}")
    out = out or Path(
        f"{traces.name.removesuffix('.gz').rsplit('.', 1)[0].replace(':', '-')}.scored.jsonl"
    )
    scoring = Scoring(source, build("rewards", table, "--reward", Path()), out, by)
    watch(scoring)
    tell(scoring.table())
    say(scoring.summary(), as_json, lambda: str(out))
    if not (scoring.scored or scoring.scored_before):
        raise click.exceptions.Exit(1)
    tell(f"next: {shlex.join(['ponder', 'select', str(out), '--top', '1000'])}")


def _show(source: TraceFile, number: int, by: Any, as_json: bool) -> None:
    shown = [_fields(reading, by) for reading in islice(source.understood(), number)]
    if not shown:
        raise UserError(f"there are no traces in {source.path}", hint="; ".join(source.skipped[:1]))
    say(shown, as_json, lambda: "\n\n".join(_fields_text(n, one) for n, one in enumerate(shown, 1)))


def _fields(reading: Understood, by: By) -> dict[str, Any]:
    """Return each field of a trace as it was read, with the columns it came from and those that
    were not read.
    """
    from ponder.traces import steps
    from ponder.traces.trace import FIELDS

    split = steps(reading.trace, by)
    fields = {
        name: value for name in FIELDS if (value := getattr(reading.trace, name)) not in (None, "")
    }
    parts = {"thinking_steps": len(split.thinking), "answer_steps": len(split.answer)}
    return {
        "format": reading.format,
        **fields,
        **parts,
        "columns": reading.columns,
        "not_read": reading.ignored,
    }


def _fields_text(number: int, shown: dict[str, Any]) -> str:
    """Return a trace's fields, one per line."""
    from ponder.traces.trace import FIELDS

    rows = [("", "field", "read from", "")]
    rows += [
        ("", name, shown["columns"][name], _shortened(shown, name))
        for name in FIELDS
        if name in shown["columns"]
    ]
    missing = [name for name in ("thinking", "answer", "gold") if name not in shown]
    lines = [f"trace {number}, read as {shown['format']}", columns(rows)]
    lines += [f"  it has no {' and no '.join(missing)}"] if missing else []
    lines += [f"  not read: {', '.join(shown['not_read'])}"] if shown["not_read"] else []
    return "\n".join(lines)


def _shortened(shown: dict[str, Any], name: str) -> str:
    """Return a field on one line: of a long text the beginning, the end and the length."""
    value = str(shown.get(name, ""))
    line = " ".join(value.split())
    if len(line) <= HEAD + TAIL:
        return line
    steps = f", {count(shown[f'{name}_steps'], 'step')}" if f"{name}_steps" in shown else ""
    return f"{line[:HEAD].rstrip()} … {line[-TAIL:].lstrip()} ({len(value):,} characters{steps})"


@click.command()
@click.argument("scored", type=FILE)
@click.option("--top", type=int, help="Keep at most this many traces.")
@click.option("--threshold", type=float, help="Keep only traces that score at least this.")
@click.option(
    "--budget-tokens",
    type=int,
    help="Keep the first traces that together have at most this many tokens.",
)
@click.option("--per-topic", type=int, help="Keep at most this many traces per topic.")
@click.option(
    "--per-teacher",
    type=int,
    help="Keep at most this many traces per teacher, each ranked on its own.",
)
@click.option("--teacher", default="", help="Keep only traces by this teacher model.")
@click.option(
    "--per-problem",
    is_flag=True,
    help="Keep one trace per problem, the first by --by; problems at random.",
)
@click.option(
    "--match-length", is_flag=True, help="Rank each trace among traces of similar length."
)
@click.option(
    "--tolerance",
    type=float,
    default=0.0,
    show_default=True,
    help="Scores that differ by at most this are ties, broken at random.",
)
@click.option("--right", is_flag=True, help="Keep only traces whose final answer is right.")
@click.option(
    "--without",
    multiple=True,
    metavar="FILE|TASK[:SIZE[:SEED]]|STUDY",
    help="Leave out questions that appear in this evaluation set. May be repeated.",
)
@click.option(
    "--min-run",
    type=int,
    default=8,
    show_default=True,
    help="Shortest run of shared words that counts as overlap.",
)
@click.option(
    "--overlap",
    type=float,
    default=0.5,
    show_default=True,
    help="Leave out a question if this fraction of an evaluation problem's words overlaps with it.",
)
@click.option("--keep-duplicates", is_flag=True, help="Keep near-duplicates too.")
@click.option(
    "--alike",
    type=float,
    default=0.8,
    show_default=True,
    help="Jaccard similarity from which traces are duplicates.",
)
@click.option(
    "--by",
    type=click.Choice(["reward", "random", "longest", "shortest", "all"]),
    default="reward",
    show_default=True,
    help="How to rank: by score, at random, by length, or not at all.",
)
@click.option(
    "--seed", type=int, default=0, show_default=True, help="Seed of a random ranking and of ties."
)
@BAD_LINES
@click.option("-o", "--out", type=FILE, help="The file to write.  [default: NAME.chosen.jsonl]")
@JSON
def select(
    scored: Path,
    without: tuple[str, ...],
    bad: Any,
    out: Path | None,
    as_json: bool,
    **settings: Any,
) -> None:
    """Select the traces that are worth training on.

    SCORED is a JSONL file that `ponder score` wrote. The result has the best first, each with the
    reason why it was kept; the counts of those left out, by reason, are printed.
    """
    from ponder.traces import read
    from ponder.traces.score_file import Selecting
    from ponder.traces.selection import Choice

    if settings["by"] != "all" and not any(
        settings[limit] is not None and settings[limit] is not False for limit in LIMITS
    ):
        raise UserError(
            "nothing limits how many traces to keep",
            hint="--top 1000, --threshold 0.8, or --by all",
        )
    studies = _studies(without)
    choice = Choice(without=tuple(name for name in without if name not in studies), **settings)
    out = out or Path(f"{scored.stem.removesuffix('.scored')}.chosen.jsonl")
    selecting = Selecting(read(scored, bad), choice, out, _asked(studies))
    watch(selecting)
    tell(selecting.table())
    if not selecting.selection.kept:
        raise UserError("no trace is left", hint="the lines above say why")
    say(selecting.summary(), as_json, lambda: str(out))


def _studies(names: tuple[str, ...]) -> list[str]:
    from ponder.core import plugins
    from ponder.study.study import built_in

    return [
        n
        for n in names
        if n.endswith(".toml") or (n in built_in() and n not in plugins.names("tasks"))
    ]


def _asked(studies: list[str]) -> Iterator[Problem]:
    """Every problem that these studies ask."""
    from ponder.results.study import Study

    return (
        problem for name in studies for cell in Study.load(name).cells for problem in cell.asked()
    )
