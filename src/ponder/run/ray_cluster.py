"""Prepares and queries models on a Ray cluster: `--ray`.

Every model with local weights is held by actors, as many as its `replicas`, and every preparation
is a task. Ray places them on nodes with the GPUs and CPUs that they need. Seeds, keys and the store
are the run's, so the results are the same as without Ray. If an actor or a node dies, its requests
in progress go to another, and its training resumes from the last checkpoint.

All nodes must see the same files: `$PONDER_MODELS`, where prepared models are, weights in folders,
the study's own files.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import ray
from ray.exceptions import ActorDiedError, RayError, RayTaskError, TaskCancelledError

from ponder.core import Completion, Method, Model, Request, Task, UserError, WithWeights, Wrapped
from ponder.core.lock import Held
from ponder.core.wrapped import innermost
from ponder.models import models_folder
from ponder.run.caps import Money
from ponder.run.executors import Report
from ponder.run.workers import Hosted, HostLost, making, packed, received, sendable, unpacked
from ponder.study.cell import Resources, StudyCell

SHARED = "it must be on storage that every node shares: docs/gpus.md"
# a file in the folder of made models, by which a node knows that it sees the same folder
MARK = "shared.id"
MAX_LOSSES = 5  # of a preparation: nodes that died under it
CONNECT_SECONDS = 5.0
HEALTH_SECONDS = 20.0


class Cluster:
    """A Ray cluster, connected while the block runs."""

    jobs: int | None = None

    def __init__(self, address: str, cells: Sequence[StudyCell]) -> None:
        self._address = address
        self._cells = cells
        self._connected_here = False

    def __enter__(self) -> Self:
        if not ray.is_initialized():  # a program may have connected already
            _connect(self._address)
            self._connected_here = True
        self._mark = _mark(models_folder())
        self._check_room()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._connected_here:
            ray.shutdown()

    def _check_room(self) -> None:
        """Raise `UserError` if no node has room for a model or a method: Ray would wait forever."""
        nodes = []
        for node in ray.nodes():
            if node["Alive"]:
                gpus = node["Resources"].get("GPU", 0)
                cpus = node["Resources"].get("CPU", 0)
                nodes.append((gpus, cpus))
        for cell in self._cells:
            needs = [cell.hosting.needs(cell.model, method) for method in cell.making]
            if _has_weights(cell.model):
                needs.insert(0, cell.hosting.needs(cell.model))
            for resources in needs:
                if any(
                    gpus >= (resources.gpus or 0) and cpus >= (resources.cpus or 0)
                    for gpus, cpus in nodes
                ):
                    continue
                largest = Resources(max(gpus for gpus, _ in nodes), max(cpus for _, cpus in nodes))
                raise UserError(
                    f"no node has {resources.text()}; the largest have {largest.text()}",
                    where=f"model `{cell.label.model}`",
                    hint="ray = { gpus = …, cpus = … }",
                )

    def queue(self, cell: StudyCell) -> str:
        if _has_weights(cell.model):
            return f"ray {cell.label.model}"
        return cell.model.server()

    def hosted(self, cells: Sequence[StudyCell], model: Model) -> Model:
        cell = cells[0]
        if not _has_weights(cell.model):
            return model
        # a judge is asked here, under the study's caps
        if isinstance(model, Wrapped) and cell.asks():
            model.inner = self.hosted(cells, model.inner)
            model.concurrency = model.inner.concurrency
            return model
        tasks = list({id(cell.task): cell.task for cell in cells}.values())
        # A copy of a task doesn't hold what it has read, such as a whole benchmark; the host reads
        # that again.
        sent = packed(model, [replace(task) for task in tasks], _folders(model, tasks))  # type: ignore[type-var]
        needs = cell.hosting.needs(cell.model)
        return Hosted(
            model, tasks, lambda: _Actor(sent, needs, model.concurrency), cell.hosting.replicas
        )

    async def make(
        self,
        method: Method,
        model: Model,
        needs: Resources,
        report: Report,
        allowance: Money | None = None,
    ) -> None:
        sent = packed(method, model, allowance)
        losses = 0
        report({"waits_for": needs.text()})
        while True:
            try:
                async for message in self._make(sent, needs):
                    # the lock of a node that died, which shared storage may still show
                    if isinstance(message, Held) and losses:
                        raise HostLost(str(message))
                    if isinstance(message, Exception):
                        raise message
                    report(message)
            except HostLost as lost:
                losses += 1
                if losses >= MAX_LOSSES:
                    raise UserError(
                        f"`{method.title()}` was begun {losses} times, "
                        f"and its process or node ended each time: {lost}",
                        hint="is there enough memory? Run again to resume",
                    ) from lost
            else:
                return

    async def _make(self, sent: bytes, needs: Resources) -> AsyncIterator[Any]:
        resources = {"num_gpus": needs.gpus, "num_cpus": needs.cpus}
        stream = _task.options(**resources).remote(sent, models_folder().absolute(), self._mark)
        try:
            async for ref in stream:
                yield await ref
        except RayTaskError as error:  # everything else is sent as a value
            raise UserError(
                f"a node can't make anything: {error}", hint="install Ponder on every node"
            ) from None
        except RayError as error:
            raise HostLost(_first_line(error)) from None
        finally:
            with contextlib.suppress(RayError, TaskCancelledError):
                ray.cancel(stream)


def _has_weights(model: Model) -> bool:
    return isinstance(model, WithWeights)


def _folders(model: Model, tasks: Sequence[Task]) -> list[Path]:
    """Return the folders of weights that a host must see."""
    model = innermost(model)
    folders = set[Path]()
    if not isinstance(model, WithWeights):
        return []
    with contextlib.suppress(UserError):  # weights in two parts, such as an adapter beside them
        folders = {model.source(task).folder.absolute() for task in tasks}
    return [folder for folder in folders if folder.is_dir()]


def _mark(folder: Path) -> str:
    """Return what is written in the folder of made models, for nodes to compare."""
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError), (folder / MARK).open("x") as file:
        file.write(uuid.uuid4().hex)
    return (folder / MARK).read_text()


def _connect(address: str) -> None:
    if address == "auto":
        address = os.environ.get("RAY_ADDRESS", address)
    if address.startswith("ray://"):
        raise UserError(
            "Ray Client (ray://) is not supported: the run must see the same files as the nodes",
            where="--ray",
            hint="run on a node of the cluster: --ray auto, or ray job submit",
        )
    if address not in ("auto", "local"):
        _check_answers(address)
    try:
        ray.init(address=address, log_to_driver=False, logging_level="error")
    except ConnectionError as error:
        message = f"no Ray cluster answers: {error}"
        if address == "auto":
            message = "no Ray cluster runs on this machine"
        hint = "ray start --head starts one here; --ray local starts one for this run"
        raise UserError(message, where="--ray", hint=hint) from None
    except (RuntimeError, ValueError) as error:
        # another version of Ray or Python, or an address of another form
        message = f"can't connect to {address}: {_first_line(error)}"
        raise UserError(message, where="--ray") from None


def _check_answers(address: str) -> None:
    """Raise `UserError` if no Ray cluster answers at an address, before `ray.init` waits."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise UserError(
            f"`{address}` is not an address",
            where="--ray",
            hint="--ray auto, or HOST:PORT, such as head:6379",
        )
    try:
        socket.create_connection((host, int(port)), CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        hint = "is the head node up? `ray status` there says; its port is 6379 unless given"
        raise UserError(
            f"nothing answers at {address}: {error}", where="--ray", hint=hint
        ) from None
    command = [
        sys.executable,
        "-P",
        "-m",
        "ray.scripts.scripts",
        "health-check",
        "--address",
        address,
    ]
    try:
        health = subprocess.run(  # noqa: S603
            command, capture_output=True, timeout=HEALTH_SECONDS, check=False
        )
        healthy = health.returncode == 0
    except subprocess.TimeoutExpired:
        healthy = False
    if not healthy:
        raise UserError(
            f"what answers at {address} is not a Ray cluster",
            where="--ray",
            hint="the port of the head node is 6379 unless given; "
            "8265 is the dashboard, 10001 Ray Client",
        )


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]


# What runs on the nodes.


def _node() -> str:
    return f"node {ray.util.get_node_ip_address()}"


def _make(sent: bytes, folder: Path, mark: str) -> Iterator[Any]:
    """Make what a method needs. Its errors are values, so that Ray doesn't wrap them."""
    file = folder / MARK
    if not file.is_file() or file.read_text() != mark:
        yield UserError(
            f"this node doesn't see the run's $PONDER_MODELS, {folder}", where=_node(), hint=SHARED
        )
        return
    yield from making(sent, _node())


class _Weights:
    """A model on a node.

    It is opened by `open`, not when it is made, so that a restarted one can be opened again.
    """

    def __init__(self, sent: bytes) -> None:
        self._sent = sent
        self._model: Model | None = None
        self._opening = asyncio.Lock()

    async def open(self) -> Exception | None:
        try:
            async with self._opening:
                self._model = self._model or await self._opened()
        except Exception as error:
            return sendable(error)
        return None

    async def _opened(self) -> Model:
        model: Model
        model, self._tasks, folders = unpacked(self._sent, _node())
        for folder in folders:
            if not folder.is_dir():
                raise UserError(
                    f"this node doesn't see the weights in {folder}", where=_node(), hint=SHARED
                )
        return await model.__aenter__()

    async def complete(self, task: int, request: Request) -> Completion | Exception:
        error = await self.open()
        if error:
            return error
        assert self._model
        try:
            return await self._model.complete(received(request, self._tasks[task]))
        except Exception as error:
            return sendable(error)


_task: Any = ray.remote(num_returns="streaming", max_retries=0)(_make)
_actor: Any = ray.remote(max_restarts=-1, max_task_retries=0, scheduling_strategy="SPREAD")(
    _Weights
)


class _Actor:
    """A host that is an actor."""

    def __init__(self, sent: bytes, needs: Resources, concurrency: int) -> None:
        resources = {"num_gpus": needs.gpus, "num_cpus": needs.cpus}
        self._actor = _actor.options(max_concurrency=concurrency + 1, **resources).remote(sent)

    async def open(self) -> None:
        await self._result(self._actor.open.remote)

    async def complete(self, task: int, request: Request) -> Completion:
        completion: Completion = await self._result(self._actor.complete.remote, task, request)
        return completion

    async def _result(self, call: Callable[..., Any], *arguments: Any) -> Any:
        try:
            result = await call(*arguments)
        except ActorDiedError as error:  # for good: it restarts otherwise
            raise UserError(
                f"a model can't be held by a node: {error}", hint="install Ponder on every node"
            ) from None
        except RayError as error:
            raise HostLost(_first_line(error)) from None
        if isinstance(result, Exception):
            raise result
        return result

    def close(self) -> None:
        ray.kill(self._actor)
