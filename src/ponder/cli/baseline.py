"""`ponder baseline`: a model's attempts in a small file, which CI compares a new model with."""

from __future__ import annotations

from pathlib import Path

import click

from ponder.cli.options import FILE, command, load, study_options
from ponder.cli.output import say, tell
from ponder.core.text import count


@click.command(epilog="Example: ponder baseline mine.toml prod -o baseline.json")
@study_options
@click.argument("model", required=False)
@click.option(
    "-o",
    "--out",
    type=FILE,
    default="baseline.json",
    show_default=True,
    help="File to write.",
)
def baseline(
    study: str,
    store: Path,
    settings: tuple[str, ...],
    models: tuple[str, ...],
    as_json: bool,
    model: str | None,
    out: Path,
) -> None:
    """Write a model's attempts, without texts, to a small file for CI.

    MODEL is a label as `ponder plan` prints it, and may be left out if STUDY has one model. The
    file has how each attempt ended, its tokens, cost and seconds, and what identifies the problems.
    `ponder compare STUDY --baseline FILE --run` then asks only the new model.
    """
    from ponder.cli.sides import only_label, stored_model
    from ponder.results.baseline import write_baseline
    from ponder.results.results import coverage

    results = load(study, settings, models).results(store)
    label = model or only_label(results.study, "ponder baseline STUDY MODEL")
    run_command = command("run", study, settings, store, models)
    written = stored_model(results, label, run_command)
    content = write_baseline(out, results.study.name, label, written.cells, written.outcomes)
    answered = sum(outcome.answered for outcome in written.outcomes)
    problems = sum(len(cell.problems) for cell in content.cells)
    data = {"file": str(out), "model": label, "attempts": answered, "problems": problems}
    size = f"{out.stat().st_size / 1000:,.0f} kB"
    say(
        data,
        as_json,
        lambda: f"{out}: {count(answered, 'attempt')} at {count(problems, 'problem')}, {size}",
    )
    missing = coverage(written.cells, written.outcomes).text()
    if missing:
        tell(f"{missing}; to resume: {run_command}")
