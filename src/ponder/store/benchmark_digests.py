"""Finds the digests of benchmarks in a store, so that reading stored attempts needs no data set.

A benchmark is identified by a digest of its problems. The cells of its attempts hold that digest:
commands that ask nothing, such as `ponder report`, take it from there instead of reading the
problems from the hub.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from ponder.core import plugins
from ponder.core.settings import Table
from ponder.store.file import connect, errors
from ponder.study.study import StudySpec
from ponder.tasks._benchmark import Benchmark

S = TypeVar("S", bound=StudySpec)
STORED_CELLS = "SELECT key, spec FROM cell ORDER BY id DESC"  # the newest first
NOT_STORED = "not stored"  # the digest of a benchmark that the store has no attempt at


def with_stored_digests(study: S, store: Path) -> S:
    """Return the study with the digests of its benchmarks as the store at a path has them."""
    if not hub_benchmarks(study) or not store.is_file():
        return study
    with errors(store, writing=False):
        db = connect(store, write=False)
        try:
            cells = db.execute(STORED_CELLS).fetchall()
        finally:
            db.close()
    return with_digests(study, cells)


def hub_benchmarks(study: StudySpec) -> list[str]:
    """Return the names of the study's benchmarks that have to be read from the hub."""
    names: dict[str, None] = {}
    for table in (*study.task, *study.train):
        if _is_from_hub(table):
            names[table["name"]] = None
    return list(names)


def _is_from_hub(table: Table) -> bool:
    name = table.get("name")
    if name not in plugins.names("tasks"):  # a file, or a mistake that is reported elsewhere
        return False
    kind = plugins.load("tasks", name)
    return issubclass(kind, Benchmark) and not table.get("file") and not table.get("digest")


def with_digests(study: S, cells: Sequence[tuple[bytes, str]]) -> S:
    """Return the study with the digests of its benchmarks as stored cells (key, spec) have them.

    If the store has attempts at several versions of a benchmark, the newest that this study's
    models answered counts.
    """
    keys = {key for key, _ in cells}
    for name in hub_benchmarks(study):
        digests: dict[str, None] = {}
        for _, spec in cells:
            digests |= dict.fromkeys(_digests(spec, name))
        versions = [_with_digest(study, name, digest) for digest in digests or [NOT_STORED]]
        study = versions[0]
        for version in versions:
            if _has_attempts(version, name, keys):
                study = version
                break
    return study


def _has_attempts(study: StudySpec, name: str, keys: set[bytes]) -> bool:
    return any(cell.key in keys for cell in study.cells if cell.task.plugin_name() == name)


def _with_digest(study: S, name: str, digest: str) -> S:
    def filled(tables: Sequence[Table]) -> list[Table]:
        with_digest: list[Table] = []
        for table in tables:
            if table.get("name") == name and _is_from_hub(table):
                with_digest.append({**table, "digest": digest})
            else:
                with_digest.append(table)
        return with_digest

    return replace(study, task=filled(study.task), train=filled(study.train))


def _digests(spec: str, name: str) -> Iterator[str]:
    """Yield a benchmark's digests in a cell's JSON, also of problems that its methods train on."""
    if name not in spec:
        return
    try:
        pending: list[Any] = [json.loads(spec)]
    except (ValueError, RecursionError):
        return  # `ponder store check` says so
    while pending:
        value = pending.pop()
        if isinstance(value, Mapping):
            problems = value.get("problems")
            if value.get("name") == name and isinstance(problems, str):
                yield problems
            pending += value.values()
        elif isinstance(value, list):
            pending += value
