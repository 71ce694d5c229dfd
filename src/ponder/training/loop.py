"""The training loop of methods and rewards with `engine = "ponder"`.

It has AdamW, warm-up, cosine decay, gradient clipping and accumulation.

A step trains on units: one text, or a pair of a preferred and a rejected text. Units are sorted by
length and split into micro-batches of at most `micro_tokens` tokens; the loss counts the reply
alone. The same code runs on a CPU, on one GPU and, in a distributed environment of n processes, on
n of them, each of which takes every n-th micro-batch. Ponder itself starts one process.

A training can be interrupted at any time. It resumes from its last checkpoint and ends with the
same weights, because a step's batch depends on its number and the seed alone.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, TypeAlias

import torch
from accelerate import Accelerator
from torch import Tensor

from ponder.core import Progress, Source, UserError, not_in_key, seed_from
from ponder.models._torch_engine import Loaded
from ponder.rewards._windows import batches

SAVE_SECONDS = 20.0
FIRST_DPO_LOSS = math.log(2)  # -log sigmoid(0): the policy is still its own reference
DPO_TOLERANCE = 0.005
DPO_TOLERANCE_BF16 = 0.2  # rounding of two forward passes, summed over the tokens of long replies


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
        """Tokens that it takes in a micro-batch, padding included."""
        return len(self.texts) * max(map(len, self.texts))


# A loss maps the log-probability of each reply (units × texts) to the sum of the units' losses.
Loss: TypeAlias = Callable[[Tensor, Sequence[Unit]], Tensor]


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
    precision: Literal["float32", "bfloat16"] = (
        "float32"  # of the forward pass; weights that are trained are in float32
    )
    # what trains: the loop here, or TRL under `accelerate launch`
    engine: Literal["ponder", "trl"] = "ponder"
    # TRL: an accelerate config, such as fsdp.yaml; it says how many processes
    launch: Path | None = not_in_key(None)
    processes: int = not_in_key(1)  # TRL: processes without such a config, one per GPU
    # TRL: further arguments of its trainer, { use_vllm = true }
    args: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if (
            self.rate <= 0
            or min(self.micro_tokens, self.lora + 1) < 1
            or not 0 <= self.warm_up <= 1
        ):
            raise UserError(
                "rate must be above 0, micro_tokens at least 1, lora not negative, warm_up from 0 to 1"
            )
        if min(self.clip, self.weight_decay) < 0:
            raise UserError("clip and weight_decay can't be negative")
        if self.processes < 1:
            raise UserError(
                f"processes must be at least 1, not {self.processes}",
                hint="one per GPU; default: 1",
            )
        if self.processes > 1 and self.launch:
            what = "processes is not used with `launch`, whose file says how many"
            raise UserError(what, hint="remove one of the two")
        if self.engine == "ponder" and (self.launch or self.processes > 1 or self.args):
            raise UserError("`launch`, `processes` and `args` are for TRL", hint='engine = "trl"')

    def settings(self) -> TrainingSettings:
        """Return these hyperparameters alone, for another process."""
        return TrainingSettings(
            **{field.name: getattr(self, field.name) for field in fields(TrainingSettings)}
        )

    def training_seed(self) -> int:
        return self.seed

    def source_to_train(self, source: Source) -> Source:
        """Return the weights to train: in float32, in which small updates aren't lost, unless an
        adapter is trained.
        """
        return source if self.lora else source._replace(dtype="float32")

    def factor(self, step: int, steps: int) -> float:
        """The factor on the learning rate at a step."""
        warm = min(1.0, (step + 1) / max(1.0, self.warm_up * steps))
        return warm * (0.5 + 0.5 * math.cos(math.pi * step / steps)) if self.decay else warm


class Trainer:
    """A model with its optimizer, and its checkpoint in a folder."""

    def __init__(
        self, loaded: Loaded, settings: TrainingSettings, folder: Path, temperature: float = 1.0
    ) -> None:
        torch.manual_seed(settings.seed)
        self.accelerator = Accelerator(cpu=loaded.model.device.type == "cpu", mixed_precision="no")
        self.loaded, self.settings, self.folder, self.temperature = (
            loaded,
            settings,
            folder,
            temperature,
        )
        # Not train(): with dropout a step would depend on more than its number and the seed.
        self.plain: Any = loaded.model.eval()  # type: ignore[no-untyped-call]
        if settings.lora:
            from peft import LoraConfig, get_peft_model

            adapter = LoraConfig(
                r=settings.lora, lora_alpha=2 * settings.lora, target_modules="all-linear"
            )
            self.plain = get_peft_model(loaded.model, adapter)
        self.model = self.accelerator.prepare_model(self.plain)
        self.step, self.tokens = 0, 0
        adam = torch.optim.AdamW(self.groups(), weight_decay=settings.weight_decay)
        self.optimizer = self.accelerator.prepare_optimizer(adam)

    def groups(self) -> list[dict[str, Any]]:
        """The optimizer's parameter groups, each with its learning rate."""
        return [{"params": list(self.trainable().values()), "rate": self.settings.rate}]

    def reset_optimizer(self) -> None:
        """Clear the optimizer's state; the weights stay."""
        self.optimizer.state.clear()

    def trainable(self) -> dict[str, Tensor]:
        """The weights that are trained, by name."""
        return {name: p for name, p in self.plain.named_parameters() if p.requires_grad}

    def scores(self, units: Sequence[Unit]) -> Tensor:
        """The log-probability of each reply, units × texts."""
        texts = [text for unit in units for text in unit.texts]
        # Not accelerate's mixed precision, which is fixed for the whole process.
        mixed = self.settings.precision == "bfloat16"
        with torch.autocast(self.loaded.model.device.type, torch.bfloat16, enabled=mixed):
            return log_probabilities(self.model, texts, self.temperature).view(len(units), -1)

    @torch.no_grad()
    def score_all(self, units: Sequence[Unit]) -> list[list[float]]:
        """The log-probability of each reply, without gradients, for any number of units."""
        rows: list[list[float]] = [[] for _ in units]
        for indices in self._micro_batches(units):
            for index, row in zip(
                indices, self.scores([units[i] for i in indices]).tolist(), strict=True
            ):
                rows[index] = row
        self.tokens += _tokens(units)
        return rows

    def learn(self, units: Sequence[Unit], loss: Loss, over: float, factor: float = 1.0) -> float:
        """One optimizer step on the units' summed losses, divided by `over`. Returns the loss."""
        value = self._backward(units, loss, over)
        self._update(units, factor)
        return value

    def _micro_batches(self, units: Sequence[Unit]) -> list[list[int]]:
        return batches([len(unit) for unit in units], self.settings.micro_tokens)

    def _backward(self, units: Sequence[Unit], loss: Loss, over: float) -> float:
        """Compute the gradient; returns the loss."""
        total, processes = 0.0, self.accelerator.num_processes
        micro_batches = self._micro_batches(units)
        own = micro_batches[self.accelerator.process_index :: processes]
        # every process must take part in every backward pass
        idle = -(-len(micro_batches) // processes) - len(own)
        for weight, indices in [(1.0, indices) for indices in own] + [
            (0.0, micro_batches[0])
        ] * idle:
            batch = [units[i] for i in indices]
            part = weight * loss(self.scores(batch), batch) / over
            self._stop_unless_finite("loss", part)
            self.accelerator.backward(part * processes)  # accelerate averages over the processes
            total += part.item()
        norm = self.accelerator.clip_grad_norm_(
            self.trainable().values(), self.settings.clip or math.inf
        )
        self._stop_unless_finite("gradient", norm)
        return total

    def _update(self, units: Sequence[Unit], factor: float) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = group["rate"] * factor
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.step += 1
        self.tokens += _tokens(units)

    def _stop_unless_finite(self, what: str, number: Tensor) -> None:
        if not number.isfinite():
            path = self.folder / "training.pt"
            kept = (
                f"the last good weights are in {path}"
                if path.is_file()
                else "no weights have been saved yet"
            )
            hint = f"lower `rate`, now {self.settings.rate:g}"
            raise UserError(
                f"the {what} is {number.item()} at step {self.step + 1}; {kept}", hint=hint
            )

    def run(
        self,
        steps: int,
        units: Callable[[int], Sequence[Unit]],
        loss: Loss,
        over: Callable[[Sequence[Unit]], float],
    ) -> Iterator[Progress]:
        """Train up to step `steps`, with a checkpoint every `SAVE_SECONDS`."""
        first, began = self.step, time.monotonic()
        saved = began
        while self.step < steps:
            batch = units(self.step)
            value = self._backward(batch, loss, over(batch))
            if time.monotonic() - saved > SAVE_SECONDS:
                self.save()  # before the update: the loss of these weights is known to be finite
                saved = time.monotonic()
            self._update(batch, self.settings.factor(self.step, steps))
            left = (time.monotonic() - began) / (self.step - first) * (steps - self.step)
            yield {
                "step": self.step,
                "of": steps,
                "loss": round(value, 4),
                "seconds_left": round(left),
            }

    def save(self, **more: Any) -> None:
        """Write a checkpoint: trainable weights, optimizer, counters, and `more`."""
        if not self.accelerator.is_main_process:
            return
        state = {
            "weights": {name: p.detach().cpu() for name, p in self.trainable().items()},
            # spelled as in checkpoints that may be waiting to be resumed
            "optimiser": self.optimizer.state_dict(),
            "at": (self.step, self.tokens),
            **more,
        }
        torch.save(state, self.folder / "training.new")
        (self.folder / "training.new").replace(self.folder / "training.pt")

    def resume(self) -> dict[str, Any]:
        """Load the checkpoint, if there is one, and return all that it holds."""
        path = self.folder / "training.pt"
        if not path.is_file():
            return {}
        state: dict[str, Any] = torch.load(path, weights_only=True)
        with torch.no_grad():
            for name, p in self.trainable().items():
                p.copy_(state["weights"][name])
        self.optimizer.load_state_dict(state["optimiser"])
        self.step, self.tokens = state["at"]
        return state

    def write_adapter(self, folder: Path) -> None:
        """Write the LoRA adapter alone, as peft does."""
        if self.accelerator.is_main_process:
            self.plain.save_pretrained(folder)

    def write(self, folder: Path) -> None:
        """Write the model in the Hugging Face format, with a LoRA adapter merged into the weights."""
        if not self.accelerator.is_main_process:
            return
        if self.settings.lora:
            base = self.plain.get_base_model()
            merged = {
                n.replace(".base_layer", ""): p
                for n, p in base.state_dict().items()
                if "lora_" not in n
            }
            # Not peft's merge and unmerge: each rounds the weights, and length_rl writes the model
            # many times.
            for name, layer in base.named_modules():
                if hasattr(layer, "get_delta_weight"):
                    merged[f"{name}.weight"] = (
                        layer.base_layer.weight + layer.get_delta_weight("default")
                    ).detach()
            base.save_pretrained(folder, state_dict=merged)
        else:
            self.plain.save_pretrained(folder)
        self.loaded.tokenizer.save_pretrained(folder)


def check_first_dpo_loss(loss: float, settings: TrainingSettings, dtype: str, hint: str) -> None:
    """Raise `UserError` unless the first loss of DPO is that of a policy that equals its reference.

    `dtype` is that of the weights, which are below float32 only under an adapter.
    """
    tolerance = DPO_TOLERANCE
    if settings.precision == "bfloat16" or not dtype.endswith("float32"):
        tolerance = DPO_TOLERANCE_BF16
    if abs(loss - FIRST_DPO_LOSS) > tolerance:
        what = f"the first loss of dpo is {loss:.4g}, and must be {FIRST_DPO_LOSS:.4g} (ln 2)"
        raise UserError(
            f"{what}: the reference has other weights than the model before training", hint=hint
        )


def likelihood(scores: Tensor, units: Sequence[Unit]) -> Tensor:  # noqa: ARG001 every text counts alike
    """The loss of supervised fine-tuning: the negative log-likelihood of the replies."""
    return -scores.sum()


def reply_tokens(units: Sequence[Unit]) -> int:
    """The tokens that the loss counts."""
    return sum(len(text.said) for unit in units for text in unit.texts)


def _tokens(units: Sequence[Unit]) -> int:
    return sum(len(text) for unit in units for text in unit.texts)


def steps_per_epoch(units: Sequence[Unit], batch: int) -> int:
    return -(-len(units) // batch)


def epoch_batch(units: Sequence[Unit], batch: int, seed: int, step: int) -> list[Unit]:
    """The units of a step: each unit once per epoch, shuffled anew in each."""
    epoch, position = divmod(step, steps_per_epoch(units, batch))
    order = list(units)
    random.Random(seed_from("epoch", seed, epoch)).shuffle(order)
    return order[position * batch :][:batch]


def log_probabilities(
    model: Any, texts: Sequence[TokenExample], temperature: float = 1.0
) -> Tensor:
    """The log-probability of each reply, summed over its tokens, for a model that samples at a
    temperature.
    """
    device = next(model.parameters()).device
    longest = max(map(len, texts))
    start = min(len(text.prompt) for text in texts)  # logits before it are not needed
    ids = torch.zeros(len(texts), longest, dtype=torch.long)
    mask, reply = torch.zeros_like(ids), torch.zeros(len(texts), longest, dtype=torch.bool)
    for row, text in enumerate(texts):
        ids[row, : len(text)] = torch.tensor([*text.prompt, *text.said])
        mask[row, : len(text)] = 1
        reply[row, len(text.prompt) : len(text)] = True
    ids, mask, reply = ids.to(device), mask.to(device), reply.to(device)
    logits = model(
        input_ids=ids, attention_mask=mask, logits_to_keep=longest - start + 1, use_cache=False
    ).logits
    logits = logits[:, :-1].float() / temperature
    per_token = logits.gather(-1, ids[:, start:, None]).squeeze(-1) - logits.logsumexp(-1)
    total: Tensor = (per_token * reply[:, start:]).sum(-1)
    return total
