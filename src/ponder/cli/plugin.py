"""Verbs for plugins: list, show, serve, new, check, completion."""

from __future__ import annotations

import json
import keyword
from pathlib import Path
from urllib.parse import urlsplit

import click

from ponder.cli import complete
from ponder.cli.options import JSON, columns, plugin_settings, say, tell
from ponder.core import UserError
from ponder.core.text import plural

# plugins to start from: small, and passing `ponder check`
SCAFFOLDS = Path(__file__).parent / "scaffolds"


@click.command("list")
@click.argument("kind", required=False, shell_complete=complete.kinds)
@JSON
def list_(kind: str | None, as_json: bool) -> None:
    """List plugins and built-in studies.

    KIND limits the list to one kind, such as tasks or studies.
    """
    from ponder.core import plugins
    from ponder.study import study

    kinds = [*plugins.KINDS, "studies"]
    wanted = [kind and plugins.kind_of(kind)] if kind else kinds
    if wanted == [None]:
        raise UserError(
            f"there is no kind `{kind}` to list", hint=plugins.nearest(str(kind), kinds)
        )
    listed = {k: study.built_in() if k == "studies" else plugins.names(k) for k in wanted if k}

    def heading(kind: str) -> str:
        name = kind if kind == "studies" else plural(plugins.KINDS[kind].noun)
        return name if name == kind else f"{name} ({kind})"

    def text() -> str:
        return "\n\n".join(
            f"{heading(k)}\n{columns([('', n, s) for n, s in rows.items()])}"
            for k, rows in listed.items()
        )

    say(listed, as_json, text)


@click.command()
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
    written = describe.study_file(name) if "kind" not in data and not settings else ""
    say(data, as_json, lambda: written or describe.text(data))
    for other in describe.others(name) if not kind and "kind" not in data else ():
        tell(f"also: {other}")


@click.command()
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
    ready, the [[model]] to put into a study is printed. Ctrl-C ends it.
    """
    from ponder.models._llama_server import serve as serve_file
    from ponder.models._llama_server import weights

    path = weights(model)

    def ready(url: str) -> None:
        keys = {"name": "endpoint", "id": path.stem, "url": url, "concurrency": slots}
        table = "\n".join(
            [
                "[[model]]",
                *(
                    f"{key} = {json.dumps(value, ensure_ascii=False)}"
                    for key, value in keys.items()
                ),
            ]
        )
        say({"url": url, "id": path.stem}, as_json, lambda: table)
        tell(f"serving {path.stem} on port {urlsplit(url).port}; Ctrl-C ends it")

    serve_file(path, port, slots, context, threads, ready)


@click.command()
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

    kinds = [k.singular for k in plugins.KINDS.values()]
    found = plugins.kind_of(kind)
    if found not in plugins.KINDS:
        raise UserError(f"there is no kind of plugin `{kind}`", hint=plugins.nearest(kind, kinds))
    kind = plugins.KINDS[found].singular
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


@click.command()
@click.argument(
    "words", nargs=-1, required=True, metavar="[KIND] NAME", shell_complete=complete.plugins_alone
)
@plugin_settings("plugin, such as id=DIR for one that needs weights")
@JSON
def check(words: tuple[str, ...], settings: tuple[str, ...], as_json: bool) -> None:
    """Check a plugin against its interface.

    NAME is a plugin, or a file such as ./mine.py. It is run for real. KIND is needed only where two
    kinds share a name: `ponder check policy oracle`. The exit code is 0 if it passed, 1 if it
    failed, and 3 if it could not be run, for example because its weights or its server are not
    there.
    """
    from ponder.cli import describe
    from ponder.cli.check import check as check_plugin

    result = check_plugin(*describe.named(words, "check"), settings)
    say({"outcome": result.outcome, **result._asdict()}, as_json, result.text)
    if result.outcome != "passed":
        raise click.exceptions.Exit(1 if result.outcome == "failed" else 3)


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print a script for completion of commands, studies and plugins.

    For bash: `echo 'eval "$(ponder completion bash)"' >> ~/.bashrc`. The script calls `ponder` at
    each completion.
    """
    from click.shell_completion import get_completion_class

    of_shell = get_completion_class(shell)
    assert of_shell is not None
    click.echo(of_shell(ctx.find_root().command, {}, "ponder", "_PONDER_COMPLETE").source())
