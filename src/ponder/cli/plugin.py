"""Commands about plugins: list, show, serve, new, check; and completion in the shell."""

from __future__ import annotations

import json
import keyword
from pathlib import Path
from urllib.parse import urlsplit

import click

from ponder.cli import complete
from ponder.cli.options import JSON, plugin_settings
from ponder.cli.output import bold, say, table, tell
from ponder.core import UserError
from ponder.core.text import plural

# Plugins to start from: small, and passing `ponder check`.
SCAFFOLDS = Path(__file__).parent / "scaffolds"


@click.command("list", epilog="Example: ponder list tasks")
@click.argument("kind", required=False, shell_complete=complete.kinds)
@JSON
def list_(kind: str | None, as_json: bool) -> None:
    """List plugins and built-in studies.

    KIND limits the list to one kind, such as tasks or studies.
    """
    from ponder.core import plugins
    from ponder.study import study

    kinds = [*plugins.KINDS, "studies"]
    if kind:
        plural_kind = plugins.kind_of(kind)
        if plural_kind is None:
            raise UserError(f"there is no kind `{kind}` to list", hint=plugins.nearest(kind, kinds))
        kinds = [plural_kind]
    summaries = {}
    for name in kinds:
        summaries[name] = study.built_in() if name == "studies" else plugins.names(name)
    say(summaries, as_json, lambda: _list_text(summaries))


def _list_text(summaries: dict[str, dict[str, str]]) -> str:
    """Return the names and summaries of each kind under its heading."""
    from ponder.core import plugins

    paragraphs = []
    for kind, by_name in summaries.items():
        heading = kind
        if kind != "studies":
            noun = plural(plugins.KINDS[kind].noun)
            if noun != kind:
                heading = f"{noun} ({kind})"
        rows = [("", name, summary) for name, summary in by_name.items()]
        paragraphs.append(f"{bold(heading)}\n{table(rows, heading=False)}")
    return "\n\n".join(paragraphs)


@click.command(epilog="Example: ponder show tents --size 36")
@click.argument(
    "words",
    nargs=-1,
    required=True,
    metavar="[KIND] NAME",
    shell_complete=complete.plugins_and_studies,
)
@click.option("--size", type=int, help="Size of the problem to show.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the problem to show.")
@plugin_settings("task, or a key of the study")
@JSON
def show(
    words: tuple[str, ...], size: int | None, seed: int, settings: tuple[str, ...], as_json: bool
) -> None:
    """Show a plugin with its settings, or a study.

    A task also shows a problem with a right answer. NAME may be a file, such as ./mine.py or
    ./mine.toml. KIND is needed only where two kinds share a name: `ponder show policy oracle`,
    `ponder show study effort`.
    """
    from ponder.cli import describe

    kind, name = describe.named(words, "show")
    data = describe.anything(kind, name, size, seed, settings)
    is_study = "kind" not in data
    text = describe.text(data)
    if is_study and not settings:
        text = describe.study_file(name)
    say(data, as_json, lambda: text)
    if is_study and not kind:
        for namesake in describe.namesakes(name):
            tell(f"also: {namesake}")


@click.command(epilog="Example: ponder serve smollm2")
@click.argument("model")
@click.option(
    "--port",
    type=int,
    default=8000,
    show_default=True,
    help="Port to listen on; 0 takes a free one.",
)
@click.option(
    "--slots",
    type=click.IntRange(1),
    default=4,
    show_default=True,
    help="Requests answered at once.",
)
@click.option(
    "--context",
    type=click.IntRange(1),
    default=2048,
    show_default=True,
    help="Context length, in tokens.",
)
@click.option(
    "--threads", type=click.IntRange(1), default=1, show_default=True, help="CPU threads."
)
@JSON
def serve(model: str, port: int, slots: int, context: int, threads: int, as_json: bool) -> None:
    """Serve MODEL as an endpoint on this machine.

    MODEL is a .gguf file, or smollm2. The endpoint is OpenAI-compatible (llama.cpp). When it is
    ready, the [[model]] to put into a study is printed. Ctrl-C stops it.
    """
    from ponder.models._llama_server import serve as serve_file
    from ponder.models._llama_server import weights

    path = weights(model)

    def ready(url: str) -> None:
        keys = {"name": "endpoint", "id": path.stem, "url": url, "concurrency": slots}
        lines = ["[[model]]"]
        for key, value in keys.items():
            lines.append(f"{key} = {json.dumps(value, ensure_ascii=False)}")
        say({"url": url, "id": path.stem}, as_json, lambda: "\n".join(lines))
        tell(f"serving {path.stem} on port {urlsplit(url).port}; Ctrl-C stops it")

    serve_file(path, port, slots, context, threads, ready)


@click.command(epilog="Example: ponder new task my_task")
@click.argument("kind", shell_complete=complete.new_kinds)
@click.argument("name")
@JSON
def new(kind: str, name: str, as_json: bool) -> None:
    """Write a small working plugin to start from.

    The file is NAME.py. KIND is one of the kinds that `ponder list` shows, in the singular: task,
    model, and so on.
    """
    path = scaffold(kind, name, Path())
    say({"file": str(path)}, as_json, lambda: str(path))
    tell(f"next: ponder check ./{path.name}")


def scaffold(kind: str, name: str, folder: Path) -> Path:
    """Write NAME.py and return its path. An existing file is never overwritten."""
    from ponder.core import plugins

    plural_kind = plugins.kind_of(kind)
    if plural_kind not in plugins.KINDS:
        nouns = [plugin_kind.singular for plugin_kind in plugins.KINDS.values()]
        raise UserError(f"there is no kind of plugin `{kind}`", hint=plugins.nearest(kind, nouns))
    kind = plugins.KINDS[plural_kind].singular
    if not name.isidentifier() or keyword.iskeyword(name) or name != name.lower():
        raise UserError(
            f"`{name}` can't be the name of a plugin",
            hint="use lower-case letters, digits and _, such as my_task",
        )
    path = folder / f"{name}.py"
    if path.exists():
        raise UserError(f"{path} exists already", hint="choose another name, or move the file away")
    cls = name.replace("_", " ").title().replace(" ", "")
    text = (SCAFFOLDS / f"{kind}.py").read_text("utf-8")
    path.write_text(text.replace("Mine", cls).replace("`mine`", f"`{name}`"), "utf-8")
    return path


@click.command(epilog="Example: ponder check ./my_task.py")
@click.argument(
    "words", nargs=-1, required=True, metavar="[KIND] NAME", shell_complete=complete.plugins_alone
)
@plugin_settings("plugin, such as id=DIR for one that needs weights")
@JSON
def check(words: tuple[str, ...], settings: tuple[str, ...], as_json: bool) -> None:
    """Check a plugin against its interface.

    NAME is a plugin, or a file such as ./mine.py. The check runs it. KIND is needed only where two
    kinds share a name: `ponder check policy oracle`. The exit code is 0 if it passed, 1 if it
    failed, and 3 if it could not be run, for example because its weights or its server are missing.
    """
    from ponder.cli import describe
    from ponder.cli.check import check as check_plugin

    result = check_plugin(*describe.named(words, "check"), settings)
    say({"outcome": result.outcome, **result._asdict()}, as_json, result.text)
    if result.outcome != "passed":
        raise click.exceptions.Exit(1 if result.outcome == "failed" else 3)


@click.command(epilog="Example: ponder completion zsh")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print a script for completion in the shell.

    It completes commands, studies and plugins.

    For bash: `echo 'eval "$(ponder completion bash)"' >> ~/.bashrc`. The script calls `ponder` at
    each completion.
    """
    from click.shell_completion import get_completion_class

    completion_class = get_completion_class(shell)
    assert completion_class is not None
    script = completion_class(ctx.find_root().command, {}, "ponder", "_PONDER_COMPLETE")
    click.echo(script.source())
