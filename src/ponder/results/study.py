"""`ponder.Study`: a study that runs itself, in a script, in a notebook, or in a program with an
event loop.

The command line uses the same class. It lives here because a study's results can only be read above
everything that makes them; what a study asks is `StudySpec`, which `store` and `run` take.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import signal
import sys
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, get_type_hints

from ponder.core import Cell, Label, Plugin, UserError, plugins
from ponder.core.capabilities import RecordsGrader
from ponder.core.errors import python_hint
from ponder.core.settings import Table, convert
from ponder.core.text import count
from ponder.results.dial_effects import dial_pairs
from ponder.run.interrupt import Stop
from ponder.run.plan import Plan, plan
from ponder.run.progress import summary
from ponder.run.session import open_session
from ponder.store.benchmark_digests import with_stored_digests
from ponder.store.store import Store
from ponder.study.prices import restore_prices
from ponder.study.study import StudySpec, place_of

if TYPE_CHECKING:
    from ponder.results.results import Results

# A plugin by its name, by its class, or as a table of settings; or several of them.
Given: TypeAlias = "str | type[Plugin] | Table | Sequence[str | type[Plugin] | Table]"
STORE = Path("ponder.db")
RUN_ARGUMENTS = ("store", "progress", "jobs", "ray")
INTERNAL = {"name", "where", "folder"}  # what a study knows of its file


class Study(StudySpec):
    """A study: tasks, models with their methods, and figures, as in a study file.

    Each of them is a name, a table of settings, or a list of these: `Study(task="chain_sum",
    model={"name": "oracle", "critical_size": 10}, figure="accuracy", problems=30)`. A list inside a
    table is a sweep: `{"name": "chain_sum", "size": [2, 8, 32]}`. Where the docs or a hint say
    `[[model]]`, the argument `model` is meant; other keys of a study file are arguments too:
    `samples=2`, `max_tokens=2_000_000`.
    """

    def __init__(
        self,
        task: Given = (),
        model: Given = (),
        figure: Given = (),
        train: Given = (),
        **settings: Any,
    ) -> None:
        hints = get_type_hints(StudySpec)
        tables = {
            "task": _tables(task),
            "model": _tables(model),
            "figure": _tables(figure),
            "train": _tables(train),
        }
        _check_arguments(settings, tables)
        for key, value in settings.items():
            if key not in INTERNAL:
                convert(value, hints[key], f"study: {key}", Path())
        super().__init__(
            tables["task"], tables["model"], tables["figure"], tables["train"], **settings
        )
        for kind in ("task", "model"):
            if not getattr(self, kind):
                hint = f"{kind}= one of {', '.join(plugins.names(f'{kind}s'))}"
                raise UserError(f"a study needs at least one {kind}", hint=hint)

    def run(
        self,
        *,
        store: str | Path = STORE,
        progress: bool = True,
        jobs: int = 1,
        ray: str | None = None,
        release_lost: bool = False,
        **changes: Any,
    ) -> Results:
        """Ask whatever the study asks for and the store doesn't hold yet, and return all of its
        attempts.

        `changes` replace settings of the study for this run, such as `problems=20`. `jobs` models
        are made at once, in as many processes; `ray="auto"` prepares and asks on a Ray cluster
        (docs/gpus.md). `release_lost` counts calls as not billed that were in flight when
        earlier runs were killed. Interrupted, it waits for the calls in progress, keeps what they
        answer, and raises KeyboardInterrupt; a second interrupt drops them. Run it again to resume.
        """
        begun = _Begun()
        # In a thread, because a notebook's own thread already runs an event loop.
        with ThreadPoolExecutor(1, "ponder") as pool:
            work = pool.submit(
                asyncio.run,
                self._run(Path(store), progress, changes, begun, jobs, ray, release_lost),
            )
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
        release_lost: bool = False,
        **changes: Any,
    ) -> Results:
        """Run the study as `run` does, for programs that have an event loop."""
        return await self._run(Path(store), progress, changes, _Begun(), jobs, ray, release_lost)

    async def _run(
        self,
        store: Path,
        progress: bool,
        changes: dict[str, Any],
        begun: _Begun,
        jobs: int,
        ray: str | None,
        release_lost: bool,
    ) -> Results:
        _check_arguments(
            changes, {"task": self.task, "model": self.model, "figure": self.figure}, RUN_ARGUMENTS
        )
        study = dataclasses.replace(self, **changes) if changes else self
        begun.loop, begun.stop = asyncio.get_running_loop(), Stop()
        with open_session(
            study, store, _tell, jobs=jobs, ray=ray, release_lost=release_lost
        ) as session:
            tally = session.tally
            await session.run(begun.stop, show_progress=progress and tally.planned > 0)
        if troubles := summary(tally):
            sys.stderr.write(f"{troubles}\n")
        if tally.failed:
            sys.stderr.write(
                f"{count(tally.failed, 'attempt')} failed and left out; run again to retry\n"
            )
        results = _results(study, store)
        for note in results.notes:
            sys.stderr.write(f"{note}\n")
        return results

    def results(self, store: str | Path = STORE) -> Results:
        """Return what the store holds of this study; nothing is asked."""
        return _results(with_stored_digests(self, Path(store)), Path(store))

    def notes(self, store: str | Path = STORE) -> list[str]:
        """Return sentences about dials without an effect, and about judges and outdated grades."""
        cells: dict[Cell, Label] = {cell: cell.label for cell in self.cells}
        # so that most runs needn't load what tests and draws
        if not dial_pairs(cells) and not any(map(_records_grader, cells)):
            return []
        return self.results(store).notes

    def plan(self, store: str | Path = STORE) -> Plan:
        """How many attempts a run would make, and what they would take; nothing is asked."""
        self.check()
        return plan(self, Path(store))


def _records_grader(cell: Cell) -> bool:
    return isinstance(cell.task, RecordsGrader) and bool(cell.task.grader_id())


def _results(study: Study, store: Path) -> Results:
    # imports what draws and exports, which a run doesn't need
    from ponder.results.results import Results

    if store.is_file():
        with Store(store) as opened:
            restore_prices(study.cells, opened.found_prices(study.name))
    return Results(study, store)


def _tell(message: str) -> None:
    """Print a message that was written for the command line in the words of Python."""
    sys.stderr.write(f"{python_hint(message)}\n")


class _Begun:
    """A run in another thread, which may be asked to stop."""

    loop: asyncio.AbstractEventLoop | None = None
    stop: Stop | None = None

    def interrupt(self) -> None:
        if self.loop and self.stop:
            with contextlib.suppress(RuntimeError):  # it has just ended
                self.loop.call_soon_threadsafe(self.stop.on_signal, signal.SIGINT)


def _check_arguments(
    given: Iterable[str], tables: Mapping[str, Sequence[Table]], also: Sequence[str] = ()
) -> None:
    """Raise `UserError` for a keyword argument that a study doesn't have; `also` are names to
    suggest.
    """
    known = {field.name for field in dataclasses.fields(StudySpec)}
    for key in given:
        if key not in known:
            hint = place_of(key, tables, None) or plugins.nearest(key, (known - INTERNAL) | {*also})
            raise UserError(f"a study has no argument `{key}`", hint=hint)


def _tables(plugins_given: Given) -> list[Table]:
    """Return the tables of one or several plugins."""
    if isinstance(plugins_given, list | tuple):
        return [_table(plugin) for plugin in plugins_given]
    return [_table(plugins_given)]  # type: ignore[arg-type]


def _table(plugin: str | type[Plugin] | Table) -> Table:
    """Return a plugin's table.

    The name may be the class of a plugin, such as a function under `@ponder.task`.
    """
    if isinstance(plugin, type):
        return {"name": plugin.plugin_name()}
    if isinstance(plugin, str):
        return {"name": plugin}
    if not isinstance(plugin, Mapping):
        hint = "decorate a function with @ponder.task or @ponder.model" if callable(plugin) else ""
        message = f"a task, model or figure is a name or a table of settings, not {plugin!r:.80}"
        raise UserError(message, hint=hint)
    name = plugin.get("name")
    if isinstance(name, type) and issubclass(name, Plugin):
        return {**plugin, "name": name.plugin_name()}
    return plugin
