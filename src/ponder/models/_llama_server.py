"""Serves a GGUF file on this machine through llama.cpp's server, for the model `endpoint`."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

from ponder.core import UserError
from ponder.models._local_weights import PACKAGES, packaged


def weights(model: str) -> Path:
    """Return the GGUF file behind a short name or a path."""
    path = packaged(model) or Path(model)
    hint = f"{', '.join(PACKAGES)}, or the path of a .gguf file"
    try:
        with path.open("rb") as file:
            magic = file.read(4)
    except OSError as error:
        raise UserError(f"can't read {path}: {error.strerror}", hint=hint) from None
    if magic != b"GGUF":
        raise UserError(f"{path} is not a GGUF file", hint=hint)
    return path


def serve(
    path: Path, port: int, slots: int, context: int, threads: int, ready: Callable[[str], None]
) -> None:
    """Serve until SIGINT or SIGTERM, which end the process. `ready` is called with the URL."""
    try:
        import xllamacpp
    except ModuleNotFoundError:
        message = "serving needs a package that isn't installed: xllamacpp"
        raise UserError(message, hint="pip install 'ponder-lab[llama]'") from None
    # Immediately: the server's own shutdown waits without limit for an answer in progress.
    signal.signal(signal.SIGINT, lambda *_: os._exit(0))
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    settings = xllamacpp.CommonParams()
    settings.model.path = str(path)
    settings.model_alias = {path.stem}
    settings.port = port
    settings.n_parallel = slots
    settings.n_ctx = context * slots
    settings.cpuparams.n_threads = threads
    settings.cpuparams_batch.n_threads = threads
    # else it caches up to 8 GB of prompts, which share only their first words
    settings.cache_ram_mib = 0
    settings.ui = False
    settings.verbosity = 1  # errors only
    try:
        server = xllamacpp.Server(settings)
    except RuntimeError:
        message = f"llama.cpp can't serve {path} on port {port}; its error is printed above"
        raise UserError(message, hint="if the port is taken: --port 8001") from None
    ready(f"{server.listening_address}/v1")
    threading.Event().wait()
