"""Commands that take a file of reasoning traces: score and select."""

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
    named_columns,
    plugin_settings,
)
from ponder.cli.output import bold, say, table, tell, watch
from ponder.core import UserError
from ponder.core.text import count

if TYPE_CHECKING:
    from ponder.core import Problem
    from ponder.traces import TraceFile, Understood
    from ponder.traces.split import By

LIMITS = ("top", "threshold", "budget_tokens", "per_topic", "per_teacher", "per_problem")
# Characters of a long text's start and end that --show prints.
HEAD = 60
TAIL = 30


@click.command(epilog="Example: ponder score traces.jsonl --reward oracle")
@click.argument("traces", type=FILE)
@click.option(
    "--reward",
    "name",
    shell_complete=complete.rewards,
    help="Reward (ponder list rewards), or a file: ./mine.py.",
)
@plugin_settings("reward")
@SPLIT
@COLUMNS
@BAD_LINES
@click.option(
    "--show", type=click.IntRange(1), help="Show how the first N traces are parsed, and stop."
)
@click.option("-o", "--out", type=FILE, help="File to write.  [default: NAME.scored.jsonl]")
@JSON
def score(
    traces: Path,
    name: str | None,
    settings: tuple[str, ...],
    by: Any,
    columns: tuple[str, ...],
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

    source = read(traces, bad, named_columns(columns))
    if show:
        _show(source, show, by, as_json)
        return
    if name is None:
        raise UserError(
            "no reward is named",
            hint="--reward NAME (ponder list rewards); or --show 3 to look first",
        )
    reward_table: dict[str, Any] = {"name": name}
    for setting in settings:
        assign({"reward": [reward_table]}, f"reward.{setting}")
    if out is None:
        stem = traces.name.removesuffix(".gz").rsplit(".", 1)[0].replace(":", "-")
        out = Path(f"{stem}.scored.jsonl")
    scoring = Scoring(source, build("rewards", reward_table, "--reward", Path()), out, by)
    watch(scoring)
    tell(scoring.table())
    say(scoring.summary(), as_json, lambda: str(out))
    if not (scoring.scored or scoring.scored_before):
        raise click.exceptions.Exit(1)
    tell(f"next: {shlex.join(['ponder', 'select', str(out), '--top', '1000'])}")


def _show(source: TraceFile, number: int, by: Any, as_json: bool) -> None:
    """Print how the first traces of a file are parsed."""
    records = [_fields(reading, by) for reading in islice(source.understood(), number)]
    if not records:
        raise UserError(f"there are no traces in {source.path}", hint="; ".join(source.skipped[:1]))
    texts = [_fields_text(position, record) for position, record in enumerate(records, 1)]
    say(records, as_json, lambda: "\n\n".join(texts))


def _fields(reading: Understood, by: By) -> dict[str, Any]:
    """Return each field of a trace as it was read, its column, and the unread columns."""
    from ponder.traces import steps
    from ponder.traces.trace import FIELDS

    split = steps(reading.trace, by)
    record: dict[str, Any] = {"format": reading.format}
    for name in FIELDS:
        value = getattr(reading.trace, name)
        if value not in (None, ""):
            record[name] = value
    record["thinking_steps"] = len(split.thinking)
    record["answer_steps"] = len(split.answer)
    record["columns"] = reading.columns
    record["not_read"] = reading.ignored
    return record


def _fields_text(number: int, record: dict[str, Any]) -> str:
    """Return a trace's fields, one per line."""
    from ponder.traces.trace import FIELDS

    rows = [("", "field", "read from", "")]
    for name in FIELDS:
        if name in record["columns"]:
            rows.append(("", name, record["columns"][name], _shortened(record, name)))
    lines = [bold(f"trace {number}, read as {record['format']}"), table(rows)]
    missing = [name for name in ("thinking", "answer", "gold") if name not in record]
    if missing:
        lines.append(f"  it has no {' and no '.join(missing)}")
    if record["not_read"]:
        lines.append(f"  not read: {', '.join(record['not_read'])}")
    return "\n".join(lines)


def _shortened(record: dict[str, Any], name: str) -> str:
    """Return a field on one line: the start, the end and the length of a long text."""
    value = str(record.get(name, ""))
    line = " ".join(value.split())
    if len(line) <= HEAD + TAIL:
        return line
    length = f"{len(value):,} characters"
    if f"{name}_steps" in record:
        length += f", {count(record[f'{name}_steps'], 'step')}"
    return f"{line[:HEAD].rstrip()} … {line[-TAIL:].lstrip()} ({length})"


@click.command(epilog="Example: ponder select traces.scored.jsonl --top 1000")
@click.argument("scored", type=FILE)
@click.option("--top", type=int, help="Keep at most this many traces.")
@click.option("--threshold", type=float, help="Keep only traces that score at least this.")
@click.option(
    "--budget-tokens",
    type=int,
    help="Keep the best traces up to this many tokens in total.",
)
@click.option("--per-topic", type=int, help="Keep at most this many traces per topic.")
@click.option(
    "--per-teacher",
    type=int,
    help="Keep at most this many traces per teacher.",
)
@click.option("--teacher", default="", help="Keep only traces by this teacher model.")
@click.option(
    "--per-problem",
    is_flag=True,
    help="Keep the best trace of each problem; take problems at random.",
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
    help="Fraction of an evaluation problem's words whose overlap excludes a trace.",
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
@click.option("-o", "--out", type=FILE, help="File to write.  [default: NAME.chosen.jsonl]")
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
    reason why it was kept; the numbers of excluded traces are printed by reason.
    """
    from ponder.traces import read
    from ponder.traces.score_file import Selecting
    from ponder.traces.selection import Choice

    limits = [settings[name] for name in LIMITS]
    limited = any(limit is not None and limit is not False for limit in limits)
    if settings["by"] != "all" and not limited:
        raise UserError(
            "nothing limits how many traces to keep",
            hint="--top 1000, --threshold 0.8, or --by all",
        )
    studies = _studies(without)
    files_and_tasks = tuple(name for name in without if name not in studies)
    choice = Choice(without=files_and_tasks, **settings)
    if out is None:
        out = Path(f"{scored.stem.removesuffix('.scored')}.chosen.jsonl")
    selecting = Selecting(read(scored, bad), choice, out, _asked(studies))
    watch(selecting)
    tell(selecting.table())
    if not selecting.selection.kept:
        raise UserError("no trace is left", hint="the lines above say why")
    say(selecting.summary(), as_json, lambda: str(out))


def _studies(names: tuple[str, ...]) -> list[str]:
    """Return the names in `--without` that are studies, not files or tasks."""
    from ponder.core import plugins
    from ponder.study.study import built_in

    studies = []
    for name in names:
        is_built_in = name in built_in() and name not in plugins.names("tasks")
        if is_built_in or name.endswith(".toml"):
            studies.append(name)
    return studies


def _asked(studies: list[str]) -> Iterator[Problem]:
    """Yield every problem that some studies ask."""
    from ponder.results.study import Study

    for name in studies:
        for cell in Study.load(name).cells:
            yield from cell.asked()
