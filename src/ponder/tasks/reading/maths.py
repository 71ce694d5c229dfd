"""Compares mathematical answers with math-verify, in a subprocess."""

from __future__ import annotations

import importlib.util
import re
from functools import lru_cache

from ponder.core import UserError
from ponder.tasks.reading.values import TOO_LONG, number
from ponder.tasks.subprocess_call import CallFailed, SubprocessFunction, serve


def differs(answer: str, gold: str) -> str:
    """Return why two final answers are not mathematically equal; "" if they are."""
    answer, gold = map(_latex, (answer, gold))
    first, second = number(answer), number(gold)
    # fast, and exact: math-verify rounds to six decimals
    if first is not None and second is not None:
        return "" if first == second else "wrong answer"
    if " ".join(answer.split()) == " ".join(gold.split()):
        return ""
    return "wrong answer" if len(answer) > TOO_LONG else _differs(answer, gold)


def _latex(text: str) -> str:
    """Unicode as LaTeX: √3 and π/2, which math-verify doesn't read."""
    if text.isascii():
        return text
    text = re.sub(r"√\(([^()]*)\)|√(\w+)", lambda root: f"\\sqrt{{{root[1] or root[2]}}}", text)
    return text.translate(_SYMBOLS)


_SYMBOLS = str.maketrans(
    {
        "π": "\\pi ",
        "−": "-",
        "×": "\\times ",
        "·": "\\cdot ",
        "²": "^2",
        "³": "^3",
        "∞": "\\infty ",
        "≤": "\\le ",
        "≥": "\\ge ",
        "°": "^\\circ ",
    }
)


@lru_cache(4096)  # a hundred attempts at a problem give only a few different answers
def _differs(answer: str, gold: str) -> str:
    need_maths()
    return _math_verify.differs(answer, gold)


def need_maths() -> None:
    """Raise `UserError` if math-verify isn't installed."""
    if importlib.util.find_spec("math_verify") is None:
        message = "comparing mathematical answers needs a package that isn't installed: math-verify"
        raise UserError(message, hint="pip install 'ponder-lab[maths]'")


class MathVerify(SubprocessFunction):
    """Runs math-verify in a subprocess. Its own timeouts use alarms."""

    def __init__(self, cpu_seconds: float = 3.0) -> None:
        super().__init__("ponder.tasks.reading.maths", cpu_seconds)

    def differs(self, answer: str, gold: str) -> str:
        try:
            return "" if self.call(answer, gold) else "wrong answer"
        except CallFailed as failed:
            return "took too long" if str(failed) == "took too long" else "can't be compared"


_math_verify = MathVerify()


def _serve() -> None:
    import logging

    from math_verify import parse, verify

    logging.disable()  # it warns that its own timeouts are off

    def same(answer: str, gold: str) -> bool:
        try:
            first, second = (
                parse(f"\\boxed{{{text}}}", parsing_timeout=None) for text in (gold, answer)
            )
            return bool(verify(first, second, timeout_seconds=None))
        except Exception:  # text that math-verify can't handle is not a right answer
            return False

    same("\\frac12", "0.5")  # the first parse is slow, and its time doesn't count
    serve(same)


if __name__ == "__main__":
    _serve()
