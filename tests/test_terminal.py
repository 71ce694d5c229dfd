"""What reaches a terminal: no control characters, hints that repeat the options, and no traceback
for a mistake.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import click
import msgspec
import pytest
from click.testing import CliRunner

from ponder.cli.options import Verbs, columns, command
from ponder.core import UserError
from ponder.core.text import as_json, count, number, plain, printable
from ponder.figures import span

EVIL = "a\x1b[2Jb\x9b31m\x7f\x00\r\u202eabc\u2066\u2028\ud800é\n\tend"
SAFE = "a\\x1b[2Jb\\x9b31m\\x7f\\x00\\r\\u202eabc\\u2066\\u2028\\ud800é\n\tend"
GOOD = 'problems = 3\n[[task]]\nname = "chain_sum"\nsize = [2, 4]\n[[model]]\nname = "oracle"\n[[figure]]\nname = "accuracy"\n'


def test_control_characters_are_shown_escaped() -> None:
    assert printable(EVIL) == SAFE
    assert columns([["x", EVIL.partition("\n")[0]]]) == f"x  {SAFE.partition(chr(10))[0]}"
    assert json.loads(as_json({"a": EVIL})) == {"a": EVIL}
    assert not re.search(
        "[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e\u2028\ud800]", as_json([EVIL], indent=1)
    )


def test_no_escape_sequence_of_a_study_or_a_plugin_is_printed(ponder, write) -> None:
    label = json.dumps("red \x1b[31m\u202e")
    write("s.toml", GOOD.replace('"oracle"', f'"oracle"\nlabel = {label}'))
    write("loud.py", 'from ponder.core import UserError\nraise UserError("\\x1b]0;title\\x07")\n')
    for words in (
        ["plan", "s.toml"],
        ["plan", "s.toml", "--json"],
        ["show", "s.toml"],
        ["check", "./loud.py"],
    ):
        result = ponder(*words)
        assert "\x1b" not in result.output
        assert "\u202e" not in result.output
        assert "\\x1b" in result.output or "\\u001b" in result.output


@pytest.mark.parametrize(
    ("kind", "value", "words"),
    [
        (int | None, "x", "expected a whole number, not text"),
        (float, "x", "expected a number, not text"),
        (str, 3, "expected text, not a whole number"),
        (bool, 3, "expected true or false, not a whole number"),
        (int | str, [], "expected a whole number or text, not a list"),
        (tuple[int, ...], {}, "expected a list, not a table"),
        (list[int], [1, "x"], "[1]: expected a whole number, not text"),
    ],
)
def test_types_in_plain_words(kind, value, words) -> None:
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.convert(value, kind)
    assert plain(caught.value) == words


def test_counts() -> None:
    assert [count(n, "attempt") for n in (0, 1, 2000)] == [
        "0 attempts",
        "1 attempt",
        "2,000 attempts",
    ]
    assert count(2, "policy") == "2 policies"


def test_thousands_have_no_exponent() -> None:
    assert [number(n) for n in (0.012345, 41.26, 999.4, 999.6, 1190.4, 1234567)] == [
        "0.0123", "41.3", "999", "1,000", "1,190", "1,234,567"
    ]  # fmt: skip
    assert span({"e": 1190.4, "e_low": 998.0, "e_high": None}, "e") == "1,190 [998, no upper bound]"


def test_a_command_in_a_hint_has_the_options_that_were_given(ponder, write) -> None:
    write("s.toml", GOOD)
    given = ["--set", "task.size=[2, 4]", "--set", "seed=7"]
    same = "--set 'task.size=[2, 4]' --set seed=7"
    for verb in ("report", "export", "regrade"):
        text = ponder(verb, "s.toml", *given, "--store", "my.db").stderr
        assert f"`ponder run s.toml {same} --store my.db` creates one" in text
    ponder("run", "s.toml", "--set", "seed=1")
    for verb in ("report", "export"):
        assert (
            f"hint: run it first: ponder run s.toml {same}\n"
            in ponder(verb, "s.toml", *given).stderr
        )
    assert command("run", "a b.toml", [], Path("ponder.db")) == "ponder run 'a b.toml'"


@pytest.mark.parametrize("out", ["file", "file/below", "/proc/none"])
def test_a_report_to_a_bad_place(ponder, write, out) -> None:
    write("file", "")
    ponder("run", write("s.toml", GOOD))
    result = ponder("report", "s.toml", "-o", out)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"can't write to {out}: ")
    assert "hint: -o FOLDER" in result.stderr


def test_a_store_that_is_a_folder(ponder, folder, write) -> None:
    (folder / "d").mkdir()
    for verb in ("plan", "run", "report", "export", "regrade"):
        result = ponder(verb, write("s.toml", GOOD), "--store", "d")
        assert result.exit_code == 2
        assert "'--store': File 'd' is a directory" in result.stderr


def _ended(error: BaseException) -> tuple[int, str]:
    @click.group(cls=Verbs)
    def main() -> None: ...

    @main.command()
    def verb() -> None:
        raise error

    result = CliRunner().invoke(main, ["verb"], catch_exceptions=True)
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stderr


def test_how_a_command_ends() -> None:
    assert _ended(UserError("no\x1b", hint="yes")) == (2, "no\\x1b\nhint: yes\n")
    assert _ended(KeyboardInterrupt()) == (130, "interrupted\n")
    assert _ended(PermissionError(13, "Permission denied", "/a")) == (
        2,
        "can't use /a: Permission denied\n",
    )
    missing = ModuleNotFoundError("No module named 'torch.nn'", name="torch.nn")
    assert _ended(missing) == (
        2,
        "this needs a package that isn't installed: torch.nn\nhint: pip install 'ponder-lab[torch]'\n",
    )


@pytest.mark.parametrize(
    "error",
    [RuntimeError("x"), OSError("x"), ModuleNotFoundError("x", name="ponder.x"), KeyError("x")],
)
def test_a_bug_keeps_its_traceback_and_asks_for_a_report(error) -> None:
    with pytest.raises(type(error)) as caught:
        _ended(error)
    assert "please report the lines above" in caught.value.__notes__[0]


def test_prepare_with_nothing_to_make(ponder, write) -> None:
    result = ponder("prepare", write("s.toml", GOOD))
    assert (result.exit_code, result.stdout) == (0, "")
    assert "nothing to make: no model of s.toml has methods" in result.stderr


def test_an_incomplete_study_says_so(ponder, write) -> None:
    write("s.toml", GOOD)
    ponder("run", "s.toml")
    whole = ponder("report", "s.toml", "--json")
    assert json.loads(whole.stdout)["complete"] is True
    assert "incomplete" not in whole.stderr
    assert "This study is incomplete" not in Path("reports/s/report.html").read_text()
    part = ponder("report", "s.toml", "--set", "problems=10", "--json")
    data = json.loads(part.stdout)
    assert {k: data[k] for k in ("complete", "asked", "answered", "failed")} == {
        "complete": False,
        "asked": 20,
        "answered": 6,
        "failed": 0,
    }
    assert (
        "incomplete: 6 of 20 attempts answered; to go on: ponder run s.toml --set problems=10\n"
        in part.stderr
    )
    page = Path("reports/s/report.html").read_text()
    assert (
        "This study is incomplete: 6 of 20 attempts answered."
        in page.partition('<section class="top">')[2]
    )


def test_a_task_with_fewer_problems_than_wanted_is_not_incomplete(ponder, write) -> None:
    write(
        "s.toml",
        GOOD.replace("size = [2, 4]", "size = 2\ndigits = 1").replace(
            "problems = 3", "problems = 500"
        ),
    )
    ponder("run", "s.toml")
    report = json.loads(ponder("report", "s.toml", "--json").stdout)
    assert report["complete"] is True
    assert 100 < report["asked"] == report["answered"] < 500


def test_a_run_that_chooses_the_sizes_asks_for_what_it_asked(ponder, write) -> None:
    study = GOOD.replace('name = "chain_sum"\nsize = [2, 4]', 'name = "execution"\nper_turn = 0')
    write("s.toml", study.replace("problems = 3\n", 'stop = { goal = "max_size", largest = 8 }\n'))
    ponder("run", "s.toml")
    report = json.loads(ponder("report", "s.toml", "--json").stdout)
    assert report["complete"] is True
    assert 0 < report["asked"] == report["answered"]
