"""Ponder measures what a right answer costs in thinking tokens, and makes it cost less.

    import ponder

    study = ponder.Study.load("effort")     # a built-in study or a file; or ponder.Study(task=…,
    model=…)
    results = study.run(problems=20)        # asks what the store doesn't hold yet; also: await
    study.run_async()
    results                                 # in a notebook: how the attempts ended, what was found,
    and the figures
    results.frame()                         # one row per attempt
    results.estimates("effort")             # every number of a figure, with its interval
    results.chart("effort")                 # the figure, as an Altair chart
    results.attempt(model="pocket").show()  # a transcript
    ponder.compare(results, "old", "new")   # two models on the same problems, with a verdict
    ponder.tune(study, margin=0.02)         # the cheapest setting that is good enough

    @ponder.task                            # a function that makes a problem becomes a task, one
    that answers a model
    def reverse(size, seed): ...

The same from the command line: `ponder run effort`, `ponder report effort`. `ponder list`, or
`!ponder list` in a notebook, shows every task, model, method, figure and built-in study;
docs/python.md has more.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ponder.core.errors import UserError
    from ponder.results.notebook import show
    from ponder.results.results import Results, compare
    from ponder.results.study import Study
    from ponder.results.tuning import tune
    from ponder.study.functions import model, task

__version__ = "0.2.0"
__all__ = ["Results", "Study", "UserError", "compare", "model", "show", "task", "tune"]

# Loaded when first used, so that `import ponder` and `ponder --version` take no time.
_HOMES = {
    "Results": "ponder.results.results",
    "Study": "ponder.results.study",
    "UserError": "ponder.core.errors",
    "compare": "ponder.results.results",
    "model": "ponder.study.functions",
    "show": "ponder.results.notebook",
    "task": "ponder.study.functions",
    "tune": "ponder.results.tuning",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = getattr(importlib.import_module(_HOMES[name]), name)
        globals()[name] = value
        return value
    if name == "tasks":  # `ponder.tasks.tents.Puzzle` without another import
        return importlib.import_module("ponder.tasks")
    raise AttributeError(f"module 'ponder' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted((*__all__, "__version__", "tasks"))
