"""Prepares the models of a study: trains or merges weights, fits eviction policies.

`ponder run` prepares a model when it reaches it; `ponder prepare` prepares all of them first, for
example on a machine with a GPU. Both use `Preparations`, which works in this process, or in several
others at once, and makes nothing twice. The methods of a chain follow each other; variants and
training seeds are prepared in parallel. Two preparations may need the same file, such as samples to
train on or a merged model that both start from. Then the first makes it, and the others wait until
that file exists, not until the first is done.
"""

from __future__ import annotations

import asyncio
import shutil
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from ponder.core import (
    Method,
    Model,
    Prepared,
    Progress,
    Spend,
    UserError,
    WithWeights,
    error_at,
    require,
)
from ponder.core.capabilities import changes_weights, training_seed
from ponder.core.metering import METER, CapReached, Meter
from ponder.core.wrapped import server_of
from ponder.run.caps import (
    NOTHING,
    Account,
    Ledger,
    LedgerTill,
    LoopTill,
    Money,
    Reservation,
    check,
    currency,
    opened_ledger,
    priced_at_most,
)
from ponder.run.executors import Executor
from ponder.run.interrupt import Stop, Stopped
from ponder.run.progress import Tally, cap_reached
from ponder.store.store import Store
from ponder.study.cell import Resources, StudyCell
from ponder.study.study import StudySpec

PATIENCE = 60.0  # seconds until a file that another machine has written must be seen here
STORE = Path("ponder.db")  # counts what a study with a cap spends


class Preparations:
    """Prepares models, each once.

    `report` gets the progress of each by its label, and None at its end. Calls of models are paid
    at the `till`; if its caps leave no room, `Stopped` is raised.
    """

    def __init__(
        self,
        executor: Executor | None,
        stop: Stop,
        report: Callable[[str, Progress | None], None],
        till: LedgerTill | None = None,
    ) -> None:
        self._executor = executor
        self._stop = stop
        self._report = report
        self._till = till or LedgerTill(Ledger())
        jobs = 1
        if executor:
            jobs = executor.jobs or 1_000_000
        self._room = asyncio.Semaphore(jobs)
        self._chains: dict[bytes, asyncio.Task[list[Model]]] = {}
        self._being_made: set[Path] = set()
        self._changed = asyncio.Event()

    async def model(self, cell: StudyCell) -> Model:
        """Return the cell's model, with everything that its methods need."""
        return (await self.chain(cell))[-1]

    async def chain(self, cell: StudyCell) -> list[Model]:
        """Return the cell's model, and the model after each of its methods."""
        if cell.model_key not in self._chains:
            self._chains[cell.model_key] = asyncio.create_task(self._make(cell))
        return await self._chains[cell.model_key]

    async def _make(self, cell: StudyCell) -> list[Model]:
        """Make what each method needs, here or in other processes, and apply the method."""
        label = cell.label.model
        chain = [cell.model]
        try:
            for index, method in enumerate(cell.methods):
                model = chain[-1]
                if isinstance(method, Prepared):
                    if self._executor:
                        await self._make_elsewhere(self._executor, method, cell, index, model)
                    # makes whatever is still missing
                    await self._driven(label, partial(method.make, model))
                chain.append(await asyncio.to_thread(method.apply, model))
        finally:
            self._report(label, None)
        return chain

    async def start(self, cell: StudyCell, model: Model) -> None:
        """Start the server of a model, if it has one to start."""
        server = server_of(model)
        if server is None:
            return
        try:
            await self._driven(cell.label.model, lambda: server.start(cell.task))
        finally:
            self._report(cell.label.model, None)

    async def _driven(self, label: str, work: Callable[[], Iterator[Progress]]) -> None:
        """Do work that reports progress, in a thread, which stops at its next report."""
        interrupted = False
        meter = Meter(LoopTill(self._till, asyncio.get_running_loop()))

        def drive() -> None:
            METER.set(meter)  # in this thread's own context
            steps = work()
            try:
                while not (interrupted or self._stop.asked):
                    progress = next(steps, None)
                    if progress is None:
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

    async def _make_elsewhere(
        self, executor: Executor, method: Method, cell: StudyCell, index: int, model: Model
    ) -> None:
        """Make the method's missing outputs, as soon as no other preparation is making any."""
        label = cell.label.model
        assert isinstance(method, Prepared)
        while missing := set(await asyncio.to_thread(method.missing_outputs, model)):
            being_made = missing & self._being_made
            if being_made:
                self._report(label, {"model": label, "waits_for": min(being_made).name})
                self._changed.clear()
                await self._stop.unless_asked(self._changed.wait())
                continue
            needs = cell.hosting.needs(cell.model, *cell.making[index : index + 1])
            with self._reserved(missing):
                self._report(label, {"model": label, "waits_for": "room"})
                async with self._room:

                    def report(progress: Progress, reserved: set[Path] = missing) -> None:
                        self._report(label, {"model": label, **progress})
                        self._release({path for path in reserved if path.exists()})

                    await self._make_paid(executor, method, model, needs, report)
                    await self._until_visible(method, model)

    async def _make_paid(
        self,
        executor: Executor,
        method: Method,
        model: Model,
        needs: Resources,
        report: Callable[[Progress], None],
    ) -> None:
        """Make a method's outputs in another process; raise its allowance if it needs more."""
        ledger = self._till.ledger
        while True:
            reservation = ledger.open(None, preparing=True)
            allowance = await self._stop.unless_asked(self._allow(reservation, method, model))
            account: Account | None = None

            def listen(message: Progress | Account) -> None:
                nonlocal account
                if isinstance(message, Account):
                    account = message
                else:
                    report(message)

            try:
                await self._till.record()
                await self._stop.unless_asked(
                    executor.make(method, model, needs, listen, allowance)
                )
            finally:
                if account is None:
                    # It was killed, so all of its allowance may be spent.
                    lost = allowance or NOTHING
                    account = Account(lost, lost, int(lost != NOTHING))
                ledger.pay(reservation, account.spent, account.lost, account.lost_calls)
            ledger.overbilled = ledger.overbilled or account.overbilled
            refused = account.refused
            if refused is None and not account.overbilled:
                return
            remaining = ledger.remaining()
            if refused is None or not remaining or refused != refused.at_most(remaining):
                ledger.refused = ledger.refused or refused
                raise Stopped

    async def _allow(self, reservation: Reservation, method: Method, model: Model) -> Money | None:
        """Reserve an upper bound on what a method will still spend; None if there is no cap.

        If the caps leave less, reserve that, once nothing is in progress.
        """
        ledger = self._till.ledger
        if not ledger.limited:
            return None
        assert isinstance(method, Prepared)
        bound = NOTHING
        for limit in (await asyncio.to_thread(method.sampling_limits, model)).values():
            spend: Spend | None = await asyncio.to_thread(limit)
            if spend is None:
                raise UserError(
                    "the study's cap can't be kept: "
                    f"what `{method.title()}` asks of a model has no limit",
                    hint="give that model a `budget`, in completion tokens",
                )
            bound = bound.plus(priced_at_most(spend, None))
        while True:
            remaining = ledger.remaining()
            assert remaining
            amount = bound.at_most(remaining)
            if amount == bound or not ledger.calls:
                break
            await asyncio.sleep(0.05)  # until calls in progress have their bills
        if bound.tokens and not amount.tokens:
            ledger.refused = ledger.refused or bound
            raise Stopped
        ledger.hold(reservation, amount)
        return amount

    @contextmanager
    def _reserved(self, paths: set[Path]) -> Iterator[None]:
        self._being_made |= paths
        try:
            yield
        finally:
            self._release(paths)

    def _release(self, paths: set[Path]) -> None:
        if paths & self._being_made:
            self._being_made -= paths
            self._changed.set()

    async def _until_visible(self, method: Method, model: Model) -> None:
        """Wait until new files are visible here: shared storage may take seconds."""
        assert isinstance(method, Prepared)
        deadline = asyncio.get_running_loop().time() + PATIENCE
        while missing := await asyncio.to_thread(method.missing_outputs, model):
            if asyncio.get_running_loop().time() > deadline:
                raise UserError(
                    f"`{method.title()}` was made, but {min(missing)} is not there",
                    hint="$PONDER_MODELS must be on storage that every node shares: docs/gpus.md",
                )
            await asyncio.sleep(0.5)


def prepare(
    study: StudySpec, executor: Executor | None = None, store: Path = STORE
) -> Iterator[Progress]:
    """Prepare every model of the study. What already exists is not made again.

    Under a cap, the spending is recorded in the store, as a run of the study.
    """
    cells = {cell.model_key: cell for cell in study.cells if cell.methods}
    if cells:
        yield from _prepared(study, list(cells.values()), store, executor)


def make_model(study: StudySpec, label: str, out: Path, store: Path = STORE) -> Iterator[Progress]:
    """Prepare one model of the study whose methods change its weights, and copy these to `out`."""
    changed = {}
    for cell in study.cells:
        if any(map(changes_weights, cell.methods)):
            changed[cell.label.model] = cell
    cell = _chosen(study, changed, label, out, "model", "with new weights", "that changes weights")
    chains = yield from _prepared(study, [cell], store)
    model = chains[cell.model_key][-1]
    shutil.copytree(require(model, WithWeights).source(cell.task).folder, out, dirs_exist_ok=True)
    yield {"made": str(out)}


def make_reward(study: StudySpec, label: str, out: Path, store: Path = STORE) -> Iterator[Progress]:
    """Train the reward that one model of the study has on its own samples, and copy it to `out`."""
    trains = {}
    for cell in study.cells:
        for method in cell.methods:
            if training_seed(method) is not None and not changes_weights(method):
                trains[cell.label.model] = cell
    folders = {_reward_folder(cell, [cell.model]) for cell in trains.values()}
    if len(folders) == 1 and None not in folders:  # they differ in how they pick, not in the reward
        label = label or next(iter(trains))
    cell = _chosen(study, trains, label, out, "reward", "trained on own samples", "that trains one")
    chains = yield from _prepared(study, [cell], store)
    folder = _reward_folder(cell, chains[cell.model_key])
    assert folder
    shutil.copytree(folder, out, dirs_exist_ok=True)
    yield {"made": str(out)}


def _reward_folder(cell: StudyCell, chain: Sequence[Model]) -> Path | None:
    """Return the folder of the reward that a method trains, given the model before each method."""
    for method, model in zip(cell.methods, chain, strict=False):
        if isinstance(method, Prepared) and not method.changes_weights:
            folder = method.folder(model)
            if folder:
                return folder
    return None


def _prepared(
    study: StudySpec, cells: Sequence[StudyCell], store: Path, executor: Executor | None = None
) -> Generator[Progress, None, dict[bytes, list[Model]]]:
    """Prepare the models of cells, under the study's caps; return the chain of each by its key.

    Models are prepared in parallel in other processes, or one after another in this one. After an
    error, nothing more is made.
    """
    reports: deque[Progress] = deque()
    chains: dict[bytes, list[Model]] = {}

    def report(label: str, progress: Progress | None) -> None:
        if progress is not None:
            reports.append({"model": label, **progress})

    async def make(cell: StudyCell, preparations: Preparations) -> None:
        label = cell.label.model
        with error_at(f"{study.where}: model `{label}`"):
            chains[cell.model_key] = await preparations.chain(cell)
        reports.append({"ready": label})

    async def make_all(preparations: Preparations) -> None:
        if executor is None:
            for cell in cells:
                await make(cell, preparations)
        else:
            await asyncio.gather(*(make(cell, preparations) for cell in cells))

    async def begin(till: LedgerTill) -> asyncio.Task[None]:
        return asyncio.create_task(make_all(Preparations(executor, Stop(), report, till)))

    async def ended(work: asyncio.Task[None]) -> bool:
        done, _ = await asyncio.wait([work], timeout=0.2)
        if done:
            work.result()
        return bool(done)

    # whose end cancels what is in progress
    with _paid(study, store) as till, asyncio.Runner() as runner:
        work = runner.run(begin(till))
        done = False
        while not done:
            done = runner.run(ended(work))
            while reports:
                yield reports.popleft()
    return chains


@contextmanager
def _paid(study: StudySpec, path: Path) -> Iterator[LedgerTill]:
    """Count calls of models while the block runs; raise `UserError` at a cap of the study."""
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
        try:
            yield till
        except Stopped:
            tally = Tally(ledger=till.ledger, currency=currency(study.cells))
            message, *advice = cap_reached(tally)
            advice.append("what was paid for is kept")
            raise UserError(message, where=study.where, hint="; ".join(advice)) from None


def _chosen(
    study: StudySpec,
    cells: dict[str, StudyCell],
    label: str,
    out: Path,
    noun: str,
    kind: str,
    method: str,
) -> StudyCell:
    """Return the cell of a label, or the only one; raise `UserError` if there is none."""
    if not label and len(cells) == 1:
        label = next(iter(cells))
    if label not in cells:
        if label:
            message = f"{study.name} has no model `{label}` {kind}"
        elif cells:
            message = f"{study.name} has several {noun}s {kind}"
        else:
            message = f"{study.name} has no {noun} {kind}"
        names = ", ".join(f"--model '{name}'" for name in cells)
        hint = names or f"add a method {method}: ponder list methods"
        raise UserError(message, hint=hint)
    if out.exists() and any(out.iterdir()):
        raise UserError(f"{out} is not empty", hint="use another folder for -o")
    return cells[label]
