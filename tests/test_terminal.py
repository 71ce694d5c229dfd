"""What reaches a terminal: no control characters, hints that repeat the options, and no traceback
for a mistake.
"""

from __future__ import annotations

import io
import json
import math
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import msgspec
import pytest
from click.testing import CliRunner

from ponder.cli import main
from ponder.cli.options import Verbs, command
from ponder.cli.output import bold, say, table
from ponder.core import UserError
from ponder.core.text import as_json, count, interval, number, plain, printable
from ponder.figures import span

EVIL = "a\x1b[2Jb\x9b31m\x7f\x00\r\u202eabc\u2066\u2028\ud800é\n\tend"
SAFE = "a\\x1b[2Jb\\x9b31m\\x7f\\x00\\r\\u202eabc\\u2066\\u2028\\ud800é\n\tend"
GOOD = 'problems = 3\n[[task]]\nname = "chain_sum"\nsize = [2, 4]\n[[model]]\nname = "oracle"\n[[figure]]\nname = "accuracy"\n'


def test_control_characters_are_shown_escaped() -> None:
    assert printable(EVIL) == SAFE
    assert (
        table([["x", EVIL.partition("\n")[0]]], heading=False) == f"x  {SAFE.partition(chr(10))[0]}"
    )
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
    assert "nothing to prepare: no model of s.toml has methods" in result.stderr


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
        "incomplete: 6 of 20 attempts answered; to resume: ponder run s.toml --set problems=10\n"
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


@pytest.mark.parametrize(
    ("ends", "options", "texts"),
    [
        ((0.864, 0.823, 0.897), {"scale": 100}, ("86", "82", "90")),
        ((85.21, 84.88, 85.53), {}, ("85.2", "84.9", "85.5")),
        ((1234.5, 1180.0, 1290.0), {}, ("1,234", "1,180", "1,290")),
        ((-0.225, -0.479, 0.07), {"scale": 100, "signed": True}, ("−22", "−48", "+7")),
        ((0.0, -0.12, 0.004), {"scale": 100, "signed": True}, ("0", "−12", "0")),
        ((53.0659, 53.0659, 53.06591), {}, ("53.07", "53.07", "53.07")),
        ((0.00012, 0.0001, 0.00015), {}, ("0.00012", "0.00010", "0.00015")),
        ((20.0, 12.34, math.inf), {}, ("20.0", "12.3", "?")),
        ((None, None, None), {}, ("?", "?", "?")),
        ((0.0, 0.0, 0.0), {}, ("0", "0", "0")),
    ],
)
def test_a_number_has_the_digits_that_its_interval_supports(ends, options, texts) -> None:
    assert interval(*ends, **options) == texts


def test_a_table_folds_to_the_terminal(monkeypatch) -> None:
    rows = [("model", "from", "attempts", "tokens"), ("m" * 30, "f" * 30, 1000, "9k")]
    monkeypatch.delenv("COLUMNS", raising=False)
    assert len(table(rows, numbers=2).splitlines()) == 2  # piped: one line per row
    monkeypatch.setenv("COLUMNS", "70")
    folded = table(rows, numbers=2, heading=False).splitlines()
    assert folded[2:] == ["m" * 30 + "  " + "f" * 30, "     1,000      9k"]
    long = table([("", "name", "words " * 30)], heading=False).splitlines()
    assert len(long) > 2
    assert all(len(line) <= 70 for line in long)
    assert {line.index("words") for line in long} == {8}


@pytest.mark.parametrize(
    ("no_color", "terminal", "coloured"), [("", True, True), ("1", True, False), ("", False, False)]
)
def test_colour_is_for_terminals(monkeypatch, no_color, terminal, coloured) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: terminal)
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", no_color)
    say({}, as_json=False, text=lambda: bold("heading") + "\x1b[31mhostile")
    heading = "\x1b[1mheading\x1b[0m" if coloured else "heading"
    assert stream.getvalue() == heading + "\\x1b[31mhostile\n"


@pytest.mark.parametrize(
    "words",
    [
        ("plan", "long2short"),
        ("list",),
        ("show", "endpoint"),
        ("plan", "effort", "--power", "--guess", "accuracy=0.7"),
        ("store", "check"),
    ],
    ids=["plan", "list", "show", "power", "store"],
)
def test_output_fits_eighty_columns(ponder, monkeypatch, words) -> None:
    ponder("run", "effort", "--set", "problems=1", "task.size=16")
    monkeypatch.setenv("COLUMNS", "80")
    output = ponder(*words).stdout
    assert [line for line in output.splitlines() if len(line) > 80] == []


def test_every_command_has_an_example(ponder) -> None:
    def commands(group: click.Group, words: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        context = click.Context(group)
        for name in group.list_commands(context):
            command = group.get_command(context, name)
            if isinstance(command, click.Group):
                yield from commands(command, (*words, name))
            else:
                yield (*words, name)

    for words in commands(main, ()):
        assert f"Example: ponder {words[0]}" in ponder(*words, "--help").stdout, words
