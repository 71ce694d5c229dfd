"""The docs say what the code does: references are generated, examples run, links lead somewhere."""

from __future__ import annotations

import re
import runpy
import tomllib
from pathlib import Path

import pytest
from click import Context, Group

from ponder import Study
from ponder.cli import main
from ponder.core import plugins

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(language: str) -> list[tuple[str, str]]:
    """The code blocks of a language in all pages but the generated ones."""
    pages = [p for p in PAGES if p.parent.name != "reference"]
    return [
        (p.name, b)
        for p in pages
        for b in re.findall(rf"```{language}\n(.*?)```", p.read_text("utf-8"), re.DOTALL)
    ]


def test_toml_examples_are_studies() -> None:
    found = blocks("toml")
    assert found
    for name, text in found:
        content = tomllib.loads(text)
        content.setdefault("task", [{"name": "chain_sum"}])
        assert Study.from_table(content, where=name, folder=Path()).cells


def test_python_examples_run(folder: Path) -> None:
    found = [text for name, text in blocks("python") if name == "python.md"]
    assert len(found) == 5
    names: dict[str, object] = {}
    for text in found:
        exec(compile(text, "python.md", "exec"), names)
    assert (folder / "report" / "report.html").exists()


def test_the_reference_is_up_to_date() -> None:
    pages = runpy.run_path(str(ROOT / "docs" / "make_reference.py"))["pages"]()
    for name, text in pages.items():
        assert (ROOT / "docs" / "reference" / name).read_text("utf-8") == text, (
            f"{name} is old: make docs"
        )


def test_no_setting_in_the_reference_lacks_a_description() -> None:
    pages = (ROOT / "docs" / "reference").glob("*.md")
    rows = [
        f"{page.name}: {line}" for page in pages for line in page.read_text("utf-8").splitlines()
    ]
    assert len([row for row in rows if row.endswith("|")]) > 100
    assert [row for row in rows if row.endswith("|  |")] == []


def test_every_exit_code_is_in_the_docs() -> None:
    sources = "".join(path.read_text("utf-8") for path in (ROOT / "src/ponder/cli").glob("*.py"))
    codes = {
        code
        for line in re.findall(r"(?:\bExit|\.exit)\((.*)\)", sources)
        for code in re.findall(r"\b\d+\b", line)
    }
    assert {"1", "2", "3", "130"} <= codes
    table = (
        (ROOT / "docs/running.md")
        .read_text("utf-8")
        .partition("| exit code |")[2]
        .partition("\n\n")[0]
    )
    for code in codes - {"128"}:  # plus a signal's number
        assert re.search(rf"^\| {code}\b", table, re.MULTILINE), (
            f"exit code {code} is not in docs/running.md"
        )


def test_the_page_on_speed_has_what_was_measured() -> None:
    script = runpy.run_path(str(ROOT / "benchmarks" / "speed_page.py"))
    rows = script["latest"]((ROOT / "benchmarks" / "speed.jsonl").read_text("utf-8"))
    assert script["PAGE"].read_text("utf-8") == script["page"](rows), (
        "python benchmarks/speed_page.py writes it"
    )
    for row in rows:
        assert row["machine"]
        assert row["versions"]["ponder"]
        assert row["date"]
        assert (ROOT / row["command"].split()[1]).exists(), row["command"]


@pytest.mark.parametrize("kind", plugins.KINDS)
def test_there_is_a_section_on_adding_a_plugin_and_its_commands_run(kind: str, ponder) -> None:
    page = (ROOT / "docs" / "extend.md").read_text("utf-8")
    title = rf"^## An? (?:eviction )?{plugins.KINDS[kind].noun}$"
    text = re.split(title, page, flags=re.MULTILINE)[1].partition("\n## ")[0]
    commands = re.findall(r"^ponder (.+)$", text, re.MULTILINE)
    assert [command.split()[0] for command in commands] == ["new", "check"]
    for command in commands:
        result = ponder(*command.split())
        assert result.exit_code == 0, result.output
    source = Path(commands[1].split()[1]).read_text("utf-8").splitlines()
    for excerpt in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        assert not [line for line in excerpt.splitlines() if line and line not in source]


def test_the_docs_name_no_command_that_is_gone() -> None:
    def paths(group: Group, above: Context) -> list[str]:
        known = []
        for name in group.list_commands(above):
            command = group.get_command(above, name)
            known += [name]
            if isinstance(command, Group):
                known += [
                    f"{name} {inner}"
                    for inner in paths(command, Context(command, parent=above, info_name=name))
                ]
        return known

    known = paths(main, Context(main, info_name="ponder"))
    texts = {page: page.read_text("utf-8") for page in [*PAGES, *plugins.HERE.rglob("*.py")]}
    named = [
        (page.name, words)
        for page, text in texts.items()
        for words in re.findall(
            r"(?:^|`)ponder (prepare (?:model|own_reward|reward|pocket\w*)|[a-z][\w-]*)",
            text,
            re.MULTILINE,
        )
    ]
    assert len(named) > 50
    assert [name for name in named if name[1] not in known] == []


def headings(page: Path) -> set[str]:
    """The anchors of a page's headings, as code hosts make them, and mkdocs as it is set up here."""
    text = re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL)
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\s-]", "", title).strip().lower().replace(" ", "-") for title in titles}


def test_links_in_the_docs_lead_to_a_file_and_a_heading() -> None:
    for page in PAGES:
        for link in re.findall(r"\]\(([^)\s]+)", page.read_text("utf-8")):
            target, _, heading = link.partition("#")
            if "://" not in link:
                file = page.parent / target if target else page
                inside = (ROOT / "docs") in file.resolve().parents or page.parent == ROOT
                assert inside, f"{page.name} links to {link}, which the site does not have"
                assert file.exists(), f"{page.name} links to {link}"
                assert not heading or heading in headings(file), f"{page.name} links to {link}"


def test_files_named_in_the_docs_exist() -> None:
    named = {
        (page.name, path)
        for page in PAGES
        for path in re.findall(
            r"`((?:src|benchmarks|scripts|tests)/[\w./-]+\.\w+)", page.read_text("utf-8")
        )
    }
    assert len(named) > 20
    assert [entry for entry in sorted(named) if not (ROOT / entry[1]).exists()] == []


def test_tables_need_no_escaped_pipe() -> None:
    """Markdown readers disagree on `|` in a table's code: the site shows the backslash."""
    assert [page.name for page in PAGES if "\\|" in page.read_text("utf-8")] == []
