"""Finds plugins: a file in a plugin folder is a plugin, named like the file.

`ponder list` reads the first paragraph of each file's docstring without importing the file, so it
never loads torch. Other packages add plugins through entry points in the groups `ponder.tasks`,
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
# The packages that each extra installs, for `pip install 'ponder-lab[torch]'` in a hint.
EXTRAS = {
    "torch": ("accelerate", "gguf", "peft", "safetensors", "tokenizers", "torch", "transformers"),
    "gym": ("reasoning_gym",),
    "prices": ("genai_prices",),
    "llama": ("xllamacpp",),
    "maths": ("math_verify",),
    "parquet": ("polars",),
    "inspect": ("zstandard",),
    "ray": ("ray",),
}


class Kind(NamedTuple):
    """A kind of plugin: its interface, its noun, and its folder."""

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
# Modules in the folders of plugins that aren't plugins.
LIBRARIES = {"tasks": ("grading", "reading", "subprocess_call")}
# The capabilities that a plugin of each kind may inherit next to its interface.
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
# Former names of plugins, for the hint.
RENAMED = {
    ("figures", "longest"): "`accuracy` with `target = 0.8`",
    ("figures", "max_turn"): "`accuracy` with `target = 0.8`",
    ("figures", "scaling"): "`selection`",
    ("figures", "reward_size"): "`selection`",
}
# Other names of what a plugin does, for the hint, in the spelling of `_letters`.
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
        "chainofdraft": "prompt",
        "concise": "prompt",
        "evict": "compress",
        "finetune": "sft",
        "grpo": "length_rl",
        "lora": "sft",
        "instruction": "prompt",
        "majority": "vote",
        "nothinking": "prompt",
        "ppo": "length_rl",
        "selfconsistency": "vote",
    },
    "figures": {"pareto": "frontier", "passatk": "samples", "passk": "samples"},
}
# Providers and servers that people write as a model's `name`, with the `url` of an `endpoint`.
SERVERS = {
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
# What people write as a model's `name` instead of `transformers`.
LOCAL = ("gguf", "hf", "huggingface", "local", "pytorch", "torch")

_registered: dict[tuple[str, str], type[Plugin]] = {}  # classes by kind and name, see `register`
_files_refused = ContextVar("_files_refused", default=False)
_HUB_NAME = re.compile(r"([A-Za-z0-9][A-Za-z0-9_.-]{0,95}/)?[A-Za-z0-9][A-Za-z0-9_.-]{0,95}")
_files: dict[str, Path] = {}  # the files of modules that `from_path` imported, by module name


def register(kind: str, name: str, cls: type[Plugin]) -> None:
    """Make a class a plugin of this process, as a notebook does.

    It replaces an earlier one of the same name, but not a built-in plugin.
    """
    if name in files(kind):
        noun = KINDS[kind].noun
        raise UserError(f"there is a built-in {noun} `{name}`", hint="choose another name")
    _registered[kind, name] = cls


def kind_of(word: str) -> str | None:
    """Return the kind that a singular or plural names, such as `task` or `studies`; else None."""
    noun = word.replace("-", "_").replace(" ", "_").lower()
    for name, kind in KINDS.items():
        if noun in (name, kind.singular):
            return name
    if noun in ("study", "studies"):
        return "studies"
    return None


def nearest(word: str, known: Iterable[str]) -> str:
    """Return the hint for an unknown word: the one it may be a typo of, or all known ones."""
    known = sorted(known)
    close = closest(word, known)
    if close:
        return f"did you mean `{close}`?"
    return f"known: {', '.join(known)}"


def closest(word: str, known: Iterable[str]) -> str:
    """Return the known word that another is a typo or the beginning of; "" if there is none."""
    spellings = {_letters(name): name for name in sorted(known)}
    letters = _letters(word)
    if letters in spellings:
        return spellings[letters]

    def distance(spelling: str) -> tuple[int, bool]:  # at equal edits, a missing end is nearer
        return _edits(letters, spelling), not spelling.startswith(letters)

    typos = [spelling for spelling in spellings if _alike(letters, spelling)]
    if typos:
        return spellings[min(typos, key=distance)]
    prefixed = [name for spelling, name in spellings.items() if _begins(letters, spelling)]
    if len(prefixed) == 1:
        return prefixed[0]
    return ""


def _letters(word: str) -> str:
    return re.sub(r"[-_. @]", "", word.casefold())


def _alike(word: str, known: str) -> bool:
    """Return whether two words differ only by typos: one in a short word, three in a long one."""
    length = max(len(word), len(known))
    if length < 3 or abs(len(word) - len(known)) > 3:
        return False
    if length < 5:
        return word[:1] == known[:1] and _edits(word, known) == 1
    if length < 6:
        return _edits(word, known) <= 1
    if length < 10:
        return _edits(word, known) <= 2
    return _edits(word, known) <= 3


def _begins(word: str, known: str) -> bool:
    """Return whether one word begins the other, as `temp` begins `temperature`."""
    stem = word.removesuffix("s")
    if len(stem) > 2 and known.startswith(stem):
        return True
    return len(known) > 3 and word.startswith(known)


def _edits(one: str, other: str) -> int:
    """Return the edit distance of two words: insert, delete, replace, or swap two neighbours.

    `rows[i][j]` is the distance of the first i letters of one and the first j of the other.
    """
    rows = [list(range(len(other) + 1))]
    for i in range(1, len(one) + 1):
        row = [i]
        for j in range(1, len(other) + 1):
            replaced = int(one[i - 1] != other[j - 1])
            edits = min(rows[i - 1][j] + 1, row[j - 1] + 1, rows[i - 1][j - 1] + replaced)
            if i > 1 and j > 1 and one[i - 1] == other[j - 2] and one[i - 2] == other[j - 1]:
                edits = min(edits, rows[i - 2][j - 2] + 1)
            row.append(edits)
        rows.append(row)
    return rows[-1][-1]


def files(kind: str) -> dict[str, Path]:
    """Return the built-in plugins of a kind by name: a file each, or a folder's `__init__.py`.

    `_name.py` is not a plugin.
    """
    folder = HERE / KINDS[kind].folder
    plugin_folders = {HERE / other.folder for other in KINDS.values()}
    paths = {path.stem: path for path in folder.glob("*.py") if not path.stem.startswith("_")}
    for path in folder.glob("*/__init__.py"):
        if path.parent not in plugin_folders:  # rewards/length holds plugins of another kind
            paths[path.parent.name] = path
    for library in LIBRARIES.get(kind, ()):
        del paths[library]
    return dict(sorted(paths.items()))


def summary(path: Path) -> str:
    """Return the first paragraph of the docstring with which every plugin file begins."""
    docstring = path.read_text("utf-8").split('"""', maxsplit=2)[1]
    paragraph = docstring.partition("\n\n")[0]
    return " ".join(paragraph.split())


def names(kind: str) -> dict[str, str]:
    """Return the summary of every plugin of a kind by its name; nothing is imported."""
    summaries = {name: summary(path) for name, path in files(kind).items()}
    for (of_kind, name), cls in _registered.items():
        if of_kind == kind:
            summaries[name] = (cls.__doc__ or "").partition("\n")[0]
    for point in entry_points(group=f"ponder.{kind}"):
        package = point.dist.name if point.dist else point.value
        summaries.setdefault(point.name, f"from the package {package}")
    return summaries


def is_file(name: str, folder: Path | None) -> bool:
    """Return whether a plugin's name is the path of a file.

    `folder` is that of the user's own study. A study from a store has None, and a file raises
    `UserError`: looking at somebody's attempts must not run their code.
    """
    if not name.endswith(".py"):
        return False
    if folder is None or _files_refused.get():
        raise UserError(
            f"the plugin {name} is a file, and a study that is read from a store can't use files",
            hint="if you trust the file, name its study, as in `ponder view STUDY.toml`",
        )
    return True


@contextmanager
def files_from(folder: Path | None) -> Iterator[None]:
    """Refuse plugins that are files in the block if `folder` is None.

    This also covers a plugin that builds another one by itself.
    """
    token = _files_refused.set(folder is None or _files_refused.get())
    try:
        yield
    finally:
        _files_refused.reset(token)


def check_weights(id: str) -> None:  # noqa: A002 the name of the setting
    """Raise `UserError` for weights on this machine where `files_from` refuses files.

    `org/name` on the hub is allowed, unless there is a folder of that name here: looking at
    somebody's attempts must not read files of their choice.
    """
    if not id or not _files_refused.get():
        return
    on_hub = _HUB_NAME.fullmatch(id) and not id.endswith(".gguf")
    if not on_hub or Path(id).exists():
        raise UserError(
            f"the weights {id!r:.400} are not read, because only a store names them",
            hint="if you trust it, name its study, as in `ponder view STUDY.toml`",
        )


def load(kind: str, name: str, folder: Path | None = None) -> type[Any]:
    """Return the class of a plugin, given its name or the path of a file relative to `folder`."""
    if (kind, name) in _registered:
        return _registered[kind, name]
    contract, noun, _ = KINDS[kind]
    try:
        module = _module(kind, name, folder)
    except ModuleNotFoundError as missing:
        raise not_installed(missing, f"{noun} `{name}`") from missing
    classes = []
    for value in vars(module).values():
        if not inspect.isclass(value) or value.__module__ != module.__name__:
            continue
        if issubclass(value, contract) and not value.__name__.startswith("_"):
            classes.append(value)
    if len(classes) != 1:
        raise UserError(
            f"{noun} `{name}` must define one subclass of {contract.__name__}, not {len(classes)}",
            hint=f"ponder new {KINDS[kind].singular} NAME writes a file to start from",
        )
    cls = classes[0]
    _check_class(kind, name, cls)
    return cls


def _check_class(kind: str, name: str, cls: type[Plugin]) -> None:
    """Raise `UserError` for a class that lacks a method or isn't a dataclass."""
    noun = KINDS[kind].noun
    missing = sorted(getattr(cls, "__abstractmethods__", ()))
    if missing:
        methods = ", ".join(f"`{method}`" for method in missing)
        singular = KINDS[kind].singular
        raise UserError(
            f"{noun} `{name}` lacks {methods}, which every {noun} has",
            hint=f"ponder new {singular} NAME writes a file that has them; docs/extend.md",
        )
    _check_capabilities(kind, noun, name, cls)
    if not dataclasses.is_dataclass(cls):
        raise UserError(
            f"the class of {noun} `{name}` must be a dataclass",
            hint=f"write @dataclass(frozen=True) above `class {cls.__name__}`",
        )


def _check_capabilities(kind: str, noun: str, name: str, cls: type[Plugin]) -> None:
    """Raise `UserError` for an unused method: one of a capability that a plugin doesn't inherit."""
    for capability in CAPABILITIES.get(kind, ()):
        if issubclass(cls, capability):
            continue
        declared = [method for method in vars(capability) if not method.startswith("_")]
        abstract: frozenset[str] = getattr(capability, "__abstractmethods__", frozenset())
        required = [method for method in declared if method in abstract]
        for method in required or declared:
            if inspect.isroutine(vars(cls).get(method)):
                bases = f"{KINDS[kind].contract.__name__}, {capability.__name__}"
                raise UserError(
                    f"{noun} `{name}` defines `{method}`, "
                    f"but doesn't inherit `{capability.__name__}`",
                    hint=f"class {cls.__name__}({bases}), from ponder.core; or rename the method",
                )


def not_installed(missing: ModuleNotFoundError, what: str) -> UserError:
    """Return the error for a package that isn't installed, with the command that installs it."""
    name = missing.name or str(missing)
    package = name.partition(".")[0]
    hint = f"pip install {package}"
    for extra, packages in EXTRAS.items():
        if package in packages:
            hint = f"pip install 'ponder-lab[{extra}]'"
    return UserError(f"{what} needs a package that isn't installed: {name}", hint=hint)


def need(package: str, what: str) -> None:
    """Raise `UserError` if a package isn't installed; nothing is imported."""
    if importlib.util.find_spec(package) is None:
        raise not_installed(ModuleNotFoundError(name=package), what)


def codec(model: str, task: str) -> Codec | None:
    """Return the codec of a model plugin for a task; None if it has none."""
    if model not in names("models"):
        return None
    plugin = load("models", model)
    if issubclass(plugin, WithCodec):
        return plugin.codec(task)
    return None


def _module(kind: str, name: str, folder: Path | None) -> ModuleType:
    if is_file(name, folder):
        return from_path(_existing(folder or Path(), name))
    if name in files(kind):
        return importlib.import_module(f"ponder.{KINDS[kind].folder.replace('/', '.')}.{name}")
    for point in entry_points(group=f"ponder.{kind}", name=name):
        return importlib.import_module(point.module)
    raise unknown(kind, name)


def source(kind: str, name: str, folder: Path | None) -> Path | None:
    """Return the file of a plugin; None if it comes from another package."""
    if is_file(name, folder):
        return _existing(folder or Path(), name)
    if name not in names(kind):
        raise unknown(kind, name)
    return files(kind).get(name)


def _existing(folder: Path, name: str) -> Path:
    """Return the resolved path of a file; raise `UserError` if there is none."""
    path = folder / name
    if "\0" not in name:
        path = path.resolve()
    if not path.is_file():
        hint = "" if folder == Path() else "a path is relative to the study's folder"
        raise UserError(f"there is no file {path}", hint=hint)
    return path


def unknown(kind: str, name: str) -> UserError:
    """Return the error for a plugin that doesn't exist, with what to write instead."""
    what = f"{KINDS[kind].noun} `{name}` is unknown"
    if (kind, name) in RENAMED:
        return UserError(what, hint=f"it is now {RENAMED[kind, name]}")
    table = _intended_model(name) if kind == "models" else {}
    if table:
        why = "`name` says how a model is asked, `id` which one it is"
        lines = [f"{why}:", *(f'{key} = "{value}"' for key, value in table.items())]
        if "url" not in table:
            lines.append(
                '(name = "vllm" serves it; name = "endpoint" asks a server, with its `url`)'
            )
        return UserError(what, hint="\n".join(lines), in_python=f"{why}: model={table}")
    alias = ALIASES.get(kind, {}).get(_letters(name))
    if alias:
        return UserError(what, hint=f"here it is called `{alias}`")
    return UserError(what, hint=nearest(name, names(kind)))


def _intended_model(name: str) -> dict[str, str]:
    """Return the [[model]] for the name of a provider, a server or a hub's model; {} for others."""
    identifies = "/" in name or re.search(r"\d", name) is not None
    identifier = name if identifies else "NAME"
    if "/" not in name:
        for server, url in SERVERS.items():
            if re.match(rf"{re.escape(server)}(?![a-z])", name.lower()):
                return {"name": "endpoint", "id": identifier, "url": url}
    is_local = name.lower().replace("_", "") in LOCAL
    if is_local or (identifies and not closest(name, names("models"))):
        return {"name": "transformers", "id": identifier}
    return {}


def from_files() -> list[Path]:
    """Return the files that plugins were imported from by path.

    Another process must import them before it can unpickle.
    """
    paths = []
    for name, path in _files.items():
        if getattr(sys.modules.get(name), "__file__", None) == str(path):
            paths.append(path)
    return paths


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
            message = error.msg if isinstance(error, SyntaxError) else error
            raise UserError(
                f"it can't be imported: {type(error).__name__}: {message}",
                where=_line_of(error, path),
            ) from error
        raise
    return module


def _line_of(error: Exception, path: Path) -> str:
    """Return the file and the line in it that an exception comes from."""
    if isinstance(error, SyntaxError):
        return f"{error.filename or path}:{error.lineno}"
    lines = []
    for frame in traceback.extract_tb(error.__traceback__):
        if frame.filename == str(path):
            lines.append(frame.lineno)
    if not lines:
        return str(path)
    return f"{path}:{lines[-1]}"
