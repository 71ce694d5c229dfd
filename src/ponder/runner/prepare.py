"""Everything that must be made before a study runs: trained models, fitted eviction policies.

A run makes the same things when it gets to them; preparing makes them all first, for example on another machine.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

from ponder.core import Progress, UserError
from ponder.runner.study import Study


def prepare(study: Study) -> Iterator[Progress]:
    """Make what every model of the study needs. What is already there is not made again."""
    chains = {cell.model_label: cell for cell in study.cells if cell.methods}
    for label, cell in chains.items():
        model = cell.model
        for method in cell.methods:
            for progress in method.make(model):
                yield {"model": label, **progress}
            model = method.apply(model)
        yield {"ready": label}


def make_model(study: Study, label: str, out: Path) -> Iterator[Progress]:
    """Make one model of the study that has weights of its own, and copy them into a folder."""
    made = {c.model_label: c for c in study.cells if any(method.changes_weights for method in c.methods)}
    if not label and len(made) == 1:
        label = next(iter(made))
    if label not in made:
        what = f"{study.name} has no model `{label}` with weights of its own" if label else "which model?"
        names = ", ".join(f"--model '{name}'" for name in made)
        raise UserError(what, hint=names or "none of its models has a method that changes weights")
    if out.exists() and any(out.iterdir()):
        raise UserError(f"{out} is not empty", hint="give -o another folder")
    cell, model = made[label], made[label].model
    for method in cell.methods:
        yield from method.make(model)
        model = method.apply(model)
    shutil.copytree(model.source(cell.task).folder, out, dirs_exist_ok=True)
    yield {"made": str(out)}
