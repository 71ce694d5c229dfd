"""The command line, `ponder COMMAND`: results to stdout, the rest to stderr, mistakes exit with 2.

Each file holds a group of commands: `study`, `tune`, `compare`, `baseline`, `trying`, `prepare`,
`store`, `trace`, `plugin`. `options` and `output` hold what they share. Commands import what they need when they are
called, so that `ponder list` starts fast.
"""

from __future__ import annotations

import click

from ponder import __version__
from ponder.cli import baseline, compare, plugin, prepare, store, study, trace, trying, tune
from ponder.cli.options import Verbs

__all__ = ["main"]


class _Ponder(Verbs):
    gone = {  # noqa: RUF012 read only
        "fit": "ponder prepare STUDY",
        "grade": "ponder regrade STUDY",
        "make": "ponder prepare …",
        "train-reward": "ponder prepare reward TRACES --from MODEL -o DIR",
    }


@click.group(
    cls=_Ponder, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(__version__, prog_name="ponder")
def main() -> None:
    """Measure what a right answer costs in thinking tokens, and make it cost less.

    STUDY is the name of a built-in study (`ponder list studies`) or the path of a .toml file. For a
    first look, without a server or a GPU: `ponder run effort`, then `ponder report effort`.
    """


for _command in (
    plugin.list_,
    plugin.show,
    trying.try_,
    study.plan,
    study.run,
    study.regrade,
    study.report,
    study.view,
    tune.tune,
    compare.compare,
    baseline.baseline,
    study.export,
    study.import_,
    prepare.prepare,
    store.store,
    trace.score,
    trace.select,
    plugin.serve,
    plugin.new,
    plugin.check,
    plugin.completion,
):
    main.add_command(_command)
