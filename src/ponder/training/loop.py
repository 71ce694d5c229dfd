"""One optimiser loop for every method that changes weights: AdamW, warm-up, cosine decay, clipping, accumulation.

A step learns from units: one text each, or a pair of a preferred and another. They go through the model sorted by
length, so many tokens at a time, and only what was said is scored. The same code runs on a CPU, on one GPU and, under
`accelerate launch`, on many: each process takes every n-th micro-batch.

A training is stopped at any time and goes on where it last saved, to the same weights: what is learnt at a step depends
on its number and the seed alone.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import torch
from accelerate import Accelerator
from torch import Tensor

from ponder.core import Progress, UserError, not_in_key
from ponder.models.transformers import Loaded
from ponder.rewards._windows import batches

SAVE_SECONDS = 20.0


@dataclass(frozen=True)
class Example:
    """A text to score: what was asked, and what was said."""

    prompt: Sequence[int]
    said: Sequence[int]

    def __len__(self) -> int:
        return len(self.prompt) + len(self.said)


@dataclass(frozen=True)
class Unit:
    """What a step learns from as one: its texts, and whatever its loss wants to know."""

    texts: tuple[Example, ...]
    data: Any = None

    def __len__(self) -> int:
        return len(self.texts) * max(map(len, self.texts))


# From units × texts of log-probabilities, each summed over what was said, to the sum of the units' losses.
Loss: TypeAlias = Callable[[Tensor, Sequence[Unit]], Tensor]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How to learn."""

    seed: int = 1
    rate: float = 1e-5
    micro_tokens: int = not_in_key(4096)  # in one pass through the model, filling included: what memory allows
    warm_up: float = 0.05  # share of the steps
    decay: bool = True  # to 0, as a half cosine
    clip: float = 1.0  # norm of the gradient; 0: never
    weight_decay: float = 0.0
    lora: int = 0  # rank of a low-rank change (Hu et al. 2021); 0: all weights are learnt
    precision: Literal["float32", "bfloat16"] = "float32"

    def __post_init__(self) -> None:
        if self.rate <= 0 or min(self.micro_tokens, self.lora + 1) < 1 or not 0 <= self.warm_up <= 1:
            raise UserError("rate must be above 0, micro_tokens at least 1, lora not negative, warm_up from 0 to 1")
        if min(self.clip, self.weight_decay) < 0:
            raise UserError("clip and weight_decay can't be negative")

    def factor(self, step: int, steps: int) -> float:
        """On the learning rate."""
        warm = min(1.0, (step + 1) / max(1.0, self.warm_up * steps))
        return warm * (0.5 + 0.5 * math.cos(math.pi * step / steps)) if self.decay else warm


class Training:
    """A model with its optimiser, at some step, kept in a folder."""

    def __init__(self, loaded: Loaded, settings: Settings, folder: Path, temperature: float = 1.0) -> None:
        torch.manual_seed(settings.seed)
        self.accelerator = Accelerator(cpu=loaded.model.device.type == "cpu", mixed_precision="no")
        self.loaded, self.settings, self.folder, self.temperature = loaded, settings, folder, temperature
        # Not train(): dropout would make a step depend on more than its number and the seed.
        self.plain: Any = loaded.model.eval()  # type: ignore[no-untyped-call]
        if settings.lora:
            from peft import LoraConfig, get_peft_model

            low_rank = LoraConfig(r=settings.lora, lora_alpha=2 * settings.lora, target_modules="all-linear")
            self.plain = get_peft_model(loaded.model, low_rank)
        self.model = self.accelerator.prepare_model(self.plain)
        self.step, self.tokens = 0, 0
        rule = torch.optim.AdamW(self.groups(), weight_decay=settings.weight_decay)
        self.optimiser = self.accelerator.prepare_optimizer(rule)

    def groups(self) -> list[dict[str, Any]]:
        """The weights that change, with their learning rates."""
        return [{"params": list(self.learnt().values()), "rate": self.settings.rate}]

    def forget(self) -> None:
        """Begin again with the optimiser, not with the weights."""
        self.optimiser.state.clear()

    def learnt(self) -> dict[str, Tensor]:
        """The weights that change."""
        return {name: p for name, p in self.plain.named_parameters() if p.requires_grad}

    def scores(self, units: Sequence[Unit]) -> Tensor:
        """The log-probability of each text, units × texts."""
        texts = [text for unit in units for text in unit.texts]
        # Not accelerate's, which a process has to choose once and for all.
        mixed = self.settings.precision == "bfloat16"
        with torch.autocast(self.loaded.model.device.type, torch.bfloat16, enabled=mixed):
            return log_probabilities(self.model, texts, self.temperature).view(len(units), -1)

    @torch.no_grad()
    def score_all(self, units: Sequence[Unit]) -> list[list[float]]:
        """The same without learning, of any number of units."""
        found: list[list[float]] = [[] for _ in units]
        for places in batches([len(unit) for unit in units], self.settings.micro_tokens):
            few = [units[place] for place in places]
            for place, row in zip(places, self.scores(few).tolist(), strict=True):
                found[place] = row
        self.tokens += _tokens(units)
        return found

    def learn(self, units: Sequence[Unit], loss: Loss, over: float, factor: float = 1.0) -> float:
        """One step on units, whose losses are summed and divided by `over`."""
        value = self._backward(units, loss, over)
        self._update(units, factor)
        return value

    def _backward(self, units: Sequence[Unit], loss: Loss, over: float) -> float:
        """The loss, whose gradient is now known."""
        total, processes = 0.0, self.accelerator.num_processes
        passes = batches([len(unit) for unit in units], self.settings.micro_tokens)
        mine = passes[self.accelerator.process_index :: processes]
        idle = -(-len(passes) // processes) - len(mine)  # every process takes part in as many backward passes
        for weight, places in [(1.0, places) for places in mine] + [(0.0, passes[0])] * idle:
            few = [units[place] for place in places]
            part = weight * loss(self.scores(few), few) / over
            self._stop_unless_finite("loss", part)
            self.accelerator.backward(part * processes)  # which averages over the processes
            total += part.item()
        norm = self.accelerator.clip_grad_norm_(self.learnt().values(), self.settings.clip or math.inf)
        self._stop_unless_finite("gradient", norm)
        return total

    def _update(self, units: Sequence[Unit], factor: float) -> None:
        for group in self.optimiser.param_groups:
            group["lr"] = group["rate"] * factor
        self.optimiser.step()
        self.optimiser.zero_grad()
        self.step += 1
        self.tokens += _tokens(units)

    def _stop_unless_finite(self, what: str, number: Tensor) -> None:
        if not number.isfinite():
            path = self.folder / "training.pt"
            kept = f"the last good weights are kept in {path}" if path.is_file() else "no weights have been kept yet"
            hint = f"lower `rate`, now {self.settings.rate:g}"
            raise UserError(f"the {what} is {number.item()} at step {self.step + 1}; {kept}", hint=hint)

    def run(
        self, steps: int, units: Callable[[int], Sequence[Unit]], loss: Loss, over: Callable[[Sequence[Unit]], float]
    ) -> Iterator[Progress]:
        """Every step from where it stands, saving now and then."""
        first, began = self.step, time.monotonic()
        saved = began
        while self.step < steps:
            now = units(self.step)
            value = self._backward(now, loss, over(now))
            if time.monotonic() - saved > SAVE_SECONDS:
                self.save()  # before the step: of these weights it is known that their loss is a number
                saved = time.monotonic()
            self._update(now, self.settings.factor(self.step, steps))
            left = (time.monotonic() - began) / (self.step - first) * (steps - self.step)
            yield {"step": self.step, "of": steps, "loss": round(value, 4), "seconds_left": round(left)}

    def save(self, **more: Any) -> None:
        """CacheBudget everything that going on needs."""
        if not self.accelerator.is_main_process:
            return
        state = {
            "weights": {name: p.detach().cpu() for name, p in self.learnt().items()},
            "optimiser": self.optimiser.state_dict(),
            "at": (self.step, self.tokens),
            **more,
        }
        torch.save(state, self.folder / "training.new")
        (self.folder / "training.new").replace(self.folder / "training.pt")

    def resume(self) -> dict[str, Any]:
        """Go on where `save` left off, if it did; returns what more was saved."""
        path = self.folder / "training.pt"
        if not path.is_file():
            return {}
        state: dict[str, Any] = torch.load(path)
        with torch.no_grad():
            for name, p in self.learnt().items():
                p.copy_(state["weights"][name])
        self.optimiser.load_state_dict(state["optimiser"])
        self.step, self.tokens = state["at"]
        return state

    def write(self, folder: Path) -> None:
        """The model as it stands, in the Hugging Face format, with a low-rank change added to the weights."""
        if not self.accelerator.is_main_process:
            return
        if self.settings.lora:
            base = self.plain.get_base_model()
            kept = {n.replace(".base_layer", ""): p for n, p in base.state_dict().items() if "lora_" not in n}
            # peft's own merging adds the change and takes it off again, and each time rounds the weights for good.
            for name, layer in base.named_modules():
                if hasattr(layer, "get_delta_weight"):
                    kept[f"{name}.weight"] = (layer.base_layer.weight + layer.get_delta_weight("default")).detach()
            base.save_pretrained(folder, state_dict=kept)
        else:
            self.plain.save_pretrained(folder)
        self.loaded.tokenizer.save_pretrained(folder)


def likelihood(scores: Tensor, units: Sequence[Unit]) -> Tensor:  # noqa: ARG001 every text counts alike
    """The loss of supervised learning."""
    return -scores.sum()


def said(units: Sequence[Unit]) -> int:
    """Tokens that a step learns."""
    return sum(len(text.said) for unit in units for text in unit.texts)


def _tokens(units: Sequence[Unit]) -> int:
    return sum(len(text) for unit in units for text in unit.texts)


def log_probabilities(model: Any, texts: Sequence[Example], temperature: float = 1.0) -> Tensor:
    """Of what each text says, summed over its tokens, for a model that codec_for at a temperature."""
    device = next(model.parameters()).device
    longest = max(map(len, texts))
    start = min(len(text.prompt) for text in texts)  # nothing before it is scored
    ids = torch.zeros(len(texts), longest, dtype=torch.long)
    real, said = torch.zeros_like(ids), torch.zeros(len(texts), longest, dtype=torch.bool)
    for row, text in enumerate(texts):
        ids[row, : len(text)] = torch.tensor([*text.prompt, *text.said])
        real[row, : len(text)] = 1
        said[row, len(text.prompt) : len(text)] = True
    ids, real, said = ids.to(device), real.to(device), said.to(device)
    logits = model(input_ids=ids, attention_mask=real, logits_to_keep=longest - start + 1, use_cache=False).logits
    logits = logits[:, :-1].float() / temperature
    chosen = logits.gather(-1, ids[:, start:, None]).squeeze(-1) - logits.logsumexp(-1)
    found: Tensor = (chosen * said[:, start:]).sum(-1)
    return found
