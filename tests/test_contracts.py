"""Every plugin passes `ponder check`, and runs when it does: a new file is checked on the day it
lands.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from engines import fake_vllm

from ponder import Study
from ponder.cli import check
from ponder.cli.plugin import scaffold
from ponder.core import UserError, plugins
from ponder.study.study import built_in

EVERY = [(kind, name) for kind in plugins.KINDS for name in plugins.files(kind)]

README = Path(__file__).parent.parent / "README.md"


def readme_tree() -> list[str]:
    """The entries of `src/ponder` in the order in which the README shows them."""
    tree = re.search(r"```\nsrc/ponder/\n(.*?)```", README.read_text("utf-8"), re.DOTALL)
    assert tree
    return re.findall(r"^  ([\w.]+)/", tree[1], re.MULTILINE)


def stand_in(kind: str, name: str, folder: Path, serve: Callable[..., Any]) -> list[str]:
    """Settings under which a plugin runs here whose server or weights are elsewhere."""
    if name == "vllm":
        return [f"python={fake_vllm(folder)}"]
    if kind == "models":
        return [f"url={serve().url}"]
    from reward_cases import CASES, RlhflowCase
    from safetensors.torch import save_file
    from torch import randn

    CASES.get(name, RlhflowCase)(folder)
    if name not in CASES:  # heads as `ponder prepare reward` adds them to any language model
        save_file({"weight": randn(2, 32), "bias": randn(2)}, folder / "heads.safetensors")
    return [f"id={folder}"]


@pytest.mark.parametrize(("kind", "name"), EVERY)
def test_contract(kind: str, name: str, tmp_path: Path, serve) -> None:
    result = check.check(kind, name)
    if result.outcome == "not run":
        result = check.check(kind, name, stand_in(kind, name, tmp_path, serve))
    assert (result.outcome, result.text()) == (
        "passed",
        f"{plugins.KINDS[kind].noun} {name}: passed",
    )


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("endpoint", "no connection to http://127.0.0.1:9"),
        ("qwen", "there is no folder folder-of-weights"),
        ("replay", "none.jsonl"),
        ("compress", "`rkw` is unknown"),
    ],
)
def test_what_could_not_be_run_does_not_pass(ponder, name: str, why: str) -> None:
    settings = {
        "endpoint": "url=http://127.0.0.1:9",
        "replay": "file=none.jsonl",
        "compress": "policy=rkw",
    }
    more = ["--set", settings[name]] if name in settings else []
    result = ponder("check", name, *more)
    assert result.exit_code == 3
    assert "could not be run" in result.stdout
    assert why in result.stdout
    assert "passed" not in result.stdout
    assert json.loads(ponder("check", name, *more, "--json").stdout)["outcome"] == "not run"


@pytest.mark.parametrize("name", built_in())
def test_built_in_studies_load(name: str) -> None:
    study = Study.load(name)
    assert study.cells
    assert study.figures
    assert study.question


def test_the_readme_tree_is_the_package() -> None:
    there = {p.name for p in plugins.HERE.iterdir() if not p.name.startswith("__")}
    assert set(readme_tree()) == there - {"py.typed"}


def test_a_file_imports_only_from_what_stands_above_it() -> None:
    order = readme_tree()
    backward = []
    for path in plugins.HERE.glob("*/**/*.py"):
        place = path.relative_to(plugins.HERE).parts[0]
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Import):
                modules = [name.name for name in node.names]
            elif isinstance(node, ast.ImportFrom):
                modules = [f"{node.module}.{name.name}" for name in node.names]
            else:
                continue
            used = [m.split(".")[1] for m in modules if m.startswith("ponder.")]
            backward += [
                (str(path), u) for u in used if u in order and order.index(u) > order.index(place)
            ]
    assert backward == []


def test_an_interface_fits_on_a_screen() -> None:
    contracts = [plugins.Plugin, *(kind.contract for kind in plugins.KINDS.values())]
    members = {
        c: [name for name in {**vars(c), **vars(c).get("__annotations__", {})} if name[0] != "_"]
        for c in contracts
    }
    assert all(len(names) <= 10 for names in members.values()), members
    assert sum(map(len, members.values())) <= 50


def test_listing_imports_no_plugin() -> None:
    code = """
import sys
from ponder.core import UserError, plugins
from ponder.study import study
listed = {kind: plugins.names(kind) for kind in plugins.KINDS}
assert listed["tasks"] and study.built_in()
heavy = {"numpy", "altair", "jinja2", "vl_convert", "torch", "aiohttp", "reasoning_gym", "polars"}
loaded = heavy & set(sys.modules) | {m for m in sys.modules if m.startswith("ponder.tasks.")}
sys.exit(f"loaded {loaded}" if loaded else 0)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_asking_an_endpoint_loads_no_numpy() -> None:
    code = """
import sys
from ponder import cli
from ponder.run import run
from ponder.store import store
from ponder.study import study
import ponder.models.endpoint, ponder.tasks.tents
heavy = {"numpy", "altair", "jinja2", "vl_convert", "torch", "polars"} & set(sys.modules)
sys.exit(f"loaded {heavy}" if heavy else 0)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("kind", plugins.KINDS)
def test_scaffold_passes(kind: str, tmp_path: Path) -> None:
    path = scaffold(plugins.KINDS[kind].singular, f"my_new_{kind}", tmp_path)
    result = check.check("", str(path))
    assert result == check.Result(f"{plugins.KINDS[kind].noun} {path}", [])
    assert plugins.load(kind, str(path), Path()).__name__ == "MyNew" + kind.title().replace("_", "")
    assert f"`my_new_{kind}`: say here" in plugins.summary(path)  # it is about what the user writes
    assert "mine" not in path.read_text("utf-8").lower().replace("my_new", "")


# One fault per line of the interface: what is put into a scaffold, and what `check` must say about
# it.
FAULTS = [
    ("task", '"""Asks `', '"""Asks, `\n\n', "must begin with one whole sentence"),
    ("task", "default_sizes = (2, 4, 8)", "default_sizes = ()", "which sizes"),
    ("task", "random.Random(seed)", "random.Random()", "two different problems"),
    ("task", "Problem(text, size,", "Problem(text, 7,", "its size is 7"),
    ("task", "max(numbers))", "(max(numbers),))", "changes when it is stored"),
    (
        "task",
        "correct = parsed == problem.gold",
        "correct = parsed != problem.gold",
        "own solution is graded wrong",
    ),
    (
        "task",
        "correct = parsed == problem.gold",
        "correct = True",
        "any other problem is graded right",
    ),
    ("task", "correct=False, why", "correct=True, why", "must be graded wrong"),
    ("task", 'why="no number"', 'why=""', "with a reason"),
    ("task", "final_number(answer)", "answer.split()[0]", "raised IndexError"),
    (
        "task",
        "random.Random(seed)",
        "random.Random(seed % 12)",
        "neighbouring seeds share problems",
    ),
    ("model", "async def complete", "def complete", "must be `async def`"),
    ("model", "words: int = 3", "concurrency: int = 0\n    words: int = 3", "at least 1"),
    ("model", "words: int = 3", 'title = lambda self: ""\n    words: int = 3', "for legends"),
    (
        "model",
        "        return Completion(",
        "        return answer or Completion(",
        "must return a Completion",
    ),
    ("model", "Bill(prompt_tokens, 0, self.words", "Bill(0, 0, 0", "must have a bill"),
    (
        "model",
        "answer = ",
        "answer = 1 / 0 or ",
        "raised ZeroDivisionError('division by zero') in complete",
    ),
    ("policy", "norms: Tensor = ", "norms: Tensor = float('nan') * ", "finite numbers"),
    ("policy", "dim=-1)", "dim=(1, 3))", "not (2, 24)"),
    ("policy", "dim=-1)", "dim=-1) - view.values.norm()", "other rows of its batch"),
    (
        "reward",
        "Scores(tuple(self._new(",
        "Scores(tuple(2 * x for x in self._new(",
        "an ordinary trace is not scored",
    ),
    ("reward", "trace.part(self.of)", "trace.part(self.of)[1:]", "returned 2 scores for 3 steps"),
    (
        "reward",
        "for trace in traces]",
        "for trace in [traces[0], *traces[:-1]]]",
        "the traces next to it",
    ),
    (
        "reward",
        "trace.part(self.of))))",
        "trace.part(self.of))) if len(traces) > 1 else ())",
        "the traces next to it",
    ),
    ("reward", "earlier_words |= words", "raise UserError", "raised NameError"),
    ("length_reward", "reward = 0.0\n", "reward = 0.1\n", "a wrong answer must not be rewarded"),
    ("length_reward", "1 - length / mean", "float('inf')", "one finite number per sample"),
    (
        "method",
        "return _Told(model, self.instruction)",
        "return self.instruction",
        "must return a model",
    ),
    (
        "method",
        "super().__init__(inner)",
        "super().__init__(inner)\n        self.concurrency = 0",
        "concurrency",
    ),
    (
        "method",
        "super().__init__(inner)",
        "super().__init__(inner)\n        self.prices = 3",
        "keep the prices",
    ),
    (
        "figure",
        "for series, attempts in by_series(outcomes)",
        "for series, attempts in [(outcomes[0].problem, outcomes)]",
        "order",
    ),
    ("figure", "size=row.size,", "size=(row.size,),", "plain values"),
    (
        "figure",
        "by_series(outcomes)",
        "by_series([o._replace(cell=outcomes[0].cell) for o in outcomes])",
        "pools attempts of different settings",
    ),
    ("figure", 'tables["sizes"]', 'tables["size"]', "raised KeyError('size') in draw"),
]


@pytest.mark.parametrize(("kind", "right", "wrong", "message"), FAULTS)
def test_faults_are_found(kind: str, right: str, wrong: str, message: str, tmp_path: Path) -> None:
    number = next(n for n, fault in enumerate(FAULTS) if fault == (kind, right, wrong, message))
    path = scaffold(kind, f"fault_{number}", tmp_path)
    source = path.read_text("utf-8")
    assert right in source
    path.write_text(source.replace(right, wrong, 1), "utf-8")
    result = check.check("", str(path))
    assert result.outcome == "failed"
    assert any(message in failure for failure in result.failures), result.text()


@pytest.mark.parametrize(
    ("kind", "before", "method", "capability"),
    [
        ("method", "    def apply(", "make", "Prepared"),
        ("task", "    def solve(", "same_answer", "ComparesAnswers"),
    ],
)
def test_a_method_that_nothing_would_call_is_refused(
    kind, before, method, capability, tmp_path: Path
) -> None:
    path = scaffold(kind, f"without_{capability.lower()}", tmp_path)
    source = path.read_text("utf-8")
    path.write_text(
        source.replace(before, f"    def {method}(self, *_):\n        return ()\n\n{before}", 1),
        "utf-8",
    )
    with pytest.raises(UserError, match=f"defines `{method}`, but doesn't inherit `{capability}`"):
        check.check("", str(path))


def test_a_failure_exits_with_1(ponder) -> None:
    ponder("new", "task", "failing_task")
    Path("failing_task.py").write_text(
        Path("failing_task.py").read_text().replace("(2, 4, 8)", "()")
    )
    result = ponder("check", "./failing_task.py")
    assert result.exit_code == 1
    assert result.stdout.startswith("task ./failing_task.py: it must say which sizes")


def test_checking_needs_no_particular_model() -> None:
    """No file of the command line names the model that ships."""
    for path in (plugins.HERE / "cli").rglob("*.py"):
        assert "pocket" not in path.read_text("utf-8"), path
