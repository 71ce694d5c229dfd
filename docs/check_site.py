"""Check every link of a built site: the file is there, and so is the heading.

python docs/check_site.py reports/site
"""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """Collect a page's links and the ids that links can lead to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.ids: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("href", "src") and value and tag != "base":
                self.links.append(value)
            if name in ("id", "name") and value:
                self.ids.add(value)


def broken_links(site: Path) -> list[str]:
    """Return each link of the site that leads nowhere, with its page."""
    pages = {path.resolve(): Page(path.read_text("utf-8")) for path in site.rglob("*.html")}
    broken = []
    for path, page in pages.items():
        if path.name == "404.html":
            continue  # its links begin at the server's root
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if target.is_dir():
                target = target / "index.html"
            anchor = unquote(parts.fragment)
            has_anchor = target not in pages or not anchor or anchor in pages[target].ids
            if not target.exists() or not has_anchor:
                broken.append(f"{path.name}: {link}")
    return broken


if __name__ == "__main__":
    links = broken_links(Path(sys.argv[1]))
    if links:
        sys.exit("\n".join([*links, f"{len(links)} broken links"]))
