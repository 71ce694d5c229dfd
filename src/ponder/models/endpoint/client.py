"""The HTTP client of an endpoint: connections, several servers, rate limits, retries and errors.

What a request says and how replies are read is the protocol's part: `protocol.py`.
"""

from __future__ import annotations

import os
import random
from asyncio import Lock, Semaphore, get_running_loop, sleep
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import aiohttp
import msgspec
from yarl import URL

from ponder.core import Bill, Completion, ModelFailure, Prices, Request, Retry, UserError
from ponder.core.plugins import closest
from ponder.core.secrets import Secrets
from ponder.core.text import count, encodable
from ponder.models.endpoint.batch import Batches
from ponder.models.endpoint.batch_apis import AnthropicBatches, BatchApi, OpenAIBatches
from ponder.models.endpoint.counting import ServerTokenizer, beside_v1, load_tokenizer
from ponder.models.endpoint.failures import (
    NoAnswer,
    Refusal,
    WrongServer,
    broken,
    connection_hint,
    is_web_page,
    no_connection,
    refused,
    retry_after,
    room_for_reply,
    speaks_https,
)
from ponder.models.endpoint.http_request import connect, merged, smaller_budget
from ponder.models.endpoint.protocol import Protocol
from ponder.models.endpoint.rate_limit import RateLimit
from ponder.models.endpoint.reply import (
    Malformed,
    NoReply,
    Reply,
    TooLong,
    as_count,
    bill,
    decode_json,
    read_prices,
    slack,
    without_false_count,
)
from ponder.models.endpoint.servers import ServedNames, Server, Servers, alike
from ponder.models.endpoint.stream import Deadline, read_all
from ponder.models.endpoint.timing import StreamTimes, stream_measures

if TYPE_CHECKING:
    from ponder.models.endpoint import Endpoint

BATCH_APIS: dict[str, type[BatchApi]] = {
    "chat": OpenAIBatches,
    "responses": OpenAIBatches,
    "anthropic": AnthropicBatches,
}
# Of the pages of batch jobs: for the next bytes, not for all of them, which may be gigabytes.
PATIENCE = aiohttp.ClientTimeout(total=None, sock_connect=30, sock_read=300)
MAX_BACK_OFF = 60.0  # seconds between two tries, unless the server asks for more
ANOTHER_SERVER = 0.01  # seconds until the next try if another server is free
MAX_MESSAGE = 2000  # characters of a server's text that a user is shown
# characters: shorter keys ("EMPTY", "1234") stay in replies, where they may be part of an answer
MIN_KEY = 12


class Props(msgspec.Struct):
    """llama.cpp's page about itself."""

    total_slots: Any = None  # requests that it works on at once; others wait in its queue


_props = msgspec.json.Decoder(Props)


class Client:
    """Sends the requests of one endpoint, in one protocol."""

    def __init__(self, endpoint: Endpoint, protocol: Protocol, *, proxies: bool = True) -> None:
        self.endpoint = endpoint
        self.protocol = protocol
        # whether to use the proxy that the environment names, if any
        self._proxies = proxies

    async def __aenter__(self) -> Self:
        endpoint = self.endpoint
        self._secrets = Secrets()
        connections = list[tuple[URL, dict[str, str]]]()
        for address in endpoint.urls:
            connections.append(connect(endpoint, self.protocol, address, self._secrets))
        self._body = self._secrets.fill_json(endpoint.body)
        self._count = load_tokenizer(endpoint.tokenizer) if endpoint.tokenizer else None
        self.rate_limit = RateLimit(endpoint.requests_per_minute, endpoint.tokens_per_minute)
        self._slots: Semaphore | None = None
        self._first = Lock()
        self._names = ServedNames(endpoint.id)
        self._session = self._open_session()
        servers = list[Server]()
        for name, (url, headers) in zip(endpoint.urls, connections, strict=True):
            servers.append(self._server(name, url, headers))
        self.servers = Servers(servers)
        self.batches: Batches | None = None
        if endpoint.batch:
            api = BATCH_APIS[endpoint.protocol_name](self)
            name = f"{endpoint.protocol_name} {endpoint.urls[0]}"
            self.batches = Batches(self, api, endpoint.jobs, name)
        return self

    def _open_session(self) -> aiohttp.ClientSession:
        endpoint = self.endpoint
        timeout = aiohttp.ClientTimeout(
            total=None if endpoint.stream else endpoint.timeout,  # a stream has a `Deadline`
            # less than the total, so that the two can be told apart
            sock_connect=min(30.0, 0.9 * endpoint.timeout),
            sock_read=endpoint.timeout if endpoint.stream else None,
        )
        # Looking up a proxy costs CPU on every request, so only if one is set.
        has_proxy = any(name.lower().endswith("_proxy") for name in os.environ)
        return aiohttp.ClientSession(
            # `_free_slots` limits requests; counting doesn't wait for other replies
            connector=aiohttp.TCPConnector(limit=0),
            timeout=timeout,
            trust_env=self._proxies and has_proxy,
        )

    def _server(self, name: str, url: URL, headers: dict[str, str]) -> Server:
        page = (url / self.protocol.page).with_query(url.query).update_query(self.protocol.query)
        models = (url / self.protocol.models_page).with_query(url.query)
        tokenizer = ServerTokenizer(self._session, url, headers, self.endpoint.id)
        return Server(name, page, models, headers, tokenizer, beside_v1(url, "props"))

    async def __aexit__(self, *error: object) -> None:
        try:
            if self.batches:
                await self.batches.close()
        finally:
            await self._session.close()

    # Before the first request

    async def reach(self) -> None:
        """Request the model list of every server.

        Many servers have none, so only if no server can be reached is that an error.
        """
        if self.endpoint.probe:
            self.servers.check([await self._reach(server) for server in self.servers.all])

    async def _reach(self, server: Server) -> UserError | None:
        """Return why a server can't be reached; None if it can."""
        why = ""
        hint = ""
        for tries in range(2):
            try:
                # A server that is busy may take longer than this, but not to accept a connection.
                limit = aiohttp.ClientTimeout(total=10, sock_connect=5)
                async with self._session.get(
                    server.models, headers=server.headers, timeout=limit, allow_redirects=False
                ) as response:
                    # Not 403: a key that may not list models may still use them.
                    if response.status == 401 or 300 <= response.status < 400:
                        content = await read_all(response.content.iter_any())
                        refusal = self.protocol.read_error(response.status, content)
                        raise await self._refused(server, refusal, response.headers)
                    return None
            except TooLong:
                return None
            except WrongServer as error:
                server.set_aside(0.0)
                return error
            except (aiohttp.ClientError, OSError) as error:
                if _is_slow_reply(error):
                    return None
                why = self._unreachable(server, error)
                hint = connection_hint(error, server.url)
                if tries == 0:
                    await sleep(0.5)
        server.set_aside(0.0)
        return UserError(why, hint=hint)

    async def listed_prices(self) -> Prices | None:
        """Return the model's prices in the first server's list; None if it has none."""
        entry = (await self._listed(self.servers.all[0])).get(self.endpoint.id, {})
        return read_prices(entry.get("pricing"))

    async def _listed(self, server: Server) -> dict[str, dict[str, Any]]:
        """Return a server's models by name; none if it has no list, or `probe` is off."""
        if not self.endpoint.probe:
            return {}
        limit = aiohttp.ClientTimeout(total=10, sock_connect=5)
        try:
            async with self._session.get(
                server.models, headers=server.headers, timeout=limit, allow_redirects=False
            ) as response:
                content = await read_all(response.content.iter_any())
                return self.protocol.listed_models(content)
        except (aiohttp.ClientError, OSError, Malformed):
            return {}

    async def _free_slots(self) -> Semaphore:
        """Return what limits the requests in progress.

        The limit is `concurrency`, or the slots of llama.cpp's servers if fewer: more requests
        would wait in a server's queue, where `timeout` runs. A method may send several at once.
        """
        async with self._first:
            if self._slots is None:
                limit = self.endpoint.concurrency
                if self.endpoint.probe:
                    slots = [await self._slots_of(server) for server in self.servers.all]
                    if all(slots):
                        limit = min(limit, sum(slots))
                self._slots = Semaphore(limit)
        return self._slots

    async def _slots_of(self, server: Server) -> int:
        """Return how many requests a server works on at once; 0 if it doesn't report it."""
        if server.props is None:
            return 0
        limit = aiohttp.ClientTimeout(total=5)
        try:
            async with self._session.get(
                server.props, headers=server.headers, timeout=limit, allow_redirects=False
            ) as response:
                if response.status != 200:
                    return 0
                props = decode_json(await read_all(response.content.iter_any()), _props)
        except (aiohttp.ClientError, OSError, Malformed):
            return 0
        return as_count(props.total_slots)

    # A request and its tries

    async def complete(self, request: Request) -> Completion:
        async with request.observer.alone or nullcontext():
            completion = await self._complete(request)
            request.observer.billed(request, completion.bill)
        return completion

    async def _complete(self, request: Request) -> Completion:
        budget = smaller_budget(self.endpoint.budget, request.budget)
        fields = merged(self.protocol.payload(request, budget), self._body)
        payload = msgspec.json.encode(fields)
        for tries in range(self.endpoint.retries + 1):
            try:
                if self.batches:
                    return await self._try_in_batch(self.batches, payload, budget, request)
                return await self._try(payload, budget, request)
            except NoAnswer as failure:
                wait, why = self.back_off(failure, tries)
                request.observer.retried(request, Retry(failure.kind, why, failure.billed, wait))
                if not wait:
                    raise ModelFailure(why) from None
            await sleep(wait)
        raise AssertionError("unreachable")

    def back_off(self, failure: NoAnswer, tries: int) -> tuple[float, str]:
        """Return the seconds until the next try, 0 if there is none, and why there is no answer."""
        max_wait = self.endpoint.max_wait
        if not failure.passing:
            return 0.0, str(failure)
        if failure.wait > max_wait and not self.servers.another():
            too_long = (
                f"the server asks to wait {failure.wait:.0f} seconds,"
                f" more than max_wait = {max_wait:g}"
            )
            return 0.0, f"{failure} ({too_long})"
        if tries == self.endpoint.retries:
            return 0.0, f"{failure} ({count(tries + 1, 'try')})"
        if self.servers.another():
            return ANOTHER_SERVER, str(failure)
        if failure.wait:
            return failure.wait, str(failure)
        # Exponential back-off, times 0.5 to 1.5, so that many clients don't return at the same
        # moment.
        wait = min(MAX_BACK_OFF, 0.5 * 2.0 ** min(tries, 10))
        return wait * (0.5 + random.random()), str(failure)

    async def _try(self, payload: bytes, budget: int | None, request: Request) -> Completion:
        prompt_estimate = len(payload) // 3
        clock = get_running_loop().time
        async with await self._free_slots():
            charge = await self.rate_limit.start(
                prompt_estimate, budget, partial(request.observer.sent, request)
            )
            # The wait for a slot and for the rate limits is over: no `seconds` include it.
            started = clock()
            with self.servers.chosen() as server:
                try:
                    reply, times = await self._ask(server, payload, request)
                except Malformed as error:
                    server.set_aside(0.0)
                    # another reply would be too long as well
                    passing = not isinstance(error, TooLong)
                    why = self.shown(str(error))
                    raise NoAnswer(why, billed=True, passing=passing) from None
                except NoAnswer as failure:
                    if not failure.billed:
                        self.rate_limit.end(charge, None)
                    if failure.passing:
                        server.set_aside(failure.wait)
                    raise
                server.answered()
            reply = without_false_count(reply)
            cost = bill(reply, clock() - started, self._count, prompt_estimate)
            self.rate_limit.end(charge, cost)
        reply, cost = await self._counted(server, reply, cost, payload, budget, request)
        measures = dict[str, float]()
        if times:
            measures = stream_measures(times, started, reply, cost)
        wait_seconds = cost.seconds - reply.measures.get("work_seconds", 0.0)
        if wait_seconds >= 0:  # else the server reports more time than the call took
            measures |= reply.measures
            if "work_seconds" in reply.measures:
                measures["wait_seconds"] = wait_seconds
        return self._completion(reply, cost, measures)

    async def _try_in_batch(
        self, batches: Batches, payload: bytes, budget: int | None, request: Request
    ) -> Completion:
        """Answer a request in a batch job; nobody knows how many seconds the reply took."""
        (server,) = self.servers.all
        line = await batches.ask(payload, request)
        if not line.status:
            raise NoAnswer(self.shown(line.why))
        try:
            reply = without_false_count(
                await self._read(server, line.status, line.content, {}, payload, request)
            )
        except Malformed as error:
            raise NoAnswer(self.shown(str(error)), billed=True) from None
        except WrongServer as error:
            if not line.earlier:
                raise
            # What was wrong when the job was sent may be corrected by now.
            raise NoAnswer(error.what) from None
        server.answered()
        cost = bill(reply, 0.0, self._count, len(payload) // 3)
        reply, cost = await self._counted(server, reply, cost, payload, budget, request)
        return self._completion(reply, cost, {})

    async def _counted(
        self,
        server: Server,
        reply: Reply,
        cost: Bill,
        payload: bytes,
        budget: int | None,
        request: Request,
    ) -> tuple[Reply, Bill]:
        """Return a reply and its bill, with tokens counted by the server's tokenizer if need be."""
        if cost.counted_by == "estimate" and self.endpoint.probe:
            usage, prompt_estimate = await server.tokenizer.fill(
                reply, request.messages, payload, len(payload) // 3
            )
            reply = replace(reply, usage=usage)
            cost = bill(reply, cost.seconds, self._count, prompt_estimate)
        cost = replace(cost, slack=slack(reply, cost, budget, request.prompt_limit))
        await self._check_name(server, reply.model, request)
        return reply, cost

    def _completion(self, reply: Reply, cost: Bill, measures: dict[str, float]) -> Completion:
        """Return a reply as the run takes it, without secrets."""
        if reply.summarized and reply.thinking:
            measures = {**measures, "summarized": 1.0}
        # A refusal stands where the transcript shows it and no grader reads it.
        thinking = self._secrets.redact(reply.thinking or reply.refusal, MIN_KEY)
        answer = self._secrets.redact(reply.answer, MIN_KEY)
        return Completion(
            thinking,
            answer,
            reply.stop,
            cost,
            measures,
            tokens=reply.tokens,
            prompt=reply.prompt,
            note=reply.note,
            blocks=self._secrets.redact(reply.blocks, MIN_KEY),
        )

    async def _check_name(self, server: Server, model: str, request: Request) -> None:
        """Warn once if a server answers as another model."""
        name = self.shown(model)[:100]
        if not name or not self._names.new(server.url, name):
            return
        requested = self.endpoint.id
        alias = not alike(name, requested) and requested in await self._listed(server)
        warning = self._names.warning(server.url, name, alias=alias)
        if warning:
            request.observer.warned(warning)

    async def _ask(
        self, server: Server, payload: bytes, request: Request
    ) -> tuple[Reply, StreamTimes | None]:
        """Call `_post`; raise `NoAnswer` for a wrong server as long as another may answer."""
        try:
            return await self._post(server, payload, request)
        except WrongServer as error:
            has_warned = server.wrong is not None
            server.wrong = error
            self.servers.check([other.wrong for other in self.servers.all])
            if not has_warned:
                request.observer.warned(f"{error.what}; this server is set aside")
            raise NoAnswer(error.what) from None

    async def _post(
        self, server: Server, payload: bytes, request: Request
    ) -> tuple[Reply, StreamTimes | None]:
        """Send one HTTP request; return the reply, and when its texts came, if streamed.

        Raise `NoAnswer`, `Malformed`, or `WrongServer`.
        """
        deadline = Deadline(self.endpoint.timeout, self.endpoint.idle_timeout)
        try:
            async with self._session.post(
                server.page, data=payload, headers=server.headers, allow_redirects=False
            ) as response:
                chunks: AsyncIterator[bytes] = response.content.iter_any()
                if self.endpoint.stream:
                    chunks = deadline.watch(chunks)
                    if _is_stream(response):
                        times = StreamTimes(deadline)
                        reply = await self.protocol.read_stream(request, chunks, times.on_text)
                        return reply, times
                content = await read_all(chunks)
        except (aiohttp.ClientError, OSError) as error:
            raise broken(error, self._unreachable(server, error)) from None
        return await self._read(
            server, response.status, content, response.headers, payload, request
        ), None

    async def _read(
        self,
        server: Server,
        status: int,
        content: bytes,
        headers: Mapping[str, str],
        payload: bytes,
        request: Request,
    ) -> Reply:
        """Return the reply in a response; raise `NoAnswer`, `Malformed`, or `WrongServer`."""
        if status == 200:
            content_type = headers.get("Content-Type", "").partition(";")[0].strip().lower()
            if is_web_page(content_type, content):
                page = self.protocol.read_error(status, content).message
                raise self._not_a_reply(server, page)
            try:
                return self.protocol.read_body(request, content)
            except NoReply as error:
                if error.other_page:
                    raise self._not_a_reply(server, content.decode("utf-8", "replace")) from None
                if not error.status:
                    raise
                status = error.status
        elif status in (400, 403) and self.protocol.is_filtered(content):
            return self.protocol.read_body(request, content)
        refusal = self.protocol.read_error(status, content)
        raise await self._refused(server, refusal, headers, payload)

    @asynccontextmanager
    async def open_page(
        self,
        method: str,
        page: str,
        query: Mapping[str, str],
        data: Any,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Request another page of the first server; raise `NoAnswer` or `WrongServer`."""
        server = self.servers.all[0]
        url = (server.models.parent / page).with_query(server.models.query).update_query(query)
        headers = dict(server.headers)
        if isinstance(data, aiohttp.FormData):
            del headers["Content-Type"]  # the form has its own
        try:
            response = await self._session.request(
                method, url, data=data, headers=headers, timeout=PATIENCE, allow_redirects=False
            )
        except (aiohttp.ClientError, OSError) as error:
            raise broken(error, self._unreachable(server, error)) from None
        async with response:
            if response.status >= 300:
                try:
                    content = await read_all(response.content.iter_any())
                except (aiohttp.ClientError, OSError, Malformed):
                    content = b""
                refusal = self.protocol.read_error(response.status, content)
                raise await self._refused(server, refusal, response.headers)
            yield response

    # Errors, as users see them

    def shown(self, text: str) -> str:
        """Return a text from outside without secrets, and of bounded length."""
        text = self._secrets.redact(encodable(text))
        if len(text) > MAX_MESSAGE:
            text = f"{text[:MAX_MESSAGE]}…"
        return text

    def _unreachable(self, server: Server, error: Exception) -> str:
        if _is_slow_reply(error):
            if self.endpoint.stream:
                if isinstance(error, aiohttp.SocketTimeoutError):
                    return f"no reply began within {self.endpoint.timeout:g} seconds"
                return str(error)
            queue = (
                "the wait in its queue counts: lower `concurrency`,"
                " or `stream = true` to count from the reply"
            )
            return f"no reply within {self.endpoint.timeout:g} seconds ({queue})"
        if isinstance(error, aiohttp.ClientConnectorError):
            return f"no connection to {server.url}: {self.shown(no_connection(error))}"
        reason = self.shown(str(error) or type(error).__name__)
        return f"lost the connection to {server.url}: {reason}"

    def _not_a_reply(self, server: Server, text: str) -> NoAnswer | WrongServer:
        """Return the error for another page; a server that has answered before may be back soon."""
        start = self.shown(text)[:200]
        message = f"{server.url} answers with {start}, not with {self.protocol.reply_name}"
        if server.has_answered:
            return NoAnswer(message)
        return WrongServer(message, hint=self.protocol.url_hint(server.url))

    async def _refused(
        self, server: Server, refusal: Refusal, headers: Mapping[str, str], payload: bytes = b"{}"
    ) -> NoAnswer | WrongServer:
        """Return the error for an HTTP status that isn't 200; `payload` is what was sent."""
        status = refusal.status
        error = self.shown(str(refusal))
        if status in (404, 405):
            return await self._no_such_page_or_model(server, error)
        change = self.protocol.setting_to_change(refusal, msgspec.json.decode(payload))
        if change is not None:
            problem, hint = change
            return WrongServer(f"{server.url} {problem}: {error}", hint=hint)
        if status in (401, 403):
            reaction = "refuses the" if self.endpoint.key else "wants a"
            hint = 'key = "$NAME" names the environment variable that holds it'
            return WrongServer(f"{server.url} {reaction} key: {error}", hint=hint)
        if 300 <= status < 400:
            # Not followed: the key would be sent wherever the server says.
            target = self.shown(headers.get("Location", "an unknown place"))
            hint = "if you trust that address, make it the `url`"
            return WrongServer(f"{server.url} redirects to {target}", hint=hint)
        if status == 400 and server.url.startswith("http://") and speaks_https(refusal.message):
            hint = f'url = "https{server.url.removeprefix("http")}"'
            return WrongServer(f"{server.url}: {error}", hint=hint)
        if status in (400, 413, 422):
            room = room_for_reply(refusal.message)
            if room is not None:
                error = f"{error} ({room.hint})"
        return refused(status, error, retry_after(headers) or refusal.wait)

    async def _no_such_page_or_model(self, server: Server, error: str) -> WrongServer:
        """Return the error for a page that a server doesn't have, or a model it doesn't know."""
        model = self.endpoint.id
        names = list(await self._listed(server))
        if names and model not in names:
            first_names = names[:10]
            if len(names) > 10:
                first_names.append("…")
            hint = f"the server lists {', '.join(first_names)}"
            nearest = closest(model, names)
            if len(names) == 1:
                nearest = names[0]
            if nearest:
                hint = f'id = "{nearest}"; {hint}'
            message = f"{server.url} does not know the model `{model}`: {error}"
            return WrongServer(message, hint=self.shown(hint))
        hint = self.protocol.url_hint(server.url)
        if hint.endswith("?"):
            hint = f"{hint} does it know the model `{model}`?"
        return WrongServer(f"{server.url} knows no such page or model: {error}", hint=hint)


def _is_slow_reply(error: Exception) -> bool:
    """Return whether a connected server took too long."""
    timed_out = isinstance(error, TimeoutError)
    return timed_out and not isinstance(error, aiohttp.ConnectionTimeoutError)


def _is_stream(response: aiohttp.ClientResponse) -> bool:
    if response.status != 200 or "json" in response.content_type:
        return False
    return response.content_type != "text/html"
