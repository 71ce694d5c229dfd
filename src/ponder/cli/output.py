"""What commands print: results to stdout, the rest to stderr, tables that fit the terminal.

Bold and colour appear on a terminal only, and not if `NO_COLOR` is set. Tables fold to the width of
the terminal, or to `COLUMNS` if that is set; piped output has neither colour nor folds.
"""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import TYPE_CHECKING, Any, TextIO

import click

from ponder.core import Progress
from ponder.core.text import as_json as json_text
from ponder.core.text import printable

if TYPE_CHECKING:
    from ponder.run.progress import Tally

# Styled text is marked with characters that Unicode reserves for internal use, so that `printable`
# can escape a hostile text's own control characters before these become codes of the terminal.
_BOLD = "\ufdd0"
_RED = "\ufdd1"
_END = "\ufdd2"
_CODES = {_BOLD: "\x1b[1m", _RED: "\x1b[31m", _END: "\x1b[0m"}
_GAP = "  "  # between the columns of a table
_NARROWEST = 24  # a column of text is not wrapped to less than this


def bold(text: str) -> str:
    """Mark a heading or a verdict."""
    return f"{_BOLD}{text}{_END}"


def red(text: str) -> str:
    """Mark an error."""
    return f"{_RED}{text}{_END}"


def _echo(text: str, stream: TextIO) -> None:
    """Print text with its styles as codes of the terminal, or without them."""
    colour = stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    text = printable(text)
    for mark, code in _CODES.items():
        text = text.replace(mark, code if colour else "")
    click.echo(text, file=stream, color=colour)


def tell(text: str) -> None:
    """Print to stderr what is not data."""
    _echo(text, sys.stderr)


def say(data: Any, as_json: bool, text: Callable[[], str]) -> None:
    """Print a result to stdout, as JSON or as text."""
    if as_json:
        click.echo(json_text(data, indent=1))
    else:
        _echo(text(), sys.stdout)


def _width() -> int | None:
    """Return the columns that output may take; None if it is piped, which has no limit."""
    if os.environ.get("COLUMNS", "").isdigit() or sys.stdout.isatty():
        return shutil.get_terminal_size().columns
    return None


def table(rows: Sequence[Sequence[Any]], *, numbers: int = 0, heading: bool = True) -> str:
    """Return rows in aligned columns, the last `numbers` of them aligned to the right.

    The first row is the heading. A table that is too wide folds: numbers stand below the text of
    their row; if there are none, the last column is wrapped, or stands below the others.
    """
    cells = []
    for row in rows:
        cells.append([_cell(value) for value in row])
    widths = []
    for column in zip(*cells, strict=True):
        widths.append(max(len(cell) for cell in column))
    first_number = len(widths) - numbers
    available = _width()
    total = sum(widths) + len(_GAP) * (len(widths) - 1)
    if available is None or total <= available:
        groups = [list(range(len(widths)))]
    elif numbers == 0 and total - widths[-1] + _NARROWEST <= available:
        last_width = available - (total - widths[-1])
        return "\n".join(_wrap_last(cells, widths, last_width, heading))
    elif numbers == 0:
        return "\n".join(_stacked(cells, available, heading))
    else:
        groups = _groups(widths, first_number, available)
    lines = []
    for index, row in enumerate(cells):
        for number, group in enumerate(groups):
            line = _aligned(row, widths, group, first_number)
            if number:
                line = f"{_GAP}{line}"
            lines.append(bold(line) if heading and index == 0 else line)
    return "\n".join(lines)


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, int):
        return f"{value:,}"
    return printable(str(value))


def _aligned(row: Sequence[str], widths: Sequence[int], group: Sequence[int], first: int) -> str:
    """Return the cells of a group of columns; those from `first` on are aligned to the right."""
    aligned = []
    for i in group:
        aligned.append(row[i].rjust(widths[i]) if i >= first else row[i].ljust(widths[i]))
    return _GAP.join(aligned).rstrip()


def _groups(widths: Sequence[int], first_number: int, available: int) -> list[list[int]]:
    """Divide columns into lines that fit; numbers begin a new line."""
    groups: list[list[int]] = []
    line_width = 0
    for i, width in enumerate(widths):
        if not groups:
            groups.append([i])
            line_width = width
        elif i == first_number or line_width + len(_GAP) + width > available:
            # Every line but the first is indented by a gap.
            groups.append([i])
            line_width = 2 * len(_GAP) + width
        else:
            groups[-1].append(i)
            line_width += len(_GAP) + width
    return groups


def _wrap_last(
    cells: Sequence[Sequence[str]], widths: Sequence[int], last_width: int, heading: bool
) -> Iterator[str]:
    """Yield the lines of a table whose last column is wrapped to a width."""
    last = len(widths) - 1
    for index, row in enumerate(cells):
        lines = textwrap.wrap(row[last], last_width) or [""]
        start = _GAP.join(row[i].ljust(widths[i]) for i in range(last))
        for line in lines:
            text = f"{start}{_GAP}{line}".rstrip()
            if heading and index == 0:
                text = bold(text)
            yield text
            start = " " * len(start)


def _stacked(cells: Sequence[Sequence[str]], available: int, heading: bool) -> Iterator[str]:
    """Yield each row as its first cells on one line, and the last one below them, indented."""
    for index, row in enumerate(cells):
        *first, last = row
        indent = " " * (len(first[0]) - len(first[0].lstrip()) + 4)
        for line in textwrap.wrap(
            _GAP.join(first), available, subsequent_indent=indent, break_long_words=False
        ):
            yield bold(line) if heading and index == 0 else line
        yield from textwrap.wrap(last, available, initial_indent=indent, subsequent_indent=indent)


def wrap(text: str, indent: str = "") -> str:
    """Return a paragraph wrapped to the terminal, with an indent on all lines but the first."""
    available = _width()
    if available is None:
        return text
    return textwrap.fill(
        text, available, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def reflow(text: str) -> str:
    """Return a docstring with its paragraphs wrapped to the terminal; lists and code stay."""
    if _width() is None:
        return text
    paragraphs = []
    for paragraph in text.split("\n\n"):
        lines = paragraph.splitlines()
        is_prose = not any(line.startswith((" ", "-", "|", "*")) for line in lines)
        paragraphs.append(wrap(" ".join(lines)) if is_prose else paragraph)
    return "\n\n".join(paragraphs)


@contextmanager
def resumable() -> Iterator[None]:
    """Print on Ctrl-C how to resume, and exit with code 130."""
    try:
        yield
    except KeyboardInterrupt:
        tell("interrupted; run the same command again to resume")
        raise click.exceptions.Exit(130) from None


def watch(reports: Iterable[Progress], *, as_json: bool = False) -> bool:
    """Do long work to its end with a line of progress on stderr.

    With `as_json`, also print every report as a line on stdout. Return whether there was anything
    to do.
    """
    from ponder.run import progress
    from ponder.run.progress import Tally

    with resumable():
        remaining = iter(reports)
        # A mistake in the input shows before there is a line of progress.
        first = next(remaining, None)
        if first is None:
            return False
        tally = Tally()
        with progress.shown(tally):
            for report in chain([first], remaining):
                _show_progress(tally, report)
                if as_json:
                    click.echo(json_text(report))
        return True


def _show_progress(tally: Tally, report: Progress) -> None:
    """Show the last report of each model that is being trained, or the last one of other work."""
    if "model" in report:
        tally.report("", None)
        tally.report(report["model"], report)
        return
    tally.report(report.get("ready", ""), None)
    if not tally.making:
        tally.report("", report)
