"""Completions in the shell: studies, kinds, plugins and files.

No plugin is imported, so that a key press costs 0.1 s.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from click.shell_completion import CompletionItem

if TYPE_CHECKING:
    import click


def _starting(incomplete: str, words: Iterable[str] | dict[str, str]) -> list[CompletionItem]:
    """Return the words with this beginning; a dict also has a description of each."""
    summaries = words if isinstance(words, dict) else dict.fromkeys(words)
    items = []
    for completion, summary in summaries.items():
        if completion.startswith(incomplete):
            items.append(CompletionItem(completion, help=summary))
    return items


def _files(incomplete: str, ending: str) -> list[CompletionItem]:
    """Return the files with an ending, and the folders on the way to them."""
    folder, slash, start = incomplete.rpartition("/")
    folder += slash
    try:
        entries = sorted(Path(folder).iterdir())
    except OSError:
        return []
    folders = []
    files = []
    for entry in entries:
        hidden = entry.name.startswith(".") and not start
        if hidden or not entry.name.startswith(start):
            continue
        if incomplete and entry.is_dir():
            folders.append(CompletionItem(f"{folder}{entry.name}/"))
        elif entry.suffix == ending and entry.is_file():
            files.append(CompletionItem(f"{folder}{entry.name}"))
    return [*folders, *files]


def studies(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return study_names(incomplete)


def study_names(incomplete: str) -> list[CompletionItem]:
    """Return the built-in studies and study files with this beginning."""
    from ponder.study.study import built_in

    return [*_starting(incomplete, built_in()), *_files(incomplete, ".toml")]


def kinds(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from ponder.core import plugins

    return _starting(incomplete, [*plugins.KINDS, "studies"])


def new_kinds(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from ponder.core import plugins

    return _starting(incomplete, [kind.singular for kind in plugins.KINDS.values()])


def tasks(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from ponder.core import plugins

    return [*_starting(incomplete, plugins.names("tasks")), *_files(incomplete, ".py")]


def rewards(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from ponder.core import plugins

    return [*_starting(incomplete, plugins.names("rewards")), *_files(incomplete, ".py")]


def plugins_and_studies(
    ctx: click.Context, _: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Complete the words of `show`: a name, or a kind and then a name of that kind."""
    return _names(ctx.params.get("words"), incomplete, with_studies=True)


def plugins_alone(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the words of `check`, which takes no studies."""
    return _names(ctx.params.get("words"), incomplete, with_studies=False)


def _names(
    words: tuple[str, ...] | None, incomplete: str, *, with_studies: bool
) -> list[CompletionItem]:
    """Return the names with this beginning, of the kind in `words` or of all kinds."""
    from ponder.core import plugins
    from ponder.study.study import built_in

    summaries = {kind: plugins.names(kind) for kind in plugins.KINDS}
    if with_studies:
        summaries["studies"] = built_in()
    if words:
        of_kind = plugins.kind_of(words[0])
        return _starting(incomplete, summaries.get(of_kind or "", {}))
    choices = {kind.singular: "a kind" for kind in plugins.KINDS.values()}
    if with_studies:
        choices["study"] = "a kind"
    for of_kind in reversed(summaries):  # where two share a name, the first kind's summary stays
        choices |= summaries[of_kind]
    files = _files(incomplete, ".py")
    if with_studies:
        files += _files(incomplete, ".toml")
    distinct_files = {item.value: item for item in files}  # both list the folders
    return [*_starting(incomplete, choices), *distinct_files.values()]
