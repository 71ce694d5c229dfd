"""The command line: one verb, one call. Data goes to stdout, talk to stderr; a user's mistake exits with 2."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import click

from ponder import __version__
from ponder.core import UserError

STORE = "ponder.db"


class Verbs(click.Group):
    """Verbs in the order of a study's life, and mistakes without a traceback."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 click's signature
        return list(self.commands)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except UserError as error:
            click.echo(str(error), err=True)
            ctx.exit(2)
        except BrokenPipeError:  # the reader of our output has left
            sys.stderr.close()
            ctx.exit(1)


@click.group(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="ponder")
def main() -> None:
    """What a right answer costs in thinking tokens, and how to make it cost less."""


def _study_options(verb: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.option("--json", "as_json", is_flag=True, help="Print JSON."),
        click.option(
            "--set",
            "settings",
            multiple=True,
            metavar="KEY=VALUE",
            help="Set a key of the study for this once, such as model.id=qwq.",
        ),
        click.option(
            "--store",
            default=STORE,
            show_default=True,
            type=click.Path(path_type=Path),
            help="The store of attempts.",
        ),
        click.argument("study"),
    ):
        verb = option(verb)
    return verb


_BAD = click.option(
    "--bad",
    type=click.Choice(["refuse", "skip"]),
    default="refuse",
    show_default=True,
    help="At malformed lines.",
)
_CUT = click.option(
    "--by",
    type=click.Choice(["blank", "sentence", "task"]),
    default="blank",
    show_default=True,
    help="What ends a step: a blank line, a sentence, or the task's own mark.",
)


def _say(data: Any, as_json: bool, text: Callable[[], str]) -> None:
    click.echo(json.dumps(data, indent=1, default=str) if as_json else text())


def _columns(rows: Sequence[Sequence[Any]], *, numbers: int = 0) -> str:
    """Rows in aligned columns, the last `numbers` of them to the right."""
    cells = [["–" if c is None else f"{c:,}" if isinstance(c, int) else str(c) for c in row] for row in rows]
    widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
    first_number = len(widths) - numbers
    return "\n".join(
        "  ".join(
            c.rjust(w) if i >= first_number else c.ljust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    )


@main.command("list")
@click.argument("kind", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_(kind: str | None, as_json: bool) -> None:
    """List tasks, models, methods, figures and studies."""
    from ponder.core import plugins
    from ponder.runner import study

    kinds = [*plugins.KINDS, "studies"]
    if kind and kind not in kinds:
        raise UserError(f"`{kind}` is nothing to list", hint=plugins.nearest(kind, kinds))
    found = {k: study.built_in() if k == "studies" else plugins.names(k) for k in ([kind] if kind else kinds)}
    _say(
        found,
        as_json,
        lambda: "\n\n".join(f"{k}\n{_columns([('', n, s) for n, s in rows.items()])}" for k, rows in found.items()),
    )


@main.command()
@click.argument("name")
@click.option("--size", type=int, help="Of the problem to show.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the problem to show.")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="A setting of the plugin.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def show(name: str, size: int | None, seed: int, settings: tuple[str, ...], as_json: bool) -> None:
    """Show a plugin's settings, a task's prompt with a right answer, or a study."""
    from ponder.cli import describe

    data = describe.anything(name, size, seed, settings)
    _say(data, as_json, lambda: describe.text(data))


@main.command()
@_study_options
def plan(study: str, store: Path, settings: tuple[str, ...], as_json: bool) -> None:
    """Say what STUDY would ask and spend, without spending it."""
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
        return _columns([head, *rows], numbers=6)

    _say(data, as_json, text)


@main.command()
@_study_options
def run(study: str, store: Path, settings: tuple[str, ...], as_json: bool) -> None:
    """Make the attempts of STUDY that the store doesn't hold yet."""
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
    with Store(store, lock=True) as opened:
        try:
            with progress.shown(tally):
                asyncio.run(run_study(loaded, opened, tally))
        except KeyboardInterrupt:
            click.echo(f"stopped; everything answered is in {store}. To go on: ponder run {study}", err=True)
            raise click.exceptions.Exit(130) from None
    data = {f.name: getattr(tally, f.name) for f in dataclasses.fields(tally) if f.name != "started"}
    _say(data, as_json, lambda: f"{tally.done:,} attempts made, {tally.stored_before:,} were in {store} before")
    if tally.capped:
        click.echo("stopped at the study's cap (max_tokens or max_cost)", err=True)
    if tally.failed:
        click.echo(f"{tally.failed} attempts failed and were left out; run again to retry them", err=True)
        raise click.exceptions.Exit(1)
    where = "" if str(store) == STORE else f" --store {store}"
    click.echo(f"next: ponder report {study}{where}", err=True)


@main.command()
@_study_options
def grade(study: str, store: Path, settings: tuple[str, ...], as_json: bool) -> None:
    """Grade the stored text of STUDY again; no model is asked."""
    from ponder.runner.run import grade_again
    from ponder.runner.store import Store
    from ponder.runner.study import Study

    loaded = Study.load(study, settings)
    Store(store).close()  # grading makes no store
    with Store(store, lock=True) as opened:
        changed = grade_again(loaded, opened)
    _say({"changed": changed}, as_json, lambda: f"{changed:,} grades changed")


@main.command()
@_study_options
@click.option(
    "-o", "--out", type=click.Path(path_type=Path), help="The folder to write to; reports/STUDY if not given."
)
def report(study: str, store: Path, settings: tuple[str, ...], as_json: bool, out: Path | None) -> None:
    """Draw the figures of STUDY and write its page."""
    from ponder.report.page import report as write_report
    from ponder.runner.store import Store
    from ponder.runner.study import Study

    loaded = Study.load(study, settings)
    with Store(store) as opened:
        files = write_report(loaded, opened, out or Path("reports") / loaded.name)
    shown = [str(f) for f in files if f.suffix == ".png" or f == files[0]]
    _say([str(f) for f in files], as_json, lambda: "\n".join(shown))


@main.command()
@_study_options
@click.option(
    "--format",
    "form",
    type=click.Choice(["csv", "jsonl", "parquet", "inspect"]),
    default="csv",
    show_default=True,
)
@click.option("-o", "--out", type=click.Path(path_type=Path), help="The file to write; STUDY.FORMAT if not given.")
def export(study: str, store: Path, settings: tuple[str, ...], as_json: bool, form: str, out: Path | None) -> None:
    """Write the attempts of STUDY as CSV, JSONL, Parquet or an Inspect log."""
    from ponder.report.export import write
    from ponder.runner.store import Store
    from ponder.runner.study import Study

    loaded = Study.load(study, settings)
    with Store(store) as opened:
        file, rows = write(loaded, opened, form, out)
    _say({"file": str(file), "rows": rows}, as_json, lambda: str(file))


@main.command()
@click.argument("what", metavar="MODEL|STUDY")
@click.option("-o", "--out", required=True, type=click.Path(path_type=Path), help="The folder to make it in.")
@click.option("--model", "label", default="", help="Which of the study's models, by its name in legends.")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Set a key of the study for this once.")
@click.option("--seed", type=int, default=1, show_default=True, help="Of a training from nothing.")
@click.option("--task", default="", help="Only what answers this task.")
@click.option("--style", default="", help="Only this style, and what it starts from.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, a line for each report.")
def make(
    what: str, out: Path, label: str, settings: tuple[str, ...], seed: int, task: str, style: str, as_json: bool
) -> None:
    """Make weights: of MODEL (pocket) from nothing, or of a model that STUDY changes. Stopped, it goes on."""
    from ponder.core import plugins

    if what in plugins.names("models"):
        reports, model = plugins.load("models", what).make(out, seed, task, style), what
    else:
        from ponder.runner.prepare import make_model as make_of
        from ponder.runner.study import Study

        reports, model = make_of(Study.load(what, settings), label, out), "transformers"
    _tell(reports, as_json)
    key = "weights" if model == "pocket" else "id"
    click.echo(f'next: name = "{model}", {key} = "{out}" in a study\'s [[model]]', err=True)


@main.command("train-reward")
@click.argument("traces", metavar="TRACES|pocket")
@click.option("-o", "--out", required=True, type=click.Path(path_type=Path), help="The folder to make it in.")
@click.option("--from", "start", help="The causal language model to start from: a folder, or org/name.")
@click.option("--quality", default="oracle", show_default=True, help="The reward that says how good each step is.")
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="A setting of the training, such as epochs=3, or of the reward, such as quality.model=…",
)
@_CUT
@click.option("--json", "as_json", is_flag=True, help="Print JSON, a line for each report.")
def train_reward(
    traces: str, out: Path, start: str | None, quality: str, settings: tuple[str, ...], by: Any, as_json: bool
) -> None:
    """Train a process reward on TRACES (JSONL), or make the pocket rewards anew. Stopped, it goes on."""
    from ponder.core.settings import assign, build
    from ponder.traces import read, steps
    from ponder.training import pocket_reward, reward

    if traces == "pocket":
        _tell(pocket_reward.make(out), as_json)
        return
    if start is None:
        raise UserError("nothing says what to start from", hint="--from a folder with weights, or org/name")
    judge: dict[str, Any] = {"name": quality}
    content: dict[str, Any] = {"quality": [judge]}
    for setting in settings:
        assign(content, setting)
    reader, recipe = reward.settings(start, {key: value for key, value in content.items() if key != "quality"})
    judged = build("rewards", {"of": reader.of, **judge}, "--quality", Path())
    pile = [steps(trace, by) for trace in read(Path(traces))]
    _tell(reward.train(reader, pile, out, recipe, judged), as_json)
    of = "" if reader.of == "all" else f" --set of={reader.of}"
    click.echo(f"next: ponder score TRACES --reward trained --set id={out}{of} --by {by}", err=True)


def _tell(reports: Iterable[dict[str, Any]], as_json: bool) -> None:
    """Print how something that takes long stands, a line for each report."""
    for report in reports:
        line = "  ".join(f"{k} {v}" for k, v in report.items())
        click.echo(json.dumps(report, ensure_ascii=False) if as_json else line)


@main.command()
@click.argument("study")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Set a key of the study for this once.")
@click.option("--problems", type=click.IntRange(1), default=200, show_default=True, help="Asked of each size.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, a line for each report.")
def fit(study: str, settings: tuple[str, ...], problems: int, as_json: bool) -> None:
    """Train what the methods of STUDY need of its models (the predictor of dynts), and put it beside their weights."""
    from ponder.runner.prepare import prepare
    from ponder.runner.study import Study

    _tell(prepare(Study.load(study, settings)), as_json)
    click.echo("attempts that a store holds were made with what was fitted before: --store another.db", err=True)


@main.command()
@click.argument("traces", type=click.Path(path_type=Path))
@click.option("--reward", "name", required=True, help="By its name, or a file: ./mine.py.")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="A setting of the reward.")
@_CUT
@_BAD
@click.option("-o", "--out", type=click.Path(path_type=Path), help="The file to write; NAME.scored.jsonl if not given.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def score(
    traces: Path, name: str, settings: tuple[str, ...], by: Any, bad: Any, out: Path | None, as_json: bool
) -> None:
    """Score TRACES (JSONL) with a reward. Stopped, it goes on; what has no score is tried again."""
    from ponder.core.settings import assign, build
    from ponder.runner import progress
    from ponder.runner.run import Tally
    from ponder.traces import read
    from ponder.traces.score_file import Scoring

    table: dict[str, Any] = {"name": name}
    for setting in settings:
        assign({"reward": [table]}, f"reward.{setting}")
    out = out or Path(f"{traces.stem}.scored.jsonl")
    scoring = Scoring(read(traces, bad), build("rewards", table, "--reward", Path()), out, by)
    reports = iter(scoring)
    try:
        tally = Tally(making=next(reports))  # what is wrong with the files shows before there is a line of progress
        with progress.shown(tally):
            for tally.making in reports:
                pass
    except KeyboardInterrupt:
        click.echo(f"stopped; what was scored is in {out}. To go on: the same command", err=True)
        raise click.exceptions.Exit(130) from None
    click.echo(scoring.table(), err=True)
    _say(scoring.summary(), as_json, lambda: str(out))
    if not (scoring.scored or scoring.scored_before):
        raise click.exceptions.Exit(1)
    click.echo(f"next: ponder select {out} --top 1000", err=True)


@main.command()
@click.argument("scored", type=click.Path(path_type=Path))
@click.option("--top", type=int, help="How many to keep.")
@click.option("--threshold", type=float, help="CacheBudget those with at least this score.")
@click.option("--budget-tokens", type=int, help="CacheBudget the first as long as they have at most so many tokens.")
@click.option("--per-topic", type=int, help="At most so many of each topic.")
@click.option("--per-teacher", type=int, help="At most so many of each teacher, each ranked among its own.")
@click.option("--teacher", default="", help="Only this one's.")
@click.option("--match-length", is_flag=True, help="Rank each among traces of its length.")
@click.option("--right", is_flag=True, help="Only those whose answer is right.")
@click.option(
    "--without",
    multiple=True,
    metavar="FILE|TASK[:SIZE[:SEED]]|STUDY",
    help="Leave out questions that are asked there.",
)
@click.option(
    "--min-run", type=int, default=8, show_default=True, help="Shortest run of shared words that counts as overlap."
)
@click.option(
    "--overlap", type=float, default=0.5, show_default=True, help="Drop questions that share this fraction of words."
)
@click.option("--keep-duplicates", is_flag=True, help="Near-duplicates stay too.")
@click.option("--alike", type=float, default=0.8, show_default=True, help="Jaccard similarity of near-duplicates.")
@click.option(
    "--by",
    type=click.Choice(["reward", "random", "longest", "shortest", "all"]),
    default="reward",
    show_default=True,
    help="Who goes first.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Of a random order.")
@_BAD
@click.option("-o", "--out", type=click.Path(path_type=Path), help="The file to write; NAME.chosen.jsonl if not given.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def select(scored: Path, without: tuple[str, ...], bad: Any, out: Path | None, as_json: bool, **settings: Any) -> None:
    """CacheBudget the traces of SCORED (JSONL) that are worth training on, the best first, and say why the others fell out."""
    from ponder.core import plugins
    from ponder.runner import progress
    from ponder.runner.run import Tally
    from ponder.runner.study import Study, built_in
    from ponder.traces import read
    from ponder.traces.select_file import Selecting
    from ponder.traces.selection import Choice

    limits = ("top", "threshold", "budget_tokens", "per_topic", "per_teacher")
    if settings["by"] != "all" and all(settings[limit] is None for limit in limits):
        raise UserError("nothing says how many to keep", hint="--top 1000, --threshold 0.8, or --by all")
    studies = [n for n in without if n.endswith(".toml") or (n in built_in() and n not in plugins.names("tasks"))]
    asked = (problem for name in studies for cell in Study.load(name).cells for problem in cell.asked())
    how = Choice(without=tuple(name for name in without if name not in studies), **settings)
    out = out or Path(f"{scored.stem.removesuffix('.scored')}.chosen.jsonl")
    selecting = Selecting(read(scored, bad), how, out, asked)
    reports = iter(selecting)
    tally = Tally(making=next(reports))
    with progress.shown(tally):
        for tally.making in reports:
            pass
    click.echo(selecting.table(), err=True)
    if not selecting.selection.kept:
        raise UserError("no trace is left", hint="the lines above say why")
    _say(selecting.summary(), as_json, lambda: str(out))


@main.command()
@click.argument("model")
@click.option("--port", type=int, default=8080, show_default=True, help="0: any that is free.")
@click.option("--slots", type=click.IntRange(1), default=4, show_default=True, help="Answers under way at once.")
@click.option("--context", type=click.IntRange(1), default=2048, show_default=True, help="Tokens a slot can hold.")
@click.option("--threads", type=click.IntRange(1), default=1, show_default=True, help="As many as cores are idle.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def serve(model: str, port: int, slots: int, context: int, threads: int, as_json: bool) -> None:
    """Serve MODEL (smollm2, or a .gguf file) as an endpoint on this machine, until Ctrl-C."""
    from ponder.models._llama_server import serve as serve_file
    from ponder.models._llama_server import weights

    path = weights(model)

    def ready(url: str) -> None:
        _say({"url": url, "id": path.stem}, as_json, lambda: url)
        click.echo(f'serving {path.stem}; in a study\'s [[model]]: name = "endpoint", id = "{path.stem}"', err=True)

    serve_file(path, port, slots, context, threads, ready)


@main.command()
@click.argument("kind", type=click.Choice(["task", "model", "cache", "method", "figure"]))
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def new(kind: str, name: str, as_json: bool) -> None:
    """Write NAME.py, a plugin to start from that passes its check."""
    from ponder.cli.scaffold import scaffold

    path = scaffold(kind, name, Path())
    _say({"file": str(path)}, as_json, lambda: f"{path}\nnext: ponder check ./{path.name}")


@main.command()
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def check(name: str, as_json: bool) -> None:
    """Hold a plugin, by its name or its file, to its contract."""
    from ponder.cli.check import check as hold

    kind, broken = hold(name)
    _say(
        {"kind": kind, "broken": broken},
        as_json,
        lambda: "\n".join(broken) or f"{kind} {name}: keeps its contract",
    )
    if broken:
        raise click.exceptions.Exit(1)
