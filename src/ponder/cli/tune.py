"""`ponder tune`: the cheapest setting of a study that is good enough."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ponder.cli.options import command, load, study_options
from ponder.cli.output import bold, say, table, tell, wrap
from ponder.cli.study import run_in_terminal
from ponder.core.text import count

if TYPE_CHECKING:
    from ponder.results.tuning import Step, Tuning


def _finite(
    _context: click.Context, parameter: click.Parameter, value: float | None
) -> float | None:
    """Refuse infinity and nan, which no range of numbers excludes."""
    if value is not None and not math.isfinite(value):
        raise click.BadParameter(f"{value} is not a number of requests", param=parameter)
    return value


@click.command(epilog="Example: ponder tune thinking --margin 0.02 --by cost --volume 1000")
@study_options
@click.option(
    "--margin",
    type=float,
    help="Tolerable loss of accuracy, as a fraction.  [default: 0.02]",
)
@click.option(
    "--floor",
    type=float,
    help="Accuracy that is good enough, instead of a margin to the reference.",
)
@click.option(
    "--reference",
    metavar="LABEL",
    default="",
    help="Setting to compare with.  [default: the most accurate]",
)
@click.option(
    "--by",
    type=click.Choice(["tokens", "cost", "seconds"]),
    help="What to save.  [default: cost if all prices are known, else tokens]",
)
@click.option(
    "--volume",
    type=click.FloatRange(0, min_open=True),
    metavar="REQUESTS",
    callback=_finite,
    help="Requests per day, to say what a month costs.",
)
@click.option("--stored", is_flag=True, help="Ask nothing: use the attempts in the store.")
def tune(
    study: str,
    store: Path,
    settings: tuple[str, ...],
    models: tuple[str, ...],
    as_json: bool,
    margin: float | None,
    floor: float | None,
    reference: str,
    by: str | None,
    volume: float | None,
    stored: bool,
) -> None:
    """Find the cheapest setting of STUDY that is good enough.

    Good enough is an accuracy that is not worse than the reference's by more than --margin, or at
    least --floor. The settings are the models, methods and swept keys of the study. Those that are
    certainly too weak or too expensive get no more problems, so a run takes fewer attempts than
    `ponder run`. If interrupted, run it again to resume. Exits with code 1 if no setting is surely
    good enough.
    """
    from ponder.results.tuning import is_log, with_goal
    from ponder.run.progress import summary

    loaded = with_goal(load(study, settings, models), margin, floor, reference, by)
    if not stored and not is_log(loaded):
        tally = run_in_terminal(loaded, store)
        troubles = summary(tally)
        if troubles:
            tell(troubles)
        if tally.failed:
            tell(f"{count(tally.failed, 'attempt')} failed and left out; run again to retry")
    result = loaded.results(store).tuning

    def compare_command(a: str, b: str) -> str:
        return command("compare", study, settings, store, models, [a, b])

    say(result.as_json(volume), as_json, lambda: text(result, volume, compare_command))
    if result.chosen is None:
        raise click.exceptions.Exit(1)


def text(result: Tuning, volume: float | None, compare_command: Callable[[str, str], str]) -> str:
    """Return the verdict, the table of settings, what each step changes, and what to deploy.

    `compare_command` is the command that compares two settings by their labels.
    """
    from ponder.results.deploy import deploy
    from ponder.results.routing import routing_sentences, routing_table

    paragraphs = [bold(wrap(" ".join(result.verdict(volume))))]
    rows = result.table()
    paragraphs.append(table(rows, numbers=len(rows[0]) - 2))
    steps = []
    for step in result.steps:
        if step.changes:
            steps.append(_step(step, result, compare_command))
    if steps:
        paragraphs.append("\n".join(steps))
    if result.routing is not None:
        paragraphs.append(wrap(" ".join(routing_sentences(result.routing))))
        if result.routing.worth != "no":
            rows = routing_table(result.routing, result.by, result.currency)
            paragraphs.append(table(rows, numbers=len(rows[0]) - 1))
    if result.chosen is not None:
        cell = result.chosen.cells[0]
        for title, lines in deploy(cell).sections():
            paragraphs.append(f"{bold(title)}\n{lines}")
        if not result.chosen.is_variant:
            paragraphs.append(f"{bold('Asked as')}\n{cell.label.task}")
    used = f"{result.attempts:,} of the full plan's {count(result.full_plan, 'attempt')}"
    if result.attempts == result.full_plan:
        used = f"from {count(result.attempts, 'attempt')}, all that there are"
    failed = sum(setting.summary.failed for setting in result.settings)
    if failed:
        used += f"; {failed:,} of them failed and are left out"
    if result.adaptive:
        used += (
            "; intervals of differences and savings are valid although the run chose when to end"
        )
    paragraphs.append(wrap(used))
    return "\n\n".join(paragraphs)


def _step(step: Step, result: Tuning, compare_command: Callable[[str, str], str]) -> str:
    """Say which problems a more expensive setting gains and loses, and where to read them."""
    gained = count(len(step.gained), "problem")
    sentence = f"{step.first} → {step.second}: gains {gained}, loses {len(step.lost)}"
    for label in (step.first, step.second):
        setting = result.by_label(label)
        if setting is None or not setting.is_variant:  # `ponder compare` knows variants alone
            return sentence
    command_text = compare_command(step.first, step.second)
    largest_size = max(change.size for change in step.changes)
    return f"{sentence}; {command_text} --disagree {largest_size}"
