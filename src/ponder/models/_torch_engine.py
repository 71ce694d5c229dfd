"""Loads weights through transformers, and generates from them with continuous batching.

A reply depends only on its seed, not on the rest of the batch, except for the last bits of
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
OWN_CODE = "Ponder runs no code that comes with weights; serve them where that is wanted, and ask the model `endpoint`"


@dataclass(eq=False)
class SampledGeneration(Generation):
    """A generation that is sampled with top-p and top-k, and whose KV cache is measured."""

    top_p: float = 1.0
    top_k: int = 0  # 0: all

    def __post_init__(self) -> None:
        super().__post_init__()
        self.measures: dict[str, float] = {}
        # its part of the steps that it shared with others
        self.steps, self.seconds, self.cpu_seconds = 0, 0.0, 0.0

    def share(self, seconds: float, cpu_seconds: float) -> None:
        """Add its part of one step of the batch."""
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
        return plugins.codec(self.codec, request.task.plugin_name()) if self.codec else None

    @cached_property
    def ends(self) -> set[int]:
        """The tokens that end a reply."""
        ends = self.model.generation_config.eos_token_id
        ends = self.tokenizer.eos_token_id if ends is None else ends
        return set(ends) if isinstance(ends, list) else {int(ends)} if ends is not None else set()

    @cached_property
    def end_of_thinking(self) -> int | None:
        token = self.tokenizer.convert_tokens_to_ids(END_OF_THINKING)
        return token if isinstance(token, int) and token != self.tokenizer.unk_token_id else None

    def prompt(self, request: Request) -> list[int]:
        if codec := self._codec(request):
            return codec.prompt_ids(request)
        return self.asked([{"role": m.role, "content": m.content} for m in request.messages])

    def asked(self, messages: list[dict[str, str]]) -> list[int]:
        return asked(self.tokenizer, messages)

    def encode(self, completion: Completion) -> list[int]:
        """Another model's reply as token ids."""
        text = completion.answer
        if completion.thinking:
            text = f"{completion.thinking}{END_OF_THINKING}{text}"
        tokens = list(self.tokenizer(text, add_special_tokens=False)["input_ids"])
        return [*tokens, *sorted(self.ends)[:1]] if completion.stop == "end" else tokens

    def read(self, request: Request, reply: Generation) -> tuple[str, str, int]:
        """Thinking, answer, and the number of thinking tokens of a reply."""
        if codec := self._codec(request):
            return codec.reply(request, reply.tokens)
        tokens = reply.tokens[:-1] if reply.ended else reply.tokens
        thinking, answer = split_thinking(str(self.tokenizer.decode(tokens)))
        if not thinking:
            thought = 0
        elif self.end_of_thinking in tokens:
            thought = tokens.index(self.end_of_thinking) + 1
        else:
            thought = len(tokens) if not answer else len(self.tokenizer(thinking)["input_ids"])
        return thinking, answer, thought

    def drift(self, reply: Generation, policy: Policy, budget: CacheBudget) -> dict[str, float]:
        """How far the predictions under an eviction policy are from the full cache's, on a given
        reply.
        """
        with self.lock:
            return self._drift(reply, fitted_to(policy, self.folder, self.tokenizer), budget)

    def _drift(self, reply: Generation, policy: Policy, budget: CacheBudget) -> dict[str, float]:
        import torch

        from ponder.kvcache import drift
        from ponder.policies.dynts.labels import importance
        from ponder.policies.oracle import Oracle

        if isinstance(policy, Oracle):
            if self.end_of_thinking not in reply.tokens:
                return {}  # without an answer there is no attention of the answer to know
            ids = torch.tensor(reply.prompt + reply.tokens, device=self.model.device)
            answer = len(reply.prompt) + reply.tokens.index(self.end_of_thinking) + 1
            policy = Oracle(importance(self.model, ids, answer)[0])
        drifted = drift(self.model, reply.prompt, reply.tokens, policy, budget)
        sizes = {"cache_bytes": drifted.bytes, "cache_peak": drifted.peak}
        return {"kl": drifted.kl, "agrees": drifted.agrees, **sizes}


def asked(tokenizer: PreTrainedTokenizerBase, messages: list[dict[str, str]]) -> list[int]:
    """Messages as token ids: by the chat template, or plainly joined if the model has none."""
    if tokenizer.chat_template:
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        return list(tokenizer(str(text), add_special_tokens=False)["input_ids"])
    return list(tokenizer("\n\n".join(m["content"] for m in messages) + "\n")["input_ids"])


def prompt_tokens(source: Source, request: Request) -> int | None:
    """How long a prompt is, without loading weights; None if there is no tokenizer on this machine."""
    codec = plugins.codec(source.codec, request.task.plugin_name()) if source.codec else None
    if codec:
        return len(codec.prompt_ids(request))
    if (tokenizer := _tokenizer(source)) is None:
        return None
    return len(asked(tokenizer, [{"role": m.role, "content": m.content} for m in request.messages]))


@lru_cache(maxsize=4)
def _tokenizer(source: Source) -> PreTrainedTokenizerBase | None:
    where, more = _place(source)
    try:
        from transformers import AutoTokenizer

        no_bars()
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            where, local_files_only=True, trust_remote_code=False, **more
        )
    except (OSError, ValueError, ImportError):  # loading the weights will say what is wrong
        return None
    return tokenizer


def _place(source: Source) -> tuple[str, dict[str, Any]]:
    """What transformers loads from."""
    if source.folder.suffix == ".gguf":
        return str(source.folder.parent), {"gguf_file": source.folder.name}
    return str(source.folder), {"revision": source.revision} if source.revision else {}


@lru_cache(maxsize=4)
def load(source: Source) -> Loaded:
    """Weights and tokenizer, cached for the next caller."""
    stop_servers(source.device)
    return load_anew(source)


def load_anew(source: Source) -> Loaded:
    """Weights and tokenizer, for a caller that will change them.

    The dtype "auto" is that of the weights.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder, _, dtype, device, threads, codec, attn = source
    torch.set_num_threads(threads)
    no_bars()
    where, more = _place(source)
    read_card(folder)  # raises an error if the weights are damaged
    try:
        # Left out, transformers asks on the terminal, and one key runs whatever code comes with the
        # weights.
        tokenizer = AutoTokenizer.from_pretrained(where, trust_remote_code=False, **more)
        own = {} if attn == "auto" else {"attn_implementation": attn}
        kind = "float32" if folder.suffix == ".gguf" and dtype == "auto" else dtype
        model = AutoModelForCausalLM.from_pretrained(
            where, dtype=kind, trust_remote_code=False, **own, **more
        )
    except (OSError, ValueError, ImportError) as error:
        first = str(error).strip().splitlines()[0]
        hint = "id is a folder in the Hugging Face format, org/name on the hub, a .gguf file, pocket or smollm2"
        if attn != "auto" and re.search("attention|attn", first, re.IGNORECASE):
            raise UserError(
                f'can\'t load {where} with attn = "{attn}": {first}', hint=SDPA
            ) from None
        if "trust_remote_code" in str(error):
            hint = OWN_CODE
        raise UserError(f"can't load {where}: {first}", hint=hint) from None
    # the weights were dequantised on loading, and may be saved as such
    if folder.suffix == ".gguf":
        model.hf_quantizer = None  # type: ignore[assignment]
        vars(model.config).pop("quantization_config", None)
    # where it is; under DeepSpeed, parts of it are elsewhere and must stay there
    if device != "cpu":
        model.to(device)  # type: ignore[arg-type]
    return Loaded(folder, model.eval(), tokenizer, codec=codec)  # type: ignore[no-untyped-call]


def load_light(source: Source) -> Loaded:
    """A network without its weights, and its tokenizer: enough to write prompts and to read
    replies.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig

    no_bars()
    where, more = _place(source)
    try:
        with torch.device("meta"):
            config = AutoConfig.from_pretrained(where, trust_remote_code=False, **more)
            model = AutoModelForCausalLM.from_config(config, trust_remote_code=False)  # type: ignore[no-untyped-call]
        tokenizer = AutoTokenizer.from_pretrained(where, trust_remote_code=False, **more)
    except (OSError, ValueError, ImportError) as error:
        raise UserError(f"can't load {where}: {str(error).strip().splitlines()[0]}") from None
    with suppress(OSError):  # most have a file with it
        model.generation_config = GenerationConfig.from_pretrained(where, **more)
    return Loaded(source.folder, model, tokenizer, codec=source.codec)


class TorchEngine:
    """Generates a batch of replies, one token per step, over one KV cache that an eviction policy
    may prune.
    """

    def __init__(
        self, loaded: Loaded, policy: Policy | None, budget: CacheBudget | None, batch_size: int
    ) -> None:
        from ponder.kvcache import SelectCache, SlotCache
        from ponder.policies.full import Full

        self._loaded, self._model, self._limit = loaded, loaded.model, batch_size
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
        self._append(len(self._batch) - 1, _last(logits)[0])

    def step(self) -> None:
        """Generate one more token of every generation."""
        import torch

        cache, device = self._cache, self._model.device
        # One thread's own time, if it does all the work: the process has others, which wait for
        # other models.
        clock = time.thread_time if torch.get_num_threads() == 1 else time.process_time
        with self._loaded.lock, torch.no_grad():
            started, cpu = time.perf_counter(), clock()
            logits = self._model(
                torch.tensor(
                    [[generation.tokens[-1]] for generation in self._batch], device=device
                ),
                attention_mask=cache.mask(),
                position_ids=torch.tensor(cache.seen_tokens, device=device)[:, None],
                past_key_values=cache,
            ).logits
            last = _last(logits)
            seconds, cpu = time.perf_counter() - started, clock() - cpu
        for generation in self._batch:
            if isinstance(generation, SampledGeneration):
                generation.share(seconds / len(self._batch), cpu / len(self._batch))
        for n in reversed(range(len(self._batch))):
            self._append(n, last[n])

    def _append(self, n: int, logits: Floats) -> None:
        generation = self._batch[n]
        token = generation.choose(logits)
        generation.tokens.append(token)
        generation.ended = token in self._loaded.ends
        full = self._positions is not None and self._cache.seen_tokens[n] + 1 >= self._positions
        if generation.ended or len(generation.tokens) >= generation.budget or full:
            if isinstance(generation, SampledGeneration):
                held, size = self._cache.held[n], self._cache.token_bytes
                generation.measures = {
                    "cache_bytes": size * sum(held) / len(held),
                    "cache_peak": float(size * self._cache.peaks[n]),
                }
                if steps := generation.steps:
                    generation.measures["seconds_per_token"] = generation.seconds / steps
                    generation.measures["cpu_seconds_per_token"] = generation.cpu_seconds / steps
            self._cache.leave(n)
            self._batch[n] = self._batch[-1]
            self._batch.pop()
            generation.done(generation)


def _last(logits: torch.Tensor) -> Floats:
    """The logits after the last token of each row."""
    last: Floats = logits[:, -1].float().cpu().numpy()
    return last
