"""`ponder try`: ask a model a few problems of a task and see how its answers are read, without a
study file.
"""

from __future__ import annotations

import json
import os
import re
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ponder.cli import complete
from ponder.cli.model_option import EXAMPLE, model_table
from ponder.cli.options import JSON, STORE, columns, command, plugin_settings, say, tell
from ponder.core import UserError
from ponder.core.capabilities import grade_turns, parse_answer
from ponder.core.errors import Location
from ponder.core.text import count, printable

if TYPE_CHECKING:
    from ponder.core import Estimate
    from ponder.results.study import Study
    from ponder.store.store import Store
    from ponder.study.cell import StudyCell

BUDGET, TEMPERATURE = 32768, 0.6  # as in the studies of benchmarks, which so find what was tried
SERVERS_OWN = "default"  # --temperature default: none is sent, so that the server uses its own
SHORT = ("id", "url", "key", "budget", "temperature")  # options that are keys of an endpoint
SHOWN = 40  # characters of an answer in the table
ENDS, END = 5, 300  # replies whose end is shown, and its characters
# A key with its value in the hint of an endpoint's error, as it stands in a study.
KEY_VALUE = re.compile(
    r'\b(id|url|key|budget|budget_field|send_seed|stream|temperature) = ("[^"]*"|\w+)'
)
WHERE = {"task[0].name": "TASK", "task[0].size": "--size", "problems": "-n", "samples": "--samples"}


def _temperature(
    ctx: click.Context, param: click.Parameter, value: str | None
) -> float | str | None:
    """Return a number of at least 0, or `default`."""
    if value is None or value == SERVERS_OWN:
        return value
    temperature: float = click.FloatRange(0)(value, param, ctx)
    return temperature


@click.command("try")
@click.argument("task", shell_complete=complete.tasks)
@click.option("--id", help="Name of the model on the server.")
@click.option(
    "--url", help="Endpoint to ask, without /chat/completions.  [default: http://127.0.0.1:8000/v1]"
)
@click.option("--key", metavar="NAME", help="Environment variable that holds the API key.")
@click.option(
    "--budget", type=click.IntRange(1), help=f"Completion tokens per answer.  [default: {BUDGET}]"
)
@click.option(
    "--temperature",
    callback=_temperature,
    metavar="FLOAT",
    help=f"Sampling temperature; `{SERVERS_OWN}` sends none, for models that refuse one.  [default: {TEMPERATURE}]",
)
@click.option(
    "--model",
    "models",
    multiple=True,
    metavar="'KIND KEY=VALUE …'",
    help="Any model instead of --id and --url, such as 'transformers id=DIR'. May be repeated.",
)
@click.option(
    "-n",
    "problems",
    type=click.IntRange(1),
    default=10,
    show_default=True,
    help="Number of problems.",
)
@click.option(
    "--samples", type=click.IntRange(1), default=1, show_default=True, help="Attempts per problem."
)
@click.option("--size", type=int, help="Size of the problems.  [default: the task's smallest]")
@plugin_settings("task, such as file=math500.jsonl")
@click.option(
    "--max-tokens",
    type=click.IntRange(1),
    help="Cap on all tokens of this command, prompts included.",
)
@click.option(
    "--store",
    default=STORE,
    show_default=True,
    type=click.Path(path_type=Path, dir_okay=False),
    help="The file that holds attempts.",
)
@JSON
def try_(
    task: str,
    models: tuple[str, ...],
    problems: int,
    samples: int,
    size: int | None,
    settings: tuple[str, ...],
    max_tokens: int | None,
    store: Path,
    as_json: bool,
    **short: Any,
) -> None:
    """Ask a few problems of TASK, and show how each answer is read.

    `ponder try math500 --id NAME -n 20` asks an endpoint; --model takes any other model. The
    attempts are stored: a study that asks the same, such as `ponder run math500`, doesn't ask them
    again.
    """
    from ponder.cli.study import run_in_terminal
    from ponder.run.progress import summary
    from ponder.store.store import Store

    given = {key: value for key in SHORT if (value := short[key]) is not None}
    # as `ponder run` wants them
    settings = tuple(setting.removeprefix("task.") for setting in settings)
    with _where(given, models):
        tables = [model_table(model) for model in models] if models else [_endpoint(given)]
        if models and given:
            what = f"--{next(iter(given))} is for --id and --url; --model has its own keys"
            raise UserError(what, hint=EXAMPLE)
        content: dict[str, Any] = {
            "model": tables,
            "problems": problems,
            "samples": samples,
            "cap_per": "run",
        }
        content |= {"max_tokens": max_tokens} if max_tokens else {}
        study = _study(task, content, size, settings)
        tally = run_in_terminal(study, store, warn=False)
    with Store(store) as opened:
        attempts = [row for cell in study.cells for row in _attempts(cell, opened)]
        totals = [_total(cell, opened) for cell in study.cells]
    say({"attempts": attempts, "summary": totals}, as_json, lambda: _text(attempts, totals))
    if told := summary(tally):
        tell(told)
    if tally.failed:
        tell(
            f"{count(tally.failed, 'attempt')} failed and left out; run the same command again to retry"
        )
        raise click.exceptions.Exit(1)
    if next_run := _next(task, models, given, settings, store):
        tell(f"next: {next_run}")


def _endpoint(given: dict[str, Any]) -> dict[str, Any]:
    if "id" not in given:
        raise UserError(
            "which model? --id names it on the server", hint=f"--id NAME --url URL, or {EXAMPLE}"
        )
    table = {"name": "endpoint", "budget": BUDGET, "temperature": TEMPERATURE, **given}
    if table["temperature"] == SERVERS_OWN:
        del table["temperature"]
    if "key" in given:
        name = given["key"].removeprefix("$")
        # it isn't repeated: it may be the key itself, after the shell has filled it in
        if name not in os.environ:
            what = "--key is the name of an environment variable that holds the key, and there is none of that name"
            raise UserError(what, hint="export NAME=…, then --key NAME, without $")
        table["key"] = f"${name}"
    return table


def _study(task: str, content: dict[str, Any], size: int | None, settings: Sequence[str]) -> Study:
    from ponder.core import plugins
    from ponder.core.settings import Typed, assign
    from ponder.results.study import Study
    from ponder.study.study import built_in

    if task in built_in() and task not in plugins.names("tasks"):
        raise UserError(
            f"`{task}` is a study, not a task", hint=f"ponder run {task}, or ponder list tasks"
        )
    table: dict[str, Any] = {"name": Typed(task)}
    for setting in settings:
        assign({"task": [table]}, f"task.{setting}")
    content = {**content, "task": [table if size is None else {**table, "size": size}]}
    study = Study.from_table(content, name=f"try-{Path(task).stem}", where="try", folder=Path())
    sizes = list(dict.fromkeys(cell.size for cell in study.cells))
    if len(sizes) == 1:
        return study
    tell(f"problems of size {sizes[0]}; --size chooses another, such as {sizes[1]}")
    return _study(task, content, sizes[0], settings)


@contextmanager
def _where(given: dict[str, Any], models: Sequence[str]) -> Iterator[None]:
    """Errors name the option that a key was given by, not its place in a study."""
    try:
        yield
    except UserError as error:
        where: str = error.where
        example = "--set KEY=VALUE"
        if isinstance(error.where, Location):
            parts = error.where.parts
            path = str(Location("", *parts))
            key = str(parts[2]) if len(parts) > 2 else ""
            where = WHERE.get(path, path)
            if parts[:2] == ("task", 0) and path not in WHERE:
                where = f"--set {key}" if key else ""
            elif parts[:1] == ("model",) and len(parts) > 1:
                example = EXAMPLE
                where = f"--{key}" if key in given else ""
                if models:
                    where = f"--model {key}" if key not in ("", "name") else "--model"
        hint = re.sub(
            r"^ponder show (\w+)$", r"ponder show \1 has its keys; " + example, error.hint
        )
        hint = re.sub(r'\bset file = "([^"]+)"', r"use --set file=\1", hint)
        hint = _with_options(hint, given, models)
        raise UserError(error.what, where=where.removeprefix("try: "), hint=hint) from None


def _with_options(hint: str, given: dict[str, Any], models: Sequence[str]) -> str:
    """Return a hint about a key of an endpoint with the option that sets it in this command."""

    def option(key_value: re.Match[str]) -> str:
        key, value = key_value[1], key_value[2].strip('"')
        if models:
            return f"--model 'endpoint … {key}={value}'"
        if key == "key":
            return f"--key {value.removeprefix('$')}"
        return (
            f"--{key} {value}" if key in SHORT else f"--model '{_model_text(given)} {key}={value}'"
        )

    if not models:
        hint = hint.replace("leave out `temperature`", f"--temperature {SERVERS_OWN}")
    return KEY_VALUE.sub(option, hint)


def _model_text(given: dict[str, Any]) -> str:
    """Return the value of --model that means the same as the short options."""
    defaults = {"id": "NAME", "budget": BUDGET, "temperature": TEMPERATURE}
    table = {key: {**defaults, **given}[key] for key in SHORT if key in given or key in defaults}
    return " ".join(
        ["endpoint", *(word for word in _words(table) if word != f"temperature={SERVERS_OWN}")]
    )


def _words(table: dict[str, Any]) -> list[str]:
    """Return keys of an endpoint as KEY=VALUE, where an API key is $NAME."""
    words = []
    for key, value in table.items():
        words.append(f"key=${value.removeprefix('$')}" if key == "key" else f"{key}={value}")
    return words


def _attempts(cell: StudyCell, store: Store) -> Iterator[dict[str, Any]]:
    """What became of each attempt: how it ended, what was read from it, and what would have been
    right.
    """
    for done in store.attempts(cell):
        attempt, parsed = done.attempt, None
        if attempt.ended in ("right", "wrong"):
            parsed = grade_turns(
                cell.task, attempt.problem, [c.answer for c in attempt.completions]
            ).parsed
        reply = attempt.completions[-1].answer if attempt.completions else ""
        yield {
            "model": cell.label.model,
            "problem": done.position + 1,
            "sample": attempt.sample + 1,
            "result": attempt.ended,
            "why": attempt.why,
            "tokens": attempt.bill.thinking_tokens + attempt.bill.answer_tokens,
            "parsed": parsed,
            "right": parse_answer(cell.task, attempt.problem, cell.task.solve(attempt.problem)),
            "reply_end": reply[-END:],
        }


def _total(cell: StudyCell, store: Store) -> dict[str, Any]:
    """Accuracy and output tokens of a model, with intervals."""
    from ponder.stats.accuracy import by_size
    from ponder.stats.columns import columns as arrays

    outcomes = list(store.outcomes([cell]))
    row = next(iter(by_size(arrays(outcomes, "output"))), None)
    ends = {key: getattr(row, key, 0) for key in ("unparsed", "truncated", "failed")}
    if row is None or not row.accuracy.attempts:
        return {
            "model": cell.label.model,
            "task": cell.label.task,
            "attempts": 0,
            "problems": 0,
            **ends,
        }
    numbers = {"attempts": row.accuracy.attempts, "problems": row.accuracy.problems, **ends}
    estimates = {"pass_at_1": _ends(row.accuracy), "output_tokens": _ends(row.tokens)}
    return {"model": cell.label.model, "task": cell.label.task, **estimates, **numbers}


def _ends(estimate: Estimate) -> list[float | None]:
    """Value, low and high; None for an open end."""
    return [
        None if abs(e) == float("inf") else e for e in (estimate.value, estimate.low, estimate.high)
    ]


def _text(attempts: Sequence[dict[str, Any]], totals: Sequence[dict[str, Any]]) -> str:
    several = len(totals) > 1
    sampled = any(a["sample"] > 1 for a in attempts)
    rows: list[tuple[Any, ...]] = [
        ("problem", "result", "parsed answer", "right answer", "output tokens")
    ]
    rows += [(_named(a, several, sampled), a["result"], _short(a["parsed"]), _short(a["right"]), a["tokens"])
             for a in attempts]  # fmt: skip
    parts = [columns(rows, numbers=1)] if attempts else []
    unread = [a for a in attempts if a["result"] == "unparsed"]
    for a in unread[:ENDS]:
        end = textwrap.indent(printable(a["reply_end"].strip()) or "(an empty reply)", "    ")
        parts.append(
            f"problem {_named(a, several, sampled)}, unparsed: {a['why']}. The reply ends:\n{end}"
        )
    if len(unread) > ENDS:
        parts.append(f"{len(unread) - ENDS} more unparsed: --json has the end of each reply")
    return "\n\n".join([*parts, "\n".join(map(_sentence, totals))])


def _named(attempt: dict[str, Any], several: bool, sampled: bool) -> str:
    model = f"{attempt['model']}, " if several else ""
    return f"{model}{attempt['problem']}" + (f", sample {attempt['sample']}" if sampled else "")


def _short(value: Any) -> str:
    text = (
        value
        if isinstance(value, str)
        else "–"
        if value is None
        else json.dumps(value, default=str)
    )
    line = " ".join(text.split())
    return line if len(line) <= SHOWN else f"{line[: SHOWN - 1]}…"


def _sentence(total: dict[str, Any]) -> str:
    ends = ", ".join(
        f"{total[key]:,} {key}" for key in ("unparsed", "truncated", "failed") if total[key]
    )
    named = f"{total['model']} on {total['task']}"
    if not total["attempts"]:
        return f"{named}: no answers" + (f" ({ends})" if ends else "")
    value, low, high = total["pass_at_1"]
    tokens, *around = ("?" if end is None else f"{end:,.0f}" for end in total["output_tokens"])
    made = f"{count(total['attempts'], 'attempt')} at {count(total['problems'], 'problem')}"
    return (
        f"{named}: pass@1 {value:.1%} [{low:.1%}, {high:.1%}], {tokens} output tokens per answer "
        f"[{', '.join(around)}]; {made}{f', {ends}' if ends else ''}"
    )


def _next(
    task: str, models: Sequence[str], given: dict[str, Any], settings: Sequence[str], store: Path
) -> str:
    """The command that runs the whole benchmark, if it is one, with the same model."""
    from ponder.results.study import Study
    from ponder.study.study import built_in

    if task not in built_in() or Study.load(task).task != [{"name": task}]:
        return ""
    keys = [f"task.{setting}" for setting in settings]
    # the study's model has one, so it needs another model
    if given.get("temperature") == SERVERS_OWN:
        return command("run", task, keys, store, [_model_text(given)])
    keys += [f"model.{word}" for word in _words(given)]
    return command("run", task, keys, store, models)
