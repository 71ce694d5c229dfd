"""What a report logs to MLflow and Weights & Biases.

The libraries themselves are asked if `.venv-track` is there.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ponder import Study
from ponder.results.interop.tracking import tracked
from ponder.results.results import Results

TRACKERS = Path(__file__).parent.parent / ".venv-track" / "bin"
LOG = Path(__file__).parent / "data" / "logs" / "sums.json"
STUDY = """problems = 4
[[task]]
name = "chain_sum"
size = [2, 40]
[[model]]
name = "oracle"
critical_size = [3, 100]
[[figure]]
name = "accuracy"
"""


def test_every_model_is_a_run_with_its_estimates(ponder, write) -> None:
    write("s.toml", STUDY)
    assert ponder("run", "s.toml").exit_code == 0
    study = Study.load("s.toml")
    results = Results(study, Path("ponder.db"))
    weak, strong, figures = tracked(results, [Path("a.png")])
    outcomes = results.outcomes
    assert (figures.name, figures.files, figures.metrics) == ("figures", [Path("a.png")], {})
    assert weak.name == outcomes[0].label.model != strong.name
    assert len({weak.key, strong.key, figures.key}) == 3
    assert (weak.settings["model.name"], weak.settings["model.critical_size"]) == ("oracle", 3)
    mine = [o for o in outcomes if o.label.model == weak.name]
    assert (
        weak.metrics["accuracy"]
        == sum(o.correct for o in mine) / len(mine)
        < strong.metrics["accuracy"]
    )
    assert weak.metrics["accuracy_low"] < weak.metrics["accuracy"] < weak.metrics["accuracy_high"]
    assert weak.metrics["accuracy_problems"] == 8
    assert weak.metrics["wrong"] == sum(not o.correct for o in mine)
    assert weak.metrics["output_tokens"] == pytest.approx(
        sum(o.tokens("output") for o in mine) / len(mine)
    )
    assert {*weak.by_size} == {2, 40}
    assert weak.by_size[40]["accuracy_at_size"] == sum(o.correct for o in mine if o.size == 40) / 4


def test_a_package_that_is_missing_is_named_before_anything_is_drawn(
    ponder, write, monkeypatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name, *_: None)
    result = ponder("report", write("s.toml", STUDY), "--track", "wandb")
    assert (result.exit_code, "--track wandb needs a package" in result.stderr) == (2, True)
    assert not Path("reports").exists()


MLFLOW = """import os
def get_tracking_uri():
    return os.environ["MLFLOW_TRACKING_URI"]
class MlflowClient:
    def __getattr__(self, name):
        raise RuntimeError("asked")  # and tries again for minutes
"""


@pytest.mark.parametrize("status", [0, 503, 401])
def test_a_tracking_server_that_is_down_is_an_error_at_once(
    ponder, write, serve, monkeypatch, status
) -> None:
    write("mlflow.py", MLFLOW)
    monkeypatch.syspath_prepend(str(Path.cwd()))
    monkeypatch.delitem(sys.modules, "mlflow", raising=False)
    uri = serve(models=status).url + "/models" if status else "http://127.0.0.1:9"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri.replace("//", "//me:secret@"))
    ponder("run", write("s.toml", STUDY))
    result = ponder("report", "s.toml", "--track", "mlflow")
    sys.modules.pop("mlflow")
    assert result.exit_code == 2
    assert result.stdout.splitlines()[0] == "reports/s/report.html"  # before anything is logged
    why = {0: f"nothing answers at {uri}: ", 503: f"{uri} answers HTTP 503", 401: "asked"}[status]
    assert f"mlflow can't log this report: {why}" in result.stderr
    assert "hint: the report itself is written" in result.stderr


@pytest.mark.skipif(not TRACKERS.exists(), reason="scripts/bench-peers makes .venv-track")
def test_mlflow_and_wandb(ponder, folder) -> None:
    assert ponder("import", LOG).exit_code == 0

    def report(tracker: str, **variables: str) -> str:
        done = subprocess.run(
            [TRACKERS / "ponder", "report", "sums.toml", "--track", tracker],
            capture_output=True, text=True, check=False, env={**os.environ, **variables},
        )  # fmt: skip
        return done.stderr

    files = {"MLFLOW_TRACKING_URI": f"file:{folder}/mlruns", "MLFLOW_ALLOW_FILE_STORE": "true"}
    for _ in range(2):  # the second report updates the runs of the first
        assert "2 runs logged to mlflow" in report("mlflow", **files)
    [accuracy] = folder.glob("mlruns/*/*/metrics/accuracy")
    assert [line.split()[1] for line in accuracy.read_text().splitlines()] == ["0.5", "0.5"]
    assert len(list(folder.glob("mlruns/*/*/artifacts/accuracy.png"))) == 1
    assert "2 runs logged to wandb" in report("wandb", WANDB_MODE="offline")
    assert len(list(folder.glob("wandb/offline-run-*"))) == 2
    assert "can't log this report" in report("mlflow", MLFLOW_TRACKING_URI="nowhere://x")
