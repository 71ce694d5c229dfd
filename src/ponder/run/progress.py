"""The progress of a run: one line, redrawn in place on a terminal and in a notebook; every ten
seconds in a log file.

Written by hand: a progress-bar library would do no more than these few lines.
"""

from __future__ import annotations

import shutil
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic

from ponder.core import Progress
from ponder.core.text import count, printable
from ponder.run.run_stats import ENDINGS, Tally

BAR = 16  # characters
NOTEBOOK = 120  # characters of the line in a notebook


@contextmanager
def shown(tally: Tally) -> Iterator[None]:
    """Redraw the line while the block runs, and leave its last state on the screen."""
    notebook = _Notebook(tally) if _in_notebook() else None
    redrawn = notebook.redraw if notebook else lambda: write(tally)
    seconds = 0.5 if notebook else 0.2 if sys.stderr.isatty() else 10
    ended = threading.Event()

    def redraw() -> None:
        while not ended.wait(seconds):
            redrawn()

    thread = threading.Thread(target=redraw, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        redrawn()
        if sys.stderr.isatty():
            sys.stderr.write("\n")


def _in_notebook() -> bool:
    ipython = sys.modules.get("IPython")
    return hasattr(ipython and ipython.get_ipython(), "kernel")


class _Notebook:
    """The line as an output that is replaced, so that a saved notebook holds only its last state."""

    def __init__(self, tally: Tally) -> None:
        from IPython.display import display

        self.tally = tally
        self.output = display(self, display_id=True)

    def redraw(self) -> None:
        self.output.update(self)

    def __repr__(self) -> str:
        return line(self.tally, NOTEBOOK)


def write(tally: Tally) -> None:
    """Write the line now."""
    if sys.stderr.isatty():
        width = shutil.get_terminal_size().columns
        sys.stderr.write(f"\r{line(tally, width - 1)}\x1b[K")
    else:
        sys.stderr.write(f"{line(tally)}\n")
    sys.stderr.flush()


def line(tally: Tally, width: int = 10_000) -> str:
    """The state of a run as one line of at most `width` characters; what matters least is left out
    first.
    """
    making = dict(tally.making)
    if len(making) == 1 and not tally.done:
        (report,) = making.values()
        return _fitted([f"{key} {value}".replace("_", " ") for key, value in report.items()], width)
    if making and not tally.done:
        return _fitted([f"making {len(making)}:", *(_made(*one) for one in making.items())], width)
    seconds = tally.asking_seconds(monotonic())
    done, left = tally.done, max(0, tally.planned - tally.done)
    rate = (
        f"{done / seconds:.0f}/s" if done > seconds else f"{60 * done / max(seconds, 1e-9):.1f}/min"
    )
    tokens = f"{short(tally.tokens)} tokens" + (
        f", {tally.cost:.2f} {tally.currency}" if tally.cost else ""
    )
    parts = [f"{done:,}/{tally.planned:,}"]
    if tally.stop and tally.stop.asked:
        again = ", Ctrl-C again drops them" if tally.stop.signal else ""
        parts += (
            [f"stopping: waiting for {count(calls, 'call')}{again}"]
            if (calls := tally.ledger.calls)
            else []
        )
    elif done and left and not making:  # how long that takes, nobody knows
        parts.append(f"{_clock(left * seconds / done)} left")
    parts += [
        tokens,
        *(f"{ending} {n:,}" for ending in ENDINGS if (n := getattr(tally, ending))),
        rate,
    ]
    if tally.retries.total():
        parts.append(
            "retries: " + ", ".join(count(n, kind) for kind, n in tally.retries.items() if n)
        )
    parts += [f"making {_made(*one)}" for one in making.items()]
    if tally.last_trouble:
        parts.append(f"last: {tally.last_trouble}")
    bar = round(done / tally.planned * BAR) if tally.planned else BAR
    return _fitted([f"{'█' * bar}{'░' * (BAR - bar)} {parts[0]}", *parts[1:]], width)


def _made(label: str, report: Progress) -> str:
    """One of several preparations, in few words: `sft seed=2: step 50/400`."""
    news = [
        (key.replace("_", " "), value)
        for key, value in report.items()
        if key not in ("model", "method")
    ]
    said = " ".join(
        f"/{value}" if key == "of" else f"{key} {value}" for key, value in news[:2]
    ).replace(" /", "/")
    return f"{label}: {said}"


def _fitted(parts: list[str], width: int) -> str:
    """The parts that fit, in their order; of the first that doesn't, the words that do, if enough
    remain to be read.
    """
    text = printable(parts[0])
    for part in map(printable, parts[1:]):
        room = width - len(text) - 2
        if len(part) > room:
            words = part[: max(0, room)].rpartition(" ")[0].rstrip(" ,:")
            return f"{text}  {words}…" if len(words) >= 20 else text[:width]
        text += f"  {part}"
    return text[:width]


def short(number: float) -> str:
    """A number with three significant digits and a unit: 950, 12.3k, 4.56M."""
    for unit, name in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= unit:
            return f"{number / unit:.3g}{name}"
    return f"{number:.0f}"


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
