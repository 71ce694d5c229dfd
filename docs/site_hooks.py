"""Hooks of `mkdocs.yml`: links to files that are no pages, such as source code, lead to a page that
shows the file.

The docs link to code by relative paths, which work on a code host. In the site each such file gets
a page of its own.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files, InclusionLevel

ROOT = Path(__file__).parent.parent
LINK = re.compile(r"\]\(([^)#\s]+\.(py|toml|txt))\)")
# a code host wants `a \| b` in a table's code
ROW, CODE = re.compile(r"^\|.*", re.MULTILINE), re.compile(r"`[^`]+`")
LANGUAGES = {"py": "python", "toml": "toml", "txt": "text"}


def on_files(files: Files, config: Any) -> Files:
    """Add a page for every linked file."""
    linked = {
        target: language
        for page in files.documentation_pages()
        for target, language in _linked(page, page.content_string)
    }
    for target, language in sorted(linked.items()):
        name = target.relative_to(ROOT)
        text = f"---\nsearch: {{exclude: true}}\n---\n# {name}\n\n````{language}\n{target.read_text('utf-8')}\n````\n"
        made = File.generated(
            config, f"files/{name}.md", content=text, inclusion=InclusionLevel.NOT_IN_NAV
        )
        files.append(made)
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Point the links at those pages, and write tables as Python-Markdown reads them."""
    up = "../" * page.file.src_uri.count("/")

    def shown(match: re.Match[str]) -> str:
        target = _target(page.file, match[1])
        return f"]({up}files/{target.relative_to(ROOT)}.md)" if target.is_file() else match[0]

    return ROW.sub(
        lambda row: CODE.sub(lambda code: code[0].replace("\\|", "|"), row[0]),
        LINK.sub(shown, markdown),
    )


def _linked(page: File, markdown: str) -> list[tuple[Path, str]]:
    found = (
        (_target(page, target), LANGUAGES[ending]) for target, ending in LINK.findall(markdown)
    )
    return [(target, language) for target, language in found if target.is_file()]


def _target(page: File, link: str) -> Path:
    return (ROOT / "docs" / Path(page.src_uri).parent / link).resolve()
