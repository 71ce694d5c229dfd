"""Loads weights through transformers, and generates from them with continuous batching.

A reply depends only on its seed, not on the others of the batch, except for the last bits of
floating-point sums. The KV cache is ours (`ponder.kvcache`), so that an eviction policy can prune
it.
"""

from __future__ import annotations

import re
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ponder.core import CacheBudget, Codec, Completion, Policy, Request, Source, UserError, plugins
from ponder.core.scoring import fitted_to
from ponder.models import read_card
from ponder.models._batch import Floats, Generation
from ponder.models._gpu_memory import stop_servers
from ponder.models._local_weights import no_bars
from ponder.tasks.reading import split_thinking

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

END_OF_THINKING = "</think>"
SDPA = 'attn = "sdpa" needs no package of its own'
IDS = (
    "id is a folder in the Hugging Face format, org/name on the hub, a .gguf file,"
    " pocket or smollm2"
)
OWN_CODE = (
    "Ponder runs no code that comes with weights; serve them where that is wanted,"
    " and use the model `endpoint`"
)


@dataclass(eq=False)
class SampledGeneration(Generation):
    """A generation that is sampled with top-p and top-k, and whose KV cache is measured."""

    top_p: float = 1.0
    top_k: int = 0  # 0: all

    def __post_init__(self) -> None:
        super().__post_init__()
        self.measures: dict[str, float] = {}
        self.steps = 0
        # Of each step, its part of the batch's time.
        self.seconds = 0.0
        self.cpu_seconds = 0.0

    def add_step(self, seconds: float, cpu_seconds: float) -> None:
        """Count a step of the batch, and this generation's part of the time it took."""
        self.steps += 1
        self.seconds += seconds
        self.cpu_seconds += cpu_seconds

    def choose(self, logits: Floats) -> int:
        if not self.temperature:
            return int(logits.argmax())
        order = np.argsort(-logits, kind="stable")[: self.top_k or None]
        scaled = logits[order].astype(np.float64) / self.temperature
        total = np.exp(scaled - scaled.max()).cumsum()
        # the fewest tokens that reach `top_p`
        nucleus = int(np.searchsorted(total, self.top_p * total[-1])) + 1
        total = total[:nucleus]
        drawn = np.searchsorted(total, self._random.random() * total[-1], side="right")
        return int(order[min(int(drawn), len(total) - 1)])


@dataclass(frozen=True)
class Loaded:
    """A network with its tokenizer, and how its prompts are rendered and its replies read."""

    folder: Path
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    # One user at a time: measuring attention replaces the model's attention function for a while.
    lock: threading.Lock = field(default_factory=threading.Lock, compare=False)
    codec: str = ""  # the model plugin whose codec renders and reads; "": the chat template
    # Greedy replies over the full cache, by prompt and budget: every policy is measured on the same
    # ones.
    full_cache_replies: dict[tuple[tuple[int, ...], int], SampledGeneration] = field(
        default_factory=dict, compare=False, repr=False
    )

    def _codec(self, request: Request) -> Codec | None:
        if not self.codec:
            return None
        return plugins.codec(self.codec, request.task.plugin_name())

    @cached_property
    def ends(self) -> set[int]:
        """Return the tokens that end a reply."""
        ends = self.model.generation_config.eos_token_id
        if ends is None:
            ends = self.tokenizer.eos_token_id
        if ends is None:
            return set()
        if isinstance(ends, list):
            return set(ends)
        return {int(ends)}

    @cached_property
    def end_of_thinking(self) -> int | None:
        token = self.tokenizer.convert_tokens_to_ids(END_OF_THINKING)
        if isinstance(token, int) and token != self.tokenizer.unk_token_id:
            return token
        return None

    def prompt(self, request: Request) -> list[int]:
        codec = self._codec(request)
        if codec:
            return codec.prompt_ids(request)
        return self.render(_message_dicts(request))

    def render(self, messages: list[dict[str, str]]) -> list[int]:
        return render(self.tokenizer, messages)

    def encode(self, completion: Completion) -> list[int]:
        """Return another model's reply as token ids."""
        text = completion.answer
        if completion.thinking:
            text = f"{completion.thinking}{END_OF_THINKING}{text}"
        tokens = list(self.tokenizer(text, add_special_tokens=False)["input_ids"])
        if completion.stop == "end":
            tokens += sorted(self.ends)[:1]
        return tokens

    def read(self, request: Request, reply: Generation) -> tuple[str, str, int]:
        """Return thinking, answer, and the number of thinking tokens of a reply."""
        codec = self._codec(request)
        if codec:
            return codec.reply(request, reply.tokens)
        tokens = reply.tokens
        if reply.ended:
            tokens = tokens[:-1]
        thinking, answer = split_thinking(str(self.tokenizer.decode(tokens)))
        if not thinking:
            thinking_tokens = 0
        elif self.end_of_thinking in tokens:
            thinking_tokens = tokens.index(self.end_of_thinking) + 1
        elif not answer:
            thinking_tokens = len(tokens)
        else:
            thinking_tokens = len(self.tokenizer(thinking)["input_ids"])
        return thinking, answer, thinking_tokens

    def drift(self, reply: Generation, policy: Policy, budget: CacheBudget) -> dict[str, float]:
        """Measure how far predictions under an eviction policy are from the full cache's."""
        with self.lock:
            return self._drift(reply, fitted_to(policy, self.folder, self.tokenizer), budget)

    def _drift(self, reply: Generation, policy: Policy, budget: CacheBudget) -> dict[str, float]:
        import torch

        from ponder.kvcache import drift
        from ponder.policies.dynts.labels import importance
        from ponder.policies.oracle import Oracle

        if isinstance(policy, Oracle):
            if self.end_of_thinking not in reply.tokens:
                return {}  # the oracle needs the answer's attention, and there is no answer
            ids = torch.tensor(reply.prompt + reply.tokens, device=self.model.device)
            answer = len(reply.prompt) + reply.tokens.index(self.end_of_thinking) + 1
            policy = Oracle(importance(self.model, ids, answer)[0])
        drifted = drift(self.model, reply.prompt, reply.tokens, policy, budget)
        return {
            "kl": drifted.kl,
            "agrees": drifted.agrees,
            "cache_bytes": drifted.bytes,
            "cache_peak": drifted.peak,
        }


def _message_dicts(request: Request) -> list[dict[str, str]]:
    return [{"role": message.role, "content": message.content} for message in request.messages]


def render(tokenizer: PreTrainedTokenizerBase, messages: list[dict[str, str]]) -> list[int]:
    """Return messages as token ids: by the chat template, or joined if the model has none."""
    if tokenizer.chat_template:
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        return list(tokenizer(str(text), add_special_tokens=False)["input_ids"])
    text = "\n\n".join(message["content"] for message in messages) + "\n"
    return list(tokenizer(text)["input_ids"])


def prompt_tokens(source: Source, request: Request) -> int | None:
    """Return a prompt's tokens without loading weights; None without a local tokenizer."""
    if source.codec:
        codec = plugins.codec(source.codec, request.task.plugin_name())
        if codec:
            return len(codec.prompt_ids(request))
    tokenizer = _tokenizer(source)
    if tokenizer is None:
        return None
    return len(render(tokenizer, _message_dicts(request)))


@lru_cache(maxsize=4)
def _tokenizer(source: Source) -> PreTrainedTokenizerBase | None:
    path, options = _pretrained(source)
    try:
        from transformers import AutoTokenizer

        no_bars()
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            path, local_files_only=True, trust_remote_code=False, **options
        )
    except (OSError, ValueError, ImportError):  # loading the weights will say what is wrong
        return None
    return tokenizer


def _pretrained(source: Source) -> tuple[str, dict[str, Any]]:
    """Return the path and the options of transformers' `from_pretrained`."""
    if source.folder.suffix == ".gguf":
        return str(source.folder.parent), {"gguf_file": source.folder.name}
    if source.revision:
        return str(source.folder), {"revision": source.revision}
    return str(source.folder), {}


@lru_cache(maxsize=4)
def load(source: Source) -> Loaded:
    """Load weights and tokenizer, cached for the next caller."""
    stop_servers(source.device)
    return load_anew(source)


def load_anew(source: Source) -> Loaded:
    """Load weights and tokenizer, for a caller that will change them.

    The dtype "auto" is that of the weights.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.set_num_threads(source.threads)
    no_bars()
    is_gguf = source.folder.suffix == ".gguf"
    path, options = _pretrained(source)
    read_card(source.folder)  # raises an error if the weights are damaged
    try:
        # Without `trust_remote_code`, transformers asks on the terminal, and one key runs whatever
        # code comes with the weights.
        tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=False, **options)
        if source.attn != "auto":
            options["attn_implementation"] = source.attn
        dtype = source.dtype
        if is_gguf and dtype == "auto":
            dtype = "float32"
        model = AutoModelForCausalLM.from_pretrained(
            path, dtype=dtype, trust_remote_code=False, **options
        )
    except (OSError, ValueError, ImportError) as error:
        reason = str(error).strip().splitlines()[0]
        if source.attn != "auto" and re.search("attention|attn", reason, re.IGNORECASE):
            message = f'can\'t load {path} with attn = "{source.attn}": {reason}'
            raise UserError(message, hint=SDPA) from None
        hint = IDS
        if "trust_remote_code" in str(error):
            hint = OWN_CODE
        raise UserError(f"can't load {path}: {reason}", hint=hint) from None
    # the weights were dequantised on loading, and may be saved as such
    if is_gguf:
        model.hf_quantizer = None  # type: ignore[assignment]
        vars(model.config).pop("quantization_config", None)
    # The CPU is where it is; under DeepSpeed, parts of it are elsewhere and must stay there.
    if source.device != "cpu":
        model.to(source.device)  # type: ignore[arg-type]
    model.eval()  # type: ignore[no-untyped-call]
    return Loaded(source.folder, model, tokenizer, codec=source.codec)


def load_light(source: Source) -> Loaded:
    """Load a network without its weights: enough to render prompts and to read replies."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig

    no_bars()
    path, options = _pretrained(source)
    try:
        with torch.device("meta"):
            config = AutoConfig.from_pretrained(path, trust_remote_code=False, **options)
            model = AutoModelForCausalLM.from_config(config, trust_remote_code=False)  # type: ignore[no-untyped-call]
        tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=False, **options)
    except (OSError, ValueError, ImportError) as error:
        raise UserError(f"can't load {path}: {str(error).strip().splitlines()[0]}") from None
    with suppress(OSError):  # most have a file with it
        model.generation_config = GenerationConfig.from_pretrained(path, **options)
    return Loaded(source.folder, model, tokenizer, codec=source.codec)


class TorchEngine:
    """Generates a batch of replies over one KV cache, which an eviction policy may prune."""

    def __init__(
        self, loaded: Loaded, policy: Policy | None, budget: CacheBudget | None, batch_size: int
    ) -> None:
        from ponder.kvcache import SelectCache, SlotCache
        from ponder.policies.full import Full

        self._loaded = loaded
        self._model = loaded.model
        self._limit = batch_size
        policy = fitted_to(policy or Full(), loaded.folder, loaded.tokenizer)
        thinking = loaded.end_of_thinking
        self._new_cache = partial(
            SelectCache, loaded.model, policy, budget, end_of_thinking=thinking
        )
        self._cache = SlotCache(loaded.model, policy, budget, end_of_thinking=thinking)
        self._batch: list[Generation] = []
        positions = getattr(loaded.model.config, "max_position_embeddings", None)
        self._positions = int(positions) if positions else None

    @property
    def busy(self) -> bool:
        return bool(self._batch)

    @property
    def room(self) -> bool:
        return len(self._batch) < self._limit

    def join(self, generation: Generation) -> None:
        """Read a prompt and generate its first token."""
        import torch

        with self._loaded.lock, torch.no_grad():
            cache = self._new_cache()
            prompt = torch.tensor([generation.prompt], device=self._model.device)
            logits = self._model(prompt, past_key_values=cache, logits_to_keep=1).logits
            self._cache.join(cache, generation.seed)
        self._batch.append(generation)
        self._append(len(self._batch) - 1, _last_logits(logits)[0])

    def step(self) -> None:
        """Generate one more token of every generation."""
        import torch

        cache = self._cache
        device = self._model.device
        # One thread's own time, if it does all the work: the process has others, which wait for
        # other models.
        cpu_clock = time.thread_time if torch.get_num_threads() == 1 else time.process_time
        with self._loaded.lock, torch.no_grad():
            started = time.perf_counter()
            cpu_started = cpu_clock()
            tokens = [[generation.tokens[-1]] for generation in self._batch]
            output = self._model(
                torch.tensor(tokens, device=device),
                attention_mask=cache.mask(),
                position_ids=torch.tensor(cache.seen_tokens, device=device)[:, None],
                past_key_values=cache,
            )
            logits = _last_logits(output.logits)
            seconds = time.perf_counter() - started
            cpu_seconds = cpu_clock() - cpu_started
        size = len(self._batch)
        for generation in self._batch:
            if isinstance(generation, SampledGeneration):
                generation.add_step(seconds / size, cpu_seconds / size)
        for slot in reversed(range(size)):
            self._append(slot, logits[slot])

    def _append(self, slot: int, logits: Floats) -> None:
        """Choose the next token of a generation, and end it at an end token or a limit."""
        generation = self._batch[slot]
        token = generation.choose(logits)
        generation.tokens.append(token)
        generation.ended = token in self._loaded.ends
        full = self._positions is not None and self._cache.seen_tokens[slot] + 1 >= self._positions
        if not generation.ended and not full and len(generation.tokens) < generation.budget:
            return
        if isinstance(generation, SampledGeneration):
            self._measure(slot, generation)
        self._cache.leave(slot)
        self._batch[slot] = self._batch[-1]
        self._batch.pop()
        generation.done(generation)

    def _measure(self, slot: int, generation: SampledGeneration) -> None:
        """Note the size of a generation's cache, and its seconds per token."""
        held = self._cache.held[slot]
        token_bytes = self._cache.token_bytes
        generation.measures = {
            "cache_bytes": token_bytes * sum(held) / len(held),
            "cache_peak": float(token_bytes * self._cache.peaks[slot]),
        }
        steps = generation.steps
        if steps:
            generation.measures["seconds_per_token"] = generation.seconds / steps
            generation.measures["cpu_seconds_per_token"] = generation.cpu_seconds / steps


def _last_logits(logits: torch.Tensor) -> Floats:
    """Return the last token's logits: (rows, tokens, vocabulary) → (rows, vocabulary)."""
    last: Floats = logits[:, -1].float().cpu().numpy()
    return last
