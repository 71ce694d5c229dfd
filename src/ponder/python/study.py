"""`ponder.Study`: a study that runs itself, in a script, in a notebook, or in a program with an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import signal
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeAlias, get_type_hints

from ponder.core import Plugin, UserError, plugins
from ponder.core.settings import Table, convert
from ponder.core.text import count
from ponder.python.results import Results
from ponder.runner import progress as line
from ponder.runner import study as runner
from ponder.runner.ending import summary
from ponder.runner.places import place
from ponder.runner.plan import Plan, counts, plan, slow
from ponder.runner.run import run
from ponder.runner.stop import Stop
from ponder.runner.store import Store
from ponder.runner.tally import Tally

# A plugin by its name, by its class, or as a table of settings; or several of them.
Given: TypeAlias = "str | type[Plugin] | Table | Sequence[str | type[Plugin] | Table]"
STORE = Path("ponder.db")
INTERNAL = {"name", "where", "folder"}  # what a study knows of its file


class Study(runner.Study):
    """A study: tasks, models with their methods, and figures, as in a study file.

    Each of them is a name, a table of settings, or a list of these:
    `Study(task="chain_sum", model={"name": "oracle", "critical_size": 10}, figure="accuracy", problems=30)`.
    A list inside a table is a sweep: `{"name": "chain_sum", "size": [2, 8, 32]}`. Where the docs or a hint say
    `[[model]]`, the argument `model` is meant; other keys of a study file are arguments too: `samples=2`,
    `max_tokens=2_000_000`.
    """

    def __init__(self, task: Given, model: Given, figure: Given = (), train: Given = (), **settings: Any) -> None:
        hints = get_type_hints(runner.Study)
        known = {field.name for field in dataclasses.fields(runner.Study)}
        for key, value in settings.items():
            if key not in known:
                raise UserError(f"a study has no setting `{key}`", hint=plugins.nearest(key, known - INTERNAL))
            if key not in INTERNAL:
                convert(value, hints[key], f"study: {key}", Path())
        super().__init__(_tables(task), _tables(model), _tables(figure), _tables(train), **settings)
        for kind in ("task", "model"):
            if not getattr(self, kind):
                hint = f"{kind}= one of {', '.join(plugins.names(f'{kind}s'))}"
                raise UserError(f"a study needs at least one {kind}", hint=hint)
        self._check_numbers()
        self.stopping  # noqa: B018 checks `stop`

    def run(
        self,
        *,
        store: str | Path = STORE,
        progress: bool = True,
        jobs: int = 1,
        ray: str | None = None,
        **changes: Any,
    ) -> Results:
        """Ask whatever the study asks for and the store doesn't hold yet, and return all of its attempts.

        `changes` replace settings of the study for this run, such as `problems=20`. `jobs` models are made at once, in
        as many processes; `ray="auto"` prepares and asks on a Ray cluster (docs/cluster.md). Interrupted, it waits for
        the calls in progress, keeps what they answer, and raises KeyboardInterrupt; a second interrupt drops them. Run
        it again to resume.
        """
        begun = _Begun()
        # In a thread, because a notebook's own thread already runs an event loop.
        with ThreadPoolExecutor(1, "ponder") as pool:
            work = pool.submit(asyncio.run, self._run(Path(store), progress, changes, begun, jobs, ray))
            try:
                return work.result()
            except KeyboardInterrupt:
                begun.interrupt()
            try:
                work.result()
            except KeyboardInterrupt:
                begun.interrupt()
                work.result()
            raise KeyboardInterrupt("what was answered is stored; run it again to resume")

    async def run_async(
        self,
        *,
        store: str | Path = STORE,
        progress: bool = True,
        jobs: int = 1,
        ray: str | None = None,
        **changes: Any,
    ) -> Results:
        """The same as `run`, for programs that have an event loop."""
        return await self._run(Path(store), progress, changes, _Begun(), jobs, ray)

    async def _run(
        self, store: Path, progress: bool, changes: dict[str, Any], begun: _Begun, jobs: int, ray: str | None
    ) -> Results:
        study = dataclasses.replace(self, **changes) if changes else self
        study.check()
        if not ray and (told := slow(study, store)):
            sys.stderr.write(f"{told}\n")
        planned, stored = counts(study.cells, store)
        tally = Tally(planned=planned, stored_before=stored)
        begun.loop, begun.stop = asyncio.get_running_loop(), Stop()
        shown = line.shown(tally) if progress and planned else contextlib.nullcontext()
        with place(study.cells, ray, jobs) as where, Store(store, lock=True) as opened, shown:
            await run(study, opened, tally, begun.stop, place=where)
        if told := summary(tally):
            sys.stderr.write(f"{told}\n")
        if tally.failed:
            sys.stderr.write(f"{count(tally.failed, 'attempt')} failed and left out; run again to retry\n")
        return Results(study, store)

    def results(self, store: str | Path = STORE) -> Results:
        """What the store holds of this study; nothing is asked."""
        return Results(self, Path(store))

    def plan(self, store: str | Path = STORE) -> Plan:
        """How many attempts a run would make, and what they would take; nothing is asked."""
        self.check()
        return plan(self, Path(store))


class _Begun:
    """A run in another thread, which may be asked to stop."""

    loop: asyncio.AbstractEventLoop | None = None
    stop: Stop | None = None

    def interrupt(self) -> None:
        if self.loop and self.stop:
            with contextlib.suppress(RuntimeError):  # it has just ended
                self.loop.call_soon_threadsafe(self.stop.on_signal, signal.SIGINT)


def _tables(given: Given) -> list[Table]:
    several = given if isinstance(given, list | tuple) else [given]
    return [_table(one) for one in several]  # type: ignore[arg-type]


def _table(given: str | type[Plugin] | Table) -> Table:
    """A plugin's table. The name may be the class of a plugin, such as a function under `@ponder.task`."""
    if isinstance(given, type):
        return {"name": given.plugin_name()}
    if isinstance(given, str):
        return {"name": given}
    if not isinstance(given, Mapping):
        hint = "decorate a function with @ponder.task or @ponder.model" if callable(given) else ""
        raise UserError(f"a task, model or figure is a name or a table of settings, not {given!r:.80}", hint=hint)
    name = given.get("name")
    return {**given, "name": name.plugin_name()} if isinstance(name, type) and issubclass(name, Plugin) else given
