"""Every plugin keeps its contract. Nothing is named here: a new file is held to it on the day it lands."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ponder.cli.check import check as check_plugin
from ponder.core import plugins
from ponder.runner.study import Study, built_in

EVERY = [(kind, name) for kind in plugins.KINDS for name in plugins.files(kind)]

README = Path(__file__).parent.parent / "README.md"


def readme_tree() -> list[str]:
    """The entries of `src/ponder` in the order in which the README shows them."""
    tree = re.search(r"```\nsrc/ponder/\n(.*?)```", README.read_text("utf-8"), re.DOTALL)
    assert tree
    return re.findall(r"^  ([\w.]+)/", tree[1], re.MULTILINE)


@pytest.mark.parametrize(("kind", "name"), EVERY)
def test_contract(kind: str, name: str) -> None:
    found, broken = check_plugin(f"{kind}/{name}")
    assert (found, broken) == (kind[:-1], [])


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
            backward += [(str(path), u) for u in used if u in order and order.index(u) > order.index(place)]
    assert backward == []


def test_listing_imports_no_plugin() -> None:
    code = """
import sys
from ponder.core import plugins
from ponder.runner import study
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
from ponder.runner import run, store, study
import ponder.models.endpoint, ponder.tasks.tents
heavy = {"numpy", "altair", "jinja2", "vl_convert", "torch", "polars"} & set(sys.modules)
sys.exit(f"loaded {heavy}" if heavy else 0)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("kind", ["task", "model", "cache", "method", "figure"])
def test_scaffold_passes(kind: str, tmp_path: Path) -> None:
    from ponder.cli.scaffold import scaffold

    path = scaffold(kind, f"my_new_{kind}", tmp_path)
    assert check_plugin(str(path)) == (kind, [])


def test_a_broken_task_is_found_out(tmp_path: Path) -> None:
    from ponder.cli.scaffold import scaffold

    path = scaffold("task", "broken_task", tmp_path)
    text = path.read_text().replace("correct = said == problem.gold", "correct = True")
    path.write_text(text.replace("said is None", "said is None and answer == '9'"))
    _, broken = check_plugin(str(path))
    assert any("junk" in b or "raised" in b for b in broken)
