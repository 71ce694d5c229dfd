"""Verbs that take a study: plan, run, regrade, report, export, prepare."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import click

from ponder.cli.options import (
    FILE,
    JSON_LINES,
    SET_STUDY,
    STUDY,
    columns,
    command,
    resumable,
    say,
    study_options,
    tell,
    watch,
)


@click.command()
@study_options
def plan(study: str, store: Path, settings: tuple[str, ...], as_json: bool) -> None:
    """Show how many attempts STUDY makes, and what they will cost.

    Nothing is asked and nothing is spent. Expected tokens come from stored attempts where there are any.
    """
    from ponder.runner.plan import plan as planned
    from ponder.runner.progress import short
    from ponder.runner.study import Study

    lines = planned(Study.load(study, settings), store)
    data = [{**dataclasses.asdict(line), "to_run": line.to_run} for line in lines]

    def text() -> str:
        head = ("model", "task", "tokens from", "cells", "attempts", "stored", "to run", "tokens", "cost")
        rows = [
            (
                *(line.model, line.task, line.basis, line.cells, line.attempts, line.stored, line.to_run),
                None if line.tokens is None else short(line.tokens),
                None if line.cost is None else f"{line.cost:.2f}",
            )
            for line in lines
        ]
        return columns([head, *rows], numbers=6)

    say(data, as_json, text)


@click.command()
@study_options
def run(study: str, store: Path, settings: tuple[str, ...], as_json: bool) -> None:
    """Make the attempts of STUDY that the store doesn't hold yet.

    If interrupted, run it again to resume. Failed attempts (the endpoint gave no answer) are retried by the next run.
    """
    import asyncio

    from ponder.runner import progress
    from ponder.runner.plan import plan as planned
    from ponder.runner.run import Tally
    from ponder.runner.run import run as run_study
    from ponder.runner.store import Store
    from ponder.runner.study import Study

    loaded = Study.load(study, settings)
    lines = planned(loaded, store)
    tally = Tally(planned=sum(line.to_run for line in lines), stored_before=sum(line.stored for line in lines))
    with Store(store, lock=True) as opened, resumable(), progress.shown(tally):
        asyncio.run(run_study(loaded, opened, tally))
    data = {f.name: getattr(tally, f.name) for f in dataclasses.fields(tally) if f.name != "started"}
    say(data, as_json, lambda: f"{tally.done:,} attempts made; {tally.stored_before:,} were already in {store}")
    if tally.capped:
        click.echo("stopped at the study's limit (max_tokens or max_cost)", err=True)
    if tally.failed:
        click.echo(f"{tally.failed} attempts failed and are left out; run the same command again to retry", err=True)
        raise click.exceptions.Exit(1)
    click.echo(f"next: {command('report', study, settings, store)}", err=True)


@click.command()
@study_options
def regrade(study: str, store: Path, settings: tuple[str, ...], as_json: bool) -> None:
    """Grade the stored answers of STUDY again, after a grader changed.

    No model is called.
    """
    from ponder.core.text import count
    from ponder.runner.run import grade_again
    from ponder.runner.store import Store
    from ponder.runner.study import Study

    loaded = Study.load(study, settings)
    Store(store).close()  # without a lock it must exist, so that no empty store is left behind
    with Store(store, lock=True) as opened:
        changed = grade_again(loaded, opened)
    say({"changed": changed}, as_json, lambda: f"{count(changed, 'grade')} changed")


@click.command()
@study_options
@click.option("-o", "--out", type=FILE, help="The folder to write to.  [default: reports/STUDY]")
def report(study: str, store: Path, settings: tuple[str, ...], as_json: bool, out: Path | None) -> None:
    """Draw the figures of STUDY and write its report page."""
    from ponder.report.page import report as write_report
    from ponder.runner.store import Store
    from ponder.runner.study import Study

    loaded = Study.load(study, settings)
    with Store(store) as opened:
        files, covered = write_report(loaded, opened, out or Path("reports") / loaded.name)
    shown = [str(f) for f in files if f.suffix == ".png" or f == files[0]]
    data = {"files": [str(f) for f in files], "complete": covered.complete, **dataclasses.asdict(covered)}
    say(data, as_json, lambda: "\n".join(shown))
    if not covered.complete:
        tell(f"{covered.text()}; to go on: {command('run', study, settings, store)}")


@click.command()
@study_options
@click.option(
    "--format",
    "form",
    type=click.Choice(["csv", "jsonl", "parquet", "inspect"]),
    default="csv",
    show_default=True,
    help="What to write; inspect is an eval log for Inspect.",
)
@click.option("-o", "--out", type=FILE, help="The file to write.  [default: STUDY.FORMAT; for inspect STUDY.json]")
def export(study: str, store: Path, settings: tuple[str, ...], as_json: bool, form: str, out: Path | None) -> None:
    """Write the attempts of STUDY to a file."""
    from ponder.report.export import write
    from ponder.runner.store import Store
    from ponder.runner.study import Study

    loaded = Study.load(study, settings)
    with Store(store) as opened:
        file, rows = write(loaded, opened, form, out)
    say({"file": str(file), "rows": rows}, as_json, lambda: str(file))


@click.command()
@STUDY
@SET_STUDY
@JSON_LINES
def prepare(study: str, settings: tuple[str, ...], as_json: bool) -> None:
    """Make everything that STUDY needs before it runs.

    That is trained models and fitted eviction policies. A run makes the same things when it gets to them. What is
    already made is not made again. If interrupted, run it again to resume.
    """
    from ponder.runner.prepare import prepare as prepared
    from ponder.runner.study import Study

    if not watch(prepared(Study.load(study, settings)), as_json=as_json):
        tell(f"nothing to make: no model of {study} has methods")
    tell(f"next: {command('run', study, settings)}")
