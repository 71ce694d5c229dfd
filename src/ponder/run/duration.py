"""How long the replies of a model on this machine will take, and a warning if that is more than a day.

From the tokens that a plan forecasts and a speed: that of the stored attempts, where a model measures it
(`seconds_per_token`), else the model's own guess. Prompts, trainings and rewards are not counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ponder.core import Forecast, Spend
from ponder.core.text import count
from ponder.store.store import Store
from ponder.study.cell import StudyCell

DAY = 86_400.0
HINT = (
    'name = "vllm" serves the same weights faster and name = "endpoint" asks a server (neither can `compress`); '
    "`ponder run --ray` shares the work among machines"
)


class Duration(NamedTuple):
    """A rough time, and how it was reckoned."""

    seconds: float
    at_most: bool  # every reply as long as its budget, because nothing is stored
    how: str


def guesses(cell: StudyCell) -> bool:
    """Whether a cell's model knows how fast it is."""
    return isinstance(cell.model, Forecast)


def duration(
    cells: Sequence[StudyCell], store: Store | None, expected: float | None, limit: Spend | None
) -> Duration | None:
    """How long the replies of one model on one task will take; None if that is unknown."""
    cell = cells[0]
    if not isinstance(cell.model, Forecast):
        return None
    measured = store.speed(cells) if store else None
    if expected is not None and measured:
        fraction, seconds = measured
        tokens = expected * fraction
        return Duration(tokens * seconds, False, f"{tokens:,.0f} tokens at {1 / seconds:,.1f} per second, as stored")
    guess = cell.model.tokens_per_second(cell.task)
    if guess is None or limit is None:
        return None
    tokens, (speed, basis) = limit.completion_tokens, guess
    return Duration(tokens / speed, True, f"{tokens:,.0f} tokens at {speed:,.1f} per second, {basis}")


def warning(durations: Sequence[tuple[str, Duration | None]]) -> str:
    """A warning and a hint if the replies of all models together take more than a day; else ""."""
    known = [(model, one) for model, one in durations if one]
    if sum(one.seconds for _, one in known) <= DAY:
        return ""
    model, longest = max(known, key=lambda pair: pair[1].seconds)
    days = max(1, round(sum(one.seconds for _, one in known) / DAY))
    bound = "up to " if any(one.at_most for _, one in known) else ""
    return f"warning: this may take {bound}{count(days, 'day')}; `{model}` alone: {longest.how}\nhint: {HINT}"
