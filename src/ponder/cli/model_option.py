"""`--model 'endpoint id=NAME url=URL'`: a model on the command line, without a study file."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from ponder.core import UserError

if TYPE_CHECKING:
    from ponder.results.study import Study

EXAMPLE = (
    "--model 'endpoint id=NAME url=http://127.0.0.1:8000/v1'; ponder list models has other kinds"
)
MODEL = click.option(
    "--model",
    "models",
    multiple=True,
    metavar="'KIND KEY=VALUE …'",
    help="Ask this model instead of the study's, such as 'endpoint id=qwq budget=4096'. May be repeated.",
)


def model_table(text: str) -> dict[str, Any]:
    """The `[[model]]` that an option means.

    It is split as a shell would, and values are read as `--set` reads them.
    """
    from ponder.core.settings import Typed, assign

    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UserError(
            f"`{text}` can't be split into words: {error}", where="--model", hint=EXAMPLE
        ) from None
    if not words or "=" in words[0]:
        raise UserError("the first word must be a kind of model", where="--model", hint=EXAMPLE)
    table: dict[str, Any] = {"name": Typed(words[0])}
    for word in words[1:]:
        if word.find("=") < 1:
            hint = "--model 'endpoint id=NAME'; a value with spaces needs quotes of its own"
            raise UserError(f"`{word}` is not KEY=VALUE", where="--model", hint=hint)
        assign({"model": [table]}, f"model.{word}")
    return table


def load(study: str, settings: Sequence[str], models: Sequence[str]) -> Study:
    """The study that a command names, with what its options change."""
    from ponder.results.study import Study

    return Study.load(study, settings, [model_table(model) for model in models])
