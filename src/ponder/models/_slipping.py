"""Settings of teachers that make an error on purpose: which error, and on which problems."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ponder.core import IgnoresMessages, Model, Request, UserError, not_in_key, seed_from


@dataclass(kw_only=True)
class Slipping(Model, IgnoresMessages):
    # the error that it makes every time; carry: it forgets carries, as described above
    slip: Literal["", "carry"] = ""
    fraction: float = 1.0  # of the problems on which it makes the error; the others are right
    concurrency: int = not_in_key(64)  # answers in progress at once

    def __post_init__(self) -> None:
        if not 0 <= self.fraction <= 1:
            message = f"fraction is a number from 0 to 1, not {self.fraction}"
            raise UserError(message, hint="fraction = 0.75")

    def slips(self, request: Request) -> bool:
        """Return whether it makes its error on this problem.

        All teachers take problems in the same order, so a smaller fraction is a subset.
        """
        if not self.slip:
            return False
        return seed_from("tutor", request.problem.id) < self.fraction * 2**63
