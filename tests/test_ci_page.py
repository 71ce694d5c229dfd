"""docs/ci.md does what it says: its commands print what it quotes, and its workflow's steps gate."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from xml.etree import ElementTree

import pytest
import yaml

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "ci.md").read_text("utf-8")
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", PAGE, re.DOTALL)


def block(language: str, start: str = "") -> str:
    """Return the first code block of a language that starts so."""
    return next(text for kind, text in BLOCKS if kind == language and text.startswith(start))


def changed(setting: str) -> str:
    """Return the page's study with a setting of its model changed or added."""
    key = setting.partition(" = ")[0]
    study, found = re.subn(rf"^{key} = .*$", setting, block("toml"), flags=re.MULTILINE)
    return study if found else study.replace("steepness", f"{setting}\nsteepness")


@pytest.fixture(scope="module")
def main_branch(tmp_path_factory) -> Path:
    """A folder with the study and its baseline, made by the page's commands."""
    folder = tmp_path_factory.mktemp("main")
    (folder / "gate.toml").write_text(block("toml"), "utf-8")
    bin_folder = tmp_path_factory.mktemp("bin")
    command = bin_folder / "ponder"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m ponder "$@"\n', "utf-8")
    command.chmod(0o755)
    os.environ["PATH"] = f"{bin_folder}:{os.environ['PATH']}"
    lines = block("", "$ ponder run").splitlines()
    for line, printed in zip(lines[::2], lines[1::2], strict=True):
        done = shell(line.removeprefix("$ "), folder)
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip() == printed
    (folder / "ponder.db").unlink()
    return folder


def shell(script: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a script as GitHub runs the `run` of a step."""
    words = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script]
    environment = {**os.environ, **variables}
    return subprocess.run(
        words, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def clone(main_branch: Path, folder: Path, study: str) -> Path:
    """Copy the branch into an empty folder, with another study."""
    (folder / "gate.toml").write_text(study, "utf-8")
    (folder / "baseline.json").write_bytes((main_branch / "baseline.json").read_bytes())
    return folder


def test_the_quoted_outputs_are_those_of_the_commands(main_branch: Path, tmp_path: Path) -> None:
    quoted = [text for kind, text in BLOCKS if not kind and "The gate" in text]
    command = quoted[0].splitlines()[0].removeprefix("$ ")
    for setting, text in zip(("tokens_per_size = 45", "critical_size = 10"), quoted, strict=True):
        assert setting in PAGE
        folder = tmp_path / setting.split()[0]
        folder.mkdir()
        done = shell(command, clone(main_branch, folder, changed(setting)))
        assert done.stdout.endswith(text.partition("…\n")[2])
    (mismatch,) = [text for kind, text in BLOCKS if not kind and "other problems" in text]
    command, *message = mismatch.splitlines()
    done = shell(command.removeprefix("$ "), folder)
    assert done.returncode == 2
    assert done.stderr.splitlines() == message


@pytest.mark.parametrize(
    ("setting", "code", "word"),
    [("critical_size = 12", 0, "passes"), ("critical_size = 9", 1, "fails: `worse`"),
     ("tokens_per_size = 80", 1, "fails: `tokens > +10%`")],
)  # fmt: skip
def test_the_steps_of_the_workflow(
    main_branch: Path, tmp_path: Path, setting: str, code: int, word: str
) -> None:
    workflow = yaml.safe_load(block("yaml"))
    (job,) = workflow["jobs"].values()
    scripts = [step["run"] for step in job["steps"] if "run" in step]
    install = scripts.pop(0)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["name"]
    assert install == f"pip install {project}"
    folder = clone(main_branch, tmp_path, changed(setting))
    summary = tmp_path / "summary.md"
    codes = []
    for script in scripts:
        done = shell(script, folder, GITHUB_STEP_SUMMARY=str(summary))
        codes.append(done.returncode)
        if done.returncode:
            break
    assert codes[-1] == code, done.stderr
    assert f"The gate {word}" in done.stdout
    assert summary.read_text("utf-8").startswith(f"**The gate {word}")
    suite = ElementTree.parse(folder / "gate.xml").getroot()[0]
    assert suite.get("tests") == "2"
    assert bool(suite.findall(".//failure")) == bool(code)
    kept = job["steps"][-1]["with"]["path"].split()
    assert all((folder / name).exists() for name in kept)
