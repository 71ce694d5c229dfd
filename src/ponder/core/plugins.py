"""Finds plugins: a file in a plugin folder is a plugin, named like the file.

`ponder list` reads the first line of each file's docstring without importing the file, so it never
loads torch. Other packages add plugins through entry points in the groups `ponder.tasks`,
`ponder.models`, `ponder.methods` and so on. A study may also name a file: `name = "./mine.py"`,
unless it was read from a store: looking at somebody's attempts must not run their code.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import inspect
import re
import sys
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from ponder.core.capabilities import (
    Addends,
    CheckedSteps,
    ChecksPrompts,
    Codec,
    ComparesAnswers,
    Conversation,
    Drawable,
    Forecast,
    Measuring,
    ParsesAnswers,
    Prepared,
    Prunable,
    Sampled,
    Served,
    WithCodec,
    WithWarning,
    WithWeights,
)
from ponder.core.contracts import Figure, Method, Model, Plugin, Task
from ponder.core.errors import UserError
from ponder.core.scoring import (
    Asking,
    Fitted,
    InMemory,
    LengthReward,
    Policy,
    RatesEach,
    Reward,
    Trainable,
    TrainedPerStudy,
)

HERE = Path(__file__).parent.parent
EXTRAS = {  # packages that an extra installs
    "torch": ("accelerate", "gguf", "peft", "safetensors", "tokenizers", "torch", "transformers"),
    "gym": ("reasoning_gym",),
    "llama": ("xllamacpp",),
    "maths": ("math_verify",),
    "parquet": ("polars",),
    "inspect": ("zstandard",),
    "ray": ("ray",),
}


class Kind(NamedTuple):
    """A kind of plugin: its interface, what one of them is called, and their folder."""

    contract: type[Plugin]
    noun: str
    folder: str

    @property
    def singular(self) -> str:
        """Return the noun as one word, as commands take it: `length_reward`."""
        return self.noun.replace(" ", "_")


KINDS: dict[str, Kind] = {
    "tasks": Kind(Task, "task", "tasks"),
    "models": Kind(Model, "model", "models"),
    "policies": Kind(Policy, "policy", "policies"),
    "rewards": Kind(Reward, "reward", "rewards"),
    "length_rewards": Kind(LengthReward, "length reward", "rewards/length"),
    "methods": Kind(Method, "method", "methods"),
    "figures": Kind(Figure, "figure", "figures"),
}
LIBRARIES = {"tasks": ("reading", "subprocess_call")}  # in the folders of plugins, but not plugins
# What a plugin of a kind may inherit besides, because it can do more.
CAPABILITIES: dict[str, tuple[type, ...]] = {
    "tasks": (
        Conversation,
        ParsesAnswers,
        ComparesAnswers,
        Drawable,
        CheckedSteps,
        Addends,
        WithWarning,
    ),
    "models": (Sampled, WithWeights, WithCodec, Prunable, Served, Forecast, Measuring),
    "policies": (Fitted, Trainable, TrainedPerStudy),
    "rewards": (RatesEach, Asking, InMemory),
    "methods": (Prepared, ChecksPrompts, Measuring),
}
RENAMED = {  # former names, for the hint
    ("figures", "longest"): "max_turn",
    ("figures", "scaling"): "selection",
    ("figures", "reward_size"): "selection",
}
# What else people call a plugin, for the hint; spelled as `_letters` spells it.
ALIASES = {
    "tasks": {"reasoninggym": "gym"},
    "policies": {
        "attentionsinks": "streaming",
        "none": "full",
        "sinks": "streaming",
        "tova": "last_query",
    },
    "methods": {
        "bon": "best_of",
        "evict": "compress",
        "finetune": "sft",
        "grpo": "length_rl",
        "lora": "sft",
        "majority": "vote",
        "ppo": "length_rl",
        "selfconsistency": "vote",
    },
    "figures": {"pareto": "frontier", "passatk": "samples", "passk": "samples"},
}
SERVERS = {  # what people name instead of the model `endpoint`: where it is asked
    "openai": "https://api.openai.com/v1",
    "gpt": "https://api.openai.com/v1",
    "anthropic": "https://api.anthropic.com/v1",
    "claude": "https://api.anthropic.com/v1",
    "gemini": "https://generativelanguage.googleapis.com/v1beta/openai",
    "openrouter": "https://openrouter.ai/api/v1",
    "deepseek": "https://api.deepseek.com/v1",
    "mistral": "https://api.mistral.ai/v1",
    "ollama": "http://127.0.0.1:11434/v1",
    "llama.cpp": "http://127.0.0.1:8080/v1",
    "llamacpp": "http://127.0.0.1:8080/v1",
    "llama_cpp": "http://127.0.0.1:8080/v1",
    "lmstudio": "http://127.0.0.1:1234/v1",
    "sglang": "http://127.0.0.1:30000/v1",
}
LOCAL = ("gguf", "hf", "huggingface", "local", "pytorch", "torch")  # and instead of `transformers`


_registered: dict[tuple[str, str], type[Plugin]] = {}  # of this process alone
_files_refused = ContextVar("_files_refused", default=False)
_files: dict[str, Path] = {}  # modules that were imported from a file, by their names


def register(kind: str, name: str, cls: type[Plugin]) -> None:
    """Make a class a plugin of this process.

    A later one of the same name replaces it; built-in names are taken.
    """
    if name in files(kind):
        noun = KINDS[kind].noun
        raise UserError(f"there is a built-in {noun} `{name}`", hint="choose another name")
    _registered[kind, name] = cls


def kind_of(word: str) -> str | None:
    """The kind that a word names, in the singular or plural: `task`, `policies`, `study`; else
    None.
    """
    plain = word.replace("-", "_").replace(" ", "_").lower()
    for name, kind in KINDS.items():
        if plain in (name, kind.singular):
            return name
    return "studies" if plain in ("study", "studies") else None


def nearest(word: str, known: Iterable[str]) -> str:
    """Return the hint for an unknown word: the known one that it may be a typo of, or all known
    ones.
    """
    known = sorted(known)
    close = closest(word, known)
    return f"did you mean `{close}`?" if close else f"known: {', '.join(known)}"


def closest(word: str, known: Iterable[str]) -> str:
    """Return the known word that another is a typo, a spelling or the beginning of; "" if there is
    none.
    """
    spellings = {_letters(name): name for name in sorted(known)}
    wanted = _letters(word)
    if wanted in spellings:
        return spellings[wanted]
    typos = [spelling for spelling in spellings if _alike(wanted, spelling)]
    if typos:  # of two that are as near, the one that only lacks its end
        return spellings[
            min(typos, key=lambda known: (_edits(wanted, known), not known.startswith(wanted)))
        ]
    begun = [name for spelling, name in spellings.items() if _begins(wanted, spelling)]
    return begun[0] if len(begun) == 1 else ""


def _letters(word: str) -> str:
    return re.sub(r"[-_. @]", "", word.casefold())


def _alike(word: str, known: str) -> bool:
    """Whether two words differ by no more than typos: one in a short word, three in a long one."""
    longer = max(len(word), len(known))
    if longer < 3 or abs(len(word) - len(known)) > 3:
        return False
    if longer < 5:
        return word[:1] == known[:1] and _edits(word, known) == 1
    allowed = 1 if longer < 6 else 2 if longer < 10 else 3
    return _edits(word, known) <= allowed


def _begins(word: str, known: str) -> bool:
    """Whether one word is the beginning of the other: `temp` of `temperature`, `gpqa` of
    `gpqa_diamond`.
    """
    stem = word.removesuffix("s")
    return (len(stem) > 2 and known.startswith(stem)) or (len(known) > 3 and word.startswith(known))


def _edits(one: str, other: str) -> int:
    """Count the letters to insert, delete, replace or swap with their neighbour to make one word
    the other.
    """
    before: list[int] = []
    row = list(range(len(other) + 1))
    for i, letter in enumerate(one, 1):
        earlier, before, row = before, row, [i]
        for j, wanted in enumerate(other, 1):
            edits = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (letter != wanted))
            if i > 1 and j > 1 and letter == other[j - 2] and one[i - 2] == wanted:
                edits = min(edits, earlier[j - 2] + 1)
            row.append(edits)
    return row[-1]


def files(kind: str) -> dict[str, Path]:
    """The built-in plugins of a kind: a file each, or a folder if one file isn't enough.

    `_name.py` is not a plugin.
    """
    folder = HERE / KINDS[kind].folder
    others = {HERE / k.folder for k in KINDS.values()}
    listed = {p.stem: p for p in folder.glob("*.py") if not p.stem.startswith("_")}
    listed |= {p.parent.name: p for p in folder.glob("*/__init__.py") if p.parent not in others}
    return {name: listed[name] for name in sorted(listed) if name not in LIBRARIES.get(kind, ())}


def summary(path: Path) -> str:
    """Read the first paragraph of the docstring with which every plugin file begins."""
    lines = []
    with path.open(encoding="utf-8") as file:
        for line in file:
            text = line.strip().strip('"')
            if not text:
                break
            lines.append(text)
            if len(lines) > 1 and '"""' in line:
                break
            if line.count('"""') == 2:
                break
    return " ".join(lines)


def names(kind: str) -> dict[str, str]:
    """Every plugin of a kind with its summary; nothing is imported."""
    listed = {name: summary(path) for name, path in files(kind).items()}
    listed |= {
        n: (cls.__doc__ or "").partition("\n")[0]
        for (k, n), cls in _registered.items()
        if k == kind
    }
    for point in entry_points(group=f"ponder.{kind}"):
        listed.setdefault(
            point.name, f"from the package {point.dist.name if point.dist else point.value}"
        )
    return listed


def is_file(name: str, folder: Path | None) -> bool:
    """Return whether a plugin's name is the path of a file. Raise `UserError` if it is and files
    are refused.

    The folder is that of the user's own study. A study from a store has none, and its plugins can't
    be files.
    """
    if not name.endswith(".py"):
        return False
    if folder is None or _files_refused.get():
        what = f"the plugin {name} is a file, and a study that is read from a store can't use files"
        raise UserError(
            what, hint="if you trust the file, name its study, as in `ponder view STUDY.toml`"
        )
    return True


@contextmanager
def files_from(folder: Path | None) -> Iterator[None]:
    """Refuse files inside if there is no folder, also those that a plugin names when it builds
    another by itself.
    """
    token = _files_refused.set(folder is None or _files_refused.get())
    try:
        yield
    finally:
        _files_refused.reset(token)


def load(kind: str, name: str, folder: Path | None = None) -> type[Any]:
    """Return the class of a plugin.

    `name` is its name, or the path of a file relative to `folder` if that is given.
    """
    if (kind, name) in _registered:
        return _registered[kind, name]
    contract, noun, _ = KINDS[kind]
    try:
        module = _module(kind, name, folder)
    except ModuleNotFoundError as missing:
        raise not_installed(missing, f"{noun} `{name}`") from missing
    own = (
        c for c in vars(module).values() if inspect.isclass(c) and c.__module__ == module.__name__
    )
    classes = [c for c in own if issubclass(c, contract) and not c.__name__.startswith("_")]
    if len(classes) != 1:
        raise UserError(
            f"{noun} `{name}` must define one subclass of {contract.__name__}, not {len(classes)}",
            hint=f"ponder new {KINDS[kind].singular} NAME writes a file to start from",
        )
    (cls,) = classes
    if lacking := sorted(getattr(cls, "__abstractmethods__", ())):
        methods = ", ".join(f"`{method}`" for method in lacking)
        singular = KINDS[kind].singular
        hint = f"ponder new {singular} NAME writes a file that has them; docs/add-a-{singular.replace('_', '-')}.md"
        raise UserError(f"{noun} `{name}` lacks {methods}, which every {noun} has", hint=hint)
    _check_capabilities(kind, noun, name, cls)
    if not dataclasses.is_dataclass(cls):
        hint = f"write @dataclass(frozen=True) above `class {cls.__name__}`"
        raise UserError(f"the class of {noun} `{name}` must be a dataclass", hint=hint)
    return cls


def _check_capabilities(kind: str, noun: str, name: str, cls: type[Plugin]) -> None:
    """Raise `UserError` if a plugin defines a method of a capability that it doesn't inherit:
    nothing would call it.
    """
    for capability in CAPABILITIES.get(kind, ()):
        if issubclass(cls, capability):
            continue
        declared = [method for method in vars(capability) if not method.startswith("_")]
        required = [
            method
            for method in declared
            if method in getattr(capability, "__abstractmethods__", ())
        ]
        for method in required or declared:
            if inspect.isroutine(vars(cls).get(method)):
                what = f"{noun} `{name}` defines `{method}`, but doesn't inherit `{capability.__name__}`"
                bases = ", ".join([KINDS[kind].contract.__name__, capability.__name__])
                raise UserError(
                    what,
                    hint=f"class {cls.__name__}({bases}), from ponder.core; or rename the method",
                )


def not_installed(missing: ModuleNotFoundError, what: str) -> UserError:
    """The error for a package that isn't there, with the command that installs it."""
    name = missing.name or str(missing)
    package = name.partition(".")[0]
    extra = next((extra for extra, packages in EXTRAS.items() if package in packages), None)
    hint = f"pip install 'ponder-lab[{extra}]'" if extra else f"pip install {package}"
    return UserError(f"{what} needs a package that isn't installed: {name}", hint=hint)


def need(package: str, what: str) -> None:
    """Raise `UserError` if a package isn't installed; nothing is imported."""
    if importlib.util.find_spec(package) is None:
        raise not_installed(ModuleNotFoundError(name=package), what)


def codec(model: str, task: str) -> Codec | None:
    """The codec of a model plugin for a task; None if it has none."""
    if model not in names("models"):
        return None
    plugin = load("models", model)
    return plugin.codec(task) if issubclass(plugin, WithCodec) else None


def _module(kind: str, name: str, folder: Path | None) -> ModuleType:
    if is_file(name, folder):
        return from_path(_existing(folder or Path(), name))
    if name in files(kind):
        return importlib.import_module(f"ponder.{KINDS[kind].folder.replace('/', '.')}.{name}")
    for point in entry_points(group=f"ponder.{kind}", name=name):
        return importlib.import_module(point.module)
    raise unknown(kind, name)


def source(kind: str, name: str, folder: Path | None) -> Path | None:
    """The file of a plugin; None if it comes from another package."""
    if is_file(name, folder):
        return _existing(folder or Path(), name)
    if name not in names(kind):
        raise unknown(kind, name)
    return files(kind).get(name)


def _existing(folder: Path, name: str) -> Path:
    path = folder / name if "\0" in name else (folder / name).resolve()
    if not path.is_file():
        raise UserError(
            f"there is no file {path}",
            hint="" if folder == Path() else "a path is relative to the study's folder",
        )
    return path


def unknown(kind: str, name: str) -> UserError:
    """Return the error for a plugin that doesn't exist, with what to write instead."""
    what = f"{KINDS[kind].noun} `{name}` is unknown"
    if now := RENAMED.get((kind, name)):
        return UserError(what, hint=f"it is now called `{now}`")
    if kind == "models" and (table := _model_meant(name)):
        lines = "\n".join(f'{key} = "{value}"' for key, value in table.items())
        why = "`name` says how a model is asked, `id` which one it is"
        others = '\n(name = "vllm" serves it; name = "endpoint" asks a server, with its `url`)'
        if "url" in table:
            others = ""
        return UserError(what, hint=f"{why}:\n{lines}{others}", in_python=f"{why}: model={table}")
    if alias := ALIASES.get(kind, {}).get(_letters(name)):
        return UserError(what, hint=f"here it is called `{alias}`")
    return UserError(what, hint=nearest(name, names(kind)))


def _model_meant(name: str) -> dict[str, str]:
    """Return the table that asks a provider's, a server's or a hub's model; {} if the name is none
    of these.
    """
    identifier = name if "/" in name or re.search(r"\d", name) else "NAME"
    for word, url in SERVERS.items():
        if "/" not in name and re.match(rf"{re.escape(word)}(?![a-z])", name.lower()):
            return {"name": "endpoint", "id": identifier, "url": url}
    if name.lower().replace("_", "") in LOCAL or (
        identifier == name and not closest(name, names("models"))
    ):
        return {"name": "transformers", "id": identifier}
    return {}


def from_files() -> list[Path]:
    """The files that plugins were imported from by their paths: another process needs them before
    it can unpickle.
    """
    return [
        path
        for name, path in _files.items()
        if getattr(sys.modules.get(name), "__file__", None) == str(path)
    ]


def from_path(path: Path) -> ModuleType:
    """Import a file as a top-level module named like the file, once per process."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    loaded = sys.modules.get(path.stem)
    if loaded is not None:
        if getattr(loaded, "__file__", None) == str(path):
            return loaded
        raise UserError(
            f"{path.name} has the name of a module that is already loaded", hint="rename the file"
        )
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    _files[path.stem] = path
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[path.stem], _files[path.stem]
        if isinstance(error, Exception) and not isinstance(error, UserError | ModuleNotFoundError):
            raise UserError(
                f"it can't be imported: {_said(error)}", where=_place(error, path)
            ) from error
        raise
    return module


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error.msg if isinstance(error, SyntaxError) else error}"


def _place(error: Exception, path: Path) -> str:
    """The file and the line in it that an exception comes from."""
    if isinstance(error, SyntaxError):
        return f"{error.filename or path}:{error.lineno}"
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename == str(path)
    ]
    return f"{path}:{lines[-1]}" if lines else str(path)
