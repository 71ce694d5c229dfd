"""A real Ray cluster of two local nodes: the same store as without it, also if an actor or a node
is lost on the way.

Needs Ray: `make engines` runs it in a venv of its own.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

ray = pytest.importorskip("ray")

os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # so that 127.0.0.1 stays what it is

from engines import alive, done, fake_vllm, wait_for
from ray.cluster_utils import Cluster as LocalNodes

from ponder import Study
from ponder.core import UserError
from ponder.models import models_folder
from ponder.run import ray_cluster
from ponder.run.prepare import prepare
from ponder.run.progress import Tally
from ponder.run.ray_cluster import Cluster
from ponder.run.run import run
from ponder.store.store import Store

pytestmark = pytest.mark.filterwarnings("default")  # Ray's own
METHOD = str(Path(__file__).parent / "data/shared_training.py")
TABLE = {
    "task": [
        {"name": "tents", "size": [16, 20]},
        {"name": "execution", "dictionary": 6, "size": 3},
    ],
    "model": [
        {"name": "pocket", "temperature": 0.7, "ray": {"replicas": 2}},
        {"name": "pocket", "temperature": 0.7, "method": [{"name": "vote", "n": 2}]},
    ],
    "problems": 20,
}


@pytest.fixture(scope="module")
def nodes() -> Iterator[Any]:
    """Two nodes with two CPUs each; one may be removed, and is then put back."""
    local = LocalNodes(
        initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False}
    )
    local.add_node(num_cpus=2)
    yield local
    ray.shutdown()
    local.shutdown()


@pytest.fixture
def address(nodes) -> Iterator[str]:
    if len(nodes.list_all_nodes()) < 2:
        nodes.add_node(num_cpus=2)
    yield nodes.address
    ray.shutdown()


def stored(
    path: Path, address: str = "", meanwhile: Callable[[Tally], None] = bool
) -> tuple[list[Any], Tally]:
    """What a run stores, but for seconds and the order of arrival."""
    study, tally = Study.from_table(TABLE), Tally()
    with Store(path, lock=True) as store:
        if address:
            with Cluster(address, study.cells) as executor, ThreadPoolExecutor(1) as thread:
                acted = thread.submit(meanwhile, tally)
                asyncio.run(run(study, store, tally, executor=executor))
                acted.result()
        else:
            asyncio.run(run(study, store, tally))
        outcomes = [
            outcome._replace(seconds=0.0, attempt=0) for outcome in store.outcomes(study.cells)
        ]
        return sorted(outcomes, key=lambda o: (o.task, o.size, o.problem, o.sample)), tally


def after(number: int, act: Callable[[], object]) -> Callable[[Tally], None]:
    def wait_and_act(tally: Tally) -> None:
        while tally.done < number:
            time.sleep(0.01)
        act()

    return wait_and_act


@pytest.mark.parametrize("lost", ["node", "actor"])
def test_a_run_that_loses_a_node_or_an_actor_stores_the_same(
    nodes, address, models, tmp_path, lost
) -> None:
    here, _ = stored(tmp_path / "here.db")

    def lose_node() -> None:
        nodes.remove_node(
            next(node for node in nodes.list_all_nodes() if node != nodes.head_node),
            allow_graceful=False,
        )

    def lose_actor() -> None:
        host = next(host for host in gc.get_objects() if isinstance(host, ray_cluster._Actor))
        ray.kill(host._actor, no_restart=False)

    there, tally = stored(
        tmp_path / "there.db", address, after(30, lose_node if lost == "node" else lose_actor)
    )
    assert len(there) == 120
    assert there == here
    assert (tally.failed, tally.making) == (0, {})


@pytest.mark.parametrize("lost", [False, True])
def test_each_replica_of_vllm_is_an_actor_with_a_server_of_its_own(
    address, models, tmp_path, lost
) -> None:
    record = tmp_path / "record"
    python = fake_vllm(tmp_path, record=str(record))
    task = {"name": "execution", "dictionary": 6, "per_turn": 0, "size": [3, 5]}
    ray_keys = {"gpus": 0, "replicas": 2}
    model = {"name": "vllm", "id": "pocket", "python": python, "concurrency": 2, "ray": ray_keys}
    study, tally = Study.from_table({"task": [task], "model": [model], "problems": 20}), Tally()

    def lose_actor() -> None:
        host = next(host for host in gc.get_objects() if isinstance(host, ray_cluster._Actor))
        ray.kill(host._actor, no_restart=False)

    with Store(tmp_path / "there.db", lock=True) as store:
        with Cluster(address, study.cells) as executor, ThreadPoolExecutor(1) as thread:
            acted = thread.submit(after(5, lose_actor if lost else bool), tally)
            asyncio.run(run(study, store, tally, executor=executor))
            acted.result()
        there = {
            (o.size, o.problem): (o.thinking_tokens, o.correct) for o in store.outcomes(study.cells)
        }
    own = Study.from_table({"task": [task], "model": [{"name": "pocket"}], "problems": 20})
    with Store(tmp_path / "here.db", lock=True) as store:
        asyncio.run(run(own, store, Tally()))
        here = {
            (o.size, o.problem): (o.thinking_tokens, o.correct) for o in store.outcomes(own.cells)
        }
    assert there == here
    assert (len(there), tally.failed) == (40, 0)
    starts = done(record, "started")
    assert len(starts) >= 3 if lost else len(starts) == 2
    assert len({given["port"] for _, _, given in starts}) == len(starts)
    wait_for(
        lambda: not any(alive(pid) for server, engine, _ in starts for pid in (server, engine))
    )


def shared_training(folder: Path, **settings: Any) -> Study:
    method = {"name": METHOD, "path": str(folder), **settings}
    model = {"name": "oracle", "method": [method]}
    return Study(task=[{"name": "chain_sum", "size": [2]}], model=[model], problems=2)


def test_preparations_are_tasks_and_a_lost_one_is_resumed(address, models, tmp_path) -> None:
    study = shared_training(tmp_path, seed=[1, 2, 3], fault="killed", steps=4)
    with Cluster(address, study.cells) as executor:
        reports = list(prepare(study, executor))
    for cell in study.cells:
        assert {"model": cell.label.model, "waits_for": "1 CPU"} in reports
        assert {"ready": cell.label.model} in reports
    log = (tmp_path / "log.txt").read_text().splitlines()
    assert sum(line.startswith("sample") for line in log) == 1
    assert sum(line.startswith("begin") for line in log) == 6  # each was killed once
    assert sum(line.startswith("end") for line in log) == 3
    assert str(os.getpid()) not in {line.rpartition(" ")[2] for line in log}


def test_an_error_on_a_node_is_the_users(address, models, tmp_path) -> None:
    study = shared_training(tmp_path, fault="refused")
    with (
        Cluster(address, study.cells) as executor,
        pytest.raises(UserError, match="nothing to train on") as error,
    ):
        list(prepare(study, executor))
    assert error.value.hint == "draw more"


def test_a_node_that_does_not_see_the_made_models(address, models, tmp_path) -> None:
    study = shared_training(tmp_path)
    with Cluster(address, study.cells) as executor:
        (models_folder() / ray_cluster.MARK).write_text("another folder")
        with pytest.raises(
            UserError, match=r"this node doesn't see the run's \$PONDER_MODELS, /"
        ) as error:
            list(prepare(study, executor))
    assert error.value.where.startswith("node ")
    assert "storage that every node shares" in error.value.hint


def test_what_no_node_has_room_for(address, models) -> None:
    study = Study.from_table(
        {**TABLE, "model": [{"name": "pocket", "ray": {"gpus": 2, "cpus": 1}}]}
    )
    with (
        pytest.raises(
            UserError, match=r"no node has 2 GPUs, 1 CPU; the largest have 2 CPUs"
        ) as error,
        Cluster(address, study.cells),
    ):
        pass
    assert error.value.where == "model `pocket`"


def refused(address: str) -> UserError:
    with pytest.raises(UserError) as error, Cluster(address, []):
        pass
    assert error.value.where == "--ray"
    return error.value


def test_an_address_that_does_not_answer(models, monkeypatch) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        error = refused(f"127.0.0.1:{port}")  # bound, and nobody listens
        assert f"nothing answers at 127.0.0.1:{port}" in error.what
        assert "head node" in error.hint
        monkeypatch.setattr(ray_cluster, "HEALTH_SECONDS", 4.0)
        free.listen()
        assert (
            f"what answers at 127.0.0.1:{port} is not a Ray cluster"
            in refused(f"127.0.0.1:{port}").what
        )
    assert "is no address" in refused("head").what
    assert "Ray Client" in refused("ray://head:10001").what


CAPPED = """
problems = 20
max_tokens = {cap}
[[task]]
name = "execution"
size = 2
dictionary = 6
per_turn = 0
[[train]]
name = "execution"
size = 3
dictionary = 6
per_turn = 0
{model}
"""
SERVED = 'name = "endpoint", id = "served", url = "{url}", budget = 400, concurrency = 8'
ASKED = '[[model]]\nname = "endpoint"\nid = "served"\nurl = "{url}"\nbudget = 400'
TAUGHT = """
[[model]]
name = "pocket"
budget = 200
method = {{ name = "sft", teachers = [{{ %s }}], pool = 60, epochs = 1, number = 8, by = "random" }}
"""


@pytest.mark.parametrize("model", [ASKED, TAUGHT % SERVED], ids=["attempts", "teacher"])
def test_a_cap_holds_on_a_cluster(address, models, serve, write, ponder, model) -> None:
    served = serve(lengths={"median": 150, "sigma": 0.8})
    write("s.toml", CAPPED.format(cap=6000, model=model.format(url=served.url)))
    result = ponder("run", "s.toml", "--ray", address, "--json")
    assert result.exit_code in (0, 1), result.stderr
    tally = json.loads(result.stdout)
    assert tally["capped"]
    assert 3000 < served.state()["billed_tokens"] <= tally["tokens"] <= 6000
