"""The docs as a site: its navigation names every page, its gallery every figure.

Building it needs `make site`.
"""

from __future__ import annotations

import re
import runpy
from pathlib import Path

from ponder import Study
from ponder.core import plugins
from ponder.study.study import built_in

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"


def test_the_navigation_has_every_page_once() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text("utf-8").partition("\nnav:\n")[2]
    named = re.findall(r"([\w/-]+\.md)$", navigation, re.MULTILINE)
    missing = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")} ^ set(named)
    assert not missing, f"mkdocs.yml: nav and docs/ differ in {sorted(missing)}"
    assert len(named) == len(set(named))


def test_the_gallery_has_every_figure_and_a_study_that_draws_it() -> None:
    studies = runpy.run_path(str(DOCS / "make_gallery.py"))["STUDIES"]
    assert {title.partition(" ")[0] for title in studies} == set(plugins.files("figures"))
    sections = (DOCS / "gallery.md").read_text("utf-8").split("\n## ")[1:]
    assert [section.partition("\n")[0] for section in sections] == list(studies)
    for section, (title, name) in zip(sections, studies.items(), strict=True):
        figure = title.partition(" ")[0]
        assert plugins.names("figures")[figure] in section
        assert f"ponder run {name if name in built_in() else f'docs/{name}'}`" in section
        study = Study.load(name if name in built_in() else str(DOCS / name))
        assert figure in [table["name"] for table in study.figure]
        assert (DOCS / "gallery" / f"{title.replace(' ', '_')}.png").is_file()


def test_pictures_of_the_gallery_are_small() -> None:
    assert sum(file.stat().st_size for file in (DOCS / "gallery").glob("*.png")) < 1.5e6
