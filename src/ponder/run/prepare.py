"""Makes what a study needs before it can run: trained or merged weights, fitted eviction policies.

`ponder run` makes it when it reaches the models that need it; `ponder prepare` makes all of it
first, for example on a machine with a GPU. Both use `Preparations`, which makes things here, or in
other processes, several at once and nothing twice. A chain of methods is made in its order. What
doesn't depend on each other is made at once: variants, training seeds. Two preparations may need
the same thing, such as samples to train on or a merged model that both start from. Then the first
makes it, and the others wait until it is there, not until the first is done.
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
from ponder.study.labels import cells_called
from ponder.study.study import StudySpec

PATIENCE = 60.0  # seconds until a file that another machine has written must be seen here
STORE = Path("ponder.db")  # counts what a study with a cap spends


class Preparations:
    """Trains or builds the models of cells and applies their methods, for each model once.

    `report` is called with a model's label and its progress, and with None at the end. Calls to
    models, such as teachers, are counted by the `till`; if its caps leave no room for one, `Stopped`
    is raised.
    """

    def __init__(
        self,
        executor: Executor | None,
        stop: Stop,
        report: Callable[[str, Progress | None], None],
        till: LedgerTill | None = None,
    ) -> None:
        self._executor, self._stop, self._report = executor, stop, report
        self._till = till or LedgerTill(Ledger())
        self._room = asyncio.Semaphore(executor.jobs or 1_000_000 if executor else 1)
        self._chains: dict[bytes, asyncio.Task[list[Model]]] = {}
        self._being_made: set[Path] = set()
        self._changed = asyncio.Event()

    async def model(self, cell: StudyCell) -> Model:
        """Return the cell's model with all of its methods prepared and applied."""
        return (await self.chain(cell))[-1]

    async def chain(self, cell: StudyCell) -> list[Model]:
        """Return the cell's base model, and the model after each of its methods."""
        if cell.model_key not in self._chains:
            self._chains[cell.model_key] = asyncio.create_task(self._make(cell))
        return await self._chains[cell.model_key]

    async def _make(self, cell: StudyCell) -> list[Model]:
        """Call `make` of each method, here or in another process, then `apply`.

        Models are prepared nowhere else.
        """
        label = cell.label.model
        chain = [cell.model]
        try:
            for index, method in enumerate(cell.methods):
                model = chain[-1]
                if isinstance(method, Prepared):
                    if self._executor:
                        await self._make_in_executor(self._executor, method, cell, index, model)
                    # It does nothing if the executor has made everything.
                    await self._run_with_progress(label, partial(method.make, model))
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
            await self._run_with_progress(cell.label.model, lambda: server.start(cell.task))
        finally:
            self._report(cell.label.model, None)

    async def _run_with_progress(self, label: str, work: Callable[[], Iterator[Progress]]) -> None:
        """Run a generator of progress reports in a thread; it can be stopped between two reports."""
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

    async def _make_in_executor(
        self, executor: Executor, method: Method, cell: StudyCell, index: int, model: Model
    ) -> None:
        """Make a method's missing outputs in another process.

        First wait until no other preparation is making one of them.
        """
        label = cell.label.model
        assert isinstance(method, Prepared)
        while missing := set(await asyncio.to_thread(method.missing_outputs, model)):
            if missing & self._being_made:
                self._report(
                    label, {"model": label, "waits_for": min(missing & self._being_made).name}
                )
                self._changed.clear()
                await self._stop.unless_asked(self._changed.wait())
                continue
            needs = cell.hosting.needs(cell.model, *cell.making[index : index + 1])
            with self._claimed(missing):
                self._report(label, {"model": label, "waits_for": "room"})
                async with self._room:

                    def report(progress: Progress, claimed: set[Path] = missing) -> None:
                        self._report(label, {"model": label, **progress})
                        self._release({path for path in claimed if path.exists()})

                    await self._make_paid(executor, method, model, needs, report)
                    await self._wait_for_outputs(method, model)

    async def _make_paid(
        self,
        executor: Executor,
        method: Method,
        model: Model,
        needs: Resources,
        report: Callable[[Progress], None],
    ) -> None:
        """Call a method's `make` in another process, with an allowance of tokens and money.

        If the allowance was too small and the caps leave more, try again with a larger one.
        """
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
                lost = allowance or NOTHING
                # it was killed: nobody knows
                spent = account or Account(lost, lost, int(lost != NOTHING))
                ledger.pay(reservation, spent.spent, spent.lost, spent.lost_calls)
            ledger.overbilled = ledger.overbilled or spent.overbilled
            if spent.refused is None and not spent.overbilled:
                return
            left = ledger.remaining()
            if spent.refused is None or not left or spent.refused != spent.refused.at_most(left):
                ledger.refused = ledger.refused or spent.refused
                raise Stopped

    async def _allow(self, reservation: Reservation, method: Method, model: Model) -> Money | None:
        """Reserve and return an upper bound on what a method may spend; None if there is no cap.

        If the caps leave less, wait until no call is in progress, and reserve what they leave then.
        """
        ledger = self._till.ledger
        if not ledger.limited:
            return None
        assert isinstance(method, Prepared)
        most = NOTHING
        for limit in (await asyncio.to_thread(method.sampling_limits, model)).values():
            spend: Spend | None = await asyncio.to_thread(limit)
            if spend is None:
                what = f"the study's cap can't be kept: what `{method.title()}` asks of a model has no limit"
                raise UserError(what, hint="give that model a `budget`, in completion tokens")
            most = most.plus(priced_at_most(spend, None))
        while True:
            left = ledger.remaining()
            assert left
            amount = most.at_most(left)
            if amount == most or not ledger.calls:
                break
            await asyncio.sleep(0.05)  # until what is in progress has its bill
        if most.tokens and not amount.tokens:
            ledger.refused = ledger.refused or most
            raise Stopped
        ledger.hold(reservation, amount)
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

    async def _wait_for_outputs(self, method: Method, model: Model) -> None:
        """Wait until outputs of another machine are visible here: shared storage may take seconds."""
        assert isinstance(method, Prepared)
        deadline = asyncio.get_running_loop().time() + PATIENCE
        while missing := await asyncio.to_thread(method.missing_outputs, model):
            if asyncio.get_running_loop().time() > deadline:
                what = f"`{method.title()}` was made, but {min(missing)} is not there"
                raise UserError(
                    what,
                    hint="$PONDER_MODELS must be on storage that every node shares: docs/gpus.md",
                )
            await asyncio.sleep(0.5)


def prepare(
    study: StudySpec, executor: Executor | None = None, store: Path = STORE
) -> Iterator[Progress]:
    """Make what every model of the study needs. What already exists is not made again.

    Under a cap, what that takes is recorded in the store at a path, as a run of the study.
    """
    cells = {cell.model_key: cell for cell in study.cells if cell.methods}
    if cells:
        yield from _prepared(study, list(cells.values()), store, executor)


def make_model(study: StudySpec, label: str, out: Path, store: Path = STORE) -> Iterator[Progress]:
    """Make one model of the study whose methods change its weights, and copy the weights into a
    folder.
    """
    changed = [cell for cell in study.cells if any(map(changes_weights, cell.methods))]
    cell = _chosen(study, changed, label, out, "model", "with new weights", "that changes weights")
    chains = yield from _prepared(study, [cell], store)
    model = chains[cell.model_key][-1]
    shutil.copytree(require(model, WithWeights).source(cell.task).folder, out, dirs_exist_ok=True)
    yield {"made": str(out)}


def make_reward(study: StudySpec, label: str, out: Path, store: Path = STORE) -> Iterator[Progress]:
    """Make the reward that one model of the study trains on its own samples, and copy it into a
    folder.
    """
    trains = []
    for cell in study.cells:
        if any(
            training_seed(method) is not None and not changes_weights(method)
            for method in cell.methods
        ):
            trains.append(cell)
    folders = {_reward_folder(cell, [cell.model]) for cell in trains}
    if len(folders) == 1 and None not in folders:  # they differ in how they pick, not in the reward
        label = label or trains[0].label.model
    cell = _chosen(study, trains, label, out, "reward", "trained on own samples", "that trains one")
    chains = yield from _prepared(study, [cell], store)
    folder = _reward_folder(cell, chains[cell.model_key])
    assert folder
    shutil.copytree(folder, out, dirs_exist_ok=True)
    yield {"made": str(out)}


def _reward_folder(cell: StudyCell, chain: Sequence[Model]) -> Path | None:
    """Return where the reward is that a method of the cell trains, given the model before each
    method.
    """
    for method, model in zip(cell.methods, chain, strict=False):
        if isinstance(method, Prepared) and not method.changes_weights:
            folder = method.folder(model)
            if folder:
                return folder
    return None


def _prepared(
    study: StudySpec, cells: Sequence[StudyCell], store: Path, executor: Executor | None = None
) -> Generator[Progress, None, dict[bytes, list[Model]]]:
    """Make the models of cells, under the study's caps; return the chain of each by its key.

    In other processes, what doesn't depend on each other is made at once; here, one after another.
    After an error, nothing more is made.
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
    """Count what is asked of models while the block runs, under the study's caps; raise `UserError`
    at a cap.
    """
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
            what, *advice = cap_reached(tally)
            raise UserError(
                what, where=study.where, hint="; ".join([*advice, "what was paid for is kept"])
            ) from None


def _chosen(
    study: StudySpec,
    cells: Sequence[StudyCell],
    label: str,
    out: Path,
    noun: str,
    kind: str,
    method: str,
) -> StudyCell:
    """Return a cell of the model with this label; "" means the only model of the cells.

    Raise `UserError` if there is no such model, or if the folder `out` is not empty.
    """
    labels = list(dict.fromkeys(cell.label.model for cell in cells))
    if not label and len(labels) == 1:
        label = labels[0]
    matching = cells_called(cells, "model", label)
    if not matching:
        message = f"{study.name} has no {noun} {kind}"
        if label:
            message = f"{study.name} has no model `{label}` {kind}"
        elif labels:
            message = f"{study.name} has several {noun}s {kind}"
        hint = ", ".join(f"--model '{name}'" for name in labels)
        raise UserError(message, hint=hint or f"add a method {method}: ponder list methods")
    if out.exists() and any(out.iterdir()):
        raise UserError(f"{out} is not empty", hint="use another folder for -o")
    return matching[-1]
