"""Makes what a study needs before it can run: trained or merged weights, fitted eviction policies.

`ponder run` makes the same things when it reaches the models that need them. Preparing makes all of them first, for
example on a machine with a GPU.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

from ponder.core import Progress, UserError
from ponder.runner.study import Study


def prepare(study: Study) -> Iterator[Progress]:
    """Make what every model of the study needs. What already exists is not made again."""
    for label, cell in {cell.model_label: cell for cell in study.cells if cell.methods}.items():
        for progress in cell.make_model():
            yield {"model": label, **progress}
        yield {"ready": label}


def make_model(study: Study, label: str, out: Path) -> Iterator[Progress]:
    """Make one model of the study whose methods change its weights, and copy the weights into a folder."""
    changed = {c.model_label: c for c in study.cells if any(method.changes_weights for method in c.methods)}
    if not label and len(changed) == 1:
        label = next(iter(changed))
    if label not in changed:
        several = f"{study.name} has several models with new weights" if changed else ""
        what = f"{study.name} has no model `{label}` with new weights" if label else several
        names = ", ".join(f"--model '{name}'" for name in changed)
        raise UserError(
            what or f"{study.name} has no model with new weights",
            hint=names or "add a method that changes weights: ponder list methods",
        )
    if out.exists() and any(out.iterdir()):
        raise UserError(f"{out} is not empty", hint="use another folder for -o")
    cell = changed[label]
    model = yield from cell.make_model()
    shutil.copytree(model.source(cell.task).folder, out, dirs_exist_ok=True)
    yield {"made": str(out)}
