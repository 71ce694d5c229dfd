"""Stands for a model whose attempts come from another program's log, by `ponder import`.

It can't be queried again. Reports, figures, comparisons and exports need only what is in the store.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from ponder.core import Completion, FromLog, Model, Request, Served, UserError
from ponder.core.capabilities import CatalogEntry


@dataclass(kw_only=True)
class Imported(Model, FromLog, Served):
    id: str  # the model's name in the log
    # the settings in the log, such as the temperature
    settings: Mapping[str, Any] = field(default_factory=dict)
    runs: tuple[str, ...] = ()  # the log's own ids of the runs

    example: ClassVar[dict[str, Any]] = {"id": "org/model"}

    def title(self) -> str:
        return self.id

    def server(self) -> str:
        return f"a log of {self.id}"

    def catalogued(self) -> CatalogEntry:
        return CatalogEntry(self.id, "", "")

    def ready(self) -> None:
        message = f"the answers of `{self.label or self.id}` come from a log, so it can't be asked"
        hint = "ponder import LOG reads a log again; ponder report STUDY draws what is there"
        raise UserError(message, hint=hint)

    async def complete(self, request: Request) -> Completion:  # noqa: ARG002 the interface
        self.ready()
        raise AssertionError("it is never ready")
