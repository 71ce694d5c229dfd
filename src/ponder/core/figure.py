"""The interface of figures."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, TypeAlias

from ponder.core.contracts import Plugin
from ponder.core.nouns import Outcome, Tables

if TYPE_CHECKING:
    import altair

ModelLabel: TypeAlias = str  # a figure's setting that names a model of the study; "": none


class Figure(Plugin, ABC):
    """Turns outcomes into tables of estimates, and draws from those tables alone."""

    # Settings of methods and details of attempts that it can't do without, each with a hint; a name
    # that is one of the figure's keys stands for that key's value. Read without importing the
    # figure, before a run starts.
    needs: ClassVar[Mapping[str, str]] = {}
    # Whether outcomes should tell which samples of a problem gave the same answer: equal
    # `details["ballot"]`. Only then are the stored answers parsed again.
    counts_votes: ClassVar[bool] = False

    @abstractmethod
    def estimate(self, outcomes: Sequence[Outcome]) -> Tables:
        """Every number that the figure, its table and the report show."""

    @abstractmethod
    def draw(self, tables: Tables) -> altair.TopLevelMixin:
        """The chart."""

    def findings(self, tables: Tables) -> list[str]:  # noqa: ARG002 for subclasses
        """What the figure shows, in sentences."""
        return []
