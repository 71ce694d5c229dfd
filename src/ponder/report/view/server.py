"""Starts the page's server, and ends it in order: streams first, then the process that estimates."""

from __future__ import annotations

import errno
import logging
import secrets
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from ponder.core import UserError
from ponder.report.view.app import View
from ponder.report.view.security import Guard, is_loopback
from ponder.report.view.stores import opened
from ponder.runner.study import Study


def bound(host: str, port: int) -> socket.socket:
    """A socket that listens; port 0 takes any that is free."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen()
    except (OSError, OverflowError) as error:
        listening.close()
        why = getattr(error, "strerror", None) or str(error)
        taken = getattr(error, "errno", None) in (errno.EADDRINUSE, errno.EACCES)
        hint = "use another: --port 0 takes any free one" if taken else "--host is an address of this machine"
        raise UserError(f"can't serve on {host}, port {port}: {why}", hint=hint) from None
    return listening


def serve(
    listening: socket.socket, host: str, stores: Sequence[Path], given: Sequence[Study], told: Callable[[str], None]
) -> None:
    """Serve until interrupted. `told` gets the address to open, with its token if one is needed."""
    import uvicorn

    token = "" if is_loopback(host) else secrets.token_urlsafe(24)
    view = View(opened(stores), given)
    settings = uvicorn.Config(
        Guard(view.application(), host, token),
        log_level="warning",
        lifespan="off",
        ws="none",
        access_log=False,
        timeout_graceful_shutdown=2,
    )
    server = uvicorn.Server(settings)
    view.stopping = lambda: server.should_exit
    # A browser that keeps its connection open at the end is no error.
    logging.getLogger("uvicorn.error").addFilter(lambda _: not server.should_exit)
    view.estimates.warm()
    shown = f"[{host}]" if ":" in host else socket.gethostname() if host in ("0.0.0.0", "::") else host  # noqa: S104
    told(f"http://{shown}:{listening.getsockname()[1]}/" + (f"?token={token}" if token else ""))
    # The server sends itself the signal again that ended it, after the streams are closed; the rest is to be ended too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        server.run(sockets=[listening])
    except KeyboardInterrupt:
        pass  # the usual way to end it
    finally:
        view.close()
