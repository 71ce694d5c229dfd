"""`ponder view`: the studies of a store as live pages in a browser."""

from __future__ import annotations

from pathlib import Path

import click

from ponder.cli import complete
from ponder.cli.options import FILE, STORE, command, tell
from ponder.core import UserError


@click.command()
@click.argument("studies", metavar="[STUDY]…", nargs=-1, shell_complete=complete.studies)
@click.option(
    "--store",
    "stores",
    default=[STORE],
    show_default=STORE,
    multiple=True,
    type=FILE,
    help="A store. May be repeated.",
)
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="The address to serve on. The page demands a token, which the printed address holds.",
)
@click.option(
    "--port",
    default=7575,
    show_default=True,
    type=click.IntRange(0, 65535),
    help="0 takes any free one.",
)
@click.option(
    "--open/--no-open",
    "browse",
    default=True,
    show_default=True,
    help="Open the page in a browser.",
)
def view(
    studies: tuple[str, ...], stores: tuple[Path, ...], host: str, port: int, browse: bool
) -> None:
    """Look at studies in a browser, from any dot to its transcript.

    Every study of the stores is shown as it was last run; one named as STUDY as its file says now.
    Nothing is changed, and a study may run meanwhile. Stop with Ctrl-C.
    """
    from contextlib import ExitStack

    from ponder.results.study import Study
    from ponder.results.view.server import bound, opening_file, serve

    given = [Study.load(name) for name in studies]
    for store in stores:
        if not store.is_file():
            study = studies[0] if studies else "STUDY"
            hint = f"`{command('run', study, (), store)}` creates it"
            raise UserError(f"there is no store {store}", hint=hint)
    listening = bound(host, port)
    with ExitStack() as until_the_end:

        def told(address: str) -> None:
            tell(f"{address}\nCtrl-C stops the page")
            if browse:
                import webbrowser

                webbrowser.open(until_the_end.enter_context(opening_file(address)).as_uri())

        serve(listening, host, stores, given, told)
