"""Models that other processes hold: every request is answered, as it would be here, whatever is
lost on the way.
"""

from __future__ import annotations

import asyncio
import itertools
import pickle
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from ponder import Study
from ponder.core import Completion, ModelFailure, Request, UserError
from ponder.core.wrapped import server_of
from ponder.methods.vote import Vote
from ponder.models.oracle import Oracle
from ponder.models.pocket import Pocket
from ponder.models.vllm import Vllm
from ponder.run import workers
from ponder.run.progress import Tally
from ponder.run.run import run
from ponder.run.workers import Hosted, HostLost, packed, received, unpacked
from ponder.store.store import Store
from ponder.study.cell import Cell, Hosting, Resources
from ponder.tasks.chain_sum import ChainSum

TABLE = {
    "task": [{"name": "execution", "dictionary": 6, "size": [2, 3]}],
    "model": [
        {
            "name": "pocket",
            "temperature": 1.0,
            "ray": {"replicas": 2},
            "method": [{"name": "vote", "n": 2}],
        }
    ],
    "problems": 10,
}


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "AGAIN", 0.0)


class FakeHost:
    """Holds a copy of a model in this process, sent as to another one.

    It dies after as many answers as it is told.
    """

    def __init__(
        self, sent: bytes, dies: Sequence[int] = (), opens: Callable[[], Any] = bool
    ) -> None:
        self._sent, self._opens = sent, opens
        self._left = [*dies, -1]  # answers until it is lost, in each life; -1: it lives on
        self.answers, self.closed, self._model = 0, False, None

    async def open(self) -> None:
        self._opens()
        model, self.tasks = unpacked(self._sent)
        self._model, self._in_progress = await model.__aenter__(), set[asyncio.Task[Completion]]()

    async def complete(self, task: int, request: Request) -> Completion:
        await asyncio.sleep(0)
        if self._model is None or self._left[0] == 0:
            self._die()
            raise HostLost("the node is gone")
        self._left[0] -= 1
        # A request and its reply travel as bytes.
        arrived = received(pickle.loads(pickle.dumps(request)), self.tasks[task])
        answering = asyncio.create_task(self._model.complete(arrived))
        self._in_progress.add(answering)
        try:
            reply = await answering
        except asyncio.CancelledError:
            raise HostLost("the node is gone") from None
        self.answers += 1
        return pickle.loads(pickle.dumps(reply))

    def _die(self) -> None:
        """With all that is in progress."""
        if self._model is not None:
            self._model = None
            self._left.pop(0)
            for answering in self._in_progress:
                answering.cancel()

    def close(self) -> None:
        self.closed = True


class FakeCluster:
    """An executor whose hosts are in this process."""

    jobs = None

    def __init__(self, dies: Sequence[Sequence[int]]) -> None:
        self.hosts: list[FakeHost] = []
        self._dies = iter(dies)

    def queue(self, cell: Cell) -> str:
        return cell.label.model

    def hosted(self, cells: Sequence[Cell], model: Any) -> Hosted:
        tasks = list({id(cell.task): cell.task for cell in cells}.values())

        def start() -> FakeHost:
            self.hosts.append(FakeHost(packed(model, tasks), next(self._dies)))
            return self.hosts[-1]

        return Hosted(model, tasks, start, cells[0].hosting.replicas)

    async def make(self, *_: Any) -> None:
        raise AssertionError("there is nothing to make")


def stored(path: Path, executor: Any = None, **changes: Any) -> tuple[list[Any], Tally]:
    """What a run stores, but for seconds and the order of arrival."""
    study, tally = Study.from_table({**TABLE, **changes}), Tally()
    with Store(path, lock=True) as store:
        asyncio.run(run(study, store, tally, executor=executor))
        outcomes = [
            outcome._replace(seconds=0.0, attempt=0) for outcome in store.outcomes(study.cells)
        ]
        return sorted(outcomes, key=lambda outcome: (outcome.size, outcome.problem)), tally


def test_a_run_with_lost_hosts_stores_what_it_stores_without_them(tmp_path) -> None:
    here, _ = stored(tmp_path / "here.db")
    cluster = FakeCluster([[3, 2], [4]])
    there, tally = stored(tmp_path / "there.db", cluster)
    assert len(there) == 20
    assert there == here
    assert (tally.failed, tally.retries.total(), tally.making) == (0, 0, {})
    assert len(cluster.hosts) == 2
    assert all(host.answers and host.closed for host in cluster.hosts)


def test_a_cap_holds_for_hosts_too(tmp_path) -> None:
    short = [{**TABLE["model"][0], "budget": 500}]
    tokens = sum(
        o.prompt_tokens + o.thinking_tokens + o.answer_tokens
        for o in stored(tmp_path / "here.db", model=short)[0]
    )
    cluster = FakeCluster([[3], []])
    _, tally = stored(tmp_path / "s.db", cluster, model=short, max_tokens=tokens, cap_per="run")
    assert tally.ledger.capped
    assert 0 < tally.tokens < tokens


TASK = ChainSum()
SENT = packed(Oracle(), [TASK])


def requests(number: int, task: ChainSum) -> list[Request]:
    return [
        Request.first_turn(task, problem)
        for problem in itertools.islice(task.problems(3, 0), number)
    ]


def asked(model: Hosted, number: int = 12, at_once: int = 64) -> list[Any]:
    async def all_of_them() -> list[Any]:
        async with model:
            replies, waiting = list[Any](), requests(number, TASK)
            for start in range(0, number, at_once):
                replies += await asyncio.gather(
                    *map(model.complete, waiting[start : start + at_once])
                )
            return replies

    return asyncio.run(all_of_them())


def hosted(*hosts_of: FakeHost, inner: Any = None) -> Hosted:
    started = iter(hosts_of)
    return Hosted(inner or Oracle(), [TASK], lambda: next(started), len(hosts_of))


def test_requests_are_shared_evenly() -> None:
    both = [FakeHost(SENT), FakeHost(SENT)]
    assert len(asked(hosted(*both))) == 12
    assert [host.answers for host in both] == [6, 6]


def test_a_host_without_room_gets_no_request() -> None:
    class Waiting(FakeHost):
        async def open(self) -> None:
            await asyncio.Event().wait()

        async def complete(self, task: int, request: Request) -> Completion:
            raise AssertionError("this request would wait forever")

    waiting, up = Waiting(SENT), FakeHost(SENT)
    assert len(asked(hosted(waiting, up))) == 12
    assert (waiting.answers, up.answers) == (0, 12)


def test_a_model_that_never_answers_ends_the_run() -> None:
    model = hosted(FakeHost(SENT, dies=[0] * 50))
    with pytest.raises(
        UserError, match=r"ended 5 times without an answer: the node is gone"
    ) as error:
        asked(model, 1)
    assert "memory" in error.value.hint
    # But with an answer each time it goes on.
    assert len(asked(hosted(FakeHost(SENT, dies=[1] * 50)), 12, at_once=1)) == 12


def test_a_lost_host_may_take_long_to_come_back(monkeypatch) -> None:
    looks = []

    def opens() -> None:
        looks.append(1)
        if 2 <= len(looks) < 20:
            raise HostLost("its node is gone")

    assert len(asked(hosted(FakeHost(SENT, dies=[3], opens=opens)), at_once=1)) == 12
    assert len(looks) == 20
    looks.clear()
    monkeypatch.setattr(workers, "MAX_LOOKS", 10)
    with pytest.raises(UserError, match="no node holds oracle any more: its node is gone"):
        asked(hosted(FakeHost(SENT, dies=[3], opens=opens)), at_once=1)


def test_an_error_of_a_host_is_the_users() -> None:
    def refuse() -> None:
        raise UserError("this node doesn't see the weights", where="node 10.0.0.2")

    host = FakeHost(SENT, opens=refuse)
    with pytest.raises(UserError, match="doesn't see the weights"):
        asked(hosted(host))
    assert host.closed


def test_a_failed_call_is_no_lost_host() -> None:
    class Failing(FakeHost):
        async def complete(self, task: int, request: Request) -> Completion:
            raise ModelFailure("no answer")

    with pytest.raises(ModelFailure, match="no answer"):
        asked(hosted(Failing(SENT)), 1)


# What a study says about a cluster.


def test_what_a_model_needs_on_a_cluster_is_in_no_key_and_no_label() -> None:
    def cells(**ray: Any) -> list[tuple[bytes, str]]:
        model = {"name": "pocket", **ray, "method": [{"name": "vote", "n": 2, **ray}]}
        return [
            (cell.key, cell.label.model)
            for cell in Study.from_table({**TABLE, "model": [model]}).cells
        ]

    assert cells(ray={"gpus": 2, "cpus": 4}) == cells()


def test_a_method_needs_what_it_says_or_what_its_model_needs() -> None:
    hosting = Hosting(gpus=1, cpus=4, replicas=8)
    assert hosting.needs(Pocket()) == hosting.needs(Pocket(), Resources()) == Resources(1, 4)
    assert hosting.needs(Pocket(), Resources(gpus=8)) == Resources(8, 4)
    assert Hosting().needs(Pocket()) == Resources(0, 1)
    torch = pytest.importorskip("ponder.models.transformers")
    assert Hosting().needs(torch.Transformers(id="pocket", device="cuda")) == Resources(1, 1)
    assert Hosting(gpus=0.5).needs(torch.Transformers(id="pocket", device="cuda:0")).gpus == 0.5
    assert [Resources(2, 1).text(), Resources(0, 4).text()] == ["2 GPUs, 1 CPU", "4 CPUs"]


@pytest.mark.parametrize(
    ("model", "what"),
    [
        (
            {"ray": {"gpu": 1}},
            "study: model[0].ray.gpu: `ray` has no key `gpu`\nhint: did you mean `gpus`?",
        ),
        ({"ray": {"replicas": 0}}, "study: model[0].ray: replicas must be at least 1, not 0"),
        ({"ray": {"gpus": -1}}, "study: model[0].ray: gpus and cpus can't be negative"),
        ({"ray": 4}, "study: model[0].ray: expected"),
        (
            {"method": [{"name": "vote", "n": 2, "ray": {"replicas": 2}}]},
            "model[0].method[0].ray.replicas: `ray` has no",
        ),
    ],
)
def test_wrong_resources(model, what) -> None:
    with pytest.raises(UserError) as error:
        _ = Study.from_table({**TABLE, "model": [{"name": "pocket", **model}]}).cells
    assert what in str(error.value)


def test_ray_that_is_not_installed(ponder, monkeypatch) -> None:
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name, *_: None if name == "ray" else object()
    )
    refused = ponder("run", "effort", "--ray", "auto", "--set", "problems=1")
    assert refused.exit_code == 2
    assert (
        "--ray needs a package that isn't installed: ray\nhint: pip install 'ponder-lab[ray]'"
        in refused.output
    )


def test_no_server_is_started_here_if_hosts_answer() -> None:
    hosted = Hosted(Vllm(id="pocket"), [], lambda: None, 1)
    assert server_of(Vote(2).apply(hosted)) is hosted
    assert list(hosted.start(TASK)) == []
