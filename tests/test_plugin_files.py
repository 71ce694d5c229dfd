"""A plugin with a mistake in it is refused with the place and the reason, and without a traceback."""

from __future__ import annotations

import tomllib
from itertools import count
from pathlib import Path

import pytest

from ponder.core import plugins

NUMBERS = count()
HEAD = '"""Asks."""\nfrom dataclasses import dataclass\nfrom ponder.core import Figure, Grade, Problem, Task\n\n'
BODY = """
    default_sizes = (2,)
    def problem(self, size, seed): return Problem(str(seed), size, ("?",), 1)
    def solve(self, problem): return "1"
    def grade(self, problem, answer): return Grade(answer == "1", answer, "" if answer == "1" else "no")
"""
CLASS = "@dataclass(frozen=True)\nclass Mine(Task):\n"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("class Mine(Task:\n", "BAD.py:1: it can't be imported: SyntaxError: "),
        ("x = 1\n\nraise RuntimeError('no \x1b[31mred')\n", "BAD.py:3: it can't be imported: RuntimeError: no \\x1b[31mred"),
        ("def f():\n  return 1 / 0\nf()\n", "BAD.py:2: it can't be imported: ZeroDivisionError"),
        ("from ponder.core import Tsk\n", "BAD.py:1: it can't be imported: ImportError: cannot import name 'Tsk'"),
        ("import nothing_of_the_kind\n", "needs a package that isn't installed: nothing_of_the_kind\nhint: pip install"),
        ("import torch.nothing\n", "needs a package that isn't installed: torch.nothing\nhint: pip install 'ponder-lab[torch]'"),
        (f"{HEAD}{CLASS}    def problem(self, size, seed): ...\n", "task `./BAD.py` lacks `grade`, `solve`, which every task has"),
        (f"{HEAD}class Mine(Task):{BODY}", "must be a dataclass\nhint: write @dataclass(frozen=True) above `class Mine`"),
        (f"{HEAD}{CLASS}    n: int = 3{BODY}    def __post_init__(self): raise ValueError('n is odd')\n", "task `./BAD.py`: n is odd"),
        (HEAD, "must define one subclass of Task, not 0"),
        ("\x00", "BAD.py"),
    ],
)  # fmt: skip
def test_a_task_with_a_mistake(ponder, write, source, message) -> None:
    name = f"bad_{next(NUMBERS)}.py"  # a module's name is taken once it is loaded
    write(name, source)
    write("s.toml", f'[[task]]\nname = "./{name}"\n[[model]]\nname = "oracle"\n')
    result = ponder("plan", "s.toml")
    assert result.exit_code == 2
    assert message.replace("BAD.py", name) in result.stderr
    assert "Traceback" not in result.output
    assert "\x1b" not in result.output


@pytest.mark.parametrize("verb", ["show", "check"])
def test_the_same_without_a_study(ponder, write, verb) -> None:
    write(f"bad_{verb}.py", "class Mine(Task:\n")
    assert f"bad_{verb}.py:1: it can't be imported" in ponder(verb, f"./bad_{verb}.py").stderr
    write(f"lacking_{verb}.py", f"{HEAD}{CLASS}    def problem(self, size, seed): ...\n")
    assert "lacks `grade`, `solve`" in ponder(verb, f"./lacking_{verb}.py").stderr
    assert ponder(verb, "./none.py").stderr.startswith("there is no file ")


def test_a_plugin_without_docstrings_works(ponder, write) -> None:
    write("terse.py", HEAD.partition("\n")[2] + CLASS + BODY)
    assert "terse" in ponder("show", "./terse.py").stdout
    checked = ponder("check", "./terse.py")
    assert checked.exit_code == 1
    assert "the file's docstring must begin with one whole sentence" in checked.stdout


def test_a_path_in_a_study_is_relative_to_the_study(ponder, folder, write) -> None:
    (folder / "sub").mkdir()
    write("sub/s.toml", '[[task]]\nname = "./none.py"\n[[model]]\nname = "oracle"\n')
    assert (
        "none.py\nhint: a path is relative to the study's folder"
        in ponder("plan", "sub/s.toml").stderr
    )


EXTRA_PACKAGES = [
    (extra, package) for extra, packages in plugins.EXTRAS.items() for package in packages
]


@pytest.mark.parametrize(("extra", "package"), EXTRA_PACKAGES)
def test_a_missing_package_names_the_extra_that_installs_it(extra, package) -> None:
    error = plugins.not_installed(ModuleNotFoundError(name=f"{package}.part"), "this")
    assert error.hint == f"pip install 'ponder-lab[{extra}]'"


def test_extras_are_those_of_the_package() -> None:
    content = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text("utf-8"))
    declared = content["project"]["optional-dependencies"]
    assert set(plugins.EXTRAS) == set(declared) - {"dev"}
    for extra, (first, *_) in (("gym", plugins.EXTRAS["gym"]), ("maths", plugins.EXTRAS["maths"])):
        assert declared[extra][0].startswith(first.replace("_", "-"))
