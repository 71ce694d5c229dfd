"""`ponder prepare`: trains what a study needs before it runs, or one model or reward.

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
)
from ponder.cli.output import tell, watch
from ponder.core.text import printable

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

RECIPES = Path(__file__).parent.parent / "recipes"
OUT = click.option("-o", "--out", required=True, type=FILE, help="Folder to write to.")


class Prepare(Verbs):
    """A group of the commands that were added, then the recipes.

    Any other first word is the STUDY of the command `study`.
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
        added = super().get_command(ctx, cmd_name)
        if added:
            return added
        recipe = _recipes().get(cmd_name)
        if recipe is None:
            return None
        return _recipe_command(cmd_name, recipe)


@click.group(
    cls=Prepare,
    subcommand_metavar="STUDY | COMMAND [ARGS]...",
    epilog="Example: ponder prepare long2short --jobs 2",
)
def prepare() -> None:
    """Train what a study needs before it runs, or one model or reward.

    `ponder prepare STUDY` prepares every model of a study; `ponder prepare study --help` has its
    options. The other commands write one thing into a folder. If interrupted, run the same command
    again to resume.
    """


@prepare.command("study", epilog="Example: ponder prepare long2short --jobs 2")
@STUDY
@SET_STUDY
@SPENT_IN
@JSON_LINES
@JOBS
@RAY
def whole_study(
    study: str, settings: tuple[str, ...], store: Path, as_json: bool, jobs: int, ray: str | None
) -> None:
    """Train everything that STUDY needs before it runs.

    That is models under training methods and trainable eviction policies. A run trains them too
    when it needs them; what is trained already is kept. If interrupted, run it again to resume.
    """
    from ponder.results.study import Study
    from ponder.run.executors import executing
    from ponder.run.prepare import prepare as prepared

    loaded = Study.load(study, settings)
    with executing(loaded.cells, ray, jobs) as executor:
        if not watch(prepared(loaded, executor, store), as_json=as_json):
            tell(f"nothing to prepare: no model of {study} has methods")
    tell(f"next: {command('run', study, settings, store)}")


@prepare.command(epilog="Example: ponder prepare model long2short --model 'long + dpo' -o dpo")
@STUDY
@click.option("--model", "label", default="", help="Label of the model, if the study has several.")
@OUT
@SET_STUDY
@SPENT_IN
@JSON_LINES
def model(
    study: str, label: str, out: Path, settings: tuple[str, ...], store: Path, as_json: bool
) -> None:
    """Write the weights of one model of STUDY to a folder.

    That is a model under a method such as merge or dpo, with its label as in legends. The folder is
    in the Hugging Face format.
    """
    from ponder.results.study import Study
    from ponder.run.prepare import make_model

    watch(make_model(Study.load(study, settings), label, out, store), as_json=as_json)
    _print_folder(out, as_json)
    tell(f'next: name = "transformers", id = "{out}" in a study\'s [[model]]')


@prepare.command("own_reward", epilog="Example: ponder prepare own_reward best-of -o reward")
@STUDY
@click.option(
    "--model", "label", default="", help="Label of the model, if the study trains several rewards."
)
@OUT
@SET_STUDY
@SPENT_IN
@JSON_LINES
def own_reward(
    study: str, label: str, out: Path, settings: tuple[str, ...], store: Path, as_json: bool
) -> None:
    """Train the reward of STUDY on samples of the study's own model.

    That is `best_of` with reward = { name = "trained" }. The samples answer problems that the study
    doesn't ask; the task labels them.
    """
    from ponder.results.study import Study
    from ponder.run.prepare import make_reward

    watch(make_reward(Study.load(study, settings), label, out, store), as_json=as_json)
    _print_folder(out, as_json)
    tell(
        f'next: reward = {{ name = "trained", id = "{out}" }}, '
        f"or ponder score TRACES --reward trained --set id={out}"
    )


@prepare.command(epilog="Example: ponder prepare reward traces.jsonl --from org/name -o reward")
@click.argument("traces", type=FILE)
@click.option(
    "--from",
    "start",
    required=True,
    help="Causal language model to train: a folder, or org/name.",
)
@OUT
@click.option(
    "--quality",
    default="oracle",
    show_default=True,
    shell_complete=complete.rewards,
    help="Reward that labels each step.",
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
    columns: tuple[str, ...],
    as_json: bool,
) -> None:
    """Train a process reward on reasoning traces.

    TRACES is a file, a folder or a dataset, as for `ponder score`. To score with the result:
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
    training_settings = {key: value for key, value in content.items() if key != "quality"}
    reader, recipe = training.settings(start, training_settings)
    with error_at("--from"):
        reader.check_id()
    judge = build("rewards", {"of": reader.of, **labels}, "--quality", Path())
    source = read(traces, columns=named_columns(columns))
    split = [steps(trace, by) for trace in source]
    watch(training.train(reader, split, out, recipe, judge), as_json=as_json)
    _print_folder(out, as_json)
    words = ["ponder", "score", str(traces), "--reward", "trained", "--set", f"id={out}"]
    if reader.of != "all":
        words += ["--set", f"of={reader.of}"]
    words += ["--by", by]
    tell(f"next: {shlex.join(words)}")


def _print_folder(out: Path, as_json: bool) -> None:
    if not as_json:
        click.echo(printable(str(out)))


class _Recipe(NamedTuple):
    """The function `make` of a recipe, and the source it was parsed from."""

    function: ast.FunctionDef
    source: str


def _recipes() -> dict[str, _Recipe]:
    """Return the recipes that define `make`, by name."""
    recipes = {}
    for path in sorted(RECIPES.glob("*.py")):
        source = path.read_text("utf-8")
        for node in ast.parse(source).body:
            if isinstance(node, ast.FunctionDef) and node.name == "make":
                recipes[path.stem] = _Recipe(node, source)
    return recipes


def _recipe_command(name: str, recipe: _Recipe) -> click.Command:
    """Return a recipe as a command: its first parameter is the folder, the others are options."""

    def callback(out: Path, as_json: bool, **options: Any) -> None:
        module = importlib.import_module(f"ponder.recipes.{name}")
        watch(module.make(out, **options), as_json=as_json)
        _print_folder(out, as_json)

    recipe_command = click.Command(
        name,
        callback=callback,
        params=list(_options(recipe)),
        help=ast.get_docstring(recipe.function),
        epilog=f"Example: ponder prepare {name} -o DIR",
    )
    JSON_LINES(OUT(recipe_command))
    return recipe_command


def _options(recipe: _Recipe) -> Iterator[click.Option]:
    """Yield an option per parameter after the folder; the comment at a parameter is its help."""
    from ponder.cli.describe import comments

    by_line = comments(recipe.source)
    arguments = recipe.function.args
    required = len(arguments.args) - len(arguments.defaults)
    for index, parameter in enumerate(arguments.args):
        if index == 0:  # the folder
            continue
        settings: dict[str, Any] = {"required": True}
        if index >= required:
            default = ast.literal_eval(arguments.defaults[index - required])
            settings = {"default": default, "show_default": bool(default)}
        annotation = parameter.annotation
        is_int = isinstance(annotation, ast.Name) and annotation.id == "int"
        comment = by_line.get(parameter.lineno, "")
        if comment:
            settings["help"] = f"{comment[:1].upper()}{comment[1:]}."
        name = f"--{parameter.arg.replace('_', '-')}"
        yield click.Option([name], type=int if is_int else str, **settings)
