"""Make what the methods of a study need, without running it: models that they train, and the predictor of `dynts`.

For the predictor, the model answers problems of the study's own tasks and sizes, but others than those that the study
asks; from the traces that come out right it learns what answers look at. It is put beside the model's weights.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ponder.core import Report, Task, UserError, seed_from
from ponder.study import Study

if TYPE_CHECKING:
    from ponder.caches.dynts.predictor import Trace
    from ponder.models.transformers import Loaded, Transformers


def make(study: Study, label: str, out: Path) -> Iterator[Report]:
    """Make a model of the study that has weights of its own, and put them into a folder."""
    made = {cell.model_label: cell for cell in study.cells if any(hasattr(m, "on") for m in cell.methods)}
    if not label and len(made) == 1:
        label = next(iter(made))
    if label not in made:
        what = f"there is no model `{label}` with weights of its own in {study.name}" if label else "which model?"
        names = (
            ", ".join(f"--model '{name}'" for name in made) or "none of its models has a method that changes weights"
        )
        raise UserError(what, hint=names)
    if out.exists() and any(out.iterdir()):
        raise UserError(f"{out} is not empty", hint="give -o another folder")
    cell, model = made[label], made[label].model
    for method in cell.methods:
        yield from method.make(model)
        model = method.apply(model)
    shutil.copytree(model.source(cell.task).folder, out, dirs_exist_ok=True)
    yield {"made": str(out)}


def fit(study: Study, problems: int) -> Iterator[dict[str, Any]]:
    """One predictor for each model and task that the study puts under `dynts`; says now and then how it stands."""
    from ponder.caches.dynts.predictor import Recipe, fit
    from ponder.models.transformers import load

    wanted: dict[Path, tuple[Transformers, dict[tuple[str, int], tuple[Task, int]]]] = {}
    for cell in study.cells:
        if any(getattr(method, "policy", "") == "dynts" for method in cell.methods):
            model: Transformers = cell.method_model()  # type: ignore[assignment]
            asked = wanted.setdefault(model.folder(cell.task), (model, {}))[1]
            asked[cell.task_label, cell.size] = (cell.task, cell.size)
    if not wanted:
        raise UserError(
            "no model of this study is under `dynts`", hint='method = [{ name = "compress", policy = "dynts", … }]'
        )
    for folder, (model, asked) in wanted.items():
        loaded = load(*model.source(next(iter(asked.values()))[0]))
        traces: list[Trace] = []
        for task, size in asked.values():
            found = list(right(loaded, task, size, problems, seed_from("fit", study.seed), model.budget))
            traces += found
            yield {"task": task.plugin_name(), "size": size, "asked": problems, "right": len(found)}
        said = {"task": ", ".join(dict.fromkeys(task.plugin_name() for task, _ in asked.values()))}
        yield from fit(loaded.model, traces, Recipe(), folder, said)
        yield {"made": str(folder / "dynts.safetensors")}


def right(loaded: Loaded, task: Task, size: int, problems: int, seed: int, budget: int) -> Iterator[Trace]:
    """Traces of the problems that the model solves, with the likeliest words."""
    from ponder.caches.dynts.predictor import Trace
    from ponder.models.transformers import Loop, Text
    from ponder.training.rollouts import Asked

    loop, waiting = Loop(loaded, None, None, rows=16), []
    for problem in islice(task.problems(size, seed), problems):
        if len(problem.turns) > 1:
            raise UserError("a predictor learns from single turns", hint="per_turn = 0")
        request = Asked(task, problem).request()
        waiting.append((request, Text(loaded.prompt(request), budget, 0.0, 0, bool)))
    asked = list(waiting)
    while waiting or loop.busy:
        while waiting and loop.room:
            loop.join(waiting.pop()[1])
        if loop.busy:
            loop.step()
    for request, text in asked:
        _, answer, _ = loaded.read(request, text)
        if text.ended and loaded.end_of_thinking in text.said and task.grade(request.problem, answer).correct:
            start = len(text.prompt)
            yield Trace(text.prompt + text.said, start, start + text.said.index(loaded.end_of_thinking) + 1)
