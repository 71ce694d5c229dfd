"""The interface of a protocol: what the client needs to know to talk to a server.

A protocol is one file in this folder. It builds the body of a request, reads a reply, a stream and
an error, and knows where thinking and token counts are. Connections, retries, rate limits, secrets
and several servers are the client's part.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from ponder.core import Request
from ponder.models.endpoint.failures import NO_CREDIT, Refusal, read_error
from ponder.models.endpoint.reply import Reply, decode_json

if TYPE_CHECKING:
    from ponder.models.endpoint import Endpoint


class ModelList(msgspec.Struct):
    """A server's list of models."""

    data: list[Any] = []


_model_list = msgspec.json.Decoder(ModelList)


class Protocol(ABC):
    """Builds requests for one endpoint and reads what it sends back."""

    # What a reply is called in errors: "a chat completion".
    reply_name: ClassVar[str]
    # Fields of a request that a study's `body` must not set, because the caps, the bills and the
    # answers depend on them, and the setting to use instead. A dot leads into a table.
    own_fields: ClassVar[Mapping[str, str]] = {}
    # The page below the endpoint's URL that lists the server's models.
    models_page: ClassVar[str] = "models"

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint

    @property
    @abstractmethod
    def page(self) -> str:
        """The page below the endpoint's URL that answers."""

    @property
    def query(self) -> Mapping[str, str]:
        """Parameters of that page."""
        return {}

    def headers(self, key: str) -> dict[str, str]:
        """Return the headers of a request; `key` is the API key, "" if there is none."""
        if not key:
            return {}
        return {"Authorization": f"Bearer {key}"}

    @abstractmethod
    def dials(self) -> dict[str, Any]:
        """Return the fields of a request that `effort`, `think` and `thinking` stand for.

        Raise `UserError` for one that this server doesn't have. Called when a study is read, so
        that the error comes before anything is asked.
        """

    @cached_property
    def dial_fields(self) -> dict[str, Any]:
        """The fields that `dials` returns, for every request."""
        return self.dials()

    @abstractmethod
    def payload(self, request: Request, budget: int | None) -> dict[str, Any]:
        """Return the body of a request, dials included; the study's `body` is not in it."""

    @abstractmethod
    def read_body(self, request: Request, content: bytes) -> Reply:
        """Return the reply in the body of a response.

        Raise `NoReply` if it holds none, and `Malformed` if it can't be read.
        """

    @abstractmethod
    async def read_stream(
        self, request: Request, chunks: AsyncIterator[bytes], on_text: Callable[[], None]
    ) -> Reply:
        """Return a streamed reply; raise `Malformed` if the stream fails.

        Call `on_text` for every event that holds text, thinking included.
        """

    def is_filtered(self, content: bytes) -> bool:  # noqa: ARG002 for subclasses
        """Return whether the body of an error says that a content filter stopped the prompt.

        If so, `read_body` reads it as a reply without an answer.
        """
        return False

    def read_error(self, status: int, content: bytes) -> Refusal:
        """Return the error in the body of a response."""
        return read_error(status, content)

    def setting_to_change(
        self,
        refusal: Refusal,
        payload: Mapping[str, Any],  # noqa: ARG002 for subclasses
    ) -> tuple[str, str] | None:
        """Return which setting makes a server refuse every request, and a hint.

        Return None if other requests may succeed. `payload` is the request that was refused.
        """
        if refusal.status == 402 or NO_CREDIT.intersection(refusal.codes):
            hint = 'add credit to the account, or name another key: key = "$NAME"'
            return "has no credit left", hint
        return None

    def listed_models(self, content: bytes) -> dict[str, dict[str, Any]]:
        """Return the entries of the server's model list by name; raise `Malformed` if there's none."""
        models = decode_json(content, _model_list).data
        entries = [model for model in models if isinstance(model, dict)]
        return {entry["id"]: entry for entry in entries if isinstance(entry.get("id"), str)}

    @abstractmethod
    def url_hint(self, server_url: str) -> str:
        """Return a hint for an address that seems to be another page's."""
