"""The interface of a protocol: builds the body of a request, reads a reply, a stream and an error.

Each protocol is one file in this folder, which knows where thinking and token counts are. The
client does the same for all of them: connections, retries, rate limits, secrets, several servers.
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
    # Fields of a request that a study's `body` must not set, because caps, bills and answers depend
    # on them, with the setting to use instead. A dot leads into a table.
    reserved_fields: ClassVar[Mapping[str, str]] = {}
    # The path below the endpoint's URL that lists the server's models.
    models_page: ClassVar[str] = "models"

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint

    @property
    @abstractmethod
    def page(self) -> str:
        """The path below the endpoint's URL that requests are sent to."""

    @property
    def query(self) -> Mapping[str, str]:
        """The query parameters of that path."""
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

    def _sampling_fields(self, top_p: str = "top_p") -> dict[str, float]:
        """Return the fields of a request for the settings `temperature` and `top_p`.

        The argument `top_p` is what this protocol calls that field.
        """
        fields = {}
        if self._endpoint.temperature is not None:
            fields["temperature"] = self._endpoint.temperature
        if self._endpoint.top_p is not None:
            fields[top_p] = self._endpoint.top_p
        return fields

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
        """Return a hint for a URL that doesn't seem to lead to this protocol."""
