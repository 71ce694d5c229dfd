"""Verbs for plugins: list, show, serve, new, check."""

from __future__ import annotations

from pathlib import Path

import click

from ponder.cli.options import JSON, columns, plugin_settings, plural, say
from ponder.core import UserError


@click.command("list")
@click.argument("kind", required=False)
@JSON
def list_(kind: str | None, as_json: bool) -> None:
    """List plugins and built-in studies.

    KIND limits the list to one kind, such as tasks.
    """
    from ponder.core import plugins
    from ponder.runner import study

    kinds = [*plugins.KINDS, "studies"]
    if kind and kind not in kinds:
        raise UserError(f"there is no kind `{kind}` to list", hint=plugins.nearest(kind, kinds))
    listed = {k: study.built_in() if k == "studies" else plugins.names(k) for k in ([kind] if kind else kinds)}

    def heading(kind: str) -> str:
        name = kind if kind == "studies" else plural(plugins.KINDS[kind].noun)
        return name if name == kind else f"{name} ({kind})"

    def text() -> str:
        return "\n\n".join(
            f"{heading(k)}\n{columns([('', n, s) for n, s in rows.items()])}" for k, rows in listed.items()
        )

    say(listed, as_json, text)


@click.command()
@click.argument("name")
@click.option("--size", type=int, help="Size of the problem to show.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the problem to show.")
@plugin_settings("task, or a key of the study")
@JSON
def show(name: str, size: int | None, seed: int, settings: tuple[str, ...], as_json: bool) -> None:
    """Show a plugin with its settings, or a study.

    A task also shows a problem with a right answer. NAME may be a file, such as ./mine.py or ./mine.toml, or
    kind/name where two kinds share a name, such as models/oracle.
    """
    from ponder.cli import describe

    data = describe.anything(name, size, seed, settings)
    say(data, as_json, lambda: describe.text(data))


@click.command()
@click.argument("model")
@click.option("--port", type=int, default=8080, show_default=True, help="Port to listen on; 0 takes a free one.")
@click.option("--slots", type=click.IntRange(1), default=4, show_default=True, help="Requests answered at once.")
@click.option("--context", type=click.IntRange(1), default=2048, show_default=True, help="Context length, in tokens.")
@click.option("--threads", type=click.IntRange(1), default=1, show_default=True, help="CPU threads.")
@JSON
def serve(model: str, port: int, slots: int, context: int, threads: int, as_json: bool) -> None:
    """Serve MODEL as an endpoint on this machine.

    MODEL is a .gguf file, or smollm2. The endpoint is OpenAI-compatible (llama.cpp); Ctrl-C ends it.
    """
    from ponder.models._llama_server import serve as serve_file
    from ponder.models._llama_server import weights

    path = weights(model)

    def ready(url: str) -> None:
        say({"url": url, "id": path.stem}, as_json, lambda: url)
        click.echo(f'serving {path.stem}; in a study\'s [[model]]: name = "endpoint", id = "{path.stem}"', err=True)

    serve_file(path, port, slots, context, threads, ready)


@click.command()
@click.argument("kind")
@click.argument("name")
@JSON
def new(kind: str, name: str, as_json: bool) -> None:
    """Write a small working plugin to start from.

    The file is NAME.py. KIND is one of the kinds that `ponder list` shows, in the singular: task, model, and so on.
    """
    from ponder.cli.scaffold import scaffold

    path = scaffold(kind, name, Path())
    say({"file": str(path)}, as_json, lambda: str(path))
    click.echo(f"next: ponder check ./{path.name}", err=True)


@click.command()
@click.argument("name")
@plugin_settings("plugin, such as id=DIR for one that needs weights")
@JSON
def check(name: str, settings: tuple[str, ...], as_json: bool) -> None:
    """Check a plugin against its interface.

    NAME is a plugin, or a file such as ./mine.py. It is run for real. The exit code is 0 if it passed, 1 if it failed,
    and 3 if it could not be run, for example because its weights or its server are not there.
    """
    from ponder.cli.check import check as check_plugin

    result = check_plugin(name, settings)
    say({"outcome": result.outcome, **result._asdict()}, as_json, result.text)
    if result.outcome != "passed":
        raise click.exceptions.Exit(1 if result.outcome == "failed" else 3)
