"""Finds plugins: a file in a plugin folder is a plugin, named like the file.

`ponder list` reads the first line of each file's docstring without importing the file, so it never loads torch. Other
packages add plugins through entry points in the groups `ponder.tasks`, `ponder.models`, `ponder.methods` and so on. A
study may also name a file: `name = "./mine.py"`.
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Iterable
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from ponder.core.contracts import Codec, Method, Model, Plugin, Task
from ponder.core.errors import UserError
from ponder.core.figure import Figure
from ponder.core.scoring import LengthReward, Policy, Reward
from ponder.core.text import plural

HERE = Path(__file__).parent.parent
EXTRAS = {  # packages that an extra installs
    "torch": ("accelerate", "gguf", "peft", "safetensors", "tokenizers", "torch", "transformers"),
    "gym": ("reasoning_gym",),
    "llama": ("xllamacpp",),
    "maths": ("math_verify",),
    "parquet": ("polars",),
    "inspect": ("zstandard",),
    "ray": ("ray",),
    "trl": ("datasets", "trl"),
}


class Kind(NamedTuple):
    """A kind of plugin: its interface, what one of them is called, and their folder."""

    contract: type[Plugin]
    noun: str
    folder: str


KINDS: dict[str, Kind] = {
    "tasks": Kind(Task, "task", "tasks"),
    "models": Kind(Model, "model", "models"),
    "caches": Kind(Policy, "eviction policy", "caches"),
    "rewards": Kind(Reward, "reward", "rewards"),
    "length_rewards": Kind(LengthReward, "length reward", "rewards/length"),
    "methods": Kind(Method, "method", "methods"),
    "figures": Kind(Figure, "figure", "figures"),
}
RENAMED = {  # former names, for the hint
    ("figures", "longest"): "max_turn",
    ("figures", "scaling"): "selection",
    ("figures", "reward_size"): "selection",
}


_registered: dict[tuple[str, str], type[Plugin]] = {}  # of this process alone
_files: dict[str, Path] = {}  # modules that were imported from a file, by their names


def register(kind: str, name: str, cls: type[Plugin]) -> None:
    """Make a class a plugin of this process. A later one of the same name replaces it; built-in names are taken."""
    if name in files(kind):
        noun = KINDS[kind].noun
        raise UserError(f"there is a built-in {noun} `{name}`", hint="choose another name")
    _registered[kind, name] = cls


def kind_of(word: str) -> str | None:
    """The kind that a word names, in the singular or plural: `cache`, `caches`, `policy`, `study`; else None."""
    plain = word.replace("-", "_").replace(" ", "_").lower()
    for kind, (_, noun, _) in KINDS.items():
        nouns = [noun.replace(" ", "_"), *(["policy"] if kind == "caches" else [])]
        if plain in (kind, kind.removesuffix("s"), *nouns, *map(plural, nouns)):
            return kind
    return "studies" if plain in ("study", "studies") else None


def nearest(word: str, known: Iterable[str]) -> str:
    """The hint for an unknown word: the closest known one, or all of them."""
    known = sorted(known)
    close = closest(word, known)
    return f"did you mean `{close}`?" if close else f"known: {', '.join(known)}"


def closest(word: str, known: Iterable[str]) -> str:
    """The known word that is most like another; "" if none is."""
    return next(iter(difflib.get_close_matches(word, sorted(known), n=1, cutoff=0.5)), "")


def files(kind: str) -> dict[str, Path]:
    """The built-in plugins of a kind: a file each, or a folder if one file isn't enough. `_name.py` is not a plugin."""
    folder = HERE / KINDS[kind].folder
    others = {HERE / k.folder for k in KINDS.values()}
    listed = {p.stem: p for p in folder.glob("*.py") if not p.stem.startswith("_")}
    listed |= {p.parent.name: p for p in folder.glob("*/__init__.py") if p.parent not in others}
    return dict(sorted(listed.items()))


def summary(path: Path) -> str:
    """The first line of a file's docstring, with which every plugin file begins."""
    with path.open(encoding="utf-8") as file:
        return file.readline().strip().strip('"')


def names(kind: str) -> dict[str, str]:
    """Every plugin of a kind with its summary; nothing is imported."""
    listed = {name: summary(path) for name, path in files(kind).items()}
    listed |= {n: (cls.__doc__ or "").partition("\n")[0] for (k, n), cls in _registered.items() if k == kind}
    for point in entry_points(group=f"ponder.{kind}"):
        listed.setdefault(point.name, f"from the package {point.dist.name if point.dist else point.value}")
    return listed


def load(kind: str, name: str, folder: Path | None = None) -> type[Any]:
    """The class of a plugin. `name` is its name, or the path of a file relative to `folder`."""
    if (kind, name) in _registered:
        return _registered[kind, name]
    contract, noun, _ = KINDS[kind]
    try:
        module = _module(kind, name, folder or Path())
    except ModuleNotFoundError as missing:
        raise not_installed(missing, f"{noun} `{name}`") from missing
    own = (c for c in vars(module).values() if inspect.isclass(c) and c.__module__ == module.__name__)
    classes = [c for c in own if issubclass(c, contract) and not c.__name__.startswith("_")]
    if len(classes) != 1:
        raise UserError(
            f"{noun} `{name}` must define one subclass of {contract.__name__}, not {len(classes)}",
            hint=f"ponder new {kind[:-1]} NAME writes a file to start from",
        )
    (cls,) = classes
    if lacking := sorted(getattr(cls, "__abstractmethods__", ())):
        methods = ", ".join(f"`{method}`" for method in lacking)
        hint = f"ponder new {kind[:-1]} NAME writes a file that has them; docs/add-a-{kind[:-1].replace('_', '-')}.md"
        raise UserError(f"{noun} `{name}` lacks {methods}, which every {noun} has", hint=hint)
    if not dataclasses.is_dataclass(cls):
        hint = f"write @dataclass(frozen=True) above `class {cls.__name__}`"
        raise UserError(f"the class of {noun} `{name}` must be a dataclass", hint=hint)
    return cls


def not_installed(missing: ModuleNotFoundError, what: str) -> UserError:
    """The error for a package that isn't there, with the command that installs it."""
    name = missing.name or str(missing)
    package = name.partition(".")[0]
    extra = next((extra for extra, packages in EXTRAS.items() if package in packages), None)
    hint = f"pip install 'ponder[{extra}]'" if extra else f"pip install {package}"
    return UserError(f"{what} needs a package that isn't installed: {name}", hint=hint)


def need(package: str, what: str) -> None:
    """Raise `UserError` if a package isn't installed; nothing is imported."""
    if importlib.util.find_spec(package) is None:
        raise not_installed(ModuleNotFoundError(name=package), what)


def codec(model: str, task: str) -> Codec | None:
    """The codec of a model plugin for a task; None if it has none."""
    if model not in names("models"):
        return None
    codec: Codec | None = load("models", model).codec(task)
    return codec


def _module(kind: str, name: str, folder: Path) -> ModuleType:
    if name.endswith(".py"):
        return from_path(_existing(folder, name))
    if name in files(kind):
        return importlib.import_module(f"ponder.{KINDS[kind].folder.replace('/', '.')}.{name}")
    for point in entry_points(group=f"ponder.{kind}", name=name):
        return importlib.import_module(point.module)
    raise unknown(kind, name)


def source(kind: str, name: str, folder: Path) -> Path | None:
    """The file of a plugin; None if it comes from another package."""
    if name.endswith(".py"):
        return _existing(folder, name)
    if name not in names(kind):
        raise unknown(kind, name)
    return files(kind).get(name)


def _existing(folder: Path, name: str) -> Path:
    path = folder / name if "\0" in name else (folder / name).resolve()
    if not path.is_file():
        raise UserError(
            f"there is no file {path}", hint="" if folder == Path() else "a path is relative to the study's folder"
        )
    return path


def unknown(kind: str, name: str) -> UserError:
    """The error for a plugin that doesn't exist."""
    now = RENAMED.get((kind, name))
    hint = f"it is now called `{now}`" if now else nearest(name, names(kind))
    return UserError(f"{KINDS[kind].noun} `{name}` is unknown", hint=hint)


def from_files() -> list[Path]:
    """The files that plugins were imported from by their paths: another process needs them before it can unpickle."""
    return [path for name, path in _files.items() if getattr(sys.modules.get(name), "__file__", None) == str(path)]


def from_path(path: Path) -> ModuleType:
    """Import a file as a top-level module named like the file, once per process."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    loaded = sys.modules.get(path.stem)
    if loaded is not None:
        if getattr(loaded, "__file__", None) == str(path):
            return loaded
        raise UserError(f"{path.name} has the name of a module that is already loaded", hint="rename the file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    _files[path.stem] = path
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[path.stem], _files[path.stem]
        if isinstance(error, Exception) and not isinstance(error, UserError | ModuleNotFoundError):
            raise UserError(f"it can't be imported: {_said(error)}", where=_place(error, path)) from error
        raise
    return module


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error.msg if isinstance(error, SyntaxError) else error}"


def _place(error: Exception, path: Path) -> str:
    """The file and the line in it that an exception comes from."""
    if isinstance(error, SyntaxError):
        return f"{error.filename or path}:{error.lineno}"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    return f"{path}:{lines[-1]}" if lines else str(path)
