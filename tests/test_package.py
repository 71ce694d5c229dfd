"""What users install: the wheel and the source archive hold everything, and the wheel works in an
empty environment.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def run(*command: str | Path, cwd: Path = ROOT) -> str:
    # Without PYTHONPATH, so that what is installed is what runs.
    env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        [str(c) for c in command], cwd=cwd, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the built wheel and source archive."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT)
    return folder


def test_twine_accepts_both(dist: Path) -> None:
    files = sorted(dist.iterdir())
    assert [f.suffix for f in files] == [".whl", ".gz"]
    run(sys.executable, "-m", "twine", "check", "--strict", *files)


def test_the_wheel_holds_every_file_of_the_package(dist: Path) -> None:
    (wheel,) = dist.glob("*.whl")
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("ponder/")}
    tracked = run("git", "ls-files", "src/ponder").split()
    assert packed == {name.removeprefix("src/") for name in tracked if (ROOT / name).is_file()}
    assert wheel.stat().st_size < 15e6


def test_the_source_archive_can_test_itself(dist: Path) -> None:
    (archive,) = dist.glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        names = {name.partition("/")[2] for name in packed.getnames()}
    assert {
        "Makefile",
        "constraints.txt",
        "CHANGELOG.md",
        "tests/conftest.py",
        "docs/make_reference.py",
    } <= names


def test_the_wheel_works_in_an_empty_environment(dist: Path, tmp_path: Path) -> None:
    (wheel,) = dist.glob("*.whl")
    run(sys.executable, "-m", "venv", tmp_path / "venv")
    pip = [
        tmp_path / "venv/bin/python",
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
    ]
    run(*pip, "-c", ROOT / "constraints.txt", wheel)
    ponder = tmp_path / "venv/bin/ponder"
    assert {"tents", "execution"} <= set(
        json.loads(run(ponder, "list", "tasks", "--json", cwd=tmp_path))["tasks"]
    )
    small = ["--set", "task.size=[16, 20]", "--set", "problems=3"]
    run(ponder, "run", "effort", *small, cwd=tmp_path)
    run(ponder, "report", "effort", *small, cwd=tmp_path)
    assert (tmp_path / "reports/effort/effort.pdf").read_bytes().startswith(b"%PDF")
