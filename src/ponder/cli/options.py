"""What the commands share: options, output, progress, and error handling.

Data goes to stdout, everything else to stderr.
"""

from __future__ import annotations

import errno
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import click

from ponder import __version__
from ponder.cli import complete
from ponder.cli.model_option import MODEL
from ponder.core import Progress, UserError
from ponder.core.errors import Location
from ponder.core.text import as_json as json_text
from ponder.core.text import printable

if TYPE_CHECKING:
    from ponder.run.progress import Tally

STORE = "ponder.db"
DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_SETTING = re.compile(r"\w+(\[\d+\])*(\.\w+(\[\d+\])*)*=")
WITH_STORE = ("plan", "run", "regrade", "report", "export", "compare")  # commands that take --store
GIVEN = "ponder.given"  # where a command's context keeps its options
Verb = TypeVar("Verb", bound=Callable[..., Any])

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
STORE_FILE = _store_option(help="The file that holds attempts.")
SPENT_IN = _store_option(help="The store that counts what the study spends, if it has a cap.")
SET_STUDY = click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="Override keys of the study for this command, such as model.id=qwq samples=8. May be repeated.",
)
JOBS = click.option(
    "--jobs",
    type=click.IntRange(1),
    default=1,
    metavar="N",
    help="Make up to N models at once, in N processes.",
)
RAY = click.option(
    "--ray",
    metavar="ADDRESS",
    help="Prepare and ask on a Ray cluster: auto (one that runs here), local (start one here), or HOST:PORT.",
)
SPLIT = click.option(
    "--by",
    type=click.Choice(["blank", "sentence", "task"]),
    default="blank",
    show_default=True,
    help="Where a step ends: at a blank line, at the end of a sentence, or where the task itself divides steps.",
)
BAD_LINES = click.option(
    "--bad",
    type=click.Choice(["refuse", "skip"]),
    default="refuse",
    show_default=True,
    help="What to do with malformed lines: stop with an error, or skip and count them.",
)
COLUMNS = click.option(
    "--column",
    "named",
    multiple=True,
    metavar="FIELD=NAME",
    help="The column that holds the question, thinking, answer or gold, if its name is unusual. May be repeated.",
)


def _remembered(ctx: click.Context, _: click.Parameter, study: str) -> str:
    """Keep the options of a verb that takes a study, for the hints of errors."""
    ctx.meta[GIVEN] = ctx.params  # filled as the other options are read
    return study


STUDY = click.argument("study", callback=_remembered, shell_complete=complete.studies)


def study_options(verb: Verb) -> Verb:
    """The argument STUDY, and the options of every verb that reads a store."""
    for option in (JSON, MODEL, SET_STUDY, STORE_FILE, STUDY):
        verb = option(verb)
    return verb


def command(
    verb: str,
    study: str,
    settings: Sequence[str],
    store: Path | None = None,
    models: Sequence[str] = (),
    arguments: Sequence[str] = (),
) -> str:
    """A command for a hint, with the options that were given, so that it is about the same study
    and store.
    """
    where = [] if store is None or str(store) == STORE else ["--store", str(store)]
    given = [word for model in models for word in ("--model", model)]
    given += [word for setting in settings for word in ("--set", setting)]
    return shlex.join(["ponder", verb, study, *arguments, *given, *where])


def named_columns(named: Sequence[str]) -> dict[str, str]:
    """`--column thinking=cot` as a table."""
    if wrong := next((word for word in named if not all(word.partition("="))), None):
        raise UserError(
            f"`{wrong}` doesn't name a column", where="--column", hint="--column thinking=cot"
        )
    return dict((word.split("=", 1)) for word in named)


def plugin_settings(of: str) -> Callable[[Verb], Verb]:
    """`--set` for the settings of one plugin."""
    about = f"A setting of the {of}. May be repeated."
    return click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help=about)


class Verbs(click.Group):
    """Commands in the order in which they were added.

    A user's mistake is printed without a traceback: exit code 2.
    """

    # verbs of earlier versions and what replaces each; … stands for the words after it
    gone: Mapping[str, str] = {}

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 click's signature
        return list(self.commands)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, list(_each_set(args)))

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        name, known = args[0], self.list_commands(ctx)
        if name not in known and not name.startswith("-") and not ctx.resilient_parsing:
            from ponder.core.plugins import nearest

            hint = nearest(name, known)
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
            _drop_output()
            tell(_about_what_was_given(error, ctx.meta.get(GIVEN, {})).in_terminal())
            ctx.exit(2)
        except KeyboardInterrupt:
            tell("interrupted")
            ctx.exit(130)
        except BrokenPipeError:  # the reader of our output has closed the pipe
            sys.stderr.close()
            ctx.exit(1)
        except Exception as error:
            if mistake := _mistake(error):
                _drop_output()
                tell(mistake.in_terminal())
                ctx.exit(2)
            if not hasattr(error, "__notes__"):  # a group inside a group has added it
                error.add_note(
                    f"This is a bug in Ponder {__version__} or in a plugin; please report the lines above."
                )
            raise


def _each_set(words: Iterable[str]) -> Iterator[str]:
    """`--set a=1 b=2` as `--set a=1 --set b=2`: click takes one value per option."""
    given: Literal["", "option", "value"] = ""  # what the word before was
    for word in words:
        if given == "value" and _SETTING.match(word):
            yield "--set"
        elif given != "option":
            given = "option" if word == "--set" else "value" if word.startswith("--set=") else ""
            yield word
            continue
        given = "value"
        yield word


def _mistake(error: Exception) -> UserError | None:
    """What the user can do about an exception from deep inside: install a package, or name another
    file.
    """
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


def _about_what_was_given(error: UserError, given: Mapping[str, Any]) -> UserError:
    """An error about a value from `--set` names the option, not the file; a command in a hint has
    the options given.
    """
    settings: Sequence[str] = given.get("settings", ())
    models: Sequence[str] = given.get("models", ()) if "study" in given else ()
    where = error.where
    if isinstance(where, Location):
        where = _option_of(where, settings, models)
    hint = error.hint
    if "study" in given:
        store = given.get("store")

        def with_options(found: re.Match[str]) -> str:
            verb = found[1]
            return command(
                verb, given["study"], settings, store if verb in WITH_STORE else None, models
            )

        hint = re.sub(r'\bset file = "([^"]+)"', r"use --set task.file=\1", hint)
        hint = re.sub(r"ponder (\w+) STUDY", with_options, hint)
    return UserError(error.what, where=where, hint=hint)


def _option_of(place: Location, settings: Sequence[str], models: Sequence[str]) -> str:
    """Return the option that set the value at a place; the place itself if none did."""
    first, *keys = place.parts or ("",)
    if not place.file:
        if keys == ["name"] and str(first).startswith("--"):  # a plugin that an option names
            return str(first)
        if keys and first in ("--set", "--reward"):
            return f"--set {Location('', *keys)}"
        return place
    for setting in settings:
        path = setting.partition("=")[0].strip()
        if _leads_to(path, place.parts):
            return f"--set {path}"
    if models and first == "model" and keys:
        keys = keys[1:]
        return "--model" if keys in ([], ["name"]) else f"--model {Location('', *keys)}"
    return place


def _leads_to(path: str, parts: Sequence[str | int]) -> bool:
    """Return whether the path of a `--set` is that of a place; a table without an index stands for
    all of that name.
    """
    left = list(parts)
    for step in path.split("."):
        key, *indices = re.findall(r"\w+", step)
        if not left or left.pop(0) != key:
            return False
        if indices:
            if left[: len(indices)] != [int(index) for index in indices]:
                return False
            del left[: len(indices)]
        else:
            while left and isinstance(left[0], int):
                left.pop(0)
    return all(isinstance(part, int) for part in left)


def tell(text: str) -> None:
    """Print to stderr what is not data."""
    click.echo(printable(text), err=True)


def say(data: Any, as_json: bool, text: Callable[[], str]) -> None:
    """Print a result."""
    click.echo(json_text(data, indent=1) if as_json else printable(text()))


def columns(rows: Sequence[Sequence[Any]], *, numbers: int = 0) -> str:
    """Rows in aligned columns, the last `numbers` of them aligned to the right."""
    cells = [
        ["–" if c is None else f"{c:,}" if isinstance(c, int) else printable(str(c)) for c in row]
        for row in rows
    ]
    widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
    first_number = len(widths) - numbers
    return "\n".join(
        "  ".join(
            c.rjust(w) if i >= first_number else c.ljust(w)
            for i, (c, w) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    )


@contextmanager
def resumable() -> Iterator[None]:
    """Say on Ctrl-C how to resume."""
    try:
        yield
    except KeyboardInterrupt:
        tell("interrupted; run the same command again to resume")
        raise click.exceptions.Exit(130) from None


def _show(tally: Tally, report: Progress) -> None:
    """Several models may be made at once: then the last report of each that isn't ready is shown."""
    if "model" in report:
        tally.report("", None)
        tally.report(report["model"], report)
        return
    tally.report(report.get("ready", ""), None)
    if not tally.making:
        tally.report("", report)


def watch(reports: Iterable[Progress], *, as_json: bool = False) -> bool:
    """Do long work to its end: a line of progress on stderr, or with `as_json` every report on
    stdout.

    Returns whether there was anything to do.
    """
    from ponder.run import progress
    from ponder.run.progress import Tally

    with resumable():
        waiting = iter(reports)
        # a mistake in the input shows before there is a line of progress
        if (first := next(waiting, None)) is None:
            return False
        tally = Tally()
        with progress.shown(tally):
            for report in chain([first], waiting):
                _show(tally, report)
                if as_json:
                    click.echo(json_text(report))
        return True
