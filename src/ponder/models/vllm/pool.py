"""Keeps vLLM servers running from one model to the next.

A server starts in a minute, so it outlives the model that it was started for. The next model that
needs the same flags and the same architecture gets it with its own weights loaded into it
(`reload_weights`), or its own LoRA adapter; where vLLM can't do that, the server is started again.
One that nobody has used for a while is stopped, as are all when Python exits.
"""

from __future__ import annotations

import atexit
import secrets
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from ponder.core import Progress, UserError
from ponder.models._gpu_memory import drop_cached_weights
from ponder.models.vllm.server import Launch, VllmServer, Weights

IDLE_SECONDS = 60.0  # until a server that nobody uses is stopped
START_SECONDS = 3600.0

_lock = threading.RLock()
_running: list[ServerGroup] = []
_holds = 0  # blocks that keep unused servers running


@dataclass(eq=False)
class ServerGroup:
    """The servers of one launch, all with the same weights."""

    launch: Launch
    weights: Weights
    name: str = field(default_factory=lambda: f"ponder-{secrets.token_hex(4)}")  # no other server's
    users: int = 0
    each: list[VllmServer] = field(default_factory=list)
    _idle: threading.Timer | None = None

    def start(self) -> Iterator[Progress]:
        """Start all and wait for them; yield progress."""
        for n in range(self.launch.replicas):
            self.each.append(VllmServer(self.launch, n, self.name, self.weights))
        yield from self._wait("starting")

    def _wait(self, doing: str) -> Iterator[Progress]:
        began = time.monotonic()
        for server in self.each:
            while not server.healthy():
                if server.ended:
                    raise server.failure("vLLM did not start")
                waited = time.monotonic() - began
                yield {"vLLM": doing, "seconds": round(waited)}
                if waited > START_SECONDS:
                    message = f"vLLM has not answered for {waited:.0f} seconds"
                    raise UserError(f"{message} (log in {server.log})")
                time.sleep(0.25 if waited < 5 else 1.0)
            self._check(server)

    def _check(self, server: VllmServer) -> None:
        """Make a server that has just started ready for requests."""
        server.check_tokens()
        if self.weights.adapter:
            server.load_adapter(self.weights.adapter)

    def load(self, weights: Weights) -> Iterator[Progress]:
        """Load other weights, by restarting if need be; yield progress."""
        self.weights = weights
        yield {"vLLM": "loading an adapter" if weights.adapter else "loading other weights"}
        loaded = [server.load(weights) for server in self.each]
        if not all(loaded):
            for server in self.each:
                server.restart(weights)
            yield from self._wait("starting again")

    def revive(self) -> None:
        """Restart the servers that have died, each once; raise `UserError` if one dies again."""
        with _lock:
            for server in self.each:
                restarts = server.restarts
                while not server.healthy():
                    if server.ended:
                        if server.restarts:
                            raise server.failure("vLLM died, and again after a restart")
                        server.restarts += 1
                        server.restart()
                    time.sleep(0.25)
                if server.restarts > restarts:
                    self._check(server)

    def release(self) -> None:
        with _lock:
            self.users -= 1
            if not self.users:
                self._idle = threading.Timer(IDLE_SECONDS, self._stop_if_idle)
                self._idle.daemon = True
                self._idle.start()

    def taken(self) -> ServerGroup:
        self.users += 1
        if self._idle:
            self._idle.cancel()
        return self

    def _stop_if_idle(self) -> None:
        with _lock:
            if not self.users and not _holds and self in _running:
                self.stop()

    def stop(self) -> None:
        if self in _running:
            _running.remove(self)
        for server in self.each:
            server.stop()


def take(launch: Launch, weights: Weights) -> Generator[Progress, None, ServerGroup]:
    """Return servers with these weights for a user, who releases them; yield progress meanwhile."""
    with _lock:
        for group in _running:
            if not group.users and not all(server.healthy() for server in group.each):
                group.stop()  # it died while nobody used it
        idle = None
        for group in _running:
            if not group.launch.serves(launch):
                continue
            if group.weights == weights:
                return group.taken()
            if idle is None and not group.users:
                idle = group
        group = idle or ServerGroup(launch, weights)
        try:
            if idle:
                yield from group.load(weights)
            else:
                stop_unused(kept_open=True)  # they may hold the memory that is needed now
                drop_cached_weights()
                _running.append(group)
                yield from group.start()
        except BaseException:
            group.stop()
            raise
        return group.taken()


def stop_unused(*, kept_open: bool) -> None:
    """Stop the servers that nobody uses now; `kept_open`: also inside a block of `held`."""
    with _lock:
        if _holds and not kept_open:
            return
        for group in _running:
            if not group.users:
                group.stop()


@contextmanager
def held() -> Iterator[None]:
    """Keep servers running while the block runs, however long nobody uses them."""
    global _holds  # noqa: PLW0603
    with _lock:
        _holds += 1
    try:
        yield
    finally:
        with _lock:
            _holds -= 1
            for group in _running:
                if not group.users:
                    group.taken().release()  # its time starts now


@atexit.register
def stop_all() -> None:
    """Stop every server of this process."""
    with _lock:
        for group in _running:
            group.stop()
