"""What the commands share: their options, how a user's mistake is reported, and hints.

`--model 'endpoint id=NAME url=URL'` and `--set KEY=VALUE` are read here too.
"""

from __future__ import annotations

import errno
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ponder import __version__
from ponder.cli import complete
from ponder.cli.output import bold, red, tell
from ponder.core import UserError
from ponder.core.errors import Location

if TYPE_CHECKING:
    from ponder.results.study import Study

STORE = "ponder.db"
DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# Commands that take --store.
WITH_STORE = ("plan", "run", "regrade", "report", "export", "compare", "baseline", "tune")
# Where a command's context keeps its parameters, for the hints of errors.
PARAMETERS = "ponder.parameters"
_SETTING = re.compile(r"\w+(\[\d+\])*(\.\w+(\[\d+\])*)*=")
Command = TypeVar("Command", bound=Callable[..., Any])

FILE = click.Path(path_type=Path)
JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
JSON_LINES = click.option(
    "--json", "as_json", is_flag=True, help="Print each progress report as a line of JSON."
)
_store_option = partial(
    click.option,
    "--store",
    default=STORE,
    show_default=True,
    type=click.Path(path_type=Path, dir_okay=False),
)
STORE_FILE = _store_option(help="File that holds the attempts.")
SPENT_IN = _store_option(help="Store that counts what the study spends, if it has a cap.")
SET_STUDY = click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="Override keys of the study, such as model.id=qwq samples=8. May be repeated.",
)
MODEL = click.option(
    "--model",
    "models",
    multiple=True,
    metavar="'KIND KEY=VALUE …'",
    help="Ask this model instead, such as 'endpoint id=qwq budget=4096'. May be repeated.",
)
MODEL_EXAMPLE = (
    "--model 'endpoint id=NAME url=http://127.0.0.1:8000/v1'; ponder list models has other kinds"
)
JOBS = click.option(
    "--jobs",
    type=click.IntRange(1),
    default=1,
    metavar="N",
    help="Train up to N models at once, in N processes.",
)
RAY = click.option(
    "--ray",
    metavar="ADDRESS",
    help="Run on a Ray cluster: auto (running here), local (start one), or HOST:PORT.",
)
SPLIT = click.option(
    "--by",
    type=click.Choice(["blank", "sentence", "task"]),
    default="blank",
    show_default=True,
    help="Where a step ends: at a blank line, at a sentence's end, or as the task defines.",
)
BAD_LINES = click.option(
    "--bad",
    type=click.Choice(["refuse", "skip"]),
    default="refuse",
    show_default=True,
    help="On malformed lines, stop with an error, or skip and count them.",
)
COLUMNS = click.option(
    "--column",
    "columns",
    multiple=True,
    metavar="FIELD=NAME",
    help="Column of the question, thinking, answer or gold. May be repeated.",
)


def _keep_parameters(ctx: click.Context, _: click.Parameter, study: str) -> str:
    """Keep the parameters of a command that takes a study, for the hints of errors."""
    ctx.meta[PARAMETERS] = ctx.params  # filled as the other options are read
    return study


STUDY = click.argument("study", callback=_keep_parameters, shell_complete=complete.studies)


def study_options(command: Command) -> Command:
    """Add the argument STUDY and the options of every command that reads a store."""
    for option in (JSON, MODEL, SET_STUDY, STORE_FILE, STUDY):
        command = option(command)
    return command


def plugin_settings(of: str) -> Callable[[Command], Command]:
    """Return the option `--set` for the settings of one plugin."""
    text = f"Setting of the {of}. May be repeated."
    return click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help=text)


def named_columns(options: Sequence[str]) -> dict[str, str]:
    """Return the table that `--column thinking=cot` options stand for."""
    columns = {}
    for text in options:
        field, _, column = text.partition("=")
        if not field or not column:
            raise UserError(
                f"`{text}` doesn't name a column", where="--column", hint="--column thinking=cot"
            )
        columns[field] = column
    return columns


def model_table(text: str) -> dict[str, Any]:
    """Return the `[[model]]` that a `--model` option stands for.

    It is split as a shell would, and values are parsed as those of `--set`.
    """
    from ponder.core.settings import Typed, assign

    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UserError(
            f"`{text}` can't be split into words: {error}", where="--model", hint=MODEL_EXAMPLE
        ) from None
    if not words or "=" in words[0]:
        raise UserError(
            "the first word must be a kind of model", where="--model", hint=MODEL_EXAMPLE
        )
    table: dict[str, Any] = {"name": Typed(words[0])}
    for setting in words[1:]:
        if setting.find("=") < 1:
            hint = "--model 'endpoint id=NAME'; a value with spaces needs quotes of its own"
            raise UserError(f"`{setting}` is not KEY=VALUE", where="--model", hint=hint)
        assign({"model": [table]}, f"model.{setting}")
    return table


def load(study: str, settings: Sequence[str], models: Sequence[str]) -> Study:
    """Return the study that a command names, with what its options change."""
    from ponder.results.study import Study

    return Study.load(study, settings, [model_table(model) for model in models])


def command(
    verb: str,
    study: str,
    settings: Sequence[str],
    store: Path | None = None,
    models: Sequence[str] = (),
    arguments: Sequence[str] = (),
) -> str:
    """Return a command for a hint, about the same study and store as the one that was run."""
    words = ["ponder", verb, study, *arguments]
    for model in models:
        words += ["--model", model]
    for setting in settings:
        words += ["--set", setting]
    if store is not None and str(store) != STORE:
        words += ["--store", str(store)]
    return shlex.join(words)


class Verbs(click.Group):
    """A group of commands in the order in which they were added.

    A user's mistake is printed without a traceback and exits with code 2.
    """

    # Commands of earlier versions and what replaces each; … stands for the words after it.
    gone: Mapping[str, str] = {}

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 click's signature
        return list(self.commands)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, list(_each_set(args)))

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        name = args[0]
        commands = self.list_commands(ctx)
        if name not in commands and not name.startswith("-") and not ctx.resilient_parsing:
            from ponder.core.plugins import nearest

            hint = nearest(name, commands)
            if name in self.gone:
                hint = f"use `{self.gone[name].replace('…', shlex.join(args[1:]))}`"
            raise UserError(f"there is no command `{ctx.command_path} {name}`", hint=hint)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (click.exceptions.Exit, click.Abort, click.ClickException):
            raise
        except UserError as error:
            _report(_in_terms_of_options(error, ctx.meta.get(PARAMETERS, {})))
            ctx.exit(2)
        except KeyboardInterrupt:
            tell("interrupted")
            ctx.exit(130)
        except BrokenPipeError:  # the reader of our output has closed the pipe
            sys.stderr.close()
            ctx.exit(1)
        except Exception as error:
            mistake = _mistake(error)
            if mistake:
                _report(mistake)
                ctx.exit(2)
            if not hasattr(error, "__notes__"):  # a group inside a group has added it
                error.add_note(
                    f"This is a bug in Ponder {__version__} or in a plugin; "
                    "please report the lines above."
                )
            raise


def _report(error: UserError) -> None:
    """Print a user's mistake: the message, and the hint on its own line."""
    _drop_output()
    message, newline, hint = error.in_terminal().partition("\nhint: ")
    text = red(message)
    if newline:
        text += f"\n{bold('hint:')} {hint}"
    tell(text)


def _each_set(arguments: Iterable[str]) -> Iterator[str]:
    """Yield `--set a=1 b=2` as `--set a=1 --set b=2`: click takes one value per option."""
    after_option = False  # the argument before was `--set`
    after_value = False  # the argument before was a value of `--set`
    for argument in arguments:
        if after_option:
            yield argument
            after_option = False
            after_value = True
        elif after_value and _SETTING.match(argument):
            yield "--set"
            yield argument
        else:
            yield argument
            after_option = argument == "--set"
            after_value = argument.startswith("--set=")


def _mistake(error: Exception) -> UserError | None:
    """Return the error for an exception that a user can act on, such as a missing package."""
    if isinstance(error, ModuleNotFoundError) and not (error.name or "ponder").startswith("ponder"):
        from ponder.core.plugins import not_installed

        return not_installed(error, "this")
    if isinstance(error, OSError) and error.filename is not None:
        return UserError(f"can't use {error.filename}: {error.strerror}")
    if isinstance(error, OSError) and error.errno in DISK_FULL:
        hint = "free some space, or write to another disk, and run the command again"
        return UserError(f"can't write the output: {error.strerror}", hint=hint)
    return None


def _drop_output() -> None:
    """Drop what standard output can't take, so that Python doesn't try again at its end."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _in_terms_of_options(error: UserError, parameters: Mapping[str, Any]) -> UserError:
    """Return an error that names the option behind a value, and hints with the same options.

    Without it, an error about `--set model.id=…` would name the study file, and a hint such as
    `ponder plan STUDY` would be about another store.
    """
    settings: Sequence[str] = parameters.get("settings", ())
    models: Sequence[str] = ()
    if "study" in parameters:
        models = parameters.get("models", ())
    where = error.where
    if isinstance(where, Location):
        where = _option_of(where, settings, models)
    hint = error.hint
    if "study" in parameters:

        def with_options(match: re.Match[str]) -> str:
            verb = match[1]
            store = parameters.get("store") if verb in WITH_STORE else None
            return command(verb, parameters["study"], settings, store, models)

        hint = re.sub(r'\bset file = "([^"]+)"', r"use --set task.file=\1", hint)
        hint = re.sub(r"ponder (\w+) STUDY", with_options, hint)
    return UserError(error.what, where=where, hint=hint)


def _option_of(location: Location, settings: Sequence[str], models: Sequence[str]) -> str:
    """Return the option that set the value at a location; the location itself if none did."""
    first, *keys = location.parts or ("",)
    if not location.file:
        if keys == ["name"] and str(first).startswith("--"):  # a plugin that an option names
            return str(first)
        if keys and first in ("--set", "--reward"):
            return f"--set {Location('', *keys)}"
        return location
    for setting in settings:
        path = setting.partition("=")[0].strip()
        if _leads_to(path, location.parts):
            return f"--set {path}"
    if models and first == "model" and keys:
        keys = keys[1:]
        if keys in ([], ["name"]):
            return "--model"
        return f"--model {Location('', *keys)}"
    return location


def _leads_to(path: str, parts: Sequence[str | int]) -> bool:
    """Return whether the path of a `--set` leads to a location.

    A table without an index stands for all of that name.
    """
    remaining = list(parts)
    for step in path.split("."):
        key, *indices = re.findall(r"\w+", step)
        if not remaining or remaining.pop(0) != key:
            return False
        if indices:
            if remaining[: len(indices)] != [int(index) for index in indices]:
                return False
            del remaining[: len(indices)]
        else:
            while remaining and isinstance(remaining[0], int):
                remaining.pop(0)
    return all(isinstance(key, int) for key in remaining)
