"""Extracts answers from a model's text and compares them with the right ones. No other file does either.

A task chooses from these functions instead of parsing text itself, so that the same reply is read in the same way
everywhere.
"""

from __future__ import annotations

import atexit
import importlib.util
import json
import re
import signal
import subprocess
import sys
import threading
from fractions import Fraction
from functools import lru_cache
from typing import Any

from ponder.core import UserError

_TAG = re.compile(r"<(/?)think(?:ing)?>")
_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


def split_thinking(text: str) -> tuple[str, str]:
    """Split a reply with `<think>` tags into thinking and answer.

    The answer is what follows the last closing tag. The opening tag may be missing, because some prompts contain it
    already, and thinking may quote the tags. After an opening tag that is never closed, everything is thinking.
    """
    tags = list(_TAG.finditer(text))
    last = next((t for t in reversed(tags) if t[1]), None)
    thinking, rest = (text[: last.start()], text[last.end() :]) if last else ("", text)
    if reopened := _TAG.search(rest):
        thinking, rest = thinking + rest[reopened.end() :], rest[: reopened.start()]
    return _TAG.sub("", thinking).strip(), rest.strip()


def last_json_grid(text: str) -> list[Any] | None:
    """The last JSON array of arrays in a text, whatever surrounds it; None if there is none."""
    # At most twenty tries, which bounds the time for 10 MB of nothing but brackets.
    for start in [m.start() for m in re.finditer(r"\[\s{0,99}\[", text)][:-21:-1]:
        try:
            grid, _ = json.JSONDecoder().raw_decode(text, start)
        except (ValueError, RecursionError):
            continue
        return list(grid)
    return None


def final(text: str) -> str | None:
    """The final answer: in the last `<answer>` tag, else in the last `\\boxed{}`, else the last line with content."""
    if (inside := tagged(text)) is not None:
        return inside
    if (boxed := _last_boxed(text)) is not None:
        return boxed
    lines = [line.strip(" \t*`#.") for line in text.splitlines()]
    last = next((line for line in reversed(lines) if line), None)
    if last is None:
        return None
    return (
        re.sub(r"^.*?\b(?:answer|result|total|sum)(?:\s+is)?\s*[:=]?\s*", "", last, flags=re.IGNORECASE).strip(" *`$.")
        or last
    )


def tagged(text: str) -> str | None:
    """The content of the last `<answer>` tag, because a model may correct itself; None if there is none."""
    contents = _ANSWER.findall(text)
    return str(contents[-1]).strip() if contents else None


def _last_boxed(text: str) -> str | None:
    start = text.rfind("\\boxed{")
    if start < 0:
        return None
    depth = 0
    for at in range(start + 6, len(text)):
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        if depth == 0:
            return text[start + 7 : at].strip()
    return None


def choice(text: str, letters: str) -> str | None:
    """The chosen letter of a multiple choice: in the last `\\boxed{}`, else after the last "Answer:" or "answer is"."""
    if boxed := re.match(rf"(?:\\(?:text|math)\w*\{{|\W)*([{letters}])(?![A-Za-z])", _last_boxed(text) or ""):
        return boxed[1]
    chosen = re.findall(rf"(?i:answer)(?i:\s{{1,9}}is)?[\W_]{{0,9}}([{letters}])(?![A-Za-z])", text)
    return str(chosen[-1]) if chosen else None


def number(text: str) -> Fraction | None:
    """A text that is nothing but a number, as an exact fraction: `1,234`, `-0.5`, `3/4`, `\\frac{3}{4}`; else None."""
    plain = re.sub(r"\\[,!]|[\u202f_]", "", text.strip().strip("$").replace("−", "-").replace("{,}", ","))
    plain = re.sub(r"\\[dt]?frac\{(\d+)\}\{(\d+)\}", r"\1/\2", plain)
    if re.fullmatch(r"[+-]?\d{1,3}(,\d{3})+(\.\d+)?", plain):
        plain = plain.replace(",", "")
    # Bounded, because converting a megabyte of digits takes quadratic time.
    if len(plain) > 1000 or not re.fullmatch(r"[+-]?(\d+(\.\d*)?|\.\d+)(/\d+)?", plain):
        return None
    try:
        return Fraction(plain) if "/" not in plain else Fraction(plain.split("/")[0]) / Fraction(plain.split("/")[1])
    except (ValueError, ZeroDivisionError):
        return None


def same(said: str, gold: str) -> bool:
    """Whether two final answers are equal: as numbers if both are, else as text, ignoring case and spacing."""
    left, right = number(said), number(gold)
    if left is not None and right is not None:
        return left == right
    return " ".join(said.split()).casefold() == " ".join(gold.split()).casefold()


TOO_LONG = 1000  # characters; the longest answer in MATH-500 has 53


def differs(said: str, gold: str) -> str:
    """Why two final answers are not mathematically equal; "" if they are."""
    left, right = number(said), number(gold)
    if left is not None and right is not None:  # fast, and exact: math-verify rounds to six decimals
        return "" if left == right else "wrong answer"
    if " ".join(said.split()) == " ".join(gold.split()):
        return ""
    return "wrong answer" if len(said) > TOO_LONG else _differs(said, gold)


@lru_cache(4096)  # a hundred attempts at a problem give only a few different answers
def _differs(said: str, gold: str) -> str:
    need_maths()
    return _mathematician.differs(said, gold)


def need_maths() -> None:
    """Raise `UserError` if math-verify isn't installed."""
    if importlib.util.find_spec("math_verify") is None:
        what = "comparing mathematical answers needs a package that isn't installed: math-verify"
        raise UserError(what, hint="pip install 'ponder[maths]'")


class Mathematician:
    """Runs math-verify in a subprocess, which the kernel ends if a comparison takes too many CPU seconds.

    Math-verify's own timeouts use alarms, which fail outside the main thread and can't interrupt one long
    multiplication. The limit is in CPU seconds, because a grade must not depend on how busy the machine is.
    """

    def __init__(self, cpu_seconds: float = 3.0) -> None:
        self.cpu_seconds = cpu_seconds
        self._process: subprocess.Popen[str] | None = None
        self._one_at_a_time = threading.Lock()

    def differs(self, said: str, gold: str) -> str:
        with self._one_at_a_time:
            reply = self._tell([said, gold])
            if reply:
                return "" if json.loads(reply) else "wrong answer"
            return "took too long" if self.close() == -signal.SIGPROF else "can't be compared"

    def _tell(self, pair: list[str]) -> str:
        if self._process is None:
            command = [sys.executable, "-P", "-m", "ponder.core.answers", str(self.cpu_seconds)]
            pipe = subprocess.PIPE
            self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True)  # noqa: S603
            atexit.register(self.close)
            if not self._process.stdout or not self._process.stdout.readline():
                raise RuntimeError(f"{' '.join(command)} doesn't start")
        to, back = self._process.stdin, self._process.stdout
        assert to is not None
        assert back is not None
        try:
            to.write(json.dumps(pair) + "\n")
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
        with process:  # closes its input, which ends it
            pass
        return process.returncode


_mathematician = Mathematician()


def _compare_what_comes(cpu_seconds: float) -> None:
    """The subprocess: reads a pair of answers per line, and writes whether they are equal, one line each."""
    import logging
    import resource

    from math_verify import parse, verify

    logging.disable()  # it warns that its own timeouts are off
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the run, which still has answers to grade
    resource.setrlimit(resource.RLIMIT_AS, (2 << 30, resource.RLIM_INFINITY))

    def same(said: str, gold: str) -> bool:
        left, right = (parse(f"\\boxed{{{text}}}", parsing_timeout=None) for text in (gold, said))
        return bool(verify(left, right, timeout_seconds=None))

    out, sys.stdout = sys.stdout, sys.stderr
    print(same("\\frac12", "0.5"), file=out, flush=True)  # ready: the first parse is slow
    for line in sys.stdin:
        # SIGPROF ends the process at once, whatever it is doing.
        signal.setitimer(signal.ITIMER_PROF, cpu_seconds)
        try:
            verdict = same(*json.loads(line))
        except Exception:  # text that math-verify can't handle is not a right answer
            verdict = False
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(json.dumps(verdict), file=out, flush=True)


if __name__ == "__main__":
    _compare_what_comes(float(sys.argv[1]))
