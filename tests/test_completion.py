"""The shell completes commands, studies, kinds, plugins and files, and loads nothing heavy for it."""

from __future__ import annotations

import subprocess
import sys

import pytest
from click.shell_completion import BashComplete, get_completion_class

from ponder.cli import main


@pytest.fixture
def completed(folder, write):
    write("mine.toml", "")
    write("mine.py", "")
    (folder / "more").mkdir()
    write("more/two.toml", "")

    def complete(*words: str) -> list[str]:
        *before, last = words
        return [
            item.value
            for item in BashComplete(main, {}, "ponder", "_X").get_completions(before, last)
        ]

    return complete


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["sh"], {"show"}),
        (["run", "effo"], {"effort", "effort-paper", "effort-smollm2"}),
        (["run", "mi"], {"mine.toml"}),
        (["report", "mo"], {"more/"}),
        (["report", "more/"], {"more/two.toml"}),
        (["prepare", "long2short-"], {"long2short-paper", "long2short-smollm2"}),
        (["prepare", "mod"], {"model"}),
        (["prepare", "model", "selection-"], {"selection-paper", "selection-smollm2"}),
        (["list", "po"], {"policies"}),
        (["new", "length"], {"length_reward"}),
        (["show", "figu"], {"figure"}),
        (["show", "policy", "orac"], {"oracle"}),
        (["show", "study", "effo"], {"effort", "effort-paper", "effort-smollm2"}),
        (["show", "nokind", "e"], set()),
        (["show", "mine"], {"mine.py", "mine.toml"}),
        (["check", "mine"], {"mine.py"}),
        (["check", "policies", "snap"], {"snapkv"}),
        (["score", "x.jsonl", "--reward", "shep"], {"shepherd"}),
        (["export", "effort", "--format", "in"], {"inspect"}),
        (["run", "away/"], set()),
    ],
)
def test_words(completed, words, expected) -> None:
    assert set(completed(*words)) == expected


def test_summaries_stand_beside_names(completed) -> None:
    (item,) = get_completion_class("zsh")(main, {}, "ponder", "_X").get_completions(
        ["show", "policy"], "orac"
    )  # type: ignore[misc]
    assert item.help.startswith("Evicts")


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_the_script_of_a_shell(ponder, shell) -> None:
    text = ponder("completion", shell).stdout
    assert "_PONDER_COMPLETE" in text
    assert f"{shell}_complete" in text


def test_bash_completes(folder) -> None:
    script = 'eval "$(python -c "from ponder.cli import main; main()" completion bash)"; complete -p ponder'
    path = f"{sys.executable.rpartition('/')[0]}:/usr/bin:/bin"
    done = subprocess.run(
        ["bash", "-c", f"PATH={path}; {script}"], capture_output=True, text=True, check=False
    )
    assert "-F _ponder_completion ponder" in done.stdout, done.stderr


def test_a_key_press_loads_nothing_heavy() -> None:
    code = """
import sys
from click.shell_completion import BashComplete
from ponder.cli import main
for words in (["run"], ["show"], ["show", "policy"], ["check"], ["list"], ["score", "x", "--reward"]):
    assert BashComplete(main, {}, "ponder", "_X").get_completions(words, ""), words
heavy = {"numpy", "altair", "torch", "aiohttp", "jinja2", "reasoning_gym"} & set(sys.modules)
sys.exit(f"loaded {heavy}" if heavy else 0)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
