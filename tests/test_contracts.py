"""Every plugin keeps its contract. Nothing is named here: a new file is held to it on the day it lands."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from ponder import check, plugins
from ponder.study import Study, built_in

EVERY = [(kind, name) for kind in plugins.CONTRACTS for name in plugins.files(kind)]

# The pipeline from left to right: a file imports only from what stands before it.
ORDER = [
    "core", "stats", "plugins", "answers", "tasks", "serve", "caches", "models", "traces", "rewards", "selection", "training", "lengths", "methods", "study", "store", "run", "fit", "plan", "progress",
    "vega", "figures", "report", "export", "describe", "check", "scaffold", "cli",
]  # fmt: skip


@pytest.mark.parametrize(("kind", "name"), EVERY)
def test_contract(kind: str, name: str) -> None:
    found, broken = check.check(f"{kind}/{name}")
    assert (found, broken) == (kind[:-1], [])


@pytest.mark.parametrize("name", built_in())
def test_built_in_studies_load(name: str) -> None:
    study = Study.load(name)
    assert study.cells
    assert study.figures
    assert study.question


def test_imports_point_left() -> None:
    package = plugins.HERE
    backward = []
    for path in package.rglob("*.py"):
        place = path.relative_to(package).parts[0].removesuffix(".py")
        if place == "__init__":
            continue
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "ponder":
                parts = (node.module or "").split(".")
                used = [parts[1]] if len(parts) > 1 else [a.name for a in node.names]
                backward += [(place, u) for u in used if u in ORDER and ORDER.index(u) > ORDER.index(place)]
    assert backward == []


def test_listing_imports_no_plugin() -> None:
    code = """
import sys
from ponder import plugins, study
listed = {kind: plugins.names(kind) for kind in plugins.CONTRACTS}
assert listed["tasks"] and study.built_in()
heavy = {"numpy", "altair", "resvg_py", "vl_convert", "torch", "aiohttp", "reasoning_gym", "polars"}
loaded = heavy & set(sys.modules) | {m for m in sys.modules if m.startswith("ponder.tasks.")}
sys.exit(f"loaded {loaded}" if loaded else 0)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_asking_an_endpoint_loads_no_numpy() -> None:
    code = """
import sys
from ponder import cli, run, store, study
import ponder.models.endpoint, ponder.tasks.tents
heavy = {"numpy", "altair", "resvg_py", "vl_convert", "torch", "polars"} & set(sys.modules)
sys.exit(f"loaded {heavy}" if heavy else 0)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("kind", ["task", "model", "cache", "method", "figure"])
def test_scaffold_passes(kind: str, tmp_path: Path) -> None:
    from ponder.scaffold import scaffold

    path = scaffold(kind, f"my_new_{kind}", tmp_path)
    assert check.check(str(path)) == (kind, [])


def test_a_broken_task_is_found_out(tmp_path: Path) -> None:
    from ponder.scaffold import scaffold

    path = scaffold("task", "broken_task", tmp_path)
    text = path.read_text().replace("correct = said == problem.gold", "correct = True")
    path.write_text(text.replace("said is None", "said is None and answer == '9'"))
    _, broken = check.check(str(path))
    assert any("junk" in b or "raised" in b for b in broken)
