"""The live page: who may look, what a browser may do with its answers, and that looking changes
nothing.
"""

from __future__ import annotations

import dataclasses
import json
import re
import resource
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
from viewed import EVIL, TOKEN, cookie, fill, get, served, study

from ponder import Study
from ponder.core import plugins
from ponder.core.settings import build
from ponder.core.text import visible
from ponder.models.transformers import Transformers
from ponder.results.view.stores import ViewedStore
from ponder.results.view.studies import studies
from ponder.store.store import Store


class Tags(HTMLParser):
    """The tags of a page with their attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example:80", ""]
)
def test_a_host_name_of_others_is_refused(address, host) -> None:
    assert get(address, Host=host)[0] == 421


@pytest.mark.parametrize("host", ["localhost:9000", "127.0.0.1", "[::1]:7575"])
def test_this_machines_own_names_are_served(address, host) -> None:
    assert get(address, Host=host)[0] == 200


def test_only_reading_is_allowed(address) -> None:
    for method in ("POST", "PUT", "DELETE", "OPTIONS"):
        assert get(address, method=method)[0] == 405


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_a_token_is_needed(viewed_store, host) -> None:
    with served(viewed_store, host=host) as address:
        assert get(address, Cookie="")[0] == 403
        assert get(address, "/?token=wrong", Cookie="")[0] == 403
        assert get(address, "/-/vega.js", Cookie="")[0] == 403
        assert get(address, "/ponder/cheaper/live", Cookie="")[0] == 403
        assert get(address, f"/?token={TOKEN}", Cookie="", Host="evil.example")[0] == 421
        status, headers, _ = get(address, f"//elsewhere/x?token={TOKEN}&sort=id", Cookie="")
        assert (status, headers["location"]) == (303, "/elsewhere/x?sort=id")
        assert "HttpOnly" in headers["set-cookie"]
        assert "SameSite=lax" in headers["set-cookie"]
        assert get(address, Cookie=headers["set-cookie"].partition(";")[0])[0] == 200
        assert get(address, Cookie=headers["set-cookie"].partition("=")[0] + "=wrong")[0] == 403


def test_a_browser_is_started_without_the_token(running, write, folder) -> None:
    """A browser's command line is everybody's to read; the file that it opens, this user's."""
    Store(folder / "ponder.db", lock=True).close()
    browser = write(
        "browser",
        '#!/bin/sh\nstat -c %a "${1#file://}" > mode\ncp "${1#file://}" page\necho "$1" > words\n',
    )
    (folder / browser).chmod(0o700)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BROWSER", f"{folder / browser} %s")
        with running("view", "--port", "0") as process:
            address = process.stderr.readline().strip()
            assert process.stderr.readline()
            wait_for(folder / "words", process)
            opened = Path((folder / "words").read_text().strip().removeprefix("file://"))
            assert opened.parent.stat().st_mode & 0o777 == 0o700
            process.send_signal(signal.SIGINT)
            process.wait()
    token = re.fullmatch(r"http://127\.0\.0\.1:\d+/\?token=([\w-]{32})", address)[1]
    assert token not in (folder / "words").read_text()
    assert f"token={token}" in (folder / "page").read_text()
    assert (folder / "mode").read_text().strip() == "600"
    assert not opened.exists()


def wait_for(file: Path, process: subprocess.Popen[Any]) -> None:
    """Wait until a process has written into a file; a process that has ended never will."""
    while not (file.is_file() and file.read_text()):
        assert process.poll() is None
        time.sleep(0.05)


def connected(address: str, number: int) -> list[socket.socket]:
    host, port = address.removeprefix("http://").split(":")
    return [socket.create_connection((host, int(port)), timeout=300) for _ in range(number)]


def test_a_connection_without_a_whole_request_is_closed(viewed_store) -> None:
    with served(viewed_store, request_seconds=0.2) as address:
        silent, slow, again = connected(address, 3)
        slow.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Slow: ")
        again.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert again.recv(12) == b"HTTP/1.1 403"
        again.sendall(b"GET / HTTP/1.1\r\nHo")
        for connection in (silent, slow, again):
            with connection, suppress(ConnectionResetError):
                while connection.recv(4096):
                    pass


def test_a_newer_connection_takes_the_place_of_one_that_waits(viewed_store) -> None:
    with served(viewed_store, most_connections=3, request_seconds=3600) as address:
        waiting = connected(address, 20)
        assert get(address)[0] == 200
        for connection in waiting[:-3]:
            with suppress(ConnectionResetError):
                assert connection.recv(1) == b""
        for connection in waiting:
            connection.close()


def test_answers_are_not_cut_by_newer_connections(viewed_store) -> None:
    with served(viewed_store, most_connections=2, request_seconds=3600) as address:
        (stream,) = connected(address, 1)
        with stream, stream.makefile("rb") as lines:
            cookies = f"Cookie: {cookie(address)}\r\n"
            stream.sendall(
                f"GET /ponder/cheaper/live HTTP/1.1\r\nHost: localhost\r\n{cookies}\r\n".encode()
            )
            assert lines.readline() == b"HTTP/1.1 200 OK\r\n"
            waiting = connected(address, 20)
            assert get(address)[0] == 200
            while not lines.readline().startswith(b"data: "):
                pass
            for connection in waiting:
                connection.close()


def test_idle_connections_beyond_the_open_files_do_not_stop_it(viewed_store, tmp_path) -> None:
    command = [
        sys.executable,
        "-c",
        "from ponder.cli import main; main()",
        "view",
        "--no-open",
        "--port",
        "0",
    ]
    command += ["--store", str(viewed_store)]
    log = tmp_path / "stderr"
    files = (256, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    limited = f"import os, resource; resource.setrlimit(resource.RLIMIT_NOFILE, {files}); os.execv({command[0]!r}, {command})"
    with (
        log.open("wb") as stderr,
        subprocess.Popen([sys.executable, "-c", limited], stderr=stderr) as process,
    ):
        try:
            wait_for(log, process)
            address, _, token = log.read_text().splitlines()[0].partition("/?token=")
            idle = connected(address, 300)
            assert get(address, Cookie=f"ponder-{address.rpartition(':')[2]}={token}")[0] == 200
            more = connected(address, 100)
            assert get(address, Cookie=f"ponder-{address.rpartition(':')[2]}={token}")[0] == 200
            for connection in idle + more:
                connection.close()
        finally:
            process.terminate()
    assert log.stat().st_size < 4000


def test_every_answer_has_the_policy(address) -> None:
    pages = [
        "/",
        "/ponder/cheaper",
        "/ponder/cheaper/attempts",
        "/ponder/cheaper/attempt/1",
        "/-/view.js",
        "/x/y",
    ]
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
            assert not [
                name
                for _, names in tags.found
                for name in names
                if name.startswith("on") or name == "style"
            ]
            scripts = [names for tag, names in tags.found if tag == "script"]
            assert all(
                "src" in names or names.get("type") == "application/json" for names in scripts
            )


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
    for path in (
        "/",
        "/ponder/cheaper",
        "/ponder/cheaper/attempts?q=zebra",
        "/ponder/cheaper/attempt/1",
    ):
        assert get(address, path)[0] == 200
    assert viewed_store.read_bytes() == before


@pytest.fixture
def evil(tmp_path) -> Path:
    """A file that leaves a mark beside it when it is imported."""
    path = tmp_path / "evil.py"
    # An import that fails is forgotten, so that the next one runs the file again.
    path.write_text(
        f"open({str(tmp_path / 'owned')!r}, 'w').close()\nraise RuntimeError('imported')\n"
    )
    return path


def ran(evil: Path) -> bool:
    """Return whether the file was imported, and remove its mark."""
    mark = evil.with_name("owned")
    imported = mark.exists()
    mark.unlink(missing_ok=True)
    return imported


def tried(kind: str, table: dict[str, Any], folder: Path | None) -> str:
    """Build a plugin and use it as a page would; return the error."""
    try:
        made = build(kind, table, "study", folder)
        made.title()
        made.identity()
        if kind == "methods":
            made.apply(Transformers(id="pocket"))
    except Exception as error:
        return str(error)
    return ""


def settings() -> Iterator[tuple[str, str, type[Any], dataclasses.Field[Any]]]:
    """Every setting of every plugin, with its kind, its plugin's name and class."""
    for kind in plugins.KINDS:
        for name in plugins.files(kind):
            cls = plugins.load(kind, name)
            for setting in dataclasses.fields(cls):
                if setting.init:
                    yield kind, name, cls, setting


def takes_plugin(cls: type[Any], setting: dataclasses.Field[Any]) -> bool:
    """Return whether a setting's type is a plugin, or several."""
    contracts = {kind.contract for kind in plugins.KINDS.values()}
    annotation = get_type_hints(cls)[setting.name]
    return bool(contracts & {annotation, *get_args(annotation)})


def test_no_setting_of_a_stored_study_runs_a_file(evil) -> None:
    path = str(evil)
    importing = set[str]()
    for kind, name, cls, setting in settings():
        place = f"{name}.{setting.name}"
        refused = False
        for value in (path, {"name": path}, [path], [{"name": path}]):
            table = {"name": name, **cls.example, setting.name: value}
            error = tried(kind, table, None)
            assert not ran(evil), f"{place} = {value} imports a file that a store names"
            # The file of problems that a store names is refused before the judge beside it.
            refused |= "evil.py is a file" in error or "only a store names it" in error
            tried(kind, table, evil.parent)
            if ran(evil):
                importing.add(place)
        if takes_plugin(cls, setting):  # the same settings in the user's own study import it
            assert refused, place
            assert place in importing
    # The last two build a plugin by themselves, from a text and from a table.
    known = {
        "best_of.reward",
        "merge.other",
        "length_rl.reward",
        "sft.teachers",
        "compress.policy",
        "judge.model",
    }
    assert known <= importing


BEST_OF = {"name": "best_of", "n": 2}
COMPRESS = {"name": "compress", "budget": 64, "window": 16, "settings": {"keep": 1}}


@pytest.mark.parametrize(
    "table",
    [
        {"task": [{"name": "EVIL", "size": 4}]},
        {
            "train": [{"name": "EVIL", "size": 4}],
            "model": [{"name": "pocket", "method": [{"name": "dpo"}]}],
        },
        {"figure": [{"name": "EVIL"}]},
        {"model": [{"name": "EVIL"}]},
        {"model": [{"name": "oracle", "method": [{"name": "EVIL"}]}]},
        {"model": [{"name": "oracle", "method": [{**BEST_OF, "reward": "EVIL"}]}]},
        {"model": [{"name": "oracle", "method": [{**BEST_OF, "reward": ["oracle", "EVIL"]}]}]},
        {
            "model": [
                {
                    "name": "oracle",
                    "method": [{**BEST_OF, "reward": {"name": "judge", "model": {"name": "EVIL"}}}],
                }
            ]
        },
        {"model": [{"name": "pocket", "method": [{"name": "merge", "other": "EVIL"}]}]},
        {"model": [{"name": "pocket", "method": [[{"name": "length_rl", "reward": "EVIL"}], []]}]},
        {
            "model": [
                {"name": "pocket", "method": [{"name": "sft", "teachers": ["oracle", "EVIL"]}]}
            ]
        },
        {
            "model": [
                {"name": "transformers", "id": "pocket", "method": [{**COMPRESS, "policy": "EVIL"}]}
            ]
        },
    ],
    ids=json.dumps,
)
def test_a_store_that_names_a_plugin_file_runs_no_code(tmp_path, evil, table) -> None:
    path = tmp_path / "ponder.db"
    fill(path, study())
    text = json.dumps({**study().resolved(), **table}).replace("EVIL", str(evil))
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE study SET resolved = ?", (text,))
    with served(path) as address:
        _, _, home = get(address)
        pages = [
            get(address, f"/ponder/cheaper{page}")[0]
            for page in ("", "/figures", "/attempts", "/attempt/1")
        ]
    assert not ran(evil)
    assert "evil.py is a file" in home
    assert pages == [409, 409, 409, 409]


@pytest.mark.parametrize(
    "text", ['"x"', "null", "5", "[]", "{", "", "[" * 100_000, '{"a":' * 100_000]
)
def test_a_study_that_cant_be_read_hides_no_other(tmp_path, text) -> None:
    path = tmp_path / "ponder.db"
    fill(path, study())
    fill(path, study("another"))
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE study SET resolved = ? WHERE name = 'another'", (text,))
    with served(path) as address:
        assert get(address)[0] == 200
        assert get(address, "/ponder/another")[0] == 409
        assert get(address, "/ponder/cheaper")[0] == 200


@pytest.fixture
def opened_files() -> Iterator[set[str]]:
    """The files that this process opens during a test."""
    names = set[str]()
    watching = True

    def note(event: str, values: tuple[Any, ...]) -> None:
        if watching and event == "open":
            names.add(str(values[0]))

    sys.addaudithook(note)  # it can't be removed
    yield names
    watching = False


@pytest.mark.parametrize(
    "table",
    [
        {"task": [{"name": "jsonl", "file": "FILE"}]},
        {"task": [{"name": "imported", "file": "FILE"}]},
        {"task": [{"name": "math500", "file": "FILE"}]},
        {"task": [{"name": "tents", "size": 16, "ids": "FILE"}]},
        {"model": [{"name": "replay", "file": "FILE"}]},
        {"model": [{"name": "pocket", "weights": "FILE"}]},
        {"model": [{"name": "pocket", "method": [{"name": "sft", "data": "FILE"}]}]},
    ],
    ids=json.dumps,
)
def test_a_file_that_only_a_store_names_is_not_read(tmp_path, opened_files, table) -> None:
    secret = tmp_path / "secret.jsonl"
    secret.write_text('{"prompt": "2 + 2?", "answer": "4"}\n')
    path = tmp_path / "ponder.db"
    with_stored_study(path, json.loads(json.dumps(table).replace("FILE", str(secret))))
    opened_files.clear()
    with served(path) as address:
        _, _, home = get(address)
        pages = [
            get(address, f"/ponder/cheaper{page}")[0] for page in ("", "/figures", "/attempts")
        ]
    assert "secret.jsonl&#39; is not read" in home
    assert "ponder view STUDY.toml" in home
    assert pages == [409, 409, 409]
    assert str(secret) not in opened_files


def with_stored_study(path: Path, table: Mapping[str, Any]) -> None:
    """Fill a store, and let its study have been run with other settings."""
    fill(path, study())
    with closing(sqlite3.connect(path)) as db, db:
        resolved = json.dumps({**study().resolved(), **table})
        db.execute("UPDATE study SET resolved = ?", (resolved,))


def best_of(reward: str, weights: str) -> dict[str, Any]:
    method = {"name": "best_of", "n": 2, "reward": {"name": reward, "id": weights}}
    return {"name": "pocket", "temperature": 1, "method": [method]}


@pytest.mark.parametrize(
    ("model", "weights"),
    [
        ({"name": "transformers", "id": "FOLDER"}, "model.safetensors"),
        ({"name": "transformers", "id": "org/name"}, "model.safetensors"),
        ({"name": "transformers", "id": "FOLDER"}, "model-1.safetensors"),
        ({"name": "transformers", "id": "FOLDER/tiny.gguf"}, "tiny.gguf"),
        ({"name": "vllm", "id": "FOLDER"}, "model.safetensors"),
        ({"name": "transformers", "id": "FOLDER", "method": [{"name": "sft"}]}, "card.json"),
        (best_of("qwen", "FOLDER"), "model.safetensors"),
        (best_of("pocket", "FOLDER"), "model.safetensors"),
    ],
    ids=json.dumps,
)
def test_weights_that_only_a_store_names_are_not_read(
    tmp_path, monkeypatch, opened_files, model, weights
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "org" / "name"
    folder.mkdir(parents=True)
    (folder / weights).write_text("{}")
    stored = json.loads(json.dumps(model).replace("FOLDER", str(folder)))
    path = tmp_path / "ponder.db"
    with_stored_study(path, {"model": [stored]})
    opened_files.clear()
    with served(path) as address:
        _, _, home = get(address)
        pages = [
            get(address, f"/ponder/cheaper{page}")[0] for page in ("", "/figures", "/attempts")
        ]
    assert not [name for name in opened_files if str(folder) in name or "org/name" in name]
    assert "are not read, because only a store names them" in home
    assert "ponder view STUDY.toml" in home
    assert pages == [409, 409, 409]


@pytest.mark.parametrize(
    "model",
    [
        {"name": "transformers", "id": "org/hub"},
        {"name": "transformers", "id": "pocket"},
        {"name": "transformers", "id": "smollm2"},
        {"name": "vllm", "id": "org/hub", "budget": 64},
        {"name": "endpoint", "id": "/served/tiny.gguf", "url": "http://127.0.0.1:9/v1"},
        best_of("qwen", "org/hub"),
        {"name": "pocket", "method": [{"name": "best_of", "n": 2, "reward": {"name": "pocket"}}]},
    ],
    ids=json.dumps,
)
def test_a_stored_study_without_local_weights_is_shown(tmp_path, monkeypatch, model) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pocket").mkdir()  # not what the study means
    (tmp_path / "smollm2").mkdir()
    path = tmp_path / "ponder.db"
    with_stored_study(path, {"model": [model]})
    with served(path) as address:
        _, _, home = get(address)
        status, _, _ = get(address, "/ponder/cheaper")
    assert "only a store names" not in home
    assert status == 200


def test_a_study_file_that_was_given_may_name_its_own_files(tmp_path) -> None:
    (tmp_path / "mine_task.py").write_text((plugins.HERE / "tasks" / "chain_sum.py").read_text())
    (tmp_path / "mine_figure.py").write_text((plugins.HERE / "figures" / "accuracy.py").read_text())
    file = tmp_path / "cheaper.toml"
    tables = (
        'task]]\nname = "./mine_task.py"\nsize = 2',
        'model]]\nname = "oracle"',
        'figure]]\nname = "./mine_figure.py"',
    )
    file.write_text("problems = 2\n" + "".join(f"[[{table}\n" for table in tables))
    path = tmp_path / "ponder.db"
    fill(path, Study.load(str(file)))
    with served(path, given=[Study.load(str(file))]) as address:
        assert get(address, "/ponder/cheaper/attempts")[0] == 200
        status, _, figures = get(address, "/ponder/cheaper/figures")
    assert status == 200
    assert "accuracy" in figures
    with closing(ViewedStore(path, "ponder")) as store:
        (shown,) = studies(store)  # without the file it is somebody's store
    assert "mine_figure.py is a file" in shown.error
