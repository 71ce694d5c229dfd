"""Logs a report to MLflow or Weights & Biases: a run per model with its estimates, and one with the
figures.

A run's name there is the model's label, its group or experiment the study. A run is found again by
the study and the settings of its model: the next report of the same study updates it instead of
adding another. Where to log to, and with which account, is said to these libraries by their own
variables, such as MLFLOW_TRACKING_URI and WANDB_MODE.
"""

from __future__ import annotations

import math
import re
import ssl
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path
from typing import Any, Literal, TypeAlias
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

from ponder import __version__
from ponder.core import Estimate, Outcome, UserError, digest
from ponder.results.results import Results
from ponder.results.study import Study
from ponder.stats.accuracy import accuracy, by_size, mean
from ponder.stats.columns import columns
from ponder.study.cell import StudyCell
from ponder.study.labels import task_labels

Tracker: TypeAlias = Literal["mlflow", "wandb"]
FIGURES = "figures"  # name of the run that has them
ANSWER_SECONDS = 10.0  # for a tracking server to accept a connection


@dataclass(frozen=True)
class Tracked:
    """What is logged as one run."""

    name: str
    key: str  # equal in every report of the same study and model
    settings: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    by_size: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    files: Sequence[Path] = ()


def track(results: Results, files: Sequence[Path], tracker: Tracker) -> int:
    """Log a study's estimates, and the files of its report; returns the number of runs."""
    runs = tracked(results, files)
    try:
        _TRACKERS[tracker](results.study, runs)
    except Exception as error:  # of whatever these libraries raise, the user needs the sentence
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        hint = (
            "the report itself is written; MLFLOW_TRACKING_URI and WANDB_MODE say where to log to"
        )
        raise UserError(f"{tracker} can't log this report: {reason}", hint=hint) from error
    return len(runs)


def tracked(results: Results, files: Sequence[Path]) -> list[Tracked]:
    """Return a run for each model that has answers, and one for the figures."""
    study = results.study
    groups: dict[bytes, list[Outcome]] = {}
    for outcome in results.outcomes:
        groups.setdefault(outcome.cell.model_key, []).append(outcome)
    of_model = {cell.model_key: cell for cell in results.cells}
    runs = [_model(study, of_model[model], mine) for model, mine in groups.items()]
    return [*runs, Tracked(FIGURES, digest(study.name, FIGURES).hex(), files=files)]


def _model(study: Study, cell: StudyCell, outcomes: Sequence[Outcome]) -> Tracked:
    """Return the estimates of one model, by task if there are several, as one run."""
    metrics: dict[str, float] = {}
    sizes: dict[int, dict[str, float]] = {}
    tasks = task_labels(outcomes)
    for task_key, task in tasks.items():
        of_task = [outcome for outcome in outcomes if outcome.cell.task_key == task_key]
        prefix = f"{_plain(task)}/" if len(tasks) > 1 else ""
        data = columns(of_task, "output")
        metrics |= _estimate(f"{prefix}accuracy", accuracy(data.correct, data.problem))
        metrics |= _estimate(f"{prefix}output_tokens", mean(data.tokens, data.problem))
        for ending, number in Counter(outcome.ended for outcome in of_task).items():
            metrics[f"{prefix}{ending}"] = float(number)
        for row in by_size(data):
            at_size = sizes.setdefault(int(row.size), {})
            at_size |= _estimate(f"{prefix}accuracy_at_size", row.accuracy)
            at_size |= _estimate(f"{prefix}output_tokens_at_size", row.tokens)
    methods = [method.identity() for method in cell.methods]
    key = digest(study.name, cell.model.identity(), methods).hex()
    settings: dict[str, Any] = {}
    for name, value in cell.settings.items():
        if not name.startswith("task."):
            settings[name] = value
    settings["ponder"] = __version__
    return Tracked(cell.label.model, key, settings, metrics, sizes)


def _estimate(name: str, estimate: Estimate) -> dict[str, float]:
    """Return a value and its 95 % interval, without open ends, which trackers don't have."""
    values = {
        name: estimate.value,
        f"{name}_low": estimate.low,
        f"{name}_high": estimate.high,
        f"{name}_problems": estimate.problems,
    }
    return {key: float(value) for key, value in values.items() if math.isfinite(value)}


def _plain(name: str) -> str:
    """Return a name with the characters that MLflow takes."""
    return re.sub(r"[^\w. :/-]+", "-", name)


def _check_answers(uri: str) -> None:
    """Raise `ConnectionError` if nothing answers at a URL: MLflow itself would try for minutes,
    without a word.

    What isn't a URL is a file or a database. Of the rest, only that something answers is asked;
    MLflow knows more about accounts and certificates.
    """
    if not uri.startswith(("http://", "https://")):
        return
    uri = re.sub(r"//[^/]*@", "//", uri)  # without a password
    try:
        urlopen(uri, timeout=ANSWER_SECONDS).close()  # noqa: S310 its scheme is known
    except HTTPError as error:
        if error.code in (502, 503, 504):  # a proxy answers, and the server behind it doesn't
            raise ConnectionError(f"{uri} answers HTTP {error.code}") from None
    except URLError as error:
        if not isinstance(error.reason, ssl.SSLError):
            raise ConnectionError(f"nothing answers at {uri}: {error.reason}") from None
    except (OSError, HTTPException):
        pass  # it is connected, and slow or odd


def _mlflow(study: Study, runs: Sequence[Tracked]) -> None:
    import mlflow

    _check_answers(mlflow.get_tracking_uri())
    client = mlflow.MlflowClient()
    experiment = client.get_experiment_by_name(study.name)
    experiment_id = experiment.experiment_id if experiment else client.create_experiment(study.name)
    for tracked_run in runs:
        key = tracked_run.key
        existing_runs = client.search_runs(
            [experiment_id], f"tags.`ponder.key` = '{key}'", max_results=1
        )
        if existing_runs:
            run = existing_runs[0]
        else:
            tags = {"ponder.key": key, "ponder.study": study.title or study.name}
            run = client.create_run(experiment_id, tags=tags, run_name=tracked_run.name)
        run_id = run.info.run_id
        for name, value in tracked_run.settings.items():
            if _plain(name) not in run.data.params:
                client.log_param(run_id, _plain(name), str(value)[:500])
        for name, number in tracked_run.metrics.items():
            client.log_metric(run_id, name, number)
        for size, values in tracked_run.by_size.items():
            for name, number in values.items():
                client.log_metric(run_id, name, number, step=size)
        for file in tracked_run.files:
            client.log_artifact(run_id, str(file))
        client.set_terminated(run_id)


def _wandb(study: Study, runs: Sequence[Tracked]) -> None:
    import wandb

    for tracked_run in runs:
        about: dict[str, Any] = {
            "group": study.name,
            "name": tracked_run.name,
            "id": tracked_run.key,
            "resume": "allow",
        }
        with wandb.init(
            project="ponder", config={**tracked_run.settings, "study": study.name}, **about
        ) as run:
            run.summary.update(dict(tracked_run.metrics))
            if tracked_run.by_size:
                names = list(
                    dict.fromkeys(
                        name for values in tracked_run.by_size.values() for name in values
                    )
                )
                rows = [
                    [size, *(values.get(name) for name in names)]
                    for size, values in tracked_run.by_size.items()
                ]
                run.log({"by_size": wandb.Table(columns=["size", *names], data=rows)})
            pictures = {
                file.stem: wandb.Image(str(file))
                for file in tracked_run.files
                if file.suffix == ".png"
            }
            if pictures:
                run.log(pictures)
            if tracked_run.files:
                report = wandb.Artifact(f"{tracked_run.key}-report", type="report")
                for file in tracked_run.files:
                    report.add_file(str(file))
                run.log_artifact(report)


_TRACKERS: Mapping[Tracker, Callable[[Study, Sequence[Tracked]], None]] = {
    "mlflow": _mlflow,
    "wandb": _wandb,
}
