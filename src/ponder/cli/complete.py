"""What the shell completes: studies, kinds, plugins and files.

Nothing is imported, so that a key press costs 0.1 s.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from click.shell_completion import CompletionItem

if TYPE_CHECKING:
    import click


def _starting(incomplete: str, words: Iterable[str] | dict[str, str]) -> list[CompletionItem]:
    """The words that begin so, each with what it is."""
    about = words if isinstance(words, dict) else dict.fromkeys(words)
    return [CompletionItem(word, help=about[word]) for word in about if word.startswith(incomplete)]


def _files(incomplete: str, ending: str) -> list[CompletionItem]:
    """Files with an ending, and the folders on the way to them."""
    folder, part = incomplete.rpartition("/")[::2]
    folder += "/" if "/" in incomplete else ""
    try:
        entries = sorted(Path(folder).iterdir())
    except OSError:
        return []
    shown = [
        entry
        for entry in entries
        if entry.name.startswith(part) and (part or not entry.name.startswith("."))
    ]
    folders = [f"{folder}{entry.name}/" for entry in shown if incomplete and entry.is_dir()]
    files = [
        f"{folder}{entry.name}" for entry in shown if entry.suffix == ending and entry.is_file()
    ]
    return [CompletionItem(name) for name in (*folders, *files)]


def studies(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return study_names(incomplete)


def study_names(incomplete: str) -> list[CompletionItem]:
    """Return the built-in studies and study files that begin so."""
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
    """For `show`: a name or a kind, then a name of that kind."""
    return _named(ctx.params.get("words"), incomplete, "studies")


def plugins_alone(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """For `check`: the same without studies."""
    return _named(ctx.params.get("words"), incomplete, "plugins")


def _named(
    words: tuple[str, ...] | None, incomplete: str, also: Literal["studies", "plugins"]
) -> list[CompletionItem]:
    from ponder.core import plugins
    from ponder.study.study import built_in

    listed = {kind: plugins.names(kind) for kind in plugins.KINDS} | (
        {"studies": built_in()} if also == "studies" else {}
    )
    if words:
        kind = plugins.kind_of(words[0])
        return _starting(incomplete, listed.get(kind, {})) if kind else []
    singular = {
        ("study" if kind == "studies" else plugins.KINDS[kind].singular): "a kind"
        for kind in listed
    }
    names = {name: about for kind in reversed(listed) for name, about in listed[kind].items()}
    files = [
        *_files(incomplete, ".py"),
        *(_files(incomplete, ".toml") if also == "studies" else []),
    ]
    return [
        *_starting(incomplete, singular | names),
        *{item.value: item for item in files}.values(),
    ]
