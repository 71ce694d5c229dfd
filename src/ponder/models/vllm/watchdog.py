"""Runs a server and ends it, with all its processes, when Ponder closes the input or ends.

`python watchdog.py COMMAND…`: a script on its own, which imports nothing but the standard library.
A pipe notices every end of Ponder, `kill -9` included. If this script is killed, Linux ends the
server (PR_SET_PDEATHSIG); with SIGTERM, because vLLM then ends its engine and workers too.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress

GRACE = 20.0  # seconds between SIGTERM and SIGKILL
PR_SET_PDEATHSIG = 1


def main() -> None:
    stopping = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: stopping.set())
    library = ctypes.CDLL(None) if sys.platform == "linux" else None

    def end_with_this() -> None:
        if library:
            library.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)

    # A group of its own, so that all that it starts can be killed. There is one thread so far, so
    # `preexec_fn` is safe.
    server = subprocess.Popen(  # noqa: S603
        sys.argv[1:],
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=end_with_this,  # noqa: PLW1509
    )

    def when_closed() -> None:
        sys.stdin.buffer.read()
        stopping.set()

    def when_ended() -> None:
        server.wait()
        stopping.set()

    for watch in (when_closed, when_ended):
        threading.Thread(target=watch, daemon=True).start()
    stopping.wait()
    server.terminate()
    with suppress(subprocess.TimeoutExpired):
        server.wait(GRACE)
    with suppress(ProcessLookupError):
        # a killed server leaves its engine and workers behind
        os.killpg(server.pid, signal.SIGKILL)
    code = server.wait()
    # not sys.exit: it would wait for the thread that reads
    os._exit(code if code >= 0 else 128 - code)


if __name__ == "__main__":
    main()
