"""`ponder try`: asks a model a few problems without a study file, and shows how they are parsed."""

from __future__ import annotations

import json
import os
import re
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ponder.cli import complete
from ponder.cli.options import (
    JSON,
    MODEL_EXAMPLE,
    STORE_FILE,
    command,
    model_table,
    plugin_settings,
)
from ponder.cli.output import bold, say, table, tell, wrap
from ponder.core import Message, Request, UserError
from ponder.core.capabilities import parse_answer, parse_turns, right_answer
from ponder.core.errors import Location
from ponder.core.text import count, interval, printable

if TYPE_CHECKING:
    from ponder.core import Estimate
    from ponder.results.study import Study
    from ponder.store.store import Store
    from ponder.study.cell import StudyCell

# Defaults of the built-in benchmark studies, which so find the attempts that were tried.
BUDGET = 32768
TEMPERATURE = 0.6
SERVERS_OWN = "default"  # --temperature default: none is sent, so that the server uses its own
ENDPOINT_KEYS = ("id", "url", "key", "budget", "temperature")  # options that are an endpoint's keys
MAX_ANSWER = 40  # characters of an answer in the table
# How many unparsed replies are printed, and how many characters of the end of each.
MAX_REPLIES = 5
REPLY_END = 300
# A key with its value in the hint of an endpoint's error, as a study writes it.
KEY_VALUE = re.compile(
    r"\b(id|url|key|budget|budget_field|send_seed|stream|temperature|protocol|provider|effort|think|"
    r'thinking) = ("[^"]*"|\w+)'
)
# The options that set keys of the study.
OPTIONS = {
    "task[0].name": "TASK",
    "task[0].size": "--size",
    "problems": "-n",
    "samples": "--samples",
}


def _temperature(
    ctx: click.Context, param: click.Parameter, value: str | None
) -> float | str | None:
    """Return a number of at least 0, or `default`."""
    if value is None or value == SERVERS_OWN:
        return value
    temperature: float = click.FloatRange(0)(value, param, ctx)
    return temperature


@click.command("try", epilog="Example: ponder try math500 --id NAME -n 20")
@click.argument("task", shell_complete=complete.tasks)
@click.option("--id", help="Name of the model on the server.")
@click.option(
    "--url", help="Endpoint, without /chat/completions.  [default: http://127.0.0.1:8000/v1]"
)
@click.option("--key", metavar="NAME", help="Environment variable that holds the API key.")
@click.option(
    "--budget", type=click.IntRange(1), help=f"Completion tokens per answer.  [default: {BUDGET}]"
)
@click.option(
    "--temperature",
    callback=_temperature,
    metavar="FLOAT",
    help=f"Sampling temperature; `{SERVERS_OWN}` sends none.  [default: {TEMPERATURE}]",
)
@click.option(
    "--model",
    "models",
    multiple=True,
    metavar="'KIND KEY=VALUE …'",
    help="Model instead of --id and --url, such as 'transformers id=DIR'. May be repeated.",
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
@STORE_FILE
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
    """Ask a few problems of TASK, and show how each answer is parsed.

    --id and --url ask an endpoint; --model takes any other model. `--temperature default` is for
    models that refuse a temperature. The attempts are stored: a study that asks the same, such as
    `ponder run math500`, doesn't ask them again.
    """
    from ponder.cli.study import exit_if_failed, run_in_terminal
    from ponder.run.progress import summary
    from ponder.store.store import Store

    endpoint = {key: short[key] for key in ENDPOINT_KEYS if short[key] is not None}
    # `ponder run` writes `--set task.file=…`, this command `--set file=…`: both work here.
    settings = tuple(setting.removeprefix("task.") for setting in settings)
    with _errors_name_options(endpoint, models):
        if models and endpoint:
            raise UserError(
                f"--{next(iter(endpoint))} is for --id and --url; --model has its own keys",
                hint=MODEL_EXAMPLE,
            )
        tables = [model_table(model) for model in models] or [_endpoint_table(endpoint)]
        content: dict[str, Any] = {
            "model": tables,
            "problems": problems,
            "samples": samples,
            "cap_per": "run",
        }
        if max_tokens:
            content["max_tokens"] = max_tokens
        study = _study(task, content, size, settings)
        for text in _requests(study):
            tell(f"{text}\n")
        tally = run_in_terminal(study, store, warn=False)
    attempts: list[dict[str, Any]] = []
    totals = []
    with Store(store) as opened:
        for cell in study.cells:
            attempts += _attempts(cell, opened)
            totals.append(_total(cell, opened))
    say({"attempts": attempts, "summary": totals}, as_json, lambda: _text(attempts, totals))
    troubles = summary(tally)
    if troubles:
        tell(troubles)
    exit_if_failed(tally)
    next_command = _next(task, models, endpoint, settings, store)
    if next_command:
        tell(f"next: {next_command}")


def _endpoint_table(endpoint: dict[str, Any]) -> dict[str, Any]:
    """Return the `[[model]]` that the options of an endpoint stand for."""
    if "id" not in endpoint:
        raise UserError(
            "which model? --id names it on the server",
            hint=f"--id NAME --url URL, or {MODEL_EXAMPLE}",
        )
    model = {"name": "endpoint", "budget": BUDGET, "temperature": TEMPERATURE, **endpoint}
    if model["temperature"] == SERVERS_OWN:
        del model["temperature"]
    if "key" in endpoint:
        name = endpoint["key"].removeprefix("$")
        # It isn't repeated: it may be the key itself, after the shell has filled it in.
        if name not in os.environ:
            raise UserError(
                "--key is the name of an environment variable that holds the key, "
                "and there is none of that name",
                hint="export NAME=…, then --key NAME, without $",
            )
        model["key"] = f"${name}"
    return model


def _study(task: str, content: dict[str, Any], size: int | None, settings: Sequence[str]) -> Study:
    """Return a study of one task at one size: the given one, or the task's smallest."""
    from ponder.core import plugins
    from ponder.core.settings import Typed, assign
    from ponder.results.study import Study
    from ponder.study.study import built_in

    if task in built_in() and task not in plugins.names("tasks"):
        raise UserError(
            f"`{task}` is a study, not a task", hint=f"ponder run {task}, or ponder list tasks"
        )
    task_table: dict[str, Any] = {"name": Typed(task)}
    for setting in settings:
        assign({"task": [task_table]}, f"task.{setting}")
    if size is not None:
        task_table["size"] = size
    content = {**content, "task": [task_table]}
    study = Study.from_table(content, name=f"try-{Path(task).stem}", where="try", folder=Path())
    sizes = list(dict.fromkeys(cell.size for cell in study.cells))
    if len(sizes) == 1:
        return study
    tell(f"problems of size {sizes[0]}; --size chooses another, such as {sizes[1]}")
    return _study(task, content, sizes[0], settings)


def _requests(study: Study) -> Iterator[str]:
    """Yield the first request to each endpoint, as it is sent."""
    from ponder.methods.prompt import prompted
    from ponder.models.endpoint import Endpoint

    previewed = set[tuple[bytes, tuple[Message, ...]]]()
    for cell in study.cells:
        problem = next(cell.asked(), None)
        if not isinstance(cell.model, Endpoint) or problem is None:
            continue
        seed = cell.attempt_seed(problem, 0, 0)
        request = prompted(cell.methods, Request.first_turn(cell.task, problem, seed))
        if (cell.base_key, request.messages) in previewed:
            continue
        previewed.add((cell.base_key, request.messages))
        yield printable(cell.model.preview(request).text())


@contextmanager
def _errors_name_options(endpoint: dict[str, Any], models: Sequence[str]) -> Iterator[None]:
    """Rewrite a `UserError` of the block: it names options, not locations in a study."""
    try:
        yield
    except UserError as error:
        where: str = error.where
        example = "--set KEY=VALUE"
        if isinstance(error.where, Location):
            parts = error.where.parts
            path = str(Location("", *parts))
            key = str(parts[2]) if len(parts) > 2 else ""
            where = OPTIONS.get(path, path)
            if parts[:2] == ("task", 0) and path not in OPTIONS:
                where = f"--set {key}" if key else ""
            elif parts[:1] == ("model",) and len(parts) > 1:
                example = MODEL_EXAMPLE
                where = f"--{key}" if key in endpoint else ""
                if models:
                    where = f"--model {key}" if key not in ("", "name") else "--model"
        hint = re.sub(
            r"^ponder show (\w+)$", r"ponder show \1 has its keys; " + example, error.hint
        )
        hint = re.sub(r'\bset file = "([^"]+)"', r"use --set file=\1", hint)
        hint = _with_options(hint, endpoint, models)
        raise UserError(error.what, where=where.removeprefix("try: "), hint=hint) from None


def _with_options(hint: str, endpoint: dict[str, Any], models: Sequence[str]) -> str:
    """Return a hint about a key of an endpoint with the option that sets it in this command."""

    def option(key_value: re.Match[str]) -> str:
        key = key_value[1]
        value = key_value[2].strip('"')
        if models:
            return f"--model 'endpoint … {key}={value}'"
        if key == "key":
            return f"--key {value.removeprefix('$')}"
        if key in ENDPOINT_KEYS:
            return f"--{key} {value}"
        return f"--model '{_model_text(endpoint)} {key}={value}'"

    if not models:
        hint = hint.replace("leave out `temperature`", f"--temperature {SERVERS_OWN}")
    return KEY_VALUE.sub(option, hint)


def _model_text(endpoint: dict[str, Any]) -> str:
    """Return the value of --model that means the same as the options of an endpoint."""
    keys = {"id": "NAME", "budget": BUDGET, "temperature": TEMPERATURE, **endpoint}
    if keys["temperature"] == SERVERS_OWN:
        del keys["temperature"]
    ordered = {key: keys[key] for key in ENDPOINT_KEYS if key in keys}
    return " ".join(["endpoint", *_key_values(ordered)])


def _key_values(endpoint: dict[str, Any]) -> list[str]:
    """Return keys of an endpoint as KEY=VALUE, where an API key is $NAME."""
    words = []
    for key, value in endpoint.items():
        if key == "key":
            words.append(f"key=${value.removeprefix('$')}")
        else:
            words.append(f"{key}={value}")
    return words


def _attempts(cell: StudyCell, store: Store) -> Iterator[dict[str, Any]]:
    """Yield for each attempt how it ended, the parsed answer, and a correct one."""
    for stored in store.attempts(cell):
        attempt = stored.attempt
        replies = [completion.answer for completion in attempt.completions]
        parsed = None
        if attempt.ended in ("right", "wrong"):
            parsed = parse_turns(cell.task, attempt.problem, replies)
        right = right_answer(cell.task, attempt.problem)
        with suppress(UserError):  # not every task knows a right reply to each problem
            solution = cell.task.solve(attempt.problem)
            right = parse_answer(cell.task, attempt.problem, solution)
        last_reply = replies[-1] if replies else ""
        yield {
            "model": cell.label.model,
            "problem": stored.position + 1,
            "sample": attempt.sample + 1,
            "result": attempt.ended,
            "why": attempt.why,
            "tokens": attempt.bill.thinking_tokens + attempt.bill.answer_tokens,
            "parsed": parsed,
            "right": right,
            "reply_end": last_reply[-REPLY_END:],
        }


def _total(cell: StudyCell, store: Store) -> dict[str, Any]:
    """Return accuracy and output tokens of a model, with intervals."""
    from ponder.stats.accuracy import by_size
    from ponder.stats.columns import columns

    outcomes = list(store.outcomes([cell]))
    row = next(iter(by_size(columns(outcomes, "output"))), None)
    total: dict[str, Any] = {"model": cell.label.model, "task": cell.label.task}
    attempts = 0
    problems = 0
    if row is not None and row.accuracy.attempts:
        total["pass_at_1"] = _ends(row.accuracy)
        total["output_tokens"] = _ends(row.tokens)
        attempts = row.accuracy.attempts
        problems = row.accuracy.problems
    total["attempts"] = attempts
    total["problems"] = problems
    for ending in ("unparsed", "truncated", "failed"):
        total[ending] = getattr(row, ending, 0)
    return total


def _ends(estimate: Estimate) -> list[float | None]:
    """Return value, low and high; None for an open end."""
    ends = (estimate.value, estimate.low, estimate.high)
    return [None if abs(end) == float("inf") else end for end in ends]


def _text(attempts: Sequence[dict[str, Any]], totals: Sequence[dict[str, Any]]) -> str:
    """Return the table of attempts, the ends of unparsed replies, and a sentence per model."""
    several_models = len(totals) > 1
    sampled = any(attempt["sample"] > 1 for attempt in attempts)
    rows: list[tuple[Any, ...]] = [
        ("problem", "result", "parsed answer", "right answer", "output tokens")
    ]
    for attempt in attempts:
        name = _name(attempt, several_models, sampled)
        answers = (_short(attempt["parsed"]), _short(attempt["right"]))
        rows.append((name, attempt["result"], *answers, attempt["tokens"]))
    paragraphs = []
    if attempts:
        paragraphs.append(table(rows, numbers=1))
    unparsed = [attempt for attempt in attempts if attempt["result"] == "unparsed"]
    for attempt in unparsed[:MAX_REPLIES]:
        name = _name(attempt, several_models, sampled)
        end = textwrap.indent(printable(attempt["reply_end"].strip()) or "(an empty reply)", "    ")
        why = attempt["why"]
        paragraphs.append(f"problem {name}, unparsed: {why}. The reply ends:\n{end}")
    if len(unparsed) > MAX_REPLIES:
        remaining = len(unparsed) - MAX_REPLIES
        paragraphs.append(f"{remaining} more unparsed: --json has the end of each reply")
    paragraphs.append("\n".join(_sentence(total) for total in totals))
    return "\n\n".join(paragraphs)


def _name(attempt: dict[str, Any], several_models: bool, sampled: bool) -> str:
    """Return an attempt's problem, with its model and sample if there are several."""
    words = [str(attempt["problem"])]
    if several_models:
        words.insert(0, attempt["model"])
    if sampled:
        words.append(f"sample {attempt['sample']}")
    return ", ".join(words)


def _short(value: Any) -> str:
    """Return an answer on one line."""
    if value is None:
        return "–"
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    line = " ".join(text.split())
    if len(line) > MAX_ANSWER:
        return f"{line[: MAX_ANSWER - 1]}…"
    return line


def _sentence(total: dict[str, Any]) -> str:
    """Return a model's accuracy and tokens in a sentence."""
    endings = []
    for ending in ("unparsed", "truncated", "failed"):
        if total[ending]:
            endings.append(f"{total[ending]:,} {ending}")
    name = f"{total['model']} on {total['task']}"
    if not total["attempts"]:
        text = f"{name}: no answers"
        if endings:
            text += f" ({', '.join(endings)})"
        return text
    accuracy, low, high = interval(*total["pass_at_1"], scale=100)
    tokens, lowest, highest = interval(*total["output_tokens"])
    attempts = f"{count(total['attempts'], 'attempt')} at {count(total['problems'], 'problem')}"
    return wrap(
        f"{bold(name)}: pass@1 {accuracy} % [{low}, {high}], "
        f"{tokens} output tokens per answer [{lowest}, {highest}]; "
        f"{', '.join([attempts, *endings])}"
    )


def _next(
    task: str, models: Sequence[str], endpoint: dict[str, Any], settings: Sequence[str], store: Path
) -> str:
    """Return the command that runs the whole benchmark with the same model; "" if TASK is none."""
    from ponder.results.study import Study
    from ponder.study.study import built_in

    if task not in built_in() or Study.load(task).task != [{"name": task}]:
        return ""
    keys = [f"task.{setting}" for setting in settings]
    # The study's model has a temperature, so a server's own one needs another model.
    if endpoint.get("temperature") == SERVERS_OWN:
        return command("run", task, keys, store, [_model_text(endpoint)])
    keys += [f"model.{key_value}" for key_value in _key_values(endpoint)]
    return command("run", task, keys, store, models)
