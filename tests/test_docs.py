"""The docs say what the code does: references are generated, examples run, links lead somewhere."""

from __future__ import annotations

import re
import runpy
import tomllib
from pathlib import Path

from ponder.runner.study import Study

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(language: str) -> list[tuple[str, str]]:
    """The code blocks of a language in all pages but the generated ones."""
    pages = [p for p in PAGES if p.parent.name != "reference"]
    return [
        (p.name, b) for p in pages for b in re.findall(rf"```{language}\n(.*?)```", p.read_text("utf-8"), re.DOTALL)
    ]


def test_toml_examples_are_studies() -> None:
    found = blocks("toml")
    assert found
    for name, text in found:
        content = tomllib.loads(text)
        content.setdefault("task", [{"name": "chain_sum"}])
        assert Study.from_table(content, where=name).cells


def test_python_examples_run(folder: Path) -> None:
    found = [text for name, text in blocks("python") if name == "python.md"]
    assert len(found) == 2
    for text in found:
        exec(compile(text, "python.md", "exec"), {})
    assert (folder / "ponder.db").exists()


def test_the_reference_is_up_to_date() -> None:
    pages = runpy.run_path(str(ROOT / "docs" / "make_reference.py"))["pages"]()
    for name, text in pages.items():
        assert (ROOT / "docs" / "reference" / name).read_text("utf-8") == text, f"{name} is old: make docs"


def test_links_in_the_docs_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)", page.read_text("utf-8")):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name} links to {target}"
