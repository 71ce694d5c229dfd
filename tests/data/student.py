"""Knows one subject better than the others."""

from __future__ import annotations

from dataclasses import dataclass

from ponder.core import Completion, Request
from ponder.models.oracle import Oracle


@dataclass(kw_only=True)
class Student(Oracle):
    subject: str = ""  # the one that it knows

    async def complete(self, request: Request) -> Completion:
        error = 0.1 if request.problem.facts["subject"] == self.subject else 0.5
        return await Oracle(error=error).complete(request)
