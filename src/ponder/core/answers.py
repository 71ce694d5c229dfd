"""Reading answers out of a model's text: the only place that extracts or compares one.

A prompt and the way to read its reply belong together, so a task chooses from these few and adds none of its own.
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
    """Thinking and answer of a reply that carries its thinking in `<think>` tags.

    The answer is what follows the last closing tag: prompts that open the tag themselves leave a reply with none to
    open it, and thinking may quote the tags. An opening tag that is never closed means that thinking never ended.
    """
    tags = list(_TAG.finditer(text))
    last = next((t for t in reversed(tags) if t[1]), None)
    thinking, rest = (text[: last.start()], text[last.end() :]) if last else ("", text)
    if reopened := _TAG.search(rest):
        thinking, rest = thinking + rest[reopened.end() :], rest[: reopened.start()]
    return _TAG.sub("", thinking).strip(), rest.strip()


def last_json_grid(text: str) -> list[Any] | None:
    """The last JSON array of arrays in the text, whatever stands around it."""
    # Twenty tries bound the cost of a 10 MB reply that is nothing but brackets.
    for start in [m.start() for m in re.finditer(r"\[\s{0,99}\[", text)][:-21:-1]:
        try:
            grid, _ = json.JSONDecoder().raw_decode(text, start)
        except (ValueError, RecursionError):
            continue
        return list(grid)
    return None


def final(text: str) -> str | None:
    """The final answer: the last `<answer>` tag or `\\boxed{}`, else the last line that says something."""
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
    """What the last `<answer>` tag holds: a model that corrects itself means its last word."""
    found = _ANSWER.findall(text)
    return str(found[-1]).strip() if found else None


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
    """The letter of a multiple choice: in the last `\\boxed{}`, else after the last "Answer:" or "answer is"."""
    if boxed := re.match(rf"(?:\\(?:text|math)\w*\{{|\W)*([{letters}])(?![A-Za-z])", _last_boxed(text) or ""):
        return boxed[1]
    found = re.findall(rf"(?i:answer)(?i:\s{{1,9}}is)?[\W_]{{0,9}}([{letters}])(?![A-Za-z])", text)
    return str(found[-1]) if found else None


def number(text: str) -> Fraction | None:
    """A whole text as one exact number: `1,234`, `-0.5`, `3/4`, `\\frac{3}{4}`; None for anything else."""
    plain = re.sub(r"\\[,!]|[\u202f_]", "", text.strip().strip("$").replace("−", "-").replace("{,}", ","))
    plain = re.sub(r"\\[dt]?frac\{(\d+)\}\{(\d+)\}", r"\1/\2", plain)
    if re.fullmatch(r"[+-]?\d{1,3}(,\d{3})+(\.\d+)?", plain):
        plain = plain.replace(",", "")
    # The bound on length keeps a megabyte of digits from costing a quadratic conversion.
    if len(plain) > 1000 or not re.fullmatch(r"[+-]?(\d+(\.\d*)?|\.\d+)(/\d+)?", plain):
        return None
    try:
        return Fraction(plain) if "/" not in plain else Fraction(plain.split("/")[0]) / Fraction(plain.split("/")[1])
    except (ValueError, ZeroDivisionError):
        return None


def same(said: str, gold: str) -> bool:
    """Whether two final answers mean the same: as numbers if both are, else as text without case and spacing."""
    left, right = number(said), number(gold)
    if left is not None and right is not None:
        return left == right
    return " ".join(said.split()).casefold() == " ".join(gold.split()).casefold()


TOO_LONG = 1000  # characters; the longest answer in MATH-500 has 53


def differs(said: str, gold: str) -> str:
    """Why two final answers don't mean the same in mathematics; nothing if they do."""
    left, right = number(said), number(gold)
    if left is not None and right is not None:  # at once, and exactly: math-verify rounds to six decimals
        return "" if left == right else "wrong answer"
    if " ".join(said.split()) == " ".join(gold.split()):
        return ""
    return "wrong answer" if len(said) > TOO_LONG else _differs(said, gold)


@lru_cache(4096)  # a hundred attempts at a problem give a handful of answers
def _differs(said: str, gold: str) -> str:
    need_maths()
    return _mathematician.differs(said, gold)


def need_maths() -> None:
    """Raise `UserError` where mathematical answers can't be compared."""
    if importlib.util.find_spec("math_verify") is None:
        what = "comparing mathematical answers needs a package that isn't installed: math-verify"
        raise UserError(what, hint="pip install 'ponder[maths]'")


class Mathematician:
    """Math-verify in a process of its own, which ends when a comparison has taken so many CPU seconds.

    Math-verify's own limits are alarms: they fail outside the main thread, and can't interrupt one long multiplication.
    CPU seconds, because a busy machine must not change a grade.
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
        """End the process, and say how it ended."""
        atexit.unregister(self.close)
        process, self._process = self._process, None
        if process is None:
            return 0
        with process:  # closes its input, upon which it ends
            pass
        return process.returncode


_mathematician = Mathematician()


def _compare_what_comes(cpu_seconds: float) -> None:
    """What the mathematician's process does: a pair a line in, a verdict a line out."""
    import logging
    import resource

    from math_verify import parse, verify

    logging.disable()  # it warns that its own limits are off
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the run, which still has answers to grade
    resource.setrlimit(resource.RLIMIT_AS, (2 << 30, resource.RLIM_INFINITY))

    def same(said: str, gold: str) -> bool:
        left, right = (parse(f"\\boxed{{{text}}}", parsing_timeout=None) for text in (gold, said))
        return bool(verify(left, right, timeout_seconds=None))

    out, sys.stdout = sys.stdout, sys.stderr
    print(same("\\frac12", "0.5"), file=out, flush=True)  # ready: the slow first parse is behind it
    for line in sys.stdin:
        # Its default effect is the end of the process, at once, whatever it is in the middle of.
        signal.setitimer(signal.ITIMER_PROF, cpu_seconds)
        try:
            verdict = same(*json.loads(line))
        except Exception:  # whatever text it can't bear is no answer
            verdict = False
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(json.dumps(verdict), file=out, flush=True)


if __name__ == "__main__":
    _compare_what_comes(float(sys.argv[1]))
