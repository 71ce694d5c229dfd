from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Before NumPy is loaded: two threads that wait for each other take longer than one, and more CPU.
for library in ("OMP", "OPENBLAS", "MKL"):
    os.environ.setdefault(f"{library}_NUM_THREADS", "1")
# pytest-xdist sets it for its workers; tables of a command that is not on a terminal don't fold.
os.environ.pop("COLUMNS", None)

import pytest
from click.testing import CliRunner, Result
from hypothesis import HealthCheck, settings

from ponder.cli import main

HERE = Path(__file__).parent

PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], database=None)
settings.register_profile("short", PATIENT, max_examples=100, derandomize=True)
settings.register_profile("fire", PATIENT, max_examples=5000, print_blob=True)
settings.load_profile("fire" if os.environ.get("PONDER_FIRE") else "short")


@pytest.fixture(autouse=True, scope="session")
def made_models(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Models that tests make go into a folder of their own, in subprocesses too."""
    os.environ["PONDER_MODELS"] = str(tmp_path_factory.mktemp("models"))


@pytest.fixture(autouse=True, scope="session")
def no_hurry() -> Iterator[None]:
    """A busy machine doesn't reach the limits of seconds that change what Ponder does."""
    from ponder.models.endpoint import counting
    from ponder.study import check

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(counting, "SECONDS", 600.0)
        patch.setattr(check, "SECONDS", 600.0)
        patch.setattr(check, "SOME_SECONDS", 600.0)
        yield


@dataclass(frozen=True)
class Served:
    """A running endpoint."""

    url: str

    def _get(self, page: str) -> dict[str, Any]:
        with urllib.request.urlopen(self.url.replace("/v1", f"/{page}"), timeout=300) as response:
            state: dict[str, Any] = json.load(response)
            return state

    def state(self) -> dict[str, Any]:
        """What it has seen so far."""
        return self._get("state")

    def wait(self, **counts: int) -> dict[str, Any]:
        """The same, once it has seen this much: `wait(held=4)`."""
        return self._get("wait?" + "&".join(f"{name}={n}" for name, n in counts.items()))

    def calm(self) -> dict[str, Any]:
        """End all faults."""
        return self._get("calm")

    def release(self, fault: str = "") -> dict[str, Any]:
        """Let it answer what it holds, or only what one of its faults holds."""
        return self._get(f"release?fault={fault}" if fault else "release")


@pytest.fixture
def serve() -> Iterator[Callable[..., Served]]:
    """Start an endpoint with the faults given; it ends with the test."""
    running = []

    def start(**faults: Any) -> Served:
        process = subprocess.Popen(
            [sys.executable, str(HERE / "server.py"), json.dumps(faults)],
            stdout=subprocess.PIPE,
            text=True,
        )
        running.append(process)
        assert process.stdout is not None
        return Served(f"http://127.0.0.1:{process.stdout.readline().strip()}/v1")

    yield start
    for process in running:
        process.kill()
        process.communicate()


@pytest.fixture
def running(folder: Path) -> Callable[..., AbstractContextManager[subprocess.Popen[str]]]:
    """The command line in a process of its own, which is killed at the end if it still runs.

    `first` is Python that the process runs before.
    """
    # Where the tests run in the background SIGINT may be ignored, under nohup SIGHUP, and a child
    # would ignore it too.
    heed = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "signal.signal(signal.SIGHUP, signal.SIG_DFL)"
    )

    @contextmanager
    def start(*words: str, first: str = "pass") -> Iterator[subprocess.Popen[str]]:
        code = f"{heed}; {first}; from ponder.cli import main; main()"
        command = [sys.executable, "-c", code, *words]
        with subprocess.Popen(
            command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
        ) as process:
            try:
                yield process
            finally:
                process.kill()

    return start


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that endpoints have waited between tries; here they take no time."""
    from ponder.models.endpoint import client

    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    monkeypatch.setattr(client, "sleep", sleep)
    return waits


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to work in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of made models, where nothing has been made yet."""
    from ponder.models import models_folder

    monkeypatch.setenv("PONDER_MODELS", str(tmp_path / "models"))
    return models_folder()


@pytest.fixture
def ponder(folder: Path) -> Callable[..., Result]:
    """The command line, in an empty folder, in this process."""

    def call(*words: str) -> Result:
        return CliRunner().invoke(main, [str(w) for w in words], catch_exceptions=False)

    return call


@pytest.fixture
def write(folder: Path) -> Callable[..., str]:
    """Write a file into the folder and return its name."""

    def write(name: str, text: str) -> str:
        (folder / name).write_text(text, "utf-8")
        return name

    return write


@pytest.fixture(scope="session")
def viewed_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with known attempts, for the tests of `ponder view`."""
    from viewed import fill, study

    path = tmp_path_factory.mktemp("view") / "ponder.db"
    fill(path, study())
    return path


@pytest.fixture(scope="module")
def address(viewed_store: Path) -> Iterator[str]:
    """The address of a page that shows it."""
    from viewed import served

    with served(viewed_store) as address:
        yield address
