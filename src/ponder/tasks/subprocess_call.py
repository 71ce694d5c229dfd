"""Calls foreign code in a subprocess, which the kernel ends if a call takes too many CPU seconds.

For graders that a model's text can crash, or keep busy for hours: `9**9**9**9` is a short answer.
An alarm in this process would not do: it fails outside the main thread and can't interrupt one long
multiplication. The limit is in CPU seconds, because a grade must not depend on how busy the machine
is.
"""

from __future__ import annotations

import atexit
import json
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

MEMORY = 2 << 30  # bytes that the subprocess may address


class CallFailed(Exception):
    """A call gave no result: it took too long, crashed or raised."""


class SubprocessFunction:
    """The function that a module passes to `serve` when it is run with `python -m`, called in a
    subprocess.
    """

    def __init__(self, module: str, cpu_seconds: float = 3.0) -> None:
        self.module, self.cpu_seconds = module, cpu_seconds
        self._process: subprocess.Popen[str] | None = None
        self._one_at_a_time = threading.Lock()

    def call(self, *arguments: Any) -> Any:
        """Return the function's result.

        Arguments and result are JSON. Raises `CallFailed` if there is none.
        """
        with self._one_at_a_time:
            try:
                reply = self._tell(arguments)
            except (
                BaseException
            ):  # Ctrl-C in a notebook: the reply to this call must not answer the next one
                if self._process:
                    self._process.kill()
                self.close()
                raise
            if not reply:
                raise CallFailed("took too long" if self.close() == -signal.SIGPROF else "crashed")
        result, why = json.loads(reply)
        if why:
            raise CallFailed(why)
        return result

    def _tell(self, arguments: Any) -> str:
        if self._process is None:
            command = [sys.executable, "-P", "-m", self.module, str(self.cpu_seconds)]
            pipe = subprocess.PIPE
            self._process = subprocess.Popen(  # noqa: S603
                command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True
            )
            atexit.register(self.close)
            if not self._process.stdout or not self._process.stdout.readline():
                raise RuntimeError(f"{' '.join(command)} doesn't start")
        to, back = self._process.stdin, self._process.stdout
        assert to is not None
        assert back is not None
        try:
            to.write(json.dumps(arguments) + "\n")
            to.flush()
            return back.readline()
        except BrokenPipeError:
            return ""

    def close(self) -> int:
        """End the subprocess and return its exit code."""
        atexit.unregister(self.close)
        process, self._process = self._process, None
        if process is None:
            return 0
        try:
            with process:  # closes its input, which ends it
                pass
        except BrokenPipeError:  # it ended before it had read all of its input
            process.wait()
        return process.returncode


def serve(function: Callable[..., Any]) -> None:
    """Return the subprocess: reads a call's arguments per line, and writes its result and error,
    one line each.
    """
    cpu_seconds = float(sys.argv[1])
    # Ctrl-C ends the run, which still has answers to grade
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, resource.RLIM_INFINITY))
    out, sys.stdout = sys.stdout, sys.stderr
    print("ready", file=out, flush=True)
    for line in sys.stdin:
        # SIGPROF ends the process at once, whatever it is doing.
        signal.setitimer(signal.ITIMER_PROF, cpu_seconds)
        try:
            reply = [function(*json.loads(line)), ""]
        except Exception as error:
            why = f"raised {type(error).__name__}: {error}"[:200]
            reply = [None, why.encode("utf-8", "replace").decode()]
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(json.dumps(reply), file=out, flush=True)
