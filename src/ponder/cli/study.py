"""Commands for studies: plan, run, regrade, report, view and export, and import."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from ponder.cli import complete
from ponder.cli.options import (
    FILE,
    JOBS,
    JSON,
    RAY,
    STORE,
    STORE_FILE,
    command,
    load,
    study_options,
)
from ponder.cli.output import resumable, say, tell
from ponder.core import FromLog, UserError
from ponder.core.text import count

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ponder.results.results import Coverage
    from ponder.results.study import Study
    from ponder.run.adaptive import Rounds
    from ponder.run.progress import Tally
    from ponder.study.cell import StudyCell

FRACTION = click.FloatRange(0, 1, min_open=True, max_open=True)


@click.command(epilog="Example: ponder plan effort --probe 2")
@study_options
@click.option(
    "--probe",
    type=click.IntRange(1),
    metavar="N",
    help="First make N attempts per cell, store them, and plan from what they took.",
)
@click.option(
    "--power", is_flag=True, help="Show how many problems, samples and seeds an answer needs."
)
@click.option(
    "--margin",
    type=FRACTION,
    help="With --power: tolerable loss of accuracy, as a fraction.  [default: 0.03]",
)
@click.option(
    "--width", type=FRACTION, help="With --power: width of an accuracy's interval, end to end."
)
@click.option(
    "--guess",
    metavar="KEY=VALUE,…",
    help="With --power: plan from guesses, such as accuracy=0.7,within=0.1.",
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

    No model is called and nothing is spent, unless --probe is given. `at most` assumes that every
    call uses its whole budget; `expected` is estimated from stored attempts. --power shows instead
    how many problems, samples and training seeds it takes to show that a model is not worse than
    the study's first by more than --margin, or to estimate an accuracy within --width. Keys of
    --guess are accuracy, discordant, within, seeds and tokens.
    """
    from ponder.cli.spending import plan_json, plan_text
    from ponder.run.plan import plan as make_plan
    from ponder.run.plan import probe as probe_cells
    from ponder.run.progress import summary

    loaded = load(study, settings, models)
    plans_power = bool(power or margin or width or guess)
    if probe:
        tally = run_in_terminal(loaded, store, cells=probe_cells(loaded, probe))
        troubles = summary(tally)
        if troubles:
            tell(troubles)
    elif not plans_power:  # which only reads stored attempts, and so needs no API key
        loaded.check()
        for warning in loaded.warnings():
            tell(warning)
    if plans_power:
        _plan_power(loaded, store, as_json, margin, width, guess)
        return
    result = make_plan(loaded, store)
    probe_command = f"{command('plan', study, settings, store, models)} --probe 2"
    say(plan_json(result), as_json, lambda: plan_text(result, loaded, probe_command))
    for warning in (*result.price_warnings, result.warning()):
        if warning:
            tell(warning)


def _plan_power(
    study: Study,
    store: Path,
    as_json: bool,
    margin: float | None,
    width: float | None,
    guess: str | None,
) -> None:
    """Print how large a study must be for a margin or a width.

    The default is a margin of 0.03 between models, or a width of 0.1 if there is only one model.
    """
    from ponder.cli.power import Goal, needs, power_json, power_text, read_guess

    if margin is not None and width is not None:
        raise UserError("give --margin or --width, not both")
    if margin is None and width is None:
        variants = {cell.label.variant for cell in study.cells}
        if len(variants) == 1:
            width = 0.1
        else:
            margin = 0.03
    goal = Goal(margin, width)
    results = needs(study, store, goal, read_guess(guess) if guess else None)
    say(power_json(results, goal), as_json, lambda: power_text(results, goal, study))


def run_in_terminal(
    study: Study,
    store: Path,
    *,
    cells: Sequence[StudyCell] | None = None,
    trials: Sequence[Rounds] = (),
    grace: float | None = None,
    jobs: int = 1,
    ray: str | None = None,
    release_lost: bool = False,
    warn: bool = True,
) -> Tally:
    """Run a study with a line of progress, and return its counts of attempts.

    `cells` are asked instead of all cells of the study, and `trials` decide how much instead of its
    `stop`. After a signal, exit with 128 plus its number, as a shell expects.
    """
    import asyncio

    from ponder.run.interrupt import GRACE, Stop
    from ponder.run.session import Session, open_session, work_done

    async def run_until_signal(session: Session, stop: Stop) -> None:
        with stop.on_signals():
            await session.run(stop)

    opening = open_session(
        study,
        store,
        tell,
        cells=cells,
        trials=trials,
        jobs=jobs,
        ray=ray,
        release_lost=release_lost,
        warn=warn,
    )
    with resumable(), opening as session:
        stop = Stop(GRACE if grace is None else grace, session.write_progress)
        asyncio.run(run_until_signal(session, stop))
    if stop.signal:
        done = work_done(session.tally)
        if done:
            tell(done)
        tell("interrupted; run the same command again to resume")
        raise click.exceptions.Exit(128 + stop.signal)
    return session.tally


@click.command(epilog="Example: ponder run effort --set problems=5")
@study_options
@click.option(
    "--release-lost",
    is_flag=True,
    help="Count the open calls of killed runs as not billed. Check your bill first.",
)
@click.option(
    "--grace",
    type=click.FloatRange(0),
    metavar="SECONDS",
    help="How long Ctrl-C and SIGTERM wait for open calls.  [default: 30]",
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

    If interrupted, run it again to resume. A second Ctrl-C drops the calls that the first one waits
    for. Failed attempts (the endpoint gave no answer) are retried by the next run.
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
    troubles = summary(tally)
    if troubles:
        tell(troubles)
    for note in loaded.notes(store):
        tell(note)
    exit_if_failed(tally)
    tell(f"next: {command('report', study, settings, store, models)}")


def exit_if_failed(tally: Tally) -> None:
    """Print how many attempts failed, and exit with code 1 if some did."""
    if tally.failed:
        failed = count(tally.failed, "attempt")
        tell(f"{failed} failed and left out; run the same command again to retry")
        raise click.exceptions.Exit(1)


@click.command(epilog="Example: ponder regrade effort")
@study_options
def regrade(
    study: str, store: Path, settings: tuple[str, ...], models: tuple[str, ...], as_json: bool
) -> None:
    """Grade the stored answers of STUDY again, after a grader changed.

    No model is called and nothing is spent.
    """
    from ponder.run.attempt import grade_again
    from ponder.store.benchmark_digests import with_stored_digests
    from ponder.store.store import Store

    loaded = with_stored_digests(load(study, settings, models), store)
    Store(store).close()  # raises an error if there is none; with a lock it would be created
    with Store(store, lock=True) as opened:
        regraded = grade_again(loaded, opened)
    if regraded.unjudged:
        replies = count(regraded.unjudged, "reply")
        tell(f"{replies} not judged with this judge and rubric: ponder run {study} asks the judge")
    changed = f"{count(regraded.changed, 'grade')} changed"
    say(regraded._asdict(), as_json, lambda: changed)


@click.command(epilog="Example: ponder report effort -o reports/first")
@study_options
@click.option("-o", "--out", type=FILE, help="Folder to write to.  [default: reports/STUDY]")
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
    help="Megabytes of compressed transcripts inside the page.",
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

    The page is one HTML file that needs nothing else. It contains transcripts, those of drawn
    points first, up to the limit of --transcripts. Each figure is also written to its own files.
    """
    from ponder.core.plugins import need
    from ponder.results.interop.tracking import track as log_report
    from ponder.results.report import report as write_report

    results = load(study, settings, models).results(store)
    if track:
        need(track, f"--track {track}")  # before minutes of drawing, not after
    files, coverage = write_report(results, out or Path("reports") / results.study.name, megabytes)
    pictures = [str(file) for file in files if file.suffix == ".png" or file == files[0]]
    data = {
        "files": [str(file) for file in files],
        "complete": coverage.complete,
        **dataclasses.asdict(coverage),
    }
    say(data, as_json, lambda: "\n".join(pictures))
    for note in results.notes:
        tell(note)
    _tell_missing(results.study, coverage, command("run", study, settings, store, models))
    if track:  # at the end: a server may take long, or not answer
        runs = log_report(results, files, track)
        tell(f"{count(runs, 'run')} logged to {track}")


def _tell_missing(study: Study, coverage: Coverage, run_command: str) -> None:
    """Print how many attempts the store lacks, and the command that makes them.

    Attempts that were imported from a log can't be made here.
    """
    if coverage.complete:
        return
    text = coverage.text()
    if not all(isinstance(cell.model, FromLog) for cell in study.cells):
        text += f"; to resume: {run_command}"
    tell(text)


@click.command(epilog="Example: ponder view --store ponder.db")
@click.argument("studies", metavar="[STUDY]…", nargs=-1, shell_complete=complete.studies)
@click.option(
    "--store",
    "stores",
    default=[STORE],
    show_default=STORE,
    multiple=True,
    type=FILE,
    help="File that holds attempts. May be repeated.",
)
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Address to serve on.",
)
@click.option(
    "--port",
    default=7575,
    show_default=True,
    type=click.IntRange(0, 65535),
    help="Port to serve on; 0 takes a free one.",
)
@click.option(
    "--open/--no-open",
    "browse",
    default=True,
    show_default=True,
    help="Open the page in a browser.",
)
def view(
    studies: tuple[str, ...], stores: tuple[Path, ...], host: str, port: int, browse: bool
) -> None:
    """Show studies in a browser, down to the transcripts of a point.

    Every study in the stores is shown as it was last run; a STUDY given here is shown as its file is
    now. Nothing is changed, and a study may run meanwhile. The page requires a token, which is part
    of the printed address. Ctrl-C stops the server.
    """
    from contextlib import ExitStack

    from ponder.results.study import Study
    from ponder.results.view.server import bound, opening_file, serve

    loaded = [Study.load(name) for name in studies]
    for store in stores:
        if not store.is_file():
            study = studies[0] if studies else "STUDY"
            hint = f"`{command('run', study, (), store)}` creates it"
            raise UserError(f"there is no store {store}", hint=hint)
    listening = bound(host, port)
    with ExitStack() as cleanup:

        def on_start(address: str) -> None:
            tell(f"{address}\nCtrl-C stops the page")
            if browse:
                import webbrowser

                webbrowser.open(cleanup.enter_context(opening_file(address)).as_uri())

        serve(listening, host, stores, loaded, on_start)


@click.command(epilog="Example: ponder export effort --format parquet")
@study_options
@click.option(
    "--format",
    "form",
    type=click.Choice(["csv", "jsonl", "parquet", "traces", "inspect", "verifiers", "trl"]),
    default="csv",
    show_default=True,
    help="What to write; see above.",
)
@click.option(
    "-o",
    "--out",
    type=FILE,
    help="File or folder to write; - is standard output.  [default: STUDY.FORMAT]",
)
@click.option(
    "-n",
    "--problems",
    "number",
    type=click.IntRange(0),
    default=100,
    show_default=True,
    help="For verifiers and trl: training problems per task and size.",
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

    csv, jsonl and parquet hold one row per attempt; traces are for `ponder score` and for training,
    in STUDY.traces.jsonl; inspect is an eval log for Inspect, in STUDY.json, one file per model.
    verifiers and trl hold problems instead of attempts, in the folder STUDY-FORMAT, and need no
    store: `test` has those that the study asks, `train` has others. Replies are graded by the
    study's own tasks.
    """
    from ponder.results.export import STDOUT, write
    from ponder.results.interop.environment import export as export_problems
    from ponder.run.plan import counts
    from ponder.store.store import Store

    loaded = load(study, settings, models)
    if out == STDOUT and (as_json or form not in ("csv", "jsonl", "traces")):
        raise UserError(
            "only csv, jsonl and traces can be written to standard output, without --json",
            hint="name a file with -o",
        )
    if form == "verifiers" or form == "trl":  # noqa: PLR1714 so that mypy knows
        files, rows = export_problems(loaded, form, out, number)
        if not any(file.stem == "train" and file.stat().st_size for file in files):
            tell(
                "there are no training problems: "
                "a fixed set has only those in a [[train]] of the study"
            )
    else:
        results = loaded.results(store)
        files, rows = write(results, form, out)
        with Store(store) as opened:
            missing, _ = counts(results.study.cells, opened)
        # Only then is the slower, exact count made: a small task may have fewer problems than the
        # study wants.
        if missing:
            run_command = command("run", study, settings, store, models)
            _tell_missing(results.study, results.coverage(), run_command)
    if out == STDOUT:
        return
    data = {"file": str(files[0]), "files": [str(file) for file in files], "rows": rows}
    say(data, as_json, lambda: "\n".join(map(str, files)))


@click.command("import", epilog="Example: ponder import logs/2026-01-01_math.eval")
@click.argument("logs", metavar="LOG…", type=FILE, nargs=-1, required=True)
@STORE_FILE
@click.option("-o", "--out", type=FILE, help="Study file to write.  [default: TASK.toml]")
@click.option(
    "--scorer",
    default="",
    metavar="NAME",
    help="Scorer, or field of a request log, that decides what is correct.  "
    "[default: the log's first]",
)
@click.option(
    "--right",
    type=float,
    metavar="SCORE",
    help="Minimum score that counts as correct.  [default: 1, the highest]",
)
@click.option(
    "--size",
    default="",
    metavar="KEY",
    help="Key in a sample's metadata that holds its size.  [default: none]",
)
@click.option(
    "--answers",
    type=FILE,
    metavar="FILE",
    help="Right answers to requests: lines with `id` or `prompt`, and `answer`.  [default: none]",
)
@click.option(
    "--ignore",
    multiple=True,
    metavar="SETTING",
    help="Setting of requests that makes no other model, such as budget.  [default: none]",
)
@JSON
def import_(
    logs: tuple[Path, ...],
    store: Path,
    out: Path | None,
    scorer: str,
    right: float | None,
    size: str,
    answers: Path | None,
    ignore: tuple[str, ...],
    as_json: bool,
) -> None:
    """Make a study from logs of production, Inspect or lm-eval.

    LOG is an .eval or .json file of Inspect, a samples_*.jsonl file of lm-eval, a folder with
    such files, or a .jsonl file with a request to a model and its reply on each line: chat
    completions, OpenAI's Responses, Anthropic's Messages, batch files, and what LiteLLM, Helicone
    and Langfuse export. A reply is right by a field of its line (`right`, `score`, `feedback`, …)
    or by --answers; a reply without a grade is left out.

    Then `ponder report`, `compare`, `view` and `export` work on the study. Give all
    logs of an evaluation at once: models are compared on the same problems, and several runs of one
    model are its samples. Importing a log again changes nothing.
    """
    from ponder.results.interop.importing import import_logs

    result = import_logs(logs, store, out, scorer, right, size, answers, ignore)
    attempts = sum(result.endings.values())
    data = vars(result) | {"attempts": attempts, "store": str(store)}
    endings = ", ".join(f"{n:,} {ending}" for ending, n in result.endings.most_common())
    text = (
        f"{count(attempts, 'attempt')} read from {count(result.logs, 'log')}, "
        f"{result.new:,} of them new in {store}: {endings}\n{result.study}"
    )
    say(data, as_json, lambda: text)
    for note in result.notes():
        tell(note)
    tell(f"next: {command('report', str(result.study), (), store)}")
