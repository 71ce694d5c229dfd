"""`ponder prepare`: everything that a study needs before it runs, or one model or reward in a
folder.

`ponder prepare STUDY` stands for `ponder prepare study STUDY`. Each file in `recipes/` that defines
`make(folder, …)` is a subcommand too; the parameters of that function are its options. The files
are parsed, not imported, so that help never loads torch.
"""

from __future__ import annotations

import ast
import importlib
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from ponder.cli import complete
from ponder.cli.comments import comments
from ponder.cli.options import (
    COLUMNS,
    FILE,
    JOBS,
    JSON_LINES,
    RAY,
    SET_STUDY,
    SPENT_IN,
    SPLIT,
    STUDY,
    Verbs,
    command,
    named_columns,
    plugin_settings,
    tell,
    watch,
)
from ponder.core.text import printable

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

RECIPES = Path(__file__).parent.parent / "recipes"
OUT = click.option("-o", "--out", required=True, type=FILE, help="The folder to write to.")


class Prepare(Verbs):
    """The commands that were added, then the recipes.

    Anything else that comes first is the STUDY of `study`.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in (*self.list_commands(ctx), *ctx.help_option_names):
            args = ["study", *args]
        return super().parse_args(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        return [*super().shell_complete(ctx, incomplete), *complete.study_names(incomplete)]

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*super().list_commands(ctx), *_recipes()]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        recipe = _recipes().get(cmd_name)
        return super().get_command(ctx, cmd_name) or (
            _command(cmd_name, recipe) if recipe else None
        )


@click.group(cls=Prepare, subcommand_metavar="STUDY | COMMAND [ARGS]...")
def prepare() -> None:
    """Train what a study needs before it runs, or one model or reward.

    `ponder prepare STUDY` prepares every model of a study; `ponder prepare study --help` has its
    options. The other commands write one thing into a folder. If interrupted, run the same command
    again to resume.
    """


@prepare.command("study")
@STUDY
@SET_STUDY
@SPENT_IN
@JSON_LINES
@JOBS
@RAY
def whole_study(
    study: str, settings: tuple[str, ...], store: Path, as_json: bool, jobs: int, ray: str | None
) -> None:
    """Make everything that STUDY needs before it runs.

    That is trained models and fitted eviction policies. A run makes the same things when it gets to
    them. What is already made is not made again. If interrupted, run it again to resume.
    """
    from ponder.results.study import Study
    from ponder.run.executors import executing
    from ponder.run.prepare import prepare as prepared

    loaded = Study.load(study, settings)
    with executing(loaded.cells, ray, jobs) as executor:
        if not watch(prepared(loaded, executor, store), as_json=as_json):
            tell(f"nothing to make: no model of {study} has methods")
    tell(f"next: {command('run', study, settings, store)}")


@prepare.command()
@STUDY
@click.option(
    "--model",
    "label",
    default="",
    help="The model's label, as legends show it. Not needed if the study has only one.",
)
@OUT
@SET_STUDY
@SPENT_IN
@JSON_LINES
def model(
    study: str, label: str, out: Path, settings: tuple[str, ...], store: Path, as_json: bool
) -> None:
    """Make one model of STUDY that has weights of its own.

    That is a model under a method such as merge or dpo. The folder is in the Hugging Face format.
    """
    from ponder.results.study import Study
    from ponder.run.prepare import make_model

    watch(make_model(Study.load(study, settings), label, out, store), as_json=as_json)
    _made(out, as_json)
    tell(f'next: name = "transformers", id = "{out}" in a study\'s [[model]]')


@prepare.command("own_reward")
@STUDY
@click.option(
    "--model",
    "label",
    default="",
    help="The model's label. Not needed if the study trains one reward.",
)
@OUT
@SET_STUDY
@SPENT_IN
@JSON_LINES
def own_reward(
    study: str, label: str, out: Path, settings: tuple[str, ...], store: Path, as_json: bool
) -> None:
    """Train the reward of STUDY that learns from its own model's samples.

    That is `best_of` with reward = { name = "trained" }. The samples are of problems that the study
    doesn't ask; the task labels them.
    """
    from ponder.results.study import Study
    from ponder.run.prepare import make_reward

    watch(make_reward(Study.load(study, settings), label, out, store), as_json=as_json)
    _made(out, as_json)
    tell(
        f'next: reward = {{ name = "trained", id = "{out}" }}, or ponder score TRACES --reward trained --set id={out}'
    )


@prepare.command()
@click.argument("traces", type=FILE)
@click.option(
    "--from",
    "start",
    required=True,
    help="The causal language model to train: a folder, or org/name.",
)
@OUT
@click.option(
    "--quality",
    default="oracle",
    show_default=True,
    shell_complete=complete.rewards,
    help="The reward that labels each step.",
)
@SPLIT
@COLUMNS
@plugin_settings(
    "training, such as epochs=3, or of the labelling reward, such as quality.alpha=0.5"
)
@JSON_LINES
def reward(
    traces: Path,
    start: str,
    out: Path,
    quality: str,
    settings: tuple[str, ...],
    by: Any,
    named: tuple[str, ...],
    as_json: bool,
) -> None:
    """Train a process reward on reasoning traces.

    TRACES is a file, a folder or a dataset, as for `ponder score`. Score with what was made:
    `ponder score TRACES --reward trained --set id=DIR`.
    """
    from ponder.core import error_at
    from ponder.core.settings import assign, build
    from ponder.traces import read, steps
    from ponder.training import reward as training

    labels: dict[str, Any] = {"name": quality}
    content: dict[str, Any] = {"quality": [labels]}
    for setting in settings:
        assign(content, setting)
    reader, recipe = training.settings(
        start, {key: value for key, value in content.items() if key != "quality"}
    )
    with error_at("--from"):
        reader.check_id()
    judge = build("rewards", {"of": reader.of, **labels}, "--quality", Path())
    split = [steps(trace, by) for trace in read(traces, columns=named_columns(named))]
    watch(training.train(reader, split, out, recipe, judge), as_json=as_json)
    _made(out, as_json)
    of = [] if reader.of == "all" else ["--set", f"of={reader.of}"]
    words = [
        "ponder",
        "score",
        str(traces),
        "--reward",
        "trained",
        "--set",
        f"id={out}",
        *of,
        "--by",
        by,
    ]
    tell(f"next: {shlex.join(words)}")


def _made(out: Path, as_json: bool) -> None:
    if not as_json:
        click.echo(printable(str(out)))


class _Recipe(NamedTuple):
    function: ast.FunctionDef
    comments: dict[int, str]


def _recipes() -> dict[str, _Recipe]:
    """The function `make` of each recipe that has one."""
    return {
        path.stem: recipe
        for path in sorted(RECIPES.glob("*.py"))
        for recipe in _makers(path.read_text("utf-8"))
    }


def _makers(source: str) -> Iterator[_Recipe]:
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef) and node.name == "make":
            yield _Recipe(node, comments(source))


def _command(name: str, recipe: _Recipe) -> click.Command:
    """A recipe as a command: its first parameter is the folder, the others are options."""

    def callback(out: Path, as_json: bool, **options: Any) -> None:
        module = importlib.import_module(f"ponder.recipes.{name}")
        watch(module.make(out, **options), as_json=as_json)
        _made(out, as_json)

    made = click.Command(
        name, callback=callback, params=list(_options(recipe)), help=ast.get_docstring(recipe[0])
    )
    JSON_LINES(OUT(made))
    return made


def _options(recipe: _Recipe) -> Iterator[click.Option]:
    """One option per parameter after the folder; the comment beside a parameter is its help."""
    arguments = recipe.function.args
    defaults = [None] * (len(arguments.args) - len(arguments.defaults)) + [
        *map(ast.literal_eval, arguments.defaults)
    ]
    for parameter, default in list(zip(arguments.args, defaults, strict=True))[1:]:
        kind = (
            int
            if isinstance(parameter.annotation, ast.Name) and parameter.annotation.id == "int"
            else str
        )
        given: dict[str, Any] = {"required": True} if default is None else {"default": default}
        about = _sentence(recipe.comments.get(parameter.lineno, ""))
        name = f"--{parameter.arg.replace('_', '-')}"
        yield click.Option([name], type=kind, show_default=bool(default), help=about, **given)


def _sentence(comment: str) -> str:
    return f"{comment[:1].upper()}{comment[1:]}." if comment else ""
