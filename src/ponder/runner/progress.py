"""The progress of a run: one line on the terminal, redrawn in place; a new line every ten seconds in a log file.

Written by hand: a progress-bar library would do no more than these few lines.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic

from ponder.runner.run import Tally

BAR = 24  # characters


@contextmanager
def shown(tally: Tally) -> Iterator[None]:
    """Redraw the line while the block runs, and leave its last state on the screen."""
    live = sys.stderr.isatty()
    ended = threading.Event()

    def redraw() -> None:
        while not ended.wait(0.2 if live else 10):
            _write(tally, live=live)

    thread = threading.Thread(target=redraw, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        _write(tally, live=live)
        if live:
            sys.stderr.write("\n")


def _write(tally: Tally, *, live: bool) -> None:
    sys.stderr.write(f"\r{line(tally)}\x1b[K" if live else f"{line(tally)}\n")
    sys.stderr.flush()


def line(tally: Tally) -> str:
    """The state of a run as one line: `████░░ 40/100  12/s  0:05 left  8.1k tokens  right 30  wrong 8 …`."""
    if tally.making:
        return "  ".join(f"{key} {value}".replace("_", " ") for key, value in tally.making.items())
    seconds = monotonic() - tally.started
    done, left = tally.done, max(0, tally.planned - tally.done)
    fraction = done / tally.planned if tally.planned else 1.0
    bar = ("█" * round(fraction * BAR)).ljust(BAR, "░")
    eta = f"  {_clock(left * seconds / done)} left" if done and left else ""
    money = f"  {tally.cost:.2f} spent" if tally.cost else ""
    rate = f"{done / seconds:.0f}/s" if done > seconds else f"{60 * done / max(seconds, 1e-9):.1f}/min"
    kinds = ("right", "wrong", "unparsed", "truncated", "failed")
    counts = "  ".join(f"{kind} {getattr(tally, kind)}" for kind in kinds)
    return f"{bar} {done:,}/{tally.planned:,}  {rate}{eta}  {short(tally.tokens)} tokens{money}  {counts}"


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
