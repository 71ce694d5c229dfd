"""Grades the code in a reply by running tests on it: `answer` is Python that follows the code.

    {"prompt": "Write add(a, b) in Python.", "answer": "assert add(2, 3) == 5"}

The code is that of all blocks marked as Python, else the longest block, else the whole reply. Code
and tests run in a process of their own, in an empty folder, without input, with limits of CPU time,
memory and file size. An exception, a limit or an early exit is a wrong answer with its reason. This
protects a run from accidents, not from attacks: the code can read your files and reach the network.
Where that matters, run Ponder in a container.
"""

from __future__ import annotations

import ast
import contextlib
import os
import re
import resource
import signal
import sys
import tempfile
import time
from dataclasses import dataclass
from typing import Any

from ponder.core import Grade, UserError
from ponder.tasks.grading.grader import NO_ANSWER, Grader, need_answer, wrong_answer
from ponder.tasks.grading.line import ProblemLine
from ponder.tasks.subprocess_call import MEMORY, CallFailed, SubprocessFunction, serve

_BLOCK = re.compile(r"^[ \t]*```[ \t]*(\w*)[^\n]*\n(.*?)^[ \t]*```", re.DOTALL | re.MULTILINE)
PYTHON = ("python", "py", "python3")
# Of wall-clock time for each second of CPU time: code may sleep or wait, and the machine be busy.
PATIENCE = 10
FILE_BYTES = 16 << 20  # that a file may have
REASON = 200  # characters


@dataclass(frozen=True)
class UnitTests(Grader):
    seconds: float = 5.0  # of CPU time

    def __post_init__(self) -> None:
        if not 0.1 <= self.seconds <= 3600:
            raise UserError(f"`seconds` must be from 0.1 to 3600, not {self.seconds:g}")

    def check(self, line: ProblemLine) -> None:
        need_answer(line)
        if not isinstance(line.answer, str) or not line.answer.strip():
            hint = '{"prompt": "Write add(a, b) in Python.", "answer": "assert add(2, 3) == 5"}'
            raise wrong_answer(line, "Python that tests the code of a reply", hint)
        try:
            ast.parse(line.answer)
        except (SyntaxError, ValueError) as error:
            raise UserError(f"`answer` is not Python: {error}") from None

    def grade(self, line: ProblemLine, reply: str) -> Grade:
        code = code_of(reply)
        if not code.strip():
            return NO_ANSWER
        try:
            why = _run.call(code, line.answer, self.seconds)
        except CallFailed as failed:
            why = str(failed)
        return Grade(correct=not why, parsed=code, why=why)

    def identity(self) -> Any:
        return self.seconds


def code_of(reply: str) -> str:
    """Return the Python code in a reply."""
    blocks = _BLOCK.findall(reply)
    python = [code for language, code in blocks if language.lower() in PYTHON]
    if python:
        return "\n".join(python)
    if blocks:
        return str(max((code for _, code in blocks), key=len))
    return reply


_run = SubprocessFunction("ponder.tasks.grading.unit_tests")


def _result(code: str, tests: str, seconds: float) -> str:
    """Run code and its tests in a process of their own; return why they fail, "" if they pass."""
    reading, writing = os.pipe()
    # The code can't exit early and look as if its tests had passed.
    passed = os.urandom(16)
    with tempfile.TemporaryDirectory(prefix="ponder-tests-") as folder:
        child = os.fork()
        if child == 0:
            os.close(reading)
            _run_in_child(code, tests, seconds, folder, passed, writing)
        os.close(writing)
        status = _wait(child, PATIENCE * seconds)
        # processes that it has started
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child, signal.SIGKILL)
    os.set_blocking(reading, False)
    try:
        report = os.read(reading, 4096)
    except BlockingIOError:
        report = b""
    os.close(reading)
    if report == passed:
        return ""
    if report:
        return report.decode("utf-8", "replace")
    if status is None or (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXCPU):
        return "took too long"
    if os.WIFSIGNALED(status):
        return "crashed"
    return "exited before the tests ended"


def _wait(child: int, seconds: float) -> int | None:
    """Return a process's exit status; None if it had to be ended after so many seconds."""
    end = time.monotonic() + seconds
    pause = 0.001
    while time.monotonic() < end:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return status
        time.sleep(pause)
        pause = min(0.05, 1.5 * pause)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def _run_in_child(
    code: str, tests: str, seconds: float, folder: str, passed: bytes, writing: int
) -> None:
    """Run code and tests, write `passed` or what went wrong, and end the process."""
    try:
        os.setsid()
        os.chdir(folder)
        nothing = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nothing, stream)
        sys.stdin = open(0, closefd=False)  # noqa: SIM115
        sys.stdout = sys.stderr = open(1, "w", closefd=False)  # noqa: SIM115
        # Rounded up: the kernel takes whole seconds.
        cpu_seconds = int(-(-seconds // 1))
        resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds + 1))
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES, FILE_BYTES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        message = _failure(code, tests)
        os.write(writing, message.encode("utf-8", "replace")[:REASON] if message else passed)
    finally:
        os._exit(0)


def _failure(code: str, tests: str) -> str:
    """Run code, then tests in its namespace; return what went wrong, "" if nothing did."""
    namespace: dict[str, Any] = {"__name__": "reply"}
    for text, name in ((code, "the code"), (tests, "the tests")):
        try:
            exec(compile(text, f"<{name}>", "exec"), namespace)  # noqa: S102 what this is for
        except SystemExit:
            return f"{name} exited"
        except MemoryError:
            return "out of memory"
        except BaseException as error:
            if name == "the tests" and isinstance(error, AssertionError):
                return f"a test failed: {error}" if str(error) else "a test failed"
            return f"{name} raised {type(error).__name__}: {error}"
    return ""


if __name__ == "__main__":
    serve(_result)
