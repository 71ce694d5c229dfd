"""Makes what a study needs before it can run: trained or merged weights, fitted eviction policies.

`ponder run` makes the same things when it reaches the models that need them. Preparing makes all of them first, for
example on a machine with a GPU.
"""

from __future__ import annotations

import asyncio
import shutil
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

from ponder.core import Progress, UserError, WithWeights, error_at, require
from ponder.core.metering import METER, CapReached, Meter
from ponder.run.caps import Ledger, check, currency
from ponder.run.executors import Place
from ponder.run.interrupt import Stop, Stopped
from ponder.run.paying import LedgerTill
from ponder.run.preparations import Preparations
from ponder.run.run import opened_ledger
from ponder.run.run_stats import Tally
from ponder.run.summary import cap_reached
from ponder.store.store import Store
from ponder.study.cell import Cell
from ponder.study.study import StudySpec

STORE = Path("ponder.db")  # counts what a study with a cap spends


def prepare(study: StudySpec, place: Place | None = None, store: Path = STORE) -> Iterator[Progress]:
    """Make what every model of the study needs. What already exists is not made again.

    Under a cap, what that takes is recorded in the store at a path, as a run of the study.
    """
    cells = {cell.model_label: cell for cell in study.cells if cell.methods}
    if not cells:
        return
    with _paid(study, store) as till:
        if place:
            yield from _together(list(cells.values()), place, study.where, till)
            return
        for label, cell in cells.items():
            with _at(study.where, label):
                for progress in cell.make_model():
                    yield {"model": label, **progress}
            yield {"ready": label}


@contextmanager
def _paid(study: StudySpec, path: Path) -> Iterator[LedgerTill]:
    """Count what is asked of models while the block runs, under the study's caps; raise `UserError` at a cap."""
    check(study.cells, study.max_tokens, study.max_cost)
    with ExitStack() as stack:
        till = LedgerTill(Ledger())
        if study.max_tokens is not None or study.max_cost is not None:
            store = stack.enter_context(Store(path, lock=True))
            ledger = opened_ledger(study, store)
            run_id = store.record_study(study)

            async def record() -> None:
                store.add([], run_id, ledger.recorded())

            till = LedgerTill(ledger, record)
            stack.callback(lambda: store.add([], run_id, ledger.recorded()))
        METER.set(Meter(till))
        try:
            yield till
        except (CapReached, Stopped):
            tally = Tally(ledger=till.ledger, currency=currency(study.cells))
            what, *advice = cap_reached(tally)
            raise UserError(what, where=study.where, hint="; ".join([*advice, "what was paid for is kept"])) from None
        finally:
            METER.set(None)


def _at(where: str, label: str) -> AbstractContextManager[None]:
    """Adds the study and the model to errors that don't say where they are."""
    return error_at(f"{where}: model `{label}`")


def _together(cells: Sequence[Cell], place: Place, where: str, till: LedgerTill) -> Iterator[Progress]:
    """Make what doesn't depend on each other at once. After an error, nothing more is made."""
    reports: deque[Progress] = deque()

    def report(label: str, progress: Progress | None) -> None:
        if progress is not None:
            reports.append({"model": label, **progress})

    async def made(cell: Cell, preparations: Preparations) -> None:
        with _at(where, cell.model_label):
            await preparations.model(cell)
        reports.append({"ready": cell.model_label})

    async def begin() -> set[asyncio.Task[None]]:
        preparations = Preparations(place, Stop(), report, till)
        return {asyncio.create_task(made(cell, preparations)) for cell in cells}

    async def look(waiting: set[asyncio.Task[None]]) -> set[asyncio.Task[None]]:
        done, left = await asyncio.wait(waiting, timeout=0.2, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()
        return left

    with asyncio.Runner() as runner:  # whose end cancels what is in progress
        waiting = runner.run(begin())
        while waiting:
            waiting = runner.run(look(waiting))
            while reports:
                yield reports.popleft()


def make_model(study: StudySpec, label: str, out: Path, store: Path = STORE) -> Iterator[Progress]:
    """Make one model of the study whose methods change its weights, and copy the weights into a folder."""
    changed = {c.model_label: c for c in study.cells if any(method.changes_weights for method in c.methods)}
    cell = _chosen(study, changed, label, out, "model", "with new weights", "that changes weights")
    with _paid(study, store), _at(study.where, cell.model_label):
        model = yield from cell.make_model()
    shutil.copytree(require(model, WithWeights).source(cell.task).folder, out, dirs_exist_ok=True)
    yield {"made": str(out)}


def make_reward(study: StudySpec, label: str, out: Path, store: Path = STORE) -> Iterator[Progress]:
    """Make the reward that one model of the study trains on its own samples, and copy it into a folder."""
    trains = {
        c.model_label: c
        for c in study.cells
        if any(m.training_seed() is not None and not m.changes_weights for m in c.methods)
    }
    folders = {c.methods[0].folder(c.model) for c in trains.values()}
    if len(folders) == 1 and None not in folders:  # they differ in how they pick, not in the reward
        label = label or next(iter(trains))
    cell = _chosen(study, trains, label, out, "reward", "trained on own samples", "that trains one")
    model = cell.model
    for method in cell.methods:
        with _paid(study, store), _at(study.where, cell.model_label):
            yield from method.make(model)
        if (folder := method.folder(model)) and not method.changes_weights:
            shutil.copytree(folder, out, dirs_exist_ok=True)
            yield {"made": str(out)}
            return
        model = method.apply(model)


def _chosen(study: StudySpec, cells: dict[str, Cell], label: str, out: Path, noun: str, kind: str, method: str) -> Cell:
    """The cell of a label, which isn't needed if there is only one; raises `UserError` if it isn't there."""
    if not label and len(cells) == 1:
        label = next(iter(cells))
    if label not in cells:
        several = f"{study.name} has several {noun}s {kind}" if cells else ""
        what = f"{study.name} has no model `{label}` {kind}" if label else several
        names = ", ".join(f"--model '{name}'" for name in cells)
        hint = names or f"add a method {method}: ponder list methods"
        raise UserError(what or f"{study.name} has no {noun} {kind}", hint=hint)
    if out.exists() and any(out.iterdir()):
        raise UserError(f"{out} is not empty", hint="use another folder for -o")
    return cells[label]
