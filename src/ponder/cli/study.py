"""Verbs that take a study: plan, run, regrade, report, export."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from ponder.cli.model_option import load
from ponder.cli.options import (
    FILE,
    JOBS,
    RAY,
    command,
    resumable,
    say,
    study_options,
    tell,
)
from ponder.core import FromLog, UserError
from ponder.core.text import count

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ponder.results.results import Coverage
    from ponder.results.study import Study
    from ponder.run.progress import Tally
    from ponder.study.cell import StudyCell


FRACTION = click.FloatRange(0, 1, min_open=True, max_open=True)


@click.command()
@study_options
@click.option(
    "--probe",
    type=click.IntRange(1),
    metavar="N",
    help="First make N attempts per cell, and plan from what they took. They are kept in the store.",
)
@click.option(
    "--power",
    is_flag=True,
    help="Show how many problems, samples and seeds an answer needs, and stop.",
)
@click.option(
    "--margin",
    type=FRACTION,
    help="With --power: the loss of accuracy that is tolerable.  [default: 0.03]",
)
@click.option(
    "--width",
    type=FRACTION,
    help="With --power: how wide the interval of an accuracy may be, end to end.",
)
@click.option(
    "--guess",
    metavar="KEY=VALUE,…",
    help="With --power: plan from accuracy=0.7 and, if known, discordant, within, seeds, tokens instead of the store.",
)
def plan(
    study: str,
    store: Path,
    settings: tuple[str, ...],
    models: tuple[str, ...],
    as_json: bool,
    probe: int | None,
    power: bool,
    margin: float | None,
    width: float | None,
    guess: str | None,
) -> None:
    """Show how many attempts STUDY makes, and what they will take.

    Nothing is asked and nothing is spent, unless --probe says so. `at most` counts every call at
    its whole budget; `expected` comes from stored attempts. With --power it shows instead how many
    problems, samples and training seeds it takes to show that a model is not worse than the study's
    first by more than --margin, or to know an accuracy within --width.
    """
    from ponder.cli.spending import plan_json, plan_text
    from ponder.run.plan import plan as planned
    from ponder.run.plan import probe as probing
    from ponder.run.progress import summary

    loaded, about_power = load(study, settings, models), bool(power or margin or width or guess)
    if probe:
        tally = run_in_terminal(loaded, store, cells=probing(loaded, probe))
        if troubles := summary(tally):
            tell(troubles)
    elif not about_power:  # stored attempts can be read without keys
        loaded.check()
        for warning in loaded.warnings():
            tell(warning)
    if about_power:
        _plan_power(loaded, store, as_json, margin, width, guess)
        return
    result = planned(loaded, store)
    again = command("plan", study, settings, store, models)
    say(plan_json(result), as_json, lambda: plan_text(result, loaded, f"{again} --probe 2"))
    if slow := result.warning():
        click.echo(slow, err=True)


def _plan_power(
    study: Study,
    store: Path,
    as_json: bool,
    margin: float | None,
    width: float | None,
    guess: str | None,
) -> None:
    from ponder.cli.power import Goal, needs, power_json, power_text, read_guess

    if margin is not None and width is not None:
        raise UserError("give --margin or --width, not both")
    one = len({cell.label.variant for cell in study.cells}) == 1
    if margin is None and width is None:
        margin, width = (None, 0.1) if one else (0.03, None)
    goal = Goal(margin, width)
    found = needs(study, store, goal, read_guess(guess) if guess else None)
    say(power_json(found, goal), as_json, lambda: power_text(found, goal, study))


def run_in_terminal(
    study: Study,
    store: Path,
    *,
    cells: Sequence[StudyCell] | None = None,
    grace: float | None = None,
    jobs: int = 1,
    ray: str | None = None,
    release_lost: bool = False,
    warn: bool = True,
) -> Tally:
    """Run a study with a line of progress.

    After a signal, exit with 128 plus its number, as a shell expects.
    """
    import asyncio

    from ponder.run.interrupt import GRACE, Stop
    from ponder.run.session import Session, open_session, work_done

    async def run_until_signal(session: Session, stop: Stop) -> None:
        with stop.on_signals():
            await session.run(stop)

    opened = open_session(
        study, store, tell, cells=cells, jobs=jobs, ray=ray, release_lost=release_lost, warn=warn
    )
    with resumable(), opened as session:
        stop = Stop(GRACE if grace is None else grace, session.write_progress)
        asyncio.run(run_until_signal(session, stop))
    if stop.signal:
        if done := work_done(session.tally):
            tell(done)
        tell("interrupted; run the same command again to resume")
        raise click.exceptions.Exit(128 + stop.signal)
    return session.tally


@click.command()
@study_options
@click.option(
    "--release-lost",
    is_flag=True,
    help="Count calls in flight when earlier runs were killed as not billed. Check your provider's bill first.",
)
@click.option(
    "--grace",
    type=click.FloatRange(0),
    metavar="SECONDS",
    help="How long Ctrl-C and SIGTERM wait for the calls in progress; a second one drops them.  [default: 30]",
)
@JOBS
@RAY
def run(
    study: str,
    store: Path,
    settings: tuple[str, ...],
    models: tuple[str, ...],
    as_json: bool,
    release_lost: bool,
    grace: float | None,
    jobs: int,
    ray: str | None,
) -> None:
    """Make the attempts of STUDY that the store doesn't hold yet.

    If interrupted, run it again to resume. Failed attempts (the endpoint gave no answer) are
    retried by the next run.
    """
    from ponder.cli.spending import adaptive_json, adaptive_text
    from ponder.run.progress import summary

    loaded = load(study, settings, models)
    tally = run_in_terminal(
        loaded, store, grace=grace, jobs=jobs, ray=ray, release_lost=release_lost
    )
    data = tally.summary()
    lines = [
        f"{count(tally.done, 'attempt')} made; {tally.stored_before:,} were already in {store}"
    ]
    if loaded.stop:
        data["adaptive"] = adaptive_json(loaded, store)
        lines.append(adaptive_text(data["adaptive"], tally.currency))
    say(data, as_json, lambda: "\n".join(lines))
    if troubles := summary(tally):
        tell(troubles)
    if tally.failed:
        tell(
            f"{count(tally.failed, 'attempt')} failed and left out; run the same command again to retry"
        )
        raise click.exceptions.Exit(1)
    tell(f"next: {command('report', study, settings, store, models)}")


@click.command()
@study_options
def regrade(
    study: str, store: Path, settings: tuple[str, ...], models: tuple[str, ...], as_json: bool
) -> None:
    """Grade the stored answers of STUDY again, after a grader changed.

    No model is called.
    """
    from ponder.run.attempt import grade_again
    from ponder.store.benchmark_digests import with_stored_digests
    from ponder.store.store import Store

    loaded = with_stored_digests(load(study, settings, models), store)
    Store(store).close()  # without a lock it must exist, so that no empty store is left behind
    with Store(store, lock=True) as opened:
        changed = grade_again(loaded, opened)
    say({"changed": changed}, as_json, lambda: f"{count(changed, 'grade')} changed")


@click.command()
@study_options
@click.option("-o", "--out", type=FILE, help="The folder to write to.  [default: reports/STUDY]")
@click.option(
    "--track",
    type=click.Choice(["mlflow", "wandb"]),
    help="Also log the estimates and figures to MLflow or Weights & Biases.",
)
@click.option(
    "--transcripts",
    "megabytes",
    metavar="MB",
    type=click.FloatRange(0, 500),
    default=2.0,
    show_default=True,
    help="The most that compressed transcripts take inside the page; those behind drawn points come first.",
)
def report(
    study: str,
    store: Path,
    settings: tuple[str, ...],
    models: tuple[str, ...],
    as_json: bool,
    out: Path | None,
    track: Literal["mlflow", "wandb"] | None,
    megabytes: float,
) -> None:
    """Draw the figures of STUDY and write its report page.

    The page is one HTML file that needs nothing else; each figure is a file of its own too.
    """
    from ponder.core.plugins import need
    from ponder.results.interop.tracking import track as log_report
    from ponder.results.report import report as write_report

    results = load(study, settings, models).results(store)
    if track:
        need(track, f"--track {track}")  # better known before minutes of drawing
    files, covered = write_report(results, out or Path("reports") / results.study.name, megabytes)
    shown = [str(f) for f in files if f.suffix == ".png" or f == files[0]]
    data = {
        "files": [str(f) for f in files],
        "complete": covered.complete,
        **dataclasses.asdict(covered),
    }
    say(data, as_json, lambda: "\n".join(shown))
    _tell_missing(results.study, covered, command("run", study, settings, store, models))
    if track:  # at the end: a server may take long, or not answer
        runs = log_report(results, files, track)
        tell(f"{count(runs, 'run')} logged to {track}")


def _tell_missing(study: Study, covered: Coverage, run: str) -> None:
    """Say which attempts the store lacks, and the command that makes them."""
    if not covered.complete:
        again = not all(isinstance(cell.model, FromLog) for cell in study.cells)
        tell(covered.text() + (f"; to go on: {run}" if again else ""))


@click.command()
@study_options
@click.option(
    "--format",
    "form",
    type=click.Choice(["csv", "jsonl", "parquet", "traces", "inspect", "verifiers", "trl"]),
    default="csv",
    show_default=True,
    help="What to write; traces are for `ponder score` and training, inspect is an eval log for Inspect, verifiers and "
    "trl are problems to train on.",
)
@click.option(
    "-o",
    "--out",
    type=FILE,
    help="The file to write; - is standard output, for csv, jsonl and traces.  [default: STUDY.FORMAT; for traces "
    "STUDY.traces.jsonl, for inspect STUDY.json; else the folder STUDY-FORMAT]",
)
@click.option(
    "-n",
    "--problems",
    "number",
    type=click.IntRange(0),
    default=100,
    show_default=True,
    help="For verifiers and trl: training problems per task and size, none of which the study asks.",
)
def export(
    study: str,
    store: Path,
    settings: tuple[str, ...],
    models: tuple[str, ...],
    as_json: bool,
    form: Literal["csv", "jsonl", "parquet", "traces", "inspect", "verifiers", "trl"],
    out: Path | None,
    number: int,
) -> None:
    """Write the attempts of STUDY, or its problems, to a file.

    An Inspect log has room for one model: of several models, each has a file of its own. verifiers
    and trl get problems instead of attempts, and need no store: `test` has those that the study
    asks, `train` has others. Replies are graded by the study's own tasks.
    """
    from ponder.results.export import STDOUT, write
    from ponder.results.interop.environment import export as export_problems
    from ponder.run.plan import counts
    from ponder.store.store import Store

    loaded = load(study, settings, models)
    if out == STDOUT and (as_json or form not in ("csv", "jsonl", "traces")):
        what = "csv, jsonl and traces can be written to standard output, without --json"
        raise UserError(what, hint="name a file with -o")
    if form == "verifiers" or form == "trl":  # noqa: PLR1714 so that mypy knows
        files, rows = export_problems(loaded, form, out, number)
        if not any(file.stem == "train" and file.stat().st_size for file in files):
            tell(
                "there are no training problems: a fixed set has none but those in a [[train]] of the study"
            )
    else:
        results = loaded.results(store)
        files, rows = write(results, form, out)
        with Store(store) as opened:
            missing, _ = counts(results.study.cells, opened)
        if missing:  # perhaps: a small task may have fewer problems than the study asks for
            _tell_missing(
                results.study, results.coverage(), command("run", study, settings, store, models)
            )
    if out == STDOUT:
        return
    data = {"file": str(files[0]), "files": [str(file) for file in files], "rows": rows}
    say(data, as_json, lambda: "\n".join(map(str, files)))
