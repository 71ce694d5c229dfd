"""Writes docs/reference from the docstrings and settings of plugins and the help of commands.

`make docs` runs it. A test fails if the pages are out of date.
"""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from ponder import Study
from ponder.cli import describe
from ponder.cli import main as command_line
from ponder.core import Task, plugins
from ponder.core.text import plural
from ponder.models.pocket import WEIGHTS
from ponder.study.study import BUILT_IN, built_in

HELP: Any = {"help_option_names": ["-h", "--help"], "terminal_width": 100, "max_content_width": 100}
WORDS = ("required", "not set", "in the package")  # defaults that aren't values
NOTE = "<!-- Written by `make docs` from the code. Change the code, not this page. -->\n"


def pages() -> dict[str, str]:
    """Return the text of each page by file name."""
    texts = {f"{kind}.md": _plugins(kind) for kind in plugins.KINDS}
    texts["studies.md"] = _studies()
    texts["commands.md"] = _commands()
    texts["study-file.md"] = _study_file()
    texts["pocket.md"] = _pocket()
    return texts


def _plugins(kind: str) -> str:
    parts = [f"# {plural(plugins.KINDS[kind].noun).capitalize()}", NOTE]
    for name in plugins.files(kind):
        plugin = plugins.load(kind, name)
        parts += [
            f"## {name}",
            inspect.getdoc(inspect.getmodule(plugin)) or "",
            _settings(describe.schema(plugin)),
        ]
        if issubclass(plugin, Task) and plugin.default_sizes:
            parts.append(
                f"Sizes, if a study names none: {', '.join(map(str, plugin.default_sizes))}."
            )
    return "\n\n".join(p.strip() for p in parts if p) + "\n"


def _type(text: str) -> str:
    """Write a type without `|`: Markdown readers disagree on how to escape it in a table."""
    return " or ".join(f"`{part}`" for part in text.split(" | "))


def _settings(rows: list[dict[str, str]]) -> str:
    if not rows:
        return "No settings."
    lines = ["| key | type | default | |", "|---|---|---|---|"]
    for row in rows:
        default = row["default"]
        if default not in WORDS:
            default = f"`{default}`"
        lines.append(f"| `{row['key']}` | {_type(row['type'])} | {default} | {row['about']} |")
    return "\n".join(lines)


def _studies() -> str:
    parts = [
        "# Studies",
        NOTE,
        "Built-in studies, to run by name or to copy and change: `ponder run effort`.",
    ]
    for name, title in built_in().items():
        text = (BUILT_IN / f"{name}.toml").read_text("utf-8").strip()
        parts += [f"## {name}", title, f"```toml\n{text}\n```"]
    return "\n\n".join(p.strip() for p in parts) + "\n"


def _commands() -> str:
    parts = [
        "# Commands",
        NOTE,
        *_help(command_line, click.Context(command_line, info_name="ponder", **HELP)),
    ]
    return "\n\n".join(p.strip() for p in parts) + "\n"


def _help(group: click.Group, above: click.Context) -> Iterator[str]:
    """Yield the help of every command in a group, and in the groups inside it."""
    for name in group.list_commands(above):
        command = group.get_command(above, name)
        assert command is not None
        context = click.Context(command, parent=above, info_name=name, **HELP)
        title = context.command_path.removeprefix("ponder ")
        yield f"## {title}\n\n```\n{inspect.cleandoc(command.get_help(context))}\n```"
        if isinstance(command, click.Group):
            yield from _help(command, context)


def _pocket() -> str:
    """Return the page on the weights that ship, with the measurements in their cards."""
    about = (
        "One small network per task and style, in the Hugging Face format. "
        "`ponder prepare pocket -o DIR` trains them again; that needs the extra `torch`, running "
        "them doesn't. `Pocket.codec(task)` in `ponder.models.pocket` renders requests as token "
        "ids and reads replies, if you load a folder by other means."
    )
    cards = [
        json.loads((folder / "card.json").read_text("utf-8"))
        for folder in sorted(WEIGHTS.iterdir())
    ]
    styles = ("plain", "short", "long", "wordy")
    cards.sort(key=lambda card: (card["task"] != "tents", styles.index(card["style"])))
    parts = ["# The pocket model", NOTE.strip(), about]
    for card in cards:
        parts += _card(card)
    return "\n\n".join(parts) + "\n"


def _card(card: dict[str, Any]) -> list[str]:
    trained = card["trained"]
    test = card["test"]
    tokens = f"{trained['tokens'] / 1e6:.1f} million tokens"
    minutes = f"{trained['cpu_seconds'] / 60:.0f} CPU minutes"
    training = (
        f"{card['parameters']:,} parameters, trained from {trained['from']}: {tokens}, "
        f"{minutes} on one thread, seed {trained['seed']}."
    )
    title = f"## {card['task'].capitalize()}"
    size = "puzzle"
    if card["task"] != "tents":
        title += f", {card['style']}"
        size = "steps per turn × turns"
    table = [
        (
            f"| {size} | problems | right | 95 % interval | thinking tokens "
            "| all steps sound, if right |"
        ),
        "|---|---|---|---|---|---|",
    ]
    for row in test["by_size"]:
        sound = "–"
        if row["sound_if_right"] is not None:
            sound = f"{row['sound_if_right']:.2f}"
        table.append(
            f"| {row['label']} | {row['problems']} | {row['accuracy']:.3f} "
            f"| {row['low']:.3f} – {row['high']:.3f} | {row['thinking_tokens']:.0f} | {sound} |"
        )
    limits = "\n".join(f"- {line}" for line in card["limits"])
    return [
        title,
        training,
        f"Tested on problems {test['problems']}; {test['decoding']}.",
        "\n".join(table),
        *_seeds(card["seeds"]),
        "Limits:",
        limits,
        f"Digest: `{card['digest']}`",
    ]


def _seeds(seeds: list[dict[str, Any]]) -> list[str]:
    """Return a table of the same recipe with other training seeds, side by side."""
    if len(seeds) < 2:
        return ["One training seed so far."]
    labels = list(seeds[0]["accuracy"])
    lines = [" | ".join(["| seed", *labels]) + " |", "|---" * (len(labels) + 1) + "|"]
    for row in seeds:
        name = str(row["seed"])
        if row.get("tries") == 2:
            name += ", second attempt"
        accuracies = [f"{row['accuracy'][label]:.2f}" for label in labels]
        lines.append(" | ".join([f"| {name}", *accuracies]) + " |")
    about = (
        f"Other training seeds, same recipe. Seed {seeds[0]['seed']} ships, chosen before the "
        "others were trained."
    )
    return [about, "\n".join(lines)]


def _study_file() -> str:
    hidden = {"name", "where", "folder", "task", "model", "figure"}
    rows = [row for row in describe.schema(Study) if row["key"] not in hidden]
    text = """\
A study is one TOML file. A list is a sweep, except for settings that are themselves lists. An
unknown key is an error that names the nearest known one. Any key can be overridden on the command
line: `--set problems=5`, `--set model.id=qwq`, `--set 'task.size=[16, 25]'`,
`--set model[1].budget=4096`.

- `[[task]]` takes `name`, `size` and the settings of that [task](tasks.md). Conversations also take
  `remember` and `window` (what the model is shown of earlier turns).
- `[[model]]` takes `name`, the settings of that [model](models.md), and `method`: a list of tables,
  applied in order. It and each of its methods take `ray`: what they need
  [on a cluster](../gpus.md#several-processes-and-machines).
- `[[figure]]` takes `name` and the settings of that [figure](figures.md).

`name` may also be the path of a file of your own, such as `"./mine.py"`, relative to the study."""
    return (
        "\n\n".join(
            ["# The study file", NOTE.strip(), text, "Keys of the study itself:", _settings(rows)]
        )
        + "\n"
    )


if __name__ == "__main__":
    folder = Path(__file__).parent / "reference"
    folder.mkdir(exist_ok=True)
    for name, text in pages().items():
        (folder / name).write_text(text, "utf-8")
        sys.stdout.write(f"{folder / name}\n")
