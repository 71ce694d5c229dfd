"""Makes the models of a run before they are asked: here, or in other processes, several at once and nothing twice.

A chain of methods is made in its order. What doesn't depend on each other is made at once: variants, training seeds.
Two preparations may need the same thing, such as samples to train on or a merged model that both start from. Then the
first makes it, and the others wait until it is there, not until the first is done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

from ponder.core import Method, Model, Progress, Served, Spend, UserError
from ponder.core.metering import METER, CapReached, Meter
from ponder.core.wrapped import innermost
from ponder.run.caps import NOTHING, Claim, Ledger, Money, priced_at_most
from ponder.run.executors import Place
from ponder.run.interrupt import Stop, Stopped
from ponder.run.paying import Account, LedgerTill, LoopTill
from ponder.study.cell import Cell, Resources

PATIENCE = 60.0  # seconds until a file that another machine has written must be seen here


class Preparations:
    """Makes models, each once. `report` is told how each goes, by its label; None at its end.

    What they ask of models is paid at the `till`; if its caps leave no room, `Stopped` is raised.
    """

    def __init__(
        self,
        place: Place | None,
        stop: Stop,
        report: Callable[[str, Progress | None], None],
        till: LedgerTill | None = None,
    ) -> None:
        self._place, self._stop, self._report = place, stop, report
        self._till = till or LedgerTill(Ledger())
        self._room = asyncio.Semaphore(place.jobs or 1_000_000 if place else 1)
        self._models: dict[str, asyncio.Task[Model]] = {}
        self._being_made: set[Path] = set()
        self._changed = asyncio.Event()

    async def model(self, cell: Cell) -> Model:
        """The cell's model, with everything that its methods need."""
        label = cell.model_label
        if label not in self._models:
            self._models[label] = asyncio.create_task(self._model(cell))
        return await self._models[label]

    async def _model(self, cell: Cell) -> Model:
        model, label = cell.model, cell.model_label
        try:
            for index, method in enumerate(cell.methods):
                if self._place:
                    await self._make_there(self._place, cell, index, model)
                model = await self._make_here(label, method, model)
        finally:
            self._report(label, None)
        return model

    async def _make_here(self, label: str, method: Method, model: Model) -> Model:
        """Make what is left to make, in a thread, and apply."""
        await self._driven(label, lambda: method.make(model))
        return await asyncio.to_thread(method.apply, model)

    async def start(self, cell: Cell, model: Model) -> None:
        """Start the server of a model, if it has one to start."""
        server = innermost(model)
        if not isinstance(server, Served):
            return
        try:
            await self._driven(cell.model_label, lambda: server.start(cell.task))
        finally:
            self._report(cell.model_label, None)

    async def _driven(self, label: str, work: Callable[[], Iterator[Progress]]) -> None:
        """Do work that reports progress, in a thread. To stop, it waits for the next report."""
        interrupted = False
        meter = Meter(LoopTill(self._till, asyncio.get_running_loop()))

        def drive() -> None:
            METER.set(meter)  # in this thread's own context
            steps = work()
            try:
                while not (interrupted or self._stop.asked):
                    if (progress := next(steps, None)) is None:
                        return
                    if not interrupted:
                        self._report(label, {"model": label, **progress})
            finally:
                if isinstance(steps, Generator):
                    steps.close()  # here, and not in whichever thread collects garbage
            raise Stopped

        try:
            await asyncio.to_thread(drive)
        except CapReached:
            raise Stopped from None
        finally:
            interrupted = True

    async def _make_there(self, place: Place, cell: Cell, index: int, model: Model) -> None:
        """Make what the method says is missing, as soon as nobody else is making any of it."""
        method, label = cell.methods[index], cell.model_label
        while unmade := set(await asyncio.to_thread(method.unmade, model)):
            if unmade & self._being_made:
                self._report(label, {"model": label, "waits_for": min(unmade & self._being_made).name})
                self._changed.clear()
                await self._stop.unless_asked(self._changed.wait())
                continue
            needs = cell.hosting.needs(cell.model, *cell.making[index : index + 1])
            with self._claimed(unmade):
                self._report(label, {"model": label, "waits_for": "room"})
                async with self._room:

                    def report(progress: Progress, claimed: set[Path] = unmade) -> None:
                        self._report(label, {"model": label, **progress})
                        self._release({path for path in claimed if path.exists()})

                    await self._make_paid(place, method, model, needs, report)
                    await self._seen(method, model)

    async def _make_paid(
        self, place: Place, method: Method, model: Model, needs: Resources, report: Callable[[Progress], None]
    ) -> None:
        """Make something in another process, with an allowance; with another one if that was less than it needs."""
        ledger = self._till.ledger
        while True:
            claim = ledger.open(None, preparing=True)
            allowance = await self._stop.unless_asked(self._allow(claim, method, model))
            account: Account | None = None

            def listen(said: Progress | Account) -> None:
                nonlocal account
                if isinstance(said, Account):
                    account = said
                else:
                    report(said)

            try:
                await self._till.record()
                await self._stop.unless_asked(place.make(method, model, needs, listen, allowance))
            finally:
                lost = allowance or NOTHING
                spent = account or Account(lost, lost, int(lost != NOTHING))  # it was killed: nobody knows
                ledger.pay(claim, spent.spent, spent.lost, spent.lost_calls)
            ledger.overbilled = ledger.overbilled or spent.overbilled
            if spent.refused is None and not spent.overbilled:
                return
            left = ledger.left()
            if spent.refused is None or not left or spent.refused != spent.refused.at_most(left):
                ledger.refused = ledger.refused or spent.refused
                raise Stopped

    async def _allow(self, claim: Claim, method: Method, model: Model) -> Money | None:
        """Reserve the most that a method may still ask, or what the caps leave of it once nothing is in progress.

        None if there is no cap.
        """
        ledger = self._till.ledger
        if not ledger.limited:
            return None
        most = NOTHING
        for limit in (await asyncio.to_thread(method.sampling_limits, model)).values():
            spend: Spend | None = await asyncio.to_thread(limit)
            if spend is None:
                what = f"the study's cap can't be kept: what `{method.title()}` asks of a model has no limit"
                raise UserError(what, hint="give that model a `budget`, in completion tokens")
            most = most.plus(priced_at_most(spend, None))
        while True:
            left = ledger.left()
            assert left
            amount = most.at_most(left)
            if amount == most or not ledger.calls:
                break
            await asyncio.sleep(0.05)  # until what is in progress has its bill
        if most.tokens and not amount.tokens:
            ledger.refused = ledger.refused or most
            raise Stopped
        ledger.hold(claim, amount)
        return amount

    @contextmanager
    def _claimed(self, paths: set[Path]) -> Iterator[None]:
        self._being_made |= paths
        try:
            yield
        finally:
            self._release(paths)

    def _release(self, paths: set[Path]) -> None:
        if paths & self._being_made:
            self._being_made -= paths
            self._changed.set()

    async def _seen(self, method: Method, model: Model) -> None:
        """Wait until what was made is seen here: shared storage may take seconds."""
        deadline = asyncio.get_running_loop().time() + PATIENCE
        while unmade := await asyncio.to_thread(method.unmade, model):
            if asyncio.get_running_loop().time() > deadline:
                what = f"`{method.title()}` was made, but {min(unmade)} is not there"
                raise UserError(what, hint="$PONDER_MODELS must be on storage that every node shares: docs/cluster.md")
            await asyncio.sleep(0.5)
