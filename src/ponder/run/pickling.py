"""Sends models and methods to another process, and makes there what a method needs."""

from __future__ import annotations

import math
import os
import pickle
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ponder import __version__
from ponder.core import Progress, UserError, plugins
from ponder.core.metering import METER, CapReached, Meter
from ponder.models import models_folder
from ponder.run.caps import MOST, Ledger
from ponder.run.paying import Account, LedgerTill


def packed(*objects: Any) -> bytes:
    """Objects for another process, with what it must know to read and use them as this one does."""
    surroundings = {
        "version": __version__,
        "folder": Path.cwd(),
        "models": models_folder().absolute(),
        "files": plugins.from_files(),  # modules that can't be imported by their names
    }
    try:
        return pickle.dumps((surroundings, pickle.dumps(objects)))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        what = f"a task, model or method can't be sent to another process: {error}"
        raise UserError(what, hint='write it in a file of its own: name = "./mine.py"') from None


def unpacked(sent: bytes, where: str = "") -> Any:
    """The objects, in the other process; `where` names its machine in errors."""
    surroundings, objects = pickle.loads(sent)  # noqa: S301 from our own run
    shared = "the study's folder must be on storage that every node shares: docs/gpus.md"
    if surroundings["version"] != __version__:
        what = f"Ponder {__version__} is installed, and the run has {surroundings['version']}"
        raise UserError(what, where=where, hint="install the same version on every node")
    os.environ["PONDER_MODELS"] = str(surroundings["models"])
    if surroundings["folder"].is_dir():
        os.chdir(surroundings["folder"])  # paths in a study may be relative
    for path in surroundings["files"]:
        if not path.is_file():
            raise UserError(f"there is no file {path}", where=where, hint=shared)
        plugins.from_path(path)
    return pickle.loads(objects)  # noqa: S301


def making(sent: bytes, where: str = "") -> Iterator[Progress | Account | Exception]:
    """Yield, in the other process, what `Method.make` yields, and at the end what it has spent of
    its allowance.

    An error is yielded too, in a form that can be sent.
    """
    till = LedgerTill(Ledger())
    try:
        method, model, allowance = unpacked(sent, where)
        if allowance is not None:
            till.ledger.max_tokens = None if allowance.tokens == MOST else allowance.tokens
            till.ledger.max_cost = None if math.isinf(allowance.cost) else allowance.cost
        METER.set(Meter(till))
        yield from method.make(model)
    except CapReached:
        yield till.account()
    except Exception as error:
        yield till.account()
        yield sendable(error)
    else:
        yield till.account()


def sendable(error: Exception) -> Exception:
    """The error itself if it can be sent, else one that says the same."""
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301
    except Exception:
        return RuntimeError("".join(traceback.format_exception(error)))
    if isinstance(error, UserError):
        return error
    error.add_note("".join(traceback.format_exception(error)))  # a traceback is not sent
    return error
