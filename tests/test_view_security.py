"""The live page: who may look, what a browser may do with its answers, and that looking changes nothing."""

from __future__ import annotations

import json
import re
import sqlite3
from html.parser import HTMLParser

import pytest
from viewed import EVIL, fill, get, served, study

from ponder.core.text import visible
from ponder.report.view.stores import ViewedStore
from ponder.report.view.studies import studies


class Tags(HTMLParser):
    """The tags of a page with their attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example:80", ""])
def test_a_host_name_of_others_is_refused(address, host) -> None:
    assert get(address, Host=host)[0] == 421


@pytest.mark.parametrize("host", ["localhost:9000", "127.0.0.1", "[::1]:7575"])
def test_this_machines_own_names_are_served(address, host) -> None:
    assert get(address, Host=host)[0] == 200


def test_only_reading_is_allowed(address) -> None:
    for method in ("POST", "PUT", "DELETE", "OPTIONS"):
        assert get(address, method=method)[0] == 405


def test_elsewhere_a_token_is_needed(viewed_store) -> None:
    with served(viewed_store, host="0.0.0.0", token="secret") as address:
        assert get(address)[0] == 403
        assert get(address, "/?token=wrong")[0] == 403
        assert get(address, "/-/vega.js")[0] == 403
        assert get(address, "/?token=secret", Host="evil.example")[0] == 421
        status, headers, _ = get(address, "//elsewhere/x?token=secret&sort=id")
        assert (status, headers["location"]) == (303, "/elsewhere/x?sort=id")
        assert "HttpOnly" in headers["set-cookie"]
        assert "SameSite=strict" in headers["set-cookie"]
        assert get(address, Cookie=headers["set-cookie"].partition(";")[0])[0] == 200
        assert get(address, Cookie=headers["set-cookie"].partition("=")[0] + "=wrong")[0] == 403


def test_every_answer_has_the_policy(address) -> None:
    pages = ["/", "/ponder/cheaper", "/ponder/cheaper/attempts", "/ponder/cheaper/attempt/1", "/-/view.js", "/x/y"]
    for path in pages:
        _, headers, text = get(address, path)
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        if not path.endswith("js"):
            tags = Tags()
            tags.feed(text)
            assert tags.found
            assert not [name for _, names in tags.found for name in names if name.startswith("on") or name == "style"]
            scripts = [names for tag, names in tags.found if tag == "script"]
            assert all("src" in names or names.get("type") == "application/json" for names in scripts)


def test_hostile_text_is_escaped_and_its_controls_are_shown(address) -> None:
    _, _, text = get(address, "/ponder/cheaper/attempt/1")
    assert "&lt;script&gt;document.title" in text
    assert "<script>document" not in text
    assert "␛[31m" in text
    assert "⟨U+202E⟩" in text
    assert "{{7*7}}" in text
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u202e]", text)
    _, _, listed = get(address, "/ponder/cheaper/attempts?ended=failed&q=%3Cscript%3E%22")
    assert "<script>d" not in listed
    assert 'value="&lt;script&gt;&#34;"' in listed


def test_control_characters_become_symbols() -> None:
    assert visible("a\x00\x1b\x7f\x9b\u202e\n\t") == "a␀␛␡⟨U+009B⟩⟨U+202E⟩\n\t"
    assert "\x1b" not in visible(EVIL)


def test_looking_changes_nothing(viewed_store, address) -> None:
    before = viewed_store.read_bytes()
    for path in ("/", "/ponder/cheaper", "/ponder/cheaper/attempts?q=zebra", "/ponder/cheaper/attempt/1"):
        assert get(address, path)[0] == 200
    assert viewed_store.read_bytes() == before


def test_a_store_that_names_a_plugin_file_runs_no_code(tmp_path) -> None:
    plugin = tmp_path / "evil.py"
    plugin.write_text(f"open({str(tmp_path / 'owned')!r}, 'w')\n")
    path = tmp_path / "ponder.db"
    fill(path, study())
    resolved = json.dumps({**study().resolved(), "task": [{"name": str(plugin), "size": 4}]})
    with sqlite3.connect(path) as db:
        db.execute("UPDATE study SET resolved = ?", (resolved,))
    db.close()
    (shown,) = studies(ViewedStore(path, "ponder"))
    assert shown.study is None
    assert "evil.py" in shown.error
    assert not (tmp_path / "owned").exists()
