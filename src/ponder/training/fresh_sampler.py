"""A sampler that is given the weights of each iteration of a training.

A LoRA adapter is served as it is where the sampler can do that (`vllm`), so that its weights stay;
other samplers get the whole weights, with the adapter merged into them.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from ponder.core import Model, Progress, Sampled, Served, Task, UserError, WithWeights, require
from ponder.models._torch_engine import load
from ponder.training.made_models import write_card

Write: TypeAlias = Callable[[Path], object]  # writes weights as they are now into a folder


@dataclass
class FreshSampler:
    """A sampler, and where it finds the weights of the current iteration."""

    model: Model  # that is asked
    weights: Path  # that the training started from
    folder: Path  # for the weights of an iteration, and for an adapter in a folder below
    write: Write  # the whole weights
    write_adapter: Write | None = None  # if an adapter is trained
    served: str = ""  # how: "adapter", or why not

    def start(self, task: Task) -> Generator[Progress, None, None]:
        """Find out whether it serves the adapter as it is."""
        sampler = self._write_adapter(self.folder / "adapter") if self.write_adapter else None
        if not isinstance(sampler, Served):
            return
        try:
            yield from sampler.start(task)
        except (
            UserError
        ) as error:  # an architecture without LoRA in vLLM; whatever else is wrong will show again
            self.served = f"merged weights, because the adapter can't be served: {error.what}"
        else:
            self.served = "adapter"

    def refreshed(self, iteration: int, temperature: float) -> Model:
        """The sampler with the weights as they are now."""
        # A server may still read the adapter of the iteration before.
        sampler = None
        if self.served == "adapter":
            sampler = self._write_adapter(self.folder / f"adapter{iteration % 2}")
        if sampler:
            return require(sampler, Sampled).at_temperature(temperature)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.write(self.folder)
        write_card(self.weights, self.folder)
        load.cache_clear()  # the folder held other weights in the iteration before
        sampler = require(self.model, WithWeights).with_weights(self.folder)
        return require(sampler, Sampled).at_temperature(temperature)

    def _write_adapter(self, folder: Path) -> Model | None:
        """Write the adapter as it is now; the sampler that serves it, or None if it can't."""
        assert self.write_adapter is not None
        sampler = require(self.model, WithWeights).with_adapter(self.weights, folder)
        if sampler:
            self.write_adapter(folder)
        return sampler
