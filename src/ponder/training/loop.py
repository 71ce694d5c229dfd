"""What every training is made of: units, losses, hyperparameters, and the loop for one process.

A step trains on units: one text, or a pair of a preferred and a rejected text. Units are sorted by
length and split into micro-batches of at most `micro_tokens` tokens; the loss counts the reply
alone.

`Loop` is `engine = "ponder"`: AdamW with gradient clipping and accumulation, on a CPU or one GPU.
`training/trainer_engine.py` trains on the same units with the same loss in several processes.

A training can be interrupted at any time. It resumes from its last checkpoint and ends with the
same weights, because a step's batch depends on its number and the seed alone.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, TypeAlias

import torch
from torch import Tensor

from ponder.core import Progress, Source, UserError, not_in_key, seed_from
from ponder.models._torch_engine import Loaded, load_anew
from ponder.rewards._windows import batches

SAVE_SECONDS = 20.0
FIRST_LOSS_TOLERANCE = 0.005
# Rounding of two forward passes, summed over the tokens of long replies.
FIRST_LOSS_TOLERANCE_BF16 = 0.2
CHECKPOINT = "training.pt"


@dataclass(frozen=True)
class TokenExample:
    """A prompt and the reply to it, as token ids. Stored samples use these field names."""

    prompt: Sequence[int]
    said: Sequence[int]

    def __len__(self) -> int:
        return len(self.prompt) + len(self.said)


@dataclass(frozen=True)
class Unit:
    """What enters a loss as one: its texts, and whatever else its loss needs."""

    texts: tuple[TokenExample, ...]
    data: Any = None

    def __len__(self) -> int:
        """Return the tokens that it takes in a micro-batch, padding included."""
        return len(self.texts) * max(map(len, self.texts))


# A loss maps scores, the log-probability of each reply (units × texts), to the sum of the units'
# losses.
Loss: TypeAlias = Callable[[Tensor, Sequence[Unit]], Tensor]


@dataclass(frozen=True)
class Objective:
    """A loss, and what it needs to know of the model before training.

    Another process must be able to import the loss: a function of a module, or a `partial` of one.
    """

    loss: Loss
    # give each unit its log-probabilities before training, as its `data`
    reference: bool = False
    # the mean loss of the first step, if the model before training fixes it
    first_loss: float | None = None


class Step(NamedTuple):
    """What one optimizer step trains on."""

    units: Sequence[int]  # indices
    divisor: float  # of the sum of their losses
    factor: float = 1.0  # on the learning rate


@dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """The hyperparameters that every training has."""

    seed: int = 1  # of the order of the data, of samples and of a new adapter
    rate: float = 1e-5  # learning rate
    # tokens per forward pass, padding included: as many as memory allows
    micro_tokens: int = not_in_key(4096)
    warm_up: float = 0.05  # fraction of the steps with a rising learning rate
    decay: bool = True  # lower the learning rate to 0 along a half cosine
    clip: float = 1.0  # largest norm of the gradient; 0: no clipping
    weight_decay: float = 0.0  # of AdamW
    # rank of a low-rank adapter (LoRA, Hu et al. 2021), merged at the end; 0: train all weights
    lora: int = 0
    # of the forward pass; weights that are trained are in float32
    precision: Literal["float32", "bfloat16"] = "float32"
    # what trains: Ponder's loop in one process, or `transformers.Trainer` in several
    engine: Literal["ponder", "trainer"] = "ponder"
    # trainer: an accelerate config, such as fsdp.yaml; it says how many processes
    launch: Path | None = not_in_key(None)
    processes: int = not_in_key(1)  # trainer: processes without such a config, one per GPU
    # trainer: further `TrainingArguments`, such as { report_to = "wandb" }
    args: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.rate <= 0 or self.micro_tokens < 1 or self.lora < 0 or not 0 <= self.warm_up <= 1:
            raise UserError(
                "rate must be above 0, micro_tokens at least 1, lora not negative, "
                "warm_up from 0 to 1"
            )
        if min(self.clip, self.weight_decay) < 0:
            raise UserError("clip and weight_decay can't be negative")
        if self.processes < 1:
            raise UserError(
                f"processes must be at least 1, not {self.processes}",
                hint="one per GPU; default: 1",
            )
        if self.processes > 1 and self.launch:
            message = "processes is not used with `launch`, whose file says how many"
            raise UserError(message, hint="remove one of the two")
        if self.engine == "ponder" and (self.launch or self.processes > 1 or self.args):
            raise UserError(
                "`launch`, `processes` and `args` need several processes",
                hint='engine = "trainer"',
            )

    def hyperparameters(self) -> TrainingSettings:
        """Return these settings alone, without those of a method, for another process."""
        values = {field.name: getattr(self, field.name) for field in fields(TrainingSettings)}
        return TrainingSettings(**values)

    def training_seed(self) -> int:
        return self.seed

    def source_to_train(self, source: Source) -> Source:
        """Return the weights to train: in float32, unless an adapter is trained.

        Small updates are lost in bfloat16.
        """
        if self.lora:
            return source
        return source._replace(dtype="float32")

    def factor(self, step: int, steps: int) -> float:
        """Return the factor on the learning rate at a step."""
        warm_up = min(1.0, (step + 1) / max(1.0, self.warm_up * steps))
        if not self.decay:
            return warm_up
        return warm_up * (0.5 + 0.5 * math.cos(math.pi * step / steps))


class Network(Protocol):
    """What an engine trains: a module, how it scores units, and how it is written."""

    module: Any
    dtype: str  # of the weights, before training

    def scores(self, module: Any, units: Sequence[Unit]) -> Tensor:
        """Return what the loss takes, from the module as an engine has wrapped it."""

    def groups(self) -> list[dict[str, Any]]:
        """Return the optimizer's parameter groups, each with its learning rate `lr`."""

    def write(self, folder: Path) -> None:
        """Write the model in the Hugging Face format."""

    def write_trained(self, folder: Path, state: dict[str, Tensor]) -> None:
        """Write the weights of a whole state dict, or only those of an adapter."""


class LanguageModel:
    """A causal language model of which all weights are trained, or a LoRA adapter."""

    def __init__(
        self,
        loaded: Loaded,
        settings: TrainingSettings,
        temperature: float = 1.0,
        adapter: Path | None = None,
    ) -> None:
        torch.manual_seed(settings.seed)  # of a new adapter
        self.loaded = loaded
        self.settings = settings
        self.temperature = temperature
        self.dtype = str(loaded.model.dtype)
        # Not train(): with dropout a step would depend on more than its number and the seed.
        self.module: Any = loaded.model.eval()  # type: ignore[no-untyped-call]
        if settings.lora:
            self.module = self._with_adapter(adapter)

    def _with_adapter(self, adapter: Path | None) -> Any:
        """Return the model with a new adapter, or with one that was trained before."""
        from peft import LoraConfig, PeftModel, get_peft_model

        if adapter:
            return PeftModel.from_pretrained(self.module, str(adapter), is_trainable=True)
        rank = self.settings.lora
        config = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear")
        return get_peft_model(self.module, config)

    def scores(self, module: Any, units: Sequence[Unit]) -> Tensor:
        """Return the log-probability of each reply (units × texts)."""
        texts: list[TokenExample] = []
        for unit in units:
            texts += unit.texts
        return log_probabilities(module, texts, self.temperature).view(len(units), -1)

    def groups(self) -> list[dict[str, Any]]:
        parameters = [p for p in self.module.parameters() if p.requires_grad]
        return [{"params": parameters, "lr": self.settings.rate}]

    def write(self, folder: Path) -> None:
        """Write the model with its tokenizer, an adapter merged into the weights."""
        if self.settings.lora:
            base = self.module.get_base_model()
            base.save_pretrained(folder, state_dict=_merged(base))
        else:
            self.module.save_pretrained(folder)
        self.loaded.tokenizer.save_pretrained(folder)

    def write_adapter(self, folder: Path) -> None:
        """Write the adapter alone, as peft does."""
        self.module.save_pretrained(folder)

    def write_trained(self, folder: Path, state: dict[str, Tensor]) -> None:
        self.module.save_pretrained(folder, state_dict=state)
        self.loaded.tokenizer.save_pretrained(folder)


def load_language_model(
    source: Source,
    settings: TrainingSettings,
    temperature: float = 1.0,
    trained: Path | None = None,
) -> LanguageModel:
    """Load a model to train it; from the folder of an earlier training, if there is one."""
    if trained and not settings.lora:
        source = source._replace(folder=trained)
    loaded = load_anew(settings.source_to_train(source))
    return LanguageModel(loaded, settings, temperature, adapter=trained)


def _merged(base: Any) -> dict[str, Tensor]:
    """Return the weights of a model below an adapter, with the adapter added."""
    merged = {}
    for name, weight in base.state_dict().items():
        if "lora_" not in name:
            merged[name.replace(".base_layer", "")] = weight
    # Not peft's merge and unmerge: each rounds the weights, and length_rl writes the model often.
    for name, layer in base.named_modules():
        if hasattr(layer, "get_delta_weight"):
            delta = layer.get_delta_weight("default")
            merged[f"{name}.weight"] = (layer.base_layer.weight + delta).detach()
    return merged


class Loop:
    """The training of a network in this process, with its checkpoint in a folder."""

    seconds = 0.0  # of CPU in other processes
    notes: ClassVar[dict[str, Any]] = {}  # for `made.json`

    def __init__(self, network: Network, settings: TrainingSettings, folder: Path) -> None:
        self.network = network
        self.settings = settings
        self.folder = folder
        self.step = 0
        self.tokens = 0  # of all forward passes
        groups = network.groups()
        self._rates = [group["lr"] for group in groups]
        self.optimizer = torch.optim.AdamW(groups, weight_decay=settings.weight_decay)

    def trainable(self) -> dict[str, Tensor]:
        """Return the weights that are trained, by name."""
        parameters = self.network.module.named_parameters()
        return {name: parameter for name, parameter in parameters if parameter.requires_grad}

    def train(
        self,
        units: Sequence[Unit],
        steps: Sequence[Step],
        objective: Objective,
        resumable: bool = True,
    ) -> Iterator[Progress]:
        """Take all steps, resuming from a checkpoint and saving one every `SAVE_SECONDS`.

        A training that isn't `resumable` continues from the weights as they are, with a new
        optimizer and without checkpoints of its own.
        """
        if objective.reference:
            units = with_reference(units, self.score(units))
        if resumable:
            self.resume()
        else:
            self.step = 0
            self.optimizer.state.clear()
        first = self.step
        began = time.monotonic()
        saved = began
        while self.step < len(steps):
            step = steps[self.step]
            batch = [units[index] for index in step.units]
            loss = self._backward(batch, objective.loss, step.divisor)
            if self.step == 0:
                check_first_loss(loss, objective, self.settings, self.network.dtype, RANDOM_MODEL)
            if resumable and time.monotonic() - saved > SAVE_SECONDS:
                self.save()  # before the update: the loss of these weights is known to be finite
                saved = time.monotonic()
            self._update(batch, step.factor)
            passed = time.monotonic() - began
            seconds_left = passed / (self.step - first) * (len(steps) - self.step)
            yield {
                "step": self.step,
                "of": len(steps),
                "loss": round(loss, 4),
                "seconds_left": round(seconds_left),
            }

    @torch.no_grad()
    def score(self, units: Sequence[Unit]) -> list[list[float]]:
        """Return the log-probability of each reply, without gradients, for any number of units."""
        rows: list[list[float]] = [[] for _ in units]
        for indices in self._micro_batches(units):
            scores = self._scores([units[index] for index in indices])
            for index, row in zip(indices, scores.tolist(), strict=True):
                rows[index] = row
        self.tokens += count_tokens(units)
        return rows

    def _scores(self, units: Sequence[Unit]) -> Tensor:
        module = self.network.module
        mixed = self.settings.precision == "bfloat16"
        with torch.autocast(module.device.type, torch.bfloat16, enabled=mixed):
            return self.network.scores(module, units)

    def _micro_batches(self, units: Sequence[Unit]) -> list[list[int]]:
        return batches([len(unit) for unit in units], self.settings.micro_tokens)

    def _backward(self, units: Sequence[Unit], loss: Loss, divisor: float) -> float:
        """Compute the gradient, clip it and return the loss."""
        total = 0.0
        for indices in self._micro_batches(units):
            micro_batch = [units[index] for index in indices]
            value = loss(self._scores(micro_batch), micro_batch) / divisor
            self._abort_unless_finite("loss", value)
            value.backward()  # type: ignore[no-untyped-call]
            total += value.item()
        limit = self.settings.clip or math.inf
        norm = torch.nn.utils.clip_grad_norm_(self.trainable().values(), limit)
        self._abort_unless_finite("gradient", norm)
        return total

    def _update(self, units: Sequence[Unit], factor: float) -> None:
        for group, rate in zip(self.optimizer.param_groups, self._rates, strict=True):
            group["lr"] = rate * factor
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.step += 1
        self.tokens += count_tokens(units)

    def _abort_unless_finite(self, name: str, number: Tensor) -> None:
        if number.isfinite():
            return
        path = self.folder / CHECKPOINT
        weights = "no weights have been saved yet"
        if path.is_file():
            weights = f"the last good weights are in {path}"
        raise UserError(
            f"the {name} is {number.item()} at step {self.step + 1}; {weights}",
            hint=f"lower `rate`, now {self.settings.rate:g}",
        )

    def save(self, **state: Any) -> None:
        """Write a checkpoint: trainable weights, optimizer, counters, and a caller's `state`."""
        weights = {name: weight.detach().cpu() for name, weight in self.trainable().items()}
        checkpoint = {
            "weights": weights,
            # spelled as in checkpoints that may be waiting to be resumed
            "optimiser": self.optimizer.state_dict(),
            "at": (self.step, self.tokens),
            **state,
        }
        new = self.folder / "training.new"
        torch.save(checkpoint, new)
        new.replace(self.folder / CHECKPOINT)

    def resume(self) -> dict[str, Any]:
        """Load the checkpoint, if there is one, and return all that it holds."""
        path = self.folder / CHECKPOINT
        if not path.is_file():
            return {}
        checkpoint: dict[str, Any] = torch.load(path, weights_only=True)
        with torch.no_grad():
            for name, weight in self.trainable().items():
                weight.copy_(checkpoint["weights"][name])
        self.optimizer.load_state_dict(checkpoint["optimiser"])
        self.step, self.tokens = checkpoint["at"]
        return checkpoint

    def write(self, folder: Path) -> None:
        """Write the trained model in the Hugging Face format."""
        self.network.write(folder)

    def write_adapter(self, folder: Path) -> None:
        """Write the LoRA adapter alone."""
        assert isinstance(self.network, LanguageModel)
        self.network.write_adapter(folder)


RANDOM_MODEL = (
    "the same weights must give the same log-probabilities twice: is a part of the model random?"
)


def check_first_loss(
    loss: float, objective: Objective, settings: TrainingSettings, dtype: str, hint: str
) -> None:
    """Raise `UserError` unless the first loss is that of a model that equals its reference.

    `dtype` is that of the weights, which are below float32 only under an adapter.
    """
    if objective.first_loss is None:
        return
    tolerance = FIRST_LOSS_TOLERANCE
    if settings.precision == "bfloat16" or not dtype.endswith("float32"):
        tolerance = FIRST_LOSS_TOLERANCE_BF16
    if abs(loss - objective.first_loss) > tolerance:
        message = f"the first loss is {loss:.4g}, and must be {objective.first_loss:.4g}"
        raise UserError(
            f"{message}: the reference has other weights than the model before training", hint=hint
        )


def with_reference(units: Sequence[Unit], rows: Sequence[Sequence[float]]) -> list[Unit]:
    """Return the units with their log-probabilities before training."""
    return [replace(unit, data=row) for unit, row in zip(units, rows, strict=True)]


def negative_log_likelihood(scores: Tensor, units: Sequence[Unit]) -> Tensor:  # noqa: ARG001 a `Loss`
    """Return the loss of supervised fine-tuning, in which every reply counts alike."""
    return -scores.sum()


SUPERVISED = Objective(negative_log_likelihood)


def reply_tokens(units: Sequence[Unit]) -> int:
    """Return the number of tokens that the loss counts."""
    total = 0
    for unit in units:
        for text in unit.texts:
            total += len(text.said)
    return total


def count_tokens(units: Sequence[Unit]) -> int:
    """Return the number of tokens that are read, prompts included."""
    total = 0
    for unit in units:
        total += sum(map(len, unit.texts))
    return total


def steps_per_epoch(units: Sequence[Unit], batch: int) -> int:
    return -(-len(units) // batch)


def epoch_steps(
    units: Sequence[Unit],
    batch: int,
    number: int,
    settings: TrainingSettings,
    divisor: Callable[[Sequence[Unit]], float] = len,
) -> list[Step]:
    """Return this many steps: each unit once per epoch, in a new order in each.

    A step's summed losses are divided by what `divisor` returns for its units.
    """
    per_epoch = steps_per_epoch(units, batch)
    steps: list[Step] = []
    for epoch in range(-(-number // per_epoch)):
        order = list(range(len(units)))
        random.Random(seed_from("epoch", settings.seed, epoch)).shuffle(order)
        for start in range(0, len(order), batch):
            indices = order[start : start + batch]
            divided_by = divisor([units[index] for index in indices])
            steps.append(Step(indices, divided_by, settings.factor(len(steps), number)))
    return steps[:number]


def log_probabilities(
    model: Any, texts: Sequence[TokenExample], temperature: float = 1.0
) -> Tensor:
    """Return each reply's log-probability, summed over its tokens, at a sampling temperature."""
    device = next(model.parameters()).device
    longest = max(map(len, texts))
    start = min(len(text.prompt) for text in texts)  # logits before it are not needed
    ids = torch.zeros(len(texts), longest, dtype=torch.long)
    mask = torch.zeros_like(ids)
    reply = torch.zeros(len(texts), longest, dtype=torch.bool)
    for row, text in enumerate(texts):
        ids[row, : len(text)] = torch.tensor([*text.prompt, *text.said])
        mask[row, : len(text)] = 1
        reply[row, len(text.prompt) : len(text)] = True
    ids = ids.to(device)
    mask = mask.to(device)
    reply = reply.to(device)
    logits = model(
        input_ids=ids, attention_mask=mask, logits_to_keep=longest - start + 1, use_cache=False
    ).logits
    logits = logits[:, :-1].float() / temperature
    per_token = logits.gather(-1, ids[:, start:, None]).squeeze(-1) - logits.logsumexp(-1)
    total: Tensor = (per_token * reply[:, start:]).sum(-1)
    return total
